"""Any pattern within sequences is an operand of attention: what a mask leaves out is neither computed nor counted."""

from itertools import pairwise

import numpy as np
import pytest
from arrays import numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from searched import structure
from test_narrowing import stored

from formats import BF16, Mask, kernels
from formats.kernels.attentions import attending
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import T, counted, pairs, patterns
from opmatrix.algebra.operators import I, attention, weight
from opmatrix.algebra.operators import given as field
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.positions.patterns import causal, mask, parse, sequence, window
from opmatrix.runtime.program import Program
from rewrites.lowering.narrowing import narrowed
from rewrites.lowering.price import Prices

POSITIONS, SIDES = 320, (1, 16, 40, 64, 100)
LENGTHS = st.lists(st.integers(1, 150), min_size=1, max_size=4)


def table(seed, side, share=0.2):
    count = -(-POSITIONS // side)
    return mask(np.random.default_rng(seed).random((count, count)) < share, side)


TABLED = st.builds(table, st.integers(0, 99), st.sampled_from(SIDES), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
RANGED = st.one_of(st.just(causal), st.builds(window, st.integers(0, 100)))
PATTERNS = st.one_of(
    TABLED,
    st.builds(lambda a, b: a | b, TABLED, RANGED),
    st.builds(lambda a, b: a & b, TABLED, RANGED),
    st.builds(lambda a, b, c: a & b | c, TABLED, TABLED, RANGED),
).map(lambda pattern: sequence & pattern)


def seen(pattern, length):
    token = Batch([np.zeros(length, int)]).token
    at = np.arange(length)
    return np.broadcast_to(pattern.sees(token(at[:, None]), token(at)), (length, length))


def model(rng, where, width=24, h=3, d=8):
    W = lambda n, p: weight(numbers(rng, n, p) * n**-0.5)
    embed = W(40, width) + field("positions", POSITIONS) @ W(POSITIONS, width)
    return embed @ (I + attention(W(width, h * d), W(width, h * d), W(width, h * d), h, where) @ W(h * d, width))


@settings(max_examples=60, deadline=None)
@given(LENGTHS, PATTERNS, st.sampled_from([16, 32, 48, 64, 128]), st.sampled_from([1, 100, 256]), st.integers(0, 99))
def test_the_kernel_sees_what_the_mask_holds(lengths, pattern, block, tile, seed):
    """Of any batch, whatever the blocks and the tiles of keys; a query that sees nothing gives zeros."""
    rng, starts = np.random.default_rng(seed), np.concatenate([[0], np.cumsum(lengths)])
    q, k, v = (numbers(rng, int(starts[-1]), 2, each) for each in (20, 20, 33))
    held = Mask.pack(seen(pattern, max(lengths)), block)
    found = kernels.attention(q, k, v, starts, np.empty((len(q), 2, 33), np.float32), 0.3, tile=tile, mask=held)
    for low, high in pairwise(starts):
        s = np.einsum("qhd,khd->hqk", *(each[low:high].astype(float) for each in (q, k))) * 0.3
        p = np.where(seen(pattern, high - low), np.exp(s - s.max(-1, keepdims=True)), 0.0)
        want = np.einsum("hqk,khd->qhd", p / np.maximum(p.sum(-1, keepdims=True), 1e-300), v[low:high])
        assert abs(found[low:high] - want).max() < 1e-5


@settings(max_examples=60, deadline=None)
@given(LENGTHS, PATTERNS)
def test_scores_are_counted_by_blocks(lengths, pattern):
    """Every score of a block of the mask's table of which somebody sees something, as far as the sentence reaches."""

    def by_blocks(length):
        side, whole = 64, seen(pattern, pattern.limit)
        return sum(
            min(side, length - i) * min(side, length - j)
            for i in range(0, length, side)
            for j in range(0, length, side)
            if whole[i : i + side, j : j + side].any()
        )

    assert counted(lengths, [pattern])[pairs[pattern]] == sum(map(by_blocks, lengths))


@settings(max_examples=25, deadline=None)
@given(LENGTHS, PATTERNS, st.integers(0, 99))
def test_programs_compute_what_the_model_says(lengths, pattern, seed):
    rng = np.random.default_rng(seed)
    operator, batch = model(rng, pattern), Batch([rng.integers(0, 40, length) for length in lengths])
    program, _ = structure(operator, batch=batch).program({})
    assert [step.kernel for step in program.steps].count("attention") == 1 and len(program.schedule.segments) == 1
    assert (
        patterns(operator) == program.patterns == (pattern,)
        and parse(pattern.form, [d.array for d in pattern.data]) == pattern
    )
    want, found = dense(operator, batch), program.run(batch)
    assert abs(program.exact(batch) - want).max() < 1e-6 and abs(found - want).max() < 1e-4


def test_a_program_keeps_its_tables(rng, tmp_path):
    batch = Batch([rng.integers(0, 40, length) for length in (300, 1, 77)])
    program, _ = structure(model(rng, sequence & (table(1, 64) | window(3))), batch=batch).program({})
    program.save(tmp_path / "p")
    again = Program.load(tmp_path / "p")
    assert np.array_equal(again.run(batch), program.run(batch)) and again.cost(batch) == program.cost(batch)
    step = next(step for step in again.steps if step.kernel == "attention")
    assert step.attributes["where"] == "sequence & (mask({}, 64) | window(3))" and again.constants[
        step.operands["mask0"]
    ].shape == (5, 5)


def test_a_table_knows_so_many_positions(rng):
    """More rows than positions are no matter, a longer sentence is."""
    operator = model(rng, sequence & mask(np.eye(3), 16))
    program, _ = structure(operator, batch=Batch([[1] * 48])).program({})
    short = Batch([rng.integers(0, 40, 48) for _ in range(5)])
    assert abs(program.run(short) - dense(operator, short)).max() < 1e-4
    with pytest.raises(ValueError, match=r"positions: id 48 of sentence 0, token 48 .* is outside 0\.\.47"):
        program.run([[1] * 49])
    with pytest.raises(
        ValueError, match=r"extents: a sentence of 49 tokens: sequence & mask\(_\w+, 16\) has 48 positions"
    ):
        program.cost([[1] * 49])


def test_patterns_without_tables_are_masks_too(rng):
    """What is no range is a mask, whose length nobody says: it is made for a batch."""
    where = sequence & (window(2) | window(-3))
    assert where.reach is None and where.limit is None
    operator = model(rng, where)
    batch = Batch([rng.integers(0, 40, 200)])
    program, _ = structure(operator, batch=batch).program({})
    assert abs(program.run(batch) - dense(operator, batch)).max() < 1e-4


@settings(max_examples=60, deadline=None)
@given(RANGED, RANGED, st.integers(1, 80))
def test_the_union_of_ranges_is_a_range(one, other, length):
    behind, ahead = (one | other).reach
    apart = np.arange(length) - np.arange(length)[:, None]
    assert np.array_equal(seen(one | other, length), (-apart <= behind) & (apart <= ahead))
    assert (one | window(-1)).reach is None and (one | table(0, 16)).reach is None


def test_and_binds_closer_than_or():
    text = parse("(window(9) | causal & window(3))")
    assert np.array_equal(seen(text, 20), seen(window(9) | causal & window(3), 20))
    assert not np.array_equal(seen(text, 20), seen((window(9) | causal) & window(3), 20))


def test_more_tables_than_the_kernel_takes_are_read_as_a_term(rng):
    where = sequence & table(1, 16) & table(2, 40) & table(3, 64)
    operator, batch = model(rng, where), Batch([rng.integers(0, 40, 30)])
    program, _ = structure(operator, batch=batch).program({})
    assert not where.attends and "attention" not in {step.kernel for step in program.steps}
    assert abs(program.run(batch) - dense(operator, batch)).max() < 1e-4


def test_bfloat16_needs_ranges(rng):
    batch = Batch([rng.integers(0, 40, 30)])
    program, _ = structure(model(rng, sequence & table(1, 16)), batch=batch).program({})

    class Fast:
        def seconds(self, kernel, **sizes):
            return 0.0 if kernel.endswith("bf16") else 1.0

    rounded = stored(program, BF16)
    assert narrowed(rounded, Prices(Fast(), program.extents(batch))) is rounded
    at = next(i for i, step in enumerate(program.steps) if step.kernel == "attention")
    step = program.steps[at]

    def changed(operands, **attributes):
        made = type(step)("attention", {**step.operands, **operands}, {**step.attributes, **attributes}, step.output)
        return Program([*program.steps[:at], made, *program.steps[at + 1 :]], program.constants, program.output)

    with pytest.raises(ValueError, match=r"not a contiguous range of positions, which bf16 attention needs"):
        changed({}, number_type="bf16")
    with pytest.raises(ValueError, match="refers to 1 tables, got 2"):
        changed({"mask1": step.operands["mask0"]})
    with pytest.raises(ValueError, match="looks beyond sequences"):
        changed({}, where="mask({}, 16)")


@pytest.mark.parametrize("side", [0, -1, 2.0, 1 << 21])
def test_a_side_that_is_none_is_refused(side):
    with pytest.raises(ValueError, match=r"mask: blocks of .* positions: a whole number from 1 to"):
        mask(np.eye(2), side)


def test_units_lie_within_blocks():
    for block in range(16, 1025, 16):
        assert block % attending.units(500, block)[1] == 0
    assert counted([7], [sequence & table(0, 16, 1.0)])[T] == 7
