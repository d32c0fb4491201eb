"""What kernels cost: the names that the machine knows them by, each with its sizes (T rows, S2 scores of one head)."""
from collections.abc import Callable
from types import SimpleNamespace as Bound
from typing import Any

from formats.pooling import PICKS
from opmatrix.extents import WHOLE, Extents, Pairs, S, T, pairs
from opmatrix.runtime.seen import pattern
from opmatrix.runtime.values import Heads, Rows

Costs = list[tuple[str, dict[str, float]]]
READING = 50                                                # passes that reading a term is taken to cost


def stages(a: Bound, out: Rows, extents: Extents, before: str = "", after: str = "") -> Costs:
    """The parts of an epilogue; alone, the first is a pass of its own, and the others ride along. `before` and `after` their names."""
    given = {name for name, value in vars(a).items() if value is not None}
    present = [("bias", "bias" in given), ("gelu", bool("activation" in given and a.activation)),
               ("residual", "times" in given), ("residual", "residual" in given), ("norm", "eps" in given),
               ("affine", bool(given & {"gain", "shift"}))]     # any activation costs about what gelu does
    return [(before + name + after, {"T": extents[out.space], "p": out.cols}) for name, found in present if found]


def linear(a: Bound, out: Rows, extents: Extents) -> Costs:
    """The format's product, then the epilogue."""
    sizes = {str(size): count for size, count in a.weight.sizes.items()}
    after = stages(a, out, extents, after=".narrow" if a.weight.rounds else "")
    return [(f"linear.{a.weight.name}", {"T": extents[out.space], **sizes}), *after]


def pointwise(a: Bound, out: Rows, extents: Extents) -> Costs: return stages(a, out, extents, "pointwise.")
def scale(a: Bound, out: Rows, extents: Extents) -> Costs: return [("scale", {"T": extents[out.space], "p": out.cols})]


def rotate(a: Bound, out: Heads, extents: Extents) -> Costs: return [("rotate", {"T": extents[out.space], "p": out.heads * out.cols})]


def embed(a: Bound, out: Rows, extents: Extents) -> Costs:
    """A gathering for each table, then the epilogue."""
    gathered: Costs = [("gather", {"T": extents[out.space], "p": out.cols})] * len(a.tables)
    return gathered + stages(a, out, extents)


def heads(name: str, *of: str, held: Callable[[Bound], Pairs] = lambda _: WHOLE) -> Any:
    """A kernel whose work grows with scores; `of` are the operands that have its heads and columns, `held` the scores computed."""
    def cost(a: Bound, out: Rows, extents: Extents) -> Costs:
        operands = [getattr(a, each) for each in of]
        widths = [each.cols for each in operands if hasattr(each, "cols")] or [1]
        most = max(each.heads for each in operands)
        return [(name, {"T": extents[T], "S2": extents[held(a)], "h": most, "d": sum(widths) / len(widths)})]
    return cost


def attention(a: Bound, out: Rows, extents: Extents) -> Costs:
    """In its number type, of the scores that its pattern holds."""
    name = "attention" if a.number_type == "float32" else f"attention.{a.number_type}"
    found: Costs = heads(name, "q", "v", held=lambda a: pairs[pattern(a)])(a, out, extents)
    return found


def cached(a: Bound, out: Rows, extents: Extents) -> Costs:
    """As attention of as many scores."""
    found: Costs = heads("attention", "q", "v", held=lambda a: pairs[a.where])(a, out, extents)
    return found


def copied(a: Bound, out: Any, extents: Extents) -> Costs:
    return [("scale", {"T": extents[out.space], "p": out.heads * out.cols})]


def interpreted(a: Bound, out: Any, extents: Extents) -> Costs:
    """Many passes; what it really costs nobody has measured, but it is the last resort."""
    return [("pointwise.norm", {"T": extents[out.space], "p": getattr(out, "heads", 1) * out.cols})] * READING


def headwise(a: Bound, out: Rows, extents: Extents) -> Costs:
    return [("headwise", {"T": extents[out.space], **dict(zip("hnp", a.weight.shape, strict=True))})]


def pool(a: Bound, out: Rows, extents: Extents) -> Costs:
    """A pass over the rows that are read."""
    read = S if a.how in PICKS else T
    return [("scale", {"T": extents[read], "p": out.cols})]


def link(a: Bound, out: Rows, extents: Extents) -> Costs:
    """A gathering of rows; how many entries there are is the batch's."""
    return [("gather", {"T": extents[out.space], "p": out.cols})]


def once(a: Bound, out: Heads, extents: Extents) -> Costs:
    """Every head passes over its keys and values."""
    return [("scale", {"T": extents[T], "p": out.heads * (a.k.cols + a.v.cols)})]
