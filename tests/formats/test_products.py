"""A row of a product has the same bits whatever rows stand beside it, on however many threads, by whatever tile of
sums."""

import numpy as np
import pytest

from formats import FORMATS, Epilogue
from formats.host import threads
from formats.kernels.engine.compiled import Kernel
from formats.kernels.engine.launch import address
from formats.kernels.engine.memory import longs
from formats.kernels.matmul.tiles import ATTENDED, TILES, attended_pairs, by_vectors
from formats.kernels.simd.amx import MATRIX

OTHERS = (8, 3), (6, 4), (3, 1), (1, 2)
other_pairs = by_vectors(ATTENDED, OTHERS)
STORED = [
    ("dense", {}),
    ("half", {}),
    ("packed", {}),
    ("bf16", {}),
    ("int8", {}),
    ("int8", {"group": 64}),
    ("int4", {"group": 64}),
    ("int4", {"group": 128}),
    ("csr", {}),
]


@Kernel
def by_these(item, worker, arguments):
    """Sums of pairs by the tiles that kernels have."""
    a = longs(arguments, 7)
    attended_pairs(
        0, a[0], a[1], a[2], 4 * a[3], a[4], 64, 64 * a[3], a[3], a[5], 4 * a[1], (0, 0, 0), (0, 0, 0, 0, 1, 0)
    )


@Kernel
def by_others(item, worker, arguments):
    """The same by others."""
    a = longs(arguments, 7)
    other_pairs(0, a[0], a[1], a[2], 4 * a[3], a[4], 64, 64 * a[3], a[3], a[5], 4 * a[1], (0, 0, 0), (0, 0, 0, 0, 1, 0))


def halves(rng, count):
    return (rng.standard_normal(count, np.float32).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("columns", [16, 32, 48, 64])
def test_tiles_of_other_shapes_have_the_same_bits(columns):
    rng, words, most = np.random.default_rng(columns), 24, 2 * TILES[0][0] + 7
    x, w = halves(rng, most * 2 * words), halves(rng, columns * 2 * words)
    for rows in range(1, most + 1):
        found = [np.full((rows + 1, columns), np.nan, np.float32) for _ in range(2)]
        for kernel, out in zip((by_these, by_others), found, strict=True):
            kernel.call(0, 0, address(np.array([rows, columns, address(x), words, address(w), address(out), 0])))
        assert (found[0][:rows].view(np.uint32) == found[1][:rows].view(np.uint32)).all(), rows
        assert np.isfinite(found[0][:rows]).all() and all(np.isnan(out[rows]).all() for out in found), rows


def product(weight, x, bias, residual):
    """The bits of x @ W, with bias and residual."""
    return weight.matmul(x, epilogue=Epilogue(bias=bias, residual=residual)).view(np.uint32)


def alone(name):
    """The fewest rows whose sums have the order of many. Matrix registers add pairs up in an order of their own, and
    one row is not multiplied by them; one row of csr is a dot product."""
    return 2 if name == "csr" or (MATRIX and name == "bf16") else 1


@pytest.mark.parametrize("n, p", [(200, 136), (384, 192), (70, 45)])
@pytest.mark.parametrize("name, given", STORED, ids=str)
def test_a_row_has_the_same_bits_beside_any_others(name, given, n, p):
    rng, form = np.random.default_rng(0), FORMATS[name]
    w, x, bias, residual = (rng.standard_normal(size, np.float32) for size in ((n, p), (300, n), p, (300, p)))
    if name == "csr":
        w[rng.random((n, p)) < 0.7] = 0
    weight = form.pack(form.fit(w, **given), **given) if hasattr(form, "fit") else form.pack(w)
    with threads.limit(1):
        want = product(weight, x, bias, residual)
    for count in (1, 2, 3):
        with threads.limit(count):
            for rows in (*range(alone(name), 2 * TILES[0][0] + 2), 48, 61, 150, 300):
                low = int(rng.integers(0, 301 - rows))
                here = slice(low, low + rows)
                assert (product(weight, x[here], bias, residual[here]) == want[here]).all(), (rows, count)
