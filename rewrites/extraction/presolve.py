"""Presolve: smaller problems with the same optimum.

Read a solution as a *set of nodes from which every root can be derived*, children first: adding nodes never harms, so a
node may be replaced by anything that derives its class at no more cost from what is below it. Sets of classes are
integers, one bit a class. `below(n)` are the classes in every program that uses node n (landmarks: Keyder, Richter,
Helmert 2010).
"""
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from math import inf
from operator import add, le
from time import perf_counter

from . import greedy
from .indexed import Graph, bits, components, union


def prune(graph: Graph, budgets: Sequence[float] = ()) -> Graph | None:
    """Productive and reachable nodes alone, no self-loops, none that breaks a budget by itself; None if a root is lost.

    Classes are numbered anew, children mostly before parents.
    """
    nodes = [i for i, (c, kids) in enumerate(zip(graph.cls, graph.kids, strict=True))
             if c not in kids and all(x <= b for x, b in zip(graph.cost[i][1:], budgets, strict=False))]
    users: dict[int, list[int]] = {}
    members: dict[int, list[int]] = {}
    missing = {}
    for i in nodes:
        missing[i] = len(graph.kids[i])
        members.setdefault(graph.cls[i], []).append(i)
        for k in graph.kids[i]:
            users.setdefault(k, []).append(i)
    todo = [graph.cls[i] for i in nodes if not missing[i]]
    number: dict[int, int] = {}
    for c in todo:                              # grows while it is read
        if c not in number:
            number[c] = len(number)
            for i in users.get(c, ()):
                missing[i] -= 1
                if not missing[i]:
                    todo.append(graph.cls[i])
    if not graph.roots <= number.keys():
        return None
    reached, queue = set(graph.roots), list(graph.roots)
    for c in queue:
        for i in members[c]:
            if not missing[i]:
                for k in graph.kids[i]:
                    if k not in reached:
                        reached.add(k)
                        queue.append(k)
    number = {c: j for j, c in enumerate(c for c in number if c in reached)}
    keep = [i for i in nodes if not missing[i] and graph.cls[i] in reached]
    return Graph([number[graph.cls[i]] for i in keep], [frozenset([number[k] for k in graph.kids[i]]) for i in keep],
                 [graph.cost[i] for i in keep], [graph.origin[i] for i in keep],
                 frozenset([number[c] for c in graph.roots]), len(number))


def needs(graph: Graph) -> list[int]:
    """For each class the classes of every program of it: the greatest solution of need(c) = c + meet of below(n), n in
    c."""
    parents: list[set[int]] = [set() for _ in range(graph.classes)]
    for c, kids in zip(graph.cls, graph.kids, strict=True):
        for k in kids:
            parents[k].add(c)
    need = [(1 << graph.classes) - 1] * graph.classes
    dirty, c = bytearray([1]) * graph.classes, -1
    while (c := dirty.find(1, c + 1)) >= 0 or (c := dirty.find(1)) >= 0:       # upwards, again and again
        dirty[c] = 0
        meet = -1
        for i in graph.members[c]:
            meet &= union(need, graph.kids[i])
        meet |= 1 << c
        if meet != need[c]:
            need[c] = meet
            for p in parents[c]:
                dirty[p] = 1
    return need


def dominators(graph: Graph) -> list[int]:
    """For each class the classes that lie on every path to it from a root, itself included."""
    parents: list[set[int]] = [set() for _ in range(graph.classes)]
    for c, kids in zip(graph.cls, graph.kids, strict=True):
        for k in kids:
            parents[k].add(c)
    over = [(1 << graph.classes) - 1] * graph.classes
    dirty, c = bytearray([1]) * graph.classes, graph.classes
    while (c := dirty.rfind(1, 0, c)) >= 0 or (c := dirty.rfind(1)) >= 0:      # downwards, again and again
        dirty[c] = 0
        meet = 0 if c in graph.roots else -1
        for p in parents[c]:
            meet &= over[p]
        meet |= 1 << c
        if meet != over[c]:
            over[c] = meet
            for i in graph.members[c]:
                for k in graph.kids[i]:
                    dirty[k] = 1
    return over


def acyclic(graph: Graph, need: Sequence[int], over: Sequence[int]) -> Graph:
    """Without the nodes that need their own class or one that lies above it on every path: they only close cycles."""
    return graph.keep(i for i, (c, kids) in enumerate(zip(graph.cls, graph.kids, strict=True))
                      if not union(need, kids) & over[c])


