"""Shape rules of kernels: the result's shape from those of the operands. ValueError says which does not fit."""
from types import SimpleNamespace as Bound
from typing import Any

from formats import LowRank
from opmatrix.runtime.values import FLOAT, Heads, Rows, Scores, Size


def same(what: str, found: Any, wanted: Any) -> None:
    if found != wanted: raise ValueError(f"{what}: {found}, where {wanted} is needed")


def packed(what: str, value: Rows) -> None:
    if value.apart: raise ValueError(f"{what}: its rows are columns of a wider value, {value.apart} numbers apart")


def after(a: Bound, cols: int) -> Rows:
    """An epilogue keeps the shape: its vectors have one number a column, its residual the same columns."""
    for name in ("bias", "gain", "shift"):
        if (vector := getattr(a, name, None)) is not None: same(name, vector.shape, (cols,))
    if (residual := getattr(a, "residual", None)) is not None:
        same("residual columns", residual.cols, cols)
        packed("residual", residual)
    return Rows(cols)


def product(a: Bound) -> Rows:
    same("x columns", a.x.cols, a.weight.shape[0])
    packed("x", a.x)
    return after(a, a.weight.shape[1])


def between(a: Bound) -> Size:
    """A product of two factors keeps what lies between them."""
    return Size(FLOAT * len(a.weight.arrays()["v"]), 0) if isinstance(a.weight, LowRank) else Size(0, 0)


def along(a: Bound) -> Rows:
    packed("x", a.x)
    return after(a, a.x.cols)


def summed(a: Bound) -> Rows:
    same("fields", len(a.fields.split(",")), len(a.tables))
    for table in a.tables: same("table columns", table.shape[1], a.tables[0].shape[1])
    return after(a, a.tables[0].shape[1])


def headed(a: Bound) -> Heads:
    heads, rows, cols = a.weight.shape
    same("x columns", a.x.cols, rows)
    if a.x.heads != 1: same("x heads", a.x.heads, heads)
    return Heads(heads, cols)


def matched(a: Bound) -> Scores:
    same("k heads", a.k.heads, a.q.heads)
    same("k columns", a.k.cols, a.q.cols)
    return Scores(a.q.heads)


def attended(a: Bound) -> Heads:
    same("v heads", a.v.heads, matched(a).heads)
    return Heads(a.v.heads, a.v.cols)


def blended(a: Bound) -> Heads:
    same("v heads", a.v.heads, a.p.heads)
    return Heads(a.v.heads, a.v.cols)


def divided(a: Bound) -> Heads:
    if a.heads < 1 or a.x.cols % a.heads: raise ValueError(f"{a.heads} heads do not divide x of {a.x}")
    return Heads(a.heads, a.x.cols // a.heads, a.x.apart)


def cut(a: Bound) -> Rows:
    if not 0 <= a.lo < a.hi <= a.x.cols: raise ValueError(f"x of {a.x} has no columns {a.lo} to {a.hi}")
    return Rows(a.hi - a.lo, a.x.apart or a.x.cols)
