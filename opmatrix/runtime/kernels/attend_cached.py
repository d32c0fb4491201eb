"""Attention of new rows over what their sequences have cached: softmax(q kᵀ · scale + bias) v, or of capped scores,
or beside sinks, as in attend.py."""

from collections.abc import Collection, Iterator
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from formats import kernels as compiled
from formats.core.choices import OneOf, Range
from formats.core.epilogue import gamma
from formats.core.sizes import S, T
from formats.host.host import uncached
from formats.machine.prices import S2, Price, Timed, Work, d, g, h, up
from opmatrix.algebra.batch.extents import Extents, pairs
from opmatrix.algebra.batch.relations import HELD, Relation
from opmatrix.algebra.batch.signature import FLOAT, HALF, HELD_NUMBERS
from opmatrix.algebra.positions.patterns import among
from opmatrix.runtime import seen
from opmatrix.runtime.declarations.by_sequence import (
    Doubles,
    bound_shares,
    cap_scores,
    doubt_capped,
    held,
    in_groups,
    near_keys,
    softened,
)
from opmatrix.runtime.declarations.costs import Costs
from opmatrix.runtime.declarations.fitting import same
from opmatrix.runtime.declarations.kernel import Arguments, kernel
from opmatrix.runtime.declarations.operands import FLOAT_BYTES, Array, Cache, Heads, Vector
from opmatrix.runtime.declarations.padded import Padded, attend_held
from opmatrix.runtime.kernels.attend import BEYOND, all_heads, biased, cap_costs, fit_heads

if TYPE_CHECKING:
    from formats.machine.calibration import Grid, Numbers

HELD_PRICED = {FLOAT: "attention_cached", HALF: "attention_cached.bf16"}  # price by the number type of the caches
SEEN = among(HELD).name  # pattern of the rows of a session that a row sees
SomeRows = Annotated[str, OneOf(("all", "last"))]
Cached = Annotated[str, OneOf((SEEN,))]
Behind = Annotated[int, Range(int, 0, BEYOND)]
LeadingColumns = Annotated[int, Range(int, 0, 1 << 16)]
TIMED_HEADS = (9, 3, 64), (12, 12, 64), (32, 8, 128), (6, 2, 32), (16, 1, 512), (16, 16, 160)
TIMED_STEPS = tuple((count, 1, context) for count in (1, 8) for context in (16, 64, 256, 1024, 4096))
TIMED_PROMPTS = (1, 16, 16), (1, 16, 512), (1, 64, 64), (1, 200, 200), (1, 512, 512), (8, 64, 64)
TIMED_PRODUCTS = 2**25  # the most products of a call that is timed
TIMED_NUMBERS = 2 * 4096 * 16 * 160  # keys and values of the longest step of heads of their own
ONES = {FLOAT: 1.0, HALF: 0x3F80}  # 1 in a cache


