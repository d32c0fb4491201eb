"""Layers computed again in blocks: as few of each chunk as it takes to fit, by formula, by tasks and in settings."""

from dataclasses import replace

import numpy as np
import pytest
from planned_models import MODEL

import opmatrix as om
from opmatrix.parallel.cost.prediction import predict, read_work
from opmatrix.parallel.cost.strategies import Strategy
from opmatrix.parallel.questions.layouts import find_layout, read_layout
from opmatrix.parallel.search.plan_text import stages_text
from opmatrix.parallel.search.stage_times import even_stages, run_stages
from opmatrix.parallel.settings.planned_layouts import layout_of, planned_settings
from opmatrix.parallel.settings.run_layout import RunFacts

HOW = Strategy(dp=2, pp=2, zero=1, flash=True)
LAYERS = 8  # of a stage


@pytest.fixture(scope="module")
def work():
    return read_work(MODEL, HOW)


def step(work, **how):
    return predict(work, "H100", replace(HOW, **how), 32, 4096)


def test_all_or_none_of_a_block_are_what_they_are_alone(work):
    """With room for all it is as if nothing was computed again, without any as if all was; predicted in arrays, too."""
    for room, alone in ((1e15, "none"), (0, "full")):
        block, other = step(work, recompute="block", room=room), step(work, recompute=alone)
        assert float(block.step_seconds) == pytest.approx(float(other.step_seconds), rel=1e-12)
        assert float(block.allocated) == pytest.approx(float(other.allocated), rel=1e-12)
        assert block.setting.strategy.again == (alone == "full")
    sizes = [1, 2, 4]
    room = float(step(work, recompute="none", micro_batch=2).driver) * 0.9
    columns = step(work, recompute="block", room=room, micro_batch=np.array(sizes, float))
    alone = [step(work, recompute="block", room=room, micro_batch=size) for size in sizes]
    assert columns.step_seconds == pytest.approx([float(each.step_seconds) for each in alone])
    assert columns.driver == pytest.approx([float(each.driver) for each in alone])


@pytest.mark.parametrize("virtual", [1, 4])
def test_as_few_layers_as_it_takes(work, virtual):
    """For any room the share is of whole layers of a chunk, what it leaves fits, and a layer less does not."""
    how = dict(virtual=virtual, schedule="interleaved" if virtual > 1 else "1f1b")
    most, least = (float(step(work, recompute=kind, **how).driver) for kind in ("none", "full"))
    chunk, shares = LAYERS // virtual, set()
    for room in np.linspace(least, most, 13):
        block = step(work, recompute="block", room=float(room), **how)
        layers = chunk * float(block.setting.strategy.again)
        assert layers == pytest.approx(round(layers)) and (float(block.driver) <= room * (1 + 1e-9) or layers == chunk)
        shares.add(round(layers))
        if round(layers) > 0:
            fewer = step(work, recompute="block", again=(round(layers) - 1) / chunk, **how)
            assert float(fewer.driver) > room
            assert float(fewer.step_seconds) < float(block.step_seconds)
    assert {0, chunk} < shares and len(shares) >= chunk  # a layer may save no more than it takes while it runs again


@pytest.fixture(scope="module")
def plan(work):
    room = 0.6 * float(step(work, recompute="none").driver) + 0.4 * float(step(work, recompute="full").driver)
    return om.plan(MODEL, 4, "H100", batch=32, seq=4096, memory=room, stack="megatron", keep=1)


ASKED = "pp 2 dp 2 micro-batch 1 virtual 1 zero 1"


def test_a_block_is_faster_than_all_again_where_not_all_fit(plan, tmp_path):
    """It is what the search finds, it is read as it is printed, run task by task, and written as Megatron's arguments,
    which are judged as the same layout."""
    choice = find_layout(plan.question, read_layout(ASKED, "--only"))
    full = find_layout(plan.question, read_layout(f"{ASKED} recompute full", "--only"))
    assert choice.form.recompute == "block" and choice.bytes <= plan.question.room
    assert choice.seconds < full.seconds
    again = find_layout(plan.question, read_layout(str(choice), "--only"))
    assert again.form == choice.form and again.sizes == choice.sizes
    cut, share = even_stages(choice), float(choice.prediction.setting.strategy.again)
    assert cut.recomputed == (round(LAYERS * share),) * 2 and "full again" in stages_text(cut)
    ran = run_stages(choice)
    assert ran.seconds == pytest.approx(choice.seconds, rel=0.05) and ran.seconds < full.seconds
    assert ran.allocated == pytest.approx(float(choice.prediction.allocated), rel=0.05)
    facts = RunFacts(16, 4)
    text = planned_settings("megatron", None, facts).text(choice, 32, 4096, tmp_path / "run.sh")
    assert f"recompute-num-layers {cut.counts[0]}" in text and "recompute-method block" in text
    (tmp_path / "run.sh").write_text(text)
    read = planned_settings("megatron", tmp_path / "run.sh", facts)
    assert read.layout.again == layout_of(choice, 32, 4096).again == read.stages().counts


def test_stacks_without_blocks_have_none(plan):
    other = om.plan(MODEL, 4, "H100", batch=32, seq=4096, memory=plan.question.room, stack="deepspeed", keep=1)
    assert "block" not in {form.recompute for form in other.question.forms}
    assert "block" in {form.recompute for form in plan.question.forms}
