"""What each method of a weight alone does to the output. All methods of a weight are tried in one pass over what comes
after it: the batch is repeated, a copy for each, and only the steps that read the weight are done copy by copy."""
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opmatrix.batch import Batch
from opmatrix.program import Program
from opmatrix.runtime.schedule import Call, Walked, call
from rewrites.approximate.sites import Site

CHANGED = "changed"                                         # name of a constant that is tried instead of another
TOGETHER = 2048                                             # rows of a pass, all copies together
HELD = 2 ** 28                                              # bytes of weights that are tried together, and of outputs
FloatRows = NDArray[np.float32]
LEAST, SHORTEST = 4, 16                                     # sentences that errors are measured on, and tokens that are
                                                            # left of each, however large the model is
WORK = 3e12                                                 # multiplications that all trials may take before sentences
                                                            # are left out


def sample(program: Program, batch: Batch, trials: int) -> Batch:
    """The first sentences of a batch: as many as `trials` passes over half of the weights can have within WORK, and
    LEAST at least, which are cut then. The methods of a weight are tried on the same sentences, so what these have in
    common does not change their order; errors of n sentences scatter around those of many by about 1/√n of how they
    differ from sentence to sentence, and the program that is put together from them is measured on all rows that
    choose."""
    if batch.alone: return batch
    rows = WORK / max(1.0, trials * half_pass(program))
    if (count := int(np.searchsorted(batch.starts, rows, "right")) - 1) >= len(batch): return batch
    if count >= LEAST: return joined(islice(batch, count))
    few, side = [*islice(batch, LEAST)], max(SHORTEST, int(rows) // LEAST)
    return Batch([row.tokens[:side] for row in few], [row.kinds[:side] for row in few])


def half_pass(program: Program) -> float:
    """Multiplications of a row by half of a program's weights."""
    return sum(constant.nbytes / 4 for constant in program.constants.values()) / 2


def joined(batches: Sequence[Batch] | Iterator[Batch]) -> Batch:
    """The sentences of several batches as one."""
    rows = [row for batch in batches for row in batch]
    return Batch([row.tokens for row in rows], [row.kinds for row in rows])


def changed(program: Program, site: Site, tried: Sequence[Callable[[], Any]], values: Sequence[Any],
            batch: Batch) -> Iterator[FloatRows]:
    """The output on a batch with each of these in place of a site's weight, given the values of the steps before the
    first that reads it. So many are made and tried together as HELD and TOGETHER allow."""
    schedule = program.schedule
    output = 4 * prod(schedule.calls[schedule.result].shape.at(schedule.extents(batch)))
    size = max(1, output, program.constants[site.constant].nbytes)
    most = 1 if batch.alone else max(1, min(TOGETHER // batch.rows, HELD // size))
    for lo in range(0, len(tried), most):
        yield from side_by_side(program, site, [make() for make in tried[lo:lo + most]], values, batch)


def side_by_side(program: Program, site: Site, stored: Sequence[Any], values: Sequence[Any],
                 batch: Batch) -> list[FloatRows]:
    """The same in one pass, a copy of the batch for each."""
    schedule, copies = program.schedule, len(stored)
    many = batch if copies == 1 else joined([batch] * copies)
    first = schedule.first
    gone = {v - first for dropped in schedule.dropped[:first + len(values)] for v in dropped}
    found: list[Any] = [None if v in gone else np.concatenate([value] * copies) for v, value in enumerate(values)]
    for at in site.readers(program):
        for _ in schedule.walk(many, found, at): pass
        calls = [instead(program, at, site, each) for each in stored]
        out, known = np.empty(calls[0].shape.at(schedule.extents(many)),
                              np.float32), Walked(schedule.entered(many), found)
        for copy, (own, result) in enumerate(zip(calls, np.split(out, copies), strict=True)):
            mine = {v: np.split(known[v], copies)[copy] for v in own.values.values()}
            own.kernel.function(result, **own.arguments(mine, batch))
        found.append(out)
    return np.split(schedule.resumed(found, many), copies)


def instead(program: Program, at: int, site: Site, stored: Any) -> Call:
    """A step with another constant where it reads a site's weight."""
    step, schedule = program.steps[at], program.schedule
    before = [*(port.name for port in schedule.ports), *(each.output for each in program.steps[:at])]
    operands = {operand: CHANGED if site.reads(operand, name) else name for operand, name in step.operands.items()}
    return call(replace(step, operands=operands), {name: schedule.calls[i].shape for i, name in enumerate(before)},
                {name: i for i, name in enumerate(before)}, {**program.constants, CHANGED: stored})
