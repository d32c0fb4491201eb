"""The indexed form of a problem that every stage works on: integers for classes and nodes, a tuple of criteria for
costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from rewrites.extraction.problem import Problem

Criteria = tuple[float, ...]
ClassChoice = dict[int, int]  # class -> node


@dataclass(frozen=True)
class IndexedGraph:
    """Nodes by index; class `cls[i]` needs one of its nodes, node i needs the classes `kids[i]`.

    The first criterion of `cost[i]` is the objective, the others are the budgeted resources. `origin[i]` are the nodes
    of the original graph that are chosen when node i is: presolve merges classes into their parents."""

    cls: list[int]
    kids: list[frozenset[int]]
    cost: list[Criteria]
    origin: list[tuple[int, ...]]
    roots: frozenset[int]
    classes: int

    @cached_property
    def members(self) -> list[list[int]]:
        """The nodes of each class."""
        out: list[list[int]] = [[] for _ in range(self.classes)]
        for i, c in enumerate(self.cls):
            out[c].append(i)
        return out

    @cached_property
    def users(self) -> list[list[int]]:
        """The nodes that need each class."""
        out: list[list[int]] = [[] for _ in range(self.classes)]
        for i, kids in enumerate(self.kids):
            for k in kids:
                out[k].append(i)
        return out

    @cached_property
    def parents(self) -> list[set[int]]:
        """The classes of the nodes that need each class."""
        out: list[set[int]] = [set() for _ in range(self.classes)]
        for c, kids in zip(self.cls, self.kids, strict=True):
            for k in kids:
                out[k].add(c)
        return out

    @cached_property
    def price(self) -> list[float]:
        """The objective of each node."""
        return [cost[0] for cost in self.cost]

    def keep(self, nodes: Iterable[int]) -> IndexedGraph:
        """Return a graph of these nodes alone."""
        nodes = list(nodes)
        return replace(
            self,
            cls=[self.cls[i] for i in nodes],
            kids=[self.kids[i] for i in nodes],
            cost=[self.cost[i] for i in nodes],
            origin=[self.origin[i] for i in nodes],
        )

    def total(self, nodes: Iterable[int]) -> Criteria:
        """Return the criteria of a set of nodes."""
        return tuple(map(sum, zip(*(self.cost[i] for i in nodes), strict=True))) or (0.0,) * len(self.cost[0])

    def walk(self, choice: Mapping[int, int]) -> list[int]:
        """Return the chosen nodes that the roots need; a node without a user is dropped."""
        return [choice[c] for c in self.below(self.roots, choice)]

    def reachable(self) -> set[int]:
        """Return the classes that some choice needs for the roots."""
        reached, queue = set(self.roots), list(self.roots)
        for c in queue:  # grows while it is read
            more = {k for i in self.members[c] for k in self.kids[i]} - reached
            reached |= more
            queue += more
        return reached

    def below(self, classes: Iterable[int], choice: Mapping[int, int]) -> list[int]:
        """Return these classes, and all classes that their chosen nodes need."""
        queue = list(dict.fromkeys(classes))
        seen = set(queue)
        for c in queue:  # grows while it is read
            for k in self.kids[choice[c]]:
                if k not in seen:
                    seen.add(k)
                    queue.append(k)
        return queue

    def derive(self, nodes: Iterable[int]) -> ClassChoice:
        """Return, for each class that a set of nodes derives from leaves, the first node to derive it: no cycles."""
        users: dict[int, list[int]] = defaultdict(list)
        missing: dict[int, int] = {}
        queue = []
        for i in nodes:
            missing[i] = len(self.kids[i])
            for k in self.kids[i]:
                users[k].append(i)
            if not missing[i]:
                queue.append(i)
        choice: ClassChoice = {}
        for i in queue:  # grows while it is read
            if self.cls[i] not in choice:
                choice[self.cls[i]] = i
                for j in users[self.cls[i]]:
                    missing[j] -= 1
                    if not missing[j]:
                        queue.append(j)
        return choice


def bits(mask: int) -> Iterator[int]:
    """Yield the elements of a set of classes."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def union(sets: Sequence[int], kids: frozenset[int]) -> int:
    """Return the classes in any of the children's sets."""
    out = 0
    for k in kids:
        out |= sets[k]
    return out


def index(
    problem: Problem, criteria: Sequence[Criteria], forbidden: Iterable[object]
) -> tuple[IndexedGraph, list[Hashable]]:
    """Return the graph of a problem and the name of each of its classes; a class without members cannot be covered.
    Forbidden nodes, and those of infinite cost, are left out."""
    names: dict[Hashable, int] = {}
    banned = [node for node in forbidden]

    def number(name: Hashable) -> int:
        """Return the number of a class, a new one when it is first met."""
        return names.setdefault(name, len(names))

    use = [i for i, node in enumerate(problem.nodes) if max(node[2:5]) < inf and (not banned or node not in banned)]
    cls = [number(problem.nodes[i].cls) for i in use]
    kids = [frozenset(map(number, problem.nodes[i].children)) for i in use]
    roots = frozenset(map(number, problem.roots))
    return IndexedGraph(cls, kids, [criteria[i] for i in use], [(i,) for i in use], roots, len(names)), list(names)


def components(graph: IndexedGraph) -> list[int]:
    """Return the strongly connected component of each class, numbered children first (Tarjan 1972, without
    recursion)."""
    below: list[set[int]] = [set() for _ in range(graph.classes)]
    for c, kids in zip(graph.cls, graph.kids, strict=True):
        below[c] |= kids
    low, seen, out = [0] * graph.classes, [0] * graph.classes, [-1] * graph.classes
    stack: list[int] = []
    count = clock = 0
    for start in range(graph.classes):
        if seen[start]:
            continue
        path: list[tuple[int, Iterator[int]]] = []
        enter = start
        while enter >= 0 or path:
            if enter >= 0:
                clock += 1
                low[enter] = seen[enter] = clock
                stack.append(enter)
                path.append((enter, iter(below[enter])))
            c, rest = path[-1]
            enter = -1
            for k in rest:
                if not seen[k]:
                    enter = k
                    break
                if out[k] < 0:
                    low[c] = min(low[c], seen[k])
            if enter >= 0:
                continue
            path.pop()
            if path:
                low[path[-1][0]] = min(low[path[-1][0]], low[c])
            if low[c] == seen[c]:
                while out[c] < 0:
                    out[stack.pop()] = count
                count += 1
    return out


def find_components(graph: IndexedGraph) -> list[IndexedGraph]:
    """Return the parts of a graph that share no class: independent problems, since every class without a user is a
    root."""
    leader = list(range(graph.classes))

    def find(c: int) -> int:
        """Return the leader of a class's component, and shorten the path to it."""
        while leader[c] != c:
            leader[c] = leader[leader[c]]
            c = leader[c]
        return c

    for c, kids in zip(graph.cls, graph.kids, strict=True):
        for k in kids:
            leader[find(k)] = find(c)
    parts: dict[int, list[int]] = defaultdict(list)
    for i, c in enumerate(graph.cls):
        parts[find(c)].append(i)
    out = []
    for nodes in parts.values():
        number = {c: j for j, c in enumerate(dict.fromkeys(graph.cls[i] for i in nodes))}
        out.append(
            IndexedGraph(
                [number[graph.cls[i]] for i in nodes],
                [frozenset([number[k] for k in graph.kids[i]]) for i in nodes],
                [graph.cost[i] for i in nodes],
                [graph.origin[i] for i in nodes],
                frozenset([number[c] for c in number if c in graph.roots]),
                len(number),
            )
        )
    return out
