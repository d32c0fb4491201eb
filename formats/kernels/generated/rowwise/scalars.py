"""Python on numbers, traced: a function is called once with stand-ins, which record the operations on them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, NoReturn, Protocol, Self, TypeVar
from weakref import WeakValueDictionary

import numpy as np

OWN_FILE = __file__
TRUTHS = "less", "less_equal", "equal", "both", "either"  # operations that give 1 or 0
UFUNC_NAMES = dict(
    add="add",
    subtract="sub",
    multiply="mul",
    divide="div",
    negative="neg",
    absolute="abs",
    fabs="abs",
    exp="exp",
    log="log",
    sqrt="sqrt",
    tanh="tanh",
    maximum="maximum",
    minimum="minimum",
    less="less",
    less_equal="less_equal",
    equal="equal",
    expm1="expm1",
    log1p="log1p",
    logical_and="both",
    logical_or="either",
    bitwise_and="both",
    bitwise_or="either",
    floor="floor",
)  # numpy's names, and ours
LN2 = float(np.log(2.0))


class Untraceable(TypeError):
    """A function that cannot be traced: the place in it, and the operation there."""


class StandIn:
    """A number that is not known yet: an operation on others, the k-th input, or a literal. Equal ones are one
    object."""

    __slots__ = ("__weakref__", "args", "op", "value")
    made: ClassVar[WeakValueDictionary[tuple[object, ...], StandIn]] = WeakValueDictionary()
    __hash__ = object.__hash__
    op: str
    args: tuple[StandIn, ...]
    value: float

    def __new__(cls, op: str, *args: StandIn, value: float = 0.0) -> StandIn:
        key = op, *map(id, args), float(value).hex()
        if (node := cls.made.get(key)) is None:
            node = super().__new__(cls)
            node.op, node.args, node.value = op, args, float(value)
            cls.made[key] = node
        return node

    @property
    def truth(self) -> bool:
        """True if the number can only be 1 or 0."""
        return self.op in TRUTHS or (self.op == "literal" and self.value in (0.0, 1.0))

    def __add__(self, other: Any) -> StandIn:
        return apply("add", self, other)

    def __radd__(self, other: Any) -> StandIn:
        return apply("add", other, self)

    def __sub__(self, other: Any) -> StandIn:
        return apply("sub", self, other)

    def __rsub__(self, other: Any) -> StandIn:
        return apply("sub", other, self)

    def __mul__(self, other: Any) -> StandIn:
        return apply("mul", self, other)

    def __rmul__(self, other: Any) -> StandIn:
        return apply("mul", other, self)

    def __truediv__(self, other: Any) -> StandIn:
        return apply("div", self, other)

    def __rtruediv__(self, other: Any) -> StandIn:
        return apply("div", other, self)

    def __neg__(self) -> StandIn:
        return apply("neg", self)

    def __pos__(self) -> StandIn:
        return self

    def __abs__(self) -> StandIn:
        return apply("abs", self)

    def __lt__(self, other: Any) -> StandIn:
        return apply("less", self, other)

    def __gt__(self, other: Any) -> StandIn:
        return apply("less", other, self)

    def __le__(self, other: Any) -> StandIn:
        return apply("less_equal", self, other)

    def __ge__(self, other: Any) -> StandIn:
        return apply("less_equal", other, self)

    def __eq__(self, other: Any) -> StandIn:  # type: ignore[override]
        return apply("equal", self, other)

    def __ne__(self, other: Any) -> StandIn:  # type: ignore[override]
        return invert(apply("equal", self, other))

    def __and__(self, other: Any) -> StandIn:
        return apply("both", self, other)

    def __or__(self, other: Any) -> StandIn:
        return apply("either", self, other)

    def __invert__(self) -> StandIn:
        return invert(self)

    __rand__, __ror__ = __and__, __or__

    def __pow__(self, times: Any) -> StandIn:
        return power(self, times)

    def __bool__(self) -> NoReturn:
        raise Untraceable("it uses a number as a condition, as `if` and `and` do: use numpy.where(..)")

    def __float__(self) -> NoReturn:
        raise Untraceable(
            "it converts a number to a Python float or int, as functions of `math` do: use numpy's functions"
        )

    def __iter__(self) -> NoReturn:
        raise Untraceable("it iterates over a number, which is a scalar")

    __int__ = __index__ = __float__

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **more: Any) -> StandIn:
        if method != "__call__" or more:
            raise Untraceable(f"numpy.{ufunc.__name__} with other arguments than numbers")
        return applied(ufunc.__name__, *inputs)

    def __array_function__(self, function: Callable[..., Any], kinds: object, args: Any, named: Any) -> StandIn:
        match function.__name__, args:
            case "where", (test, one, other) if not named:
                return choose_number(test, one, other)
            case "clip", (x, low, high) if not named:
                x = x if low is None else apply("maximum", x, low)
                return x if high is None else apply("minimum", x, high)
            case (("zeros_like" | "ones_like" as name), (_,)):
                return number(float(name == "ones_like"))
            case "full_like", (_, value) if not named:
                return number(value)
        raise Untraceable(f"numpy.{function.__name__} is not supported")


def number(given: Any) -> StandIn:
    """Return a number as a stand-in: a stand-in itself, or a literal."""
    if isinstance(given, StandIn):
        return given
    if isinstance(given, np.ndarray) and given.shape == ():
        return number(given.item())
    if isinstance(given, bool | int | float | np.generic):
        return StandIn("literal", value=float(given))
    raise Untraceable(f"an operand is a {type(given).__name__}, not a number")


def apply(op: str, *given: Any) -> StandIn:
    """Apply an operation to numbers; if all are literals, return the result as a literal."""
    args = [*map(number, given)]
    if op in ("both", "either") and not all(arg.truth for arg in args):
        raise Untraceable("& and | combine comparisons only")
    if all(arg.op == "literal" for arg in args):
        from formats.kernels.generated.rowwise.scalar_functions import SCALAR_OPERATIONS

        with np.errstate(all="ignore"):
            return number(float(SCALAR_OPERATIONS[op].exact(*(arg.value for arg in args))))
    return StandIn(op, *args)


def invert(test: StandIn) -> StandIn:
    """Return 1 where a comparison is false, 0 where it is true."""
    if not test.truth:
        raise Untraceable("~ negates comparisons only")
    return apply("equal", test, 0.0)


def choose_number(test: Any, one: Any, other: Any) -> StandIn:
    """Return `one` where a test is true, else `other`."""
    asked, first, second = map(number, (test, one, other))
    if asked.op == "literal":
        return first if asked.value else second
    return first if first is second else StandIn("choose", asked, first, second)


def power(x: Any, times: Any) -> StandIn:
    """Return a power by a literal: an integer of magnitude 1 to 8, or 1/2, or -1/2."""
    x, times = number(x), number(times)
    if times.op != "literal":
        raise Untraceable("an exponent that is not a literal")
    by = times.value
    if by in (0.5, -0.5):
        root = apply("sqrt", x)
        return root if by > 0 else apply("div", 1.0, root)
    if by != int(by) or not 1 <= abs(by) <= 8:
        raise Untraceable(f"the exponent {by:g} is not supported: give a whole number up to 8")
    result, left, square = None, int(abs(by)), x
    while left:
        if left & 1:
            result = square if result is None else apply("mul", result, square)
        left, square = left >> 1, apply("mul", square, square)
    assert result is not None
    return result if by > 0 else apply("div", 1.0, result)


def applied(name: str, *given: Any) -> StandIn:
    """Apply one of numpy's functions, by its name."""
    if name in UFUNC_NAMES:
        return apply(UFUNC_NAMES[name], *given)
    match name, given:
        case "greater", (a, b):
            return apply("less", b, a)
        case "greater_equal", (a, b):
            return apply("less_equal", b, a)
        case "not_equal", (a, b):
            return invert(apply("equal", a, b))
        case (("logical_not" | "invert"), (a,)):
            return invert(number(a))
        case "square", (a,):
            return apply("mul", a, a)
        case "reciprocal", (a,):
            return apply("div", 1.0, a)
        case "positive", (a,):
            return number(a)
        case "exp2", (a,):
            return apply("exp", apply("mul", a, LN2))
        case "log2", (a,):
            return apply("mul", apply("log", a), 1 / LN2)
        case "log10", (a,):
            return apply("mul", apply("log", a), 1 / float(np.log(10.0)))
        case "cosh", (a,):
            return 0.5 * (apply("exp", a) + apply("exp", -number(a)))
        case "sign", (a,):
            return choose_number(0 < number(a), 1.0, choose_number(number(a) < 0, -1.0, a))
        case "isnan", (a,):
            return invert(number(a) == number(a))
        case "isfinite", (a,):
            return apply("less", apply("abs", a), np.inf)
        case "heaviside", (a, b):
            return choose_number(number(a) < 0, 0.0, choose_number(number(a) == 0, b, choose_number(a > 0, 1.0, a)))
        case "logaddexp", (a, b):
            a, b = number(a), number(b)
            return choose_number(a == b, a + LN2, apply("maximum", a, b) + apply("log1p", apply("exp", -abs(a - b))))
        case "expit", (a,):
            return apply("div", 1.0, 1.0 + apply("exp", -number(a)))
        case (("power" | "float_power"), (a, b)):
            return power(a, b)
    raise Untraceable(f"{name} is not supported in generated kernels")


