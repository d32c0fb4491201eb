"""A kernel is a class: its call, whose signature declares its operands and attributes, and the readings of its
arguments."""

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
from opmatrix.runtime.declarations.operands import (
    CONSTANT,
    BufferSize,
    Heads,
    Rows,
    Scores,
    States,
    Tables,
    Value,
    Vector,
)
from opmatrix.runtime.declarations.padded import PaddedReader
from opmatrix.runtime.declarations.telling import telling_fills, telling_values
from opmatrix.runtime.seen import patterns_seen

REQUIRED = Parameter.empty
SPACED = Rows, Heads  # values that name the space of their rows
DEFAULT_RANGES = {float: Range(float, -LARGEST_FLOAT32, LARGEST_FLOAT32), int: Range(int, -(2**31), 2**31 - 1)}
DIGITS = "0123456789"  # numbered operands: the first ten are shown, and the last
PARTS = "run", "shape", "reference", "bound"  # parts of every kernel; one that is no view has a cost, too
RowNumbers = NDArray[np.int64]
Restricted = tuple[dict[str, object], Fields]  # arguments of a kernel, and the batch that they belong to
Telling = Callable[[Arguments, np.random.Generator], Iterator[dict[str, object]]]
Pullback = Callable[[Arguments, Doubles], Mapping[str, Doubles]]
ProductPullback = Callable[[Arguments, Doubles], Doubles]
Restrict = Callable[[Mapping[str, Any], Sequence[str], Fields, RowNumbers], Restricted | None]


