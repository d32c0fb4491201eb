"""What kernels cost: the names that the machine knows them by, each with its sizes (T rows, S2 pairs of tokens)."""
from types import SimpleNamespace as Bound
from typing import Any

from opmatrix.runtime.values import Rows

Costs = list[tuple[str, dict[str, float]]]
READING = 50                                                # passes that reading a term is taken to cost


def stages(a: Bound, out: Rows, rows: int, before: str = "", after: str = "") -> Costs:
    """The parts of an epilogue; alone, the first is a pass of its own, and the others ride along. `before` and `after` their names."""
    given = {name for name, value in vars(a).items() if value is not None}
    present = [("bias", "bias" in given), ("gelu", bool("activation" in given and a.activation)),
               ("residual", "times" in given), ("residual", "residual" in given), ("norm", "eps" in given),
               ("affine", bool(given & {"gain", "shift"}))]     # any activation costs about what gelu does
    return [(before + name + after, {"T": rows, "p": out.cols}) for name, found in present if found]


def linear(a: Bound, out: Rows, rows: int, pairs: int) -> Costs:
    """The format's product, then the epilogue."""
    sizes = {str(size): count for size, count in a.weight.sizes.items()}
    return [(f"linear.{a.weight.name}", {"T": rows, **sizes}), *stages(a, out, rows, after=".narrow" if a.weight.rounds else "")]


def pointwise(a: Bound, out: Rows, rows: int, pairs: int) -> Costs: return stages(a, out, rows, "pointwise.")
def scale(a: Bound, out: Rows, rows: int, pairs: int) -> Costs: return [("scale", {"T": rows, "p": out.cols})]


def embed(a: Bound, out: Rows, rows: int, pairs: int) -> Costs:
    """A gathering for each table, then the epilogue."""
    gathered: Costs = [("gather", {"T": rows, "p": out.cols})] * len(a.tables)
    return gathered + stages(a, out, rows)


def heads(name: str, *of: str) -> Any:
    """A kernel whose work grows with pairs of tokens; `of` are the operands that have its heads and columns."""
    def cost(a: Bound, out: Rows, rows: int, pairs: int) -> Costs:
        operands = [getattr(a, each) for each in of]
        widths = [each.cols for each in operands if hasattr(each, "cols")] or [1]
        most = max(each.heads for each in operands)
        return [(name, {"T": rows, "S2": pairs, "h": most, "d": sum(widths) / len(widths)})]
    return cost


def attention(a: Bound, out: Rows, rows: int, pairs: int) -> Costs:
    """In its number type."""
    name = "attention" if a.number_type == "float32" else f"attention.{a.number_type}"
    found: Costs = heads(name, "q", "v")(a, out, rows, pairs)
    return found


def copied(a: Bound, out: Any, rows: int, pairs: int) -> Costs:
    return [("scale", {"T": rows, "p": out.heads * out.cols})]


def interpreted(a: Bound, out: Any, rows: int, pairs: int) -> Costs:
    """Many passes; what it really costs nobody has measured, but it is the last resort."""
    return [("pointwise.norm", {"T": rows, "p": getattr(out, "heads", 1) * out.cols})] * READING


def headwise(a: Bound, out: Rows, rows: int, pairs: int) -> Costs:
    return [("headwise", {"T": rows, **dict(zip("hnp", a.weight.shape, strict=True))})]
