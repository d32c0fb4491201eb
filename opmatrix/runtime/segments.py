"""A schedule runs segment by segment: steps that can be recorded, together (recorded.py), and each other step alone, on
the whole batch. Values that are used across segments, and the result, are in buffers of the whole batch."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import proxy

import numpy as np
from numpy.typing import DTypeLike, NDArray

from opmatrix.algebra.batch.extents import Extents, S, T
from opmatrix.runtime.buffers.planner import Life, Plan, place_buffers
from opmatrix.runtime.declarations.operands import LINE, BufferSize

if TYPE_CHECKING:
    from opmatrix.runtime.schedule import Schedule

ROW = Extents({T: 1, S: 1})
Buffers = Callable[[int, tuple[int, ...]], NDArray[np.float32]]


class Span(NamedTuple):
    """A buffer's size in terms of the batch, and the first and last step, or segment, of its life."""

    size: BufferSize
    first: int
    last: int


@lru_cache(256)
def plan_buffers(spans: tuple[Span, ...], result: int | None, extents: Extents) -> Plan:
    """Return the plan for a batch of these extents; the last few hundred plans are cached."""
    return place_buffers([Life(span.size.at(extents), span.first, span.last) for span in spans], result)


class Blocks:
    """The buffers of one call, in a block for the result and one for values that end with the call. spans: by the step
    that writes first."""

    def __init__(self, plan: Plan, spans: Iterable[int]):
        self.plan, self.places = plan, dict(zip(spans, plan.offsets, strict=True))
        self.result = block(plan.wall)
        self.arena = block(plan.arena) if plan.arena else self.result

    def __call__(self, base: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
        if (at := self.places[base]) < self.plan.wall:
            return np.ndarray(shape, np.float32, self.result, at)
        return np.ndarray(shape, np.float32, self.arena, at - self.plan.wall)


class Values:
    """The values of a batch, by step: inputs in place, with the batch or the session; results of kernels in the given
    buffer(step that writes it first, shape); views when they are first used."""

    def __init__(
        self,
        schedule: "Schedule",
        batch: Any,
        extents: Extents,
        buffer: Buffers,
        entered: Mapping[int, NDArray[np.float32]] = MappingProxyType({}),
    ):
        self.schedule, self.batch, self.extents, self.buffer = schedule, batch, extents, buffer
        self.entered = entered
        self.found: dict[int, NDArray[np.float32]] = {}  # dict[...]() would add a third to the time of this method

    def __getitem__(self, step: int) -> NDArray[np.float32]:
        if step in self.entered:
            return self.entered[step]
        if step not in self.found:
            call, base = self.schedule.calls[step], self.schedule.base[step]
            if call.kernel.view:
                self.found[step] = call.kernel.function(**call.arguments(self, self.batch))
            elif base in self.entered:
                self.found[step] = self.entered[base]
            else:
                self.found[step] = self.buffer(base, call.shape.at(self.extents))
        return self.found[step]

    def compute(self, step: int) -> None:
        """Call a step's kernel."""
        call = self.schedule.calls[step]
        call.kernel.function(self[step], **call.arguments(self, self.batch))


class ByStep(Protocol):
    """The values of steps, by number."""

    def __getitem__(self, v: int, /) -> NDArray[np.floating]: ...


class Walked:
    """Values by number: the inputs, and the results of the steps so far."""

    def __init__(self, entered: Sequence[NDArray[np.float32]], found: Sequence[Any]) -> None:
        self.entered, self.found = entered, found

    def __getitem__(self, v: int) -> NDArray[np.float32]:
        return self.entered[v] if v < len(self.entered) else self.found[v - len(self.entered)]


class Called:
    """A step that is called from Python, on the whole batch."""

    def __init__(self, schedule: "Schedule", steps: Sequence[int]):
        self.schedule, self.steps = proxy(schedule), steps

    def run(self, values: Values) -> None:
        """Write the step's result."""
        for step in self.steps:
            values.compute(step)

    def timed(self, values: Values) -> dict[int, float]:
        """Write the result, and return the seconds that it took."""
        start = time.perf_counter()
        self.run(values)
        return dict.fromkeys(self.steps, (time.perf_counter() - start) / len(self.steps))

    def forget(self) -> None:
        """Do nothing: it stores no values."""

    def peak(self, extents: Extents, starts: NDArray[np.int64] | None = None) -> int:
        """Return the bytes that the kernel allocates itself."""
        calls = [self.schedule.calls[step] for step in self.steps]
        return max(int(call.kernel.scratch(call.bound).at(extents)) for call in calls)


@cache
def address_of() -> Callable[[NDArray[np.uint8]], int]:
    """Return the function that gives the address of memory, imported when it is first used."""
    from formats.kernels.engine.launch import address

    return address


def block(size: int) -> NDArray[np.uint8]:
    """Return bytes that begin on a cache line."""
    whole = unwritten(size + LINE, np.uint8)
    start = -address_of()(whole) % LINE
    return whole[start : start + size]


def unwritten(shape: int | tuple[int, ...], number: DTypeLike) -> NDArray[Any]:
    """Return uninitialised memory, for kernels that write all of it. Tests fill it (tests/support/poisoned.py)."""
    return np.empty(shape, number)
