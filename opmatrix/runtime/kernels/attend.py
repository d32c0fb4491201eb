"""softmax(q kᵀ · scale + bias) v, or softmax(cap · tanh(q kᵀ · scale)) v, in one pass, so that scores are never stored
(Dao et al. 2022): of all queries, and of one a sequence. With fewer heads of k and v, or of q, each serves a group of
the others; `where` is a pattern within sequences; a bias is a table of numbers by distance, a row a head or one for
all; a margin of a head is less the score of its sink, a key without a value."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from formats import kernels as compiled
from formats.core.choices import OneOf, Range
from formats.core.epilogue import gamma
from formats.core.sizes import S, T
from formats.machine.prices import S2, Price, Timed, Work, d, h, up
from formats.storage.bf16 import FLUSHED
from formats.storage.masks import attended
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import Extents, pairs
from opmatrix.algebra.positions.patterns import parse
from opmatrix.runtime import seen
from opmatrix.runtime.declarations.by_sequence import (
    Doubles,
    asked_queries,
    bound_shares,
    cap_scores,
    doubt_capped,
    in_groups,
    most_heads,
    near_keys,
    products,
    sentence_rows,
    softened,
    unseen,
    weigh_heads,
)
from opmatrix.runtime.declarations.costs import Costs, by_scores
from opmatrix.runtime.declarations.fitting import SCORED, Cases, fit_bias, heads_of, same, timed_batches
from opmatrix.runtime.declarations.kernel import Arguments, Restricted, RowNumbers, kernel
from opmatrix.runtime.declarations.operands import Array, Heads, Vector
from opmatrix.runtime.declarations.padded import Padded, attend
from opmatrix.runtime.declarations.pullbacks import Cotangents, ScaledScores, into_groups, pull_attention
from opmatrix.runtime.declarations.telling import short_sequences

if TYPE_CHECKING:
    from formats.machine.calibration import Grid, Numbers

BF16 = 1.01 * 2.0**-8 + 2.0**-12  # rounding of a share to bfloat16, with an exponential and a
# mass that are exact to 2^-13
PRICED = {"float32": "attention", "bf16": "attention.bf16"}  # price by the number type that q, k, v are rounded to
BEYOND = 2**40  # farther than any sequence is long
REACHES = (BEYOND, BEYOND), (BEYOND, 0), (32, 32)  # keys that a timed query sees, behind it and ahead
SPREAD = 3.0  # spread of scores: the largest have most of a row's mass
FINITE = 1e15  # bound of factors: its square is a float32
TOLD_SIZES = 10.0 ** np.arange(-38, 31)  # sizes of the rows of telling short sequences
LARGE_SCORES = np.float32(1e3)  # size of large scores, relative to ordinary ones
Keys = Annotated[int, Range(int, 1, 1 << 16)]
KeyNumbers = Annotated[str, OneOf(tuple(PRICED))]
End = Annotated[str, OneOf(("first", "last"))]


def time_attention(call: Callable[..., object]) -> Cases:
    """Return timed calls in which each query sees all keys, those up to itself, or a window."""

    def cases(grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
        """Yield the sizes and the call for each batch, head shape and reach; a reach that leaves out no score is timed
        once."""
        from formats.kernels.attentions.heads import layout

        for lengths in grid.batches:
            starts = layout(np.cumsum([0, *lengths]).tobytes())
            for head_shape in grid.heads:
                sizes: dict[str, float] = {
                    "T": sum(lengths),
                    "S2": int(np.dot(lengths, lengths)),
                    **dict(zip("hd", head_shape, strict=True)),
                }
                q, out = numbers.some(sum(lengths), *head_shape), numbers.room(sum(lengths), *head_shape)
                for reach in REACHES:
                    scores = sum(attended(length, *reach) for length in lengths)
                    if reach != REACHES[0] and scores == sizes["S2"]:
                        continue
                    yield sizes | {"S2": scores}, partial(call, q, q, q, starts, out, 1.0, reach)

    return cases


def price_attention(call: Callable[..., object]) -> Price:
    """Return the price: products in whole tiles, exponentials, and bytes moved."""
    return Price(
        SCORED, lambda tile: Work(4 * S2 * h * up(d, tile[1]), 8 * S2 * h, 4 * T * h * d), time_attention(call)
    )


def fit_heads(a: Arguments) -> Heads:
    """Return the shape of the result: all heads, and the columns of v. Raises ValueError for heads or columns that do
    not fit."""
    heads = heads_of(q=a.q, k=a.k, v=a.v)
    same("k columns", a.k.cols, a.q.cols)
    result = Heads(fit_bias(a.bias, heads), a.v.cols)
    if a.margin is not None:
        same("margin", a.margin.shape, (result.heads,))
    return result


def all_heads(a: Arguments) -> int:
    """Return the heads of the result: the most that an operand has."""
    return max(most_heads(a.q, a.k, a.v), 1 if a.bias is None else len(a.bias))


def biased(a: Arguments) -> int:
    """Return the number of additional roundings of a score with a bias: of a product, and of a sum."""
    return 0 if a.bias is None else 2


def cap_costs(a: Arguments, out: Heads, scores: float) -> Costs:
    """Return the price of capping this many scores of each head: a tanh of each, in a pass over them."""
    return [("activation", {"T": scores, "p": out.heads})] if a.cap else []


def pull_sentences(a: Arguments, g: Doubles, places: Iterator[tuple[slice, RowNumbers, slice]]) -> dict[str, Doubles]:
    """Return the cotangents of q, k and v of attention. `places` has, for each sentence, its queries' rows of q and of
    the batch, and the rows of its keys."""
    heads, where = all_heads(a), seen.pattern(a)
    totals = {name: np.zeros((len(g), *getattr(a, name).shape), g.dtype) for name in "qkv"}
    for at, queries, keys in places:
        rows = {"q": at, "k": keys, "v": keys}
        near = near_keys(a.bias, queries[:, None], rows_of_keys(keys))
        hidden = unseen(a.batch, keys, where, queries)
        q, k, v = (in_groups(getattr(a, name)[rows[name]], heads) for name in "qkv")
        parts = pull_attention(q, k, v, ScaledScores(a.scale, near, hidden, a.cap, a.margin), g[:, at])
        for name, part in zip("qkv", parts, strict=True):
            totals[name][:, rows[name]] += into_groups(part, totals[name].shape[2])
    return totals


def rows_of_keys(keys: slice) -> RowNumbers:
    """Return the rows of a range of keys."""
    return np.arange(keys.start, keys.stop)


@kernel(
    launches=True,
    row_mixing=True,
    cached_variant="attention_cached",
    prices={
        PRICED["float32"]: price_attention(lambda *a: compiled.attention(*a)),
        PRICED["bf16"]: price_attention(lambda *a: compiled.attention_halves(*a)),
    },
)
class attention(Arguments):
    """softmax(q kᵀ · scale) v within each sentence, over tiles of keys: scores are never stored (Dao et al. 2022), nor
    computed where nobody sees a tile. mask0 and mask1 are the tables that `where` speaks of. q, k, v and the shares of
    softmax may be rounded to bfloat16."""

    part = "attending"

    def run(
        out: Any,
        batch: Any,
        q: Heads,
        k: Heads,
        v: Heads,
        mask0: Array | None = None,
        mask1: Array | None = None,
        bias: Array | None = None,
        margin: Vector | None = None,
        *,
        scale: float = 1.0,
        cap: float = 0.0,
        where: str = "sequence",
        tile: Keys = 256,
        number_type: KeyNumbers = "float32",
    ) -> None:
        """Launch the kernel of the pattern's kind: a reach around the query, in float32 or in bfloat16, or a mask."""
        tables = seen.tables(Arguments(mask0=mask0, mask1=mask1))
        if (reach := parse(where, tables).reach) is None:
            mask = seen.build_mask(where, tables, batch)
            compiled.attention(
                q, k, v, batch.starts, out, scale, tile=tile, mask=mask, bias=bias, cap=cap, margin=margin
            )
        elif number_type == "float32":
            compiled.attention(q, k, v, batch.starts, out, scale, reach, tile, bias=bias, cap=cap, margin=margin)
        else:
            compiled.attention_halves(q, k, v, batch.starts, out, scale, reach, tile, bias=bias)

    def shape(a) -> Heads:
        """Return heads and columns of the result. Raises ValueError for a pattern that does not fit the operands."""
        result = fit_heads(a)
        seen.check_pattern(a)
        if a.cap and a.number_type != "float32":
            raise ValueError(f"number_type: {a.number_type}: scores with a cap are computed in float32")
        if a.margin is not None and a.number_type != "float32":
            raise ValueError(f"number_type: {a.number_type}: scores beside a sink are computed in float32")
        return result

    limits = seen.fields

    def reads(a) -> dict[str, object]:
        """Return q, times the scale in powers of two, k and v as attention in bfloat16 reads them."""
        if a.number_type == "float32":
            return {}
        from formats.kernels.attentions.attending_halves import operands

        return {**dict(zip("qkv", operands(a.q, a.k, a.v, a.scale), strict=True)), "scale": 1.0}

    def reference(a) -> Doubles:
        """Return softmax of the requested queries, over the keys that each sees."""
        heads, where, parts = all_heads(a), seen.pattern(a), []
        for at, queries, keys in asked_queries(a):
            scores = cap_scores(a.cap, products(in_groups(a.q[at], heads), a.k[keys]) * a.scale)
            scores = scores + near_keys(a.bias, queries[:, None], rows_of_keys(keys))
            scores = np.where(unseen(a.batch, keys, where, queries), -np.inf, scores)
            parts.append(weigh_heads(softened(scores, a.margin), a.v[keys]))
        return np.concatenate(parts)

    def padded(a) -> Padded:
        """Return softmax of all queries over the keys that each sees, times the values; q, k, v are not rounded."""
        return attend(a, a.q, seen.pattern(a), a.batch.positions)

    def pullback(a, g: Doubles) -> Cotangents:
        """Return the cotangents of q, k and v, sentence by sentence."""
        return pull_sentences(a, g, asked_queries(a))

    def bound(a) -> Doubles:
        """Bound the errors of scores, shares, and their sum over the values, rescaled from tile to tile. bfloat16
        rounds the shares, too, except those of queries all of whose scores are surely 0: e^0 is 1, which is exact."""
        heads, parts, rounding = all_heads(a), [], 0.0 if a.number_type == "float32" else BF16
        q, k, v = in_groups(a.exact.q, heads), a.exact.k, a.exact.v
        for at, queries, keys in asked_queries(a):
            near = near_keys(a.exact.bias, queries[:, None], rows_of_keys(keys))
            raw = products(q[at], k[keys]) * a.exact.scale
            size = products(abs(q[at]), abs(k[keys])) * abs(a.exact.scale) + abs(near)
            hidden = unseen(a.batch, keys, seen.pattern(a), queries)
            rounded = rounding * np.where(hidden, False, size > 0).any(-1, keepdims=True)
            doubt = doubt_capped(a.cap, raw, gamma(a.q.shape[2] + 2 + biased(a)) * size)
            share, doubt = bound_shares(cap_scores(a.cap, raw) + near, doubt, hidden, a.exact.margin)
            merges = -(-share.shape[-1] // a.tile) - 1  # each merge rescales mass and values once more
            total = doubt + (gamma(share.shape[-1] + 4 + 2 * merges) + rounded) * (share + doubt)
            # processors with products of bfloat16 flush every value, and every partial sum over the keys
            flushed = (rounding > 0) * FLUSHED * (1 + share.shape[-1])
            parts.append(weigh_heads(total, abs(v[keys])) + flushed)
        return np.concatenate(parts)

    def cost(a, out: Heads, extents: Extents) -> Costs:
        """Return the price in its number type, for the scores of its pattern."""
        costs = by_scores(PRICED[a.number_type], "q", "v", seen=lambda a: pairs[seen.pattern(a)])(a, out, extents)
        return [*costs, *cap_costs(a, out, extents[pairs[seen.pattern(a)]])]

    def borders(a) -> Collection[int]:
        """Return the tile and the rows at which one of its compiled kernels takes another path."""
        return {a.tile, *compiled.borders("attention", "attention_halves", "attention_blocks")}

    @staticmethod
    def restrict(arguments: Mapping[str, Any], values: Sequence[str], batch: Batch, at: RowNumbers) -> Restricted:
        """Restrict to some queries, which see all keys and values."""
        return {**arguments, "q": arguments["q"][at], "at": at}, batch

    def telling(a, rng: "np.random.Generator") -> Iterator[dict[str, object]]:
        """Yield operands that expose errors. With all products 0 every key has an equal share, or that of its bias, in
        any number type, and each value is visible in one column; with products that differ by much, the factors of a
        product are visible."""
        (T, _, d), e = a.q.shape, a.v.shape[2]
        v = np.zeros(a.v.shape, np.float32)
        v[np.arange(T), :, np.arange(T) % e] = rng.choice([-1, 1], (T, a.v.shape[1]))
        yield {"q": np.zeros(a.q.shape, np.float32), "v": v}
        if a.bias is not None:
            drawn = SPREAD * rng.standard_normal(a.bias.shape, np.float32)
            yield {"q": np.zeros(a.q.shape, np.float32), "v": v, "bias": drawn}
        plain = 1 / FINITE < abs(a.scale) < FINITE
        factor = np.float32(SPREAD / (d**0.5 * a.scale)) if plain else np.float32(1)
        if plain:
            q, k, v = (rng.standard_normal(operand.shape, np.float32) for operand in (a.q, a.k, a.v))
            yield {"q": q * factor, "k": k, "v": v}
        yield from attend_short(a, rng, factor)


def attend_short(a: Arguments, rng: "np.random.Generator", factor: np.float32) -> Iterator[dict[str, object]]:
    """Yield short sequences, in each of which queries, keys or values have another size, all powers of ten in turn,
    with a zero in each column of a product, so that no score is doubtful; with some rows zero; and with all rows
    equal."""
    batch = short_sequences(len(TOLD_SIZES), *seen.fields(a).values())
    sizes = TOLD_SIZES[batch.sequence, None, None].astype(np.float32)

    def drawn() -> dict[str, Any]:
        """Draw operands of normal numbers; q is scaled by `factor`."""
        operands = {name: rng.standard_normal((batch.rows, *getattr(a, name).shape[1:]), np.float32) for name in "qkv"}
        return {"batch": batch, **operands, "q": operands["q"] * factor}

    for name in "qkv":
        told = drawn()
        if name != "v":
            told["q"][:, :, 1:], told["k"][:, :, 0] = 0, 0
        yield told | {name: told[name] * sizes}
        yield told | {name: told[name] * (rng.integers(0, 2, (batch.rows, 1, 1)) > 0)}
        yield told | {name: np.broadcast_to(told[name][:1], told[name].shape).copy()}
        yield drawn() | {name: np.zeros_like(told[name])}
    told = drawn()
    yield told | {"q": told["q"] * np.minimum(sizes, LARGE_SCORES)}


@timed_batches
def time_once(numbers: "Numbers", starts: RowNumbers, sizes: dict[str, float], h: int, d: int) -> Timed:
    """Make the timed call of one query a sequence, over all its keys."""
    from formats.kernels.attentions.heads import layout

    lines, k, out = layout(starts.tobytes()), numbers.some(starts[-1], h, d), numbers.room(len(starts) - 1, h, d)
    return ({"T": len(k), "h": h, "d": d}, partial(compiled.attend_once, k[: len(out)], k, k, lines, out))


@kernel(
    launches=True,
    changes_space=True,
    cached_variant="attention_cached",
    price=Price((T * h * d,), lambda tile: Work(vector=4 * T * h * d, moved=2 * T * h * d), time_once, common=False),
)
class attend_once(Arguments):
    """Attention of one query of each sequence, its first token or its last, to those that it sees."""

    part = "attending"

    def run(
        out: Any,
        batch: Any,
        q: Heads,
        k: Heads,
        v: Heads,
        bias: Array | None = None,
        margin: Vector | None = None,
        *,
        scale: float = 1.0,
        cap: float = 0.0,
        where: str = "sequence",
        query: End,
    ) -> None:
        """Launch the compiled kernel for the first or the last token of each sequence."""
        compiled.attend_once(q, k, v, batch.starts, out, scale, query == "last", parse(where).reach, bias, cap, margin)

    def shape(a) -> Heads:
        """Return heads and columns of one row a sequence. Raises ValueError for values of other spaces, or a pattern
        without a reach."""
        for name, value, space in (("q", a.q, S), ("k", a.k, T), ("v", a.v, T)):
            same(f"{name} rows", value.space, space)
        seen.check_reach(a)
        return fit_heads(a)._replace(space=S)

    def reference(a) -> Doubles:
        """Return softmax of one query of each sentence over the keys that it sees, times its values."""
        heads, parts = all_heads(a), []
        for s, rows in enumerate(sentence_rows(a.batch)):
            at = rows.start if a.query == "first" else rows.stop - 1
            q, k, v = (in_groups(operand, heads) for operand in (a.q[s : s + 1], a.k[rows], a.v[rows]))
            visible = np.broadcast_to(
                parse(a.where).sees(a.batch.token(at), a.batch.token(np.arange(rows.start, rows.stop))), len(k)
            )
            scores = cap_scores(a.cap, np.einsum("hd,khd->hk", q[0], k) * a.scale)
            scores = scores + near_keys(a.bias, at, rows_of_keys(rows))
            scores = np.where(visible, scores, -np.inf)
            parts.append(np.einsum("hk,khd->hd", softened(scores, a.margin), v))
        return np.stack(parts)

    def padded(a) -> Padded:
        """Return attention of one query of each sequence."""
        at = np.expand_dims(a.batch.pick(a.batch.positions, a.query), 1)
        return attend(a, np.expand_dims(a.q, 1), seen.pattern(a), at)[:, 0]

    def pullback(a, g: Doubles) -> Cotangents:
        """Return the cotangents of each sentence's query, and of the keys and values that it sees."""
        ends = [rows.start if a.query == "first" else rows.stop - 1 for rows in sentence_rows(a.batch)]
        places = zip(ends, sentence_rows(a.batch), strict=True)
        return pull_sentences(a, g, ((slice(s, s + 1), np.array([at]), rows) for s, (at, rows) in enumerate(places)))

    def bound(a) -> Doubles:
        """Bound the errors as for attention, of one query: of scores, shares, and their sum over the values."""
        heads, parts = all_heads(a), []
        for s, rows in enumerate(sentence_rows(a.batch)):
            at = 0 if a.query == "first" else rows.stop - rows.start - 1
            q, k, v = (
                in_groups(operand, heads) for operand in (a.exact.q[s : s + 1], a.exact.k[rows], a.exact.v[rows])
            )
            exact, size = (
                np.einsum("qhd,khd->hqk", *pair) * abs(float(a.exact.scale)) for pair in ((q, k), (abs(q), abs(k)))
            )
            near = near_keys(a.exact.bias, np.array([[at]]), np.arange(rows.stop - rows.start))
            raw = exact * np.sign(a.exact.scale)
            share, doubt = bound_shares(
                cap_scores(a.cap, raw) + near,
                doubt_capped(a.cap, raw, gamma(a.q.shape[2] + 2 + biased(a)) * (size + abs(near))),
                unseen(a.batch, rows, seen.pattern(a))[at : at + 1],
                a.exact.margin,
            )
            total = doubt + gamma(share.shape[-1] + 4) * (share + doubt)
            parts.append(np.einsum("hqk,khd->qhd", total, abs(v)))
        return np.concatenate(parts)

    def cost(a, out: Heads, extents: Extents) -> Costs:
        """Return the price of one pass of every head over its keys and values."""
        price = "attend_once", {"T": extents[T], "h": out.heads, "d": (a.k.cols + a.v.cols) / 2}
        return [price, *cap_costs(a, out, extents[T])]
