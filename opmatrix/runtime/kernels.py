"""The kernels that steps may name; each is one entry: what it reads, gives, means and costs, and how it is called.

An operand with a default may be absent, and is None then."""
# mypy: ignore-errors
from functools import partial
from types import SimpleNamespace as Bound
from typing import Any, Literal

import numpy as np

from formats import FORMATS
from formats import kernels as compiled
from formats.core.epilogue import EPS, NORMS, Epilogue
from formats.core.reductions import HOW
from formats.core.sizes import S, T, n, p
from formats.core.stage import reference
from formats.machine.prices import S2, Price, Work, d, h, up
from opmatrix.extents import WHOLE, pairs
from opmatrix.patterns import among, parse
from opmatrix.relations import HELD, SLOTS, parse_relation
from opmatrix.runtime import bounds, cases, costs, meanings, probes, seen
from opmatrix.runtime import shape_rules as shapes
from opmatrix.runtime.kernel import Declared, Range
from opmatrix.runtime.operands import Array, Cache, Heads, Rows, Scores, Stack, Tables, Vector, Weight
from opmatrix.signature import WIDEST

KERNELS: dict[str, Declared] = {}
Activation = Literal[*Epilogue.ACTIVATIONS]
Norm = Literal[NORMS]
How, Least = Literal[*HOW], Range(float, 0.0, 1.0)
NumberType = Literal["float32", "bf16"]
Eps = Range(float, *EPS)
Count, Place = Range(int, 1, WIDEST), Range(int, 0, WIDEST)
CAUSAL, SEEN = "sequence & causal", among(HELD).name          # whom a row sees: of a batch; of what a session holds
Keys = Range(int, 1, 1 << 16)
PASS = (T * p,)                                             # what time grows with: numbers of the result
SCORED = S2 * h * d, S2 * h, T * h * d                      # products, exponentials, rows


def kernel(**readings: Any):
    """Enter a function into the table, with its readings (see Declared)."""
    def enter(function):
        KERNELS[function.__name__] = Declared(function, **readings)
        return function
    return enter


# ---- rows

@kernel(gives=shapes.product, means=lambda a: reference(a.x @ a.weight, a), bound=bounds.linear,
        cost=costs.linear,
        launches=True, reads=meanings.multiplied, room=shapes.between, borders=lambda a: a.weight.borders())
def linear(out, x: Rows, weight: Weight, bias: Vector = None, times: Rows = None, residual: Rows = None,
           gain: Vector = None, shift: Vector = None, *, activation: Activation = "", eps: Eps = None,
           norm: Norm = "layer") -> Rows:
    """x @ W in whatever format W has; the epilogue runs on each chunk of rows while it is in cache."""
    weight.matmul(x, out=out, epilogue=Epilogue(bias, activation, residual, eps, gain, shift, times, norm))


@kernel(gives=shapes.along, means=lambda a: reference(a.x, a), bound=bounds.pointwise, cost=costs.pointwise,
        launches=True, over="x")
def pointwise(out, x: Rows, bias: Vector = None, times: Rows = None, residual: Rows = None, gain: Vector = None,
              shift: Vector = None, *, activation: Activation = "", eps: Eps = None, norm: Norm = "layer") -> Rows:
    """The epilogue alone, in one pass."""
    compiled.pointwise(x, out, Epilogue(bias, activation, residual, eps, gain, shift, times, norm))


@kernel(gives=shapes.whole, means=lambda a: a.x * a.factor, bound=bounds.scale, cost=costs.passed("scale"),
        launches=True, over="x", price=Price(
            PASS, lambda tile: Work(vector=T * p, moved=2 * T * p),
            cases.passes(lambda x, out: compiled.scale(x, 0.5, out))))
def scale(out, x: Rows, *, factor: float) -> Rows:
    """Every number times a factor."""
    compiled.scale(x, factor, out)


def columns(name: str) -> Price:
    """Columns of a format's panels, as rows: it reads its own numbers, at least, and writes those of the result."""
    form = FORMATS[name]
    stored = int(form.fields["w"].number.bytes)
    return Price(PASS, lambda tile: Work(moved=T * p, stored=stored * T * p / form.together),
                 partial(cases.columns, form))


@kernel(gives=shapes.summed, means=lambda a: reference(meanings.chosen(a), a), bound=bounds.embed,
        cost=costs.embed,
        launches=True, fields=shapes.chosen,
        prices={"gather": Price(PASS, lambda tile: Work(moved=2 * T * p), cases.gather),
                **{f"gather.{name}": columns(name) for name, form in FORMATS.items() if form.panelled}})
