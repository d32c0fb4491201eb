"""Products one after the other, outside of a sum with x: columns of the first are cut with rows of the second."""

import numpy as np
import pytest
from partitioned import LLAMA, differences, made

import opmatrix as om
from opmatrix import formula
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import I, affine, gelu, grouped, relu, rmsnorm, weight
from opmatrix.algebra.positions.patterns import sequence
from opmatrix.parallel.ranks.virtual import run
from opmatrix.parallel.sharding.factor_chain import chain
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.partition import partition

RNG = np.random.default_rng(0)
TENSOR = om.Mesh.of(tp=(2, "tensor"))


def matrix(n, p, name="W"):
    return weight(Data(RNG.normal(size=(n, p)), name))


def row(n, p):
    return affine(Data(RNG.normal(size=(n, p))), Data(RNG.normal(size=p)))


def planned(term, **how):
    return partition(term, TENSOR, om.BatchSizes(2, 3), tokens=False, **how)


CHAINS = {  # with what a rank stores of it, and how often all wait
    "two": (lambda: matrix(8, 16) @ relu @ matrix(16, 8), 128, 1),
    "biased": (lambda: row(8, 15) @ gelu @ row(15, 6), 8 * 8 + 8 + 8 * 6 + 6, 1),
    "nothing between": (lambda: matrix(8, 3) @ matrix(3, 8), 2 * 8 + 2 * 8, 1),
    "four": (lambda: matrix(8, 16) @ relu @ matrix(16, 8) @ matrix(8, 12) @ relu @ matrix(12, 4), 128 + 72, 2),
    "three": (lambda: matrix(8, 16) @ relu @ matrix(16, 8) @ relu @ matrix(8, 4), 128 + 32, 1),
    "heads": (lambda: grouped(matrix(8, 8), matrix(8, 8), matrix(8, 8), 4, 4, sequence) @ matrix(8, 6), 96 + 24, 1),
    "beside a sum with x": (lambda: (I + matrix(8, 8)) @ row(8, 6) @ relu @ row(6, 8), 64 + 27 + 24 + 8, 1),
}


@pytest.mark.parametrize("make, stored, waits", CHAINS.values(), ids=[*CHAINS])
def test_each_rank_has_half(make, stored, waits):
    term, x = make(), RNG.normal(size=(2, 3, 8))
    plan = planned(term)
    ran, formulas = run(plan, Feed(x)), plan.formulas(storage=1)
    assert differences(plan, ran.meters) == []
    assert (formulas.state, formulas.at()["supersteps"]) == (stored, waits)
    wanted = np.stack([term(each) for each in x]) if "sequence" not in str(term) else None
    if wanted is not None:
        np.testing.assert_allclose(ran.value[:, 0], wanted, rtol=1e-11)


@pytest.mark.parametrize(
    "make",
    [lambda: matrix(8, 16) @ rmsnorm(1e-6) @ matrix(16, 8), lambda: matrix(8, 4) @ relu],
    ids=["a norm between", "no second"],
)
def test_what_nothing_merges_stays_whole(make):
    plan = planned(term := make())
    assert plan.parameters() == partition(term, om.Mesh.of(), plan.sizes, tokens=False).parameters()
    assert [*plan.crossings()] == []


def test_what_is_cut_by_hand_takes_the_next_along():
    term = matrix(8, 16, "A") @ relu @ matrix(16, 8, "B")
    plan = partition(term, om.Mesh.of(x=(4, "by-hand")), om.BatchSizes(2, 3), tokens=False, cuts={"A": "columns"})
    assert plan.formulas(storage=1).state == 2 * 8 * 16 // 4


def test_models_of_sums_keep_their_factors():
    """A table, and two sums with x for each layer, which norms begin."""
    assert len(chain(made(LLAMA))) == 1 + 2 * 2 + 2


@pytest.mark.parametrize("how, ops", [("columns", {"all_gather"}), ("whole", {"all_gather"}), ("rows", {"all_reduce"})])
def test_a_cut_by_hand_goes_before_what_strategies_choose(how, ops):
    """Of the weight behind one whose columns are cut: as is said, though nothing had to cross."""
    term = formula(lambda x: x + x @ matrix(8, 16, "A") @ relu @ matrix(16, 8, "B"))
    x = RNG.normal(size=(2, 3, 8))
    plan = planned(term, cuts={"B": how})
    ran = run(plan, Feed(x))
    assert differences(plan, ran.meters) == [] and {each.op for _, each in plan.crossings()} == ops
    np.testing.assert_allclose(ran.value[:, 0], np.stack([term(each) for each in x]), rtol=1e-11)
    assert plan.formulas(storage={"B": 1, "*": 0}).state == 8 * 16 // (1 if how == "whole" else 2)
