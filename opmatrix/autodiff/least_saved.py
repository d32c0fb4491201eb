"""The fewest bytes saved for backward: a minimum cut between values that are expensive to compute and values that
backward reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import sympy

from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.autodiff.forward_lines import VIEWS, Forward, is_product

if TYPE_CHECKING:
    from scipy.sparse import csr_array

PROBED = 8192  # the value of a named size that has no number
SMALL = dict(b=1, s=2048, a=32)


def least_kept(
    forward: Forward, reads: Mapping[int, Sequence[int]], selects: bool, sizes: Mapping[str, int]
) -> frozenset[int]:
    """Return the lines to save in the fewest bytes so that every value that backward reads is saved, or recomputed
    without a product (Chen et al. 2016 and others choose so). Products are never recomputed. Sizes without numbers are
    weighed as a large model's."""
    from scipy.sparse.csgraph import maximum_flow

    count = len(forward.values)
    source, sink = 2 * count, 2 * count + 1
    capacity = capacities(cut_edges(forward, reads, selects, sizes), sink + 1)
    reached = reached_from(source, capacity - maximum_flow(capacity, source, sink).flow)
    return frozenset(at for at in range(count) if 2 * at in reached and 2 * at + 1 not in reached)


class CutEdge(NamedTuple):
    """An edge of the graph that is cut: line k is nodes 2 k and 2 k + 1, with its bytes between; the last two nodes
    are a source, in front of expensive lines, and a sink, behind lines that backward reads."""

    start: int
    end: int
    capacity: int


def cut_edges(
    forward: Forward, reads: Mapping[int, Sequence[int]], selects: bool, sizes: Mapping[str, int]
) -> list[CutEdge]:
    """Return the edges of the graph whose minimum cut is saved."""
    count = len(forward.values)
    weights = [numbers(forward, at, sizes) for at in range(count)]
    source, sink, endless = 2 * count, 2 * count + 1, 2 * sum(weights) + 1
    edges = list[CutEdge]()
    for at in range(count):
        if is_never_saved(forward, at, selects):
            continue
        line = forward.line(at)
        edges.append(CutEdge(2 * at, 2 * at + 1, endless if line.op in VIEWS else weights[at]))
        if at == 0 or is_dear(forward, at):
            edges.append(CutEdge(source, 2 * at, endless))
        else:
            edges += [CutEdge(2 * arg + 1, 2 * at, endless) for arg in line.args]
    read = {at for lines_read in reads.values() for at in lines_read}
    return edges + [CutEdge(2 * at + 1, sink, endless) for at in read]


def capacities(edges: Sequence[CutEdge], nodes: int) -> csr_array:
    """Return the capacities between nodes, in 32 bits: large ones are scaled down, none to 0."""
    from scipy.sparse import csr_array

    starts, ends, sizes = (np.array(column) for column in zip(*edges, strict=True))
    scale = max(1, int(sizes.max()) // 2**30 + 1)
    return csr_array((np.maximum(sizes // scale, 1).astype(np.int32), (starts, ends)), shape=(nodes, nodes))


def reached_from(source: int, left: csr_array) -> set[int]:
    """Return the nodes that a source reaches over edges with capacity left."""
    reached, todo = {source}, [source]
    while todo:
        here = todo.pop()
        for k in range(left.indptr[here], left.indptr[here + 1]):
            node = int(left.indices[k])
            if left.data[k] > 0 and node not in reached:
                reached.add(node)
                todo.append(node)
    return reached


def is_never_saved(forward: Forward, at: int, selects: bool) -> bool:
    """True if the numbers of a line are known without any other line, or it is the ids of rows."""
    if at == 0 and selects:
        return True
    line = forward.line(at)
    return (not line.args and line.op != "input") or forward.free(at)


def is_dear(forward: Forward, at: int) -> bool:
    """True if a line multiplies matrices."""
    line = forward.line(at)
    return line.op == "product" or is_product(line)


def numbers(forward: Forward, at: int, sizes: Mapping[str, int]) -> int:
    """Count the numbers of a line, at the given sizes."""
    line = forward.line(at)
    count = sympy.sympify(BatchSizes().dims(line.shape, line.level).numbers)
    return int(
        count.subs({symbol: sizes.get(str(symbol), SMALL.get(str(symbol), PROBED)) for symbol in count.free_symbols})
    )
