"""Steps bound to kernels: shapes inferred and checked, lifetimes known, buffers planned for any number of rows.

Values are numbered: first the inputs, then the results of steps."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import Context
from functools import cached_property
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.core.arrays import as_contiguous
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import Extents, S, T
from opmatrix.algebra.batch.relations import Relation
from opmatrix.algebra.batch.signature import WIDEST, Port, widened
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.runtime.buffers.planner import Plan
from opmatrix.runtime.declarations.arguments import Doubles
from opmatrix.runtime.declarations.costs import Costs
from opmatrix.runtime.declarations.kernel import Arguments, Declared
from opmatrix.runtime.declarations.meanings import compute, meaning, run_noted
from opmatrix.runtime.declarations.operands import (
    FLOAT_BYTES,
    LINE,
    WITH_SESSION,
    C,
    Cache,
    States,
    Value,
    Z,
    entering,
    leaving,
    number_of,
)
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.recorded import Recorded, launches
from opmatrix.runtime.scheme import reading_rows
from opmatrix.runtime.segments import ROW, Blocks, ByStep, Called, Span, Values, Walked, plan_buffers, unwritten

if TYPE_CHECKING:
    from opmatrix.runtime.program import Constant, Step

OBJECTS = 6000  # bytes of Python's own objects in a call, about


class Call(NamedTuple):
    """A step as it runs. An operand in `values` is a shape in `bound`, and is the result of the step with that
    number."""

    kernel: Declared
    bound: Arguments
    values: dict[str, int]
    shape: Value

    def arguments(self, found: ByStep, batch: object) -> dict[str, object]:
        """Return the arguments of its kernel's call, given the values of the steps before it."""
        arguments = vars(self.bound) | {name: found[v] for name, v in self.values.items()}
        return arguments | {"batch": batch} if self.kernel.batched else arguments

    @property
    def by_tokens(self) -> bool:
        """True if its result and all values that it reads have a row a token."""
        spaces = [getattr(shape, "space", None) for shape in (self.shape, *(vars(self.bound)[v] for v in self.values))]
        return all(space == T for space in spaces)


class Outset(NamedTuple):
    """The preparation of a run for a batch: its extents, the plan of the buffers between segments, and the inputs, by
    number."""

    extents: Extents
    plan: Plan
    entered: Mapping[int, NDArray[np.float32]]


class enter(Arguments):
    """The kernel of an input. No step calls it: its value is stored with the batch, or with the session."""

    def run(out: Any, *, port: Any) -> None:
        """Compute no value: that of an input is already stored."""

    def shape(a) -> Value:
        """Return the shape that the port declares."""
        return entering(a.port)

    def reference(a) -> Any:
        """Return the numbers that the batch gives."""
        return a.batch.input(a.port)


ENTERED = Declared(enter, is_input=True)


def bind(steps: "Sequence[Step]", constants: "Mapping[str, Constant]", ports: Sequence[Port] = ()) -> list[Call]:
    """Return inputs and steps as calls, with their shapes. Raises ValueError that names the step, its kernel and the
    fault."""
    calls = [Call(ENTERED, ENTERED.record(port=port), {}, entering(port)) for port in ports]
    number = {port.name: i for i, port in enumerate(ports)}
    shapes = {port.name: calls[i].shape for i, port in enumerate(ports)}
    if taken := [name for name in number if name in constants]:
        raise ValueError(f"input {taken[0]!r}: a constant has this name")
    for i, step in enumerate(steps):
        try:
            calls.append(call(step, shapes, number, constants))
        except ValueError as error:
            raise ValueError(f"step {i}, {step.output} = {step.kernel}: {error}") from None
        number[step.output], shapes[step.output] = len(calls) - 1, calls[-1].shape
    return calls


def call(
    step: "Step", shapes: Mapping[str, Value], number: Mapping[str, int], constants: "Mapping[str, Constant]"
) -> Call:
    """Bind one step, given the shapes and numbers of the values before it."""
    if step.kernel not in KERNELS:
        raise ValueError(f"there is no such kernel; there are {', '.join(KERNELS)}")
    if step.output in number or step.output in constants:
        raise ValueError(f"{step.output!r} is already defined")
    for operand, name in step.operands.items():
        if name not in number and name not in constants:
            raise ValueError(f"{operand} is {name!r}, which is neither the output of an earlier step nor a constant")
    kernel = KERNELS[step.kernel]
    operands = {operand: shapes.get(name, constants.get(name)) for operand, name in step.operands.items()}
    bound = kernel.bind(operands, step.attributes)
    values = {operand: number[name] for operand, name in step.operands.items() if name in number}
    shape = kernel.seated(kernel.shape(bound), bound)
    if max(shape.size[:4]) > FLOAT_BYTES * WIDEST:
        raise ValueError(f"it gives {shape}: a row may have {WIDEST:,} numbers")
    return Call(kernel, bound, values, shape)


