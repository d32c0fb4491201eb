"""Freed memory goes back to the system, or stays where the C library cannot say so."""

import ctypes
import sys
from pathlib import Path

import numpy as np
import pytest

from formats.host import freed_memory

PAGE = 4096


def resident():
    """Bytes of this process in memory."""
    return PAGE * int(Path("/proc/self/statm").read_text().split()[1])


@pytest.mark.skipif(sys.platform != "linux" or freed_memory.find_trim() is None, reason="needs glibc's malloc_trim")
def test_gaps_between_arrays_are_given_back():
    """Arrays below the threshold of mmap lie on the heap, and gaps between live ones stay resident without a trim."""
    arrays = [np.ones(2**14 // 8) for _ in range(2**13)]
    left = arrays[::64]
    del arrays
    before = resident()
    freed_memory.release_memory()
    assert resident() < before - 2**26
    assert all((array == 1).all() for array in left)


def test_other_c_libraries_are_left_alone(monkeypatch):
    def fail(name):
        raise OSError("no library")

    for library in (fail, lambda name: object()):
        monkeypatch.setattr(ctypes, "CDLL", library)
        freed_memory.find_trim.cache_clear()
        freed_memory.release_memory()
        assert freed_memory.find_trim() is None
    freed_memory.find_trim.cache_clear()