class HasArgs(Protocol):
    """A node with arguments of its own class."""

    @property
    def args(self) -> tuple[Self, ...]: ...


Made = TypeVar("Made", bound=HasArgs)
Filled = TypeVar("Filled")


def walk_made(ends: Iterable[Made]) -> Iterator[Made]:
    """Yield `ends` and all nodes that they are computed from, each once, arguments first."""
    seen: set[int] = set()
    todo = [(end, False) for end in reversed([*ends])]
    while todo:
        node, done = todo.pop()
        if id(node) in seen:
            continue
        if done or not node.args:
            seen.add(id(node))
            yield node
        else:
            todo += [(node, True), *((arg, False) for arg in reversed(node.args))]


class NumberGraph(NamedTuple):
    """The graph of a function of `inputs` numbers, with one or several outputs."""

    inputs: int
    outputs: tuple[StandIn, ...]

    def walk(self) -> Iterator[StandIn]:
        """Yield every number once, arguments first."""
        return walk_made(self.outputs)

    def fill(
        self,
        given: Sequence[Filled],
        literal: Callable[[float], Filled],
        make: Callable[[StandIn, list[Filled]], Filled],
    ) -> list[Filled]:
        """Evaluate the outputs for the given inputs, one number after another."""
        values: dict[int, Filled] = {}
        for node in self.walk():
            if node.op == "input":
                values[id(node)] = given[int(node.value)]
            elif node.op == "literal":
                values[id(node)] = literal(node.value)
            else:
                values[id(node)] = make(node, [values[id(arg)] for arg in node.args])
        return [values[id(output)] for output in self.outputs]


def trace_numbers(function: Callable[..., Any], inputs: int = 1) -> NumberGraph:
    """Trace a function of `inputs` numbers. Raises Untraceable, which names the place in its file."""
    numbers = [StandIn("input", value=float(k)) for k in range(inputs)]
    try:
        result = function(*numbers)
        return NumberGraph(inputs, tuple(map(number, result if isinstance(result, tuple) else (result,))))
    except RecursionError as error:
        raise Untraceable("it recurses without end") from error
    except Exception as error:
        complaint = str(error) if isinstance(error, Untraceable) else f"{type(error).__name__}: {error}"
        raise Untraceable(f"{find_place(function, error.__traceback__)}: {complaint}".replace("\n", " ")) from None


def find_place(function: Any, at: TracebackType | None) -> str:
    """Return the place in the user's file where tracing stopped: FILE:LINE."""
    code = getattr(function, "__code__", None)
    place = f"{code.co_filename}:{code.co_firstlineno}" if code else getattr(function, "__name__", "a function")
    while at is not None:
        name = at.tb_frame.f_code.co_filename
        if name != OWN_FILE and not name.startswith(sys.prefix):
            place = f"{name}:{at.tb_lineno}"
        at = at.tb_next
    return place
