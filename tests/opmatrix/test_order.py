"""The order of steps: no other one needs less, and none changes a result."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import Writer
from test_planner import programs

from formats import Dense
from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime.buffers import order
from opmatrix.runtime.buffers.order import StepGraph, least_peak, ordered, planned
from opmatrix.runtime.buffers.planner import Life, floor
from opmatrix.runtime.program import Program
from opmatrix.runtime.schedule import homes

BATCH = Batch([[1, 2, 3], [4], list(range(5, 14))])
EXTENTS = BATCH.extents()


def every_order(program):
    """All orders of the steps, by trying (views too, wherever they may be)."""
    calls = program.schedule.calls

    def on(done):
        if len(done) == len(calls):
            yield tuple(done)
        for i in range(len(calls)):
            if i not in done and all(v in done for v in calls[i].values.values()):
                yield from on([*done, i])

    return on([])


def most_alive(program, steps):
    """By the planner's own reading of lives."""
    schedule, number = program.schedule, {old: new for new, old in enumerate(steps)}
    calls = [
        schedule.calls[i]._replace(values={k: number[v] for k, v in schedule.calls[i].values.items()}) for i in steps
    ]
    home, last = homes(calls, [number[schedule.result]])
    return floor([Life(calls[b].shape.size.at(EXTENTS), b, last[b]) for b in sorted(set(home))])


@st.composite
def small_programs(draw):
    """Up to seven steps of many widths, each on any values made before, so that orders differ much."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    write, constants = Writer({}), {"E": Dense.pack(rng.standard_normal((20, 48)).astype(np.float32))}
    made = {write.step("embed", {"fields": "tokens"}, table0="E"): 48}
    for _ in range(draw(st.integers(2, 6))):
        x = draw(st.sampled_from([*made]))
        twins = [name for name in made if made[name] == made[x] and name != x]
        match draw(st.sampled_from(["linear", "linear", "pointwise", "scale"] + ["sum"] * bool(twins))):
            case "linear":
                p = draw(st.sampled_from([16, 48, 112, 240]))
                key = f"w{made[x]}x{p}"
                constants[key] = Dense.pack((rng.standard_normal((made[x], p)) / 12).astype(np.float32))
                made[write.step("linear", x=x, weight=key)] = p
            case "pointwise":
                made[write.step("pointwise", {"activation": "gelu"}, x=x)] = made[x]
            case "scale":
                made[write.step("scale", {"factor": 0.5}, x=x)] = made[x]
            case "sum":
                made[write.step("pointwise", x=x, residual=draw(st.sampled_from(twins)))] = made[x]
    return Program(write.steps, constants, draw(st.sampled_from([*made])))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(small_programs())
def test_no_order_needs_less(program):
    found = least_peak(program.schedule, EXTENTS)
    orders = list(every_order(program))
    assert found.steps in orders and found.proved
    assert found.floor == min(most_alive(program, steps) for steps in orders)
    peaks = [planned(program.schedule, steps, EXTENTS) for steps in orders]
    assert found.peak == planned(program.schedule, found.steps, EXTENTS) == min(peaks)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_views_attention_and_scores_too(program):
    """On larger programs, where all orders are too many: never worse, the floor is one, and the results are the same
    bits."""
    found = least_peak(program.schedule, EXTENTS)
    given = program.schedule.plan(EXTENTS).end
    assert found.floor <= found.peak <= given and most_alive(program, found.steps) >= found.floor
    again = ordered(program, EXTENTS)
    assert sorted(again.steps, key=repr) == sorted(program.steps, key=repr)
    assert again.peak_bytes(EXTENTS) <= program.peak_bytes(EXTENTS)
    assert np.array_equal(again.run(BATCH), program.run(BATCH))


@pytest.fixture
def forked():
    """Two wide branches that end narrow, begun together."""
    rng = np.random.default_rng(0)
    write = Writer({})
    constants = {
        "E": Dense.pack(rng.standard_normal((20, 16)).astype(np.float32)),
        "up": Dense.pack(rng.standard_normal((16, 512)).astype(np.float32)),
        "down": Dense.pack(rng.standard_normal((512, 16)).astype(np.float32)),
    }
    x = write.step("embed", {"fields": "tokens"}, table0="E")
    wide = [write.step("linear", {"activation": name}, x=x, weight="up") for name in ("gelu", "silu")]
    ends = [write.step("linear", x=each, weight="down") for each in wide]
    return Program(write.steps, constants, write.step("pointwise", x=ends[0], residual=ends[1]))


def test_one_branch_after_the_other(forked):
    better = ordered(forked, EXTENTS)
    names = [step.output for step in better.steps]
    assert names in (["h0", "h1", "h3", "h2", "h4", "h5"], ["h0", "h2", "h4", "h1", "h3", "h5"])
    wide = 13 * 4 * 512  # one less in the arena; the result lies elsewhere
    assert forked.peak_bytes(EXTENTS) - better.peak_bytes(EXTENTS) == wide
    assert np.array_equal(better.run(BATCH), forked.run(BATCH))


def test_the_given_order_stays_where_none_is_better(forked):
    better = ordered(forked, EXTENTS)
    assert ordered(better, EXTENTS) is better and least_peak(better.schedule, EXTENTS).proved


def test_a_graph_that_is_too_large_is_ordered_by_what_adds_least(forked, monkeypatch):
    graph = StepGraph(forked.schedule.calls, forked.schedule.results, EXTENTS)
    peak, order, least = graph.path(most=2)
    assert not least and sorted(order) == graph.real and graph.path()[2]
    monkeypatch.setattr(StepGraph, "path", lambda self, most=0: (peak, order, False))
    monkeypatch.setattr("opmatrix.runtime.buffers.order.WORK", 0)
    monkeypatch.setattr("opmatrix.runtime.buffers.order.FOUND", {})
    found = least_peak(forked.schedule, EXTENTS)
    assert not found.proved and found.floor == 0 and found.peak < forked.schedule.plan(EXTENTS).end


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(small_programs())
def test_what_adds_least_is_an_order_too(program):
    graph = StepGraph(program.schedule.calls, program.schedule.results, EXTENTS)
    peak, order, least = graph.path(most=0)
    assert graph.whole(order) in list(every_order(program)) and not least
    assert peak == most_alive(program, graph.whole(order)) >= graph.path()[0]


def test_long_chains_are_quick():
    """Layers one after another: sets of done steps grow with their number, not with two to its power."""
    rng = np.random.default_rng(0)
    write, constants = Writer({}), {"E": Dense.pack(rng.standard_normal((20, 16)).astype(np.float32))}
    constants["W"] = Dense.pack(rng.standard_normal((16, 16)).astype(np.float32))
    x = write.step("embed", {"fields": "tokens"}, table0="E")
    for _ in range(40):
        branches = [
            write.step("linear", {"activation": name}, x=x, weight="W") for name in ("gelu", "silu", "relu", "tanh")
        ]
        for left, right in pairwise(branches):
            x = write.step("pointwise", x=left, residual=right)
    program = Program(write.steps, constants, x)
    assert order.least_peak(program.schedule, EXTENTS).floor > 0
