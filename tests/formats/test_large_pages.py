"""Arrays side by side in one block: zeros of their own, from a cache line on, in small pages and in large ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.core.arrays import LINE
from formats.core.large_pages import LARGE_PAGE, zeros_side_by_side

SHAPES = st.tuples(st.integers(0, 70), st.integers(1, 3), st.integers(1, 70))
KINDS = st.sampled_from([np.float32, np.uint16, np.float64])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(SHAPES, KINDS), max_size=5), st.booleans())
def test_arrays_are_zeros_of_their_own(wanted, large):
    if large:
        wanted = [*wanted, ((LARGE_PAGE,), np.uint8)]
    found = zeros_side_by_side(wanted)
    assert [(each.shape, each.dtype.type) for each in found] == wanted
    for i, each in enumerate(found):
        assert each.flags.c_contiguous and each.flags.writeable and each.ctypes.data % LINE == 0 and not each.any()
        each[...] = i + 1
    assert all((each == i + 1).all() for i, each in enumerate(found))


def test_too_little_memory_is_said():
    with pytest.raises(MemoryError, match="no memory for 4,000,000,000,000,000 bytes"):
        zeros_side_by_side([((10**15,), np.float32)])
