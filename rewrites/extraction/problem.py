"""An extraction problem as plain data: nodes in classes, their children classes, three costs; and its answer.

A *program* picks one node for each class that is needed, from the roots down, without a cycle. Shared work counts once:
the cost of a program is the sum over its distinct nodes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from typing import NamedTuple


class Infeasible(ValueError):
    """No program covers the roots within the budgets; the message names the one of the two that fails."""


class Node(NamedTuple):
    """One member of a class. Costs are not negative, and infinite for a node that may not be chosen; `error` is a
    *squared* error, so that it adds."""

    cls: Hashable
    children: tuple[Hashable, ...]
    time: float = 0.0
    memory: float = 0.0
    error: float = 0.0
    label: object = None


class Problem(NamedTuple):
    """The nodes of all classes, and the classes that must be covered."""

    nodes: Sequence[Node]
    roots: Sequence[Hashable]


@dataclass(frozen=True)
class Extraction:
    """The chosen program with its proof: no program within the budgets costs less than `bound`."""

    nodes: tuple[Node, ...]  # topological: children first
    choice: Mapping[Hashable, Node]  # class -> its chosen node
    time: float
    memory: float
    error: float  # squared
    cost: float  # weights . (time, memory, error)
    bound: float  # proved: no program costs less
    gap: float  # (cost - bound) / cost
    greedy: float  # cost of the greedy DAG incumbent; inf where greedy meets no budget
    seconds: float
    optimal: bool  # gap <= the requested gap

    def __str__(self) -> str:
        proof = "optimal" if self.optimal else f"gap {self.gap:.2%}"
        return (
            f"{len(self.nodes)} nodes, cost {self.cost:.6g} ({proof}, greedy {self.greedy:.6g}), "
            f"time {self.time:.6g}, memory {self.memory:.6g}, squared error {self.error:.6g}, "
            f"in {1e3 * self.seconds:.0f} ms"
        )


def check_problem(problem: Problem) -> None:
    """Raise ValueError for a cost that is negative or not a number, since an optimum would be meaningless, and for a
    problem without roots. An infinite cost excludes a node."""
    if not problem.roots:
        raise ValueError("the problem has no root class: name the classes that a program must cover")
    for node in problem.nodes:
        for name in ("time", "memory", "error"):
            value = getattr(node, name)
            if not value >= 0:
                raise ValueError(
                    f"{name} of node {node.label!r} in class {node.cls!r} is {value}: "
                    f"costs must be numbers, and not negative"
                )


def order(choice: Mapping[Hashable, Node], roots: Sequence[Hashable]) -> tuple[Node, ...]:
    """Return the nodes of `choice` that the roots need, children first. Raises ValueError on a cycle or an uncovered
    class."""
    done: dict[Hashable, bool] = {}
    out: list[Node] = []
    todo = [(root, False) for root in reversed(roots)]
    while todo:
        cls, leave = todo.pop()
        if leave:
            done[cls] = True
            out.append(choice[cls])
        elif cls not in done:
            if cls not in choice:
                raise ValueError(f"class {cls!r} is needed and no node of it is chosen")
            done[cls] = False
            todo.append((cls, True))
            todo += [(child, False) for child in choice[cls].children]
        elif not done[cls]:
            raise ValueError(f"the chosen nodes form a cycle through class {cls!r}")
    return tuple(out)


def verify(problem: Problem, extraction: Extraction, memory: float | None = None, error: float | None = None) -> None:
    """Check an extraction against the definition alone: members, covered, children first, one node a class, sums,
    budgets.

    Raises AssertionError naming the first thing that is wrong.
    """
    members = {node[:5] for node in problem.nodes}
    above: dict[Hashable, Node] = {}
    for node in extraction.nodes:
        assert node[:5] in members, f"{node} is not a node of the problem"
        assert node.cls not in above, f"class {node.cls!r} has two chosen nodes"
        for child in node.children:
            assert child in above, f"{node} comes before its child {child!r}"
        above[node.cls] = node
    for root in problem.roots:
        assert root in above, f"root {root!r} is not covered"
    needed = {root for root in problem.roots} | {child for node in extraction.nodes for child in node.children}
    assert above.keys() == needed, f"nothing needs {above.keys() - needed}"
    assert above == dict(extraction.choice), "choice and nodes disagree"
    for name in ("time", "memory", "error"):
        total = sum(getattr(node, name) for node in extraction.nodes)
        stated = getattr(extraction, name)
        assert isclose(total, stated, rel_tol=1e-9), f"{name} is {total}, not {stated}"
    assert memory is None or extraction.memory <= memory * (1 + 1e-9), f"memory {extraction.memory} over {memory}"
    assert error is None or extraction.error <= error * (1 + 1e-9), f"squared error {extraction.error} over {error}"
    assert extraction.bound <= extraction.cost <= extraction.greedy, "bound <= cost <= greedy fails"
