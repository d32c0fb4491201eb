"""Every storage format: what it holds, what it costs, what it multiplies, and what it refuses."""

import gzip
import itertools

import numpy as np
import pytest
import sympy
from fetched import data
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import formats
from formats import CSR, FORMATS, NM, Block, Dense, Epilogue, Format, FormatError, Half, LowRank
from formats.core.activation import COMPILED
from formats.core.choices import Range
from formats.core.epilogue import UNIT
from formats.core.sizes import blocks, f4, group, kept, n, nnz, p, r
from formats.core.stage import STAGES, Stage
from formats.storage.check import check_product

few = settings(max_examples=40, deadline=None)
numbers = st.floats(-8, 8, width=32, allow_subnormal=False) | st.just(0.0)
sides = st.tuples(st.integers(1, 20), st.integers(1, 20))
matrices = sides.flatmap(lambda shape: arrays(np.float32, shape, elements=numbers, fill=st.just(0.0)))
seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)
densities = st.floats(0, 1)


def normal(rng, *shape):
    return rng.standard_normal(shape, np.float32)


# ---- declared once, checked by being declared


@pytest.mark.deep(every=7)
@pytest.mark.parametrize("F", FORMATS.values(), ids=FORMATS)
def test_declared(F):
    F.check(np.random.default_rng(0))


@pytest.mark.parametrize("F", FORMATS.values(), ids=FORMATS)
def test_table_and_picture(F):
    packed = F.approximate(normal(np.random.default_rng(1), 128, 200))
    assert F.row().split(" | ")[0] == packed.meta()["format"] == F.name and str(F.bytes) in F.row()
    lines = packed.show().splitlines()
    assert lines[0] == repr(packed) and len(lines) == 33 and set(map(len, lines[1:])) == {64}


@pytest.mark.parametrize("F", FORMATS.values(), ids=FORMATS)
def test_the_code_of_a_product_names_its_kernels(F):
    """Kernels called by a function of another would not be seen, nor the rows at which their products change path."""
    assert F.called() and F.borders()


def test_picture_is_dark_where_the_matrix_is_full():
    W = np.zeros((128, 256), np.float32)
    W[:64, :128] = 1
    W[64, 128] = 1
    lines = CSR.pack(W).show().splitlines()[1:]
    assert lines[:16] == ["█" * 32 + " " * 32] * 16 and lines[16] == " " * 32 + "░" + " " * 31
    assert CSR.pack(np.eye(3, 2)).show().splitlines()[1:] == ["█ ", " █", "  "]


def test_bytes_are_expressions_in_the_sizes():
    assert Dense.bytes == 4 * n * p and Half.bytes == 2 * n * p and LowRank.bytes == sympy.expand(4 * r * (n + p))
    assert CSR.bytes.subs(n, 384) == 4 * p + 4 + 6 * nnz and CSR.bytes.subs(n, 70000) == 4 * p + 4 + 8 * nnz
    assert NM.bytes.subs({kept: 2, group: 4}) == 5 * n * p / 2
    assert Block.bytes.has(blocks) and NM.flops.has(kept) and CSR.flops.has(nnz)


class Repeated(Format):
    """Every input has the same weights.

    Declared here alone, to show that a format is one class."""

    w: f4[p]

    def fit(W):
        return np.broadcast_to(W.astype(np.float64).mean(0), W.shape)

    def pack(W):
        return W[0]

    def unpack(shape, w):
        return np.broadcast_to(w, shape)

    def kernel(x, w, out, epilogue):
        out[...] = epilogue.reference(x.sum(1, keepdims=True, dtype=np.float32) * w)

    def transpose(self):
        return Dense.pack(self.unpack().T)


def test_a_new_format_is_one_class():
    Repeated.check(np.random.default_rng(2))
    assert Repeated.row() == "repeated | w: f4[p] | 4*p | Every input has the same weights."
    with pytest.raises(FormatError, match=r"repeated\(2×3\) cannot hold this matrix: W\[1, 2\] = 5 would become 0"):
        Repeated.pack([[0, 0, 0], [0, 0, 5]])


