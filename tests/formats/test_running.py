"""Kernels timed inside runs: every case does its work, on every worker, and has a time of its own."""

import numpy as np
import pytest
from searched import found

from formats import FORMATS, kernels
from formats.core.arrays import room
from formats.host.threads import limit
from formats.kernels.engine.launch import ARENA
from formats.kernels.engine.replay import clock
from formats.machine.features import FAR
from formats.machine.running import Inside, allocate_both, inside, spread_weights, write_anew

pytestmark = pytest.mark.skipif(not clock(), reason="native code finds no clock here")


def cases(seed=0):
    """A product and a pass, each to a place of its own in the memory."""
    rng = np.random.default_rng(seed)
    memory, inputs, outputs = allocate_both(1 << 12)
    inputs[:], outputs[:] = rng.standard_normal(inputs.size, np.float32), 0
    W = rng.standard_normal((24, 40), np.float32)
    weight, x, product, scaled = (
        FORMATS["packed"].pack(W),
        inputs[:240].reshape(10, 24),
        outputs[:400].reshape(10, 40),
        outputs[512:752],
    )
    found = [
        ("linear.packed", {"T": 10}, lambda: weight.matmul(x, out=product)),
        ("scale", {"T": 10}, lambda: kernels.scale(x, 0.5, scaled.reshape(10, 24))),
    ]
    return memory, found, x, x @ W


@pytest.mark.parametrize("apart", (True, False))
@pytest.mark.parametrize("workers", (1, 2))
def test_every_worker_does_every_case(monkeypatch, apart, workers):
    with limit(workers):
        memory, found, x, wanted = cases()
        script = Inside(found, memory, apart)
        monkeypatch.setattr(ARENA, "memory", room((4 * script.script.size + 4096 * 4,), np.dtype(np.uint8)))
        ARENA.memory[:] = 0
        taken = script.run()
    assert taken.shape == (2,) and (taken > 0).all() and (taken < 1e9).all()
    numbers, copies = ARENA.memory.view(np.float32), workers if apart else 1
    halves = 0.5 * x.ravel()
    at = [i for i in np.flatnonzero(numbers == halves[0]) if np.array_equal(numbers[i : i + halves.size], halves)]
    assert 1 <= len(at) <= copies, "one may take the work of another that begins late"
    for i in at:
        assert np.allclose(numbers[i - 512 : i - 112].reshape(10, 40), wanted, rtol=1e-4, atol=1e-5)
    assert not memory.view(np.float32)[1 << 12 :].any(), "what is recorded is only run where it is replayed"


def test_times_belong_to_their_cases(monkeypatch):
    """The order is drawn and they are cut into scripts, but a case that does a thousand times as much takes the
    most."""
    monkeypatch.setattr("formats.machine.running.SCRIPT_CASES", 3)
    memory, inputs, outputs = allocate_both(1 << 16)
    inputs[:] = 1
    sizes = [1 << 16 if i == 5 else 64 for i in range(8)]

    def scaled(size):
        return kernels.scale(inputs[:size].reshape(1, -1), 2.0, outputs[:size].reshape(1, -1))

    made = [("scale", {"T": 1, "p": size}, lambda size=size: scaled(size)) for size in sizes]
    rows = inside(made, memory, True, 0.0)
    assert [(kernel, given) for kernel, given, _ in rows] == [(kernel, given) for kernel, given, _ in made]
    assert max(range(8), key=lambda i: rows[i][2]) == 5


def weighed(count, turns):
    """So many weights, each multiplied with as many numbers of rows, twice each."""
    return [
        ("linear.packed", {"T": T, "n": n, FAR: far}, call)
        for n in range(count)
        for T in range(turns)
        for call in [lambda: None]
        for far in (1.0, 0.0)
    ]


@pytest.mark.parametrize("count, turns", ((1, 1), (5, 1), (1, 4), (40, 3)))
def test_cases_of_one_weight_lie_as_far_apart_as_they_can(count, turns):
    """Each weight once before any a second time; what is one call, from memory and then from the caches, together."""
    cases = weighed(count, turns)
    order = spread_weights(cases)
    assert sorted(order) == list(range(len(cases))) and (np.diff(np.reshape(order, (-1, 2))) == 1).all()
    weights = np.reshape([cases[i][1]["n"] for i in order[::2]], (turns, count))
    assert (np.sort(weights) == np.arange(count)).all()


def test_what_a_case_reads_is_written_before_it_and_stays_the_same():
    memory, found, x, _ = cases()
    before = x.copy()
    rows = inside(found, memory, False, 0.0, reads=[x.size, x.size])
    assert [row[:2] for row in rows] == [each[:2] for each in found] and all(row[2] > 0 for row in rows)
    assert np.array_equal(x, before)
    writer = write_anew(memory, x.size, len(x))
    x[0] = np.arange(x.shape[1])
    before = x.copy()
    writer()
    assert np.array_equal(x, before) and write_anew(memory, 0, 3) is None


def test_medians_of_cases_are_scaled_to_those_of_whole_scripts(monkeypatch):
    """Of two cases one is slow in most rounds, though never the same one: each by its median, no program would be as
    slow as most of them are. They differ by less than on a busy machine, where rounds say nothing of each other."""
    slow = [np.array([0, 115, 100]), np.array([0, 100, 115])] * 5
    rounds = iter([np.array([0, 1, 1]), *slow, *[np.array([0, 100, 100])] * 6])
    monkeypatch.setattr("formats.machine.running.Inside.run", lambda self, fill: next(rounds))
    memory, found, _, _ = cases()
    assert sum(row[2] for row in inside(found, memory, True, 10.0)) == pytest.approx(215e-9)


def test_scripts_are_remembered_within_a_share_of_the_cache(monkeypatch):
    """The latest stays in any case, and what was forgotten is recorded again, to the same numbers."""
    program = found()[1]["fused"][1]
    (recorded,), rows = program.schedule.segments, [[3, 4, 5], [6, 7]]
    wanted = [program.run([row]) for row in rows]
    assert len(recorded.scripts) >= 2
    monkeypatch.setattr("opmatrix.runtime.recorded.SCRIPT_SHARE", 0)
    recorded.scripts.clear()
    recorded.tables.clear()
    for row, want in zip(rows, wanted, strict=True):
        assert np.array_equal(program.run([row]), want) and [key[0] for key in recorded.scripts] == [len(row)]
