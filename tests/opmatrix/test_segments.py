"""Segments: what can be recorded is recorded around steps that cannot, in groups of sentences, and nothing changes by
it."""

import gc
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import Writer
from test_planner import programs

from formats import Dense
from formats.host.threads import limit
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.operators import relu, symbol
from opmatrix.runtime.interpreted import write_term
from opmatrix.runtime.measure import peak
from opmatrix.runtime.program import Program
from opmatrix.runtime.recorded import Recorded
from opmatrix.runtime.segments import Called

BATCH = Batch([np.arange(n) % 20 for n in (60, 64, 1, 62, 63) * 8])
WIDTH = 48


def stepped(rng, between=1):
    """A program in which a term stands between products, so many times; attention reads values from both sides."""
    write = Writer({})
    constants = {
        "E": Dense.pack(rng.standard_normal((20, WIDTH)).astype(np.float32)),
        "w": Dense.pack(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 7),
    }
    term, _ = write_term(symbol("y", None, WIDTH) @ relu, {symbol("y", None, WIDTH): 0})
    x = write.step("embed", {"fields": "tokens"}, table0="E")
    for _ in range(between):
        k = write.step("heads", {"heads": 3}, x=write.step("linear", x=x, weight="w"))
        y = write.step("interpret", {"term": term}, x0=write.step("pointwise", {"activation": "gelu"}, x=x))
        q = write.step("heads", {"heads": 3}, x=write.step("linear", x=y, weight="w"))
        mixed = write.step("join", x=write.step("attention", {"scale": 0.1}, q=q, k=k, v=q))
        x = write.step("linear", x=mixed, weight="w", residual=x)
    return Program(write.steps, constants, x)


def kinds(program):
    return [type(segment).__name__ for segment in program.schedule.segments]


def test_all_other_steps_are_recorded(rng):
    assert kinds(stepped(rng)) == ["Recorded", "Called", "Recorded"]
    assert kinds(stepped(rng, 2)) == ["Recorded", "Called", "Recorded", "Called", "Recorded"]


def test_it_gives_what_its_kernels_give_one_after_the_other(rng):
    program = stepped(rng, 2)
    *_, (_, found, _) = program.trace(BATCH)
    run = program.run(BATCH)
    assert np.allclose(run, found, rtol=0, atol=1e-5 * np.abs(found).max())
    assert np.linalg.norm(run - program.exact(BATCH)) < 1e-5 * np.linalg.norm(run)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_sentences_are_cut_into_groups_in_each_segment(rng, threads, monkeypatch):
    """Whatever the groups, the same bits; and there are groups."""
    program, sizes = stepped(rng), []
    script = Recorded.script
    monkeypatch.setattr(
        Recorded, "script", lambda self, rows, workers: sizes.append(rows) or script(self, rows, workers)
    )
    with limit(threads):
        found = program.run(BATCH)
        alone = np.concatenate([program.run(sentence) for sentence in BATCH])
    assert np.allclose(found, alone, rtol=0, atol=1e-5 * np.abs(found).max())
    assert threads == 1 or sizes.count(BATCH.rows) == 0 < len(sizes)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs(), st.integers(1, 3))
def test_random_programs_cut_anywhere(program, threads):
    """Steps that are called though they could be recorded: buffers of the whole batch are never one another's."""
    with limit(threads):
        wanted = program.run(BATCH)
    rng = np.random.default_rng(len(program.steps))
    schedule = program.schedule
    pieces = [[step] for segment in schedule.segments for step in segment.steps]
    schedule.segments = [
        Called(schedule, steps) if isinstance(segment, Called) or rng.random() < 0.3 else Recorded(schedule, steps)
        for segment in schedule.segments
        for steps in pieces
        if steps[0] in segment.steps
    ]
    schedule.crossing = schedule.between()
    vars(schedule).pop("row", None)
    schedule.forget()
    with limit(threads):
        found = program.run(BATCH)
    assert np.allclose(found, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


def test_the_planned_peak_counts_what_lies_between_segments(rng):
    program, large = stepped(rng, 2), Batch([np.arange(n) % 20 for n in range(180, 320, 10)])
    spare = 8 * WIDTH * large.rows  # a term is read in float64, with room to make each number
    assert peak(program, large) <= program.peak_bytes(large) <= peak(program, large) + spare


def test_threads_share_it(rng):
    program = stepped(rng)
    wanted = program.run(BATCH)
    with ThreadPoolExecutor(4) as pool:
        assert all(np.array_equal(found, wanted) for found in pool.map(program.run, [BATCH] * 24))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_an_interrupt_between_segments_leaves_the_next_run_right(rng):
    program, struck = stepped(rng, 2), 0
    wanted = program.run(BATCH)
    begun = time.perf_counter()
    program.run(BATCH)
    taken = time.perf_counter() - begun

    def strike(number, frame):
        """Not within sympy, which reads sizes of the term: its own caches are not made for that."""
        while frame:
            if "sympy" in frame.f_code.co_filename:
                return
            frame = frame.f_back
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, strike)
    try:
        for moment in np.exp(rng.uniform(np.log(1e-6), np.log(taken), 60)):  # early ones, too: `taken` may be long
            struck += 1
            with suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, moment)
                program.run(BATCH)
                struck -= 1
                signal.setitimer(signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert np.array_equal(program.run(BATCH), wanted)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert struck


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_runs_it(rng):
    program = stepped(rng)
    wanted = program.run(BATCH)
    gc.collect()
    if not (child := os.fork()):
        os._exit(0 if np.array_equal(program.run(BATCH), wanted) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("lengths", [[17], [60, 64, 1, 62, 63] * 8], ids=["together", "in groups"])
def test_a_batch_like_one_before_has_its_own_numbers(lengths):
    """What is remembered of where sentences start says nothing of their tokens, or of where buffers lie: to the bit
    what a program gives that has seen none before. An id outside its table is refused as the first time."""
    batches = [[(np.arange(n) + shift) % 20 for n in lengths] for shift in (0, 7)]
    program, *fresh = (stepped(np.random.default_rng(3)) for _ in range(3))
    kept = [program.run(batch) for batch in batches]
    assert all(np.array_equal(found, each.run(batch)) for found, each, batch in zip(kept, fresh, batches, strict=True))
    assert len(program.schedule.segments[0].tables) == 1 and not np.array_equal(*kept)
    batches[0][-1][-1] = 20
    with pytest.raises(ValueError, match=r"id 20 of sentence .* is outside 0\.\.19"):
        program.run(batches[0])
    assert np.array_equal(program.run(batches[1]), kept[1])