# ---- round trips


@few
@given(matrices, sides)
def test_sparse_formats_hold_any_matrix(W, tile):
    for packed in CSR.pack(W), Block.pack(W, tile=tile), NM.pack(W, n=len(W), m=len(W)), Dense.pack(W):
        assert np.array_equal(packed.unpack(), W) and packed.unpack().dtype == np.float32
        assert packed.nbytes == packed.bytes.subs(packed.sizes)
        assert packed.nbytes == sum(array.nbytes for array in packed.arrays().values())
        assert np.array_equal(packed.transpose().unpack(), W.T)
        again = formats.from_arrays(packed.meta(), packed.arrays())
        assert type(again) is type(packed) and np.array_equal(again.unpack(), W)
    assert CSR.pack(W).nbytes == 4 * (W.shape[1] + 1) + 6 * np.count_nonzero(W)


@few
@given(seeds, sides, st.integers(1, 20))
def test_low_rank_is_found_and_held(rng, shape, rank):
    rank = min(rank, *shape)
    W = (rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))).astype(np.float32)
    given_rank, found = LowRank.pack(W, rank=rank), LowRank.pack(W)
    assert given_rank.sizes[r] == rank and found.sizes[r] <= rank
    for packed in given_rank, found:
        assert np.linalg.norm(packed.unpack() - W) <= packed.tolerance(W)
    assert found.tolerance(W) <= 40 * UNIT * rank * np.linalg.norm(W)  # so that the line above says something


def test_low_rank_refuses_what_has_a_higher_rank():
    W = normal(np.random.default_rng(3), 30, 20)
    nearly = LowRank.fit(W, rank=5) + 1e-5 * normal(np.random.default_rng(4), 30, 20)
    with pytest.raises(FormatError, match="cannot hold this matrix"):
        LowRank.pack(nearly, rank=5)
    assert LowRank.pack(nearly).sizes[r] == 20


def test_arrays_begin_at_a_cache_line_and_are_no_views():
    W = normal(np.random.default_rng(5), 48, 20)
    for F in FORMATS.values():
        packed = F.approximate(W)
        assert all(
            array.ctypes.data % 64 == 0 and array.flags.c_contiguous for array in packed.arrays().values() if array.size
        )
        packed.unpack()[...] = 7
        assert not (packed.unpack() == 7).any()
    dense = Dense.pack(W)
    W[...] = 7
    assert not (dense.unpack() == 7).any()


# ---- what fit promises


@few
@given(seeds, sides, densities, st.booleans())
def test_csr_keeps_the_highest(rng, shape, density, scaled):
    W, scale = normal(rng, *shape), rng.integers(0, 3, shape[0]) if scaled else None
    fitted = CSR.fit(W, density=density, scale=scale)
    mask, score = fitted != 0, abs(W) * (1 if scale is None else scale[:, None])
    assert mask.sum() == round(density * W.size) == CSR.expected(*shape, density=density)[nnz]
    assert np.array_equal(fitted[mask], W[mask])
    assert np.array_equal(CSR.fit(fitted, density=density, scale=scale), fitted)
    assert mask.all() or not mask.any() or score[mask].min() >= score[~mask].max()


@few
@given(seeds, sides, st.tuples(st.integers(1, 7), st.integers(1, 7)), densities)
def test_block_keeps_whole_tiles_of_largest_norm(rng, shape, tile, density):
    W = normal(rng, *shape)
    packed = Block.approximate(W, density=density, tile=tile)
    tiles = {
        (i, j): (slice(i, i + tile[0]), slice(j, j + tile[1]))
        for i in range(0, shape[0], tile[0])
        for j in range(0, shape[1], tile[1])
    }
    norm = {at: np.square(W[where].astype(np.float64)).sum() for at, where in tiles.items()}
    there = [at for at, where in tiles.items() if packed.unpack()[where].any()]
    assert len(there) == round(density * len(tiles)) == packed.sizes[blocks]
    assert packed.sizes == Block.expected(*shape, density=density, tile=tile)
    for at in there:
        assert np.array_equal(packed.unpack()[tiles[at]], W[tiles[at]])
    least = min((norm[at] for at in there), default=np.inf)
    assert all(norm[at] <= least * (1 + 1e-12) for at in tiles if at not in there)
    assert np.array_equal(Block.fit(packed.unpack(), density=density, tile=tile), packed.unpack())


