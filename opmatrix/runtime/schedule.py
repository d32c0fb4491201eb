"""Steps bound to kernels: shapes inferred and checked, lifetimes known, buffers planned for any number of rows."""
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import Context
from functools import cached_property
from itertools import groupby
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.format import Format
from opmatrix.extents import Extents, S, T
from opmatrix.runtime.costs import Costs
from opmatrix.runtime.kernel import Declared
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.operands import FLOAT, LINE, WIDEST, C, Cache, Rows, Value
from opmatrix.runtime.planner import Plan
from opmatrix.runtime.recorded import Recorded, launches
from opmatrix.runtime.segments import ROW, Blocks, Called, Span, Values, placed

OBJECTS = 6000                                              # bytes of Python's own objects in a call, about


class Call(NamedTuple):
    """A step as it runs. What `values` names is a shape in `bound`, and comes from the step numbered there."""
    kernel: Declared
    bound: SimpleNamespace
    values: dict[str, int]
    shape: Value

    def arguments(self, found: Any, batch: Any) -> dict[str, Any]:
        """What its kernel is called with, given the values of the steps before it."""
        given = vars(self.bound) | {name: found[v] for name, v in self.values.items()}
        return given | {"batch": batch} if self.kernel.batched else given


def bind(steps: Sequence[Any], constants: Mapping[str, Any]) -> list[Call]:
    """Steps with their shapes. ValueError names the step, its kernel and what is wrong."""
    calls: list[Call] = []
    number: dict[str, int] = {}
    shapes: dict[str, Value] = {}
    for i, step in enumerate(steps):
        try: calls.append(call(step, shapes, number, constants))
        except ValueError as error: raise ValueError(f"step {i}, {step.output} = {step.kernel}: {error}") from None
        number[step.output], shapes[step.output] = i, calls[i].shape
    return calls


def call(step: Any, shapes: Mapping[str, Value], number: Mapping[str, int], constants: Mapping[str, Any]) -> Call:
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
    shape = kernel.seated(kernel.gives(bound), bound)
    if max(shape.size) > FLOAT * WIDEST: raise ValueError(f"it gives {shape}: a row may have {WIDEST:,} numbers")
    return Call(kernel, bound, values, shape)


def stated(calls: Sequence[Call], names: Sequence[str]) -> None:
    """Every piece of state is written once, before anything else reads it. ValueError where it is not."""
    pieces = [i for i, call in enumerate(calls) if call.kernel.held]
    if (numbers := [calls[i].bound.number for i in pieces]) != [*range(len(pieces))]:
        raise ValueError(f"state: pieces are numbered {numbers}; they must be numbered from 0 on, in their order")
    for i in pieces:
        named = f"state: {names[i]!r}, {calls[i].shape} in space C"
        readers = [j for j, call in enumerate(calls) if i in call.values.values()]
        writers = [j for j in readers if calls[j].values.get(calls[j].kernel.over or "") == i]
        if not writers: raise ValueError(f"{named}: no step writes it: append to it")
        if len(writers) > 1: raise ValueError(f"{named}: steps {writers} write it: one may")
        if other := [j for j in readers if j != writers[0]]:
            raise ValueError(f"{named}: step {other[0]}, {names[other[0]]} = {calls[other[0]].kernel.name}, reads it before it is "
                             f"written: read {names[writers[0]]!r}")


def last_uses(calls: Sequence[Call], output: int) -> list[int]:
    """The last step that reads each value; the output is read after all of them."""
    last = list(range(len(calls)))
    for i, call in enumerate(calls):
        for v in call.values.values(): last[v] = i
    last[output] = len(calls)
    return last


def homes(calls: Sequence[Call], output: int) -> tuple[list[int], list[int]]:
    """For each step the step whose buffer its result lies in, and the last step that reads that buffer. A view lies in
    what it shows; a kernel that may write over an operand does so where nothing reads that buffer later."""
    last, home = last_uses(calls, output), list[int]()
    for i, call in enumerate(calls):
        base = call.values["x"] if call.kernel.view else over(i, call, calls, home, last)
        home.append(i if base == i else home[base])
        last[home[i]] = max(last[home[i]], last[i])
    return home, last


def over(i: int, call: Call, calls: Sequence[Call], home: Sequence[int], last: Sequence[int]) -> int:
    """The step whose result step i may write over, or i itself."""
    if call.kernel.over is None: return i
    v = call.values[call.kernel.over]
    alone = [home[w] for w in call.values.values()].count(home[v]) == 1
    whole = calls[v].shape == call.shape                    # rows of a part would be apart
    return v if alone and whole and last[home[v]] == i else i


