"""Zeros in large pages of memory, where the system has them: scattered reads then wait for fewer entries of the page
table."""

import mmap
from collections.abc import Sequence
from contextlib import suppress
from math import prod

import numpy as np
from numpy.typing import DTypeLike

from formats.core.arrays import LINE

LARGE_PAGE = 1 << 21  # bytes


def zeros_side_by_side(wanted: Sequence[tuple[tuple[int, ...], DTypeLike]]) -> list[np.ndarray]:
    """Allocate arrays of zeros of these shapes and dtypes in one block, each from a cache line on. Memory is taken on
    the first write, a large page at a time where there are several. MemoryError where there is too little."""
    sizes = [-(-prod(shape) * np.dtype(kind).itemsize // LINE) * LINE for shape, kind in wanted]
    starts = np.cumsum([0, *sizes]).tolist()
    block = zero_block(max(1, starts.pop()))
    return [np.ndarray(shape, kind, block, start) for (shape, kind), start in zip(wanted, starts, strict=True)]


def zero_block(size: int) -> "mmap.mmap | np.ndarray":
    """Allocate `size` bytes of zeros."""
    if size < LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        whole = np.zeros(size + LINE, np.uint8)
        return whole[-whole.ctypes.data % LINE :][:size]
    try:
        block = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"no memory for {size:,} bytes") from error
    with suppress(OSError):
        block.madvise(mmap.MADV_HUGEPAGE)  # systems without large pages
    return block