@few
@given(seeds, st.integers(1, 5), st.integers(1, 20), st.integers(1, 9), st.data(), st.booleans())
def test_nm_keeps_n_of_every_m(rng, groups, outputs, m, chosen, scaled):
    n = chosen.draw(st.integers(1, m))
    W, scale = normal(rng, groups * m, outputs), rng.integers(0, 3, groups * m) if scaled else None
    fitted = NM.fit(W, n=n, m=m, scale=scale)
    score = (abs(W) * (1 if scale is None else scale[:, None])).T.reshape(outputs, groups, m)
    mask = (fitted != 0).T.reshape(outputs, groups, m)
    assert (mask.sum(2) == n).all() and np.array_equal(fitted[fitted != 0], W[fitted != 0])
    assert (np.where(mask, score, np.inf).min(2) >= np.where(mask, -np.inf, score).max(2)).all()
    assert np.array_equal(NM.fit(fitted, n=n, m=m, scale=scale), fitted)
    assert np.array_equal(NM.pack(fitted, n=n, m=m).unpack(), fitted)


@few
@given(matrices)
def test_half_rounds_to_the_nearest(W):
    fitted = Half.fit(W)
    assert (abs(fitted - W) <= 2.0**-11 * abs(W) + 2.0**-25).all() and np.array_equal(Half.fit(fitted), fitted)
    assert np.array_equal(Half.pack(fitted).unpack(), fitted) and Half.pack(fitted).nbytes == 2 * W.size


@few
@given(seeds, sides, st.data())
def test_low_rank_is_the_best_of_its_rank(rng, shape, chosen):
    rank = chosen.draw(st.integers(1, min(shape)))
    W, X, d = normal(rng, *shape), rng.standard_normal((max(1, shape[0] - 2), shape[0])), rng.uniform(0.5, 2, shape[0])
    for weight, R in (None, np.eye(shape[0])), (d, np.diag(d)), (X.T @ X, X):  # the last Gram is singular
        best = np.linalg.norm(np.linalg.svd(R @ W, compute_uv=False)[rank:])
        fitted = LowRank.fit(W, rank=rank, weight=weight)
        rounding = 8 * UNIT * np.linalg.norm(R) * np.linalg.norm(W) * shape[0] ** 0.5
        assert abs(np.linalg.norm(R @ (W - fitted)) - best) <= rounding
        again = LowRank.pack(fitted, rank=rank)
        assert np.linalg.norm(again.unpack() - fitted) <= again.tolerance(fitted)


def test_low_rank_from_factors_needs_no_decomposition():
    rng = np.random.default_rng(6)
    u, v = normal(rng, 30, 4), normal(rng, 4, 20)
    packed = LowRank.pack_factors(u, v)
    assert np.array_equal(packed.u, u) and np.array_equal(packed.v, v)
    assert np.array_equal(packed.transpose().u, v.T)
    u, v = LowRank.factors(packed.unpack(), rank=4)
    assert u.shape == (30, 4) and v.shape == (4, 20) and u.dtype == v.dtype == np.float32


def test_scale_changes_what_is_kept():
    W = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)
    assert CSR.fit(W, density=0.5).tolist() == [[0, 0, 0, 0], [5, 6, 7, 8]]
    assert CSR.fit(W, density=0.5, scale=[10, 1]).tolist() == [[1, 2, 3, 4], [0, 0, 0, 0]]
    assert Block.fit(W, density=0.5, tile=(1, 4), scale=[10, 1]).tolist() == [[1, 2, 3, 4], [0, 0, 0, 0]]
    assert NM.fit(W, n=1, m=2, scale=[10, 1]).tolist() == [[1, 2, 3, 4], [0, 0, 0, 0]]


