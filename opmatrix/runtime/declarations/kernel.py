"""A kernel is a class: its call, whose signature says what it reads, and the readings of its arguments."""
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dis import get_instructions
from functools import wraps
from inspect import Parameter, signature
from itertools import pairwise
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

import numpy as np
from numpy.typing import ArrayLike, NDArray

from formats import kernels
from formats.core.choices import LARGEST_FLOAT32, OneOf, Range
from formats.core.epilogue import Epilogue
from formats.core.stage import ADDED, PER_COLUMN, Stage, collect_operands
from formats.machine.prices import Price, untimed
from formats.storage.format import Format
from formats.storage.stacked import Stacked
from opmatrix.algebra.batch.batch import Fields
from opmatrix.algebra.batch.extents import T
from opmatrix.algebra.batch.relations import Relation
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.runtime.declarations.arguments import BESIDE as BESIDE
from opmatrix.runtime.declarations.arguments import Arguments as Arguments
from opmatrix.runtime.declarations.arguments import Doubles
from opmatrix.runtime.declarations.costs import Cost
from opmatrix.runtime.declarations.operands import CONSTANT, BufferSize, Heads, Rows, Scores, Tables, Value, Vector
from opmatrix.runtime.declarations.telling import telling_fills, telling_values
from opmatrix.runtime.seen import patterns_seen

REQUIRED = Parameter.empty
SPACED = Rows, Heads                                        # values whose rows are of a space that they name
DEFAULT_RANGES = {float: Range(float, -LARGEST_FLOAT32, LARGEST_FLOAT32), int: Range(int, -2 ** 31, 2 ** 31 - 1)}
DIGITS = "0123456789"                                       # of operands by number ten are shown, and the last
PARTS = "run", "shape", "reference", "bound"                # what every kernel says, and one that is no view its cost
RowNumbers = NDArray[np.int64]
Restricted = tuple[dict[str, object], Fields]               # arguments of a kernel, and the batch that they are of
Telling = Callable[[Arguments, np.random.Generator], Iterator[dict[str, object]]]
Restrict = Callable[[Mapping[str, Any], Sequence[str], Fields, RowNumbers], Restricted | None]


