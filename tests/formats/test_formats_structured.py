"""What the formats by places, slices, bits, factors and blocks promise beyond what every format does."""
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats import (
    COO,
    CSC,
    CSR,
    SELL,
    Bitmap,
    BlockDiagonal,
    FormatError,
    Kronecker,
    LowRank,
    LowRankSparse,
    from_arrays,
)
from formats.core.check import check_product
from formats.core.sizes import k, nnz, r

few = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 2 ** 32 - 1).map(np.random.default_rng)
sides = st.tuples(st.integers(1, 40), st.integers(1, 90))


def normal(rng, *shape): return rng.standard_normal(shape, np.float32)
def pruned(rng, shape, density): return normal(rng, *shape) * (rng.random(shape) < density)


# ---- places, slices, bits

@few
@given(seeds, sides, st.floats(0, 1), st.integers(1, 20), st.integers(1, 6))
def test_any_pattern_is_held_in_any_slices(rng, shape, density, chunk, times):
    W = pruned(rng, shape, density)
    for packed in (SELL.pack(W, chunk=chunk, sigma=chunk * times), SELL.pack(W, chunk=shape[1], sigma=shape[1]),
                   CSC.pack(W), COO.pack(W), Bitmap.pack(W)):
        assert np.array_equal(packed.unpack(), W)
        for T in (1, 33): check_product(packed, normal(rng, T, len(W)), rng)


def test_slices_are_as_long_as_their_longest_and_sorted_within_windows():
    lengths = np.array([1, 5, 2, 4, 0, 3])
    W = (np.arange(6)[:, None] < lengths).astype(np.float32)
    sorted_, unsorted, ell = (SELL.pack(W, chunk=c, sigma=s) for c, s in ((2, 4), (2, 2), (6, 6)))
    assert sorted_.order.tolist() == [1, 3, 2, 0, 5, 4] and np.diff(sorted_.ptr).tolist() == [5, 2, 3]
    assert unsorted.order.tolist() == [1, 0, 3, 2, 5, 4] and np.diff(unsorted.ptr).tolist() == [5, 4, 3]
    assert ell.ptr.tolist() == [0, 5] and ell.sizes[nnz] == 30
    # nothing padded
    assert SELL.approximate(normal(np.random.default_rng(0), 40, 64), density=0.3).sizes[nnz] == 64 * 12


def test_which_format_of_places_is_smallest_depends_on_the_pattern():
    rng = np.random.default_rng(1)
    few_outputs = normal(rng, 300, 400) * (np.arange(400) < 2) * (rng.random((300, 400)) < 0.1)
    sizes = {density: {F: F.pack(pruned(rng, (300, 400), density)).nbytes for F in (CSR, COO, Bitmap)}
             for density in (0.01, 0.5)}
    assert COO.pack(few_outputs).nbytes < CSR.pack(few_outputs).nbytes
    assert min(sizes[0.01], key=sizes[0.01].get) is CSR and min(sizes[0.5], key=sizes[0.5].get) is Bitmap


def test_options_of_a_file_ask_for_no_more_memory_than_its_numbers():
    packed = SELL.pack(np.zeros((5, 3)))
    far = from_arrays(packed.meta() | {"chunk": 2 ** 29, "sigma": 2 ** 30}, packed.arrays())
    assert not far.unpack().any() and not far.matmul(np.ones((2, 5))).any()


def test_csc_turned_is_csr_with_the_same_arrays():
    packed = CSC.pack(pruned(np.random.default_rng(2), (30, 20), 0.3))
    turned = packed.transpose()
    assert type(turned) is CSR and np.array_equal(turned.unpack(), packed.unpack().T) and turned.nbytes == packed.nbytes


def test_inputs_that_are_zero_are_left_out():
    """csc adds nothing for them: not even their weights are looked at."""
    packed = CSC.pack(np.ones((4, 3), np.float32))
    packed.val[3:6] = np.nan
    assert packed.matmul([[1, 0, 2, 0]]).tolist() == [[3, 3, 3]]


