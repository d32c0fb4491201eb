"""The search within budgets of error and memory: against every program of a small model, solved as one problem."""

from dataclasses import replace
from itertools import pairwise, product
from zlib import crc32

import pytest
from searched import RAGGED, Round, model, relative

from opmatrix.algebra.oracles import dense
from rewrites.approximate import budgets
from rewrites.approximate.budgets import Budgets, within
from rewrites.egraph.borders import FULL
from rewrites.extraction import Infeasible, Node, Problem, extract, verify
from rewrites.laws import EXACT_LAWS
from rewrites.laws.law import find
from rewrites.lowering.lower import EXACT, Method
from rewrites.search.search import SearchSpace, cheapest

OFFERED = (Method("half"), Method("csr", (("density", 0.45),)), Method("lowrank", (("rank", 4),)))
OPERATOR = model(num_hidden_layers=1)
LAWS = [find(EXACT_LAWS, name) for name in ("associate", "gain", "spread", "late_scale", "merge_shifts")]


class Formats(Round):
    """Sparse products are the quickest, narrow ones the smallest."""

    def seconds(self, kernel, **size):
        share = {"linear.csr": 0.3, "linear.lowrank": 0.6, "linear.half": 0.9}.get(kernel, 1.0)
        return share * super().seconds(kernel, **size)


def space():
    return SearchSpace(OPERATOR, LAWS, Formats(), RAGGED.extents())


def offered(lowering, use):
    """Errors that belong to leaf and method, whatever the variant that is stored."""
    if use.layout == "stack" or use.x in lowering.graph.facts["given"]:
        return EXACT
    leaves = [t.args[0].key for t in lowering.terms[use.weight].walk() if t.kind.name == "weight"]
    return *EXACT, *(
        method._replace(error=sum((1 + crc32(f"{leaf}{method.format}".encode()) % 97) / 1e4 for leaf in leaves))
        for method in OFFERED
    )


def whole(found, error, memory):
    """The optimum over every path of border states, all parts in one problem."""
    costs, last = [], max(stage.number for stage in found)
    for path in product(*({stage.pair for stage in found if stage.number == n} for n in range(last + 1))):
        if path[0][0] == path[-1][1] == FULL and all(a[1] == b[0] for a, b in pairwise(path)):
            chosen = [next(s for s in found if (s.number, s.pair) == at) for at in enumerate(path)]
            nodes = [
                Node((s.number, n.cls), tuple((s.number, c) for c in n.children), *n[2:])
                for s in chosen
                for n in s.problem.nodes
            ]
            roots = tuple((s.number, root) for s in chosen for root in s.problem.roots)
            try:
                costs.append(extract(Problem(nodes, roots), error=error, memory=memory, time_limit=20.0, gap=1e-9).cost)
            except Infeasible:
                pass
    return min(costs)


@pytest.fixture(scope="module")
def ends():
    """The fastest without any error, the smallest, the fastest."""
    return within(space(), offered, error=0.0), within(space(), offered, weights=(1e-9, 1, 0)), within(space(), offered)


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("error, room", [(0.02, 1.0), (0.06, 0.5), (None, 0.25), (0.05, None)])
def test_nothing_within_the_budgets_is_cheaper(error, room, ends):
    memory = None if room is None else ends[1].memory + room * (ends[0].memory - ends[1].memory)
    one = space()
    found, best = within(one, offered, error=error, memory=memory), whole(Budgets(one, offered).stages, error, memory)
    assert found.bound <= best * (1 + 1e-6) and best <= found.cost * (1 + 1e-6)
    assert found.cost <= best * 1.01 and found.gap < 0.1
    assert error is None or sum(e.error for e in found.extractions) <= error * (1 + 1e-9)
    assert memory is None or found.memory <= memory * (1 + 1e-9)
    for stage in Budgets(one, offered).stages:
        if found.path[stage.number] == stage.pair:
            verify(stage.problem, replace(found.extractions[stage.number], greedy=found.extractions[stage.number].cost))


def test_without_room_for_errors_it_is_the_exact_search(ends):
    exact = cheapest(space())
    assert ends[0].cost == pytest.approx(exact.time, rel=1e-6) and ends[0].bound <= exact.time * (1 + 1e-9)
    program, _ = ends[0].program({})
    assert relative(program.run(RAGGED), dense(OPERATOR, RAGGED)) < 1e-6


def test_the_ends_of_the_front(ends):
    assert ends[2].time < ends[0].time and ends[1].memory < ends[2].memory


def test_a_budget_that_nothing_meets(ends):
    with pytest.raises(Infeasible, match="no program within"):
        within(space(), offered, memory=0.5 * ends[1].memory)


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_prices_may_end_before_they_settle(rounds, ends, monkeypatch):
    """However often columns are priced out, a solution is of all columns there are; what is found keeps the budgets,
    and nothing costs less than the bound."""
    filled, error, memory = budgets.Budgeted.filled, 0.06, (ends[0].memory + ends[1].memory) / 2

    def whole(search):
        dual = filled(search)
        assert len(dual.shares) == len(search.master.columns)
        return dual

    settled = within(space(), offered, error=error, memory=memory)
    monkeypatch.setattr(budgets, "PRICING_ROUNDS", rounds)
    monkeypatch.setattr(budgets.Budgeted, "filled", whole)
    found = within(space(), offered, error=error, memory=memory, time_limit=1.0)
    assert sum(e.error for e in found.extractions) <= error * (1 + 1e-9) and found.memory <= memory * (1 + 1e-9)
    assert found.bound <= settled.cost * (1 + 1e-6) and settled.bound <= found.cost * (1 + 1e-6)