def check_state(calls: Sequence[Call], names: Sequence[str], state: Mapping[int, int]) -> None:
    """Check that every cache is a piece of state, which one step writes before any other reads it: its next value; and
    so are states, which one step writes after any other reads them. Raises ValueError."""
    for i, call in enumerate(calls):
        if call.kernel.is_input and isinstance(call.shape, WITH_SESSION) and i not in state:
            raise ValueError(
                f"state: input {names[i]!r}, {in_words(call.shape)}, has no next value: "
                f"state={{{names[i]!r}: the value "
                "that is appended to it}"
            )
    reading: dict[int, list[int]] = {}
    for j, call in enumerate(calls):
        for v in {*call.values.values()}:
            reading.setdefault(v, []).append(j)
    for i, behind in state.items():
        named = f"state: {names[i]!r}, {in_words(calls[i].shape)}"
        if not isinstance(calls[i].shape, WITH_SESSION):
            raise ValueError(f"state: {names[i]!r} is {calls[i].shape}: state must be rows of space C, or states")
        readers = reading.get(i, [])
        writers = [j for j in readers if calls[j].values.get(calls[j].kernel.inplace or "") == i]
        if not writers:
            raise ValueError(f"{named}: no step writes it: append to it")
        if len(writers) > 1:
            raise ValueError(f"{named}: {' and '.join(repr(names[j]) for j in writers)} write it: one step may")
        early = writers[0] if isinstance(calls[i].shape, States) else -1  # states before the step are read
        if other := [j for j in readers if j != writers[0] and j > early]:
            raise ValueError(
                f"{named}: {names[other[0]]} = {calls[other[0]].kernel.name} reads it "
                f"{'after' if early >= 0 else 'before'} it is written: read {names[writers[0]]!r}"
            )
        if behind != writers[0]:
            raise ValueError(f"{named}: its next value is {names[writers[0]]!r}, not {names[behind]!r}")


def in_words(value: Value) -> str:
    """Return a value and the space that it lies in, in words."""
    return f"{value} in space C" if isinstance(value, Cache) else str(value)


def last_uses(calls: Sequence[Call], outputs: Sequence[int]) -> list[int]:
    """Return the last step that reads each value; outputs are read after all steps."""
    last = list(range(len(calls)))
    for i, call in enumerate(calls):
        for v in call.values.values():
            last[v] = i
    for output in outputs:
        last[output] = len(calls)
    return last


