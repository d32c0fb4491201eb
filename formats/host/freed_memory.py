"""Freed memory that the allocator of C still holds."""

import ctypes
from collections.abc import Callable
from functools import cache


def release_memory() -> None:
    """Give freed memory back to the system, where the C library can: glibc keeps the gaps between arrays of several
    threads for later ones, as much again as is in use after thousands of arrays of megabytes."""
    trim = find_trim()
    if trim is not None:
        trim(0)


@cache
def find_trim() -> Callable[[int], object] | None:
    """Return glibc's malloc_trim (bytes to keep); None where the C library has none."""
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):
        return None
    return getattr(library, "malloc_trim", None)
