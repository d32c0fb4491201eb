"""Attention with a bias by distance against float64: lengths, borders and beyond the ends of the table; the same bits
alone, beside others, on one thread and on two; what is no table is refused."""

from itertools import pairwise

import numpy as np
import pytest
from arrays import numbers, operands, paged, room, within
from doors import near, softly

from formats import Mask, kernels
from formats.host.threads import limit
from formats.kernels.attentions.chunks import CHUNK, PAGE
from formats.storage.bf16 import nearest

FAR = 2**40
SCALE, ROUGH = 0.3, 2.0**-5


def wanted(q, k, v, starts, bias, reach=(FAR, FAR)):
    """(attention, a bound on its error), sequence by sequence."""
    most, parts = max(len(bias), *(each.shape[1] for each in (q, k, v))), []
    q, k, v = (each.astype(np.float64).repeat(most // each.shape[1], 1).swapaxes(0, 1) for each in (q, k, v))
    for a, b in pairwise(starts):
        ahead = np.arange(b - a) - np.arange(b - a)[:, None]
        seen = (ahead >= -reach[0]) & (ahead <= reach[1])
        parts.append(
            softly(SCALE * q[:, a:b] @ k[:, a:b].swapaxes(1, 2) + near(bias, range(b - a), b - a), v[:, a:b], seen)
        )
    return tuple(np.concatenate(each) for each in zip(*parts, strict=True))


@pytest.mark.parametrize("lengths", [[1], [3, 5], [47, 48, 49, 130], [600]], ids=str)
@pytest.mark.parametrize("most, own", [(1, 4), (40, 4), (700, 1)])
def test_attention(rng, lengths, most, own):
    starts = np.concatenate([[0], np.cumsum(lengths)])
    q, k, v = operands(rng, T := int(starts[-1]))
    bias = 2 * numbers(rng, own, 2 * most + 1)
    for reach, tile in (((FAR, FAR), 256), ((FAR, 0), 32), ((9, 9), 256)):
        found = kernels.attention(q, k, v, starts, room(T, 4, 24), SCALE, reach, tile, bias=bias)
        within(found, *wanted(q, k, v, starts, bias, reach))
    found = kernels.attention_halves(q, k, v, starts, room(T, 4, 24), SCALE, (FAR, 0), 64, bias=bias)
    exact, bound = wanted(q, k, v, starts, bias, (FAR, 0))
    within(found, exact, bound + ROUGH * np.abs(v).max())


def test_one_head_of_queries_and_keys_meets_the_table_of_several(rng):
    q, k, v = operands(rng, 50, 1, 1)
    bias = numbers(rng, 3, 21)
    found = kernels.attention(q, k, v, starts := np.array([0, 50]), room(50, 3, 24), SCALE, bias=bias)
    within(found, *wanted(q, k, v, starts, bias))


def test_attention_under_a_mask(rng):
    """Blocks of positions, some of which nobody sees."""
    q, k, v = operands(rng, 200)
    bias, starts = numbers(rng, 4, 19), np.array([0, 120, 200])
    mask = Mask.window(128, 20, 16)
    found = kernels.attention(q, k, v, starts, room(200, 4, 24), SCALE, mask=mask, bias=bias)
    within(found, *wanted(q, k, v, starts, bias, (20, 20)))


def test_a_table_of_zeros_changes_next_to_nothing(rng):
    """A sum that begins with 0 is the sum."""
    q, k, v = operands(rng, 300)
    starts = np.array([0, 300])
    plain = kernels.attention(q, k, v, starts, room(300, 4, 24), SCALE)
    zeros = kernels.attention(q, k, v, starts, room(300, 4, 24), SCALE, bias=np.zeros((4, 9), np.float32))
    assert np.array_equal(plain, zeros)


@pytest.mark.parametrize("name", ["attention", "attention_halves"])
def test_the_same_bits_alone_in_a_batch_and_on_two_threads(rng, name):
    lengths = 70, 300, 5
    starts = np.concatenate([[0], np.cumsum(lengths)])
    q, k, v = operands(rng, T := int(starts[-1]))
    bias = numbers(rng, 4, 101)

    def attend(a, b, at):
        out = room(b - a, 4, 24)
        return getattr(kernels, name)(q[a:b], k[a:b], v[a:b], np.array(at), out, SCALE, bias=bias)

    with limit(1):
        one = attend(0, T, starts).tobytes()
    with limit(2):
        assert attend(0, T, starts).tobytes() == one
    alone = b"".join(attend(a, b, [0, b - a]).tobytes() for a, b in pairwise(starts))
    assert alone == one


# ---- caches


@pytest.fixture(scope="module")
def cached():
    """Rows of one sequence of more than a chunk, whose pages do not follow one another, and what each row means."""
    rng, T = np.random.default_rng(5), CHUNK + 70
    q, k, v = operands(rng, T)
    bias = numbers(rng, 4, 2 * 90 + 1)
    caches, slots, before = paged(rng, k, v)
    return q, caches, slots, before, bias, wanted(q, k, v, [0, T], bias, (FAR, 0))


def test_rows_over_caches(cached):
    """Prompts, rows one by one and the last of a sequence have the same bits, which are right."""
    q, (k, v), slots, before, bias, (exact, bound) = cached
    T, found = len(q), {}
    for threads in (1, 2):
        with limit(threads):
            found[threads] = kernels.attention_cached(q, k, v, slots, before, room(T, 4, 24), SCALE, bias=bias)
            for at in (0, PAGE, CHUNK - 1, CHUNK, T - 1):
                one = kernels.attention_cached(
                    q[at : at + 1], k, v, slots[at : at + 1], before, room(1, 4, 24), SCALE, bias=bias
                )
                assert np.array_equal(one[0], found[threads][at])
    within(found[1], exact, bound)
    assert np.array_equal(found[1], found[2])
    last = kernels.attention_cached(q[-1:], k, v, slots, before, room(1, 4, 24), SCALE, np.array([0, T]), bias)
    assert np.array_equal(last[0], found[1][-1])


def test_rows_over_caches_of_bfloat16(cached):
    q, caches, slots, before, bias, (exact, bound) = cached
    k, v = (nearest(each) for each in caches)
    found = kernels.attention_cached(q, k, v, slots, before, room(len(q), 4, 24), SCALE, bias=bias)
    within(found, exact, bound + ROUGH * np.abs(caches[1]).max())


@pytest.mark.parametrize("last", [True, False])
def test_one_query_of_each_sequence(rng, last):
    starts = np.array([0, 5, 6, 150])
    _, k, v = operands(rng, 150)
    q, bias = numbers(rng, 150, 4, 20), numbers(rng, 4, 41)
    at = starts[1:] - 1 if last else starts[:-1]
    exact, bound = (each[at] for each in wanted(q, k, v, starts, bias))
    found = kernels.attend_once(np.ascontiguousarray(q[at]), k, v, starts, room(3, 4, 24), SCALE, last, bias=bias)
    within(found, exact, bound)


@pytest.mark.parametrize(
    "bias, said",
    [
        (np.zeros((3, 9), np.float32), "a table of 3 heads, but attention has 4"),
        (np.zeros((4, 8), np.float32), "a table of 8 columns"),
        (np.zeros((4, 1), np.float32), "a table of 1 columns"),
        (np.zeros((4, 9)), "float64"),
        (np.zeros((4, 18), np.float32)[:, ::2], "strides"),
    ],
    ids=lambda each: str(each)[:9],
)
def test_what_is_no_table_is_refused(rng, bias, said):
    q, k, v = operands(rng, 8)
    with pytest.raises(ValueError, match=f"^bias: .*{said}"):
        kernels.attention(q, k, v, np.array([0, 8]), room(8, 4, 24), SCALE, bias=bias)