# ---- factors and blocks

@few
@given(seeds, st.tuples(*[st.integers(1, 6)] * 4), st.integers(1, 3))
def test_kronecker_products_are_found(rng, sizes, terms):
    a, b, c, d = sizes
    terms = min(terms, a * b, c * d)
    W = sum(np.kron(normal(rng, a, b), normal(rng, c, d)) for _ in range(terms))
    packed = Kronecker.pack(W, outer=(a, b), terms=terms)
    assert np.linalg.norm(packed.unpack() - W) <= packed.tolerance(W) and packed.sizes[k] == terms
    assert packed.nbytes == 4 * terms * (a * b + c * d)
    check_product(packed, normal(rng, 5, a * c), rng)


def test_the_nearest_kronecker_product():
    """Its error is what the singular values beyond the first leave; no other pair does better."""
    rng = np.random.default_rng(3)
    W = normal(rng, 12, 20)
    blocks = np.array([W[3 * i:3 * i + 3, 5 * j:5 * j + 5].ravel() for i in range(4) for j in range(4)])
    for terms in (1, 3):
        left = np.linalg.svd(blocks.astype(float), compute_uv=False)[terms:]
        assert np.linalg.norm(Kronecker.fit(W, outer=(4, 4), terms=terms)
                              - W) == pytest.approx(np.linalg.norm(left), rel=1e-5)


