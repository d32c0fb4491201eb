"""Attention over caches, chunk by chunk: a row has the same bits whatever pages its sequence was given, whoever else is
in the step, as many rows as it has, on any number of threads; in float32 and in bfloat16."""

from functools import cache

import numpy as np
import pytest

from formats import kernels
from formats.core.epilogue import gamma
from formats.kernels.attentions import caches
from formats.kernels.attentions.chunks import CHUNK, PAGE, STRANDS
from formats.storage.bf16 import nearest, widen_bits

LENGTHS = 1, 15, 16, 17, 255, 256, 257, 511, 513, 1000, CHUNK * STRANDS + 300  # the last in a strand of two chunks
SHAPES = {"grouped": (6, 2, 20, 24), "one for all": (3, 1, 16, 16), "a head each": (2, 2, 32, 8)}
LINED = {"sixteen for all": (16, 1, 40, 24), "vectors that are cut": (26, 2, 17, 33)}  # heads of a row fill vectors
SHAPES |= LINED


class Held:
    """Keys and values of a sequence, in pages in some order among those of nobody."""

    def __init__(self, length, shape, halves, seed=0, between=0):
        h, g, d, e = shape
        rng = np.random.default_rng(length)
        self.q, k, v = (
            rng.standard_normal((length, heads, cols), np.float32) for heads, cols in ((h, d), (g, d), (g, e))
        )
        self.k, self.v = (nearest(k), nearest(v)) if halves else (k, v)
        pages = -(-length // PAGE)
        own = np.arange(pages) if not seed else np.random.default_rng(seed).permutation(pages + between)[:pages]
        self.before = np.full(pages + between, -1)
        self.before[own[1:]] = own[:-1]
        self.slots = own[np.arange(length) // PAGE] * PAGE + np.arange(length) % PAGE

    def cached(self, array, junk):
        """A cache with these rows; elsewhere it holds what others left."""
        made = np.full((len(self.before) * PAGE, *array.shape[1:]), junk, array.dtype)
        made[self.slots] = array
        return made

    def attend(self, rows, workers, junk=0, **given):
        """What some rows see, all of them in one step."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(caches, "threads", lambda: workers)
            out = np.full((len(rows), self.q.shape[1], self.v.shape[2]), np.nan, np.float32)
            return kernels.attention_cached(
                self.q[rows],
                self.cached(self.k, junk),
                self.cached(self.v, junk),
                self.slots[rows],
                self.before,
                out,
                0.3,
                **given,
            )


@cache
def alone(length, name, halves):
    """The last row, in a step of its own, on one thread, in pages that lie in turn."""
    return Held(length, SHAPES[name], halves).attend([length - 1], 1)[0]


def meant(held, row):
    h = held.q.shape[1]
    k, v = (
        (widen_bits(each) if each.dtype == np.uint16 else each)[: row + 1].astype(np.float64)
        for each in (held.k, held.v)
    )
    k, v = (each.repeat(h // each.shape[1], 1) for each in (k, v))
    scores = np.einsum("hd,khd->hk", held.q[row], k) * 0.3
    shares = np.exp(scores - scores.max(1, keepdims=True))
    return np.einsum("hk,khd->hd", shares / shares.sum(1, keepdims=True), v), abs(scores).max() * abs(v).max()


@pytest.mark.parametrize("halves", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("length", LENGTHS)
def test_bits_follow_from_positions_alone(length, name, halves):
    found, plain = alone(length, name, halves), Held(length, SHAPES[name], halves)
    exact, size = meant(plain, length - 1)
    assert abs(found - exact).max() < gamma(3 * length + 40) * (1 + size)
    mixed, rows = Held(length, SHAPES[name], halves, seed=1, between=3), np.arange(length)
    junk = 0x4348 if halves else 200.0
    assert np.array_equal(plain.attend([length - 1], 2)[0], found), "two threads share its strands"
    assert np.array_equal(mixed.attend([length - 1], 2, junk)[0], found), "pages in another order, among others'"
    for count, workers in ((5, 1), (5, 2), (60, 1), (60, 3)):
        assert np.array_equal(mixed.attend(rows[-count:], workers, junk)[-1], found), "rows of a step"


@pytest.mark.parametrize("name", LINED)
@pytest.mark.parametrize("behind", [0, 14, 127, 300])
def test_heads_in_lines_see_their_window(name, behind):
    """Beside other rows a row's heads are not in lines: the bits are the same, and those of its window's keys alone."""
    held, last = Held(500, SHAPES[name], False), np.arange(440, 500)
    window = dict(behind=behind, cap=2.0)
    alone = held.attend(last[-1:], 1, positions=last[-1:], **window)[0]
    assert np.array_equal(held.attend(last, 1, positions=last, **window)[-1], alone)
    begun = max(499 - behind, 0)
    held.k[:begun], held.v[:begun] = 1e3, np.nan
    held.v[begun // PAGE * PAGE : begun] = 1e3  # keys of a page are read together
    assert np.array_equal(held.attend(last[-1:], 1, positions=last[-1:], **window)[0], alone)


def test_few_rows_are_shared_by_strands():
    """One row is more items than workers have, many rows are not cut further."""
    held, seen = Held(600, SHAPES["grouped"], False), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(caches, "launch", lambda workers, *stages: seen.append([each[0].name for each in stages]))
        held.attend([599], 2)
        held.attend([599], 1)
        held.attend(np.arange(600), 2)
    assert seen == [["attend_strands", "merge_strands"], ["attend_cached"], ["attend_cached"]]


@pytest.mark.parametrize("columns", [1, 15, 16, 33, 64])
def test_rows_are_rounded_as_bf16_is(columns, rng):
    """To nearest, ties to even, finite numbers to finite ones; other rows, and what lies behind, stay."""
    x = rng.standard_normal((3, 2, columns)).astype(np.float32)
    x[0, 0, 0], x[1, 1, -1], x[2, 0, 0] = 1 + 2.0**-8, 3.4e38, np.inf
    out = np.full((2 * PAGE, 2, columns), 7, np.uint16)
    kernels.append(x, np.array([17, 2, 5]), out)
    wanted = np.full_like(out, 7)
    wanted[[17, 2, 5]] = nearest(x)
    assert np.array_equal(out, wanted)


def test_caches_of_other_numbers_are_refused():
    held = Held(5, SHAPES["grouped"], False)
    k, v, out = held.cached(held.k, 0), held.cached(held.v, 0), np.empty((5, 6, 24), np.float32)
    for wrong, said in (
        ((k.astype(np.float16), v), "k: a cache is float32, or bfloat16 as uint16; this is float16"),
        ((nearest(k), v), "k and v: their caches are uint16 and float32"),
    ):
        with pytest.raises(ValueError, match=said):
            kernels.attention_cached(held.q, *wrong, held.slots, held.before, out)
