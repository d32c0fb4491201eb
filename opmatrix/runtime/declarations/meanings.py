"""What a kernel means, in float64, and how far it may be from that; and steps whose choices somebody notes, or says."""
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


def meaning(kernel: Declared, arguments: Mapping[str, object], batch: object,
            instead: Mapping[int, object] = MappingProxyType({}), rounded: bool = True) -> Doubles:
    """What a kernel means for these arguments, in float64; of operands that it rounds first, unless told otherwise."""
    return kernel.reference(widen_arguments(kernel, arguments, batch, instead, rounded))


def widen_arguments(kernel: Declared, arguments: Mapping[str, object], batch: object,
                    instead: Mapping[int, object] = MappingProxyType({}), rounded: bool = True) -> Arguments:
    """The arguments of a kernel in float64, as it computes with them."""
    given = {name: instead.get(id(value), value) for name, value in arguments.items()} | {"batch": batch}
    reads = kernel.reads(kernel.record(**given)) if rounded else {}
    return kernel.record(**{name: widen_value(value, instead) for name, value in (given | dict(reads)).items()})


def bound(kernel: Declared, arguments: Mapping[str, object], exact: Arguments | None = None) -> Doubles:
    """How far a kernel may be from its meaning for these arguments, entry by entry; `exact`: these as `widen_arguments`
    gives them."""
    if exact is None: exact = widen_arguments(kernel, arguments, arguments.get("batch"))
    return np.asarray(kernel.bound(kernel.record(**arguments, exact=exact)))


def widen_value(value: object, instead: Mapping[int, object]) -> object:
    """Arrays and packed weights as float64 arrays, anything else as it is."""
    if isinstance(value, tuple): return tuple(widen_value(entry, instead) for entry in value)
    value = instead.get(id(value), value)
    if isinstance(value, Format | Stacked): return value.wide()
    return np.asarray(widened(value), np.float64) if isinstance(value, np.ndarray) else value


# ---- where rows go

def compute(call: "Call", out: NDArray[np.float32], arguments: Mapping[str, object], batch: object) -> None:
    """A step's result. Where it keeps the largest of rows, the entries that it takes are noted; where others are taken
    in their place, it is as it means to be with these."""
    if (routes := LISTENING.get()) is None or not call.kernel.keeps(call.bound):
        call.kernel.function(out, **arguments)
        return
    with noting(None): call.kernel.function(out, **arguments)
    meant = meaning(call.kernel, arguments, batch)
    if routes.steers: out[...] = meant


def run_noted(schedule: "Schedule", batch: Batch) -> list[NDArray[np.float32]] | None:
    """The outputs' rows of a run whose choices are noted, or given: step by step, of the groups that a run has where
    all of it is recorded, so to the bit those of a run. None where nobody listens, or nothing is chosen."""
    routes = LISTENING.get()
    if routes is None or not any(call.kernel.keeps(call.bound) for call in schedule.calls): return None
    workers, parts = threads(), [batch]
    apart = not (schedule.ports or schedule.scored or schedule.elsewhere)
    if apart and all(isinstance(each, Recorded) for each in schedule.segments):
        groups = make_groups(batch.starts, workers, reading=schedule.reading)
        if len(groups) > 1: parts = [batch.sentences(group.first, group.last) for group in groups]
    found: list[list[NDArray[np.float32]]] = []
    for part in parts:
        routes.go_back()
        values: list[NDArray[np.float32]] = []
        with limit(workers if len(parts) == 1 else 1):
            for _ in schedule.walk(part, values): pass
        found.append([np.asarray(values[at - schedule.first]) for at in schedule.results])
    routes.go_on()
    return [np.concatenate(each) if len(each) > 1 else each[0] for each in zip(*found, strict=True)]
