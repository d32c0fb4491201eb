"""The indexed form of a problem that every stage works on: integers for classes and nodes, a tuple of criteria for costs."""
from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from .problem import Node, Problem

Criteria = tuple[float, ...]


@dataclass
class Graph:
    """Nodes by index. The first criterion is the objective, the others are the budgeted resources.

    `origin[i]` are the nodes of the problem that are chosen when node i is: presolve merges classes into their parents.
    """
    cls: list[int]
    kids: list[frozenset[int]]
    cost: list[Criteria]
    origin: list[tuple[int, ...]]
    roots: frozenset[int]
    classes: int

    def members(self) -> list[list[int]]:
        """The nodes of each class; empty lists for classes that presolve removed."""
        out: list[list[int]] = [[] for _ in range(self.classes)]
        for i, c in enumerate(self.cls):
            out[c].append(i)
        return out

    def keep(self, nodes: Iterable[int]) -> Graph:
        """The same graph with these nodes alone."""
        nodes = list(nodes)
        pick = lambda column: [column[i] for i in nodes]
        return Graph(pick(self.cls), pick(self.kids), pick(self.cost), pick(self.origin), self.roots, self.classes)

    def total(self, nodes: Iterable[int]) -> Criteria:
        """The criteria of a set of nodes."""
        return tuple(map(sum, zip(*(self.cost[i] for i in nodes), strict=True)))


def index(problem: Problem, criteria: Sequence[Criteria], forbidden: frozenset[object]) -> tuple[Graph, list[Hashable]]:
    """The graph of a problem and the name of each of its classes; a class without members is one nobody can cover."""
    names: dict[Hashable, int] = {}
    number = lambda name: names.setdefault(name, len(names))
    use = [i for i, node in enumerate(problem.nodes) if not forbidden or node not in forbidden]
    cls = [number(problem.nodes[i].cls) for i in use]
    kids = [frozenset(map(number, problem.nodes[i].children)) for i in use]
    roots = frozenset(map(number, problem.roots))
    graph = Graph(cls, kids, [criteria[i] for i in use], [(i,) for i in use], roots, len(names))
    return graph, list(names)


def components(graph: Graph) -> list[int]:
    """The strongly connected component of each class, numbered children first (Tarjan 1972, without recursion)."""
    below: list[set[int]] = [set() for _ in range(graph.classes)]
    for c, kids in zip(graph.cls, graph.kids, strict=True):
        below[c] |= kids
    low, seen, out = [0] * graph.classes, [0] * graph.classes, [-1] * graph.classes
    stack: list[int] = []
    count = clock = 0
    for start in range(graph.classes):
        if seen[start]:
            continue
        path: list[tuple[int, Iterator[int]]] = [(start, iter(below[start]))]
        clock += 1
        low[start] = seen[start] = clock
        stack.append(start)
        while path:
            c, rest = path[-1]
            for k in rest:
                if not seen[k]:
                    clock += 1
                    low[k] = seen[k] = clock
                    stack.append(k)
                    path.append((k, iter(below[k])))
                    break
                if out[k] < 0:
                    low[c] = min(low[c], seen[k])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[c])
                if low[c] == seen[c]:
                    while out[c] < 0:
                        out[stack.pop()] = count
                    count += 1
    return out


def derive(problem: Problem, nodes: Iterable[Node]) -> dict[Hashable, Node]:
    """For each class that a set of nodes derives from nothing, the first node to derive it: a choice without cycles."""
    users: dict[Hashable, list[Node]] = {}
    missing: dict[int, int] = {}
    todo = []
    for node in nodes:
        below = set(node.children)
        missing[id(node)] = len(below)
        for k in below:
            users.setdefault(k, []).append(node)
        if not below:
            todo.append(node)
    choice: dict[Hashable, Node] = {}
    for node in todo:                           # grows while it is read
        if node.cls not in choice:
            choice[node.cls] = node
            for user in users.get(node.cls, ()):
                missing[id(user)] -= 1
                if not missing[id(user)]:
                    todo.append(user)
    return choice
