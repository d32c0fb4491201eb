"""Separation: landmarks that a solution of the relaxation, or a choice with cycles, violates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from rewrites.extraction.indexed import IndexedGraph
from rewrites.extraction.landmarks import bound_by_landmarks

if TYPE_CHECKING:
    from scipy.sparse import csr_array

CuttingPlane = tuple[tuple[int, ...], int | None]  # one of these for every program of this class (None: of roots)
SLACK = 1e-3  # least violation of a cut that is worth a row


def thresholds(graph: IndexedGraph, x: Sequence[float], most: int = 40) -> Iterable[CuttingPlane]:
    """Yield landmarks among the nodes that x uses little: landmark cuts, where a node's price is its distance to a
    threshold."""
    for least in (1e-4, 0.05, 0.2, 0.5, 1.01):
        price = [max(0.0, 1 - q / least) for q in x]
        for landmark in bound_by_landmarks(graph, price, 1, most).landmarks:
            if sum(x[i] for i in landmark) < 1 - SLACK:
                yield tuple(sorted(landmark)), None


def widest(graph: IndexedGraph, x: Sequence[float]) -> tuple[list[float], list[int]]:
    """Return for each class the largest share of it that x derives if sums counted as maxima, and its rank in that
    order, widest first."""
    width, rank = [0.0] * graph.classes, [graph.classes] * graph.classes
    missing = [len(kids) for kids in graph.kids]
    heap = sorted((-x[i], i) for i in range(len(x)) if not missing[i])
    count = 0
    while heap:
        value, i = heappop(heap)
        c = graph.cls[i]
        if rank[c] < graph.classes:
            continue
        width[c], rank[c] = -value, count
        count += 1
        for j in graph.users[c]:
            missing[j] -= 1
            if not missing[j]:
                heappush(heap, (max(value, -x[j]), j))
    return width, rank


def flows(
    graph: IndexedGraph, x: Sequence[float], random: Random, rounds: int = 12, targets: int = 3
) -> Iterable[CuttingPlane]:
    """Yield minimum cuts in the graph where each node keeps the child that x derives least: each cut is a landmark of
    its class.

    Nested (Koch, Martin 1998): the nodes of a cut count as used in the next round, so the cuts of a call are
    disjoint."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    source, unit = graph.classes, 10**6
    used = [sum(x[i] for i in nodes) for nodes in graph.members]
    now = np.clip(np.asarray(x, dtype=float), 0.0, 1.0)
    heads = np.array(graph.cls)
    for _ in range(rounds):
        width, rank = widest(graph, now.tolist())
        short = [c for c in range(graph.classes) if used[c] > SLACK and width[c] < used[c] - SLACK]
        if not short:
            return
        least = [max(kids, key=rank.__getitem__, default=source) for kids in graph.kids]
        pipes = csr_array(((now * unit + 0.5).astype(np.int32), (least, heads)), shape=(source + 1, source + 1))
        pipes.sum_duplicates()
        roots = [c for c in short if c in graph.roots]
        violated = False
        for c in random.sample(roots, min(targets, len(roots))) + random.sample(short, min(targets, len(short))):
            flow = maximum_flow(pipes, source, c)
            if flow.flow_value < (used[c] - SLACK) * unit:
                landmark = find_landmark(graph, reached(pipes - flow.flow, source), least, c)
                if sum(x[i] for i in landmark) < used[c] - SLACK:
                    yield tuple(sorted(landmark)), c
                now[landmark] = 1.0
                violated = True
        if not violated:
            return


def reached(pipes: csr_array, source: int) -> np.ndarray:
    """Return for each vertex whether it can be reached from the source through the remaining capacity."""
    from scipy.sparse.csgraph import breadth_first_order

    pipes.data = np.maximum(pipes.data, 0)
    pipes.eliminate_zeros()
    out = np.zeros(pipes.shape[0], dtype=bool)
    out[breadth_first_order(pipes, source, return_predecessors=False)] = True
    return out


def find_landmark(graph: IndexedGraph, before: np.ndarray, least: Sequence[int], c: int) -> list[int]:
    """Return the landmark of class c at a cut: the nodes into the classes beyond it that have no child beyond it."""
    zone, queue = {c}, [c]
    for d in queue:
        for i in graph.members[d]:
            if not before[least[i]] and least[i] not in zone:
                zone.add(least[i])
                queue.append(least[i])
    return [i for d in queue for i in graph.members[d] if zone.isdisjoint(graph.kids[i])]


def cycles(graph: IndexedGraph, nodes: Sequence[int]) -> list[CuttingPlane]:
    """Return landmarks that the chosen nodes leave out; empty if they derive all roots."""
    have = graph.derive(nodes)
    chosen: dict[int, list[int]] = {}
    for i in nodes:
        if graph.cls[i] not in have:
            chosen.setdefault(graph.cls[i], []).append(i)
    out = set()
    for c in chosen:
        zone, queue = {c}, [c]
        for d in queue:
            for i in chosen.get(d, ()):
                fresh = [k for k in graph.kids[i] if k not in have and k not in zone]
                zone.update(fresh)
                queue += fresh
        out.add((tuple(sorted(i for d in zone for i in graph.members[d] if zone.isdisjoint(graph.kids[i]))), c))
    return list(out)
