"""What tests of kernels share: numbers to start from, memory to write to, and how near a result must be."""

import numpy as np

from formats.kernels.attentions.chunks import PAGE


def numbers(rng, *shape):
    return rng.standard_normal(shape, np.float32)


def operands(rng, T, h=4, g=2, d=20, e=24):
    """Queries, keys and values of attention."""
    return numbers(rng, T, h, d), numbers(rng, T, g, d), numbers(rng, T, g, e)


def paged(rng, *rows):
    """Caches that hold the rows of one sequence, in pages that do not follow one another; the slots of its rows, and
    the page before each page."""
    T = len(rows[0])
    pages = -(-T // PAGE)
    order = rng.permutation(pages)
    before = np.full(pages, -1)
    before[order[1:]] = order[:-1]
    slots = (order[:, None] * PAGE + np.arange(PAGE)).ravel()[:T]
    caches = [np.zeros((pages * PAGE, *each.shape[1:]), np.float32) for each in rows]
    for cache, each in zip(caches, rows, strict=True):
        cache[slots] = each
    return caches, slots, before


def room(*shape):
    return np.full(shape, np.nan, np.float32)


def within(got, want, bound):
    """Entrywise, and nothing is left unwritten."""
    assert got.shape == want.shape and not np.isnan(got).any()
    worst = (abs(got - want) - bound).max(initial=-1)
    assert worst <= 0, f"error exceeds its bound by {worst}"
