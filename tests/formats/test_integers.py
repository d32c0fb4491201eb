"""Formats of whole numbers give them as they are stored: times their scales, and behind their turn of rows, they are
the matrix."""

import numpy as np
import pytest

from formats import FORMATS
from formats.core.arrays import FormatError

SIZES = (64, 32), (100, 37), (400, 16)
WHOLE = "int8", "int4", "q8_0", "blockint8", "nmint8", "balancedint8", "lowrankint8"


def dense(part):
    """The matrix of whole numbers times the scales of their groups."""
    return part.whole * np.repeat(part.scale.astype(np.float64), part.group, 0)[: len(part.whole)]


def turned(x, turn):
    """Rows times factors, each group of vectors mixed, number by number."""
    if turn is None:
        return x
    width = sum(len(mix) * count * turn.vector for mix, count in turn.parts)
    rows, begin = np.zeros((len(x), width)), 0
    rows[:, : x.shape[1]] = x * turn.factor
    for mix, count in turn.parts:
        for _ in range(count):
            end = begin + len(mix) * turn.vector
            vectors = rows[:, begin:end].reshape(len(x), len(mix), turn.vector)
            rows[:, begin:end] = np.einsum("ij,tjv->tiv", mix, vectors).reshape(len(x), -1)
            begin = end
    return rows


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_whole_numbers_and_scales_are_the_matrix(name, size):
    rng = np.random.default_rng(size[0])
    W, x = rng.standard_normal(size).astype(np.float32), rng.standard_normal((5, size[0]))
    for options in FORMATS[name].choices(*size) or [{}]:
        try:
            stored = FORMATS[name].approximate(W, **options)
        except FormatError:
            continue
        parts = stored.integers()
        assert bool(parts) == (name in WHOLE)
        if not parts:
            continue
        product = turned(x, parts[0].turn) @ dense(parts[0])
        for part in parts[1:]:
            product = product @ dense(part)
        np.testing.assert_allclose(product, x @ stored.wide(), rtol=1e-5, atol=1e-5 * abs(product).max())
        for part in parts:
            most = (1 << part.bits - 1) - part.rounds  # q8_0 alone, which rounds no rows, has -128
            assert part.whole.dtype == np.int8 and abs(part.whole.astype(int)).max() <= most
            assert part.rounds == stored.rounds