class Schedule:
    """A bound program: how it runs on a batch, and where every value then lies."""

    def __init__(self, steps: Sequence[Any], constants: Mapping[str, Any], output: str):
        self.calls = bind(steps, constants)
        names = [step.output for step in steps]
        if output not in names: raise ValueError(f"output: no step gives {output!r}")
        self.result = names.index(output)
        if not isinstance(self.calls[self.result].shape, Rows):
            raise ValueError(f"output: {output!r} is {self.calls[self.result].shape}; a program gives one row a token or a sequence")
        self.state = {i: call.shape for i, call in enumerate(self.calls) if isinstance(call.shape, Cache) and call.kernel.held}
        stated(self.calls, names)
        self.base, last = homes(self.calls, self.result)
        self.spans = {b: Span(self.calls[b].shape.size, b, last[b]) for b in sorted(set(self.base))}
        self.home = [[*self.spans].index(b) for b in self.base]
        self.scored = any(span.size.pair for span in self.spans.values())
        self.level = not (self.scored or any(span.size.sequence for span in self.spans.values()))
        self.segments = self.divided()
        self.crossing = self.between()
        self.dropped: list[list[int]] = [[] for _ in [*self.calls, self.result]]
        for v, last_use in enumerate(last_uses(self.calls, self.result)): self.dropped[last_use].append(v)

    def divided(self) -> list[Recorded | Called]:
        """Steps that can be recorded in one piece, as far as they follow one another, and the others one by one."""
        real = [i for i, call in enumerate(self.calls) if not (call.kernel.view or call.kernel.held)]
        pieces = [[*steps] for _, steps in groupby(real, lambda i: -1 if launches(self.calls[i]) else i)]
        return [Recorded(self, steps) if launches(self.calls[steps[0]]) else Called(self, steps) for steps in pieces]

    def between(self) -> dict[int, Span]:
        """The buffers of the whole batch, by the step that writes them first, with the segments in which they live: the result's, those
        that several segments use, and those of steps that are called from Python. Groups come in any order, so they live until
        the end of a segment."""
        users: dict[int, list[int]] = {}
        for number, segment in enumerate(self.segments):
            for b in self.used(segment.steps):
                if b not in self.state: users.setdefault(b, []).append(number)
        users[result := self.base[self.result]].append(len(self.segments))
        return {b: Span(self.spans[b].size, found[0], found[-1]) for b, found in users.items()
                if len(found) > 1 or b == result or isinstance(self.segments[found[0]], Called)}

    def used(self, steps: Iterable[int]) -> list[int]:
        """The buffers that these steps read or write, each by the step that writes it first."""
        return sorted({self.base[v] for i in steps for v in (i, *self.calls[i].values.values())})

    def plan(self, extents: Extents) -> Plan:
        """Where the buffers lie if steps run one by one on a batch of these extents. Where every buffer grows with the tokens alone one
        plan serves all."""
        return self.laid(self.spans, extents)

    def laid(self, spans: Mapping[int, Span], extents: Extents) -> Plan:
        """The plan of some buffers, the result's among them."""
        result, every = [*spans].index(self.base[self.result]), tuple(spans.values())
        return placed(every, result, ROW).times(extents[T]) if self.level else placed(every, result, extents)

    @cached_property
    def row(self) -> Plan:
        """The plan of what crosses borders, for one row."""
        return self.laid(self.crossing, ROW)

    def peak(self, extents: Extents, starts: NDArray[np.int64] | None = None) -> int:
        """Bytes of the result's block, of what lies between segments and within them, of caches, and of Python's own objects. The
        arenas of segments are kept, so the largest counts beside what steps allocate that are called."""
        within = {kind: max((each.peak(extents, starts) for each in self.segments if isinstance(each, kind)), default=0)
                  for kind in (Recorded, Called)}
        called = sum(isinstance(each, Called) for each in self.segments)
        held = self.cached * extents[C] if self.state else 0
        return int(self.laid(self.crossing, extents).end + 2 * LINE + sum(within.values()) + held + objects(called))

    @cached_property
    def cached(self) -> int:
        """Bytes of a row of all caches."""
        return sum(shape.row for shape in self.state.values())

    def cost(self, extents: Extents) -> Costs:
        """The machine's kernels that a run calls, in order, each with its sizes."""
        return [priced for call in self.calls for priced in call.kernel.cost(call.bound, call.shape, extents)]

    def walk(self, batch: Any, found: list[Any] | None = None, until: int | None = None) -> Iterator[tuple[Call, dict[str, Any], Any]]:
        """Every step once it is done, or those before step `until`: its arguments and its result, in a buffer that is not used twice.
        `found` has the values of the first steps, where these are done already; those of further ones are appended, and what no later
        step reads is dropped."""
        found = [] if found is None else found
        extents = batch.extents()
        for i, call in enumerate(self.calls[len(found):until], len(found)):
            arguments = call.arguments(found, batch)
            if call.kernel.view: found.append(call.kernel.function(**arguments))
            else:
                found.append(np.empty(call.shape.at(extents), np.float32))
                call.kernel.function(found[i], **arguments)
            yield call, arguments, found[i]
            for v in self.dropped[i]: found[v] = None

    def resumed(self, found: Sequence[Any], batch: Any) -> NDArray[np.float32]:
        """The output's rows, given the values of the first steps, of this program or of one that has the same; to the bit those of a
        run."""
        values = [*found]
        for _ in self.walk(batch, values): pass
        return np.asarray(values[self.result])

    def run(self, batch: Any) -> NDArray[np.float32]:
        """The output's rows. Buffers of the whole batch are of this call alone. Called back while this thread records, it runs apart
        from that."""
        from formats.kernels.engine.launch import RECORDING
        if RECORDING.get(): return Context().run(self.run, batch)
        held = self.held(batch) if self.state else {}
        extents = batch.extents() if self.scored or held else Extents.made({T: batch.rows, S: len(batch)})
        plan = self.row.times(batch.rows) if self.level else self.laid(self.crossing, extents)
        values = Values(self, batch, extents, Blocks(plan, self.crossing, held))
        for segment in self.segments: segment.run(values)
        return np.asarray(values[self.result])

    def held(self, batch: Any) -> dict[int, NDArray[np.float32]]:
        """The caches of a session's batch, by the steps that name them. ValueError for any other batch."""
        if not hasattr(batch, "caches"):
            said = ", ".join(map(str, self.state.values()))
            raise ValueError(f"this program has state in space C ({said:.80}): run it by a session, program.start(capacity)")
        return {i: batch.caches[self.calls[i].bound.number] for i in self.state}

    def trace(self, batch: Any) -> Iterator[tuple[Any, Any]]:
        """Each step's result and, for the same operands, what its kernel means."""
        for call, arguments, found in self.walk(batch):
            yield found, meaning(call.kernel, arguments, batch)

    def exact(self, batch: Any, instead: Mapping[int, Any], rounded: bool = True) -> NDArray[np.float64]:
        """The output's rows by the meanings of the kernels, in float64; `instead` replaces constants, by their id."""
        return np.asarray(self.meanings(batch, instead, rounded)[self.result])

    def meanings(self, batch: Any, instead: Mapping[int, Any] = MappingProxyType({}), rounded: bool = True) -> list[Any]:
        """The same of every step."""
        if self.state: self.held(batch)
        found: list[Any] = []
        for call in self.calls:
            found.append(meaning(call.kernel, call.arguments(found, batch), batch, instead, rounded))
        return found