def implied(graph: Graph, need: Sequence[int]) -> Graph:
    """Without children that another child needs anyway; a class that every program needs becomes a root, and no
    child."""
    roots = frozenset(bits(union(need, graph.roots)))
    part = components(graph)
    kids = []
    for c, before in zip(graph.cls, graph.kids, strict=True):
        after = [k for k in before if k not in roots or part[k] == part[c]]
        if len(after) > 1:
            after = [k for k in after if not any(need[o] >> k & 1 for o in after if o != k)]
        kids.append(frozenset(after))
    return replace(graph, kids=kids, roots=roots)


def drop_dominated(graph: Graph, need: Sequence[int]) -> Graph:
    """Without nodes that another of their class replaces: its children are below, or cheap enough to derive anew.

    What is derived anew are cheapest trees, so the roots of those trees stay (or a node could help to replace itself).
    """
    single = all(len(c) == 1 for c in graph.cost)
    choice, tree = greedy.trees(graph, graph.price) if single else ({}, [])
    keep: list[int] = []
    for c, nodes in enumerate(graph.members):
        often = Counter(k for i in nodes for k in graph.kids[i]) if len(nodes) > 1 else Counter()
        filed: dict[int, list[tuple[int, int]]] = defaultdict(list)     # nodes that stay, each under its rarest child
        best: list[int] = []
        drawers = 0
        for i in sorted(nodes, key=lambda i: (graph.cost[i], len(graph.kids[i]), choice.get(c) != i)):
            kids, cost = graph.kids[i], graph.cost[i]
            below = union(need, kids)
            candidates = chain(filed[-1], *(filed[k] for k in bits(below & drawers)))
            if any(not mask & ~below and all(map(le, graph.cost[o], cost)) for o, mask in candidates):
                continue
            if single and choice.get(c) != i and is_rederivable(graph, best[:20], i, ~below, tree):
                continue
            best.append(i)
            rare = min(kids, key=often.__getitem__, default=-1)
            filed[rare].append((i, sum(1 << k for k in kids)))
            drawers |= 1 << rare if kids else 0
        keep += best
    return graph.keep(keep)


def is_rederivable(graph: Graph, others: Iterable[int], node: int, rest: int, tree: Sequence[float]) -> bool:
    """Whether one of the others with the cheapest trees of its children among the classes `rest` costs no more than
    `node`."""
    cost = graph.cost[node][0]
    return tree[graph.cls[node]] < cost or any(
        graph.cost[o][0] + sum(tree[k] for k in graph.kids[o] if rest >> k & 1) <= cost for o in others)


def merged(graph: Graph) -> Graph:
    """Without classes that can be written into their parents: the choice is one parent's alone, or sharing costs
    nothing."""
    cls, kids, cost, origin = list(graph.cls), list(graph.kids), list(graph.cost), list(graph.origin)
    inside = [set(nodes) for nodes in graph.members]
    users = [set(nodes) for nodes in graph.users]
    for k in range(graph.classes):
        above, below = users[k], inside[k]
        if k in graph.roots or len(above) * len(below) > max(len(above) + len(below), len(above) * (len(below) == 1)):
            continue
        if len({cls[n] for n in above}) > 1 and any(any(cost[m]) for m in below):
            continue
        pairs = [(n, m) for n in above for m in below if cls[n] not in kids[m]]
        for i in (*above, *below):
            inside[cls[i]].discard(i)
            for j in kids[i] - {k}:
                users[j].discard(i)
        for n, m in pairs:
            inside[cls[n]].add(len(cls))
            cls.append(cls[n])
            kids.append(kids[n] - {k} | kids[m])
            cost.append(tuple(map(add, cost[n], cost[m])))
            origin.append(origin[n] + origin[m])
            for j in kids[-1]:
                users[j].add(len(cls) - 1)
        users[k] = set()
    whole = replace(graph, cls=cls, kids=kids, cost=cost, origin=origin)
    return whole.keep(i for nodes in inside for i in sorted(nodes))


def presolve(graph: Graph, budgets: Sequence[float] = (), until: float = inf) -> Graph | None:
    """All reductions, again as long as they take away one part in a hundred; None if no program covers the roots."""
    small, before = prune(graph, budgets), inf
    while small is not None and (size := len(small.cls) + sum(map(len, small.kids))) < 0.99 * before:
        before = size
        if perf_counter() > until:
            break
        need = needs(small)
        small = implied(acyclic(small, need, dominators(small)), need)
        if perf_counter() < until:
            small = merged(drop_dominated(small, need))
        small = prune(small, budgets)
    return small
