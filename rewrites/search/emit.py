"""From chosen nodes to a program: steps with kernels of the runtime, constants evaluated in float64 and rounded
once."""

from collections.abc import Callable, Container, Hashable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from formats import FORMATS, Stacked
from formats.core.activation import COMPILED
from formats.host.threads import in_threads
from opmatrix.algebra.data import Data, Promised
from opmatrix.runtime.declarations.kernel import Declared, in_heads
from opmatrix.runtime.declarations.operands import Cache, Heads, Scores
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.program import Constant, Step
from rewrites.extraction import Node
from rewrites.laws.kinds import as_array
from rewrites.lowering.calls import attributes as given
from rewrites.lowering.calls import list_kernels, multiplied, table_number
from rewrites.lowering.lower import EXACT, TURNED, Content, KernelCall, Lowering, Method, Stored, Use
from rewrites.search.fit import Fitter

ConstantKey = tuple[int, Hashable]  # a constant: its part, and its key there
ANYWHERE = -1  # in place of a part: the constant is keyed by its content
AS_ROWS = 0  # number of heads of a view as plain rows


def promise(shape: tuple[int, ...], method: Method = EXACT[0]) -> Constant:
    """Return a weight or a row that has no numbers yet: a single zero, broadcast."""
    form, options = FORMATS[method.format], dict[str, Any](method.parameters)
    if len(shape) == 2:
        return form.promised(shape[0], shape[1], **options)
    if len(shape) == 3 and method != EXACT[0]:
        return Stacked.promised(form, *shape, **options)
    return np.broadcast_to(np.zeros((), np.float32), shape)


def store_blocks(form: Any, parts: Sequence[np.ndarray]) -> Constant:
    """Return blocks of a file (outputs, groups), or those of each head, in the format that holds such."""
    blocks = np.concatenate(parts, -2)
    if blocks.ndim == 2:
        return form.of_blocks(blocks)  # type: ignore[no-any-return]
    first = form.of_blocks(blocks[0])
    return Stacked.made(form, (len(blocks), *first.shape), lambda e: form.of_blocks(blocks[e]))


def vector(lowering: Lowering, cls: int, width: int) -> Constant:
    """Return the numbers of a constant row, or a promise of them."""
    return promise((width,)) if lowering.promised(cls) else lowering.vector(cls, width)


ATTRIBUTES: dict[str, Callable[[Lowering, Any], float | str]] = {  # sort of a variable -> its class as an attribute
    "scalar": lambda lowering, cls: float(as_array(lowering.terms[cls]).item()),
    "where": lambda lowering, cls: lowering.template.values[cls].text,
    "relation": lambda lowering, cls: str(lowering.template.values[cls]),
    "count": lambda lowering, cls: int(lowering.template.values[cls]),
    "entrywise": lambda lowering, cls: next(node.kind for node in lowering.graph.members[cls] if node.kind in COMPILED),
}


class Spread(NamedTuple):
    """A constant row over `width` columns."""

    constant: int
    width: int


class ReadWeight(NamedTuple):
    """A weight where a part reads it: the constant, the part, the stored form, the class of its input."""

    constant: str
    part: int
    stored: Stored
    x: int


@dataclass
class Buffer:
    """A buffer of the program: its name as rows, and as `heads` heads; each view is emitted on first use."""

    names: dict[int, str]
    heads: int


