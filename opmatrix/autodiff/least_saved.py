"""The fewest bytes saved for backward: a minimum cut between values that are expensive to compute and values that
backward reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import sympy

from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.autodiff.forward_lines import VIEWS, Forward, is_product

PROBED = 8192  # the value of a named size that has no number
SMALL = dict(b=1, s=2048, a=32)


def least_kept(
    forward: Forward,
    reads: Mapping[int, Sequence[int]],
    named: Mapping[int, str],
    selects: bool,
    sizes: Mapping[str, int],
) -> frozenset[int]:
    """Return the lines to save in the fewest bytes so that every value that backward reads is saved, or recomputed
    without a product (Chen et al. 2016 and others choose so). Products are never recomputed. Sizes without numbers are
    weighed as a large model's."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    count = len(forward.values)
    weights = [numbers(forward, at, sizes) for at in range(count)]
    ends: list[tuple[int, int, int]] = []  # each line is two nodes, in and out; a source, a sink
    source, sink, endless = 2 * count, 2 * count + 1, 2 * sum(weights) + 1
    for at in range(count):
        line = forward.line(at)
        if at == 0 and selects:
            continue
        if not line.args and line.op != "input":
            continue
        if forward.free(at):
            continue
        ends.append((2 * at, 2 * at + 1, endless if line.op in VIEWS else weights[at]))
        if at == 0 or is_dear(forward, at):
            ends.append((source, 2 * at, endless))
        else:
            ends += [(2 * arg + 1, 2 * at, endless) for arg in line.args]
    ends += [(2 * at + 1, sink, endless) for at in {at for lines_read in reads.values() for at in lines_read}]
    rows, cols, sizes_of = (np.array(column) for column in zip(*ends, strict=True))
    scale = max(1, int(sizes_of.max()) // 2**30 + 1)  # capacities are 32 bits
    capacity = csr_array((np.maximum(sizes_of // scale, 1).astype(np.int32), (rows, cols)), shape=(sink + 1, sink + 1))
    flow = maximum_flow(capacity, source, sink)
    left = capacity - flow.flow
    reached, todo = {source}, [source]
    while todo:
        here = todo.pop()
        for k in range(left.indptr[here], left.indptr[here + 1]):
            if left.data[k] > 0 and int(left.indices[k]) not in reached:
                reached.add(int(left.indices[k]))
                todo.append(int(left.indices[k]))
    return frozenset(at for at in range(count) if 2 * at in reached and 2 * at + 1 not in reached)


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
