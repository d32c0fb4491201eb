"""Stages that are not alike: as many layers computed again as each needs to fit; time and memory task by task."""

from itertools import product

import numpy as np
import pytest

from opmatrix.models import known
from opmatrix.parallel.cost.memory_parts import driver_bytes
from opmatrix.parallel.cost.stacks import stack_named
from opmatrix.parallel.search.forms import StrategyForm
from opmatrix.parallel.search.plans import PlanChoice
from opmatrix.parallel.search.stage_times import StageCut, best_cut, run_stages
from opmatrix.parallel.search.strategy_search import PlanQuestion
from opmatrix.parallel.search.uneven_cuts import LayerWays, MixedWays, cut_stages
from opmatrix.runtime.pricing import datasheet

SIZES = dict(dp=1, tp=8, pp=8, cp=1, ep=1, micro_batch=1, virtual=1)
PUBLISHED = 10, 8, 6, 4, 2, 0, 0, 0  # of MindFormers' settings for Llama 3.1 70B, selectively
ROOM = 52.5e9  # bytes of a device that these settings allow


def question(stack="mindformers"):
    """Llama 3 70B on 64 Ascend 910B, 256 sequences of 8,192 tokens, as those settings have it."""
    return PlanQuestion(
        known.configuration("llama3-70b"), datasheet("Ascend910B"), 64, 256, 8192, ROOM, stack=stack_named(stack)
    )


def choice_of(recompute, **sizes):
    form, all_sizes = StrategyForm(recompute=recompute, sequence=True), SIZES | sizes
    return PlanChoice(form, all_sizes, question().predicted(form, all_sizes))


def size_of(choice, cut=None):
    return float(driver_bytes(choice.prediction.setting, run_stages(choice, cut).allocated))


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_even_stages_hold_what_the_formula_says(recompute):
    """But for the norm behind the last layer: the formula counts it with the larger end, 18 bytes a number."""
    choice = choice_of(recompute)
    norm = 18 * choice.prediction.setting.model.last.parameters.at(dict(b=1, s=1, t=np.inf, c=1, e=1))
    assert float(choice.prediction.allocated) - run_stages(choice).allocated == pytest.approx(norm, rel=1e-9)


def test_the_published_cut_fits_and_is_faster_than_any_uniform_one():
    uniform = {kind: choice_of(kind) for kind in ("none", "selective", "full")}
    cut = StageCut((10,) * 8, ("selective",) * 8, PUBLISHED)
    seconds, size = run_stages(uniform["selective"], cut).seconds, size_of(uniform["selective"], cut)
    assert size <= ROOM < size_of(uniform["none"])
    fitting = [kind for kind, choice in uniform.items() if size_of(choice) <= ROOM]
    assert fitting == ["selective", "full"]
    assert all(seconds < run_stages(uniform[kind]).seconds for kind in fitting)


def test_the_best_cut_is_at_least_as_good_and_fits():
    choice = choice_of("selective")
    cut = best_cut(choice, ROOM)
    assert size_of(choice, cut) <= ROOM * (1 + 1e-6)
    published = StageCut((10,) * 8, ("selective",) * 8, PUBLISHED)
    assert run_stages(choice, cut).seconds <= run_stages(choice, published).seconds
    assert 0 < sum(cut.recomputed) < 80
    rooms = [best_cut(choice, room) for room in (60e9, 56e9, ROOM, 46e9, 42e9)]
    again = [sum(each.recomputed) for each in rooms]
    assert again == sorted(again) and best_cut(choice, 20e9) is None


def test_as_few_layers_as_fit_are_in_the_slow_way(rng=np.random.default_rng(11)):
    """Every cut and every number of slow layers of every stage, tried."""
    for _ in range(40):
        count = int(rng.integers(2, 6))
        stages = int(rng.integers(1, count + 1))
        fast = LayerWays([2.0] * count, [4.0] * count)
        slow = LayerWays([2.0 + float(rng.integers(1, 4))] * count, [float(rng.integers(1, 4))] * count)
        room = rng.integers(3, 16, stages)

        def took(n, again, stage, fast=fast, slow=slow, room=room):
            size = (n - again) * fast.sizes[0] + again * slow.sizes[0]
            return np.inf if size > room[stage] else (n - again) * fast.costs[0] + again * slow.costs[0]

        best = min(
            max(took(n, k, stage) for stage, (n, k) in enumerate(zip(cut, counts, strict=True)))
            for cut in product(range(1, count + 1), repeat=stages)
            if sum(cut) == count
            for counts in product(*(range(n + 1) for n in cut))
        )
        ways = cut_stages([[MixedWays(fast, slow)]] * stages, room)
        assert (ways is None) == np.isinf(best)
        if ways is not None:
            pairs = zip(ways.layers, ways.counts, strict=True)
            assert max(took(n, k, stage) for stage, (n, k) in enumerate(pairs)) == best
