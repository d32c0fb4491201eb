"""Readings of a graph of numbers: its meaning, a running bound of its error, its work, its name."""
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from formats.core.activation import Reals
from formats.core.stage import may_overflow
from formats.kernels.generated.rowwise.scalar_functions import HALF_UNIT, SCALAR_OPERATIONS, VANISHED
from formats.kernels.generated.rowwise.scalars import NumberGraph, StandIn, Untraceable, find_place

NumberPair = tuple[Any, Any]                                # float64 numbers, and how far float32 may be from them
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1e-38, -1e-38, 1e38, -1e38, np.inf, -np.inf, np.nan, 88.0, -88.0]
TRIED_DRAWS, TOLERANCE = 1000, 1e-9
WAITING_SLOW = 3.0                                          # operations that a division takes where others wait for it


def exact_graph(graph: NumberGraph, *given: Any) -> list[Any]:
    """What it means, of float64 arrays."""
    with np.errstate(all="ignore"):
        return graph.fill(given, np.float64, lambda node, args: SCALAR_OPERATIONS[node.op].exact(*args))


def bound_graph(graph: NumberGraph, *given: NumberPair) -> list[NumberPair]:
    """What it means, and how far float32 may be from that: a running error (Higham 2002, section 3.3)."""
    made: dict[int, NumberPair] = {}
    for node in graph.walk():
        if node.op == "input": made[id(node)] = given[int(node.value)]
        elif node.op == "literal": made[id(node)] = node.value, lost(node.value)
        else:
            pair = spread_by(node.op, [made[id(each)] for each in node.args])
            made[id(node)] = bound_beside_extreme(node, pair, made)
    return [made[id(each)] for each in graph.outputs]


def bound_beside_extreme(node: StandIn, pair: NumberPair, made: dict[int, NumberPair]) -> NumberPair:
    """What a number is beside the larger or the smaller of it and another: where it is surely that, it is it to the
    bit, so their difference is nothing, and whether they are equal is known."""
    if node.op not in ("sub", "equal"): return pair
    for one, both in (node.args, node.args[::-1]):
        if both.op not in ("maximum", "minimum") or all(each is not one for each in both.args): continue
        (x, e), (z, f) = made[id(one)], made[id(both.args[both.args[0] is one])]
        y, error = pair
        with np.errstate(all="ignore"):
            ahead = np.where(x == z, 0.0, np.asarray(x) - z) * (1 if both.op == "maximum" else -1)
            sure = (abs(ahead) > e + f) | ((x == z) & (e + f == 0))
            if node.op == "equal": return y, np.where(sure, 0.0, 1.0)
            rounded = np.where(np.isfinite(y), e + f + HALF_UNIT * (abs(y) + e + f) + VANISHED, error)
            return y, np.where(sure & (ahead >= 0), np.where(np.isfinite(y), 0.0, error), np.minimum(rounded, error))
    return pair


def lost(value: float) -> float:
    """How far float32 is from a number; what is infinite or none stays so."""
    return abs(value - float(np.float32(value))) if np.isfinite(value) else 0.0


def spread_by(op: str, args: Sequence[NumberPair]) -> NumberPair:
    """The numbers that an operation gives, and how far off they may be: by any number where float32 may have none."""
    function = SCALAR_OPERATIONS[op]
    with np.errstate(all="ignore"):
        y = function.exact(*(x for x, _ in args))
        error = function.spread(y, *args)
        if function.units:
            size = np.where(np.isfinite(y), abs(y), 0.0)
            own = function.units * HALF_UNIT * (size + error)
            if function.most: own = np.fmin(own, function.most(y) + function.units * HALF_UNIT * error)
            exact = exactly(y, function.units)
            if function.exact_at is not None: exact = exact | (np.asarray(args[0][0]) == function.exact_at)
            if op == "mul": own = np.where(scales(*args[0]) | scales(*args[1]), 0.0, own)
            error = np.where((error == 0) & exact, 0.0, error + own + VANISHED)
        return y, np.where(may_overflow(y, error), np.inf, error)