class Declared:
    """One entry of the kernel table, made from a class of readings, each a function of the kernel's Arguments.

    `run(out, batch, ...)` computes: operands by type, then attributes. Without `out` it is a view; without `batch` it
    reads no batch. An `epilogue` stands for the operands of `stages`.

    Some readings see values as shapes: `shape` returns the shape of the result, with its type as annotation; `cost` the
    machine's prices with sizes; `scratch` the bytes that the kernel allocates for itself. Others see float64 arrays:
    `reference` returns the result, of operands as `reads` rounds them, by name; `bound` the largest error of the
    kernel, entry by entry. It sees the arguments as they come, and in float64 as `exact`. `price`, by the kernel's
    name, and `prices` are those that machines learn for it, each with the calls that are timed; `prices={}` if it costs
    the same as other kernels.

    `inplace`: the operand whose buffer the result may be written to. `changes_space`: its operands and its result may
    be of different spaces, as its shape says; other kernels keep the space of their operands, which is T if the batch
    is read. `pads_sequences`: it accepts too many sequences, and leaves those without rows alone. `launches`: it only
    launches compiled kernels, so its launches may be recorded. `limits`: the fields of the batch that it reads, each
    with the number that all its ids must be below. `relations`: the relations that it reads. `sees`: the patterns whose
    scores its price counts. `row_mixing`: a row of the result depends on other rows. `is_input`: its value is an input,
    stored with a batch or a session. `cached_variant`: the kernel that computes the same for new rows alone, over
    caches of the others. `carried_variant`: the kernel that does so from states, which hold the last rows of some
    values: `carried` gives their number by operand, "out" for the result; or sums, of the shape that `state` gives,
    whose next ones the kernel `kept_variant` makes of those operands that it has. `held_as`: the number type of the
    caches that sessions store its result in, which rounds as it does.

    `keeps`: true if it keeps the largest numbers of a row, with these attributes; the choices of its meaning are
    recorded then.

    `pullback` maps cotangents of the result, (K, *shape) for K directions over an output, to those of the values that
    it reads, by operand (reverse-mode differentiation); a kernel without one ends the walk of
    opmatrix/runtime/cotangents.py. `product_pullback` maps them to those of the product alone, x @ weight (K, rows,
    columns), of a kernel with one.

    `padded` returns the result for a batch whose sequences are padded to one length, by the array functions of
    opmatrix/runtime/declarations/padded.py: programs are exported by it.

    `leading`: the operand whose columns are the first ones of its result; values that are those of keys share a cache.

    `part`: its part in a layer, in a word, by which programs are read as models of a plain class, and exported states
    are named.

    Used by checks: `borders`, the numbers of rows, or tokens of a sequence, at which it takes another path; `restrict`,
    its arguments for some rows of the result alone, None if there are none; `telling`, operands besides those of a run
    in which every number that it reads, and every effect of data, shows: first operands for the batch at hand, then
    those that bring a batch of their own. For a kernel without `telling`, they are chosen by the types of its operands
    (`tell_by_sort`). Raises TypeError for a missing part."""

    def __init__(
        self,
        cls: type[Arguments],
        *,
        stages: tuple[type[Stage], ...] = (),
        price: Price | None = None,
        prices: Mapping[str, Price] | None = None,
        inplace: str | None = None,
        launches: bool = False,
        row_mixing: bool = False,
        is_input: bool = False,
        changes_space: bool = False,
        pads_sequences: bool = False,
        cached_variant: str = "",
        carried_variant: str = "",
        kept_variant: str = "",
        held_as: str = "",
    ):
        self.name, self.__doc__ = cls.__name__, cls.__doc__
        self.prices = dict(prices or {}) | ({self.name: price} if price else {})
        if missing := next(missing_parts(cls, self.prices, price is not None or prices is not None, is_input), None):
            raise TypeError(f"kernel {self.name}: {missing}: see the kernels in opmatrix/runtime/kernels")

        def reading(name: str, otherwise: object = None) -> Any:
            """Read a part of the class by its name; `otherwise` if the class does not declare it."""
            return vars(cls).get(name, otherwise)

        self.shape: Callable[[Arguments], Value] = reading("shape")
        self.reference: Callable[[Arguments], Doubles] = reading("reference")
        self.bound: Callable[[Arguments], ArrayLike] = reading("bound")
        self.cost: Cost = reading("cost", lambda *_: [])
        self.pullback: Pullback | None = reading("pullback")
        self.product_pullback: ProductPullback | None = reading("product_pullback")
        self.padded: PaddedReader | None = reading("padded")
        self.part: str = reading("part", "")
        self.leading: str = reading("leading", "")
        self.scratch: Callable[[Arguments], BufferSize] = reading("scratch", lambda _: BufferSize(0, 0))
        self.reads: Callable[[Arguments], Mapping[str, object]] = reading("reads", lambda _: {})
        self.limits: Callable[[Arguments], Mapping[str, int]] = reading("limits", lambda _: {})
        self.relations: Callable[[Arguments], tuple[Relation, ...]] = reading("relations", lambda _: ())
        self.sees: Callable[[Arguments], tuple[Pattern, ...]] = reading("sees", patterns_seen)
        self.carried: Callable[[Arguments], Mapping[str, int]] = reading("carried", lambda _: {})
        self.state: Callable[[Arguments], States] | None = reading("state")
        self.keeps: Callable[[Arguments], bool] = reading("keeps", lambda _: False)
        self.borders: Callable[[Arguments], Collection[int]] = reading("borders", lambda _: ())
        self.telling: Telling = reading("telling", self.tell_by_sort)
        self.declares_telling = "telling" in vars(cls)
        self.restrict: Restrict | None = reading("restrict", None if row_mixing or changes_space else restrict_rows)
        self.inplace, self.launches, self.row_mixing, self.is_input = inplace, launches, row_mixing, is_input
        self.changes_space, self.pads_sequences = changes_space, pads_sequences
        self.cached_variant, self.carried_variant = cached_variant, carried_variant
        self.kept_variant, self.held_as = kept_variant, held_as
        run: Callable[..., Any] = vars(cls)["run"]
        run = getattr(run, "__func__", run)
        named = parameters(run, stages)
        self.function = fold_epilogue(run, [*collect_operands(stages)]) if stages else run
        self.result = signature(self.shape).return_annotation
        self.view, self.batched = named.pop("out", None) is None, named.pop("batch", None) is not None
        self.attributes = {
            name: parameter for name, parameter in named.items() if parameter.kind is Parameter.KEYWORD_ONLY
        }
        self.operands = {name: parameter for name, parameter in named.items() if name not in self.attributes}
        self.record: Callable[..., Arguments] = type(
            self.name,
            (Arguments,),
            {
                "kernel": repr(self),
                "names": frozenset({*self.operands, *self.attributes, *BESIDE}),
                "__annotations__": {name: parameter.annotation for name, parameter in named.items()},
            },
        )

    def __repr__(self) -> str:
        last = {name.rstrip(DIGITS): name for name in self.operands}
        operands = ", ".join(
            name if p.default is REQUIRED else f"[{name}]"
            for name, p in self.operands.items()
            if name == last[stem := name.rstrip(DIGITS)] or len(name) == len(stem) + 1
        )
        return f"{self.name}({'; '.join(filter(None, (operands, ', '.join(self.attributes))))})"

    @property
    def by_rows(self) -> bool:
        """True if a row of the result depends only on that row of the operands, at any place."""
        return not (self.row_mixing or self.changes_space or self.batched or self.view)

    def tell_by_sort(self, a: Arguments, rng: np.random.Generator) -> Iterator[dict[str, object]]:
        """Yield telling operands of any kernel: values of every kind, with vectors as they are; and with added operands
        zero, as these hide small numbers."""
        shapes = {
            name: value.shape
            for name, value in vars(a).items()
            if is_value(self.operands.get(name)) and isinstance(value, np.ndarray)
        }
        if not shapes:
            return
        if not self.by_rows:
            for fills in telling_fills(shapes, rng):
                yield {**fills}
            return
        rows: dict[str, object] = {**telling_values({name: shape[1:] for name, shape in shapes.items()}, rng)}
        yield rows
        added = {name: getattr(a, name) for name in ADDED if name in self.operands}
        if zero := {name: np.zeros_like(vector) for name, vector in added.items() if vector is not None}:
            yield rows | zero

    def wanted(self, name: str) -> object:
        """Return the type of an operand, also of one among many tables; None for any other name."""
        if name in self.operands:
            return self.operands[name].annotation
        return Tables if f"{name.rstrip('0123456789')}s" in self.operands else None

    def seated(self, shape: Value, bound: Arguments) -> Value:
        """Return the shape of the result, in the space of the operands. Raises ValueError if these are of several
        spaces."""
        if self.changes_space or not isinstance(shape, SPACED):
            return shape
        spaces = {name: value.space for name, value in vars(bound).items() if isinstance(value, SPACED)}
        wanted = T if self.batched or not spaces else next(iter(spaces.values()))
        for name, space in spaces.items():
            if space != wanted:
                raise ValueError(f"{name}: its rows are of space {space}, where {wanted} is needed")
        return shape._replace(space=wanted)

    def bind(self, operands: Mapping[str, object], attributes: Mapping[str, object]) -> Arguments:
        """Return the arguments by name, absent ones at their defaults, many tables as one tuple. Raises ValueError that
        describes the fault."""
        rest, values = dict(operands), dict[str, object]()
        for name, parameter in self.operands.items():
            values[name] = self._operand(name, parameter, rest)
        for name, parameter in self.attributes.items():
            values[name] = self._attribute(name, parameter, attributes.get(name, parameter.default))
        if unknown := sorted(set(rest) | set(attributes) - set(self.attributes)):
            raise ValueError(f"{self} has no {', '.join(unknown)}")
        return self.record(**values)

    def _operand(self, name: str, parameter: Parameter, rest: dict[str, object]) -> object:
        if parameter.annotation is Tables:
            names = [key for i in range(len(rest)) if (key := f"{name[:-1]}{i}") in rest]
            if not names:
                raise ValueError(f"{self}: {name[:-1]}0 is missing")
            return tuple(self._typed(key, Tables, rest.pop(key)) for key in names)
        if name in rest:
            return self._typed(name, parameter.annotation, rest.pop(name))
        if parameter.default is REQUIRED:
            raise ValueError(f"{self}: {name} is missing")
        return parameter.default

    def _typed(self, name: str, wanted: Any, value: Any) -> object:
        if wanted.holds(value) if wanted in CONSTANT else isinstance(value, wanted):
            return value
        shown = value if isinstance(value, Value | Format | Stacked) else f"an array {value.dtype}{list(value.shape)}"
        needed = f"{wanted.__name__}: {wanted.__doc__}" if isinstance(wanted, type) else wanted
        raise ValueError(f"{self}: {name} is {shown}; it must be {needed}")

    def _attribute(self, name: str, parameter: Parameter, value: object) -> object:
        if value is REQUIRED:
            raise ValueError(f"{self}: {name} is missing")
        wanted = parameter.annotation
        if isinstance(wanted, OneOf):
            if wanted.holds(value):
                return value
            raise ValueError(f"{self}: {name} is {value!r:.80}; it may be {' or '.join(map(repr, wanted.words))}")
        wanted = DEFAULT_RANGES.get(wanted, wanted)
        holds = wanted.holds(value) if isinstance(wanted, Range) else isinstance(value, wanted)
        if value is parameter.default or holds:
            return value
        needed = wanted if isinstance(wanted, Range) else "text"
        raise ValueError(f"{self}: {name} is {value!r:.80}; it must be {needed}")