def homes(calls: Sequence[Call], outputs: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return for each step the step whose buffer holds its result, and the last step that reads that buffer. A view
    shares the buffer of its operand; a kernel that may write over an operand does so if the buffer is not read later.
    An input matrix belongs to the caller, and no step writes over it."""
    last, home = last_uses(calls, outputs), list[int]()
    for i, call in enumerate(calls):
        base = call.values["x"] if call.kernel.view else find_overwritten(i, call, calls, home, last)
        home.append(i if base == i else home[base])
        last[home[i]] = max(last[home[i]], last[i])
    return home, last


def find_overwritten(i: int, call: Call, calls: Sequence[Call], home: Sequence[int], last: Sequence[int]) -> int:
    """Return the step whose result step i may write over, or i itself."""
    if call.kernel.inplace is None:
        return i
    v = call.values[call.kernel.inplace]
    if calls[home[v]].kernel.is_input and not isinstance(call.shape, WITH_SESSION):
        return i
    alone = [home[w] for w in call.values.values()].count(home[v]) == 1
    whole = calls[v].shape == call.shape  # rows of a part would not be contiguous
    return v if alone and whole and last[home[v]] == i else i


class Schedule:
    """A bound program: the way it runs on a batch, and the place of every value."""

    def __init__(
        self,
        steps: "Sequence[Step]",
        constants: "Mapping[str, Constant]",
        outputs: Mapping[str, str],
        ports: Sequence[Port] = (),
        state: Mapping[str, str] = MappingProxyType({}),
    ):
        self.calls, self.ports = bind(steps, constants, ports), tuple(ports)
        self.reading = reading_rows(sum(constant.nbytes for constant in constants.values()))
        names = [*(port.name for port in ports), *(step.output for step in steps)]
        for name in (*outputs.values(), *state.values()):
            if name not in names[len(ports) :]:
                raise ValueError(f"output: no step gives {name!r}")
        if unknown := [name for name in state if name not in names[: len(ports)]]:
            raise ValueError(f"state: no input is {unknown[0]!r}")
        self.results = [names.index(name) for name in outputs.values()]
        self.further = {*self.results} - {self.result}
        self.outputs = {
            name: leaving(name, names[at], self.calls[at].shape) for name, at in zip(outputs, self.results, strict=True)
        }
        self.state = {names.index(name): names.index(behind) for name, behind in state.items()}
        check_state(self.calls, names, self.state)
        self.base, last = homes(self.calls, self.results)
        self.spans = {b: Span(self.calls[b].shape.size, b, last[b]) for b in sorted(set(self.base)) if b >= self.first}
        self.scored = any(span.size.pair for span in self.spans.values())
        self.elsewhere = self.related()  # relations that give the sizes of spaces outside the batch
        self.level = not (self.scored or any(span.size.sequence or span.size.other for span in self.spans.values()))
        self.segments = self.divided()
        self.crossing = self.between()
        self.latest: tuple[tuple[int, int, tuple[int, int]], Extents, Plan] | None = None
        self.dropped: list[list[int]] = [[] for _ in range(len(self.calls) + 1)]
        for v, last_use in enumerate(last_uses(self.calls, self.results)):
            self.dropped[last_use].append(v)

    @property
    def first(self) -> int:
        """The number of the first step, which is the number of inputs."""
        return len(self.ports)

    @property
    def result(self) -> int:
        """The step that computes the first output."""
        return self.results[0]

    def related(self) -> tuple[Relation, ...]:
        """Return the relations that its steps read, except those that every batch or session gives."""
        return tuple(
            dict.fromkeys(
                relation for call in self.calls for relation in call.kernel.relations(call.bound) if relation.custom
            )
        )

    def extents(self, batch: Batch, patterns: Iterable[Pattern] = ()) -> Extents:
        """Return the extents of a batch for these steps. Raises ValueError for an input or a relation that does not
        fit."""
        return batch.extents(patterns, self.spaced, self.elsewhere)

    @cached_property
    def spaced(self) -> list[Port]:
        """The inputs that come with a batch: all but caches and states."""
        return [port for port in self.ports if port.space not in (str(C), str(Z))]

    def divided(self) -> list[Recorded | Called]:
        """Return the segments: consecutive steps that can be recorded together, and the other steps one by one."""
        real = [i for i, call in enumerate(self.calls) if not (call.kernel.view or call.kernel.is_input)]
        pieces = [[*steps] for _, steps in groupby(real, lambda i: -1 if launches(self.calls[i]) else i)]
        return [Recorded(self, steps) if launches(self.calls[steps[0]]) else Called(self, steps) for steps in pieces]

    @property
    def recordings(self) -> int:
        """The number of its recorded segments."""
        return sum(isinstance(segment, Recorded) for segment in self.segments)

    def between(self) -> dict[int, Span]:
        """Return the buffers of the whole batch, by the step that writes them first, with the segments in which they
        live: those of results, those that several segments use, and those of steps that are called from Python. Groups
        run in any order, so these buffers live until the end of a segment."""
        users: dict[int, list[int]] = {}
        for number, segment in enumerate(self.segments):
            for b in self.used(segment.steps):
                if b >= self.first:
                    users.setdefault(b, []).append(number)
        results = {self.base[at] for at in self.results}
        for b in results:
            users[b].append(len(self.segments))
        return {
            b: Span(self.spans[b].size, numbers[0], numbers[-1])
            for b, numbers in users.items()
            if len(numbers) > 1 or b in results or isinstance(self.segments[numbers[0]], Called)
        }

    def used(self, steps: Iterable[int]) -> list[int]:
        """Return the buffers that these steps read or write, each by the step that writes it first."""
        return sorted({self.base[v] for i in steps for v in (i, *self.calls[i].values.values())})

    def plan(self, extents: Extents) -> Plan:
        """Return the places of the buffers if steps run one by one on a batch of these extents. If every buffer grows
        with the tokens alone one plan serves all batches."""
        return self.laid(self.spans, extents)

    def laid(self, spans: Mapping[int, Span], extents: Extents) -> Plan:
        """Return the plan of some buffers, the result's among them."""
        result, every = [*spans].index(self.base[self.result]), tuple(spans.values())
        return (
            plan_buffers(every, result, ROW).times(extents[T]) if self.level else plan_buffers(every, result, extents)
        )

    @cached_property
    def row(self) -> Plan:
        """The plan of the buffers between segments, for one row."""
        return self.laid(self.crossing, ROW)

    def peak(self, extents: Extents, starts: NDArray[np.int64] | None = None) -> int:
        """Return the bytes of the result's block, of buffers between segments and within them, of the recordings'
        inputs from a batch, of caches, and of Python's own objects. The arenas of segments are kept, so the largest
        counts beside the allocations of called steps."""
        within = {
            kind: max(
                (segment.peak(extents, starts) for segment in self.segments if isinstance(segment, kind)), default=0
            )
            for kind in (Recorded, Called)
        }
        called = sum(isinstance(segment, Called) for segment in self.segments)
        inputs = sum(segment.held(extents) for segment in self.segments if isinstance(segment, Recorded))
        held = self.cached * extents[C] if self.cached else 0
        held += self.carried * extents[Z] if self.carried else 0
        more = sum(self.calls[at].shape.size.at(extents) for at in self.further)  # copies of further outputs
        return int(
            self.laid(self.crossing, extents).end
            + 2 * LINE
            + sum(within.values())
            + inputs
            + held
            + more
            + objects(called)
        )

    @cached_property
    def cached(self) -> int:
        """The bytes of a row of all caches."""
        return sum(call.shape.row for call in map(self.calls.__getitem__, self.state) if isinstance(call.shape, Cache))

    @cached_property
    def carried(self) -> int:
        """The bytes of a state of a sequence."""
        return sum(call.shape.row for call in map(self.calls.__getitem__, self.state) if isinstance(call.shape, States))

    def cost(self, extents: Extents) -> Costs:
        """Return the machine's kernels that a run calls, in order, each with its sizes."""
        return [priced for call in self.calls for priced in call.kernel.cost(call.bound, call.shape, extents)]

    def walk(
        self, batch: Batch, found: list[Any] | None = None, until: int | None = None
    ) -> Iterator[tuple[Call, dict[str, object], NDArray[np.float32]]]:
        """Yield every step once it is done, or those before step `until`: its arguments and its result, in a buffer
        that is not used twice. `found` has the values of the first steps, if these are done already; the values of
        further ones are appended, and a value that no later step reads is dropped."""
        found = [] if found is None else found
        values, extents = Walked(self.entered(batch), found), self.extents(batch)
        last = None if until is None else self.first + until
        for i, call in enumerate(self.calls[self.first + len(found) : last], self.first + len(found)):
            arguments = call.arguments(values, batch)
            if call.kernel.view:
                found.append(call.kernel.function(**arguments))
            else:
                found.append(unwritten(call.shape.at(extents), number_of(call.shape)))
                compute(call, found[-1], arguments, batch)
            yield call, arguments, found[-1]
            for v in self.dropped[i]:
                if v >= self.first:
                    found[v - self.first] = None

    def resumed(self, found: Sequence[Any], batch: Batch) -> NDArray[np.float32]:
        """Return the output's rows, given the values of the first steps, of this program or of one that has the same;
        equal to the bit to those of a run."""
        values = [*found]
        for _ in self.walk(batch, values):
            pass
        return np.asarray(values[self.result - self.first])

    def run(self, batch: Batch) -> list[NDArray[np.float32]]:
        """Return the outputs' rows. Buffers of the whole batch belong to this call alone. The first output is in one of
        them; the others are copied, each value once: outputs that are one value are one array. When called while this
        thread records, it runs in a context of its own."""
        from formats.kernels.engine.launch import RECORDING

        if RECORDING.get():
            return Context().run(self.run, batch)
        if (noted := run_noted(self, batch)) is not None:
            return noted
        values = self.begun(batch)
        for segment in self.segments:
            segment.run(values)
        return self.outcome(values)

    def outcome(self, values: Values) -> list[NDArray[np.float32]]:
        """Return the outputs' rows of a finished run."""
        rows = {at: np.array(values[at]) for at in self.further} | {self.result: np.asarray(values[self.result])}
        return [rows[at] for at in self.results]

    def timed(self, batch: Batch) -> dict[int, float]:
        """Return the seconds of each step of one run, by the number of its call, as measured within the run."""
        values = self.begun(batch)
        return {step: taken for segment in self.segments for step, taken in segment.timed(values).items()}

    def begun(self, batch: Batch, outset: Outset | None = None) -> Values:
        """Return the values of a run that is about to begin; `outset`: that of the batch, if it is known."""
        extents, plan, entered = outset or self.outset(batch)
        return Values(self, batch, extents, Blocks(plan, self.crossing), entered)

    def outset(self, batch: Batch) -> Outset:
        """Return the preparation of a run for a batch."""
        entered = dict(enumerate(self.entered(batch)))
        if self.scored or self.spaced or self.elsewhere:
            extents = self.extents(batch)
            return Outset(extents, self.across(extents), entered)
        held = (getattr(batch, "capacity", 0), getattr(batch, "states", 0)) if self.state else (0, 0)
        return Outset(*self.sized(batch.rows, len(batch), held), entered)

    def sized(self, rows: int, sentences: int, held: tuple[int, int]) -> tuple[Extents, Plan]:
        """Return the extents of a batch without inputs or relations, over so many rows of caches and so many states,
        and the plan of the buffers between segments; those of the last batch are stored."""
        latest, key = self.latest, (rows, sentences, held)  # a single read: other threads may change it
        if latest is None or latest[0] != key:
            kept = {space: count for space, count in zip((C, Z), held, strict=True) if count}
            extents = Extents({T: rows, S: sentences, **kept})
            self.latest = latest = key, extents, self.across(extents)
        return latest[1], latest[2]

    def across(self, extents: Extents) -> Plan:
        """Return the plan of the buffers between segments."""
        return self.row.times(extents[T]) if self.level else self.laid(self.crossing, extents)

    def forget(self) -> None:
        """Release the buffers and tables that calls pass on to one another: they are made anew."""
        self.latest = None
        for segment in self.segments:
            segment.forget()

    def entered(self, batch: Any) -> list[NDArray[np.float32]]:
        """Return the input matrices, in order: caches are stored with the session. Raises ValueError for a batch that
        lacks one, and for one without caches."""
        if self.state and not hasattr(batch, "caches"):
            shapes = ", ".join(str(self.calls[i].shape) for i in self.state)
            raise ValueError(
                f"this program has state in space C ({shapes:.80}): run it by a session, program.start(capacity)"
            )
        return [
            batch.caches[port.name] if i in self.state else as_contiguous(port.name, batch.input(port), np.float32)
            for i, port in enumerate(self.ports)
        ]

    def trace(self, batch: Batch) -> Iterator[tuple[NDArray[np.float32], Doubles]]:
        """Yield each step's result and, for the same operands, the meaning of its kernel."""
        for call, arguments, result in self.walk(batch):
            yield widened(result), meaning(call.kernel, arguments, batch)

    def exact(self, batch: Batch, instead: Mapping[int, object], rounded: bool = True) -> Doubles:
        """Compute the first output's rows by the meanings of the kernels, in float64; `instead` replaces constants, by
        their id."""
        return np.asarray(self.meanings(batch, instead, rounded)[self.result])

    def meanings(
        self, batch: Batch, instead: Mapping[int, object] = MappingProxyType({}), rounded: bool = True
    ) -> dict[int, Doubles]:
        """Return the results and the next values of the state, by number, by the meanings of kernels in float64;
        `instead` as in `exact`. Any other value is dropped once no later step reads it: of a model of 30 layers a few
        are live, not hundreds."""
        if self.ports or self.elsewhere:
            self.extents(batch)  # raises for a batch that does not fit
        values = {i: np.asarray(widened(array), np.float64) for i, array in enumerate(self.entered(batch))}
        for i, port in enumerate(self.ports):
            if i not in self.state:
                values[i] = np.asarray(batch.input(port), np.float64)
        returned = {*self.results, *self.state.values()}
        for at, call in enumerate(self.calls[self.first :], self.first):
            values[at] = meaning(call.kernel, call.arguments(values, batch), batch, instead, rounded)
            for v in self.dropped[at]:
                if v not in returned:
                    del values[v]
        return values


def objects(steps: int) -> int:
    """Return the bytes of Python's own objects in a call: views, arguments and records, as measured in CPython 3.11 to
    within 2 kB."""
    return OBJECTS + 190 * min(steps, 40)
