"""Trials of approximations, each alone: the sentences of a trial, and the output of a program where some steps are
changed.

All kinds of approximation meet here. Candidates are listed; each is tried on rows that it was not fitted to. If its
`error`, the squared relative change of the output, is small enough, it becomes columns of the linear program, in which
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

BY_PULLBACK, BY_RUNS = "pullback", "runs"  # ways in which errors are found
CHANGED = "changed"  # name of a constant that is tried instead of another
TOGETHER = 2048  # rows of a pass, all copies together
TRIAL_BYTES = 2**28  # most bytes of weights tried together, and of outputs
FloatRows = NDArray[np.float32]
LARGE = 2**28  # bytes of a program that takes seconds to fit and verify
LEAST, SHORTEST = 4, 16  # least sentences of a sample, and least tokens of each
WORK = 3e12  # multiplications of all trials, about, at most
Tried = TypeVar("Tried", covariant=True)


class Trials(Protocol[Tried]):
    """One way to approximate a model: its candidates, and the ones that change the output by at most `most`, relative,
    each with the `error` that it alone causes."""

    def candidates(self) -> Sequence[Tried]:
        """Return all candidates, without an error yet."""

    def measure_errors(self, most: float) -> Sequence[Tried]:
        """Measure candidates, each alone; return those of an error of at most `most`."""


def sample(program: Program, batch: Batch, trials: int) -> Batch:
    """Return the first sentences of a batch: as many as `trials` passes over half of the weights can have within WORK,
    but at least LEAST, which are then truncated. The methods of a weight are tried on the same sentences, so effects
    common to these do not change their order. The error over n sentences differs from that over many by about 1/√n of
    the spread between sentences. The program that is put together from them is measured on all rows that choose."""
    if batch.alone:
        return batch
    rows = WORK / max(1.0, trials * half_pass(program))
    if (count := int(np.searchsorted(batch.starts, rows, "right")) - 1) >= len(batch):
        return batch
    if count >= LEAST:
        return join_batches(islice(batch, count))
    few, side = [*islice(batch, LEAST)], max(SHORTEST, int(rows) // LEAST)
    return Batch([row.tokens[:side] for row in few], [row.kinds[:side] for row in few])


def half_pass(program: Program) -> float:
    """Return the multiplications of a row by half of a program's weights."""
    return float(sum(constant.nbytes for constant in program.constants.values())) / 8


def join_batches(batches: Sequence[Batch] | Iterator[Batch]) -> Batch:
    """Return the sentences of several batches as one."""
    rows = [row for batch in batches for row in batch]
    return Batch([row.tokens for row in rows], [row.kinds for row in rows])


def try_weights(
    program: Program,
    site: WeightSite,
    tried: Sequence[Callable[[], Constant]],
    values: Sequence[FloatRows | None],
    batch: Batch,
) -> Iterator[FloatRows]:
    """Yield the output on a batch with each of these in place of a site's weight, given the values of the steps before
    the first that reads it. TRIAL_BYTES and TOGETHER limit the number that is built and tried together."""
    schedule = program.schedule
    output = 4 * prod(schedule.calls[schedule.result].shape.at(schedule.extents(batch)))
    size = max(1, output, program.constants[site.constant].nbytes)
    most = 1 if batch.alone else max(1, min(TOGETHER // batch.rows, TRIAL_BYTES // size))
    for lo in range(0, len(tried), most):
        stored = [make() for make in tried[lo : lo + most]]
        steps = {
            at: [read_otherwise(program, at, site, constant) for constant in stored] for at in site.readers(program)
        }
        yield from try_steps(program, steps, values, batch)


def try_steps(
    program: Program, steps: Mapping[int, Sequence[Call]], values: Sequence[FloatRows | None], batch: Batch
) -> list[FloatRows]:
    """Return the outputs on a batch of several programs in one pass, a copy of the batch for each, given the values
    before the first step in which they differ. `steps` has the changed steps, in rising order of their numbers: a call
    for each program."""
    schedule, copies = program.schedule, len(next(iter(steps.values())))
    many = batch if copies == 1 else join_batches([batch] * copies)
    known_values = [None if value is None else np.concatenate([value] * copies) for value in values]
    for at, calls in steps.items():
        for _ in schedule.walk(many, known_values, at):
            pass
        out = unwritten(calls[0].shape.at(schedule.extents(many)), np.float32)
        known = Walked(schedule.entered(many), known_values)
        for copy, (step, result) in enumerate(zip(calls, np.split(out, copies), strict=True)):
            read = {v: np.split(known[v], copies)[copy] for v in step.values.values()}
            step.kernel.function(result, **step.arguments(read, batch))
        known_values.append(out)
    return np.split(schedule.resumed(known_values, many), copies)


def read_otherwise(program: Program, at: int, site: WeightSite, stored: Constant) -> Call:
    """Return a step with another constant where it reads a site's weight."""
    operands = {
        operand: CHANGED if site.reads(operand, name) else name for operand, name in program.steps[at].operands.items()
    }
    return change_step(program, at, {CHANGED: stored}, operands=operands)


def change_step(program: Program, at: int, constants: Mapping[str, Constant], **fields: Any) -> Call:
    """Return a step with other fields, such as its operands or attributes, which may refer to more constants."""
    schedule = program.schedule
    before = [*(port.name for port in schedule.ports), *(step.output for step in program.steps[:at])]
    return call(
        replace(program.steps[at], **fields),
        {name: schedule.calls[i].shape for i, name in enumerate(before)},
        {name: i for i, name in enumerate(before)},
        {**program.constants, **constants},
    )
