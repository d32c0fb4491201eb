"""Monoids as graphs of numbers: lift, merge and finish, without parts that are not needed."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from formats.kernels.generated.rowwise.row_values import Merging, RowValue, folded, graphed, literal
from formats.kernels.generated.rowwise.scalar_graphs import check_traced
from formats.kernels.generated.rowwise.scalars import NumberGraph, StandIn, Untraceable, number, trace_numbers
from opmatrix.algebra.monoid import Monoid


class MonoidGraphs(NamedTuple):
    """The graphs of a monoid: `lift` of a number, its factor and its index; `merge` of two carriers; `finish` of one.
    `used`: the numbers of its carrier that are needed."""

    lift: NumberGraph
    merge: NumberGraph
    finish: NumberGraph
    used: tuple[int, ...]


FOUND: WeakKeyDictionary[type[Monoid], MonoidGraphs] = WeakKeyDictionary()


def traced_monoid(over: type[Monoid]) -> MonoidGraphs:
    """Return the graphs of a monoid, made once. Raises Untraceable, which names the place in its file."""
    if over not in FOUND:
        FOUND[over] = trace_monoid(over)
    return FOUND[over]


def trace_monoid(over: type[Monoid]) -> MonoidGraphs:
    """Trace the graphs of a monoid and check them against its functions."""
    if over.width is None:
        raise Untraceable(f"{over.__name__}: it keeps all numbers, so its carrier has no fixed size")
    k = len(over.unit())
    lift = follow(lambda x, w, i: over.lifted(x, w, i), 3, over.lift)
    merge = follow(
        lambda *c: over.carry(over.merge(*((c[0], c[1]) if over.single else (c[:k], c[k:])))), 2 * k, over.merge
    )
    finish = follow(lambda *c: over.finish(*c), k, over.finish)
    used = needed_parts(merge, finish)
    at = {part: place for place, part in enumerate(used)}
    places = [*(at.get(part, 0) for part in range(k)), *(len(used) + at.get(part, 0) for part in range(k))]
    return MonoidGraphs(
        NumberGraph(3, tuple(lift.outputs[part] for part in used)),
        renumbered(NumberGraph(2 * k, tuple(merge.outputs[part] for part in used)), places, 2 * len(used)),
        renumbered(finish, places[:k], len(used)),
        used,
    )


def follow(function: Callable[..., Any], inputs: int, own: Callable[..., Any]) -> NumberGraph:
    """Trace the graph of a function and check it against the function; errors name the function `own`, which the user
    wrote."""
    graph = trace_numbers(function, inputs)
    check_traced(graph, function, own)
    return graph


def needed_parts(merge: NumberGraph, finish: NumberGraph) -> tuple[int, ...]:
    """Return the numbers of a carrier that `finish` needs, and those that these are merged from."""
    k = merge.inputs // 2
    needed: set[int] = set()
    left = {*read_inputs(finish)}
    while left:
        needed |= left
        left = {at % k for part in left for at in read_inputs(NumberGraph(2 * k, (merge.outputs[part],)))} - needed
    return tuple(sorted(needed)) or (0,)


def read_inputs(graph: NumberGraph) -> list[int]:
    """Return the numbers of the inputs that a graph reads, in the order of its walk."""
    return [int(node.value) for node in graph.walk() if node.op == "input"]


def renumbered(graph: NumberGraph, places: Sequence[int], inputs: int) -> NumberGraph:
    """Return a graph with other numbers of its inputs."""
    return NumberGraph(
        inputs,
        tuple(
            graph.fill(
                [StandIn("input", value=float(place)) for place in places],
                number,
                lambda node, args: StandIn(node.op, *args),
            )
        ),
    )


def merge_row(over: type[Monoid], x: RowValue) -> list[RowValue]:
    """Return the numbers of a row, merged and finished: as many values as the monoid gives columns."""
    graphs = traced_monoid(over)
    carriers = graphed(graphs.lift, x, literal(1.0), RowValue("index", 1, x.cols))
    unit = tuple(float(over.unit()[part]) for part in graphs.used)
    merging = Merging(unit, graphs.merge, over.commutative, x.cols)
    return graphed(graphs.finish, *folded(merging, carriers))


def finish_each(over: type[Monoid], x: RowValue, by: RowValue) -> list[RowValue]:
    """Return each number, lifted and finished as if it were the only one that is merged."""
    graphs = traced_monoid(over)
    return graphed(graphs.finish, *graphed(graphs.lift, x, by, RowValue("index", 1, x.cols)))