class Declared:
    """One entry of the kernel table, made of a class of readings, each a function of the kernel's Arguments.

    `run(out, batch, ...)` computes: operands by type, then attributes; without `out` it is a view, without `batch` it
    reads none. An `epilogue` stands for the operands of `stages`. Where values are shapes, `shape` is that of the
    result, whose annotation is its type, `cost` the machine's prices with sizes, `scratch` the bytes that the kernel
    allocates for itself. Where they are float64 arrays, `reference` is the result, of operands as `reads` rounds them,
    by name; `bound` is how far the kernel may be from that, entry by entry: it sees the arguments as they come, and in
    float64 as `exact`. `price`, by the kernel's name, and `prices` are those that machines learn for it, each with the
    calls that are timed; `prices={}` where it costs what other kernels do.

    The result may lie in the buffer of operand `inplace`. `changes_space`: its operands and its result may be of
    different spaces, as its shape says; others keep that of their operands, which is T where the batch is read.
    `pads_sequences`: it may be given too many sequences, and leaves those alone that have no rows. `launches`: it
    launches compiled kernels and does nothing else, so its launches may be recorded; `limits` are the fields of the
    batch that it reads, each with the number that all must be below, `relations` the relations, `sees` the patterns
    whose scores its price counts. `row_mixing`: a row depends on others; `is_input`: its value enters, and lies with a
    batch or a session; `cached_variant`: the kernel that computes the same of new rows alone, over caches of the
    others; `held_as`: the number type of the caches that sessions keep what it gives in, which rounds as it does.

    `keeps`: whether it keeps the largest of a row, by these attributes; what its meaning takes is noted then.

    What checks look at: `borders`, the rows, or tokens of a sequence, at which it takes another path; `restrict`, its
    arguments for some rows of the result alone, None where there are none such; `telling` operands beside those of a
    run, by which every number that it reads shows, and what depends on data: first those for the batch at hand, then
    those that bring a batch of their own. A kernel that declares none is told by the sorts of its operands
    (`tell_by_sort`). Raises TypeError for a part that is missing."""

    def __init__(self, cls: type[Arguments], *, stages: tuple[type[Stage], ...] = (), price: Price | None = None,
                 prices: Mapping[str, Price] | None = None, inplace: str | None = None, launches: bool = False,
                 row_mixing: bool = False, is_input: bool = False, changes_space: bool = False,
                 pads_sequences: bool = False, cached_variant: str = "", held_as: str = ""):
        self.name, self.__doc__ = cls.__name__, cls.__doc__
        self.prices = dict(prices or {}) | ({self.name: price} if price else {})
        if missing := next(missing_parts(cls, self.prices, price is not None or prices is not None, is_input), None):
            raise TypeError(f"kernel {self.name}: {missing}: declare it as those in opmatrix/runtime/kernels")
        def reading(name: str, otherwise: object = None) -> Any: return vars(cls).get(name, otherwise)
        self.shape: Callable[[Arguments], Value] = reading("shape")
        self.reference: Callable[[Arguments], Doubles] = reading("reference")
        self.bound: Callable[[Arguments], ArrayLike] = reading("bound")
        self.cost: Cost = reading("cost", lambda *_: [])
        self.scratch: Callable[[Arguments], BufferSize] = reading("scratch", lambda _: BufferSize(0, 0))
        self.reads: Callable[[Arguments], Mapping[str, object]] = reading("reads", lambda _: {})
        self.limits: Callable[[Arguments], Mapping[str, int]] = reading("limits", lambda _: {})
        self.relations: Callable[[Arguments], tuple[Relation, ...]] = reading("relations", lambda _: ())
        self.sees: Callable[[Arguments], tuple[Pattern, ...]] = reading("sees", patterns_seen)
        self.keeps: Callable[[Arguments], bool] = reading("keeps", lambda _: False)
        self.borders: Callable[[Arguments], Collection[int]] = reading("borders", lambda _: ())
        self.telling: Telling = reading("telling", self.tell_by_sort)
        self.declares_telling = "telling" in vars(cls)
        self.restrict: Restrict | None = reading("restrict", None if row_mixing or changes_space else restrict_rows)
        self.inplace, self.launches, self.row_mixing, self.is_input = inplace, launches, row_mixing, is_input
        self.changes_space, self.pads_sequences, self.cached_variant = changes_space, pads_sequences, cached_variant
        self.held_as = held_as
        run: Callable[..., Any] = vars(cls)["run"]
        run = getattr(run, "__func__", run)
        named = parameters(run, stages)
        self.function = fold_epilogue(run, [*collect_operands(stages)]) if stages else run
        self.result = signature(self.shape).return_annotation
        self.view, self.batched = named.pop("out", None) is None, named.pop("batch", None) is not None
        self.attributes = {name: each for name, each in named.items() if each.kind is Parameter.KEYWORD_ONLY}
        self.operands = {name: each for name, each in named.items() if name not in self.attributes}
        self.record: Callable[..., Arguments] = type(self.name, (Arguments,), {
            "kernel": repr(self), "names": frozenset({*self.operands, *self.attributes, *BESIDE}),
            "__annotations__": {name: each.annotation for name, each in named.items()}})

    def __repr__(self) -> str:
        last = {name.rstrip(DIGITS): name for name in self.operands}
        operands = ", ".join(name if p.default is REQUIRED else f"[{name}]" for name, p in self.operands.items()
                             if name == last[stem := name.rstrip(DIGITS)] or len(name) == len(stem) + 1)
        return f"{self.name}({'; '.join(filter(None, (operands, ', '.join(self.attributes))))})"

    @property
    def by_rows(self) -> bool:
        """Whether a row of the result depends on that row of the operands alone, wherever it stands."""
        return not (self.row_mixing or self.changes_space or self.batched or self.view)

    def tell_by_sort(self, a: Arguments, rng: np.random.Generator) -> Iterator[dict[str, object]]:
        """Telling operands of any kernel: values of every kind, with vectors as they are; and with those zero that are
        added, as these hide what is small."""
        shapes = {name: each.shape for name, each in vars(a).items()
                  if is_value(self.operands.get(name)) and isinstance(each, np.ndarray)}
        if not shapes: return
        if not self.by_rows:
            for fills in telling_fills(shapes, rng): yield {**fills}
            return
        rows: dict[str, object] = {**telling_values({name: shape[1:] for name, shape in shapes.items()}, rng)}
        yield rows
        added = {name: getattr(a, name) for name in ADDED if name in self.operands}
        if zero := {name: np.zeros_like(vector) for name, vector in added.items() if vector is not None}:
            yield rows | zero

    def wanted(self, name: str) -> object:
        """The type of an operand, of one among many tables too; None for what is none."""
        if name in self.operands: return self.operands[name].annotation
        return Tables if f"{name.rstrip('0123456789')}s" in self.operands else None

    def seated(self, shape: Value, bound: Arguments) -> Value:
        """The shape of the result, in the space of the operands. ValueError where these are of several."""
        if self.changes_space or not isinstance(shape, SPACED): return shape
        spaces = {name: value.space for name, value in vars(bound).items() if isinstance(value, SPACED)}
        wanted = T if self.batched or not spaces else next(iter(spaces.values()))
        for name, space in spaces.items():
            if space != wanted: raise ValueError(f"{name}: its rows are of space {space}, where {wanted} is needed")
        return shape._replace(space=wanted)

    def bind(self, operands: Mapping[str, object], attributes: Mapping[str, object]) -> Arguments:
        """The arguments by name, absent ones at their defaults, many tables as one tuple. ValueError in words."""
        rest, values = dict(operands), dict[str, object]()
        for name, parameter in self.operands.items(): values[name] = self._operand(name, parameter, rest)
        for name, parameter in self.attributes.items():
            values[name] = self._attribute(name, parameter, attributes.get(name, parameter.default))
        if unknown := sorted(set(rest) | set(attributes) - set(self.attributes)):
            raise ValueError(f"{self} has no {', '.join(unknown)}")
        return self.record(**values)

    def _operand(self, name: str, parameter: Parameter, rest: dict[str, object]) -> object:
        if parameter.annotation is Tables:
            names = [key for i in range(len(rest)) if (key := f"{name[:-1]}{i}") in rest]
            if not names: raise ValueError(f"{self}: {name[:-1]}0 is missing")
            return tuple(self._typed(key, Tables, rest.pop(key)) for key in names)
        if name in rest: return self._typed(name, parameter.annotation, rest.pop(name))
        if parameter.default is REQUIRED: raise ValueError(f"{self}: {name} is missing")
        return parameter.default

    def _typed(self, name: str, wanted: Any, value: Any) -> object:
        if wanted.holds(value) if wanted in CONSTANT else isinstance(value, wanted): return value
        shown = value if isinstance(value, Value | Format | Stacked) else f"an array {value.dtype}{list(value.shape)}"
        needed = f"{wanted.__name__}: {wanted.__doc__}" if isinstance(wanted, type) else wanted
        raise ValueError(f"{self}: {name} is {shown}; it must be {needed}")

    def _attribute(self, name: str, parameter: Parameter, value: object) -> object:
        if value is REQUIRED: raise ValueError(f"{self}: {name} is missing")
        wanted = parameter.annotation
        if isinstance(wanted, OneOf):
            if wanted.holds(value): return value
            raise ValueError(f"{self}: {name} is {value!r:.80}; it may be {' or '.join(map(repr, wanted.words))}")
        wanted = DEFAULT_RANGES.get(wanted, wanted)
        holds = wanted.holds(value) if isinstance(wanted, Range) else isinstance(value, wanted)
        if value is parameter.default or holds: return value
        needed = wanted if isinstance(wanted, Range) else "text"
        raise ValueError(f"{self}: {name} is {value!r:.80}; it must be {needed}")


