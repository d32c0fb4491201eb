"""Cotangents of a program's values: directions over its output, pulled back to the results of steps, in float32 and on
the values that the program computes. Values between checkpoints are computed again, so memory is that of a few
layers."""

from collections.abc import Collection, Iterator, Sequence
from math import isqrt
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from formats.core.stage import NoPullback
from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime.declarations.arguments import Doubles
from opmatrix.runtime.program import Program
from opmatrix.runtime.schedule import Call, Schedule

WIDEST = 2048  # columns of the largest matrix of cotangents that is held


class Recomputed(NamedTuple):
    """Steps `start` to `stop`, excluded, and the values of the steps before them; None for a value that no later step
    reads."""

    start: int
    stop: int
    values: list[NDArray[np.float32] | None]


class PulledStep(NamedTuple):
    """A step with its call, the arguments and the result of a run, and the cotangents of this result, (K, *shape) for
    K directions over the output."""

    step: int
    call: Call
    arguments: dict[str, object]
    result: NDArray[np.float32]
    cotangents: NDArray[np.float32]


def pull_back(
    program: Program, batch: Batch, directions: NDArray[np.float32], steps: Collection[int]
) -> Iterator[PulledStep]:
    """Yield each of these steps, the last first, with the cotangents of its result for `directions` (K, rows, ...) over
    the rows of the output. Steps that the output does not depend on are left out.

    Raises NoPullback, which names the step, at one without a derivative, and at cotangents that are not finite; later
    steps have been yielded by then."""
    schedule, first = program.schedule, min(steps, default=0)
    pending: dict[int, NDArray[np.float32]] = {schedule.result: directions}
    for part in reversed(checkpoints(schedule, batch)):
        if part.stop <= first:
            return
        walked = [*schedule.walk(batch, part.values, part.stop)]
        for at, (call, arguments, result) in reversed([*enumerate(walked, part.start)]):
            g = pending.pop(schedule.first + at, None)
            if g is None or at < first:
                continue
            if not np.isfinite(g).all():
                raise NoPullback(f"step {program.steps[at].output}: the cotangents of its result are not finite")
            if at in steps:
                yield PulledStep(at, call, arguments, result, g)
            if at > first:
                add_cotangents(pending, call, call_pullback(call, arguments, batch, g, program.steps[at].output))


def product_cotangents(pulled: PulledStep, batch: Batch) -> NDArray[np.float32] | None:
    """Return the cotangents (K, rows, p) of x @ W, before the epilogue, of a step that multiplies by a weight (n, p);
    None for a step without such a product. Raises NoPullback for an epilogue without a derivative."""
    if (pull := pulled.call.kernel.product_pullback) is None:
        return None
    record = pulled.call.kernel.record(**{**pulled.arguments, "batch": batch})
    return np.asarray(pull(record, cast("Doubles", pulled.cotangents)), np.float32)


def product_gram(pulled: PulledStep, batch: Batch) -> NDArray[np.float64] | None:
    """Return S = Σ g gᵀ over the directions and rows of a step, g the cotangents of its product: (p, p), or the
    diagonal (p,) beyond WIDEST columns. None and errors as `product_cotangents`."""
    if (g := product_cotangents(pulled, batch)) is None:
        return None
    rows = g.reshape(-1, g.shape[-1])
    if rows.shape[1] > WIDEST:
        return np.asarray(np.einsum("ij,ij->j", rows, rows, dtype=np.float64))
    return (rows.T @ rows).astype(np.float64)


def checkpoints(schedule: Schedule, batch: Batch) -> list[Recomputed]:
    """Return a schedule's steps in about √n parts, each with the values before it: the live values of a program
    are few, and those within a part are computed again (Chen et al. 2016, arXiv:1604.06174)."""
    count = len(schedule.calls) - schedule.first
    length = isqrt(count) + 1
    values, parts = list[NDArray[np.float32] | None](), list[Recomputed]()
    for start in range(0, count, length):
        stop = min(count, start + length)
        parts.append(Recomputed(start, stop, [*values]))
        if stop < count:
            for _ in schedule.walk(batch, values, stop):
                pass
    return parts


def call_pullback(
    call: Call, arguments: dict[str, object], batch: Batch, g: NDArray[np.float32], name: str
) -> dict[str, NDArray[np.float32]]:
    """Return the cotangents of the values that a step reads, by operand. Raises NoPullback, which names the step."""
    if call.kernel.pullback is None:
        raise NoPullback(f"step {name} = {call.kernel.name}: the kernel declares no pullback")
    try:
        parts = call.kernel.pullback(call.kernel.record(**{**arguments, "batch": batch}), cast("Doubles", g))
    except NoPullback as error:
        raise NoPullback(f"step {name} = {call.kernel.name}: {error}") from None
    return {operand: np.asarray(part, np.float32) for operand, part in parts.items()}


def add_cotangents(pending: dict[int, NDArray[np.float32]], call: Call, parts: dict[str, NDArray[np.float32]]) -> None:
    """Add the cotangents of a step's operands to those that other readers of the same values have added."""
    for operand, part in parts.items():
        value = call.values[operand]
        pending[value] = pending[value] + part if value in pending else part


def random_signs(rng: np.random.Generator, directions: int, shape: Sequence[int]) -> NDArray[np.float32]:
    """Return `directions` arrays of a shape, each number 1 or -1: E (u · c)² = |c|² (Hutchinson 1990)."""
    return (1 - 2 * rng.integers(0, 2, (directions, *shape), np.int8)).astype(np.float32)
