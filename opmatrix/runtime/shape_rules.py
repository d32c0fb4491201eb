"""Shape rules of kernels: the result's shape from those of the operands. ValueError says which does not fit."""
from types import SimpleNamespace as Bound
from typing import Any

from formats.core.sizes import size
from formats.core.stage import ROW_FIELDS, VECTORS
from opmatrix.batch import FIELDS
from opmatrix.extents import S, T
from opmatrix.relations import parse_relation
from opmatrix.runtime import seen
from opmatrix.runtime.operands import FLOAT_BYTES, BufferSize, C, Cache, Heads, Rows, Scores


def same(what: str, found: Any, wanted: Any) -> None:
    if found != wanted: raise ValueError(f"{what}: {found}, where {wanted} is needed")


def packed(what: str, value: Rows) -> None:
    if value.apart: raise ValueError(f"{what}: its rows are columns of a wider value, {value.apart} numbers apart")


def after(a: Bound, cols: int) -> Rows:
    """An epilogue keeps the shape: its vectors have one number a column, its residual the same columns."""
    for name in VECTORS:
        if (vector := getattr(a, name, None)) is not None: same(name, vector.shape, (cols,))
    for name in ROW_FIELDS:
        if (rows := getattr(a, name, None)) is not None:
            same(f"{name} columns", rows.cols, cols)
    return Rows(cols)


def product(a: Bound) -> Rows:
    same("x columns", a.x.cols, a.weight.shape[0])
    return after(a, a.weight.shape[1])


def between(a: Bound) -> BufferSize:
    """A product of two factors keeps what lies between them."""
    return BufferSize(FLOAT_BYTES * a.weight.scratch(), 0)


def along(a: Bound) -> Rows:
    return after(a, a.x.cols)


def whole(a: Bound) -> Rows:
    packed("x", a.x)
    return along(a)


def summed(a: Bound) -> Rows:
    same("fields", len(fields := a.fields.split(",")), len(a.tables))
    if unknown := [name for name in fields if name not in FIELDS]:
        raise ValueError(f"fields: {unknown[0]!r:.80} is none of {FIELDS}")
    for i, (table, turned) in enumerate(zip(a.tables, turned_tables(a), strict=True)):
        if not (table.panelled if turned else table.rowwise):
            raise ValueError(f"table{i}: {table}, of which no {'columns' if turned else 'rows'} can be gathered")
    for _, columns in (found := words(a)): same("table columns", columns, found[0][1])
    return after(a, found[0][1])


def turned_tables(a: Bound) -> list[bool]:
    """Of each table, whether its columns are what is chosen from."""
    named = a.turned.split(",") if a.turned else []
    known = [str(i) for i in range(len(a.tables))]
    if [*named] != [each for each in known if each in named]:
        raise ValueError(f"turned: {a.turned!r:.80} names no tables of {len(known)}, in their order")
    return [each in named for each in known]


def words(a: Bound) -> list[tuple[int, int]]:
    """(rows to choose from, columns) of each table."""
    return [table.shape[::-1] if columns else table.shape
            for table, columns in zip(a.tables, turned_tables(a), strict=True)]


def chosen(a: Bound) -> dict[str, int]:
    """Fields of the batch, each below the rows of its shortest table."""
    limits: dict[str, int] = {}
    for name, (rows, _) in zip(a.fields.split(","), words(a), strict=True):
        limits[name] = min(rows, limits.get(name, rows))
    return limits


def turned(a: Bound) -> Heads:
    same("sin", a.sin.shape, a.cos.shape)
    if a.cos.ndim != 2 or 2 * a.cos.shape[1] > a.x.cols:
        raise ValueError(f"cos: {a.cos.shape}, where (positions, at most half of {a.x.cols} columns) is needed")
    same("x rows", a.x.space, space := T if a.rows == "all" else S)
    return Heads(a.x.heads, a.x.cols, space=space)