def kernel(**properties: Any) -> Callable[[type[Arguments]], Declared]:
    """Declare a class as a kernel, with its properties (see Declared)."""
    return lambda cls: Declared(cls, **properties)


def missing_parts(cls: type[Arguments], prices: Mapping[str, Price], priced: bool, enters: bool) -> Iterator[str]:
    """Yield the missing parts of a kernel's class, in words: a reading, the compiled code that it calls, prices, calls
    that are timed. An input keeps its numbers, and takes no time."""
    yield from (
        f"it does not declare {part}" for part in PARTS if part not in vars(cls) and not (enters and part == "bound")
    )
    run: Callable[..., object] = getattr(vars(cls)["run"], "__func__", vars(cls)["run"])
    yield from (
        f"no module of formats/kernels lists {name} in __all__"
        for name in asked_of(kernels, run)
        if name not in dir(kernels)
    )
    if enters or "out" not in signature(run).parameters:
        return  # a view takes no time, either
    if "cost" not in vars(cls):
        yield "it does not declare cost"
    if not priced:
        yield "it declares neither a price nor prices={}, for a kernel that has the cost of others"
    yield from (f"its price {name} declares no cases" for name, price in prices.items() if price.cases is untimed)


def asked_of(module: object, function: Callable[..., object]) -> Iterator[str]:
    """Yield the names that a function's own code reads from a module."""
    for first, then in pairwise(get_instructions(function)):
        if first.opname == "LOAD_GLOBAL" and getattr(function, "__globals__", {}).get(first.argval) is module:
            yield str(then.argval)


