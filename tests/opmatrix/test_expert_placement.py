"""Copies of experts on ranks: each expert is there, ranks are full, and greedy placements are near the best ones."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.core.errors import InputError
from opmatrix.parallel.cost.expert_placement import copies_of_experts, exact_placement, place_experts


def check(placement, counts, ranks, slots):
    """Each expert has its copies, each rank its slots, and the load is that of the busiest rank."""
    lies = Counter(expert for row in placement.ranks for expert in row)
    assert [lies[expert] for expert in range(len(counts))] == [*placement.copies] and min(placement.copies) >= 1
    assert len(placement.ranks) == ranks and {len(row) for row in placement.ranks} == {slots // ranks}
    rows = [sum(counts[e] / placement.copies[e] for e in row) for row in placement.ranks]
    assert placement.load == pytest.approx(max(rows) / (sum(counts) / ranks)) and placement.load >= 1 - 1e-12


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=24).filter(any), st.integers(1, 6), st.integers(0, 3))
def test_every_expert_is_placed(counts, ranks, more):
    slots = (-(-len(counts) // ranks) + more) * ranks
    placement = place_experts(counts, ranks, slots)
    check(placement, counts, ranks, slots)
    assert placement.load <= ranks + 1e-9


def test_greedy_is_near_the_best(rng=np.random.default_rng(2)):
    """Of 60 drawn cases; the best is at most as loaded, and found by all orders of slots, too."""
    ratios = []
    for _ in range(60):
        experts, ranks = int(rng.integers(2, 6)), int(rng.integers(2, 4))
        counts = [float(n) for n in rng.integers(1, 50, experts)]
        slots = -(-experts // ranks) * ranks
        best, greedy = exact_placement(counts, ranks, slots), place_experts(counts, ranks, slots)
        check(best, counts, ranks, slots)
        ratios.append(greedy.load / best.load)
        assert place_experts(counts, ranks, slots, exact=True) == best
    assert min(ratios) >= 1 - 1e-12 and np.mean(ratios) < 1.05


def test_the_best_is_the_best_of_all_orders():
    counts, ranks = [7.0, 3.0, 2.0], 2
    best = min(
        max(sum(counts[e] / order.count(e) for e in order[:2]), sum(counts[e] / order.count(e) for e in order[2:]))
        for items in ([0, 0, 1, 2], [0, 1, 1, 2], [0, 1, 2, 2])
        for order in permutations(items)
    )
    assert exact_placement(counts, ranks, 4).load == pytest.approx(best * ranks / sum(counts))


@pytest.mark.parametrize("slots", [8, 9, 12, 20])
def test_copies_make_the_most_rows_of_one_as_few_as_possible(slots, rng=np.random.default_rng(4)):
    """No other numbers of copies do better: one copy less of any expert than its rows over that most needs more."""
    counts = rng.integers(1, 100, 8)
    copies = copies_of_experts(counts, slots)
    most = max(np.asarray(counts) / copies)
    assert sum(copies) == slots and sum(np.ceil(counts / most * (1 + 1e-12) - 1e-9)) >= slots - 7
    assert sum(int(np.ceil(count / (most * (1 - 1e-9)))) for count in counts) > slots


def test_redundant_experts_even_out_deepseek_like_loads(rng=np.random.default_rng(6)):
    """256 experts on 32 ranks, with loads as unequal as of a Zipf law: 32 more copies bring the load near one."""
    counts = rng.permutation(1000 / np.arange(1, 257) ** 0.6)
    plain, more = place_experts(counts, 32), place_experts(counts, 32, 288)
    check(more, counts, 32, 288)
    assert more.load < 1.05 < plain.load


def test_groups_stay_on_their_node(rng=np.random.default_rng(8)):
    """8 groups of 8 experts on 4 nodes of 4 ranks: all copies of a group are on one node, two groups on each."""
    counts = [float(n) for n in rng.integers(1, 100, 64)]
    placement = place_experts(counts, 16, 96, groups=8, nodes=4)
    check(placement, counts, 16, 96)
    nodes = [{expert // 8 for row in placement.ranks[at : at + 4] for expert in row} for at in range(0, 16, 4)]
    assert [len(groups) for groups in nodes] == [2] * 4 and len(set.union(*nodes)) == 8
    assert placement.load >= place_experts(counts, 16, 96).load - 1e-9


@pytest.mark.parametrize(
    "counts, ranks, more, words",
    [
        ([1, -1], 1, {}, "counts of experts: -1: give rows"),
        ([1, float("nan")], 1, {}, "counts of experts: nan"),
        ([0, 0], 2, {}, "counts of experts: all 0"),
        ([], 2, {}, "counts of experts: all 0"),
        ([1, 2, 3], 2, {}, "slots 3: give at least 3, one an expert, and a multiple of 2 ranks"),
        ([1, 2, 3], 3, dict(slots=2), "slots 2: give at least 3"),
        ([1, 2, 3, 4], 2, dict(groups=3), "groups 3, nodes 1: they divide 4 experts"),
        ([1] * 12, 2, dict(exact=True), "slots 12: at most 10 are placed exactly"),
    ],
)
def test_what_cannot_be_placed_is_one_line(counts, ranks, more, words):
    with pytest.raises(InputError, match=words):
        place_experts(counts, ranks, **more)
