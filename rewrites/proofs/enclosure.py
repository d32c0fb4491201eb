"""Numbers with all possible rounding: intervals of float64, rounded outward at every step. The result of a term is in
its interval, so two terms whose intervals share no number differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isnan, nan, nextafter
from typing import SupportsFloat, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import Entrywise, check_input
from opmatrix.algebra.term import Operator

SURE_BITS = 32  # mantissa bits of a number as written in a program
UNSURE = 2.0**-50  # relative error of a number with more bits
Certainty: TypeAlias = "bool | Maybe"
Enclosable: TypeAlias = "SupportsFloat | Between"
LIBRARY_ROUNDINGS = 4  # roundings by which C library functions may be off


class Undecided(ArithmeticError):
    """An `if` on a comparison whose result is not certain."""


class Maybe:
    """A truth value that is true of some numbers of an interval and false of others."""

    __array_ufunc__ = None

    def __array_function__(self, function: object, types: object, inputs: Sequence[Enclosable], more: object) -> object:
        return choose_between(*inputs) if function is np.where and len(inputs) == 3 else NotImplemented

    def __bool__(self) -> bool:
        raise Undecided("a comparison of numbers that are equal up to rounding")

    def __and__(self, other: object) -> Certainty:
        return self if isinstance(other, Maybe) or other else False

    def __or__(self, other: object) -> Certainty:
        return True if not isinstance(other, Maybe) and other else self

    def __invert__(self) -> Maybe:
        return self

    def __mul__(self, other: Enclosable) -> Between:
        return Between(0.0, 1.0) * other

    __rand__, __ror__, __rmul__ = __and__, __or__, __mul__


MAYBE = Maybe()


class Between:
    """All numbers from low to high. Both are NaN if the value is not known. `undefined` marks a value that does not
    exist, such as a logarithm of a negative number, and every result computed from it."""

    __slots__ = ("high", "low", "undefined")

    def __init__(self, low: float, high: float | None = None, undefined: bool = False) -> None:
        self.low, self.high, self.undefined = low, low if high is None else high, undefined
        if isnan(self.low) or isnan(self.high):
            self.low = self.high = nan

    @property
    def finite(self) -> bool:
        """True if both ends are finite numbers."""
        return isfinite(self.low) and isfinite(self.high)

    @property
    def unknown(self) -> bool:
        """True if the value is not known."""
        return isnan(self.low)

    @property
    def middle(self) -> float:
        """The number halfway between both ends, without overflow."""
        return self.low / 2 + self.high / 2

    def holds(self, number: float) -> bool:
        """True if a number is in the interval, ends included."""
        return self.low <= number <= self.high

    def __repr__(self) -> str:
        return f"[{self.low}, {self.high}]"

    def __neg__(self) -> Between:
        return Between(-self.high, -self.low, self.undefined)

    def __pos__(self) -> Between:
        return self

    def __abs__(self) -> Between:
        if self.undefined:
            return self
        ends = abs(self.low), abs(self.high)
        return Between(0.0 if self.holds(0.0) else min(ends), max(ends))

    def __add__(self, other: Enclosable) -> Between:
        o = as_between(other)
        if self.undefined or o.undefined:
            return NO_VALUE
        return outward(self.low + o.low, self.high + o.high)

    def __sub__(self, other: Enclosable) -> Between:
        return self + -as_between(other)

    def __rsub__(self, other: Enclosable) -> Between:
        return -self + other

    def __mul__(self, other: Enclosable) -> Between:
        o = as_between(other)
        if self.undefined or o.undefined:
            return NO_VALUE
        if other is self and not self.unknown:
            near, far = (end * end for end in (abs(self).low, abs(self).high))
            return outward(near, far, least=0.0)
        if (self.low == self.high == 0 and o.finite) or (o.low == o.high == 0 and self.finite):
            return Between(0.0)
        ends = [a * b for a in (self.low, self.high) for b in (o.low, o.high)]
        return outward(min(ends), max(ends)) if not any(map(isnan, ends)) else Between(nan)

    def __truediv__(self, other: Enclosable) -> Between:
        o = as_between(other)
        if self.undefined or o.undefined:
            return NO_VALUE
        if o.unknown or o.holds(0.0):
            return Between(nan)
        return self * outward(1 / o.high, 1 / o.low)

    def __rtruediv__(self, other: Enclosable) -> Between:
        return as_between(other) / self

    def __pow__(self, power: float | Between) -> Between:
        if self.undefined:
            return self
        if power == 0.5:
            return SQRT(self)
        if isinstance(power, Between) or power != int(power):
            return Between(nan)
        if power < 0:
            return 1.0 / self**-power
        product = Between(1.0)
        for _ in range(int(power) // 2):
            product = product * (self * self)
        return product * self if power % 2 else product

    __radd__, __rmul__ = __add__, __mul__

    def __lt__(self, other: Enclosable) -> Certainty:
        o = as_between(other)
        if self.unknown or o.unknown:
            return MAYBE
        return True if self.high < o.low else False if self.low >= o.high else MAYBE

    def __gt__(self, other: Enclosable) -> Certainty:
        return as_between(other) < self

    def __le__(self, other: Enclosable) -> Certainty:
        return negated(self > other)

    def __ge__(self, other: Enclosable) -> Certainty:
        return negated(self < other)

    def __eq__(self, other: Enclosable) -> Certainty:  # type: ignore[override]
        o = as_between(other)
        if self.low == self.high == o.low == o.high:
            return True
        return False if self.high < o.low or o.high < self.low else MAYBE

    def __ne__(self, other: Enclosable) -> Certainty:  # type: ignore[override]
        return negated(self == other)

    __hash__ = None  # type: ignore[assignment]

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Enclosable, **more: object) -> object:
        if method != "__call__" or more:
            return NotImplemented
        if any(isinstance(value, np.ndarray) and value.ndim for value in inputs):
            return NotImplemented
        known = FUNCTIONS.get(ufunc.__name__)
        return known(*map(as_between, inputs)) if known else Between(nan)

    def __array_function__(self, function: object, types: object, inputs: Sequence[Enclosable], more: object) -> object:
        if function is np.where and len(inputs) == 3:
            return choose_between(*inputs)
        return NotImplemented


NO_VALUE = Between(nan, undefined=True)


def as_between(number: Enclosable) -> Between:
    """Return an exact number as an interval."""
    if isinstance(number, Between):
        return number
    if isinstance(number, np.ndarray):
        number = number.item()
    return number if isinstance(number, Between) else Between(float(number))


def around(number: Enclosable) -> Between:
    """Return the interval of a number that is written in a term: if it has more than SURE_BITS bits, it may be a
    rounded one."""
    if isinstance(number, Between):
        return number
    mantissa, _ = math.frexp(value := float(number))
    if not isfinite(value) or (mantissa * 2**SURE_BITS).is_integer():
        return Between(value)
    off = abs(value) * UNSURE
    return outward(value - off, value + off)


def outward(low: float, high: float, steps: int = 1, least: float = -inf, most: float = inf) -> Between:
    """Return the interval from low to high, widened by `steps` float64 roundings on each side."""
    for _ in range(steps):
        low, high = low if low == inf else nextafter(low, -inf), high if high == -inf else nextafter(high, inf)
    return Between(max(low, least) if not isnan(low) else nan, min(high, most) if not isnan(high) else nan)


def negated(said: Certainty) -> Certainty:
    """Negate a truth value; `may` stays `may`."""
    return said if isinstance(said, Maybe) else not said


def choose_between(condition: object, one: Enclosable, other: Enclosable) -> Enclosable:
    """Return one if the condition holds, else the other; an interval of both if it may hold."""
    if not isinstance(condition, Maybe):
        return one if condition else other
    a, b = as_between(one), as_between(other)
    return Between(nan) if a.unknown or b.unknown else Between(min(a.low, b.low), max(a.high, b.high))


def rising(f: Callable[[float], float], least: float = -inf, most: float = inf) -> Callable[[Between], Between]:
    """Return a function that never falls, applied to an interval; NO_VALUE where the function has no value."""

    def at(u: float) -> float:
        """Evaluate the function at a float: infinity where it overflows, NaN where it has no value."""
        try:
            return f(u)
        except OverflowError:
            return inf
        except ValueError:
            return nan

    def of(u: Between) -> Between:
        """Map an interval to that of the values at both ends, rounded outward."""
        if u.unknown:
            return u
        if isnan(at(u.high)):
            return NO_VALUE  # nor is there one below it
        return outward(at(u.low), at(u.high), LIBRARY_ROUNDINGS, least, most)

    return of


def stepping(f: Callable[[float], float]) -> Callable[[Between], Between]:
    """Return a function that never falls and does not round, applied to an interval."""
    return lambda u: (
        u
        if u.undefined
        else (Between(nan) if u.unknown or not u.finite else Between(float(f(u.low)), float(f(u.high))))
    )


def either(pick: Callable[..., float]) -> Callable[[Between, Between], Between]:
    """Return the minimum or maximum of two intervals: `pick` of the lower ends and of the upper ones."""

    def of(a: Between, b: Between) -> Between:
        """Pick end by end; a value that does not exist stays so."""
        if a.undefined or b.undefined:
            return NO_VALUE
        return Between(nan) if a.unknown or b.unknown else Between(pick(a.low, b.low), pick(a.high, b.high))

    return of


def swinging(f: Callable[[float], float]) -> Callable[[Between], Between]:
    """Return sine or cosine of an interval; they change by no more than their argument."""

    def of(u: Between) -> Between:
        """Bound the values by the slope, at most 1, around the middle; unknown for huge arguments."""
        if not u.finite or abs(u.middle) > 2.0**40:
            return Between(nan)
        return (
            outward(-1.0, 1.0, 0)
            if u.high - u.low > 2
            else Between(f(u.middle)) + Between(-1.0, 1.0) * (Between(u.high) - u.low + 2.0**-50)
        )

    return of


EXP, SQRT = rising(math.exp, 0.0), rising(math.sqrt, 0.0)
LOG = rising(lambda u: -inf if u == 0 else math.log(u))
FUNCTIONS: dict[str, Callable[..., Between | Certainty]] = {  # by numpy's and scipy's names
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "true_divide": lambda a, b: a / b,
    "negative": lambda a: -a,
    "positive": lambda a: a,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
    "absolute": abs,
    "fabs": abs,
    "square": lambda a: a * a,
    "reciprocal": lambda a: 1.0 / a,
    "power": lambda a, b: a ** (b.low if b.low == b.high else b),
    "maximum": either(max),
    "minimum": either(min),
    "fmax": either(max),
    "fmin": either(min),
    "exp": EXP,
    "expm1": rising(math.expm1, -1.0),
    "exp2": rising(lambda u: 2.0**u, 0.0),
    "log": LOG,
    "log1p": rising(math.log1p),
    "log2": rising(lambda u: -inf if u == 0 else math.log2(u)),
    "sqrt": SQRT,
    "cbrt": rising(math.cbrt),
    "tanh": rising(math.tanh, -1.0, 1.0),
    "sinh": rising(math.sinh),
    "arctan": rising(math.atan),
    "arcsinh": rising(math.asinh),
    "erf": rising(math.erf, -1.0, 1.0),
    "expit": rising(lambda u: 1 / (1 + math.exp(-u)) if u > -700 else math.exp(u), 0.0, 1.0),
    "sin": swinging(math.sin),
    "cos": swinging(math.cos),
    "sign": stepping(lambda u: (u > 0) - (u < 0)),
    "floor": stepping(math.floor),
    "ceil": stepping(math.ceil),
    "logaddexp": lambda a, b: LOG(EXP(a) + EXP(b)),
    "isfinite": lambda a: a.finite or MAYBE,
    "isnan": lambda a: MAYBE if a.unknown else False,
}


@dataclass(frozen=True, eq=False)
class Enclosed(Entrywise):
    """A reading one entry at a time, each an interval."""

    def kept(self, own: Enclosable, row: Sequence[Enclosable], before: Sequence[Certainty], k: int) -> Enclosable:
        """Return an entry, or 0, or the interval of both if it is not certain which entries come before it."""
        if any(as_between(entry).unknown for entry in row):
            return Between(nan)
        if sum(not isinstance(earlier, Maybe) and earlier for earlier in before) >= k:
            return Between(0.0)
        return (
            own
            if sum(isinstance(earlier, Maybe) or earlier for earlier in before) < k
            else choose_between(MAYBE, own, 0.0)
        )

    def finished(
        self,
        shape: tuple[int, ...],
        width: int,
        value: Callable[..., Enclosable | tuple[Enclosable, ...]],
        doing: object,
    ) -> Entrywise:
        """Compute every entry as an interval."""

        def at(h: int, r: int, j: int) -> Between:
            """Return one entry of a value that may give several for each column."""
            entry = value(h, r, j // width)
            return as_between(entry[j % width] if isinstance(entry, tuple) else entry)

        return self.of((*shape[:2], shape[2] * width), at)


def enclose(term: Operator, x: NDArray[np.float64], batch: Batch) -> NDArray[np.object_]:
    """Return intervals that hold the result of a term at x, heads x rows x columns. Raises Undecided, and the errors
    of the oracle."""
    rows, known = check_input(term, x, batch)
    start = Enclosed(rows if rows.ndim == 3 else rows[None], known, around)
    intervals: NDArray[np.object_] = term(
        start.of(start.value.shape, lambda *at: Between(float(start.value[at])))
    ).value
    return intervals
