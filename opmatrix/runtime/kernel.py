"""A kernel is a Python function, its signature the declaration: operands with their types, attributes with defaults."""
from collections.abc import Callable, Collection, Iterator, Mapping
from inspect import Parameter, signature
from types import SimpleNamespace
from typing import Any, NamedTuple, get_args

from formats.format import Format
from formats.machine.prices import Price
from opmatrix.extents import T
from opmatrix.relations import Relation
from opmatrix.runtime import probes
from opmatrix.runtime.costs import Costs
from opmatrix.runtime.operands import CONSTANT, BufferSize, Heads, Rows, Tables, Value

REQUIRED = Parameter.empty


class Range(NamedTuple):
    """The numbers that an attribute may be, as its annotation: whole ones or real ones, both ends included."""
    number: type
    low: float
    high: float

    def holds(self, value: Any) -> bool:
        wanted = int if self.number is int else int | float
        return isinstance(value, wanted) and not isinstance(value, bool) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"a {'whole' if self.number is int else 'real'} number from {self.low:.8g} to {self.high:.8g}"


LARGEST_FLOAT32 = (2 - 2 ** -23) * 2.0 ** 127               # of float32, in which kernels compute
DEFAULT_RANGES = {float: Range(float, -LARGEST_FLOAT32, LARGEST_FLOAT32), int: Range(int, -2 ** 31, 2 ** 31 - 1)}


