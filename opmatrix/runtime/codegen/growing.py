"""The region of a term that goes through rows one by one, grown down to the values at which its computation ends."""

from collections.abc import Callable, Collection
from typing import NamedTuple

from formats.kernels.generated.rowwise.row_values import RowValue
from opmatrix.algebra import nodes
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import I
from opmatrix.algebra.term import Operator, substitute
from opmatrix.runtime.codegen.row_reading import NotByRows, read_rows

ENTERING = "entered", "symbol"  # values that begin a term
OF_BATCH = "given", "related", "by_distance", "at_distances"  # nodes that read the batch
ATTEMPTS = 40  # attempts to cut a region before it is given up


def find_region(
    term: Operator, values: Collection[Operator], ends: Callable[[Operator], bool], yields: bool = False
) -> list[Operator] | None:
    """Return the values that a term is read over, chosen from `values`. The region grows down from the term, through
    nodes that go through rows one by one, and stops where `ends` is true, or where it must. None if it does not begin.
    At a node that mixes rows and is no value, a region that `yields` ends at the nearest value above it, as any value
    may be an end. It ends at each value of which it reads rows before."""
    cut: set[Operator] = {node.children[0] for node in term.walk() if reads_before(node)}
    for _ in range(ATTEMPTS):
        region = grow_region(term, values, lambda part, cut=frozenset(cut): part in cut or ends(part))  # type: ignore[misc]
        if isinstance(region, Blocked):
            if not yields or region.above is None:
                return None
            cut.add(region.above)
            continue
        try:
            read_over(term, region)
        except NotByRows as error:
            fresh = {part for part in blamed(term, error.node) if part in values and part is not term} - cut
            if not fresh:
                return None
            cut |= fresh
        else:
            return region
    return None


class Blocked(NamedTuple):
    """A region that meets a node that mixes rows and is no value; `above` is the nearest value that is made of it."""

    above: Operator | None


def grow_region(
    term: Operator, values: Collection[Operator], stops: Callable[[Operator], bool]
) -> list[Operator] | Blocked:
    """Return the values at which a term ends, in order, or the place where it cannot go on."""
    region: dict[Operator, None] = {}
    seen: set[Operator] = set()
    todo: list[tuple[Operator, Operator | None]] = [(term, None)]
    while todo:
        part, above = todo.pop()
        if part in seen:
            continue
        seen.add(part)
        if part.kind is nodes.shift:
            continue
        stop = stops(part) or not through_rows(part) or any(child.kind.name in OF_BATCH for child in part.children)
        if part is not term and part in values and (part.kind.name in ENTERING or stop):
            region[part] = None
        elif stop or part.kind.name in (*ENTERING, *OF_BATCH):
            return Blocked(above)
        else:
            if part is not term and part in values:
                above = part
            todo += [(child, above) for child in reversed(part.children)]
    return [*region]


def reads_before(part: Operator) -> bool:
    """True if a node reads rows before those of its operand."""
    return part.kind.name == "compose" and part.children[1].kind is nodes.shift


def row_kernel_of(term: Operator, used: Collection[Operator]) -> str:
    """Return the kernel of a term over these values that goes through rows one by one, or reads rows before of some."""
    return "shifted_term" if any(map(reads_before, over_symbols(term, used).walk())) else "row_term"


def through_rows(part: Operator) -> bool:
    """True if a node by itself goes through rows one by one, whatever it is made of."""
    holds = part.kind.properties.get("row_wise")
    return bool(holds and holds(*[I] * part.kind.arity, *part.attributes))


def read_over(term: Operator, used: Collection[Operator]) -> RowValue:
    """Return the value of each row, over these values. Raises NotByRows."""
    values = {
        f"x{k}": RowValue("value", heads_of_value(part), int(part.out.cols), extra=k) for k, part in enumerate(used)
    }
    return read_rows(over_symbols(term, used), values, number_arrays(term))


def over_symbols(term: Operator, used: Collection[Operator]) -> Operator:
    """Return the term with a symbol x0, x1, … in place of each of these values."""
    return substitute(term, {part: nodes.symbol(f"x{k}", I.into, part.out, ()) for k, part in enumerate(used)})


def number_arrays(term: Operator) -> dict[Data, int]:
    """Return the arrays that a term names, each once, with their numbers."""
    return {
        data: k
        for k, data in enumerate(
            dict.fromkeys(data for node in term.walk() for data in node.attributes if isinstance(data, Data))
        )
    }


def heads_of_value(part: Operator) -> int:
    """Return the heads of a part's result; 1 if the number is not fixed."""
    return part.out.heads if isinstance(part.out.heads, int) else 1


def blamed(term: Operator, node: Operator | None) -> list[Operator]:
    """Return the parts of a term that a node occurs in: the composition that applies it, or the node itself."""
    return [part for part in term.walk() if part is node or (part.kind.name == "compose" and part.children[1] is node)]