def parameters(run: Callable[..., object], stages: tuple[type[Stage], ...]) -> dict[str, Parameter]:
    """Return the parameters of a kernel's call, by name: its operands, then its attributes, with those of its stages;
    annotations are plain, without None for an optional operand."""
    named = {
        name: parameter.replace(annotation=plain(parameter.annotation))
        for name, parameter in signature(run).parameters.items()
    }
    named.pop("epilogue", None)
    attributes = {name: parameter for name, parameter in named.items() if parameter.kind is Parameter.KEYWORD_ONLY}
    operands = {name: parameter for name, parameter in named.items() if name not in attributes}
    for name, kind in collect_operands(stages).items():
        if isinstance(kind, str):
            operands[name] = Parameter(
                name, Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=Vector if kind == PER_COLUMN else Rows
            )
        else:
            attributes[name] = Parameter(name, Parameter.KEYWORD_ONLY, default=kind.default, annotation=kind)
    return operands | attributes


def is_value(parameter: Parameter | None) -> bool:
    """True if an operand is a value of float32: rows, heads, or scores."""
    if parameter is None:
        return False
    return not {Rows, Heads, Scores}.isdisjoint({parameter.annotation, *get_args(parameter.annotation)})


def plain(annotation: object) -> object:
    """Return the type of an operand or attribute when it is given: X of `X | None`, a Range or OneOf of an
    annotation."""
    if get_origin(annotation) is Annotated:
        return get_args(annotation)[1]
    others = [part for part in get_args(annotation) if part is not NoneType]
    if len(others) < len(get_args(annotation)):
        return plain(others[0]) if len(others) == 1 else plain(others[0] | others[1])
    return annotation


def fold_epilogue(run: Callable[..., object], names: Sequence[str]) -> Callable[..., Any]:
    """Return `run`, called with the operands of stages by name in place of an epilogue."""

    @wraps(run)
    def function(*args: object, **given: object) -> object:
        """Collect the operands of stages into an Epilogue, and call `run` with it."""
        parts = {name: given.pop(name) for name in names if name in given}
        return run(*args, **given, epilogue=Epilogue(**parts))

    return function


def restrict_rows(arguments: Mapping[str, Any], values: Sequence[str], batch: Fields, at: RowNumbers) -> Restricted:
    """Return the arguments for some rows. A row of the result must depend only on that row of its values, and of the
    batch."""
    some = batch.picked(at)
    chosen = {name: arguments[name][at] for name in values} | ({"batch": some} if "batch" in arguments else {})
    return {**arguments, **chosen}, some


def in_heads(wanted: object, heads: int) -> bool:
    """True if a value of `heads` heads must be in heads for an operand of type `wanted`."""
    return wanted is Heads or (heads > 1 and Heads in get_args(wanted))