def embed(out, batch, tables: Tables, gain: Vector = None, shift: Vector = None, *, fields: str, turned: str = "",
          eps: Eps = None,
          norm: Norm = "layer") -> Rows:
    """The sum of one row of each table, chosen by that field of the batch, then the epilogue. Of the tables that
    `turned` numbers, which lie as products multiply by them, columns are rows."""
    a = Bound(tables=tables, turned=turned)
    ids = [batch.field(field, rows) for field, (rows, _) in zip(fields.split(","), shapes.words(a), strict=True)]
    rows = [compiled.Columns.of(table) if columns else next(iter(table.arrays().values()))
            for table, columns in zip(tables, shapes.turned_tables(a), strict=True)]
    compiled.embed(list(zip(ids, rows, strict=True)), out, Epilogue(eps=eps, gain=gain, shift=shift, norm=norm))


@kernel(gives=shapes.turned, means=meanings.rotated, bound=bounds.rotate, cost=costs.passed("rotate"),
        launches=True, moves=True, over="x", fields=lambda a: {"positions": len(a.cos)}, at=probes.some_turned,
        price=Price(PASS, lambda tile: Work(vector=3 * T * p, moved=2 * T * p), cases.rotate, common=False))
def rotate(out, batch, x: Heads, cos: Array, sin: Array, *, rows: Literal["all", "first", "last"] = "all") -> Heads:
    """Columns i and k + i of every head as a pair, turned by the angle of column i in the row of the tables that a
    row's position names; tables are positions × k, columns behind 2 k stay (Su et al. 2021, RoPE). Rows are all tokens,
    or of each sequence the first or the last."""
    starts = None if rows == "all" else batch.starts
    compiled.rotate(x, batch.field("positions", len(cos)), cos, sin, out, starts, rows == "last")


@kernel(gives=shapes.by_heads, means=meanings.each_head, bound=bounds.pointwise_heads, cost=costs.pointwise,
        launches=True, over="x")
def pointwise_heads(out, x: Heads, gain: Vector = None, shift: Vector = None, *, eps: Eps = None,
                    norm: Norm = "layer") -> Heads:
    """The norm of each head by itself, and a gain and a shift that all of them share, in one pass."""
    compiled.pointwise_heads(x, out, gain, shift, eps, norm)


# ---- rows of other spaces

def related(a: Bound) -> tuple[Any, ...]: return (costs.related(a),)


@kernel(gives=shapes.pooled, means=lambda a: meanings.unit(meanings.pooled(a), a.unit), bound=bounds.pool,
        cost=costs.pool,
        launches=True, moves=True, bounded=True,
        price=Price((T * p, S * p), lambda tile: Work(vector=T * p, moved=(T + S) * p), cases.pool))
def pool(out, batch, x: Rows, *, how: How, unit: Least = None) -> Rows:
    """A row for each sequence, made of its rows; with `unit` of length one, the square of which it is added to."""
    compiled.pool_rows(x, batch.starts, out, how, unit)


@kernel(gives=shapes.along, means=lambda a: meanings.unit(a.x, a.unit), bound=bounds.unit_length,
        cost=costs.passed("unit"),
        launches=True, price=Price(PASS, lambda tile: Work(vector=3 * T * p, moved=2 * T * p), cases.passes(
            lambda x, out: compiled.pool_rows(x, None, out, "first", 1e-12))))
def unit(out, x: Rows, *, unit: Least) -> Rows:
    """Each row with length one, to the square of which `unit` is added."""
    compiled.pool_rows(x, None, out, "first", unit)


@kernel(gives=shapes.linked, means=meanings.linked, bound=bounds.link, cost=costs.linked, moves=True, relations=related,
        price=Price(PASS, lambda tile: Work(vector=2 * T * p, moved=2 * T * p), cases.link, recorded=False,
                    common=False))
def link(out, batch, x: Rows, *, relation: str, over: Literal["sum", "mean", "max"]) -> Rows:
    """A row for each row of a relation that the batch gives: what its entries join, times their numbers."""
    found = batch.relation(parse_relation(relation))
    found.meets(len(x))
    compiled.link_rows(x, found.starts, found.at, found.numbers, out, over)


@kernel(gives=shapes.linked, means=meanings.picked, bound=bounds.copied, cost=costs.passed("pick"), moves=True,
        relations=related,
        price=Price(PASS, lambda tile: Work(moved=2 * T * p), cases.pick, recorded=False, common=False))
