"""Sizes and forms of strategies: all that are legal, none twice; cuts of unequal stages are the best there are."""

import re
from itertools import product

import numpy as np
import pytest

import opmatrix as om
from opmatrix.models import known
from opmatrix.parallel.search.forms import ORDERS, STRATEGY_FORMS, FormMasks
from opmatrix.parallel.search.legal_sizes import SizeColumns, divisors, legal_sizes, limits_of
from opmatrix.parallel.search.uneven_cuts import LayerWays, cut_layers, cut_stages

GPT = limits_of(known.configuration("gpt2"))  # 12 layers, 12 heads
SMALL = legal_sizes(GPT, 12, 24, 16)


def test_sizes_are_all_that_divide():
    """A count by hand, of every number of ranks."""
    found = {tuple(SMALL.row(at).values()) for at in range(len(SMALL))}
    wanted = set()
    for dp, tp, pp, cp in product(divisors(12), repeat=4):
        if dp * tp * pp * cp != 12 or 12 % tp or 24 % dp or 16 % cp or cp > 8:
            continue
        for micro in divisors(24 // dp):
            chunks = [v for v in range(1, 15) if v == 1 or 12 % (v * pp) == 0 or 14 % (v * pp) == 0]
            if pp == 1 or (24 // (dp * micro)) % pp:
                chunks = [1]
            wanted |= {(dp, tp, pp, cp, 1, micro, v) for v in chunks}
    assert found == wanted and len(found) == len(SMALL)


@pytest.mark.parametrize(
    "devices, batch, tokens, words",
    [
        (10**20, 8, 1024, "--devices 1000+: give a number from 1 to 1,000,000,000"),
        (8, 10**9 + 1, 1024, "--batch 1000000001: give a number from 1"),
        (8, 8, 10**30, "--seq 1000+: give"),
        (8, 10**9, 10**9, r"a step of .*e\+21 numbers: at most 1e\+18: give a smaller batch"),
        (0, 8, 16, "--devices 0: give"),
    ],
)
def test_absurd_counts_are_a_line(devices, batch, tokens, words):
    with pytest.raises(om.InputError, match=words):
        legal_sizes(GPT, devices, batch, tokens)


def test_experts_divide_ranks_of_data():
    sizes = legal_sizes(limits_of(known.configuration("mixtral-8x7b")), 16, 16, 64)
    assert {*sizes.ep.tolist()} == {1, 2, 4, 8} and not ((sizes.dp * sizes.cp * sizes.tp) % sizes.ep).any()


def test_no_strategy_is_in_two_forms():
    """Orders of axes of which one has ranks are the same, and chunks belong to one schedule."""
    seen: set[tuple[object, ...]] = set()
    for form, met in zip(STRATEGY_FORMS, FormMasks(STRATEGY_FORMS, GPT, 16)(SMALL), strict=True):
        own = SMALL[met]
        for at in range(len(own)):
            row = own.row(at)
            laid = tuple(name for name in form.order if row[name] > 1)
            context = form.context if row["cp"] > 1 else ""
            key = (*row.values(), form.recompute, form.zero, form.schedule, context, form.sequence, laid)
            assert key not in seen
            seen.add(key)
    laid = {each[-1] for each in seen}
    wanted = {tuple(n for n in order if row[n] > 1) for order in ORDERS for row in map(SMALL.row, range(len(SMALL)))}
    assert laid == wanted


def test_cuts_are_the_best(rng=np.random.default_rng(3)):
    def slowest(cut, costs, first, last):
        ends = np.cumsum(cut)
        each = [costs[end - n : end].sum() for end, n in zip(ends, cut, strict=True)]
        each[0] += first
        each[-1] += last
        return max(each)

    for _ in range(60):
        count = int(rng.integers(1, 8))
        stages, costs = int(rng.integers(1, count + 1)), rng.integers(1, 9, count)
        first, last = rng.integers(0, 6, 2)
        best = min(
            slowest(cut, costs, first, last) for cut in product(range(1, count + 1), repeat=stages) if sum(cut) == count
        )
        found = cut_layers(costs, stages, first, last)
        assert sum(found) == count and min(found) > 0 and slowest(found, costs, first, last) == best


def test_stages_take_the_quickest_way_that_fits(rng=np.random.default_rng(5)):
    """Every cut and every way of every stage, tried."""
    for _ in range(40):
        count = int(rng.integers(2, 6))
        stages = int(rng.integers(1, count + 1))
        ways = [
            [LayerWays(rng.integers(1, 9, count), rng.integers(1, 9, count)) for _ in range(2)] for _ in range(stages)
        ]
        room = rng.integers(4, 20, stages)

        def slowest(cut, chosen, ways=ways, room=room):
            ends, took = np.cumsum(cut), []
            for stage, (n, end) in enumerate(zip(cut, ends, strict=True)):
                way = ways[stage][chosen[stage]]
                took.append(way.costs[end - n : end].sum() if way.sizes[end - n : end].sum() <= room[stage] else np.inf)
            return max(took)

        best = min(
            slowest(cut, chosen)
            for cut in product(range(1, count + 1), repeat=stages)
            if sum(cut) == count
            for chosen in product(range(2), repeat=stages)
        )
        found = cut_stages(ways, room)
        assert (found is None and np.isinf(best)) or slowest(*found[:2]) == best


def test_cuts_keep_within_memory():
    assert cut_layers([1] * 4, 2, room=[1, 3], sizes=[1] * 4) == (1, 3)
    assert cut_layers([1] * 4, 2, room=[1, 2], sizes=[1] * 4) is None
    assert cut_layers([1] * 2, 3) is None


@pytest.mark.parametrize(
    "devices, batch, said",
    [
        (1021, 1536, "--devices 1021: .* the nearest counts that work are 1020 and 1024"),
        (1000, 7, "--batch 7: too small for 1000 devices: 10 is the next .* use 996 and 1008 devices"),
    ],
)
def test_what_nothing_divides_is_refused(devices, batch, said):
    limits = limits_of(known.configuration("gpt3-175b"))
    with pytest.raises(om.InputError, match=said):
        legal_sizes(limits, devices, batch, 2048)
    near = re.findall(r"\d+", said.split("work are")[-1] if "work are" in said else "996 1008")
    for each in map(int, near):
        assert len(legal_sizes(limits, each, batch, 2048))


def test_a_configuration_without_sizes_is_refused():
    config = known.configuration("llama2-7b") | {"hidden_size": "h"}
    with pytest.raises(om.InputError, match="hidden_size"):
        limits_of(config)


def test_blocks_are_the_whole():
    parts = [*SMALL.blocks(7)]
    assert isinstance(parts[0], SizeColumns) and max(map(len, parts)) == 7
    assert np.array_equal(np.concatenate([each.dp for each in parts]), SMALL.dp)