def scales(x: Any, error: Any) -> Any:
    """Where a number is surely 0 or a power of two, so that a product with it does not round."""
    return (error == 0) & ((x == 0) | (abs(np.frexp(x)[0]) == 0.5))


def exactly(y: Any, units: float) -> Any:
    """Where float32 has the number itself, so that what rounds once to the nearest gives it."""
    return (np.asarray(np.float32(y), np.float64) == y) & (units <= 1)


def count_work(graph: NumberGraph, held: Iterable[StandIn] = ()) -> tuple[float, float]:
    """Simple operations, and divisions and roots, of what its outputs are made of, down to what is held."""
    counted = [SCALAR_OPERATIONS[node.op] for node in walk_to(graph.outputs, held)
               if node.op not in ("input", "literal")]
    return sum(each.simple for each in counted), sum(each.slow for each in counted)


def walk_to(ends: Sequence[StandIn], held: Iterable[StandIn]) -> Iterator[StandIn]:
    """All that numbers are made of once, without what is held and lies behind it."""
    seen = {id(each) for each in held}
    todo = [*ends]
    while todo:
        node = todo.pop()
        if id(node) in seen: continue
        seen.add(id(node))
        yield node
        todo += node.args


def count_waiting(graph: NumberGraph, held: int) -> float:
    """Operations between the first so many inputs and outputs, one after another: how long what is merged next waits
    for what was merged before."""
    longest: dict[int, float | None] = {}
    for node in graph.walk():
        before = [longest[id(each)] for each in node.args if longest[id(each)] is not None]
        if node.op == "input": longest[id(node)] = 0.0 if node.value < held else None
        elif not before: longest[id(node)] = None
        else:
            function = SCALAR_OPERATIONS[node.op]
            longest[id(node)] = max(each for each in before if each is not None) + function.simple + \
                WAITING_SLOW * function.slow
    return max((longest[id(each)] or 0.0 for each in graph.outputs), default=0.0)


def name_graph(graph: NumberGraph) -> str:
    """A name for all that it computes."""
    places: dict[int, int] = {}
    words = []
    for node in graph.walk():
        places[id(node)] = len(places)
        words.append(f"{node.op} {[places[id(each)] for each in node.args]} {node.value.hex()}")
    outputs = [places[id(each)] for each in graph.outputs]
    return hashlib.blake2b(f"{graph.inputs} {words} {outputs}".encode(), digest_size=8).hexdigest()


def check_traced(graph: NumberGraph, function: Callable[..., Any], own: Callable[..., Any] | None = None) -> None:
    """Raises Untraceable where a graph is not its function: at random numbers, and at the edges of what numbers are. It
    names the place of the function that a person wrote, which is `own` where another calls it."""
    rng = np.random.default_rng(0)
    draws = [np.concatenate([rng.normal(size=TRIED_DRAWS) * 3, rng.permutation(np.array(EDGES * 3))])
             for _ in range(graph.inputs)]
    with np.errstate(all="ignore"): meant = function(*draws)
    wanted = meant if isinstance(meant, tuple) else (meant,)
    for found, other in zip(exact_graph(graph, *draws), wanted, strict=True):
        one, two = (np.broadcast_to(np.asarray(each, np.float64), draws[0].shape if draws else ()) for each in
                    (found, other))
        if not equal_numbers(one, two):
            said = "what it does to single numbers is not what it does to arrays"
            raise Untraceable(f"{find_place(own or function, None)}: {said}")


def equal_numbers(one: Reals, two: Reals) -> bool:
    """Whether numbers are equal but for the rounding of float64."""
    with np.errstate(all="ignore"):
        near = abs(one - two) <= TOLERANCE * (abs(two) + 1e-30)
        return bool(np.all(near | (one == two) | (np.isnan(one) & np.isnan(two))))