# ---- products and epilogues


@few
@given(matrices, seeds, st.sampled_from((1, 3, 70)), sides)
def test_products_are_as_exact_as_rounding_allows(W, rng, rows, tile):
    x = normal(rng, rows, len(W))
    whole = LowRank.pack_factors(np.eye(len(W)), W)
    for packed in (
        Dense.pack(W),
        Half.approximate(W),
        CSR.pack(W),
        Block.pack(W, tile=tile),
        whole,
        NM.pack(W, n=len(W), m=len(W)),
    ):
        check_product(packed, x, rng)


PARTS = {"bias", "activation", "residual", "eps", "affine"}
COMBINATIONS = [set(parts) for size in range(6) for parts in itertools.combinations(sorted(PARTS), size)]


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("rows", (1, 3, 70))
@pytest.mark.parametrize("F", FORMATS.values(), ids=FORMATS)
def test_epilogues(F, rows):
    rng = np.random.default_rng(7)
    packed, x = F.approximate(normal(rng, 48, 35)), normal(rng, rows, 48)
    exact, error = np.matmul(*packed.operands(x)), packed.bound(x)
    for parts in COMBINATIONS:
        bias, gain, shift = normal(rng, 3, 35)
        every = {
            "bias": dict(bias=bias),
            "activation": dict(activation="gelu"),
            "residual": dict(residual=normal(rng, rows, 35)),
            "eps": dict(eps=1e-12),
            "affine": dict(gain=gain, shift=shift),
        }
        epilogue = Epilogue(**{name: value for part in parts for name, value in every[part].items()})
        assert bool(epilogue) == bool(parts)
        out = np.full((rows, 35), np.nan, np.float32)
        assert packed.matmul(x, out=out, epilogue=epilogue) is out
        assert (abs(out - epilogue.reference(exact)) <= epilogue.bound(exact, error, packed.rounds)).all(), parts


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("activation", ["tanh", "gelu", "relu"])
@pytest.mark.parametrize("F", FORMATS.values(), ids=FORMATS)
def test_rows_may_lie_in_any_order(F, activation):
    """Steps from row to row may be negative, or none where there is one row."""
    rng = np.random.default_rng(8)
    packed, x, after = F.approximate(normal(rng, 48, 35)), normal(rng, 20, 48), Epilogue(activation=activation)
    for rows in (20, 7, 1):
        wanted = packed.matmul(x[:rows], out=np.empty((rows, 35), np.float32), epilogue=after)
        found = packed.matmul(x[:rows], out=normal(rng, 40, 35)[::-2][:rows], epilogue=after)
        assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("part", ["operands", "operations", "means", "bound"])
def test_a_stage_that_lacks_a_part_is_refused_where_it_is_declared(part):
    parts = {"operations": 2, "means": lambda y, e: y, "bound": lambda y, error, value, e, rough: error}
    operands = {} if part == "operands" else {"cap": Range(float, 0.1, 100)}
    with pytest.raises(
        TypeError, match=f"stage softcap: it does not declare {part}: see the stages in formats/core/stage"
    ):
        type("softcap", (Stage,), {name: each for name, each in parts.items() if name != part}, **operands)
    made = type("softcap", (Stage,), parts, cap=Range(float, 0.1, 100))
    assert made.price == "softcap" and made not in STAGES


