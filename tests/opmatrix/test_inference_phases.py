"""Phases of inference in the planner: prefill, decode, rollout; and schedules that a stack does not run."""

from dataclasses import replace

import numpy as np
import pytest
from planned_models import MODEL

from formats.core.errors import InputError
from opmatrix.parallel.cost.stacks import STACKS
from opmatrix.parallel.schedules.named import SCHEDULES
from opmatrix.parallel.search.forms import FormMasks
from opmatrix.parallel.search.inference import INFERENCE_PHASES, next_token_seconds, predict_next_token
from opmatrix.parallel.search.plans import AskedPlan, check_schedule
from opmatrix.parallel.search.strategy_search import compile_forms

REPLY = 512
ASKED = replace(AskedPlan(32, 2048, infer=True).question(MODEL, 8, "H100"), reply=REPLY, fixed=(("cp", 1),))


@pytest.mark.parametrize("phase", INFERENCE_PHASES)
def test_columns_of_a_phase_are_what_each_strategy_is_predicted(phase):
    """One set of programs serves all numbers of devices and of sequences."""
    asked = replace(ASKED, phase=phase)
    programs = compile_forms(asked, asked.forms)
    for question in (asked, replace(asked, devices=6, batch=12)):
        sizes, forms = question.sizes, question.forms
        values = programs.values_at(sizes, question.batch)
        legal = np.argwhere(FormMasks(forms, question.limits, question.seq)(sizes))
        for form, row in np.random.default_rng(2).permutation(legal)[:25]:
            alone = question.predicted(forms[form], sizes.row(row))
            assert values[programs.times[form], row] == pytest.approx(alone.step_seconds, rel=1e-12)
            assert values[programs.peaks[form], row] == pytest.approx(alone.driver, rel=1e-12)


def strategy_of(phase, **sizes):
    """Predict a phase of a strategy of 8 devices."""
    question = replace(ASKED, phase=phase)
    usual = dict(dp=1, tp=1, pp=1, cp=1, ep=1, micro_batch=32, virtual=1)
    return question.predicted(question.forms[0], usual | sizes)


def test_a_rollout_is_a_prefill_and_each_token():
    """A rollout adds up its prompts and its tokens; a token of stages that follow each other leaves them idle, and
    micro-batches fill them."""
    prompts = replace(ASKED, seq=2048 - REPLY)
    for sizes in (dict(tp=8), dict(pp=8), dict(pp=4, tp=2, micro_batch=8), dict(dp=2, pp=4, micro_batch=2)):
        token, rollout = strategy_of("decode", **sizes), strategy_of("rollout", **sizes)
        first = prompts.predicted(prompts.forms[0], size_row(rollout))
        assert rollout.step_seconds == pytest.approx(first.step_seconds + REPLY * token.step_seconds, rel=1e-12)
        assert rollout.memory["caches"] == token.memory["caches"] == first.memory["caches"] * 2048 / (2048 - REPLY)
    alone, filled = (strategy_of("decode", pp=8, micro_batch=micro) for micro in (32, 4))
    assert alone.seconds["bubble"] > 6 / 8 * alone.step_seconds and filled.step_seconds < alone.step_seconds
    whole = strategy_of("prefill", pp=8, micro_batch=4).setting
    one = whole._replace(strategy=replace(whole.strategy, micro_batch=32))
    assert next_token_seconds(whole, 64) == predict_next_token(one, 64).step_seconds


def size_row(prediction):
    """The sizes of a prediction by name."""
    strategy = prediction.setting.strategy
    return {name: getattr(strategy, name) for name in ("dp", "tp", "pp", "cp", "ep", "micro_batch", "virtual")}


@pytest.mark.parametrize("stack", STACKS)
def test_a_schedule_that_a_stack_lacks_is_refused(stack):
    """The line names those that it has."""
    has = STACKS[stack].schedules
    for schedule in SCHEDULES:
        if schedule in has:
            assert check_schedule(schedule, stack) == check_schedule(schedule) == schedule
        else:
            with pytest.raises(InputError, match=f"--schedule {schedule}: --stack {stack} .* {', '.join(has)}$"):
                check_schedule(schedule, stack)
