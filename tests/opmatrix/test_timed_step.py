"""A step of training in time: papers' numbers of what stages keep and store, seconds that buckets hide, timelines."""

import json
from functools import cache
from xml.etree import ElementTree

import pytest
import sympy
from partitioned import GPT2

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.display.timeline import Bar, chrome_trace, timeline_picture, write_timeline
from opmatrix.parallel.cost.step_time import exposed
from opmatrix.parallel.cost.timed_step import timed_step
from opmatrix.parallel.schedules.simulated import bars_of
from opmatrix.parallel.sharding.mesh import usual_mesh
from opmatrix.runtime.pricing import datasheet

SMALL = GPT2 | dict(n_layer=8)
GPT_175B = dict(model_type="gpt2", vocab_size=51200, n_embd=12288, n_positions=2048, n_head=96, n_layer=96)
GIB = 2**30


@cache
def step(schedule="1f1b", micro_batches=8, pp=4, machine="A100", **how):
    return timed_step(
        SMALL,
        usual_mesh(2, 1, pp),
        BatchSizes(2 * micro_batches, 16),
        schedule,
        micro_batches,
        sheet=None if machine is None else datasheet(machine),
        **how,
    )


@pytest.mark.parametrize(
    "recompute, sequence, activations", [("none", False, 66.84375), ("selective", True, 12.3515625)]
)
def test_activations_of_korthikanti_figure_1(recompute, sequence, activations):
    """GPT of 175 billion parameters, 8 stages of 3 chunks, 64 micro-batches: values that the first stage keeps, within
    0.1 %, and its state of layers at 18 bytes a parameter."""
    found = timed_step(
        GPT_175B,
        usual_mesh(1, 8, 8, sequence=sequence),
        BatchSizes(64, 2048),
        "interleaved:3",
        64,
        recompute=recompute,
        dropout=0.1,
        state="18",
    )
    ahead = 2 * 7 + 2 * 8 + 1  # passes of chunks
    assert sum(found.kept[at] for at in (0, 8, 16)) / 3 * ahead == pytest.approx(activations * GIB, rel=1e-3)
    assert found.states[3] == pytest.approx(45.5625 * GIB, rel=1e-3)


def test_a_stage_holds_its_state_what_it_keeps_and_room():
    found = step()
    ahead = [4, 3, 2, 1]
    assert found.ran.peaks == pytest.approx(
        [found.states[k] + ahead[k] * found.kept[k] + found.room[k] for k in range(4)]
    )
    every = step(schedule="gpipe")
    assert every.ran.peaks[3] - found.ran.peaks[3] == pytest.approx(7 * found.kept[3])


def test_state_by_policy_of_bytes():
    state = {name: step(state=name, machine=None).states[1] for name in ("16", "18", "20")}
    assert state["18"] / state["16"] == 18 / 16 and state["20"] / state["16"] == 20 / 16


def test_both_ways_store_two_stages():
    one, both = step(machine=None), step("dualpipe", machine=None)
    assert both.states == [one.states[k] + one.states[3 - k] for k in range(4)]


def test_what_is_computed_again_takes_time_and_saves_memory():
    none, full = step(), step(recompute="full")
    assert full.kept[1] < none.kept[1] / 4 and full.works[1].backward > none.works[1].backward
    assert full.works[1].gradients == none.works[1].gradients and full.works[1].forward == none.works[1].forward


def test_operations_of_backward_are_twice_those_of_forward():
    for work in step(machine=None).works:
        assert work.backward + work.gradients == 2 * work.forward


def test_gradients_that_nothing_hides_are_those_of_buckets_in_a_row():
    """The formula against buckets that are summed one after the other, each once it is known."""
    for total, bucket, window, rate, wait in ((100, 25, 8, 0.1, 0.5), (100, 30, 40, 0.1, 0.5), (10, 25, 3, 0.1, 0.5)):
        n = -(-total // bucket)
        free = 0.0
        for k in range(1, n + 1):
            free = max(free, window * k / n) + wait + rate * total / n
        assert float(exposed(total, bucket, window, rate, wait)) == pytest.approx(free - window)
    G, r = sympy.symbols("G r", positive=True)
    assert exposed(G, 25, 8, r, 0).free_symbols == {G, r}


def test_a_step_ends_when_the_last_stage_has_its_weights():
    found = step()
    parts = [found.ran.last[k] + sum(found.summing(k)) + found.optimiser_seconds(k) for k in range(4)]
    assert found.step_seconds == max(parts) > found.ran.seconds
    assert sum(found.bubble) == pytest.approx(sum(found.ran.idle) / 4)
    assert found.moved_bytes(1)["NVLink 3"] > 0


def test_timelines_say_when_each_pass_ran(tmp_path):
    ran = step("zb-h1", 4).ran
    bars, lanes = bars_of(ran), [f"stage {k + 1}" for k in range(4)]
    assert len(bars) == 4 * 4 * 3
    trace = json.loads(write_timeline(tmp_path / "out.json", bars, lanes, "a step").read_text())
    passes = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    ends = {(event["tid"], event["name"]): event["ts"] + event["dur"] for event in passes}
    assert len(ends) == 48 and max(ends.values()) == pytest.approx(1e6 * ran.seconds)
    root = ElementTree.fromstring(write_timeline(tmp_path / "out.svg", bars, lanes, "a < step").read_text())
    assert len(root.findall(".//{*}title")) == 48 and root.find("{*}text").text == "a < step"
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["out.json", "out.svg"]
    with pytest.raises(InputError, match=r"out.png: a timeline's name ends in one of .svg, .json"):
        write_timeline(tmp_path / "out.png", bars, lanes, "a step")
    with pytest.raises(InputError, match=r"30000 bars: a picture has at most 20000: write a .json"):
        timeline_picture([Bar(0, 0, 1, "F", "F0")] * 30_000, ["one"], "long")
    assert '"traceEvents": []' in chrome_trace([], [])


@pytest.mark.parametrize(
    "how, words",
    [
        (dict(micro_batches=3), r"micro-batches 3: 16 sequences do not divide into as many: give a divisor of 16"),
        (dict(micro_batches=32), r"micro-batches 32: a batch of 16 sequences has at most 16"),
        (dict(schedule="1f1"), r"schedule 1f1: did you mean 1f1b\?"),
        (dict(recompute="ful"), r"recompute 'ful': did you mean full\? it is one of none, selective, full"),
        (dict(state="17"), r"state '17': it is one of 16, 18, 20"),
        (dict(schedule="interleaved:3", micro_batches=4), r"8 layers on 4 stages of 3 chunks: 12 chunks must divide"),
        (dict(schedule="interleaved:2", micro_batches=2), r"2 micro-batches on 4 stages: .* give a multiple of 4"),
        (dict(schedule="interleaved:2", pp=1), r"schedule interleaved:2: virtual stages need a pipeline"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(how, words):
    how = dict(schedule="1f1b", micro_batches=4, pp=4) | how
    with pytest.raises(InputError, match=words):
        timed_step(SMALL, usual_mesh(1, 1, how.pop("pp")), BatchSizes(16, 16), **how)