def time_cached(number: str, grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
    """Yield timed calls of new rows of a few sequences, each of one row and of whole prompts, over KV caches that have
    left the caches of the processor: other layers were read since."""
    from formats.kernels.attentions.chunks import PAGE

    held = np.dtype(HELD_NUMBERS[number])
    memory, begun = np.full(max(uncached() // held.itemsize, TIMED_NUMBERS), ONES[number], held), 0
    for (heads, shared, cols), (count, rows, context) in product(TIMED_HEADS, TIMED_STEPS + TIMED_PROMPTS):
        pages = -(-context // PAGE)
        room, T = count * pages * PAGE * shared * cols, count * rows
        seen = count * sum(range(context - rows + 1, context + 1))
        if max(2 * room / len(memory), T * heads * cols / numbers.count, seen * heads * cols / TIMED_PRODUCTS) > 1:
            continue
        if begun + 2 * room > len(memory):
            begun = 0
        k, v = memory[begun : begun + 2 * room].reshape(2, count * pages * PAGE, shared, cols)
        begun += 2 * room
        before = np.where(np.arange(count * pages) % pages, np.arange(count * pages) - 1, -1)
        slots = np.concatenate(
            [np.arange(context - rows, context) + sequence * pages * PAGE for sequence in range(count)]
        )
        q, out = numbers.some(T, heads, cols), numbers.room(T, heads, cols)
        yield (
            {"T": T, "S2": seen, "h": heads, "g": shared, "d": cols},
            partial(compiled.attention_cached, q, k, v, slots, before, out, 1.0),
        )


def window_of(a: Arguments, slot: int) -> list[int]:
    """Return the rows of a cache that a row in this slot sees."""
    return held(slot, a.batch.before)[-a.behind - 1 :]


def least_of(*numbers: Any) -> Any:
    """Return the smallest of numbers, or of formulas."""
    if all(isinstance(number, int | float) for number in numbers):
        return min(numbers)
    import sympy

    return sympy.Min(*numbers)


def value_columns(a: Arguments) -> int:
    """Return the columns of the values. Raises ValueError for more than v has."""
    if a.values > a.v.cols:
        raise ValueError(f"values: {a.values} columns, but v has {a.v.cols}")
    return int(a.values or a.v.cols)


def cached_slots(a: Arguments) -> Any:
    """Return the slots of the requested rows: all of the batch, or the last of each sequence."""
    return a.batch.slots if a.rows == "all" else a.batch.slots[a.batch.starts[1:] - 1]


def price_cached(number: str) -> Price:
    """Return the price: products, reads of caches, and rows; caches narrower than float32 have a share of the bytes."""
    share = np.dtype(HELD_NUMBERS[number]).itemsize / FLOAT_BYTES
    return Price(
        (S2 * h * d, S2 * g * d, T * h * d),
        lambda tile: Work(4 * S2 * h * up(d, tile[1]), 8 * S2 * h, 2 * T * h * d + 2 * share * S2 / T * g * d),
        partial(time_cached, number),
        common=False,
    )


@kernel(
    launches=True,
    row_mixing=True,
    changes_space=True,
    prices={name: price_cached(number) for number, name in HELD_PRICED.items()},
)
class attention_cached(Arguments):
    """softmax(q kᵀ · scale) v of each row, or of the last of each sequence, over what its sequence has cached, up to
    the row itself, or so many keys `behind` it at most: chunk by chunk of keys, counted from its first token."""

    def run(
        out: Any,
        batch: Any,
        q: Heads,
        k: Cache,
        v: Cache,
        bias: Array | None = None,
        margin: Vector | None = None,
        *,
        scale: float = 1.0,
        cap: float = 0.0,
        where: Cached = SEEN,
        rows: SomeRows = "all",
        behind: Behind = BEYOND,
        values: LeadingColumns = 0,
    ) -> None:
        """Launch the compiled kernel over the cached keys, limited to `behind` keys before each row if that is finite;
        `values`: the columns of v that are read, 0 for all."""
        window = (None, None) if behind == BEYOND else (behind, batch.field("positions", BEYOND))
        compiled.attention_cached(
            q,
            k,
            np.asarray(v)[..., : values or None],
            batch.slots,
            batch.before,
            out,
            scale,
            None if rows == "all" else batch.starts,
            bias,
            *window,
            cap,
            margin,
        )

    def shape(a) -> Heads:
        """Return heads and columns of the result, in the space of its queries. Raises ValueError where q, k and v do
        not fit."""
        result = fit_heads(a)._replace(cols=value_columns(a))
        same("v numbers", a.v.number, a.k.number)
        same("q rows", a.q.space, space := T if a.rows == "all" else S)
        return result._replace(space=space)

    def limits(a) -> dict[str, int]:
        """Return the limit of positions, which are read only under a window."""
        return {"positions": BEYOND} if a.behind < BEYOND else {}

    def relations(a) -> tuple[Relation, ...]:
        """Name the relation that it reads: the cached rows of each sequence."""
        return (HELD,)

    def reference(a) -> Doubles:
        """Return softmax of each row, over the keys that its sequence has cached."""
        heads, parts = all_heads(a), []
        for q, slot in zip(in_groups(a.q, heads), cached_slots(a), strict=True):
            k, v = (in_groups(cache[window_of(a, slot)], heads) for cache in (a.k, a.v[..., : a.values or None]))
            scores = cap_scores(a.cap, np.einsum("hd,khd->hk", q, k) * a.scale)
            scores = scores + near_keys(a.bias, len(k) - 1, np.arange(len(k)))
            parts.append(np.einsum("hk,khd->hd", softened(scores, a.margin), v))
        return np.array(parts)

    def padded(a) -> Padded:
        """Return softmax of the requested queries over the rows of caches, up to their own. Raises Unpadded for whole
        texts."""
        return attend_held(a, a.behind < BEYOND)

    def bound(a) -> Doubles:
        """Bound the errors as for attention, row by row, over the rows that its sequence has cached, some pages at a
        time."""
        heads, parts = all_heads(a), []
        for q, slot in zip(in_groups(a.exact.q, heads), cached_slots(a), strict=True):
            caches = a.exact.k, a.exact.v[..., : a.values or None]
            k, v = (in_groups(cache[window_of(a, slot)], heads) for cache in caches)
            exact, size = (np.einsum("hd,khd->hk", *pair) for pair in ((q, k), (abs(q), abs(k))))
            near = near_keys(a.exact.bias, len(k) - 1, np.arange(len(k)))
            size = abs(a.scale) * size + abs(near)
            share, doubt = bound_shares(
                cap_scores(a.cap, exact * a.scale) + near,
                doubt_capped(a.cap, exact * a.scale, gamma(k.shape[2] + 2 + biased(a)) * size),
                np.zeros(exact.shape, bool),
                a.exact.margin,
            )
            # every page may rescale the sums before it
            total = doubt + gamma(3 * share.shape[-1] + 4) * (share + doubt)
            parts.append(np.einsum("hk,khd->hd", total, abs(v)))
        return np.array(parts)

    def cost(a, out: Heads, extents: Extents) -> Costs:
        """Return the price for the scores of its rows; for the last row of each sequence for theirs, as later new rows
        see more keys. Keys whose columns are the values, too, are read once."""
        rows, scores = extents[T], extents[pairs[seen.pattern(a)]]
        if a.rows == "last":
            rows, scores = extents[S], 2 * scores * extents[S] / (rows + extents[S])
        if a.behind < BEYOND:
            scores = least_of(scores, rows * (a.behind + 1))
        columns = (a.k.cols + value_columns(a)) / 2
        read = max(a.k.heads, a.v.heads)  # heads that share both read them once
        if a.k is a.v or a.values:
            read *= a.k.cols / (2 * columns)
        sizes = {"T": rows, "S2": scores, "h": out.heads, "g": read, "d": columns}
        return [(HELD_PRICED[a.k.number], sizes), *cap_costs(a, out, scores)]

    def borders(a) -> Collection[int]:
        """Return the numbers of keys that are processed at once, of a page, a chunk, a round of strands; and the first
        row that does not see all keys."""
        window = {a.behind + 1} if a.behind < BEYOND else set[int]()
        return {*compiled.borders("attention_cached"), *window}