def test_the_oracle_of_epilogues():
    y, gelu = np.array([[1.0, -2.0, 4.0]]), COMPILED["gelu"].function
    assert np.allclose(gelu(y), [[0.8413447460685429, -0.04550026389635842, 3.99987331503]], atol=1e-11)
    assert Epilogue(bias=[1, 1, 1], residual=[[1, 2, 3]]).reference(y).tolist() == [[3, 1, 8]]
    normed = Epilogue(eps=1e-30, gain=[2, 2, 2], shift=[1, 1, 1]).reference(y)
    assert np.allclose(normed.mean(), 1) and np.allclose(normed.std(), 2)
    order = Epilogue(
        bias=[1, 0, 0], activation="gelu", residual=[[0, 1, 0]], gain=[1, 1, 2], shift=[0, 0, 1]
    ).reference(y)
    assert np.allclose(order, [[gelu(np.array(2.0)), gelu(np.array(-2.0)) + 1, 2 * gelu(np.array(4.0)) + 1]])


def test_the_bound_of_an_epilogue_is_no_wider_than_it_need_be():
    rng = np.random.default_rng(8)
    y, bias, gain, shift = rng.standard_normal((3, 384)), *normal(rng, 3, 384)
    epilogue = Epilogue(bias=bias, activation="gelu", residual=normal(rng, 3, 384), eps=1e-12, gain=gain, shift=shift)
    assert epilogue.bound(y, np.zeros(y.shape)).max() < 1e-3
    assert Epilogue(bias=bias).bound(y, np.zeros(y.shape)).max() < 1e-6


def test_the_product_operator():
    rng = np.random.default_rng(9)
    W, x = normal(rng, 6, 5), normal(rng, 4, 2, 6)
    packed = Dense.pack(W)
    for rows in x[0, 0], x[0], x, x.tolist(), x.astype(np.float64), np.asfortranarray(x[0]), x[..., ::-1]:
        result = rows @ packed
        assert result.dtype == np.float32 and np.allclose(result, np.asarray(rows) @ W, atol=1e-5)
    assert np.array_equal(np.arange(6) @ packed, np.arange(6, dtype=np.float32) @ packed)
    assert packed.matmul(np.zeros((0, 6))).shape == (0, 5)


def test_rows_with_gaps_are_read_and_written_in_place():
    rng = np.random.default_rng(10)
    x, out = normal(rng, 7, 20)[:, 3:15], np.full((7, 9), 5, np.float32)
    for F in FORMATS.values():
        packed = F.approximate(normal(rng, 12, 8))
        assert packed.matmul(x, out[:, :8]).base is out
        assert (abs(out[:, :8] - np.matmul(*packed.operands(x))) <= packed.bound(x)).all() and (out[:, 8] == 5).all()


# ---- patterns from pruned transformers (DLMC: Gale et al. 2020, arXiv:2006.10901)


def smtx(path, rng):
    """A pattern of DLMC with normal numbers, as W (inputs, outputs): its rows are outputs."""
    first, starts, columns = (line.decode() for line in (gzip.decompress(path.read_bytes()) + b"\n").split(b"\n")[:3])
    outputs, inputs, stored = map(int, first.split(","))
    starts, columns = (np.array(text.split(), int) for text in (starts, columns))
    W = np.zeros((outputs, inputs), np.float32)
    W[np.repeat(np.arange(outputs), np.diff(starts)), columns] = normal(rng, stored)
    return W.T


@pytest.mark.deep
def test_patterns_of_pruned_transformers():
    rng, paths = np.random.default_rng(11), sorted(data("dlmc").glob("*.smtx.gz"))
    assert paths
    for path in paths:
        W = smtx(path, rng)
        most = max(1, int((W != 0).T.reshape(W.shape[1], -1, 16).sum(2).max()))
        for packed in CSR.pack(W), Block.pack(W, tile=(8, 4)), Block.pack(W, tile=(48, 48)), NM.pack(W, n=most, m=16):
            assert np.array_equal(packed.unpack(), W) and packed.nbytes == packed.bytes.subs(packed.sizes), path.name
            assert np.array_equal(formats.from_arrays(packed.meta(), packed.arrays()).unpack(), W), path.name
        check_product(CSR.pack(W), normal(rng, 5, len(W)), rng)
