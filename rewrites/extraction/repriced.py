"""A problem that is solved at many prices: the presolve that does not depend on prices is done once, and known programs
bound the search from its start."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from math import inf
from operator import mul
from time import perf_counter
from typing import NamedTuple

from rewrites.extraction.indexed import Criteria, index
from rewrites.extraction.presolve import presolve, prune
from rewrites.extraction.problem import Infeasible, Node, Problem, check_problem, order
from rewrites.extraction.solve import choose_nodes, find_leaves, solve


class PricedProgram(NamedTuple):
    """The cheapest program at some prices, children first; empty if none is cheaper than the known one. Every program
    costs at least `bound`."""

    nodes: tuple[Node, ...]
    bound: float


class Repriced:
    """The programs of a problem whose nodes have costs in several criteria, at any prices of these that are not
    negative. A node is dropped where another of its class costs no more in any criterion.

    Raises ValueError for a cost of the problem that is negative or not a number."""

    def __init__(
        self,
        problem: Problem,
        criteria: Sequence[Criteria],
        families: Callable[[Hashable], Iterable[str]] | None = None,
    ) -> None:
        check_problem(problem)
        self.problem, self.leaves = problem, find_leaves(problem, families)
        self.whole, self.names = index(problem, criteria, ())
        self.graph = presolve(self.whole)
        self.worst = [max(problem.nodes[o].error for o in origin) for origin in self.graph.origin] if self.graph else []

    def cheapest(
        self,
        prices: Sequence[float],
        most: float = inf,
        known: float = inf,
        time_limit: float = 10.0,
        gap: float = 1e-6,
    ) -> PricedProgram:
        """Return the cheapest program where no node adds a squared error over `most`; programs that cost `known` or
        more are not searched for.

        Raises Infeasible if there is no program at all."""
        until = perf_counter() + time_limit
        graph = self.graph and prune(self.graph.keep(i for i, worst in enumerate(self.worst) if worst <= most))
        if graph is None:
            raise Infeasible(f"no program whose nodes add a squared error of at most {most:g} each covers the roots")
        costs: list[Criteria] = [(float(sum(map(mul, prices, taken))),) for taken in graph.cost]
        best = solve(replace(graph, cost=costs), [], until, gap, self.leaves, known)
        if best.cost >= known:
            return PricedProgram((), best.bound)
        chosen = choose_nodes(self.problem, self.whole, self.names, best.nodes)
        return PricedProgram(order(chosen, self.problem.roots), best.bound)
