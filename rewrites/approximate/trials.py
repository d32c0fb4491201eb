"""Trying approximations, each alone: on which sentences, and what a program gives where some steps are done otherwise.

All kinds of approximation meet here. Candidates are listed; each is tried on rows that it was not fitted to; one whose
`error`, the squared relative change of the output, is small enough becomes columns of the linear program, in which
errors add up (rewrites/approximate)."""
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import prod
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime.program import Constant, Program
from opmatrix.runtime.schedule import Call, call
from opmatrix.runtime.segments import Walked, unwritten
from rewrites.approximate.sites import WeightSite

CHANGED = "changed"                                         # name of a constant that is tried instead of another
TOGETHER = 2048                                             # rows of a pass, all copies together
TRIAL_BYTES = 2 ** 28                                       # of weights that are tried together, and of outputs
FloatRows = NDArray[np.float32]
LARGE = 2 ** 28                                             # bytes of a program that takes seconds to fit and verify
LEAST, SHORTEST = 4, 16                                     # sentences of a sample, and tokens of each, at least
WORK = 3e12                                                 # multiplications of all trials, about, at most
Tried = TypeVar("Tried", covariant=True)


class Trials(Protocol[Tried]):
    """One way to approximate a model: what may be tried, and what of it changes the output by at most `most`, relative,
    each with the `error` that it alone brings about."""

    def candidates(self) -> Sequence[Tried]: ...
    def measure_errors(self, most: float) -> Sequence[Tried]: ...


def sample(program: Program, batch: Batch, trials: int) -> Batch:
    """The first sentences of a batch: as many as `trials` passes over half of the weights can have within WORK, and
    LEAST at least, which are cut then. The methods of a weight are tried on the same sentences, so what these have in
    common does not change their order; errors of n sentences scatter around those of many by about 1/√n of how they
    differ from sentence to sentence, and the program that is put together from them is measured on all rows that
    choose."""
    if batch.alone: return batch
    rows = WORK / max(1.0, trials * half_pass(program))
    if (count := int(np.searchsorted(batch.starts, rows, "right")) - 1) >= len(batch): return batch
    if count >= LEAST: return join_batches(islice(batch, count))
    few, side = [*islice(batch, LEAST)], max(SHORTEST, int(rows) // LEAST)
    return Batch([row.tokens[:side] for row in few], [row.kinds[:side] for row in few])


def half_pass(program: Program) -> float:
    """Multiplications of a row by half of a program's weights."""
    return float(sum(constant.nbytes for constant in program.constants.values())) / 8


def join_batches(batches: Sequence[Batch] | Iterator[Batch]) -> Batch:
    """The sentences of several batches as one."""
    rows = [row for batch in batches for row in batch]
    return Batch([row.tokens for row in rows], [row.kinds for row in rows])


def try_weights(program: Program, site: WeightSite, tried: Sequence[Callable[[], Constant]],
                values: Sequence[FloatRows | None], batch: Batch) -> Iterator[FloatRows]:
    """The output on a batch with each of these in place of a site's weight, given the values of the steps before the
    first that reads it. So many are made and tried together as TRIAL_BYTES and
    TOGETHER allow."""
    schedule = program.schedule
    output = 4 * prod(schedule.calls[schedule.result].shape.at(schedule.extents(batch)))
    size = max(1, output, program.constants[site.constant].nbytes)
    most = 1 if batch.alone else max(1, min(TOGETHER // batch.rows, TRIAL_BYTES // size))
    for lo in range(0, len(tried), most):
        stored = [make() for make in tried[lo:lo + most]]
        steps = {at: [read_otherwise(program, at, site, each) for each in stored] for at in site.readers(program)}
        yield from try_steps(program, steps, values, batch)


def try_steps(program: Program, steps: Mapping[int, Sequence[Call]],
              values: Sequence[FloatRows | None], batch: Batch) -> list[FloatRows]:
    """The outputs on a batch of several programs in one pass, a copy of the batch for each, given the values before the
    first step in which they differ. `steps` are these steps, rising, by their numbers: a call for each program."""
    schedule, copies = program.schedule, len(next(iter(steps.values())))
    many = batch if copies == 1 else join_batches([batch] * copies)
    found = [None if value is None else np.concatenate([value] * copies) for value in values]
    for at, calls in steps.items():
        for _ in schedule.walk(many, found, at): pass
        out = unwritten(calls[0].shape.at(schedule.extents(many)), np.float32)
        known = Walked(schedule.entered(many), found)
        for copy, (each, result) in enumerate(zip(calls, np.split(out, copies), strict=True)):
            read = {v: np.split(known[v], copies)[copy] for v in each.values.values()}
            each.kernel.function(result, **each.arguments(read, batch))
        found.append(out)
    return np.split(schedule.resumed(found, many), copies)


def read_otherwise(program: Program, at: int, site: WeightSite, stored: Constant) -> Call:
    """A step with another constant where it reads a site's weight."""
    operands = {operand: CHANGED if site.reads(operand, name) else name
                for operand, name in program.steps[at].operands.items()}
    return change_step(program, at, {CHANGED: stored}, operands=operands)


def change_step(program: Program, at: int, constants: Mapping[str, Constant], **fields: Any) -> Call:
    """A step with other fields, such as its operands or attributes, among which there may be more constants."""
    schedule = program.schedule
    before = [*(port.name for port in schedule.ports), *(each.output for each in program.steps[:at])]
    return call(replace(program.steps[at], **fields), {name: schedule.calls[i].shape for i, name in enumerate(before)},
                {name: i for i, name in enumerate(before)}, {**program.constants, **constants})
