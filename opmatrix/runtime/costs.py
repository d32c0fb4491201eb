"""What kernels cost: the names that the machine knows them by, each with its sizes (T rows, S2 pairs of tokens)."""
from types import SimpleNamespace as Bound
from typing import Any

from opmatrix.runtime.values import Rows

Costs = list[tuple[str, dict[str, float]]]


def stages(a: Bound, out: Rows, rows: int, before: str = "") -> Costs:
    """The parts of an epilogue; alone, the first is a pass of its own, and the others ride along."""
    given = {name for name, value in vars(a).items() if value is not None}
    gelu = "activation" in given and a.activation == "gelu"
    present = {"bias": "bias" in given, "gelu": gelu, "residual": "residual" in given, "norm": "eps" in given,
               "affine": bool(given & {"gain", "shift"})}
    return [(before + name, {"T": rows, "p": out.cols}) for name, found in present.items() if found]


def linear(a: Bound, out: Rows, rows: int, pairs: int) -> Costs:
    """The format's product, then the epilogue."""
    sizes = {str(size): count for size, count in a.weight.sizes.items()}
    return [(f"linear.{a.weight.name}", {"T": rows, **sizes}), *stages(a, out, rows)]


def pointwise(a: Bound, out: Rows, rows: int, pairs: int) -> Costs: return stages(a, out, rows, "pointwise.")
def scale(a: Bound, out: Rows, rows: int, pairs: int) -> Costs: return [("scale", {"T": rows, "p": out.cols})]


def embed(a: Bound, out: Rows, rows: int, pairs: int) -> Costs:
    """A gathering for each table, then the epilogue."""
    gathered: Costs = [("gather", {"T": rows, "p": out.cols})] * len(a.tables)
    return gathered + stages(a, out, rows)


def heads(name: str, of: str) -> Any:
    """A kernel whose work grows with pairs of tokens; `of` is the operand that has its heads and columns."""
    def cost(a: Bound, out: Rows, rows: int, pairs: int) -> Costs:
        operand = getattr(a, of)
        return [(name, {"T": rows, "S2": pairs, "h": operand.heads, "d": getattr(operand, "cols", 1)})]
    return cost


def headwise(a: Bound, out: Rows, rows: int, pairs: int) -> Costs:
    return [("headwise", {"T": rows, **dict(zip("hnp", a.weight.shape, strict=True))})]
