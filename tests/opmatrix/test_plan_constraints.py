"""Which constraint binds a plan or a layout: each search has one change, and saves what that question says alone."""

import json
from dataclasses import replace

import pytest

from formats.machine.datasheets import datasheet
from opmatrix.parallel.cost.stacks import stack_named
from opmatrix.parallel.questions.constraints import find_constraints, fullest_stage, relaxations
from opmatrix.parallel.questions.fewest_devices import fastest_on
from opmatrix.parallel.questions.layouts import find_layout, read_layout
from opmatrix.parallel.search.stage_times import run_stages
from opmatrix.parallel.search.strategy_search import PlanQuestion

MODEL = dict(
    model_type="llama",
    vocab_size=32000,
    hidden_size=1536,
    intermediate_size=4096,
    num_hidden_layers=12,
    num_attention_heads=12,
    num_key_value_heads=12,
    max_position_embeddings=4096,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
)
QUESTION = PlanQuestion(
    MODEL,
    datasheet("H100"),
    16,
    32,
    2048,
    6.5e9,
    stack=stack_named("megatron"),
    schedule="1f1b",
    max_tp=2,
    no_ring=True,
)
LAYOUT = read_layout("zero 1 recompute none cp 1 norms cut", "--only")


@pytest.fixture(scope="module")
def binding():
    """The constraints of a layout of a question with every restriction."""
    return find_constraints(QUESTION, find_layout(QUESTION, LAYOUT), LAYOUT.fixed)


def test_each_search_has_one_change(binding):
    """The formulas that several searches share give what each question gives alone, and no freedom costs time."""
    alone = {one.step: one for one in relaxations(replace(QUESTION, fixed=tuple(LAYOUT.fixed.items())))}
    assert {step.step for step in binding.steps} == alone.keys()
    for step in binding.steps:
        choice = fastest_on(alone[step.step].question)
        assert str(choice) == str(step.choice)
        assert step.seconds == choice.seconds / alone[step.step].batches
        assert step.saved == binding.choice.seconds - step.seconds >= -1e-12 * step.seconds


def test_all_that_was_asked_is_relaxed(binding):
    kinds = {step.kind for step in binding.steps}
    assert kinds == {
        *("memory", "sizes", "links", "device", "batch"),
        *("--max-tp", "--schedule", "--no-ring", "--stack", "layout"),
    }
    free = PlanQuestion(MODEL, QUESTION.machine, 16, 32, 2048, 80e9)
    assert {one.kind for one in relaxations(free)} == {"memory", "sizes", "links", "device", "batch"}
    assert {step.step for step in binding.steps if step.kind == "layout"} >= {"any layout", "zero other than 1"}
    assert len([step for step in binding.steps if step.kind == "links"]) == len(QUESTION.machine.links)


def test_what_binds_is_what_saves(binding):
    """Memory that is short binds, and memory without a limit does not."""
    assert "memory" in binding.figures()["binding"]
    saved = [step.saved for step in binding.steps]
    assert saved == sorted(saved, reverse=True)
    roomy = replace(QUESTION, room=1e12)
    spare = find_constraints(roomy, find_layout(roomy, LAYOUT), LAYOUT.fixed)
    assert "memory" not in spare.figures()["binding"] and "memory" not in spare.verdict


def test_sizes_that_do_not_divide_are_tried():
    """12 heads on 8 tensor ranks are legal once any ranks divide them, and never more ranks than heads."""
    wide = replace(QUESTION, max_tp=None, lifted=("heads",))
    assert 8 not in replace(wide, lifted=()).sizes.tp and 8 in wide.sizes.tp and wide.sizes.tp.max() <= 12
    deep = replace(QUESTION, lifted=("layers",))
    assert (deep.sizes.pp * deep.sizes.virtual).max() <= 12
    chunks = {pair for pair in zip(QUESTION.sizes.pp, QUESTION.sizes.virtual, strict=True) if pair[0] * pair[1] <= 12}
    assert {*zip(deep.sizes.pp, deep.sizes.virtual, strict=True)} > chunks


def test_the_fullest_stage_is_the_one_that_runs(binding):
    choice = find_layout(QUESTION, read_layout("pp 4 zero 1 recompute none", "--only"))
    memory, peaks = fullest_stage(choice, QUESTION.room), run_stages(choice).ran.peaks
    assert peaks[memory.stage - 1] == max(peaks) and memory.stages == 4
    assert [*memory.parts.values()] == sorted(memory.parts.values(), reverse=True)
    assert f"stage {memory.stage} of 4" in str(memory)


def test_a_layout_that_does_not_fit_says_what_would(binding):
    """Where no strategy fits with a relaxation, the table says so, and JSON has no number."""
    tiny = replace(QUESTION, room=1e9)
    short = find_constraints(tiny, find_layout(tiny, LAYOUT), LAYOUT.fixed)
    assert short.memory.reported > short.memory.room
    rows = {row["with"]: row for row in json.loads(json.dumps(short.figures(), allow_nan=False))["relaxed"]}
    assert rows["10 % more memory"]["seconds"] is None and rows["memory without a limit"]["seconds"] > 0
    assert "no strategy fits" in str(short)
