"""The operations of graphs of numbers: the meaning of each, its error propagation, its vector code, its work."""

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from formats.core.activation import COMPILED, Activation
from formats.core.stage import GELU_ERROR

HALF_UNIT, VANISHED = 2.0**-24, 2.0**-125  # half a unit in the last place; bound on underflow
DIFFERENCE_LOSS = 2.0**-50  # largest relative error of a difference in float64
SpreadError = Callable[..., Any]
ErrorPair = tuple[Any, Any]  # an argument, and a bound on its error


class ScalarFunction(NamedTuple):
    """One operation. `exact`: its meaning, on float64 arrays; `spread(y, *pairs)`: the error of y if its arguments x
    are off by at most e, pairs (x, e); `units`: the error of its code beyond that, in halves of a unit in the last
    place; `code`: its name in row_lanes.py, or an operator between operands if it has none; `simple` and `slow`: counts
    of operations, `slow` those of divisions and roots; `exact_at`: the argument at which its code is exact; `most`: a
    bound on the error of its code, as a function of y, where that is tighter than `units`."""

    exact: Callable[..., Any]
    spread: SpreadError
    code: str
    units: float = 1.0
    simple: float = 1.0
    slow: float = 0.0
    exact_at: float | None = None
    most: Callable[[Any], Any] | None = None


def either_way(y: Any, *pairs: ErrorPair) -> Any:
    """Return the largest of the errors: the error of a choice between inexact numbers."""
    return reduce(np.maximum, [e for _, e in pairs])


def of_extreme(extreme: Callable[..., Any]) -> SpreadError:
    """Build the error propagation of the larger or the smaller of two numbers: the distance to its values at both ends
    of their intervals. An argument that surely loses adds no error."""

    def spread(y: Any, a: ErrorPair, b: ErrorPair) -> Any:
        with np.errstate(all="ignore"):
            reach = np.fmax(extreme(a[0] + a[1], b[0] + b[1]) - y, y - extreme(a[0] - a[1], b[0] - b[1]))
            return np.fmin(either_way(y, a, b), reach + DIFFERENCE_LOSS * abs(y))

    return spread


def spread_quotient(y: Any, a: ErrorPair, b: ErrorPair) -> Any:
    with np.errstate(all="ignore"):
        least = abs(b[0]) - b[1]
        error = (a[1] + np.where(np.isfinite(y), abs(y), 0) * b[1]) / np.maximum(least, 0)
        return np.where(a[1] + b[1] == 0, 0.0, np.where(least > 0, error, np.inf))


def spread_root(y: Any, a: ErrorPair) -> Any:
    with np.errstate(all="ignore"):
        low, high = np.sqrt(np.maximum(a[0] - a[1], 0)), np.sqrt(np.maximum(a[0] + a[1], 0))
        return np.where(a[1] == 0, 0.0, np.fmax(abs(y - low), abs(high - y)))


def spread_log(y: Any, a: ErrorPair) -> Any:
    with np.errstate(all="ignore"):
        return np.where(a[1] == 0, 0.0, np.where(a[0] > a[1], -np.log1p(-np.minimum(a[1] / a[0], 1)), np.inf))


def spread_log1p(y: Any, a: ErrorPair) -> Any:
    return spread_log(y, (1 + np.asarray(a[0]), a[1]))


def spread_exp(y: Any, a: ErrorPair) -> Any:
    with np.errstate(all="ignore"):
        return np.where(a[1] == 0, 0.0, np.exp(a[0]) * np.expm1(a[1]))


def spread_test(y: Any, a: ErrorPair, b: ErrorPair) -> Any:
    """Return 0 where a comparison is certain, 1 where it may be the other way."""
    with np.errstate(all="ignore"):
        apart, off = abs(np.where(a[0] == b[0], 0.0, np.asarray(a[0]) - b[0])), np.asarray(a[1] + b[1])
        return np.where((off > 0) & (apart <= off), 1.0, 0.0)


def spread_choice(y: Any, c: ErrorPair, a: ErrorPair, b: ErrorPair) -> Any:
    with np.errstate(all="ignore"):
        taken = np.where(np.asarray(c[0]) != 0, a[1], b[1])
        apart = abs(np.where(a[0] == b[0], 0.0, np.asarray(a[0]) - b[0]))
        return np.where(np.asarray(c[1]) == 0, taken, apart + a[1] + b[1])


def spread_product(y: Any, a: ErrorPair, b: ErrorPair) -> Any:
    with np.errstate(all="ignore"):

        def part(size: Any, error: Any) -> Any:
            return np.where(np.asarray(error) == 0, 0.0, abs(size) * error)

        return part(a[0], b[1]) + part(b[0], a[1]) + part(a[1], b[1])