def objects(steps: int) -> int:
    """Bytes of Python's own objects in a call: views, arguments and records, as measured in CPython 3.11 to within 2 kB."""
    return OBJECTS + 190 * min(steps, 40)


def meaning(kernel: Declared, arguments: Mapping[str, Any], batch: Any, instead: Mapping[int, Any] = MappingProxyType({}),
            rounded: bool = True) -> Any:
    """What a kernel means for these arguments, in float64; of operands that it rounds first, unless told otherwise."""
    return kernel.means(read(kernel, arguments, batch, instead, rounded))


def read(kernel: Declared, arguments: Mapping[str, Any], batch: Any, instead: Mapping[int, Any] = MappingProxyType({}),
         rounded: bool = True) -> SimpleNamespace:
    """The arguments of a kernel in float64, as it computes with them."""
    given = {name: instead.get(id(value), value) for name, value in arguments.items()} | {"batch": batch}
    reads = kernel.reads(SimpleNamespace(**given)) if rounded else {}
    return SimpleNamespace(**{name: wide(value, instead) for name, value in (given | dict(reads)).items()})


def bound(kernel: Declared, arguments: Mapping[str, Any], exact: Any = None) -> NDArray[np.float64]:
    """How far a kernel may be from its meaning for these arguments, entry by entry; `exact`: these as `read` gives them."""
    if exact is None: exact = read(kernel, arguments, arguments.get("batch"))
    return np.asarray(kernel.bound(SimpleNamespace(**arguments, exact=exact)))


def wide(value: Any, instead: Mapping[int, Any]) -> Any:
    """Arrays and packed weights as float64 arrays, anything else as it is."""
    if isinstance(value, tuple): return tuple(wide(entry, instead) for entry in value)
    value = instead.get(id(value), value)
    if isinstance(value, Format): value = value.unpack()
    return np.asarray(value, np.float64) if isinstance(value, np.ndarray) else value
