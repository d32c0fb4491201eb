"""Steps bound to kernels: shapes inferred and checked, lifetimes known, buffers planned for any number of rows.

Values are numbered: those that enter first, then those of steps."""
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
from opmatrix.runtime.declarations.operands import FLOAT_BYTES, LINE, C, Cache, Value, entering, leaving, number_of
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.recorded import Recorded, launches
from opmatrix.runtime.scheme import reading_rows
from opmatrix.runtime.segments import ROW, Blocks, ByStep, Called, Span, Values, Walked, plan_buffers, unwritten

if TYPE_CHECKING:
    from opmatrix.runtime.program import Constant, Step

OBJECTS = 6000                                              # bytes of Python's own objects in a call, about


class Call(NamedTuple):
    """A step as it runs. What `values` names is a shape in `bound`, and comes from the step numbered there."""
    kernel: Declared
    bound: Arguments
    values: dict[str, int]
    shape: Value

    def arguments(self, found: ByStep, batch: object) -> dict[str, object]:
        """What its kernel is called with, given the values of the steps before it."""
        given = vars(self.bound) | {name: found[v] for name, v in self.values.items()}
        return given | {"batch": batch} if self.kernel.batched else given

    @property
    def by_tokens(self) -> bool:
        """Whether its result and all values that it reads have a row a token."""
        spaces = [getattr(each, "space", None) for each in (self.shape, *(vars(self.bound)[v] for v in self.values))]
        return all(space == T for space in spaces)


class Outset(NamedTuple):
    """What a run asks of a batch: how large it is, the plan of what crosses borders, and what enters, by number."""
    extents: Extents
    plan: Plan
    entered: Mapping[int, NDArray[np.float32]]


class enter(Arguments):
    """No step calls it: what enters lies with the batch, or with the session."""

    def run(out: Any, *, port: Any) -> None: ...
    def shape(a) -> Value: return entering(a.port)
    def reference(a) -> Any: return a.batch.input(a.port)


ENTERED = Declared(enter, is_input=True)


def bind(steps: "Sequence[Step]", constants: "Mapping[str, Constant]", ports: Sequence[Port] = ()) -> list[Call]:
    """What enters and steps, with their shapes. ValueError names the step, its kernel and what is wrong."""
    calls = [Call(ENTERED, ENTERED.record(port=port), {}, entering(port)) for port in ports]
    number = {port.name: i for i, port in enumerate(ports)}
    shapes = {port.name: calls[i].shape for i, port in enumerate(ports)}
    if taken := [name for name in number if name in constants]:
        raise ValueError(f"input {taken[0]!r}: a constant has this name")
    for i, step in enumerate(steps):
        try: calls.append(call(step, shapes, number, constants))
        except ValueError as error: raise ValueError(f"step {i}, {step.output} = {step.kernel}: {error}") from None
        number[step.output], shapes[step.output] = len(calls) - 1, calls[-1].shape
    return calls


def call(step: "Step", shapes: Mapping[str, Value], number: Mapping[str, int],
         constants: "Mapping[str, Constant]") -> Call:
    """One step, given the shapes and numbers of the values before it."""
    if step.kernel not in KERNELS: raise ValueError(f"there is no such kernel; there are {', '.join(KERNELS)}")
    if step.output in number or step.output in constants: raise ValueError(f"{step.output!r} is already defined")
    for operand, name in step.operands.items():
        if name not in number and name not in constants:
            raise ValueError(f"{operand} is {name!r}, which no earlier step gives and no constant is named")
    kernel = KERNELS[step.kernel]
    given = {operand: shapes.get(name, constants.get(name)) for operand, name in step.operands.items()}
    bound = kernel.bind(given, step.attributes)
    values = {operand: number[name] for operand, name in step.operands.items() if name in number}
    shape = kernel.seated(kernel.shape(bound), bound)
    if max(shape.size[:4]) > FLOAT_BYTES * WIDEST:
        raise ValueError(f"it gives {shape}: a row may have {WIDEST:,} numbers")
    return Call(kernel, bound, values, shape)