def pick(out, batch, x: Rows, *, relation: str) -> Rows:
    """The row of x that a relation has as its only entry, for each row of the relation."""
    found = batch.relation(parse_relation(relation))
    found.meets(len(x))
    np.take(x, found.single(), 0, out)


@kernel(gives=shapes.attended_once, means=meanings.attended_once, bound=bounds.attend_once, cost=costs.once,
        launches=True, moves=True, cached="attention_cached",
        price=Price((T * h * d,), lambda tile: Work(vector=4 * T * h * d, moved=2 * T * h * d), cases.attend_once,
                    common=False))
def attend_once(out, batch, q: Heads, k: Heads, v: Heads, *, scale: float = 1.0, where: str = "sequence",
                query: Literal["first", "last"]) -> Heads:
    """Attention of one query of each sequence, its first token or its last, to those that it sees."""
    compiled.attend_once(q, k, v, batch.starts, out, scale, query == "last", parse(where).reach)


# ---- heads: with fewer of k and v, or of q, each serves a group of the others; `where` is a pattern within sequences

def attending(call):
    """The price of attention by a compiled kernel."""
    return Price(SCORED, lambda tile: Work(4 * S2 * h * up(d, tile[1]), 8 * S2 * h, 4 * T * h * d),
                 cases.attention(call))


@kernel(gives=shapes.attended, bound=bounds.attention, cost=costs.attention,
        means=lambda a: meanings.attended(a, seen.pattern(a)), at=probes.some_queries, telling=probes.telling_attention,
        borders=lambda a: {a.tile, *compiled.borders("attention", "attention_halves", "attention_blocks")},
        launches=True, mixes=True, reads=meanings.halved, fields=seen.fields, cached="attention_cached",
        prices={"attention": attending(lambda *a: compiled.attention(*a)),
                "attention.bf16": attending(lambda *a: compiled.attention_halves(*a))})
def attention(out, batch, q: Heads, k: Heads, v: Heads, mask0: Array = None, mask1: Array = None, *,
              scale: float = 1.0, where: str = "sequence", tile: Keys = 256,
              number_type: NumberType = "float32") -> Heads:
    """softmax(q kᵀ · scale) v within each sentence, over tiles of keys: scores are never stored (Dao et al. 2022), nor
    computed where nobody sees a tile. mask0 and mask1 are the tables that `where` speaks of. q, k, v and the shares of
    softmax may be rounded to bfloat16."""
    tables = seen.tables(Bound(mask0=mask0, mask1=mask1))
    if (reach := parse(where, tables).reach) is None:
        compiled.attention(q, k, v, batch.starts, out, scale, tile=tile, mask=seen.build_mask(where, tables, batch))
    elif number_type == "float32": compiled.attention(q, k, v, batch.starts, out, scale, reach, tile)
    else: compiled.attention_halves(q, k, v, batch.starts, out, scale, reach, tile)


@kernel(gives=shapes.matched, means=meanings.scored, bound=bounds.scores, cost=costs.heads("scores", "q", "k"),
        mixes=True, borders=lambda a: compiled.borders("scores"),
        price=Price(SCORED, lambda tile: Work(2 * S2 * h * up(d, tile[1]), S2 * h, 2 * T * h * d + S2 * h),
                    cases.scores, recorded=False))
def scores(out, batch, q: Heads, k: Heads, *, scale: float = 1.0) -> Scores:
    """q kᵀ · scale within each sentence."""
    compiled.scores(q, k, batch.starts, out, scale)


@kernel(gives=shapes.masked, means=lambda a: meanings.shared(a.x, a.batch, seen.pattern(a)), bound=bounds.softmax,
        cost=costs.heads("softmax", "x"), mixes=True, over="x", borders=lambda a: compiled.borders("softmax"),
        price=Price((S2 * h,), lambda tile: Work(0, 8 * S2 * h, 2 * S2 * h), cases.softmax, recorded=False))
