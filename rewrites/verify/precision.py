"""A check that float32 suffices for a model: if its numbers are so far apart that the smaller ones are lost, no
program can agree with the model."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from formats.core.epilogue import UNIT
from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.term import Operator
from opmatrix.runtime.program import Program
from rewrites.lowering.float32_range import check_finite, list_arrays, max_magnitude
from rewrites.verify.differences import difference, ratio
from rewrites.verify.nudged import moved
from rewrites.verify.routed import Reference

LOST = 0.01  # relative change; ordinary models round by 1e-6
LOSES_ONE = 2.0**24  # beside such a number float32 loses numbers below 1
FAINT = 1e-30  # an output below this has no significant digits left


def check_precision(model: Operator, programs: Sequence[Program], batch: Batch) -> None:
    """Compare exact programs with the float64 oracle on a batch. Raises InputError if the output is zero, or NaN or
    infinite in float64. Raises it too if the float32 output is NaN or infinite or changes by more than a hundredth;
    the error names the tensor that holds the largest number. If no number is large and the model read in float32 by
    the oracle is within that bound, precision is not the cause, and verification finds the fault."""
    with np.errstate(all="ignore"):  # overflows are measured here, not warned about
        outputs = [program.run(batch) for program in programs]
        if (most := max(abs(output).max() for output in outputs)) < FAINT:
            raise InputError(
                f"the model's output on ordinary text is at most {most:.3g}, so no error can be measured "
                "beside it: take weights that are trained"
            )
        size, name = max(
            ((max_magnitude(data), data.label if data.name is None else data.name) for data in list_arrays(model)),
            default=(0.0, ""),
        )
        if size < LOSES_ONE and all(np.isfinite(output).all() for output in outputs):
            return
        meant = Reference(partial(dense, model, batch))  # slow, and seldom needed
        check_finite("the model's output", meant.own[0])
        runs = (
            [partial(dense, model, batch, dtype=np.float32)]
            if size < LOSES_ONE
            else [partial(program.run, batch) for program in programs]
        )
        changes = [difference(*meant.along(run)) for run in runs]
    if all(change <= LOST for change in changes):
        return
    what = (
        f"changes by {100 * max(changes):.3g} % when it is computed" if np.isfinite(changes).all() else "is not finite"
    )
    if size < LOSES_ONE:
        raise InputError(
            f"the model's output {what} in float32, as intermediate numbers are beyond 3.4e+38 or cancel: "
            "scale its weights or its inputs"
        )
    raise InputError(
        f"tensor {name!r} holds {size:.3g}, the largest number of the model, whose output {what} in "
        "float32: scale its weights, or train it again"
    )


def check_ties(model: Operator, batch: Batch) -> None:
    """Raise InputError if the model's output names rows (`topk(k).indices`) whose numbers are so nearly equal that the
    rounding of float32 decides between them. Rows that are equal in every program are no such case, so this is asked
    of a model only when a program of it does not agree with it."""
    if not any(getattr(each, "indexed", False) for node in model.walk() for each in node.attributes):
        return
    wanted = dense(model, batch)
    change = float(ratio(np.linalg.norm(moved(model, [batch], UNIT)), np.linalg.norm(wanted)))
    if change > LOST:
        raise InputError(
            f"the model's output names the largest of numbers that are equal but for rounding: it changes by "
            f"{100 * change:.3g} % when they change by {UNIT:.0e} of themselves: scores that differ are needed"
        )
