"""What slices and columns of inputs promise beyond what every format does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats import CSC, CSR, SELL, FormatError, from_arrays
from formats.core.sizes import nnz
from formats.storage.check import check_product

few = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)
sides = st.tuples(st.integers(1, 40), st.integers(1, 90))


def normal(rng, *shape):
    return rng.standard_normal(shape, np.float32)


def pruned(rng, shape, density):
    return normal(rng, *shape) * (rng.random(shape) < density)


@few
@given(seeds, sides, st.floats(0, 1), st.integers(1, 20), st.integers(1, 6))
def test_any_pattern_is_held_in_any_slices(rng, shape, density, chunk, times):
    W = pruned(rng, shape, density)
    for packed in (
        SELL.pack(W, chunk=chunk, sigma=chunk * times),
        SELL.pack(W, chunk=shape[1], sigma=shape[1]),
        CSC.pack(W),
    ):
        assert np.array_equal(packed.unpack(), W)
        for T in (1, 33):
            check_product(packed, normal(rng, T, len(W)), rng)


def test_slices_are_as_long_as_their_longest_and_sorted_within_windows():
    lengths = np.array([1, 5, 2, 4, 0, 3])
    W = (np.arange(6)[:, None] < lengths).astype(np.float32)
    sorted_, unsorted, ell = (SELL.pack(W, chunk=c, sigma=s) for c, s in ((2, 4), (2, 2), (6, 6)))
    assert sorted_.order.tolist() == [1, 3, 2, 0, 5, 4] and np.diff(sorted_.ptr).tolist() == [5, 2, 3]
    assert unsorted.order.tolist() == [1, 0, 3, 2, 5, 4] and np.diff(unsorted.ptr).tolist() == [5, 4, 3]
    assert ell.ptr.tolist() == [0, 5] and ell.sizes[nnz] == 30
    # nothing padded
    assert SELL.approximate(normal(np.random.default_rng(0), 40, 64), density=0.3).sizes[nnz] == 64 * 12


def test_options_of_a_file_ask_for_no_more_memory_than_its_numbers():
    packed = SELL.pack(np.zeros((5, 3)))
    far = from_arrays(packed.meta() | {"chunk": 2**29, "sigma": 2**30}, packed.arrays())
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


# ---- what is refused

W = np.arange(12, dtype=np.float32).reshape(4, 3)
WRONG = {
    "slices": (lambda: SELL.pack(W, chunk=3, sigma=4), "sell: chunk = 3 does not divide sigma = 4"),
    "no slices": (lambda: SELL.fit(W, density=-1), "sell: density = -1 is not between 0 and 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options_are_named(name):
    act, words = WRONG[name]
    with pytest.raises(FormatError, match=words):
        act()


DAMAGED = {
    "csc": (CSC, "idx", 0, 5, r"csc: idx\[0\] = 5 is not below 3"),
    "order": (SELL, "order", 0, 1, "sell: order is not every output once, in windows of 64"),
    "slice": (SELL, "ptr", -1, 1, "sell: ptr goes from 0 to 1, there are 64 indices in slices of 16"),
    "index": (SELL, "idx", 0, 4, r"sell: idx\[0\] = 4 is not below 4"),
    "padding": (SELL, "val", 15, 1, "sell: a slot beyond the last output holds a number"),
    "gap": (SELL, "val", 0, 0, "sell: idx does not ascend at 0"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_named(name):
    F, array, at, value, words = DAMAGED[name]
    packed = F.approximate(W + 1, **({"density": 1.0} if "density" in F.parameters else {}))
    meta, arrays = packed.meta(), {name: array.copy() for name, array in packed.arrays().items()}
    arrays[array].flat[at] = value
    with pytest.raises(FormatError, match=words):
        from_arrays(meta, arrays)