def check_state(calls: Sequence[Call], names: Sequence[str], state: Mapping[int, int]) -> None:
    """Every cache is a piece of state, which one step writes before anything else reads it: its next value. ValueError
    where it is not."""
    for i, call in enumerate(calls):
        if call.kernel.is_input and isinstance(call.shape, Cache) and i not in state:
            raise ValueError(f"state: input {names[i]!r}, {call.shape} in space C, has no next value: "
                             f"state={{{names[i]!r}: the value "
                             "that is appended to it}")
    reading: dict[int, list[int]] = {}
    for j, call in enumerate(calls):
        for v in {*call.values.values()}: reading.setdefault(v, []).append(j)
    for i, behind in state.items():
        named = f"state: {names[i]!r}, {calls[i].shape} in space C"
        if not isinstance(calls[i].shape, Cache):
            raise ValueError(f"state: {names[i]!r} is {calls[i].shape}: rows that a session holds are of space C")
        readers = reading.get(i, [])
        writers = [j for j in readers if calls[j].values.get(calls[j].kernel.inplace or "") == i]
        if not writers: raise ValueError(f"{named}: no step writes it: append to it")
        if len(writers) > 1:
            raise ValueError(f"{named}: {' and '.join(repr(names[j]) for j in writers)} write it: one step may")
        if other := [j for j in readers if j != writers[0]]:
            raise ValueError(f"{named}: {names[other[0]]} = {calls[other[0]].kernel.name} reads it before it is "
                             f"written: read {names[writers[0]]!r}")
        if behind != writers[0]:
            raise ValueError(f"{named}: its next value is {names[writers[0]]!r}, not {names[behind]!r}")


def last_uses(calls: Sequence[Call], outputs: Sequence[int]) -> list[int]:
    """The last step that reads each value; outputs are read after all of them."""
    last = list(range(len(calls)))
    for i, call in enumerate(calls):
        for v in call.values.values(): last[v] = i
    for output in outputs: last[output] = len(calls)
    return last


def homes(calls: Sequence[Call], outputs: Sequence[int]) -> tuple[list[int], list[int]]:
    """For each step the step whose buffer its result lies in, and the last step that reads that buffer. A view lies in
    what it shows; a kernel that may write over an operand does so where nothing reads that buffer later. A matrix that
    enters is the caller's, and nobody writes over it."""
    last, home = last_uses(calls, outputs), list[int]()
    for i, call in enumerate(calls):
        base = call.values["x"] if call.kernel.view else find_overwritten(i, call, calls, home, last)
        home.append(i if base == i else home[base])
        last[home[i]] = max(last[home[i]], last[i])
    return home, last


def find_overwritten(i: int, call: Call, calls: Sequence[Call], home: Sequence[int], last: Sequence[int]) -> int:
    """The step whose result step i may write over, or i itself."""
    if call.kernel.inplace is None: return i
    v = call.values[call.kernel.inplace]
    if calls[home[v]].kernel.is_input and not isinstance(call.shape, Cache): return i
    alone = [home[w] for w in call.values.values()].count(home[v]) == 1
    whole = calls[v].shape == call.shape                    # rows of a part would be apart
    return v if alone and whole and last[home[v]] == i else i