@few
@given(seeds, st.integers(1, 9), st.integers(1, 30), st.integers(1, 30))
def test_blocks_along_the_diagonal(rng, blocks, n, p):
    W, (down, across) = normal(rng, n, p), (-(-n // blocks), -(-p // blocks))
    kept = np.arange(n)[:, None] // down == np.arange(p) // across
    packed = BlockDiagonal.approximate(W, blocks=blocks)
    assert np.array_equal(packed.unpack(), W * kept) and packed.nbytes == 4 * blocks * down * across
    check_product(packed, normal(rng, 20, n), rng)


@pytest.mark.parametrize("shape", ((40, 60), (64, 32), (30, 90)))
def test_planted_factors_and_outliers_are_found(shape):
    """Where few outliers stand out of what is of low rank both parts are mostly found, and nothing more is stored;
    always the matrix is held."""
    found = 0
    for seed in range(12):
        rng, rank, density = np.random.default_rng(seed), 1 + seed % 4, (0.005, 0.01, 0.02)[seed % 3]
        low = LowRank.pack_factors(normal(rng, shape[0], rank), normal(rng, rank, shape[1])).unpack()
        W = np.where(rng.random(shape) < density, low + 30 * np.sign(normal(rng, *shape)), low)
        packed = LowRankSparse.pack(W, rank=rank, density=density + 0.02)
        assert packed.sizes[r] == rank and np.linalg.norm(packed.unpack() - W) <= packed.tolerance(W)
        found += packed.sizes[nnz] <= round((density + 0.02) * W.size)
    assert found >= 10


def test_parts_that_are_known_need_no_decomposition():
    rng = np.random.default_rng(5)
    u, v, S = normal(rng, 30, 4), normal(rng, 4, 20), pruned(rng, (30, 20), 0.1)
    packed, alone = LowRankSparse.pack_factors(u, v, S), LowRankSparse.pack_factors(u, v)
    assert np.allclose(packed.unpack(), u @ v + S, atol=1e-5) and packed.sizes[nnz] == np.count_nonzero(S)
    assert np.array_equal(alone.unpack(), LowRank.pack_factors(u, v).unpack()) and not alone.sizes[nnz]
    check_product(alone, normal(rng, 3, 30), rng)
    with pytest.raises(FormatError, match=r"lowrank\(30×20, r=4\) and a remainder of \(20, 30\)"):
        LowRankSparse.pack_factors(u, v, S.T)


@few
@given(seeds, sides, st.floats(0, 0.3), st.booleans(), st.data())
def test_both_parts_are_better_than_either(rng, shape, density, scaled, data):
    rank = data.draw(st.integers(1, max(1, min(shape) // 2)))
    W, scale = normal(rng, *shape) ** 3, rng.uniform(0.1, 3, shape[0]) if scaled else np.ones(shape[0])
    def error(fitted): return np.linalg.norm(scale[:, None] * (fitted.astype(float) - W))
    found = error(LowRankSparse.fit(W, rank=rank, density=density, scale=scale))
    alone = error(LowRank.fit(W, rank=rank, weight=scale)), error(CSR.fit(W, density=density, scale=scale))
    assert found <= min(alone) + 1e-5 * np.linalg.norm(W)


# ---- what is refused

W = np.arange(12, dtype=np.float32).reshape(4, 3)
WRONG = {
    "slices": (lambda: SELL.pack(W, chunk=3, sigma=4), "sell: chunk = 3 does not divide sigma = 4"),
    "no slices": (lambda: SELL.fit(W, density=-1), "sell: density = -1 is not between 0 and 1"),
    "factor": (lambda: Kronecker.fit(W, outer=(3, 1)),
               r"kronecker: outer = \(3, 1\) is not a pair of divisors of the shape \(4, 3\)"),
    "terms": (lambda: Kronecker.fit(W, outer=(2, 1), terms=3), "kronecker: terms = 3 is not between 1 and 2"),
    "no product": (lambda: Kronecker.pack(W, outer=(2, 1)), r"kronecker\(4×3, k=1, c=1, r=2\) cannot hold this matrix"),
    "blocks": (lambda: BlockDiagonal.fit(W, blocks=0), "blockdiagonal: blocks = 0 is not a positive integer"),
    "beside": (lambda: BlockDiagonal.pack(W, blocks=2),
               r"blockdiagonal\(4×3, blocks=2\) cannot hold this matrix: W\[3, 1\] = 10"),
    "rank": (lambda: LowRankSparse.fit(W, rank=4), "rank = 4 is not between 1 and 3"),
    "no rank": (lambda: LowRankSparse.fit(W, rank=0), "rank = 0 is not between 1 and 3"),
    "outliers": (lambda: LowRankSparse.fit(W, density=2), "lowranksparse: density = 2 is not between 0 and 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options_are_named(name):
    act, words = WRONG[name]
    with pytest.raises(FormatError, match=words): act()


DAMAGED = {
    "csc": (CSC, "idx", 0, 5, r"csc: idx\[0\] = 5 is not below 3"),
    "coo order": (COO, "outputs", 0, 2, "coo: the places do not ascend at 0"),
    "coo": (COO, "inputs", 2, 9, r"coo: inputs\[2\] = 9 is not below 4"),
    "order": (SELL, "order", 0, 1, "sell: order is not every output once, in windows of 64"),
    "slice": (SELL, "ptr", -1, 1, "sell: ptr goes from 0 to 1, there are 64 indices in slices of 16"),
    "index": (SELL, "idx", 0, 4, r"sell: idx\[0\] = 4 is not below 4"),
    "padding": (SELL, "val", 15, 1, "sell: a slot beyond the last output holds a number"),
    "gap": (SELL, "val", 0, 0, "sell: idx does not ascend at 0"),
    "bits": (Bitmap, "bits", 0, 1, r"bitmap: the bits of the outputs end at \[0 1 "),
    "far bits": (Bitmap, "bits", 0, 31, "bitmap: a bit is set beyond input 3"),
    "edge": (BlockDiagonal, "val", -1, 1, "blockdiagonal: a block holds numbers beyond the edge"),
    "remainder": (LowRankSparse, "idx", 0, 7, r"lowranksparse: idx\[0\] = 7 is not below 4"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_named(name):
    F, array, at, value, words = DAMAGED[name]
    packed = F.approximate(W + 1, **({"density": 1.0} if "density" in F.parameters else {}))
    meta, arrays = packed.meta(), {name: array.copy() for name, array in packed.arrays().items()}
    arrays[array].flat[at] = value
    with pytest.raises(FormatError, match=words): from_arrays(meta, arrays)
