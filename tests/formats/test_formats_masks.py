"""Masks of attention scores: patterns in and out, bytes, files that are not trusted, and attention over what is
there."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from formats import FormatError
from formats.core.epilogue import gamma
from formats.storage.masks import Mask
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.positions.patterns import causal, sequence, window

seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)
sides = st.integers(1, 70) | st.sampled_from((15, 16, 17, 32, 33, 48, 64, 65))
few = settings(max_examples=40, deadline=None)


def places(n):
    return np.arange(n)[:, None], np.arange(n)[None]


PATTERNS = {
    "causal": (lambda n: Mask.causal(n, block=16), lambda q, k: k <= q),
    "window": (lambda n: Mask.window(n, 5, block=16), lambda q, k: abs(q - k) <= 5),
    "sentences": (
        lambda n: Mask.sentences([n - n // 3, n // 3], block=16),
        lambda q, k: (q < q.size - q.size // 3) == (k < k.size - k.size // 3),
    ),
    "bigbird": (
        lambda n: Mask.bigbird(n, window=1, everywhere=1, random=0, block=16),
        lambda q, k: (abs(q // 16 - k // 16) <= 1) | (q // 16 == 0) | (k // 16 == 0),
    ),
}


@pytest.mark.parametrize("length", (1, 15, 16, 17, 100, 160))
@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_say_who_sees_whom(name, length):
    make, sees = PATTERNS[name]
    mask = make(length)
    assert np.array_equal(mask.unpack(), np.broadcast_to(sees(*places(length)), (length, length)))
    assert mask.nbytes == Mask.bytes.subs(mask.sizes)


def test_what_is_empty_is_not_stored_and_what_is_whole_needs_no_bits():
    mask = Mask.causal(256, block=16)
    assert len(mask.idx) == 16 * 17 // 2 and mask.sizes[next(s for s in mask.sizes if s.name == "edges")] == 16
    assert mask.share == pytest.approx(17 / 32)
    bird = Mask.bigbird(1024, random=2, block=32)
    assert not len(bird.bits) and bird.share < 0.3 and (np.diff(bird.ptr)[1:] >= 3).all() and np.diff(bird.ptr)[0] == 32
    assert not np.array_equal(bird.idx, Mask.bigbird(1024, random=2, seed=1, block=32).idx)
    assert len(Mask.sentences([64, 128, 32], block=32).idx) == 4 + 16 + 1


def test_patterns_of_a_batch_are_masks():
    """A predicate of tokens is one of rows, once a batch says where they are."""
    batch = Batch([np.arange(n) for n in (20, 1, 40)])
    for pattern in (sequence, sequence & causal, sequence & window(3), causal):
        mask = Mask.of(lambda q, k, p=pattern: p.sees(batch.token(q), batch.token(k)), batch.rows, block=16)
        rows = batch.token(np.arange(batch.rows)[:, None]), batch.token(np.arange(batch.rows)[None])
        assert np.array_equal(mask.unpack(), pattern.sees(*rows))


@few
@given(seeds, sides, sides, st.sampled_from((16, 32, 48)), st.floats(0, 1))
def test_any_pattern_comes_back_and_is_saved(rng, m, n, block, density):
    seen = (rng.random((m, n)) < density) & (rng.random((m, 1)) < 0.8)
    mask = Mask.pack(seen, block=block)
    assert np.array_equal(mask.unpack(), seen) and mask.nbytes == Mask.bytes.subs(mask.sizes)
    again = Mask.from_arrays(json.loads(json.dumps(mask.meta())), load(save(mask.arrays())))
    assert repr(again) == repr(mask) and all(
        np.array_equal(again.arrays()[name], array) for name, array in mask.arrays().items()
    )
    first, *lines = mask.show().splitlines()
    assert first == repr(mask) and len(lines) == min(m, 32) and {len(line) for line in lines} == {min(n, 64)}


# ---- attention


def attended(q, k, v, seen, scale):
    """(attention, a bound on its error) over what is seen; heads are shared where there are fewer."""
    heads = max(part.shape[1] for part in (q, k, v))
    q, k, v = (part.astype(np.float64).repeat(heads // part.shape[1], 1).swapaxes(0, 1) for part in (q, k, v))
    s = np.where(seen, scale * q @ k.swapaxes(1, 2), -np.inf)
    size = np.where(seen, abs(scale) * (abs(q) @ abs(k).swapaxes(1, 2)), 0).max(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        p = np.where(seen, np.exp(s - s.max(-1, keepdims=True)), 0)
    p /= np.maximum(p.sum(-1, keepdims=True), 1e-300)
    wrong = gamma(2 * q.shape[2] + seen.shape[1] + 16) * (1 + 2 * size)
    return (p @ v).swapaxes(0, 1), (4 * np.expm1(2 * wrong) * (p @ abs(v))).swapaxes(0, 1)


def compare(mask, rng, heads=(2, 2, 2), width=8, depth=5, scale=0.4):
    (m, n), seen = mask.shape, mask.unpack()
    q, k, v = (
        rng.standard_normal(shape, np.float32)
        for shape in ((m, heads[0], width), (n, heads[1], width), (n, heads[2], depth))
    )
    out = np.full((m, max(heads), depth), np.nan, np.float32)
    want, bound = attended(q, k, v, seen, scale)
    assert mask.attention(q, k, v, out, scale) is out and (abs(out - want) <= bound).all()
    assert not out[~seen.any(1)].any()


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("length", (1, 17, 200, 530))
def test_attention_over_blocks(name, length):
    compare(PATTERNS[name][0](length), np.random.default_rng(length))


@settings(max_examples=25, deadline=None)
@given(
    seeds,
    sides,
    sides,
    st.sampled_from((16, 32, 64)),
    st.floats(0, 1),
    st.sampled_from(((1, 1, 1), (4, 2, 1), (2, 2, 4))),
    st.sampled_from((0.3, -0.7, 0.0)),
)
def test_attention_over_any_pattern(rng, m, n, block, density, heads, scale):
    """Also where rows see nothing, or nothing of a block that others see."""
    seen = (rng.random((m, n)) < density) & (rng.random((m, 1)) < 0.7) & (rng.random((1, n)) < 0.7)
    compare(Mask.pack(seen, block=block), rng, heads, scale=scale)


def test_attention_over_large_scores():
    """Maxima that rise from run to run: what was summed is rescaled, nothing overflows."""
    rng, mask = np.random.default_rng(3), Mask.bigbird(900, block=32)
    q, k, v = (rng.standard_normal((900, 1, 16), np.float32) for _ in range(3))
    k *= np.linspace(0, 20, 900, dtype=np.float32)[:, None, None]
    want, bound = attended(q, k, v, mask.unpack(), 1.0)
    assert (abs(mask.attention(q, k, v) - want) <= bound).all()


def test_what_no_block_holds_is_never_read():
    """Keys that nobody sees may be anything."""
    mask = Mask.sentences([64, 64], block=32)
    q, k, v = (np.random.default_rng(4).standard_normal((128, 2, 8), np.float32) for _ in range(3))
    want = mask.attention(q, k, v)[:64].copy()
    k[64:], v[64:] = np.nan, np.nan
    assert np.array_equal(mask.attention(q, k, v)[:64], want)


# ---- what is refused

WRONG = {
    "block": (
        lambda: Mask.causal(100, block=20),
        "100 queries and 100 keys in blocks of 20; blocks are multiples of 16",
    ),
    "axes": (lambda: Mask.pack(np.ones(5)), r"mask.pack: the pattern has shape \(5,\)"),
    "empty": (lambda: Mask.pack(np.ones((0, 3))), "0 queries and 3 keys"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_patterns_are_named(name):
    act, words = WRONG[name]
    with pytest.raises(FormatError, match=words):
        act()


def test_attention_of_other_sizes_is_named():
    q, k = np.zeros((100, 2, 4), np.float32), np.zeros((90, 2, 4), np.float32)
    with pytest.raises(ValueError, match=r"mask\(100×100.*: got 100 queries and 90 keys"):
        Mask.causal(100).attention(q, k, k)
    with pytest.raises(ValueError, match="v: expected float32 of shape"):
        Mask.causal(100).attention(q, q, k)
    with pytest.raises(ValueError, match="q and k: widths 4 and 3 differ"):
        Mask.causal(90).attention(k, k[:, :, :3], k)


DAMAGE = {
    "shape": (lambda meta, _: meta.update(shape=[100.0, 100]), "are not the format, the shape and the block"),
    "small block": (lambda meta, _: meta.update(block=8), "are not the format, the shape and the block"),
    "huge block": (lambda meta, _: meta.update(block=2**40), "are not the format, the shape and the block"),
    "other block": (lambda meta, _: meta.update(block=32), "mask.ptr: declared"),
    "absent": (lambda _, arrays: arrays.pop("bits"), "mask: it stores ptr, idx, edge, bits, given ptr, idx, edge"),
    "kind": (lambda _, arrays: arrays.update(idx=arrays["idx"].astype("i8")), "mask.idx: declared .*, given int64"),
    "cut": (lambda _, arrays: arrays.update(bits=arrays["bits"][1:]), "edge is not every place in bits once"),
    "far": (lambda _, arrays: arrays["idx"].put(0, 9), r"idx\[0\] = 9 is not below 7"),
    "edge": (lambda _, arrays: arrays["edge"].put(0, 9), "edge is not every place in bits once"),
    "range": (lambda _, arrays: arrays["ptr"].put(-1, 99), "ptr goes from 0 to 99"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_files_are_refused(name):
    damage, words = DAMAGE[name]
    mask = Mask.causal(100, block=16)
    meta, arrays = mask.meta(), {name: array.copy() for name, array in mask.arrays().items()}
    Mask.from_arrays(meta, arrays)
    damage(meta, arrays)
    with pytest.raises(FormatError, match=words):
        Mask.from_arrays(meta, arrays)