class Schedule:
    """A bound program: how it runs on a batch, and where every value then lies."""

    def __init__(self, steps: "Sequence[Step]", constants: "Mapping[str, Constant]", outputs: Mapping[str, str],
                 ports: Sequence[Port] = (),
                 state: Mapping[str, str] = MappingProxyType({})):
        self.calls, self.ports = bind(steps, constants, ports), tuple(ports)
        self.reading = reading_rows(sum(constant.nbytes for constant in constants.values()))
        names = [*(port.name for port in ports), *(step.output for step in steps)]
        for name in (*outputs.values(), *state.values()):
            if name not in names[len(ports):]: raise ValueError(f"output: no step gives {name!r}")
        if unknown := [name for name in state if name not in names[:len(ports)]]:
            raise ValueError(f"state: no input is {unknown[0]!r}")
        self.results = [names.index(name) for name in outputs.values()]
        self.further = {*self.results} - {self.result}
        self.outputs = {name: leaving(name, names[at], self.calls[at].shape)
                        for name, at in zip(outputs, self.results, strict=True)}
        self.state = {names.index(name): names.index(behind) for name, behind in state.items()}
        check_state(self.calls, names, self.state)
        self.base, last = homes(self.calls, self.results)
        self.spans = {b: Span(self.calls[b].shape.size, b, last[b]) for b in sorted(set(self.base)) if b >= self.first}
        self.scored = any(span.size.pair for span in self.spans.values())
        self.elsewhere = self.related()                     # what gives the rows of spaces that a batch does not tell
        self.level = not (self.scored or any(span.size.sequence or span.size.other for span in self.spans.values()))
        self.segments = self.divided()
        self.crossing = self.between()
        self.latest: tuple[tuple[int, int, int], Extents, Plan] | None = None
        self.dropped: list[list[int]] = [[] for _ in range(len(self.calls) + 1)]
        for v, last_use in enumerate(last_uses(self.calls, self.results)): self.dropped[last_use].append(v)

    @property
    def first(self) -> int:
        """The number of the first step: of so many values that enter."""
        return len(self.ports)

    @property
    def result(self) -> int:
        """The step that gives the first output."""
        return self.results[0]

    def related(self) -> tuple[Relation, ...]:
        """The relations that its steps read, beside those that every batch or session gives."""
        return tuple(dict.fromkeys(each for call in self.calls for each in call.kernel.relations(call.bound)
                                   if each.custom))

    def extents(self, batch: Batch, patterns: Iterable[Pattern] = ()) -> Extents:
        """How large a batch is for these steps. Raises ValueError for an input or a relation that does not fit."""
        return batch.extents(patterns, self.spaced, self.elsewhere)

    @cached_property
    def spaced(self) -> list[Port]:
        """What enters with a batch: all but caches."""
        return [port for port in self.ports if port.space != str(C)]

    def divided(self) -> list[Recorded | Called]:
        """Steps that can be recorded in one piece, as far as they follow one another, and the others one by one."""
        real = [i for i, call in enumerate(self.calls) if not (call.kernel.view or call.kernel.is_input)]
        pieces = [[*steps] for _, steps in groupby(real, lambda i: -1 if launches(self.calls[i]) else i)]
        return [Recorded(self, steps) if launches(self.calls[steps[0]]) else Called(self, steps) for steps in pieces]

    @property
    def recordings(self) -> int:
        """How many pieces of it are recorded."""
        return sum(isinstance(segment, Recorded) for segment in self.segments)

    def between(self) -> dict[int, Span]:
        """The buffers of the whole batch, by the step that writes them first, with the segments in which they live: the
        result's, those that several segments use, and those of steps that are called from Python. Groups come in any
        order, so they live until the end of a segment."""
        users: dict[int, list[int]] = {}
        for number, segment in enumerate(self.segments):
            for b in self.used(segment.steps):
                if b >= self.first: users.setdefault(b, []).append(number)
        results = {self.base[at] for at in self.results}
        for b in results: users[b].append(len(self.segments))
        return {b: Span(self.spans[b].size, found[0], found[-1]) for b, found in users.items()
                if len(found) > 1 or b in results or isinstance(self.segments[found[0]], Called)}

    def used(self, steps: Iterable[int]) -> list[int]:
        """The buffers that these steps read or write, each by the step that writes it first."""
        return sorted({self.base[v] for i in steps for v in (i, *self.calls[i].values.values())})

    def plan(self, extents: Extents) -> Plan:
        """Where the buffers lie if steps run one by one on a batch of these extents. Where every buffer grows with the
        tokens alone one plan serves all."""
        return self.laid(self.spans, extents)

    def laid(self, spans: Mapping[int, Span], extents: Extents) -> Plan:
        """The plan of some buffers, the result's among them."""
        result, every = [*spans].index(self.base[self.result]), tuple(spans.values())
        return plan_buffers(every, result,
                            ROW).times(extents[T]) if self.level else plan_buffers(every, result, extents)

    @cached_property
    def row(self) -> Plan:
        """The plan of what crosses borders, for one row."""
        return self.laid(self.crossing, ROW)

    def peak(self, extents: Extents, starts: NDArray[np.int64] | None = None) -> int:
        """Bytes of the result's block, of what lies between segments and within them, of what recordings read of a
        batch, of caches, and of Python's own objects. The arenas of segments are kept, so the largest counts beside
        what steps allocate that are called."""
        within = {kind: max((each.peak(extents, starts) for each in self.segments if isinstance(each, kind)), default=0)
                  for kind in (Recorded, Called)}
        called = sum(isinstance(each, Called) for each in self.segments)
        inputs = sum(each.held(extents) for each in self.segments if isinstance(each, Recorded))
        held = self.cached * extents[C] if self.state else 0
        more = sum(self.calls[at].shape.size.at(extents) for at in self.further)                         # copies
        return int(self.laid(self.crossing, extents).end + 2 * LINE + sum(within.values()) + inputs + held + more
                   + objects(called))

    @cached_property
    def cached(self) -> int:
        """Bytes of a row of all caches."""
        return sum(call.shape.row for call in map(self.calls.__getitem__, self.state) if isinstance(call.shape, Cache))

    def cost(self, extents: Extents) -> Costs:
        """The machine's kernels that a run calls, in order, each with its sizes."""
        return [priced for call in self.calls for priced in call.kernel.cost(call.bound, call.shape, extents)]

    def walk(self, batch: Batch, found: list[Any] | None = None,
             until: int | None = None) -> Iterator[tuple[Call, dict[str, object], NDArray[np.float32]]]:
        """Every step once it is done, or those before step `until`: its arguments and its result, in a buffer that is
        not used twice. `found` has the values of the first steps, where these are done already; those of further ones
        are appended, and what no later step reads is dropped."""
        found = [] if found is None else found
        values, extents = Walked(self.entered(batch), found), self.extents(batch)
        last = None if until is None else self.first + until
        for i, call in enumerate(self.calls[self.first + len(found):last], self.first + len(found)):
            arguments = call.arguments(values, batch)
            if call.kernel.view: found.append(call.kernel.function(**arguments))
            else:
                found.append(unwritten(call.shape.at(extents), number_of(call.shape)))
                compute(call, found[-1], arguments, batch)
            yield call, arguments, found[-1]
            for v in self.dropped[i]:
                if v >= self.first: found[v - self.first] = None

    def resumed(self, found: Sequence[Any], batch: Batch) -> NDArray[np.float32]:
        """The output's rows, given the values of the first steps, of this program or of one that has the same; to the
        bit those of a run."""
        values = [*found]
        for _ in self.walk(batch, values): pass
        return np.asarray(values[self.result - self.first])

    def run(self, batch: Batch) -> list[NDArray[np.float32]]:
        """The outputs' rows. Buffers of the whole batch are of this call alone; the first output lies in one, the
        others are copied from them, each value once: outputs that are one value are one array. Called back while this
        thread records, it runs apart from that."""
        from formats.kernels.engine.launch import RECORDING
        if RECORDING.get(): return Context().run(self.run, batch)
        if (noted := run_noted(self, batch)) is not None: return noted
        values = self.begun(batch)
        for segment in self.segments: segment.run(values)
        return self.outcome(values)

    def outcome(self, values: Values) -> list[NDArray[np.float32]]:
        """The outputs' rows of a run that is done."""
        rows = {at: np.array(values[at]) for at in self.further} | {self.result: np.asarray(values[self.result])}
        return [rows[at] for at in self.results]

    def timed(self, batch: Batch) -> dict[int, float]:
        """Seconds of each step of one run, by the number of its call, as the run itself sees them."""
        values = self.begun(batch)
        return {step: taken for segment in self.segments for step, taken in segment.timed(values).items()}

    def begun(self, batch: Batch, outset: Outset | None = None) -> Values:
        """The values of a run that is about to begin; `outset`: that of the batch, if it is known."""
        extents, plan, entered = outset or self.outset(batch)
        return Values(self, batch, extents, Blocks(plan, self.crossing), entered)

    def outset(self, batch: Batch) -> Outset:
        """What a run asks of a batch."""
        entered = dict(enumerate(self.entered(batch)))
        if self.scored or self.spaced or self.elsewhere:
            extents = self.extents(batch)
            return Outset(extents, self.across(extents), entered)
        return Outset(*self.sized(batch.rows, len(batch), getattr(batch, "capacity", 0) if self.state else 0), entered)

    def sized(self, rows: int, sentences: int, held: int) -> tuple[Extents, Plan]:
        """The extents of a batch that nothing else is asked of, over caches of so many rows, and the plan of what
        crosses borders; those of the last one are remembered."""
        latest, key = self.latest, (rows, sentences, held)  # read once: other threads may run, too
        if latest is None or latest[0] != key:
            extents = Extents({T: rows, S: sentences, **({C: held} if held else {})})
            self.latest = latest = key, extents, self.across(extents)
        return latest[1], latest[2]

    def across(self, extents: Extents) -> Plan:
        """The plan of what crosses borders between segments."""
        return self.row.times(extents[T]) if self.level else self.laid(self.crossing, extents)

    def forget(self) -> None:
        """Give back what calls hand on to one another: it is made anew."""
        self.latest = None
        for segment in self.segments: segment.forget()

    def entered(self, batch: Any) -> list[NDArray[np.float32]]:
        """The matrices that enter, in turn: caches lie with the session. ValueError for a batch that does not give one,
        and for one without caches."""
        if self.state and not hasattr(batch, "caches"):
            said = ", ".join(str(self.calls[i].shape) for i in self.state)
            raise ValueError(f"this program has state in space C ({said:.80}): run it by a session, "
                             "program.start(capacity)")
        return [batch.caches[port.name] if i in self.state else as_contiguous(port.name, batch.input(port), np.float32)
                for i, port in enumerate(self.ports)]

    def trace(self, batch: Batch) -> Iterator[tuple[NDArray[np.float32], Doubles]]:
        """Each step's result and, for the same operands, what its kernel means."""
        for call, arguments, found in self.walk(batch):
            yield widened(found), meaning(call.kernel, arguments, batch)

    def exact(self, batch: Batch, instead: Mapping[int, object], rounded: bool = True) -> Doubles:
        """The first output's rows by the meanings of the kernels, in float64; `instead` replaces constants, by their
        id."""
        return np.asarray(self.meanings(batch, instead, rounded)[self.result])

    def meanings(self, batch: Batch, instead: Mapping[int, object] = MappingProxyType({}),
                 rounded: bool = True) -> list[Doubles]:
        """What enters and what every step gives, by the meanings of kernels, in float64; `instead` as in `exact`."""
        if self.ports or self.elsewhere: self.extents(batch)             # which says what does not fit
        found = [np.asarray(widened(each), np.float64) for each in self.entered(batch)]
        for i, port in enumerate(self.ports):
            if i not in self.state: found[i] = np.asarray(batch.input(port), np.float64)
        for call in self.calls[self.first:]:
            found.append(meaning(call.kernel, call.arguments(found, batch), batch, instead, rounded))
        return found


def objects(steps: int) -> int:
    """Bytes of Python's own objects in a call: views, arguments and records, as measured in CPython 3.11 to within 2
    kB."""
    return OBJECTS + 190 * min(steps, 40)
