"""Rows that see rows, as readings of numbers need them: visible pairs, their distances, shares of the rows that are
seen, rows merged in order, entries that a mask of the batch drops."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import exp
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from formats.core.head_blocks import ByHeads, make_by_heads
from opmatrix.algebra.batch.batch import Fields, Places
from opmatrix.algebra.data import Data, Numeric
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.positions.patterns import Pattern, Truth, everyone
from opmatrix.algebra.shapes import N, Shape, ShapeError, Space, T, space

if TYPE_CHECKING:
    from opmatrix.algebra.oracles import DenseReading, Entrywise

Seen: TypeAlias = "NDArray[np.bool_] | None"


def place_columns(batch: Fields | None, rows: int, count: int) -> NDArray[np.int64]:
    """Return the column, of so many, that each pair of these tokens has by their distance (rows, rows)."""
    at = needed(batch, "at_distances").token(np.arange(rows)).position
    places: NDArray[np.int64] = np.clip(at - at[:, None] + count // 2, 0, count - 1)
    return places


def needed(batch: Fields | None, what: object) -> Fields:
    """Return the batch, where something depends on it. Raises TypeError where there is none."""
    if batch is None:
        raise TypeError(f"{what} depends on the batch: give one, as in dense(term, x, batch)")
    return batch


def visible(where: Pattern, queries: Fields | None, query: Places, keys: Fields | None, key: Places) -> Truth:
    """Return where rows `query` of the queries see rows `key` of the keys."""
    return where.sees(needed(queries, f"the pattern {where}").token(query), needed(keys, where).token(key))


def visible_pairs(where: Pattern, left: Fields | None, right: Fields | None, size: tuple[int, int]) -> Seen:
    """Return a mask, queries × keys, of the keys that each query sees; None where everyone sees all. Raises ShapeError
    where the batch has another number of rows."""
    if where is everyone:
        return None
    queries, keys = (needed(fields, f"the pattern {where}") for fields in (left, right))
    if size != (queries.rows, keys.rows):
        raise ShapeError(
            f"product where {where}: scores are {size[0]} × {size[1]}, but the batch has {queries.rows} "
            "rows" + (f" that see {keys.rows}" if queries is not keys else "")
        )
    pairs = visible(where, queries, np.arange(size[0])[:, None], keys, np.arange(size[1]))
    return np.broadcast_to(pairs, size)


def in_every_row(array: Numeric, rows: int) -> Numeric:
    """Return a value with so many rows if it has one, which is then a constant."""
    return np.broadcast_to(array, (*array.shape[:-2], rows, array.shape[-1])) if array.shape[-2] == 1 else array


def sequence_ends(batch: Fields, rows: int) -> NDArray[np.int64]:
    """Return the row behind the last one of each sequence. Raises ShapeError for rows that are not those of the batch,
    in order: rows up to a row are then no prefix."""
    place = batch.token(np.arange(batch.rows))
    begins = np.diff(place.sequence) != 0
    if batch.rows != rows or not (begins | (np.diff(place.position) > 0)).all():
        raise ShapeError("scan: its rows are not the tokens of the batch in order: pick rows after it")
    return np.append(np.flatnonzero(begins) + 1, rows) if rows else np.zeros(1, np.int64)


def shares_of(z: Numeric, seen: Seen) -> Numeric:
    """Return softmax of each row among the columns that it sees; 0 for columns that it does not see, and everywhere
    where it sees none."""
    z = z if seen is None else np.where(seen, z, -np.inf)
    top = z.max(-1, keepdims=True, initial=-np.inf)
    powers = np.exp(z - np.where(top > -np.inf, top, 0))
    mass = powers.sum(-1, keepdims=True)
    return np.asarray(powers / np.where(mass == 0, 1, mass))


def mask_of(batch: Fields | None, name: str, shape: tuple[int, ...]) -> Numeric:
    """Return the mask of a name that the batch gives, rows × columns or heads × rows × columns, as large as a value.
    Raises ValueError where the batch gives no mask of this name, or one of another shape."""
    inputs = needed(batch, f"dropout {name!r}").whole.inputs
    if name not in inputs:
        raise ValueError(
            f"dropout {name!r}: the batch gives no mask of this name: Batch(.., inputs={{{name!r}: mask}}}})"
        )
    mask = np.asarray(inputs[name])
    if mask.shape[-2:] != shape[-2:] or mask.size not in (np.prod(shape[-2:]), np.prod(shape)):
        raise ValueError(f"dropout {name!r}: the mask has shape {mask.shape}, and the value {shape}")
    return mask


def corrected_rows(q: Numeric, k: Numeric, v: Numeric, betas: Numeric, decays: Numeric) -> Numeric:
    """Return what each query reads of a state (heads, d, e) that its row and those before have corrected, by the delta
    rule: the affine maps S -> (I - beta k kᵀ) (decay S) + beta k vᵀ, one after another."""
    state, rows = np.zeros((len(k), k.shape[2], v.shape[2]), np.result_type(k, v)), list[Numeric]()
    for t in range(k.shape[1]):
        state = state * decays[:, t, :, None]
        added = betas[:, t] * (v[:, t] - np.einsum("hd,hde->he", k[:, t], state))
        state = state + k[:, t, :, None] * added[:, None]
        rows.append(np.einsum("hd,hde->he", q[:, t], state))
    return np.stack(rows, 1) if rows else np.zeros((len(k), 0, v.shape[2]))


class Seeing(ByHeads):
    """The operations of a dense reading on rows that see rows."""

    batch: Fields | None

    def scan(self, other: Self, over: type[Monoid], where: Pattern) -> Self:
        """Merge the rows of each sequence in order, up to each row or all of them."""
        batch = needed(self.batch, f"scan where {where}")
        left, right = (in_every_row(each.array, batch.rows) for each in (self, other))
        ends = sequence_ends(batch, left.shape[-2])
        parts = [
            over.scan(left[..., lo:hi, :], right[..., lo:hi, :], where.whole, lo) for lo, hi in pairwise([0, *ends])
        ]
        return self.of(np.concatenate(parts, -2).astype(left.dtype))

    def delta_rule(self, keys: Self, values: Self, betas: Self, decays: Self) -> Self:
        """Pass the rows of each sequence through a state that each corrects."""
        batch = needed(self.batch, "delta rule")
        parts = [in_every_row(each.array, batch.rows) for each in (self, keys, values, betas, decays)]
        heads = max(len(part) if part.ndim > 2 else 1 for part in parts)
        parts = [np.broadcast_to(part, (heads, *part.shape[-2:])) for part in parts]
        ends = sequence_ends(batch, batch.rows)
        rows = np.concatenate([corrected_rows(*(p[:, lo:hi] for p in parts)) for lo, hi in pairwise([0, *ends])], 1)
        return self.of((rows if heads > 1 else rows[0]).astype(self.array.dtype))

    def by_distance(self: DenseReading, table: Data, most: int) -> DenseReading:  # type: ignore[misc]    # mixed into it
        """Look up the table at the distance of each pair of rows."""
        at = needed(self.batch, "by_distance").token(np.arange(self.size[0])).position
        numbers, places = self.numbers(table), np.clip(at - at[:, None], -most, most) + most
        if len(numbers) == 1:
            return self.of(numbers[0, places])
        return self.of(make_by_heads((len(numbers), *places.shape), lambda heads, _: numbers[heads][:, places]))

    def shares(self, where: Pattern) -> Self:
        """Compute the softmax of each row over the columns that it sees, some heads at a time."""
        rows, cols = self.value.shape[-2:]
        seen = visible_pairs(where, self.batch, self.batch, (rows, cols))
        return self.in_heads(self.value.shape, lambda z: shares_of(z, seen))

    def at_distances(self, table: Data) -> Self:
        """Multiply by the table, and choose a column for each token by its distance."""
        products = self.array @ table.array.astype(self.array.dtype)
        rows, count = products.shape[-2:]
        places = place_columns(self.batch, rows, count)
        return self.of(np.take_along_axis(products, np.broadcast_to(places, (*products.shape[:-1], rows)), -1))

    def dropped(self, name: str, rate: float) -> Self:
        """Multiply by the batch's mask of this name, and divide by 1 - rate."""
        return self.of(self.array * mask_of(self.batch, name, self.array.shape) / (1 - rate))

    def shift(self, k: int) -> Self:
        """Return the row k before each row in its sequence, zeros where there is none."""
        at = needed(self.batch, f"shift({k})").rows_before(k)
        return self.of(np.where(at[:, None] < 0, 0, self.array[..., at, :]))

    def backwards(self) -> Self:
        """Return the rows of each sequence from the last to the first."""
        batch = needed(self.batch, "backwards")
        rows = in_every_row(self.array, batch.rows)
        ends = sequence_ends(batch, rows.shape[-2])
        return self.of(np.concatenate([rows[..., lo:hi, :][..., ::-1, :] for lo, hi in pairwise([0, *ends])], -2))

    def fold(self, h: int) -> Self:
        """Sum neighbouring heads, so that h are left."""
        stacked = self.array.reshape(-1, *self.array.shape[-2:])
        sums = stacked.reshape(h, -1, *stacked.shape[-2:]).sum(1)
        return self.of(sums if h > 1 else sums[0])


