"""What threads fill and read at once: tables of answers, terms, what programs remember of the last batches."""

import threading
import time

import hypothesis
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from test_addresses import PATTERNS, attending
from test_program import RAGGED
from test_session_interrupts import program as cached_program
from test_session_interrupts import text

from formats.host.threads import limit
from formats.kernels.attentions import caches
from formats.kernels.attentions.chunks import PAGE
from opmatrix.algebra import term
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import Extents, S, T
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import I, relu, weight
from opmatrix.runtime import recorded
from opmatrix.runtime.buffers import order
from rewrites.lowering import representations


def in_threads(*works):
    """Each at once, and what any of them raises."""
    raised = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if raised:
        raise raised[0]


class Forgetful(dict):
    """As a table is for a thread, if another one empties it whenever something is entered."""

    def __setitem__(self, key, value):
        pass


def test_answers_that_another_thread_forgets(monkeypatch, rng):
    monkeypatch.setattr(order, "FOUND", Forgetful())
    monkeypatch.setattr(representations, "LOOKED", Forgetful())
    program = attending(rng, PATTERNS[0])
    assert order.least_peak(program.schedule, Extents({T: 3, S: 1})).peak > 0
    assert representations.find_traits(Data(np.eye(64))) == {"sparse", "float16"}


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def test_threads_that_make_the_same_term(monkeypatch):
    """They get the same node, however long its shape takes to infer."""
    infer, made, together = term.infer, {}, threading.Barrier(3)
    monkeypatch.setattr(term, "infer", lambda node: (time.sleep(0.01), infer(node))[1])
    numbers = Data(np.full((3, 5), 0.271828))

    def make(number):
        together.wait()
        made[number] = I + weight(numbers) @ relu @ weight(numbers).T

    in_threads(*(lambda number=number: make(number) for number in range(3)))
    assert made[0] is made[1] is made[2] and len({*map(id, made[0].walk())}) == len({*made[0].walk()})


@pytest.mark.parametrize("share", [0.0, 1.0], ids=["none is kept", "all are kept"])
def test_threads_that_run_and_record_different_batches(share, monkeypatch, rng):
    """While scripts and tables are forgotten, limits come and go, steps are timed and traced, sessions step: each gets
    the bits that it gets alone."""
    monkeypatch.setattr(recorded, "SCRIPT_SHARE", share)
    monkeypatch.setattr(recorded, "TABLES", 1)
    program, rounds = attending(rng, *PATTERNS), 12
    batches = [Batch(each) for each in (RAGGED, [[1] * 90], [[2] * 200, [3]], [[at % 9] * 7 for at in range(60)])]
    wanted = [program.run(batch) for batch in batches]
    fresh = program.over(program.steps)

    def runs(number):
        for at in range(rounds):
            assert np.array_equal(fresh.run(batches[(at + number) % 4]), wanted[(at + number) % 4])

    def limits():
        for at in range(rounds):
            with limit(1):
                assert np.array_equal(fresh.run(batches[at % 4]), wanted[at % 4])

    def forgets():
        for at in range(rounds):
            fresh.schedule.forget()
            fresh.schedule.timed(batches[at % 4])
            assert np.array_equal([*fresh.trace(batches[0])][-1][1], wanted[0])

    def steps(rows):
        session = cached_program().start(300)
        held = session.join()
        for at in range(rounds):
            rows.append(session.step({held: text(1 + at % 3, at)}))

    alone, beside = [], [[], []]
    steps(alone)
    in_threads(
        limits,
        forgets,
        *(lambda number=number: runs(number) for number in range(2)),
        *(lambda rows=rows: steps(rows) for rows in beside),
    )
    for rows in beside:
        assert all(map(np.array_equal, rows, alone))


@settings(max_examples=60, deadline=None)
@hypothesis.given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 120)), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([8, 24, 64]),
    st.integers(0, 99),
)
def test_new_rows_give_the_same_bits_on_any_number_of_threads(sequences, groups, serve, d, seed):
    """And beside any others: of sequences with so many rows, and so many new ones, in pages anywhere."""
    rng, ends = np.random.default_rng(seed), np.cumsum([count for _, count in sequences])
    sizes = [-(-(had + count) // PAGE) for had, count in sequences]
    pages, before, slots = np.split(rng.permutation(sum(sizes)), np.cumsum(sizes)[:-1]), np.full(sum(sizes), -1), []
    for (had, count), own in zip(sequences, pages, strict=True):
        before[own[1:]] = own[:-1]
        slots.append(np.array([own[at // PAGE] * PAGE + at % PAGE for at in range(had, had + count)]))
    q, k, v = (
        rng.standard_normal((rows, heads, d), np.float32)
        for rows, heads in ((ends[-1], groups * serve), *[(sum(sizes) * PAGE, groups)] * 2)
    )

    def run(workers, q, slots):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(caches, "threads", lambda: workers)
            return caches.attention_cached(q, k, v, slots, before, np.empty_like(q), 0.3)

    whole, *others = (run(workers, q, np.concatenate(slots)) for workers in (1, 2, 5))
    for each in others:
        assert np.array_equal(whole, each)
    for end, own in zip(ends, slots, strict=True):
        rows = slice(end - len(own), end)
        assert np.array_equal(run(2, q[rows].copy(), own), whole[rows])