@dataclass
class Emitter:
    """Collects steps and constants, part by part. `decide` picks the method of a use in a part. `fitted` caches weights
    that many programs store alike; if it is weak, as long as one of them lives."""

    fitted: MutableMapping[ConstantKey, Constant] = field(default_factory=dict)
    fitter: Fitter = field(default_factory=Fitter)
    steps: list[Step] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)
    named: dict[int, str] = field(default_factory=dict)  # constants by identity: a thousand layers have thousands
    sources: list[ReadWeight] = field(default_factory=list)
    origins: dict[str, tuple[int, Hashable]] = field(default_factory=dict)  # constant -> part, key there
    readings: list[tuple[KernelCall, int]] = field(default_factory=list)
    parts: dict[str, int] = field(default_factory=dict)  # output of a step -> its part
    borders: dict[int, str] = field(default_factory=dict)  # part -> the rows that it hands on, if these are in full
    values: dict[int, Buffer] = field(default_factory=dict)
    made: dict[ConstantKey, Constant] = field(default_factory=dict)  # weights that no step reads yet
    part: int = 0

    @property
    def shared(self) -> dict[ConstantKey, Constant]:
        """The cached constants that programs of any structure share."""
        return {key: constant for key, constant in self.fitted.items() if key[0] == ANYWHERE}

    def fit(
        self, parts: Iterable[tuple[int, Lowering, Iterable[Node]]], decide: Callable[[int, Use, Method], Method]
    ) -> None:
        """Build the weights that parts read and the cache lacks, several at a time, the largest first. This takes
        nearly all the time of building a program."""
        calls, sizes = dict[ConstantKey, Callable[[], Constant]](), dict[ConstantKey, int]()
        for number, lowering, nodes in parts:
            for use, method in [
                (node.cls, node.label) for node in nodes if isinstance(node.cls, Use) and isinstance(node.label, Method)
            ]:
                key, make = self._storing(lowering, number, lowering.held(use, decide(number, use, method)))
                if key in self.fitted:
                    continue
                calls[key], sizes[key] = make, prod(lowering.stored(use.weight, use.layout))
        order = sorted(calls, key=lambda key: -sizes[key])
        self.made = dict(zip(order, in_threads(map(calls.__getitem__, order)), strict=True))

    def emit(
        self,
        lowering: Lowering,
        nodes: Iterable[Node],
        number: int,
        given: dict[int, Buffer],
        decide: Callable[[int, Use, Method], Method],
    ) -> None:
        """Emit the steps of one part, from the values at its border."""
        self.values, self.part = dict(given), number
        methods = {
            node.cls: decide(number, node.cls, node.label)
            for node in nodes
            if isinstance(node.cls, Use) and isinstance(node.label, Method)
        }
        for node in nodes:
            if isinstance(node.label, KernelCall) and isinstance(node.cls, int):
                self._call(lowering, node.cls, node.label, methods)

    def _call(self, lowering: Lowering, cls: int, call: KernelCall, methods: dict[Use, Method]) -> None:
        """Emit the steps of a call: each kernel gets its own variables, and the operand that it lacks is the result of
        the kernel before."""
        heads, before = int(lowering.matcher.heads[cls]), ""
        for declared in list_kernels(call):
            operands, attributes = self._arguments(lowering, cls, call, declared, methods)
            if before:
                operands = {next(name for name in declared.operands if name not in operands): before} | operands
            before = self._name()
            self.steps.append(Step(declared.name, operands, attributes, before))
            self.parts[before] = self.part
            self.values[cls] = Buffer({heads if in_heads(declared.result, heads) else AS_ROWS: before}, heads)
        if not before:
            self.values[cls] = Buffer(self.values[dict(call.bound)["x"]].names, heads)

    def _arguments(
        self, lowering: Lowering, gives: int, call: KernelCall, declared: Declared, methods: dict[Use, Method]
    ) -> tuple[dict[str, str], dict[str, float | str]]:
        """Return the operands of a kernel, by the names of buffers and constants, and its attributes."""
        bound, operands = dict(call.bound), dict[str, str]()
        attributes, turned = given(lowering, call, declared), list[str]()
        for name, cls in call.bound:
            sort, wanted = call.implementation.variables[name].name, declared.wanted(name)
            if name in declared.attributes and sort in ATTRIBUTES:
                attributes[name] = ATTRIBUTES[sort](lowering, cls)
                operands |= self._masks(lowering, cls) if sort == "where" else {}
            elif sort == "rotation":
                operands |= dict(zip(("cos", "sin"), map(self._data, lowering.tables(cls)), strict=True))
            elif sort in ("distances", "relative"):
                [operands[name]] = map(self._data, lowering.tables(cls))
            elif sort == "constant":
                by_head = declared.result is Heads
                columns = int(lowering.terms[gives].out.cols) if by_head else lowering.columns(gives)
                operands[name] = self._row(lowering, cls, columns)
            elif sort == "matrix" and wanted:
                use = Use(multiplied(bound, name), cls, call.implementation.layout, gives)
                stored = lowering.held(use, methods[use])
                operands[name] = self._weight(lowering, stored, use.x)
                if stored.layout == TURNED:
                    turned.append(table_number(name))
            elif sort in ("value", "scores") and wanted:
                operands[name] = self._operand(wanted, cls)
        if turned:
            attributes["turned"] = ",".join(turned)
        arrays = call.implementation.data(lowering.template.values)
        return operands | {f"c{k}": self._data(data) for k, data in enumerate(arrays)}, attributes

    def _masks(self, lowering: Lowering, cls: str) -> dict[str, str]:
        """Return the tables of a pattern, as operands."""
        return {f"mask{k}": self._data(data) for k, data in enumerate(lowering.template.values[cls].data)}

    def _row(self, lowering: Lowering, cls: int, columns: int) -> str:
        """Return a constant row, over `columns` columns where it is one number."""
        width = columns if lowering.columns(cls) == 1 else lowering.columns(cls)
        row = Spread(cls, width)
        same = lowering.tied and not lowering.promised(cls)  # a layer that is applied again reads these rows again
        key: ConstantKey = (ANYWHERE, (lowering.terms[cls], width)) if same else (self.part, row)
        return self._constant(key, partial(vector, lowering, cls, width), row)

    def _operand(self, wanted: object, cls: int) -> str:
        """Return the buffer of a value, as one of this type."""
        if wanted in (Scores, Cache):
            return next(iter(self.values[cls].names.values()))
        return self._heads(cls) if in_heads(wanted, int(self.values[cls].heads)) else self._rows(cls)

    def _data(self, data: Data) -> str:
        if not isinstance(data, Promised):
            return self._constant((ANYWHERE, data), partial(np.asarray, data.array))
        return self._constant((ANYWHERE, data), partial(np.broadcast_to, np.float32(0), data.shape))

    def _weight(self, lowering: Lowering, stored: Stored, x: int) -> str:
        stored = stored._replace(method=stored.method._replace(error=0.0))
        key, make = self._storing(lowering, self.part, stored)
        if lowering.promised(stored.weight):
            return self._constant(key, make)
        name = self._constant(key, make, stored)
        self.sources.append(ReadWeight(name, self.part, stored, x))
        return name

    def _storing(self, lowering: Lowering, part: int, stored: Stored) -> tuple[ConstantKey, Callable[[], Constant]]:
        """Return the cache key of a weight of a part, and the function that builds it."""
        cls, how, method = stored = stored._replace(method=stored.method._replace(error=0.0))
        content = lowering.content(stored)
        key = (part, stored) if content is None else (ANYWHERE, content)
        if lowering.promised(cls):
            return key, lambda: promise(lowering.stored(cls, how), method)
        form: Any = FORMATS.get(method.format)
        if form and form.filed:
            return key, lambda: store_blocks(form, lowering.filed(cls, how))
        return key, lambda: self.fitter.store(lowering.matrix(cls, how), method, (part, cls, how))

    def _constant(self, key: ConstantKey, make: Callable[[], Constant], what: Hashable = None) -> str:
        if (constant := self.fitted.get(key)) is None:
            built = self.made.pop(key) if key in self.made else make()
            # a promised array is one float32, broadcast
            plain = isinstance(built, np.ndarray) and (built.dtype != np.float32 or any(built.strides))
            self.fitted[key] = constant = np.ascontiguousarray(built, np.float32) if plain else built
        name = self.named.get(id(constant))
        if name is None:
            name = f"{'w' if isinstance(key[1], Stored | Content) else 'c'}{len(self.constants)}"
            self.constants[name], self.named[id(constant)] = constant, name
            self.origins[name] = self.part, key[1] if what is None else what
        return name

    def _name(self) -> str:
        return f"h{len(self.steps)}"

    def output(self, cls: int, state: bool) -> str:
        """Return the buffer of a further output: in its own layout for state, else as rows."""
        return self._operand(Cache, cls) if state else self._rows(cls)

    def rows(self, value: Buffer) -> str:
        """Return the name of a buffer as rows."""
        return self._view(value, AS_ROWS, "join", {})

    def own(self, name: str, entered: Container[str]) -> str:
        """Return the name of rows that are no view of an input matrix, which belongs to the caller: a view is
        copied."""
        views = {step.output: step.operands["x"] for step in self.steps if KERNELS[step.kernel].view}
        source = name
        while source in views:
            source = views[source]
        if source not in entered:
            return name
        self.steps.append(Step("pointwise", {"x": name}, {}, copied := self._name()))
        return copied

    def _rows(self, cls: int) -> str:
        return self.rows(self.values[cls])

    def _heads(self, cls: int) -> str:
        value = self.values[cls]
        if value.heads not in value.names:
            self.rows(value)
        return self._view(value, value.heads, "heads", {"heads": value.heads})

    def _view(self, value: Buffer, wanted: int, kernel: str, attributes: dict[str, float | str]) -> str:
        if wanted not in value.names:
            name = self._name()
            source = value.names.get(AS_ROWS) or next(iter(value.names.values()))
            self.steps.append(Step(kernel, {"x": source}, attributes, name))
            value.names[wanted] = name
        return value.names[wanted]
