"""What kernels cost: the prices that the machine knows (formats/machine/prices.py), each with its sizes (T rows, S2
scores of one head).

Operands are shapes. A weight that is None is priced elsewhere: by the search, in each form that it may be stored in."""
from collections.abc import Callable, Mapping
from types import SimpleNamespace as Bound
from typing import Any

from formats.core.reductions import PICKS
from formats.core.stage import stages_of
from formats.machine.prices import NARROW_SUFFIX
from opmatrix.extents import WHOLE, Extents, PatternPairs, S, T, entries, pairs
from opmatrix.relations import Relation, parse_relation
from opmatrix.runtime.operands import Heads, Rows
from opmatrix.runtime.seen import pattern
from opmatrix.runtime.shape_rules import turned_tables

Costs = list[tuple[str, dict[str, float]]]
READING = 50                                                # passes that reading a term is taken to cost


def wide(out: Any) -> int:
    """Numbers in a row, all heads together."""
    return int(out.cols * getattr(out, "heads", 1))


def passed(name: str) -> Callable[[Bound, Any, Extents], Costs]:
    """A kernel whose time grows with the numbers of its result."""
    return lambda a, out, extents: [(name, {"T": extents[getattr(out, "space", T)], "p": wide(out)})]


def linked(a: Bound, out: Rows, extents: Extents) -> Costs:
    """The entries that rows are joined from, and the rows: its price is of one entry a row, and grows with both."""
    found = related(a)
    count = extents[entries[found]] if found.custom else extents[T]
    return [("link", {"T": (extents[out.space] + count) / 2, "p": wide(out)})]


def related(a: Bound) -> Relation:
    """The relation of a step; a search knows it itself."""
    return a.relation if isinstance(a.relation, Relation) else parse_relation(a.relation)


# ---- products: as kernels multiply, and as a search prices each form of a weight

def times_format(name: str, sizes: Mapping[Any, Any], rows: Any) -> Costs:
    """x @ W in a format, where W has these sizes."""
    return [(f"linear.{name}", {"T": rows, **{str(size): count for size, count in sizes.items()}})]


def times_stack(shape: tuple[int, ...], rows: Any) -> Costs:
    """x @ W, a matrix for each head: heads × in × out."""
    return [("headwise", {"T": rows, **dict(zip("hnp", shape, strict=True))})]


def gathered(cols: Any, rows: Any, panels: str = "") -> Costs:
    """Rows of a table; or, of one in a format's panels, columns."""
    return [(f"gather.{panels}" if panels else "gather", {"T": rows, "p": cols})]


def behind(stages: Any, rounds: bool) -> list[str]:
    """The prices of stages that ride along with a product, which may round what it multiplies."""
    return [name + NARROW_SUFFIX if rounds else name for name in stages]


def stages(a: Bound) -> list[str]:
    """The prices of the stages of an epilogue that a kernel is given."""
    return [stage.price for stage in stages_of(a)]


def linear(a: Bound, out: Rows, extents: Extents) -> Costs:
    """The format's product, then the epilogue."""
    rows = extents[out.space]
    first = [] if a.weight is None else times_format(a.weight.name, a.weight.sizes, rows)
    return first + [(name, {"T": rows, "p": out.cols})
                    for name in behind(stages(a), a.weight is not None and a.weight.rounds)]


def pointwise(a: Bound, out: Any, extents: Extents) -> Costs:
    """The first stage is a pass of its own, the others ride along."""
    first, *more = stages(a)
    return [(name, {"T": extents[out.space], "p": wide(out)}) for name in (f"pointwise.{first}", *more)]


def embed(a: Bound, out: Rows, extents: Extents) -> Costs:
    """A gathering for each table, then the epilogue."""
    rows = extents[out.space]
    turned = turned_tables(a) if a.tables else []
    first = [cost for table, columns in zip(a.tables or (), turned, strict=True)
             for cost in gathered(out.cols, rows, table.name if columns else "")]
    return first + [(name, {"T": rows, "p": out.cols}) for name in stages(a)]


def headwise(a: Bound, out: Heads, extents: Extents) -> Costs:
    return [] if a.weight is None else times_stack(a.weight.shape, extents[out.space])


# ---- heads

def heads(name: str, *of: str, held: Callable[[Bound], PatternPairs] = lambda _: WHOLE) -> Any:
    """A kernel whose work grows with scores; `of` are the operands that have its columns, `held` the scores
    computed."""
    def cost(a: Bound, out: Any, extents: Extents) -> Costs:
        widths = [each.cols for each in (getattr(a, one) for one in of) if hasattr(each, "cols")] or [1]
        return [(name, {"T": extents[T], "S2": extents[held(a)], "h": out.heads, "d": sum(widths) / len(widths)})]
    return cost


def attention(a: Bound, out: Heads, extents: Extents) -> Costs:
    """In its number type, of the scores that its pattern holds."""
    found: Costs = heads(ATTENTION[a.number_type], "q", "v", held=lambda a: pairs[pattern(a)])(a, out, extents)
    return found


ATTENTION = {"float32": "attention", "bf16": "attention.bf16"}     # by the number type that q, k, v are rounded to


def once(a: Bound, out: Heads, extents: Extents) -> Costs:
    """Every head passes over its keys and values."""
    return [("attend_once", {"T": extents[T], "h": out.heads, "d": (a.k.cols + a.v.cols) / 2})]


# ---- other rows

def pool(a: Bound, out: Rows, extents: Extents) -> Costs:
    """The rows that are read, and those that are written."""
    return [("pool", {"T": extents[S if a.how in PICKS else T], "S": extents[S], "p": out.cols})]


def interpreted(a: Bound, out: Any, extents: Extents) -> Costs:
    """Many passes; what it really costs nobody has measured, but it is the last resort."""
    return passed("pointwise.norm")(a, out, extents) * READING
