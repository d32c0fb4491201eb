"""Readings of a graph of numbers: its meaning, a running bound of its error, its work, its name."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from formats.core.activation import Reals
from formats.core.stage import may_overflow
from formats.kernels.generated.rowwise.scalar_functions import HALF_UNIT, SCALAR_OPERATIONS, VANISHED
from formats.kernels.generated.rowwise.scalars import NumberGraph, StandIn, Untraceable, find_place

NumberPair = tuple[Any, Any]  # float64 numbers, and a bound on float32's error
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1e-38, -1e-38, 1e38, -1e38, np.inf, -np.inf, np.nan, 88.0, -88.0]
TRIED_DRAWS, TOLERANCE = 1000, 1e-9
WAITING_SLOW = 3.0  # operations that a division takes where others wait for it


def exact_graph(graph: NumberGraph, *given: Any) -> list[Any]:
    """Evaluate a graph on float64 arrays."""
    with np.errstate(all="ignore"):
        return graph.fill(given, np.float64, lambda node, args: SCALAR_OPERATIONS[node.op].exact(*args))


def bound_graph(graph: NumberGraph, *given: NumberPair) -> list[NumberPair]:
    """Evaluate a graph, and bound the error of float32: a running error (Higham 2002, section 3.3)."""
    pairs: dict[int, NumberPair] = {}
    for node in graph.walk():
        if node.op == "input":
            pairs[id(node)] = given[int(node.value)]
        elif node.op == "literal":
            pairs[id(node)] = node.value, lost(node.value)
        else:
            pair = spread_by(node.op, [pairs[id(arg)] for arg in node.args])
            pairs[id(node)] = bound_beside_extreme(node, pair, pairs)
    return [pairs[id(output)] for output in graph.outputs]


def bound_beside_extreme(node: StandIn, pair: NumberPair, made: dict[int, NumberPair]) -> NumberPair:
    """Tighten the bound of x - max(x, z), x == max(x, z), and the like with min. Where x is surely the extreme, that
    equals x to the bit: the difference is 0, and the comparison is known."""
    if node.op not in ("sub", "equal"):
        return pair
    for one, both in (node.args, node.args[::-1]):
        if both.op not in ("maximum", "minimum") or all(arg is not one for arg in both.args):
            continue
        (x, e), (z, f) = made[id(one)], made[id(both.args[both.args[0] is one])]
        y, error = pair
        with np.errstate(all="ignore"):
            ahead = np.where(x == z, 0.0, np.asarray(x) - z) * (1 if both.op == "maximum" else -1)
            sure = (abs(ahead) > e + f) | ((x == z) & (e + f == 0))
            if node.op == "equal":
                return y, np.where(sure, 0.0, 1.0)
            rounded = np.where(np.isfinite(y), e + f + HALF_UNIT * (abs(y) + e + f) + VANISHED, error)
            return y, np.where(sure & (ahead >= 0), np.where(np.isfinite(y), 0.0, error), np.minimum(rounded, error))
    return pair


def lost(value: float) -> float:
    """Return the distance of float32 from a number; 0 if the number is infinite or NaN."""
    return abs(value - float(np.float32(value))) if np.isfinite(value) else 0.0


def spread_by(op: str, args: Sequence[NumberPair]) -> NumberPair:
    """Apply an operation to pairs (numbers, error bounds); the error is infinite where float32 may overflow."""
    function = SCALAR_OPERATIONS[op]
    with np.errstate(all="ignore"):
        y = function.exact(*(x for x, _ in args))
        error = function.spread(y, *args)
        if function.units:
            size = np.where(np.isfinite(y), abs(y), 0.0)
            rounding = function.units * HALF_UNIT * (size + error)
            if function.most:
                rounding = np.fmin(rounding, function.most(y) + function.units * HALF_UNIT * error)
            exact = exactly(y, function.units)
            if function.exact_at is not None:
                exact = exact | (np.asarray(args[0][0]) == function.exact_at)
            if op == "mul":
                rounding = np.where(scales(*args[0]) | scales(*args[1]), 0.0, rounding)
            error = np.where((error == 0) & exact, 0.0, error + rounding + VANISHED)
        return y, np.where(may_overflow(y, error), np.inf, error)


def scales(x: Any, error: Any) -> Any:
    """True where a number is surely 0 or a power of two, so that a product with it does not round."""
    return (error == 0) & ((x == 0) | (abs(np.frexp(x)[0]) == 0.5))


def exactly(y: Any, units: float) -> Any:
    """True where float32 holds the number itself, so that one rounding to nearest gives it."""
    return (np.asarray(np.float32(y), np.float64) == y) & (units <= 1)


def count_work(graph: NumberGraph, held: Iterable[StandIn] = ()) -> tuple[float, float]:
    """Count simple operations, and divisions and roots, needed for the outputs if the nodes `held` are available."""
    counted = [
        SCALAR_OPERATIONS[node.op] for node in walk_to(graph.outputs, held) if node.op not in ("input", "literal")
    ]
    return sum(function.simple for function in counted), sum(function.slow for function in counted)


def walk_to(ends: Sequence[StandIn], held: Iterable[StandIn]) -> Iterator[StandIn]:
    """Yield each node that `ends` are computed from once, leaving out the nodes `held` and the nodes reached only
    through them."""
    seen = {id(node) for node in held}
    todo = [*ends]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        todo += node.args


def count_waiting(graph: NumberGraph, held: int) -> float:
    """Count the operations on the longest path from the first `held` inputs to the outputs: the time that a merge waits
    for the merge before it."""
    longest: dict[int, float | None] = {}
    for node in graph.walk():
        before = [longest[id(arg)] for arg in node.args if longest[id(arg)] is not None]
        if node.op == "input":
            longest[id(node)] = 0.0 if node.value < held else None
        elif not before:
            longest[id(node)] = None
        else:
            function = SCALAR_OPERATIONS[node.op]
            longest[id(node)] = (
                max(length for length in before if length is not None) + function.simple + WAITING_SLOW * function.slow
            )
    return max((longest[id(output)] or 0.0 for output in graph.outputs), default=0.0)


def name_graph(graph: NumberGraph) -> str:
    """Return a name for the whole computation of a graph."""
    places: dict[int, int] = {}
    words = []
    for node in graph.walk():
        places[id(node)] = len(places)
        words.append(f"{node.op} {[places[id(arg)] for arg in node.args]} {node.value.hex()}")
    outputs = [places[id(output)] for output in graph.outputs]
    return hashlib.blake2b(f"{graph.inputs} {words} {outputs}".encode(), digest_size=8).hexdigest()


def check_traced(graph: NumberGraph, function: Callable[..., Any], own: Callable[..., Any] | None = None) -> None:
    """Raise Untraceable if a graph differs from its function, at random numbers or at the edges of the number range.
    The error names the place of the user's function, which is `own` if another function calls it."""
    rng = np.random.default_rng(0)
    draws = [
        np.concatenate([rng.normal(size=TRIED_DRAWS) * 3, rng.permutation(np.array(EDGES * 3))])
        for _ in range(graph.inputs)
    ]
    with np.errstate(all="ignore"):
        meant = function(*draws)
    wanted = meant if isinstance(meant, tuple) else (meant,)
    for traced, other in zip(exact_graph(graph, *draws), wanted, strict=True):
        one, two = (
            np.broadcast_to(np.asarray(numbers, np.float64), draws[0].shape if draws else ())
            for numbers in (traced, other)
        )
        if not equal_numbers(one, two):
            complaint = "its result on single numbers differs from its result on arrays"
            raise Untraceable(f"{find_place(own or function, None)}: {complaint}")


def equal_numbers(one: Reals, two: Reals) -> bool:
    """True if numbers are equal up to the rounding of float64."""
    with np.errstate(all="ignore"):
        near = abs(one - two) <= TOLERANCE * (abs(two) + 1e-30)
        return bool(np.all(near | (one == two) | (np.isnan(one) & np.isnan(two))))
