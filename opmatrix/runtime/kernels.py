"""The kernels that steps may name; each is one entry: what it reads, what it gives, what it costs, how it is called.

An operand with a default may be absent, and is None then."""
# ruff: noqa: RUF013
from collections.abc import Callable
from types import SimpleNamespace as Bound
from typing import Any, Literal

from formats import kernels as compiled
from formats.epilogue import Epilogue
from opmatrix.runtime.kernel import Costs, Declared
from opmatrix.runtime.values import Heads, Rows, Scores, Stack, Tables, Value, Vector, Weight, sizes

KERNELS: dict[str, Declared] = {}
Activation = Literal["", "gelu"]


def kernel(gives: Callable[[Any], Value], cost: Callable[..., Costs] = lambda *_: [], over: str | None = None):
    """Enter a function into the table."""
    def enter(function):
        KERNELS[function.__name__] = Declared(function, gives, cost, over)
        return function
    return enter


# ---- shapes: of the result, from those of the operands; ValueError says which does not fit

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


# ---- rows

@kernel(gives=product)
def linear(out, x: Rows, weight: Weight, bias: Vector = None, residual: Rows = None, gain: Vector = None,
           shift: Vector = None, *, activation: Activation = "", eps: float = None):
    """x @ W in whatever format W has; the epilogue runs on each chunk of rows while it is in cache."""
    weight.matmul(x, out=out, epilogue=Epilogue(bias, activation, residual, eps, gain, shift))


@kernel(gives=along, over="x")
def pointwise(out, x: Rows, bias: Vector = None, residual: Rows = None, gain: Vector = None, shift: Vector = None,
              *, activation: Activation = "", eps: float = None):
    """The epilogue alone, in one pass."""
    compiled.pointwise(x, out, Epilogue(bias, activation, residual, eps, gain, shift))


@kernel(gives=along, over="x")
def scale(out, x: Rows, *, factor: float):
    """Every number times a factor."""
    compiled.scale(x, factor, out)


@kernel(gives=summed)
def embed(out, batch, tables: Tables, gain: Vector = None, shift: Vector = None, *, fields: str, eps: float = None):
    """The sum of one row of each table, chosen by that field of the batch, then the epilogue."""
    chosen = [batch.field(field, table.shape[0]) for field, table in zip(fields.split(","), tables, strict=True)]
    arrays = [array for table in tables for array in table.arrays().values()]
    compiled.embed(list(zip(chosen, arrays, strict=True)), out, Epilogue(eps=eps, gain=gain, shift=shift))


# ---- heads

@kernel(gives=attended)
def attention(out, batch, q: Heads, k: Heads, v: Heads, *, scale: float = 1.0, where: Literal["sequence"] = "sequence"):
    """softmax(q kᵀ · scale) v within each sentence, over tiles of keys: scores are never stored (Dao et al. 2022)."""
    compiled.attention(q, k, v, batch.starts, out, scale)


@kernel(gives=matched)
def scores(out, batch, q: Heads, k: Heads):
    """q kᵀ within each sentence."""
    compiled.scores(q, k, batch.starts, out)


@kernel(gives=lambda a: a.x, over="x")
def softmax(out, batch, x: Scores):
    """Each row of scores as positive numbers that sum to one."""
    compiled.softmax(x, batch.starts, len(x) // sizes(batch)[1], out)


@kernel(gives=blended)
def values(out, batch, p: Scores, v: Heads):
    """p v within each sentence."""
    compiled.values(p, v, batch.starts, out)


@kernel(gives=headed)
def headwise(out, x: Heads, weight: Stack):
    """x @ W for each head with its own W; an x of one head serves all."""
    compiled.headwise(x, weight, out)


# ---- views: nothing is copied

@kernel(gives=divided)
def heads(x: Rows, *, heads: int):
    """A row's columns as equal blocks."""
    return x.reshape(len(x), heads, -1)


@kernel(gives=lambda a: Rows(a.x.heads * a.x.cols, a.x.apart))
def join(x: Heads):
    """Blocks side by side again."""
    return x.reshape(len(x), -1)


@kernel(gives=cut)
def columns(x: Rows, *, lo: int, hi: int):
    """Columns lo to hi, hi excluded."""
    return x[:, lo:hi]
