"""Presolve: smaller problems with the same optimum.

Read a solution as a *set of nodes from which every root can be derived*, children first: adding nodes never harms, so a
node may be replaced by any node that derives its class at no more cost from the classes below it. Sets of classes are
integers, one bit a class. `below(n)` are the classes in every program that uses node n (landmarks: Keyder, Richter,
Helmert 2010)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from math import inf
from operator import add as plus
from operator import le
from time import perf_counter

from rewrites.extraction import greedy
from rewrites.extraction.indexed import IndexedGraph, bits, components, union


def prune(graph: IndexedGraph, budgets: Sequence[float] = ()) -> IndexedGraph | None:
    """Keep productive and reachable nodes alone, no self-loops, none that breaks a budget by itself; None if a root is
    lost.

    Classes are numbered anew, children mostly before parents."""
    able = graph.keep(
        i
        for i, (c, kids, cost) in enumerate(zip(graph.cls, graph.kids, graph.cost, strict=True))
        if c not in kids and all(map(le, cost[1:], budgets))
    )
    derived = able.derive(range(len(able.cls)))
    if not graph.roots <= derived.keys():
        return None
    able = able.keep(i for i, kids in enumerate(able.kids) if kids <= derived.keys())
    reached = able.reachable()
    able = able.keep(i for i, c in enumerate(able.cls) if c in reached)
    number = {c: j for j, c in enumerate(c for c in derived if c in reached)}
    return replace(
        able,
        cls=[number[c] for c in able.cls],
        kids=[frozenset([number[k] for k in kids]) for kids in able.kids],
        roots=frozenset([number[c] for c in able.roots]),
        classes=len(number),
    )


def needs(graph: IndexedGraph) -> list[int]:
    """Return for each class the classes of every program of it: the greatest solution of need(c) = c + meet of
    below(n), n in c."""
    need = [(1 << graph.classes) - 1] * graph.classes
    dirty, c = bytearray([1]) * graph.classes, -1
    while (c := dirty.find(1, c + 1)) >= 0 or (c := dirty.find(1)) >= 0:  # upwards, again and again
        dirty[c] = 0
        meet = -1
        for i in graph.members[c]:
            meet &= union(need, graph.kids[i])
        meet |= 1 << c
        if meet != need[c]:
            need[c] = meet
            for p in graph.parents[c]:
                dirty[p] = 1
    return need


def dominators(graph: IndexedGraph) -> list[int]:
    """Return for each class the classes on every path to it from a root, itself included."""
    over = [(1 << graph.classes) - 1] * graph.classes
    dirty, c = bytearray([1]) * graph.classes, graph.classes
    while (c := dirty.rfind(1, 0, c)) >= 0 or (c := dirty.rfind(1)) >= 0:  # downwards, again and again
        dirty[c] = 0
        meet = 0 if c in graph.roots else -1
        for p in graph.parents[c]:
            meet &= over[p]
        meet |= 1 << c
        if meet != over[c]:
            over[c] = meet
            for i in graph.members[c]:
                for k in graph.kids[i]:
                    dirty[k] = 1
    return over


def acyclic(graph: IndexedGraph, need: Sequence[int], over: Sequence[int]) -> IndexedGraph:
    """Drop the nodes that need their own class or one above it on every path: they only close cycles."""
    return graph.keep(
        i for i, (c, kids) in enumerate(zip(graph.cls, graph.kids, strict=True)) if not union(need, kids) & over[c]
    )


def implied(graph: IndexedGraph, need: Sequence[int]) -> IndexedGraph:
    """Drop children that another child needs anyway; a class that every program needs becomes a root, and no child."""
    roots = frozenset(bits(union(need, graph.roots)))
    part = components(graph)
    kids = []
    for c, before in zip(graph.cls, graph.kids, strict=True):
        after = [k for k in before if k not in roots or part[k] == part[c]]
        if len(after) > 1:
            after = [k for k in after if not any(need[o] >> k & 1 for o in after if o != k)]
        kids.append(frozenset(after))
    return replace(graph, kids=kids, roots=roots)


def drop_dominated(graph: IndexedGraph, need: Sequence[int]) -> IndexedGraph:
    """Drop nodes that another of their class replaces: its children are below, or cheap enough to derive anew.

    New derivations are cheapest trees, so the roots of those trees stay (or a node could help to replace itself)."""
    single = all(len(c) == 1 for c in graph.cost)
    choice, tree = greedy.trees(graph, graph.price) if single else ({}, [])
    keep: list[int] = []
    for c, nodes in enumerate(graph.members):
        often = Counter(k for i in nodes for k in graph.kids[i]) if len(nodes) > 1 else Counter()
        filed: dict[int, list[tuple[int, int]]] = defaultdict(list)  # remaining nodes, each under its rarest child
        best: list[int] = []
        drawers = 0
        for i in sorted(nodes, key=lambda i: (graph.cost[i], len(graph.kids[i]), choice.get(c) != i)):
            kids, cost = graph.kids[i], graph.cost[i]
            below = union(need, kids)
            candidates, outside = chain(filed[-1], *(filed[k] for k in bits(below & drawers))), ~below
            if any(
                not mask & outside and (single or all(map(le, graph.cost[o], cost)))  # sorted by their costs
                for o, mask in candidates
            ):
                continue
            if single and choice.get(c) != i and is_rederivable(graph, best[:20], i, outside, tree):
                continue
            best.append(i)
            rare = min(kids, key=often.__getitem__, default=-1)
            filed[rare].append((i, sum(1 << k for k in kids)))
            drawers |= 1 << rare if kids else 0
        keep += best
    return graph.keep(keep)


def is_rederivable(graph: IndexedGraph, others: Iterable[int], node: int, rest: int, tree: Sequence[float]) -> bool:
    """True if one of the others, with the cheapest trees of its children among the classes `rest`, costs no more than
    `node`."""
    cost = graph.cost[node][0]
    if tree[graph.cls[node]] < cost:
        return True
    for other in others:
        price, total = graph.cost[other][0], 0.0
        for k in graph.kids[other]:
            if rest >> k & 1:
                total += tree[k]
                if price + total > cost:
                    break  # further children only add
        if price + total <= cost:
            return True
    return False


def merged(graph: IndexedGraph) -> IndexedGraph:
    """Drop classes that can be written into their parents: the choice is one parent's alone, or sharing costs 0."""
    cls, kids, cost, origin = list(graph.cls), list(graph.kids), list(graph.cost), list(graph.origin)
    inside = [set(nodes) for nodes in graph.members]
    users = [set(nodes) for nodes in graph.users]

    def inlined(k: int) -> bool:
        """True if a class may go: that adds no nodes, and its chosen node is paid for once."""
        above, below = len(users[k]), len(inside[k])
        if k in graph.roots or above * below > max(above + below, above * (below == 1)):
            return False
        return len({cls[n] for n in users[k]}) <= 1 or not any(any(cost[m]) for m in inside[k])

    def remove(node: int) -> None:
        """Remove a node from its class and from the users of its children."""
        inside[cls[node]].discard(node)
        for k in kids[node]:
            users[k].discard(node)

    def add(parent: int, child: int, k: int) -> None:
        """Add a node that merges parent and child."""
        inside[cls[parent]].add(node := len(cls))
        cls.append(cls[parent])
        kids.append(kids[parent] - {k} | kids[child])
        cost.append(tuple(map(plus, cost[parent], cost[child])))
        origin.append(origin[parent] + origin[child])
        for j in kids[node]:
            users[j].add(node)

    for k in filter(inlined, range(graph.classes)):
        pairs = [(n, m) for n in users[k] for m in inside[k] if cls[n] not in kids[m]]
        for node in (*users[k], *inside[k]):
            remove(node)
        for n, m in pairs:
            add(n, m, k)
    whole = replace(graph, cls=cls, kids=kids, cost=cost, origin=origin)
    return whole.keep(i for nodes in inside for i in sorted(nodes))


def presolve(graph: IndexedGraph, budgets: Sequence[float] = (), until: float = inf) -> IndexedGraph | None:
    """Apply all reductions, again while they remove one part in a hundred; None if no program covers the roots."""
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