def by_heads(a: Bound) -> Heads:
    for name in ("gain", "shift"):
        if (row := getattr(a, name)) is not None: same(name, row.shape, (a.x.cols,))
    return Heads(a.x.heads, a.x.cols)


def headed(a: Bound) -> Heads:
    heads, rows, cols = a.weight.shape
    same("x columns", a.x.cols, rows)
    if a.x.heads != 1: same("x heads", a.x.heads, heads)
    return Heads(heads, cols)


def matched(a: Bound) -> Scores:
    heads = heads_of(q=a.q, k=a.k)
    same("k columns", a.k.cols, a.q.cols)
    return Scores(heads)


def attended(a: Bound) -> Heads:
    heads = heads_of(q=a.q, k=a.k, v=a.v)
    same("k columns", a.k.cols, a.q.cols)
    seen.check_pattern(a)
    return Heads(heads, a.v.cols)


def appended(a: Bound) -> Cache:
    same("x heads", a.x.heads, a.cache.heads)
    same("x columns", a.x.cols, a.cache.cols)
    return Cache(*a.cache)


def recalled(a: Bound) -> Heads:
    heads = heads_of(q=a.q, k=a.k, v=a.v)
    same("k columns", a.k.cols, a.q.cols)
    same("q rows", a.q.space, space := T if a.rows == "all" else S)
    return Heads(heads, a.v.cols, space=space)


def blended(a: Bound) -> Heads:
    if a.p.heads % a.v.heads: raise ValueError(f"v heads: {a.v.heads}, which do not divide the {a.p.heads} of p")
    return Heads(a.p.heads, a.v.cols)


def masked(a: Bound) -> Scores:
    reach(a)
    return Scores(a.x.heads)


def repeated(a: Bound) -> Heads:
    if a.heads < 1 or a.heads % a.x.heads: raise ValueError(f"x heads: {a.x.heads}, which do not divide {a.heads}")
    return Heads(a.heads, a.x.cols)


def heads_of(**values: Heads | Cache) -> int:
    """The most heads that one of them has; those of the others divide it."""
    most = max(value.heads for value in values.values())
    for name, value in values.items():
        if most % value.heads: raise ValueError(f"{name} heads: {value.heads}, which do not divide {most}")
    return most


def reach(a: Bound) -> None:
    """The kernels know patterns within sequences by which everybody sees a range of positions."""
    seen.check_pattern(a)
    if not seen.pattern(a).reach: raise ValueError(f"where: {a.where!r}: whom a query sees is no range of positions")


def pooled(a: Bound) -> Rows:
    same("x rows", a.x.space, T)
    return Rows(a.x.cols, space=S)


def linked(a: Bound) -> Rows:
    """Rows of the relation's space; of caches other kernels are."""
    found = parse_relation(a.relation)
    if str(C) in (found.rows, found.cols):
        raise ValueError(f"relation {found}: rows of space {C} belong to the kernels of caches")
    same("x rows", str(a.x.space), found.cols)
    return Rows(a.x.cols, space=size(found.rows))


def attended_once(a: Bound) -> Heads:
    for name, value, space in (("q", a.q, S), ("k", a.k, T), ("v", a.v, T)): same(f"{name} rows", value.space, space)
    reach(a)
    return attended(a)._replace(space=S)


def interpreted(a: Bound) -> Rows | Heads:
    from opmatrix.runtime.interpreted import shape
    found = shape(a)
    rows = size(str(found.rows))
    return Rows(found.cols, space=rows) if found.heads == 1 else Heads(found.heads, found.cols, space=rows)


def divided(a: Bound) -> Heads:
    if a.heads < 1 or a.x.cols % a.heads: raise ValueError(f"{a.heads} heads do not divide x of {a.x}")
    return Heads(a.heads, a.x.cols // a.heads, a.x.apart)


def cut(a: Bound) -> Rows:
    if not 0 <= a.lo < a.hi <= a.x.cols: raise ValueError(f"x of {a.x} has no columns {a.lo} to {a.hi}")
    return Rows(a.hi - a.lo, a.x.apart or a.x.cols)
