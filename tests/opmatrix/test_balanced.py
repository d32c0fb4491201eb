"""Bytes whose inputs are balanced and mixed: a few large inputs of x no longer leave the others few steps, nor do a few
large numbers of a row."""

import numpy as np
import pytest

from formats import FORMATS, FormatError
from formats.storage.pairs.balancedint8 import mixed, orders
from opmatrix.spectra import Limits, propose
from opmatrix.spectra.gram import Seen

LARGE = [9, 100]
BALANCED = FORMATS["balancedint8"]


@pytest.fixture(scope="module")
def seen():
    """Rows (T, n) of which two inputs are large, a weight (n, p), and their product."""
    rng = np.random.default_rng(0)
    x, W = rng.standard_normal((90, 130), np.float32), rng.standard_normal((130, 70), np.float32)
    x[:, LARGE] *= 30
    W[5] = x[:, 7] = 0
    return x, W, x.astype(np.float64) @ W


def off(name, group, seen, rows=slice(None), **given):
    x, W, exact = seen
    stored = FORMATS[name].approximate(W, group=group, **given)
    found, bound = stored.matmul(x[rows]), stored.bound(x[rows])
    assert (abs(found - np.matmul(*stored.operands(x[rows]))) <= bound).all()
    return np.linalg.norm(found - exact[rows]) / np.linalg.norm(exact[rows])


@pytest.mark.parametrize("group", [64, 1 << 16])
@pytest.mark.parametrize("rows", [slice(0, 1), slice(None)])
def test_large_inputs_are_taken_to_the_weight(seen, group, rows):
    norms = np.linalg.norm(seen[0], axis=0)
    assert off("balancedint8", group, seen, rows, scale=norms) < 0.3 * off("int8", group, seen, rows)


@pytest.mark.parametrize("rows", [slice(0, 1), slice(None)])
def test_large_numbers_of_a_row_are_spread(rows):
    """Of inputs that are alike, so that factors have nothing to even out; and of a column of W."""
    rng = np.random.default_rng(1)
    x, W = (
        (rng.standard_normal(shape) * rng.exponential(size=shape) ** 3).astype(np.float32)
        for shape in ((90, 256), (256, 70))
    )
    rough = x, W, x.astype(np.float64) @ W
    assert off("balancedint8", 1 << 16, rough, rows) < 0.5 * off("int8", 1 << 16, rough, rows)


@pytest.mark.parametrize("inputs", [24, 64, 70, 130, 192, 256, 320, 384, 448, 500])
def test_what_is_mixed_twice_is_a_multiple(inputs):
    each = orders(inputs)
    assert len(each) % 64 == 0 <= len(each) - inputs < 64
    assert np.array_equal(mixed(mixed(np.eye(inputs))), (each * np.eye(len(each)))[:, :inputs])


@pytest.mark.parametrize("inputs", [64, 192, 256, 448])
@pytest.mark.parametrize("rows", [1, 2, 23, 60])
def test_what_nothing_rounds_is_exact(inputs, rows):
    """W and x that are whole numbers once they are mixed, the largest 127: an input, a row or a sign that is lost
    shows."""
    rng, each, outputs = np.random.default_rng(rows), orders(inputs), 70
    W, x = (rng.integers(-126, 127, shape).astype(np.float32) for shape in ((inputs, outputs), (rows, inputs)))
    W[rng.integers(0, inputs, outputs), np.arange(outputs)] = x[np.arange(rows), rng.integers(0, inputs, rows)] = 127
    arrays = np.ones(inputs, np.float32), *FORMATS["int8"].declared.pack(W)
    stored = BALANCED((inputs, outputs), arrays, group=1 << 16)
    given = mixed(x.T).T / each
    assert np.array_equal(stored.matmul(given), x.astype(np.int64) @ W.astype(np.int64))


def test_it_is_proposed_where_inputs_are_large_and_not_where_none_are(seen):
    def error(x, name):
        found = propose(seen[1], Seen.of(x).diagonal, Limits(error=1.0))
        return min(each.predicted_error for each in (*found.kept,) if each.method == name)

    even = np.random.default_rng(1).standard_normal(seen[0].shape, np.float32)
    assert error(seen[0], "balancedint8") < 0.01
    assert "int8" in {each.method for each in propose(seen[1], Seen.of(even).diagonal, Limits(error=1.0)).kept}


@pytest.mark.parametrize("factor", [0.0, -1.0, 2.0**30, np.nan, np.inf])
def test_a_factor_that_is_none_is_refused(seen, factor):
    stored = BALANCED.approximate(seen[1])
    arrays = {name: each.copy() for name, each in stored.arrays().items()}
    arrays["factor"][3] = factor
    with pytest.raises(FormatError, match=r"a factor is|not finite"):
        BALANCED.from_arrays(stored.meta(), arrays)


def test_what_an_older_version_stored_is_refused(seen):
    """Its inputs were balanced and not mixed, by an array of another name."""
    stored = BALANCED.approximate(seen[1])
    arrays = stored.arrays()
    arrays["turn"] = arrays.pop("factor")
    with pytest.raises(FormatError, match="it stores factor, w, scale"):
        BALANCED.from_arrays(stored.meta(), arrays)