def kernel(**properties: Any) -> Callable[[type[Arguments]], Declared]:
    """Declares a class as a kernel, with its properties (see Declared)."""
    return lambda cls: Declared(cls, **properties)


def missing_parts(cls: type[Arguments], prices: Mapping[str, Price], priced: bool, enters: bool) -> Iterator[str]:
    """What a kernel's class lacks, in words: a reading, the compiled code that it calls, prices, calls that are timed.
    What enters is as it was given, and takes no time."""
    yield from (f"it says no {part}" for part in PARTS if part not in vars(cls) and not (enters and part == "bound"))
    run: Callable[..., object] = getattr(vars(cls)["run"], "__func__", vars(cls)["run"])
    yield from (f"no module of formats/kernels lists {name} in __all__" for name in asked_of(kernels, run)
                if name not in dir(kernels))
    if enters or "out" not in signature(run).parameters: return     # a view takes no time, either
    if "cost" not in vars(cls): yield "it says no cost"
    if not priced: yield "it says no price, or prices={} where it costs what others do"
    yield from (f"its price {name} says no cases" for name, each in prices.items() if each.cases is untimed)


def asked_of(module: object, function: Callable[..., object]) -> Iterator[str]:
    """The names that a function's own code reads of a module."""
    for first, then in pairwise(get_instructions(function)):
        if first.opname == "LOAD_GLOBAL" and getattr(function, "__globals__", {}).get(first.argval) is module:
            yield str(then.argval)


