"""The meaning of a kernel, in float64, and the bound on its error; and steps whose choices are recorded or given."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from formats.host.threads import limit, threads
from formats.storage.format import Format
from formats.storage.stacked import Stacked
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.signature import widened
from opmatrix.algebra.routes import LISTENING, noting
from opmatrix.runtime.declarations.arguments import Doubles
from opmatrix.runtime.declarations.kernel import Arguments, Declared
from opmatrix.runtime.recorded import Recorded
from opmatrix.runtime.scheme import make_groups

if TYPE_CHECKING:
    from opmatrix.runtime.schedule import Call, Schedule


def meaning(
    kernel: Declared,
    arguments: Mapping[str, object],
    batch: object,
    instead: Mapping[int, object] = MappingProxyType({}),
    rounded: bool = True,
) -> Doubles:
    """Compute the meaning of a kernel for these arguments, in float64; operands are rounded first as the kernel rounds
    them unless `rounded` is false."""
    return kernel.reference(widen_arguments(kernel, arguments, batch, instead, rounded))


def widen_arguments(
    kernel: Declared,
    arguments: Mapping[str, object],
    batch: object,
    instead: Mapping[int, object] = MappingProxyType({}),
    rounded: bool = True,
) -> Arguments:
    """Return the arguments of a kernel in float64, as it computes with them."""
    values = {name: instead.get(id(value), value) for name, value in arguments.items()} | {"batch": batch}
    reads = kernel.reads(kernel.record(**values)) if rounded else {}
    return kernel.record(**{name: widen_value(value, instead) for name, value in (values | dict(reads)).items()})


def bound(kernel: Declared, arguments: Mapping[str, object], exact: Arguments | None = None) -> Doubles:
    """Return the largest error of a kernel for these arguments, entry by entry; `exact`: the arguments as
    `widen_arguments` returns them."""
    if exact is None:
        exact = widen_arguments(kernel, arguments, arguments.get("batch"))
    return np.asarray(kernel.bound(kernel.record(**arguments, exact=exact)))


def widen_value(value: object, instead: Mapping[int, object]) -> object:
    """Return arrays and packed weights as float64 arrays, any other value unchanged. Tables, some of whose rows are
    read, stay as wide as their formats unpack them: the numbers are the same."""
    if isinstance(value, tuple):
        return tuple(
            table.unpack() if isinstance(table := instead.get(id(entry), entry), Format) else table for entry in value
        )
    value = instead.get(id(value), value)
    if isinstance(value, Format | Stacked):
        return value.wide()
    return np.asarray(widened(value), np.float64) if isinstance(value, np.ndarray) else value


# ---- steps whose choices are recorded or given


def compute(call: "Call", out: NDArray[np.float32], arguments: Mapping[str, object], batch: object) -> None:
    """Compute a step's result. For a step that keeps the largest numbers of rows, the chosen entries are recorded; if
    other choices are given in their place, the result is the step's meaning with these."""
    if (routes := LISTENING.get()) is None or not call.kernel.keeps(call.bound):
        call.kernel.function(out, **arguments)
        return
    with noting(None):
        call.kernel.function(out, **arguments)
    meant = meaning(call.kernel, arguments, batch)
    if routes.steers:
        out[...] = meant


def run_noted(schedule: "Schedule", batch: Batch) -> list[NDArray[np.float32]] | None:
    """Return the outputs' rows of a run whose choices are recorded, or given. It runs step by step, with the groups
    that a fully recorded run would have, so the bits are those of a run. None if no routes are listening, or no step
    chooses."""
    routes = LISTENING.get()
    if routes is None or not any(call.kernel.keeps(call.bound) for call in schedule.calls):
        return None
    workers, parts = threads(), [batch]
    apart = not (schedule.ports or schedule.scored or schedule.elsewhere)
    if apart and all(isinstance(segment, Recorded) for segment in schedule.segments):
        groups = make_groups(batch.starts, workers, reading=schedule.reading)
        if len(groups) > 1:
            parts = [batch.sentences(group.first, group.last) for group in groups]
    outputs: list[list[NDArray[np.float32]]] = []
    for part in parts:
        routes.go_back()
        values: list[NDArray[np.float32]] = []
        with limit(workers if len(parts) == 1 else 1):
            for _ in schedule.walk(part, values):
                pass
        outputs.append([np.asarray(values[at - schedule.first]) for at in schedule.results])
    routes.go_on()
    return [np.concatenate(rows) if len(rows) > 1 else rows[0] for rows in zip(*outputs, strict=True)]