class SeeingEntries:
    """The operations of an entrywise reading on rows that see rows."""

    value: NDArray[np.object_]
    batch: Fields | None

    def scan(self: Entrywise, other: Entrywise, over: type[Monoid], where: Pattern) -> Entrywise:  # type: ignore[misc]
        """Merge the rows that each row sees, in order, entry by entry."""
        h, r, c = np.broadcast_shapes(self.value.shape, other.value.shape)
        sequence_ends(needed(self.batch, f"scan where {where}"), r)

        def out(h: int, r: int, j: int) -> object:
            """Merge one column of the rows that row r sees."""
            seen = (i for i in range(self.size[0]) if visible(where, self.batch, r, self.batch, i))
            return over.fold(over.lifted(self.at(h, i, j), other.at(h, i, j), i) for i in seen)

        return self.finished((h, r, c), over.count(1), out, over.__name__)

    def delta_rule(  # type: ignore[misc]    # mixed into it
        self: Entrywise, keys: Entrywise, values: Entrywise, betas: Entrywise, decays: Entrywise
    ) -> Entrywise:
        """Pass the rows of each sequence through a state that each corrects, entry by entry."""
        batch, every = needed(self.batch, "delta rule"), (self, keys, values, betas, decays)
        heads, d = max(each.value.shape[0] for each in every), keys.value.shape[2]
        ends = [0, *sequence_ends(batch, batch.rows)]

        def at(each: Entrywise, h: int, t: int, i: int) -> float:
            """Return number i of a row of a head, which may be the same in all rows."""
            number: float = each.at(h, min(t, each.size[0] - 1), i)
            return number

        def row(each: Entrywise, h: int, t: int) -> list[float]:
            """Return the d numbers of a row of a head."""
            return [at(each, h, t, i) for i in range(d)]

        def number(h: int, r: int, j: int) -> object:
            """Return what the query of row r reads of column j of the state."""
            state = [self.number(0.0)] * d
            for t in range(max(end for end in ends if end <= r), r + 1):
                beta, value = at(betas, h, t, 0), at(values, h, t, j)
                key, decay = row(keys, h, t), row(decays, h, t)
                state = [a * s for a, s in zip(decay, state, strict=True)]
                added = beta * (value - sum(k * s for k, s in zip(key, state, strict=True)))
                state = [s + k * added for k, s in zip(key, state, strict=True)]
            return sum(q * s for q, s in zip(row(self, h, r), state, strict=True))

        return self.of((heads, batch.rows, values.value.shape[2]), number)

    def backwards(self: Entrywise) -> Entrywise:  # type: ignore[misc]    # mixed into it
        """Return the rows of each sequence from the last to the first, entry by entry."""
        ends = sequence_ends(needed(self.batch, "backwards"), self.size[0])
        at = [row for lo, hi in pairwise([0, *ends]) for row in reversed(range(lo, hi))]
        return self.of(self.value.shape, lambda h, r, j: self.at(h, at[r], j))

    def by_distance(self: Entrywise, table: Data, most: int) -> Entrywise:  # type: ignore[misc]    # mixed into it
        """Look up the table at the distance of each pair of rows."""
        at = needed(self.batch, "by_distance").token(np.arange(self.size[0])).position

        def number(h: int, r: int, j: int) -> object:
            """Return the number of one pair."""
            return self.number(float(table.array[h, max(-most, min(int(at[j] - at[r]), most)) + most]))

        return self.of((table.shape[0], len(at), len(at)), number)

    def shares(self: Entrywise, where: Pattern) -> Entrywise:  # type: ignore[misc]    # mixed into it
        """Compute the softmax of each row over the columns that it sees, entry by entry. Raises TypeError where exact
        numbers are requested."""
        if self.number is not float:
            raise TypeError("shares has no exact value: it is not a polynomial of its input")

        def at(h: int, r: int, j: int) -> object:
            """Return one share; 0 for a column that the row does not see."""

            def sees(i: int) -> bool:
                """True if row r sees row i."""
                return where is everyone or bool(visible(where, self.batch, r, self.batch, i))

            seen = [i for i in range(self.size[1]) if sees(i)]
            if j not in seen:
                return 0.0
            top = max(self.value[h, r, i] for i in seen)
            return exp(self.value[h, r, j] - top) / sum(exp(self.value[h, r, i] - top) for i in seen)

        return self.of(self.value.shape, at)

    def at_distances(self: Entrywise, table: Data) -> Entrywise:  # type: ignore[misc]    # mixed into it
        """Multiply by the table, entry by entry, in the column that a token has by its distance."""
        heads, columns, count = table.shape
        places = place_columns(self.batch, self.size[0], count)

        def at(h: int, r: int, j: int) -> object:
            """Return the sum of the products of a row's entries."""
            factors = (self.number(float(table.array[h, i, places[r, j]])) for i in range(columns))
            return sum(self.value[h % len(self.value), r, i] * factor for i, factor in enumerate(factors))

        return self.of((heads, self.size[0], self.size[0]), at)

    def dropped(self: Entrywise, name: str, rate: float) -> Entrywise:  # type: ignore[misc]    # mixed into it
        """Multiply each entry by the batch's mask of this name, and divide by 1 - rate."""
        mask = np.broadcast_to(mask_of(self.batch, name, self.value.shape), self.value.shape)
        scale = self.number(1.0) / self.number(1 - rate)
        reading = self.of(self.value.shape, lambda *at: self.value[at] * self.number(float(mask[at])) * scale)
        return replace(reading)

    def shift(self: Entrywise, k: int) -> Entrywise:  # type: ignore[misc]    # mixed into it
        """Return the row k before each row in its sequence, zeros where there is none."""
        at, zero = needed(self.batch, f"shift({k})").rows_before(k), self.number(0.0)
        return self.of(self.value.shape, lambda h, r, j: zero if at[r] < 0 else self.value[h, at[r], j])

    def fold(self: Entrywise, h: int) -> Entrywise:  # type: ignore[misc]    # mixed into it
        """Sum neighbouring heads, entry by entry, so that h are left."""
        heads, rows, cols = self.value.shape

        def at(k: int, r: int, j: int) -> object:
            """Sum one entry over the heads of group k."""
            return sum(self.value[k * (heads // h) : (k + 1) * (heads // h), r, j])

        return self.of((h, rows, cols), at)


def check_scores(scores: Shape, where: Pattern) -> None:
    """Raise ShapeError, which names the pattern, where its rows cannot be those of the scores: these have columns
    instead, or rows of another space than its relation."""
    if where is everyone or not isinstance(where, Pattern):
        return  # a law has names for patterns
    numbers = next((size for size in scores[1:] if not isinstance(size, Space) and size is not N), None)
    if numbers is not None:
        raise ShapeError(
            f"product where {where}: scores are {scores}: {numbers} is a number of columns, and a pattern "
            "is of rows: leave where= out, or multiply rows by rows, as in q @ k.T"
        )
    for relation in (part.relation for part in where.parts or (where,) if part.relation is not None):
        wanted = space(relation.rows), space(relation.cols)
        if scores.cols not in (T, N, wanted[1]):  # rows may have been picked, and stand where they stood
            raise ShapeError(
                f"product where {where}: scores are {scores}, but {relation} lets rows of {wanted[0]} see "
                f"those of {wanted[1]}"
            )