class Declared:
    """One entry of the kernel table: the function, whose signature says what it reads and gives, and readings of its
    bound arguments. Where values are shapes: `gives` is the shape of the result, `cost` the machine's prices with
    sizes, `room` the bytes that the kernel allocates for itself. Where they are float64 arrays: `means` is the result,
    of operands as `reads` rounds them, by name; `bound` is how far the kernel may be from that, entry by entry: it sees
    the arguments as they come, and in float64 as `exact`. `price`, by the kernel's name, and `prices` are those that
    machines learn for it.

    The result may lie in the buffer of operand `over`. `moves`: its operands and its result may be of different spaces,
    as its shape says; others keep that of their operands, which is T where the batch is read. `bounded`: it may be
    given too many sequences, and leaves those alone that have no rows. `launches`: its function launches compiled
    kernels and does nothing else, so its launches may be recorded; `fields` are those of the batch that it reads, each
    with the number that all must be below, `relations` those relations. `mixes`: a row depends on others; `held`: its
    value enters, and lies with a batch or a session; `cached`: the kernel that computes the same of new rows alone,
    over caches of the others.

    What checks look at: `borders`, the rows, or tokens of a sequence, at which it takes another path; `at`, its
    arguments for some rows of the result alone, None where there are none such (see opmatrix.runtime.probes); `telling`
    operands beside those of a run, by which every number that it reads shows."""

    def __init__(self, function: Callable[..., Any], *, gives: Callable[[Any], Value], means: Callable[[Any], Any],
                 bound: Callable[[Any], Any] | None = None, cost: Callable[..., Costs] = lambda *_: [],
                 price: Price | None = None, prices: Mapping[str, Price] | None = None,
                 room: Callable[[Any], BufferSize] = lambda _: BufferSize(0, 0), over: str | None = None,
                 launches: bool = False,
                 reads: Callable[[Any], Mapping[str, Any]] = lambda _: {},
                 fields: Callable[[Any], Mapping[str, int]] = lambda _: {}, mixes: bool = False, held: bool = False,
                 moves: bool = False, bounded: bool = False, cached: str = "",
                 relations: Callable[[Any], tuple[Relation, ...]] = lambda _: (),
                 borders: Callable[[Any], Collection[int]] = lambda _: (), at: probes.Restrict | None = None,
                 telling: Callable[[Any, Any], Iterator[dict[str, Any]]] = lambda *_: iter(())):
        self.bound = bound or self.unbounded
        self.moves, self.bounded, self.cached = moves, bounded, cached
        self.prices = dict(prices or {}) | ({function.__name__: price} if price else {})
        self.function, self.name, self.gives, self.means = function, function.__name__, gives, means
        self.cost, self.room, self.over, self.launches = cost, room, over, launches
        self.reads, self.fields = reads, fields
        self.mixes, self.held, self.relations = mixes, held, relations
        self.borders, self.telling = borders, telling
        self.at = at or (None if mixes or moves else probes.some_rows)
        named = dict(signature(function).parameters)
        self.result = signature(function).return_annotation
        self.view, self.batched = named.pop("out", None) is None, named.pop("batch", None) is not None
        self.attributes = {name: p for name, p in named.items() if p.kind is Parameter.KEYWORD_ONLY}
        self.operands = {name: p for name, p in named.items() if name not in self.attributes}

    def __repr__(self) -> str:
        operands = ", ".join(name if p.default is REQUIRED else f"[{name}]" for name, p in self.operands.items())
        return f"{self.name}({'; '.join(filter(None, (operands, ', '.join(self.attributes))))})"

    @property
    def by_rows(self) -> bool:
        """Whether a row of the result depends on that row of the operands alone, wherever it stands."""
        return not (self.mixes or self.moves or self.batched or self.view)

    def unbounded(self, a: SimpleNamespace) -> Any:
        """KeyError: nobody said how far it may be off."""
        raise KeyError(f"kernel {self.name} declares no bound")

    def wanted(self, name: str) -> Any:
        """The type of an operand, of one among many tables too; None for what is none."""
        if name in self.operands: return self.operands[name].annotation
        return Tables if f"{name.rstrip('0123456789')}s" in self.operands else None

    def seated(self, shape: Value, bound: SimpleNamespace) -> Value:
        """The shape of the result, in the space of the operands. ValueError where these are of several."""
        if self.moves or not isinstance(shape, Rows | Heads): return shape
        spaces = {name: value.space for name, value in vars(bound).items() if isinstance(value, Rows | Heads)}
        wanted = T if self.batched or not spaces else next(iter(spaces.values()))
        for name, space in spaces.items():
            if space != wanted: raise ValueError(f"{name}: its rows are of space {space}, where {wanted} is needed")
        return shape._replace(space=wanted)

    def bind(self, operands: Mapping[str, Any], attributes: Mapping[str, Any]) -> SimpleNamespace:
        """The arguments by name, absent ones at their defaults, many tables as one tuple. ValueError in words."""
        given, bound = dict(operands), SimpleNamespace()
        for name, parameter in self.operands.items():
            setattr(bound, name, self._operand(name, parameter, given))
        for name, parameter in self.attributes.items():
            setattr(bound, name, self._attribute(name, parameter, attributes.get(name, parameter.default)))
        if unknown := sorted(set(given) | set(attributes) - set(self.attributes)):
            raise ValueError(f"{self} has no {', '.join(unknown)}")
        return bound

    def _operand(self, name: str, parameter: Parameter, given: dict[str, Any]) -> Any:
        if parameter.annotation is Tables:
            names = [key for i in range(len(given)) if (key := f"{name[:-1]}{i}") in given]
            if not names: raise ValueError(f"{self}: {name[:-1]}0 is missing")
            return tuple(self._typed(key, Tables, given.pop(key)) for key in names)
        if name in given: return self._typed(name, parameter.annotation, given.pop(name))
        if parameter.default is REQUIRED: raise ValueError(f"{self}: {name} is missing")
        return parameter.default

    def _typed(self, name: str, wanted: Any, given: Any) -> Any:
        if wanted.holds(given) if wanted in CONSTANT else isinstance(given, wanted): return given
        said = given if isinstance(given, Value | Format) else f"an array {given.dtype}{list(given.shape)}"
        needed = f"{wanted.__name__}: {wanted.__doc__}" if isinstance(wanted, type) else wanted
        raise ValueError(f"{self}: {name} is {said}; it must be {needed}")

    def _attribute(self, name: str, parameter: Parameter, value: Any) -> Any:
        if value is REQUIRED: raise ValueError(f"{self}: {name} is missing")
        if choices := get_args(wanted := parameter.annotation):
            if value in choices: return value
            raise ValueError(f"{self}: {name} is {value!r:.80}; it may be {' or '.join(map(repr, choices))}")
        wanted = DEFAULT_RANGES.get(wanted, wanted)
        holds = wanted.holds(value) if isinstance(wanted, Range) else isinstance(value, wanted)
        if value is parameter.default or holds: return value
        needed = wanted if isinstance(wanted, Range) else "text"
        raise ValueError(f"{self}: {name} is {value!r:.80}; it must be {needed}")


def in_heads(wanted: Any, heads: int) -> bool:
    """Whether a value of so many heads is in heads where one of this type is wanted."""
    return wanted is Heads or (heads > 1 and Heads in get_args(wanted))
