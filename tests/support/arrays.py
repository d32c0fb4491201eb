"""What tests of kernels share: numbers to start from, memory to write to, and how near a result must be."""

import numpy as np


def numbers(rng, *shape):
    return rng.standard_normal(shape, np.float32)


def room(*shape):
    return np.full(shape, np.nan, np.float32)


def within(got, want, bound):
    """Entrywise, and nothing is left unwritten."""
    assert got.shape == want.shape and not np.isnan(got).any()
    worst = (abs(got - want) - bound).max(initial=-1)
    assert worst <= 0, f"error exceeds its bound by {worst}"