def parameters(run: Callable[..., object], stages: tuple[type[Stage], ...]) -> dict[str, Parameter]:
    """What a kernel is called with, by name: its operands, then its attributes, those of its stages in their places;
    annotations are plain, without None where an operand may be absent."""
    named = {name: each.replace(annotation=plain(each.annotation)) for name, each in signature(run).parameters.items()}
    named.pop("epilogue", None)
    attributes = {name: each for name, each in named.items() if each.kind is Parameter.KEYWORD_ONLY}
    operands = {name: each for name, each in named.items() if name not in attributes}
    for name, kind in collect_operands(stages).items():
        if isinstance(kind, str):
            operands[name] = Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=None,
                                       annotation=Vector if kind == PER_COLUMN else Rows)
        else: attributes[name] = Parameter(name, Parameter.KEYWORD_ONLY, default=kind.default, annotation=kind)
    return operands | attributes


def is_value(parameter: Parameter | None) -> bool:
    """Tell whether an operand is a value of float32: rows, heads, or scores."""
    if parameter is None: return False
    return not {Rows, Heads, Scores}.isdisjoint({parameter.annotation, *get_args(parameter.annotation)})


def plain(annotation: object) -> object:
    """What an operand or an attribute is where it is given: X of `X | None`, a Range or OneOf that annotates."""
    if get_origin(annotation) is Annotated: return get_args(annotation)[1]
    others = [each for each in get_args(annotation) if each is not NoneType]
    if len(others) < len(get_args(annotation)):
        return plain(others[0]) if len(others) == 1 else plain(others[0] | others[1])
    return annotation


def fold_epilogue(run: Callable[..., object], names: Sequence[str]) -> Callable[..., Any]:
    """`run`, called with the operands of stages by name in place of an epilogue."""
    @wraps(run)
    def function(*args: object, **given: object) -> object:
        parts = {name: given.pop(name) for name in names if name in given}
        return run(*args, **given, epilogue=Epilogue(**parts))
    return function


def restrict_rows(arguments: Mapping[str, Any], values: Sequence[str], batch: Fields, at: RowNumbers) -> Restricted:
    """Arguments for some rows, where a row of the result depends on that row of its values, and of the batch, alone."""
    some = batch.picked(at)
    own = {name: arguments[name][at] for name in values} | ({"batch": some} if "batch" in arguments else {})
    return {**arguments, **own}, some


def in_heads(wanted: object, heads: int) -> bool:
    """Whether a value of so many heads is in heads where one of this type is wanted."""
    return wanted is Heads or (heads > 1 and Heads in get_args(wanted))