def softmax(out, batch, x: Scores, *, where: str = "sequence") -> Scores:
    """Each row of scores as positive numbers that sum to one over whom it sees, and zeros."""
    compiled.softmax(x, batch.starts, len(x) // batch.extents()[WHOLE], out, parse(where).reach)


@kernel(gives=shapes.blended, means=lambda a: meanings.weighed(a.p, a.v, a.batch), bound=bounds.values,
        cost=costs.heads("values", "p", "v"), mixes=True, borders=lambda a: compiled.borders("values"),
        price=Price(SCORED, lambda tile: Work(2 * S2 * h * up(d, tile[1]), 0, 2 * T * h * d + S2 * h),
                    cases.values, recorded=False))
def values(out, batch, p: Scores, v: Heads) -> Heads:
    """p v within each sentence."""
    compiled.values(p, v, batch.starts, out)


@kernel(gives=shapes.repeated, means=lambda a: meanings.grouped(a.x, a.heads), bound=bounds.copied,
        cost=costs.passed("pick"))
def repeat(out, x: Heads, *, heads: Count) -> Heads:
    """Each head so many times in a row that there are `heads` of them."""
    out.reshape(len(x), x.shape[1], -1, x.shape[2])[...] = x[:, :, None]


@kernel(gives=shapes.headed, means=lambda a: meanings.by_head(a.x, a.weight), bound=bounds.headwise,
        cost=costs.headwise,
        launches=True, borders=lambda a: compiled.borders("headwise"),
        price=Price((T * h * n * p, h * n * p, T * h * (n + p)), lambda tile: Work(
            2 * h * up(T, tile[0]) * up(n, tile[1]) * up(p, tile[2]), 0, h * n * p + T * h * (n + p)), cases.headwise))
def headwise(out, x: Heads, weight: Stack) -> Heads:
    """x @ W for each head with its own W; an x of one head serves all."""
    compiled.headwise(x, weight, out)


# ---- caches

@kernel(gives=shapes.appended, means=meanings.appended, bound=bounds.copied, cost=costs.passed("scale"),
        launches=True, over="cache", relations=lambda a: (SLOTS,))
def append(out, batch, x: Heads, cache: Cache) -> Cache:
    """cache + product(given("slots"), x), slots a C × T relation into rows that are zero: x's rows, written where they
    are to lie."""
    if out is not cache: out[...] = cache
    compiled.append(x, batch.slots, out)


@kernel(gives=shapes.recalled, means=meanings.recalled, bound=bounds.attention_cached, launches=True, mixes=True,
        moves=True,
        cost=costs.heads("attention", "q", "v", held=lambda a: pairs[seen.pattern(a)]), relations=lambda a: (HELD,))
def attention_cached(out, batch, q: Heads, k: Cache, v: Cache, *, scale: float = 1.0, where: Literal[SEEN] = SEEN,
                     rows: Literal["all", "last"] = "all") -> Heads:
    """softmax(q kᵀ · scale) v of each row, or of the last of each sequence, over what its sequence has cached, up to
    the row itself."""
    compiled.attention_cached(q, k, v, batch.slots, batch.before, out, scale, None if rows == "all" else batch.starts)


# ---- anything

@kernel(gives=shapes.interpreted, means=meanings.read, bound=bounds.interpret, cost=costs.interpreted, mixes=True,
        moves=True, fields=seen.fields_of_term)
def interpret(out, batch, x0: Rows | Heads = None, x1: Rows | Heads = None, x2: Rows | Heads = None,
              x3: Rows | Heads = None, x4: Rows | Heads = None, x5: Rows | Heads = None, x6: Rows | Heads = None,
              x7: Rows | Heads = None, c0: Array = None, c1: Array = None, c2: Array = None, c3: Array = None,
              c4: Array = None, c5: Array = None, c6: Array = None, c7: Array = None, *, term: str) -> Rows | Heads:
    """What no other kernel computes: a term of the algebra over these values and arrays, in float64, rounded once."""
    a = Bound(batch=batch, term=term, x0=x0, x1=x1, x2=x2, x3=x3, x4=x4, x5=x5, x6=x6, x7=x7,
              c0=c0, c1=c1, c2=c2, c3=c3, c4=c4, c5=c5, c6=c6, c7=c7)
    out[...] = meanings.read(a)


# ---- views: nothing is copied

@kernel(gives=shapes.divided, means=lambda a: a.x.reshape(len(a.x), a.heads, -1), bound=bounds.copied)
def heads(x: Rows, *, heads: Count) -> Heads:
    """A row's columns as equal blocks."""
    return x.reshape(len(x), heads, -1)


@kernel(gives=lambda a: Rows(a.x.heads * a.x.cols, a.x.apart), means=lambda a: a.x.reshape(len(a.x), -1),
        bound=bounds.copied)
def join(x: Heads) -> Rows:
    """Blocks side by side again."""
    return x.reshape(len(x), -1)


@kernel(gives=shapes.cut, means=lambda a: a.x[:, a.lo:a.hi], bound=bounds.copied)
def columns(x: Rows, *, lo: Place, hi: Place) -> Rows:
    """Columns lo to hi, hi excluded."""
    return x[:, lo:hi]
