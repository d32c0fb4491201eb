"""Pipelines in time: closed forms equal the simulation exactly, for all small numbers of stages, micro-batches and
chunks; causes of waiting add up; what cannot end is named."""

from fractions import Fraction

import numpy as np
import pytest
import sympy

from formats.core.errors import InputError
from opmatrix.parallel.schedules.branches import branching, heights
from opmatrix.parallel.schedules.named import SCHEDULES, ChunkedSchedule, pipeline_kind, pipeline_tasks, waiting
from opmatrix.parallel.schedules.simulated import ChunkWork, simulate, split_bubble
from opmatrix.parallel.schedules.symbolic import span
from opmatrix.parallel.schedules.tasks import Task, TaskGraph, alone, in_a_row

PASSES = [(1, 1, 1), (2, 3, 1), (3, 2, 2), (1, 2, 3), (2, 1, 5)]  # seconds of F, B and W, each shortest once
SMALL = range(1, 7)
CASES = [
    (str(ChunkedSchedule(schedule, v)), p, m)
    for schedule in SCHEDULES.values()
    for v in (SMALL if schedule.chunked else [1])
    for p in SMALL
    for m in (*SMALL, 8, 12, 16)
    if not schedule.illegal(p, m)
]


def equal(schedule, passes):
    """Works of equal chunks: each has its part of what a stage takes and keeps, in sixtieths, which are whole."""
    kind = pipeline_kind(schedule)
    return ChunkWork(*(60 * each // kind.chunks for each in (*passes, 1, 1)))


def mistakes(closed, cases, passes):
    """The cases where a closed form is not what a simulation gives: seconds that stages wait, and what they keep."""
    found = []
    for schedule, p, m in cases:
        kind = pipeline_kind(schedule)
        graph = kind.tasks(p, m)
        for each in passes:
            ran = simulate(graph, [equal(schedule, each)] * len(graph.places))
            assert all(busy == 60 * m * sum(each) for busy in ran.busy)
            kept = [60 * closed(kind).held(s, p, m, kind.chunks) for s in range(p)]
            bubble = 60 * closed(kind).bubble(p, m, kind.chunks, *each)
            if ran.idle != [bubble] * p or ran.peaks != kept:
                found.append((schedule, p, m, each))
    return found


def test_closed_forms_equal_the_simulation():
    assert not mistakes(lambda kind: kind.schedule, CASES, PASSES)


def test_a_closed_form_that_is_not_its_own_is_found():
    assert mistakes(lambda kind: pipeline_kind("1f1b").schedule, [("zb-h1", 3, 4)], PASSES[:1])
    assert mistakes(lambda kind: pipeline_kind("1f1b").schedule, [("interleaved:2", 3, 3)], PASSES[:1])
    assert mistakes(lambda kind: pipeline_kind("zb-h1").schedule, [("dualpipe", 4, 8)], PASSES[:1])


@pytest.mark.parametrize("passes, forth, back", [((10, 12, 8), 3, 4), ((10, 20, 5), 9, 11), ((2, 3, 1), 2, 3)])
def test_passes_at_once_hide_what_the_other_sends(passes, forth, back):
    """Along the critical path each pair takes what it computes or what crosses, whichever is more; a pass that is alone
    takes both. The closed form is an upper bound where that leaves less than a backward pass takes, and stages have
    few micro-batches. No other schedule has pairs."""
    F, B, W = passes
    hidden = min(forth + back, F + B + W - forth - back)
    for schedule, p, m in CASES:
        kind = pipeline_kind(schedule)
        graph = kind.tasks(p, m)
        plain, beside = (
            simulate(graph, [ChunkWork(F, B, W, crossing=one, crossing_back=other)] * len(graph.places))
            for one, other in ((0, 0), (forth, back))
        )
        closed, found = kind.schedule.hidden(p, m, F, hidden), plain.seconds - beside.seconds
        assert found == closed or (hidden > F and m < 3 * p and closed / 2 < found < closed)
        assert (closed > 0) == (kind.name == "dualpipe")


def test_bubbles_of_the_papers():
    """Of the work of a stage: (p - 1) / m, (p - 1) / (v m); ZB-H1's where W is the shortest, DualPipe's where passes
    take as long."""
    p, m, F, B, W = sympy.symbols("p m F B W", positive=True)
    assert sympy.simplify(waiting("1f1b") / (m * (F + B + W)) - (p - 1) / m) == 0
    assert sympy.simplify(waiting("interleaved:3") / (m * (F + B + W)) - (p - 1) / (3 * m)) == 0
    short = {sympy.Min(B, F, W): W, sympy.Min(m, p): p}
    assert sympy.expand(waiting("zb-h1").subs(short) - (p - 1) * (F + B - W)) == 0
    both, back = F + 2 * F, 2 * F  # forward and backward at once; all of a backward pass
    assert sympy.simplify(waiting("dualpipe", 2 * p + 2, F=F, B=F, W=F) - p * (both + back - 3 * F)) == 0
    assert waiting("zb-h1", 8, 32, F=3, B=4, W=2) == 7 * (3 + 4 - 2)
    assert waiting("dualpipe", 8, 32, F=5, B=5, W=5) == 3 * ((5 + 10) + 10 - 3 * 5)


def test_korthikanti_memory_of_interleaved_stages():
    """The first of p stages of v chunks keeps p (1 + (p - 1) / (p v)) micro-batches (2022, section 4.2.3)."""
    kept = pipeline_kind("interleaved:3").schedule.held(0, 35, 280, 3)
    assert kept == 35 * (1 + sympy.Rational(34, 35 * 3))


def test_branches_are_as_deep_as_their_longest_way():
    """On any graph of stages the bubble is that of a chain of its depth, and a stage keeps no more than its height."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        n, m, f, b = (int(rng.integers(1, hi)) for hi in (8, 7, 5, 5))
        reads = {f"s{k}": [f"s{j}" for j in range(k) if rng.random() < 0.4] for k in range(n)}
        high = heights(reads)
        ran = simulate(branching(reads, m), [ChunkWork(f, b)] * n)
        assert ran.seconds == (m + max(high.values()) - 1) * (f + b)
        assert ran.peaks == [min(m, high[name]) for name in reads]


def test_branches_side_by_side_wait_less_than_in_a_row():
    works = [ChunkWork(1, 2)] * 4
    aside = simulate(branching({"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}, 4), works)
    assert aside.seconds == 18 and simulate(pipeline_tasks("1f1b", 4, 4), works).seconds == 21


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "interleaved:2", "dualpipe"])
def test_causes_of_waiting_add_up(schedule):
    rng = np.random.default_rng(1)
    graph = pipeline_tasks(schedule, 4, 8)
    works = [ChunkWork(*map(Fraction, rng.integers(4, 9, 3).tolist())) for _ in graph.places]
    ran, split = simulate(graph, works, Fraction(1, 2)), split_bubble(graph, works, Fraction(1, 2))
    assert sum(split) == sum(ran.idle) / 4 and split.imbalance > 0 and split.send > 0
    even = split_bubble(graph, [ChunkWork(2, 2, 2)] * len(works))
    assert even.imbalance == even.send == 0 and even.ramp > 0


def test_sends_take_time_between_stages_alone():
    graph = pipeline_tasks("gpipe", 3, 4)
    assert simulate(graph, [ChunkWork(1, 2)] * 3, 5).seconds == (4 + 2) * 3 + 2 * 2 * 5
    assert simulate(graph, [ChunkWork(1, 2)] * 3, {(0, 1): 5}).seconds == (4 + 2) * 3 + 5
    assert simulate(pipeline_tasks("interleaved:3", 1, 2), [ChunkWork(1, 2)] * 3, 5).seconds == 2 * 9


def test_room_of_a_backward_pass_and_state_count_while_they_are_there():
    works = [ChunkWork(1, 1, 1, kept=10, kept_for_gradients=4, room=k) for k in (7, 100)]
    assert simulate(pipeline_tasks("1f1b", 2, 4), works, state=[1000, 2000]).peaks == [1000 + 20 + 7, 2000 + 10 + 100]
    assert simulate(pipeline_tasks("zb-h1", 2, 4), works).peaks == [20 + 7, 4 + 10 + 100]


def test_an_order_that_cannot_end_is_named():
    stages = [[Task("B", 0, 0), Task("F", 0, 0)], [Task("F", 0, 1), Task("B", 0, 1)]]
    graph = TaskGraph("mine", [*map(alone, stages)], [0, 1], in_a_row(2))
    with pytest.raises(
        InputError,
        match=r"mine: deadlock: stage 0 waits with B0 of chunk 0 for F0 of chunk 0 on "
        r"stage 0, stage 1 waits with F0 of chunk 1 for F0 of chunk 0 on stage 0",
    ):
        simulate(graph, [ChunkWork(1, 1)] * 2)


def test_an_expression_of_four_kinds_is_what_numbers_give():
    rng = np.random.default_rng(2)
    for schedule, names in (("gpipe", "abbc"), ("1f1b", "abbc"), ("zb-h1", "ab"), ("1f1b", "abcd")):
        graph = pipeline_tasks(schedule, len(names), 3)
        found = span(graph, names)
        symbols = sorted(found.free_symbols, key=str)
        at = sympy.lambdify(symbols, found, "math")
        for _ in range(10):
            seconds = {str(each): int(rng.integers(1, 30)) for each in symbols}
            works = [ChunkWork(*(seconds.get(f"{kind}_{name}", 0) for kind in "FBW")) for name in names]
            assert at(**seconds) == simulate(graph, works).seconds
    assert span(pipeline_tasks("gpipe", 1, 3), "a") == 3 * sympy.Symbol("F_a", positive=True) + 3 * sympy.Symbol(
        "B_a", positive=True
    )
    with pytest.raises(InputError, match="5 kinds of stages, a, b, c, d, e: at most 4"):
        span(pipeline_tasks("gpipe", 5, 1), "abcde")


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: pipeline_kind("1f1c"), r"schedule 1f1c: did you mean 1f1b\? it is one of 1f1b, gpipe, interleaved:V"),
        (lambda: pipeline_kind("gpipe:2"), r"schedule gpipe:2: gpipe has no chunks to number: give gpipe"),
        (
            lambda: pipeline_kind("interleaved"),
            r"schedule interleaved: give the chunks of a stage as a number from 1 on",
        ),
        (lambda: pipeline_tasks("interleaved:2", 4, 6), r"6 micro-batches on 4 stages: .* give a multiple of 4"),
        (
            lambda: pipeline_tasks("dualpipe", 3, 8),
            r"8 micro-batches on 3 stages: it pairs stages: give an even number",
        ),
        (lambda: pipeline_tasks("dualpipe", 4, 6), r"dualpipe: 6 micro-batches on 4 stages: .* at least 8"),
        (lambda: pipeline_tasks("1f1b", 0, 6), r"1f1b: 0 stages: at least 1"),
        (
            lambda: pipeline_tasks("1f1b", 10_000, 10_000),
            r"10000 micro-batches on 10000 stages .*: at most 666666 passes",
        ),
        (
            lambda: pipeline_kind("interleaved:3").check_layers(20, 4),
            r"20 layers on 4 stages of 3 chunks: 12 chunks must",
        ),
        (lambda: branching({"first": [], "b": ["fist"]}, 1), r"b reads fist: did you mean first\? stages are first, b"),
        (lambda: branching({"a": ["b"], "b": ["a"]}, 1), r"a is read by b is read by a: a pipeline is a graph without"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(call, words):
    with pytest.raises(InputError, match=words) as error:
        call()
    assert "\n" not in str(error.value)


def test_many_stages_and_micro_batches_are_run():
    """61 stages, 128 micro-batches: the bubble of the closed form."""
    ran = simulate(pipeline_tasks("1f1b", 61, 128), [ChunkWork(1, 2)] * 61)
    assert ran.seconds == (128 + 60) * 3 and ran.peaks == [*range(61, 0, -1)]