def spread_floor(y: Any, a: ErrorPair) -> Any:
    return np.floor(a[0] + a[1]) - np.floor(a[0] - a[1])


def unless_lost(error: ArrayLike, a: ErrorPair) -> NDArray[np.floating]:
    """Return an error that is infinite where that of the argument is: it may be NaN, which no function makes a
    number, however small its range."""
    return np.where(np.isinf(a[1]), np.inf, error)


def ascending(function: Callable[..., Any]) -> SpreadError:
    """Build the error propagation of a function that is monotonic, and nowhere steeper than 1: the distance to its
    values at both ends of its argument's interval."""

    def spread(y: Any, a: ErrorPair) -> Any:
        with np.errstate(all="ignore"):
            reach = np.fmax(abs(function(a[0] + a[1]) - y), abs(y - function(a[0] - a[1])))
            return unless_lost(np.fmin(a[1], reach + DIFFERENCE_LOSS * abs(y)), a)

    return spread


def saturated(y: Any) -> Any:
    """Bound the error of tanh: behind 5/8 it is 1 - 2 / (1 + e^2x), whose difference rounds once, and whose quotient is
    off by five roundings."""
    return np.where(abs(y) > 0.56, HALF_UNIT * (abs(y) + 6 * (1 - abs(y))), np.inf)


def added(y: Any, a: ErrorPair, b: ErrorPair) -> Any:
    return a[1] + b[1]


def kept_error(y: Any, a: ErrorPair) -> Any:
    return a[1]


def truth_of(test: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *x: np.asarray(test(*x), np.float64)


def within(activation: Activation) -> Callable[[Any, ErrorPair], Any]:
    """Build the error propagation of an activation's record plus the error of its vector code, the same as in an
    epilogue."""
    return lambda y, a: unless_lost(
        activation.spread(np.asarray(a[0]), np.asarray(a[1])) + GELU_ERROR * np.maximum(1, abs(y)), a
    )


# simple and slow operations, as timed beside tanh
OF_VECTOR_CODE = {"gelu": (34.0, 0.0), "gelu_tanh": (28.0, 1.0), "silu": (18.0, 1.0), "sigmoid": (14.0, 1.0)}
SCALAR_OPERATIONS: dict[str, ScalarFunction] = {
    "add": ScalarFunction(np.add, added, "+"),
    "sub": ScalarFunction(np.subtract, added, "-"),
    "mul": ScalarFunction(np.multiply, spread_product, "*"),
    "div": ScalarFunction(np.divide, spread_quotient, "/", 1.0, 0.0, 1.0),
    "copy": ScalarFunction(np.positive, kept_error, "in_all_lanes", 0.0),
    "neg": ScalarFunction(np.negative, kept_error, "negative", 0.0),
    "abs": ScalarFunction(np.abs, kept_error, "magnitude", 0.0),
    "maximum": ScalarFunction(np.maximum, of_extreme(np.maximum), "largest_of", 0.0, 2.0),
    "minimum": ScalarFunction(np.minimum, of_extreme(np.minimum), "smallest_of", 0.0, 2.0),
    "less": ScalarFunction(truth_of(np.less), spread_test, "less", 0.0),
    "less_equal": ScalarFunction(truth_of(np.less_equal), spread_test, "less_equal", 0.0),
    "equal": ScalarFunction(truth_of(np.equal), spread_test, "equal", 0.0),
    "both": ScalarFunction(truth_of(np.logical_and), either_way, "both", 0.0),
    "either": ScalarFunction(truth_of(np.logical_or), either_way, "either", 0.0),
    "choose": ScalarFunction(lambda c, a, b: np.where(np.asarray(c) != 0, a, b), spread_choice, "lanes_of", 0.0),
    "sqrt": ScalarFunction(np.sqrt, spread_root, "square_root", 1.0, 0.0, 1.0),
    "exp": ScalarFunction(np.exp, spread_exp, "exp_whole", 2.0, 14.0, exact_at=0.0),
    "expm1": ScalarFunction(np.expm1, spread_exp, "expm1_whole", 8.0, 16.0),
    "log": ScalarFunction(np.log, spread_log, "log_whole", 4.0, 22.0, 1.0),
    "log1p": ScalarFunction(np.log1p, spread_log1p, "log1p_whole", 8.0, 26.0, 2.0),
    "tanh": ScalarFunction(np.tanh, ascending(np.tanh), "tanh_of", 4.0, 18.0, 1.0, most=saturated),
    "floor": ScalarFunction(np.floor, spread_floor, "whole_below", 0.0),
} | {
    name: ScalarFunction(activation.function, within(activation), activation.vector, 4.0, *OF_VECTOR_CODE[name])
    for name, activation in COMPILED.items()
    if name in OF_VECTOR_CODE
}
