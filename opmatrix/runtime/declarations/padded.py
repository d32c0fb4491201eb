"""Padded readings: the result of a kernel for a batch whose sequences are padded to one length, as other runtimes have
it.

A value of T has the axes (batch, length, columns) or (batch, length, heads, columns), one of S (batch, columns) or
(batch, heads, columns); scores are (batch, heads, length, length). A kernel's reading `padded` is written in functions
of numpy and in those below. Arrays of numpy run it; arrays of a graph (opmatrix/exports/graph.py) record it, and torch
and ONNX write what was recorded."""

from collections.abc import Callable, Sequence
from functools import wraps
from types import SimpleNamespace
from typing import Any

import numpy as np

from formats.core.activation import ACTIVATIONS
from formats.core.reductions import PICKS
from formats.core.stage import DEFAULTS, activation, gain_shift, is_given, norm, stages_of
from formats.core.stage import reference as apply_stages
from opmatrix.algebra.batch.batch import FIELDS
from opmatrix.algebra.batch.relations import GIVEN, Relation
from opmatrix.algebra.positions.patterns import Pattern, Positions, causal, sequence, window
from opmatrix.algebra.routes import keep_taken, largest
from opmatrix.runtime.declarations.arguments import Arguments

Padded = Any  # an array of numpy, or of a graph
PaddedReader = Callable[[Arguments], Padded]
PaddedStage = Callable[[Padded, Arguments], Padded]
RowStep = Callable[[Sequence[Padded], Sequence[Padded]], tuple[Sequence[Padded], Padded]]
LOWEST = float(np.finfo(np.float32).min)  # added to scores of keys that are not seen: their share is exactly 0
MAX_TABLED = 1 << 13  # positions of a pattern that is read from a table


class Unpadded(ValueError):
    """A step without a reading of padded batches."""


# ---- array functions besides those of numpy: arrays of a graph record them by name


def array_function(function: Callable[..., Padded]) -> Callable[..., Padded]:
    """Declare a function of arrays by its meaning in numpy; arrays of a graph record its name and arguments."""

    @wraps(function)
    def call(x: Padded, *arguments: Padded) -> Padded:
        """Record the call if x is an array of a graph, else compute it."""
        if record := getattr(x, "record", None):
            return record(function.__name__, *arguments)
        return function(x, *arguments)

    return call


@array_function
def into_heads(x: Padded, heads: int) -> Padded:
    """Divide the last axis into `heads` equal blocks: (.., h d) to (.., h, d)."""
    return x.reshape(*x.shape[:-1], heads, -1)


@array_function
def out_of_heads(x: Padded) -> Padded:
    """Join the last two axes: (.., h, d) to (.., h d)."""
    return x.reshape(*x.shape[:-2], -1)


@array_function
def share_rows(x: Padded) -> Padded:
    """Compute the softmax of the last axis."""
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@array_function
def normalise_layer(y: Padded, gain: Padded, shift: Padded, eps: float) -> Padded:
    """Normalise each row by mean and deviation, times `gain`, plus `shift`, each where it is not None."""
    stages = {"eps": eps, "norm": "layer", "gain": gain, "shift": shift}
    return apply_stages(y, SimpleNamespace(**DEFAULTS | stages))


@array_function
def activate_rows(y: Padded, name: str) -> Padded:
    """Apply the activation of that name."""
    return ACTIVATIONS[name].function(y)


@array_function
def keep_largest(x: Padded, by: Padded, k: int) -> Padded:
    """Return x where `by` is among the k largest of its row, 0 elsewhere; of equal numbers the first are kept."""
    return keep_taken(np.broadcast_to(x, by.shape), by, largest(by, k))


@array_function
def take_rows(ids: Padded, table: Padded) -> Padded:
    """Return the rows of a table that ids name: (..) and (n, p) to (.., p)."""
    return table[ids]


@array_function
def take_places(x: Padded, at: Padded) -> Padded:
    """Return one row of each sequence: (batch, length, ..) and (batch,) to (batch, ..)."""
    return x[np.arange(len(x)), at]


@array_function
def take_newest(x: Padded, new: Padded) -> Padded:
    """Return the last places of each row, as many as there are new ones: (batch, total) and (batch, length) to (batch,
    length)."""
    return x[:, x.shape[1] - new.shape[1] :]


@array_function
def take_columns(x: Padded, places: Padded) -> Padded:
    """Return for each pair of rows one column of x: (batch, heads, rows, n) and (batch, 1, rows, m) to (batch, heads,
    rows, m)."""
    return np.take_along_axis(x, np.broadcast_to(places, (*x.shape[:3], places.shape[3])), 3)


def pass_rows(step: RowStep, states: Sequence[Padded], rows: Sequence[Padded]) -> tuple[Sequence[Padded], Padded]:
    """Pass rows through states in their order: from the states (batch, ..) before a row, and that row (batch, ..) of
    arrays (batch, length, ..), `step` gives the states behind it, and its result. Return the last states, and all
    results (batch, length, ..)."""
    if record := getattr(rows[0], "record_passed", None):
        recorded: tuple[Sequence[Padded], Padded] = record(step, states, rows)
        return recorded
    results = []
    for at in range(rows[0].shape[1]):
        states, result = step(states, [x[:, at] for x in rows])
        results.append(result)
    return states, np.stack(results, 1)


def pass_valid(
    step: RowStep, states: Sequence[Padded], rows: Sequence[Padded], valid: Padded
) -> tuple[Sequence[Padded], Padded]:
    """Pass rows through states as `pass_rows`, but those of padding, which leave states as they are."""

    def passed(before: Sequence[Padded], row: Sequence[Padded]) -> tuple[Sequence[Padded], Padded]:
        """Step, and keep the states before a row of padding."""
        behind, result = step(before, row[:-1])
        there = row[-1]
        for _ in before[0].shape[1:]:
            there = np.expand_dims(there, -1)
        return [np.where(there, one, other) for one, other in zip(behind, before, strict=True)], result

    return pass_rows(passed, states, [*rows, valid])


# ---- the batch


class PaddedBatch:
    """Token ids, a mask of the places that have a token, token types: (batch, length) each. Positions count the tokens
    before each one, so padding may be on either side."""

    def __init__(self, tokens: Padded, valid: Padded, kinds: Padded) -> None:
        self.tokens, self.kinds, self.valid = tokens, kinds, valid
        self.counts = np.cumsum(np.where(valid, 1, 0), 1)
        self.positions = np.maximum(self.counts - 1, 0)
        self.lengths = np.expand_dims(self.counts.max(1), 1)
        self.key_positions, self.key_valid = self.positions, valid  # of the rows that attention may see
        self.left: dict[tuple[int, ...], Padded] = {}  # states behind the last rows, by what passed through them

    def field(self, name: str) -> Padded:
        """Return the numbers of a field, (batch, length). Raises Unpadded for one that depends on the whole batch."""
        if name not in FIELDS or name == "sequence":
            raise Unpadded(f"it reads the field {name} of a batch, which a padded batch has not")
        return getattr(self, name)

    def place(self, end: str) -> Padded:
        """Return the place of the first or of the last token of each sequence, (batch,)."""
        number = 1 if end == "first" else self.lengths
        return np.argmax(np.where(self.valid & (self.counts == number), 1, 0), 1)

    def pick(self, x: Padded, end: str) -> Padded:
        """Return the row of the first or of the last token of each sequence."""
        return take_places(x, self.place(end))

    def seen(self, where: Pattern, queries: Padded = None) -> Padded:
        """Return a mask of the keys that each query sees, to be spread over (batch, 1, queries, length). `queries`:
        positions (batch, queries) of the queries, by default all. Raises Unpadded for a pattern that sees other
        sequences."""
        if not where.within or where.relation is not None:
            raise Unpadded(f"the pattern {where} lets rows of one sequence see another")
        queries = self.positions if queries is None else queries
        queries, keys = np.expand_dims(queries, 2), np.expand_dims(self.key_positions, 1)
        pairs = np.expand_dims(self.key_valid, 1) & see_positions(where, queries, keys)
        return np.expand_dims(pairs, 1)

    def weights(self, relation: Relation) -> Padded:
        """Return the numbers of a relation of sequences, (batch, length), zeros at padding. Raises Unpadded for a
        relation that a batch brings itself."""
        if relation.name not in GIVEN:
            raise Unpadded(f"it reads the relation {relation}, which only a batch of this project can give")
        if relation.picked:
            places = np.cumsum(np.ones_like(self.counts), 1) - 1
            return np.where(np.expand_dims(self.place(relation.name), 1) == places, 1.0, 0.0)
        count = self.lengths
        numbers: dict[str, Callable[[], Padded]] = {
            "members": lambda: np.where(self.valid, 1.0, 0.0),
            "members_by_root": lambda: np.where(self.valid, 1.0, 0.0) / np.sqrt(count * 1.0),
            "members_by_place": lambda: np.where(self.valid, self.counts * 2.0 / (count * (count + 1)), 0.0),
        }
        return numbers[relation.name]()

    def zeros(self, *shape: int) -> Padded:
        """Return zeros for each sequence, (batch, ..)."""
        none = self.lengths * 0.0
        for _ in shape[1:]:
            none = np.expand_dims(none, -1)
        return none + np.zeros(shape, np.float32)

    def choose_rows(self, x: Padded, at: Padded) -> Padded:
        """Return the rows of x (batch, heads, length, columns) at positions (batch, rows), zeros where there is none:
        a product with zeros and ones."""
        there = np.expand_dims(self.valid, 1) & (np.expand_dims(self.positions, 1) == np.expand_dims(at, 2))
        return take_named(there, x)

    def shift_rows(self, x: Padded, k: int, state: Padded = None) -> Padded:
        """Return the row k before each row of x (batch, heads, length, columns), zeros where there is none. Raises
        Unpadded for a state, as whole texts have none."""
        if state is not None:
            raise Unpadded("it reads the states of a session")
        return self.choose_rows(x, self.positions - k)

    def last_rows(self, x: Padded, state: Padded) -> Padded:
        """Return the next state, the last rows of x. Raises Unpadded, as whole texts have no states."""
        raise Unpadded("it writes to the states of a session")

    def append(self, x: Padded, cache: Padded) -> Padded:
        """Return a cache with new rows behind its own. Raises Unpadded, as whole texts have no caches."""
        raise Unpadded("it writes to the caches of a session")

    def held_rows(self, cache: Padded) -> Padded:
        """Return the rows of a cache, (batch, total, heads, columns). Raises Unpadded, as whole texts have none."""
        raise Unpadded("it reads keys and values that a session has cached")


class CachedBatch(PaddedBatch):
    """New rows of sequences, (batch, length), behind rows whose keys and values are in caches, (batch, heads, past,
    columns), or in states (batch, heads, rows, columns). `valid` is of all rows, (batch, past + length); past may be 0.
    Padding may be anywhere."""

    def __init__(self, tokens: Padded, valid: Padded, kinds: Padded) -> None:
        super().__init__(tokens, valid, kinds)
        self.valid, self.counts, self.positions = (
            take_newest(every, tokens) for every in (valid, self.counts, self.positions)
        )
        self.begun = self.lengths - np.expand_dims(np.where(self.valid, 1, 0).sum(1), 1)  # rows before the new ones

    def place(self, end: str) -> Padded:
        """Return the place of the last token of each sequence, (batch,). Raises Unpadded for the first, which may lie
        before the new rows."""
        if end == "first":
            raise Unpadded("it picks the first row of each sequence, which is before new rows")
        return super().place(end)

    def rows_at(self, x: Padded, state: Padded, at: Padded) -> Padded:
        """Return the rows at positions (batch, rows) of new rows x (batch, heads, length, columns), or of the last rows
        before them in a state."""
        held = self.begun + np.arange(-state.shape[2], 0)
        before = take_named(np.expand_dims(held, 1) == np.expand_dims(at, 2), state)
        return before + self.choose_rows(x, at)

    def shift_rows(self, x: Padded, k: int, state: Padded = None) -> Padded:
        """Return the row k before each new row of x, from a state where it is before them. Raises Unpadded without a
        state."""
        if state is None:
            raise Unpadded("it reads rows before new ones that no state holds")
        return self.rows_at(x, state, self.positions - k)

    def last_rows(self, x: Padded, state: Padded) -> Padded:
        """Return the next state: the last rows of x, as many as the state has, from the state where they are before new
        ones."""
        return self.rows_at(x, state, self.lengths + np.arange(-state.shape[2], 0))

    def append(self, x: Padded, cache: Padded) -> Padded:
        """Return a cache with new rows (batch, length, heads, columns) behind its own."""
        return np.concatenate([cache, np.swapaxes(x, 1, 2)], 2)

    def held_rows(self, cache: Padded) -> Padded:
        """Return the rows of a cache, (batch, total, heads, columns)."""
        return np.swapaxes(cache, 1, 2)


def take_named(there: Padded, x: Padded) -> Padded:
    """Return the row of x (batch, heads, n, columns) that each of m rows names in `there` (batch, m, n), zeros where it
    names none: (batch, heads, m, columns)."""
    return np.expand_dims(np.where(there, 1.0, 0.0), 1) @ x


def see_positions(where: Pattern, queries: Padded, keys: Padded) -> Padded:
    """Return where queries see keys, by their positions. A pattern that knows so many positions alone is read from a
    table of all pairs. Raises Unpadded for a table that is too large."""
    if where.limit is None:
        none = np.zeros((1, 1, 1), np.int64)
        return where.sees(Positions(queries, none), Positions(keys, none))
    if where.limit > MAX_TABLED:
        raise Unpadded(f"the pattern {where} has a table of {where.limit:,} positions; {MAX_TABLED:,} are supported")
    every, none = np.arange(where.limit), np.zeros((), np.int64)
    table = np.broadcast_to(where.sees(Positions(every[:, None], none), Positions(every, none)), (where.limit,) * 2)
    return take_rows(queries * where.limit + keys, table.reshape(-1))


# ---- parts of readings


def apply_padded_stages(y: Padded, a: Arguments) -> Padded:
    """Apply an epilogue to rows: its stages as they are declared, but an activation and a layer norm, with the gain and
    the shift behind it, by name."""
    by_name: dict[object, PaddedStage] = {activation: lambda y, a: activate_rows(y, a.activation)}
    if norm.asked(a) and a.norm == "layer":
        by_name[norm] = lambda y, a: normalise_layer(y, a.gain, a.shift, a.eps)
        by_name[gain_shift] = lambda y, a: y
    for stage in stages_of(a):
        means: PaddedStage = by_name.get(stage, stage.means)
        y = means(y, a)
    return y


def group_heads(x: Padded, heads: int, axis: int = -2) -> Padded:
    """Repeat each head of an axis so that there are `heads` heads, copies side by side."""
    have = x.shape[axis]
    return x if have == heads else np.take(x, np.arange(heads) * have // heads, axis)


def score_keys(q: Padded, k: Padded, heads: int) -> Padded:
    """Return q kᵀ: (batch, queries, h, d) and (batch, length, g, d) to (batch, heads, queries, length)."""
    q, k = (np.swapaxes(group_heads(x, heads), 1, 2) for x in (q, k))
    return q @ np.swapaxes(k, 2, 3)


def bias_scores(scores: Padded, table: Padded, queries: Padded, keys: Padded) -> Padded:
    """Add a table by distance (h, 2 m + 1) to scores: the number at key - query, or at the nearer end of the table."""
    if not is_given(table):
        return scores
    most = table.shape[1] // 2
    apart = np.expand_dims(keys, 1) - np.expand_dims(queries, 2)
    numbers = take_rows(np.minimum(np.maximum(apart, -most), most) + most, np.swapaxes(table, 0, 1))
    return scores + np.moveaxis(numbers, 3, 1)


def multiply_distances(x: Padded, table: Padded, positions: Padded) -> Padded:
    """Return x @ table in each head, for each token the column that its distance behind the row chooses: (batch, heads,
    length, d) and (heads, d, n) to (batch, heads, length, length)."""
    count = table.shape[2]
    apart = np.expand_dims(positions, 1) - np.expand_dims(positions, 2)
    places = np.minimum(np.maximum(apart + count // 2, 0), count - 1)
    return take_columns(x @ table, np.expand_dims(places, 1))


def share_seen(scores: Padded, seen: Padded, reflexive: bool) -> Padded:
    """Return the softmax of each row over the keys that it sees; zeros for a row that sees none, which only a pattern
    that is not reflexive has."""
    shares = share_rows(scores + np.where(seen, 0.0, LOWEST))
    return shares if reflexive else shares * np.where(seen, 1.0, 0.0)


def share_beside_sinks(scores: Padded, seen: Padded, margin: Padded) -> Padded:
    """Return the softmax of each row over the keys that it sees and one more, whose score is less the margin (h) of the
    head, and whose share is left out."""
    scores, sinks = scores + np.where(seen, 0.0, LOWEST), into_heads(-margin, margin.shape[0])
    sinks = np.expand_dims(sinks, 2)
    top = np.maximum(scores.max(-1, keepdims=True), sinks)
    powers = np.exp(scores - top)
    return powers / (powers.sum(-1, keepdims=True) + np.exp(sinks - top))


def weigh_values(shares: Padded, v: Padded) -> Padded:
    """Return shares @ v: (batch, heads, queries, length) and (batch, length, g, d) to (batch, queries, heads, d)."""
    grouped = np.swapaxes(group_heads(v, shares.shape[1]), 1, 2)
    return np.swapaxes(shares @ grouped, 1, 2)


def attend(a: Arguments, q: Padded, where: Pattern, queries: Padded) -> Padded:
    """Return attention of the queries q (batch, n, h, d), at positions (batch, n), over all keys of a step."""
    return attend_rows(a, (q, a.k, a.v), where, queries)


def attend_rows(a: Arguments, operands: tuple[Padded, Padded, Padded], where: Pattern, queries: Padded) -> Padded:
    """Return attention of queries over keys and values (batch, n, heads, columns), with the scale, the cap and the
    table by distance of a step."""
    q, k, v = operands
    heads = max(q.shape[2], k.shape[2], v.shape[2], 1 if a.bias is None else a.bias.shape[0])
    scores = score_keys(q, k, heads) * a.scale
    if a.cap:
        scores = activate_rows(scores, "tanh") * a.cap
    scores = bias_scores(scores, a.bias, queries, a.batch.key_positions)
    seen = a.batch.seen(where, queries)
    if is_given(a.margin):
        return weigh_values(share_beside_sinks(scores, seen, a.margin), v)
    return weigh_values(share_seen(scores, seen, where.reflexive), v)


def attend_held(a: Arguments, windowed: bool) -> Padded:
    """Return attention of all rows, or of the last of each sequence, over the rows of caches up to their own, with a
    window of so many `behind` them or without."""
    keys, values = a.batch.held_rows(a.k), a.batch.held_rows(a.v)[..., : a.values or None]
    where = sequence & causal & window(a.behind) if windowed else sequence & causal
    if a.rows == "all":
        return attend_rows(a, (a.q, keys, values), where, a.batch.positions)
    at = np.expand_dims(a.batch.pick(a.batch.positions, a.rows), 1)
    return attend_rows(a, (np.expand_dims(a.q, 1), keys, values), where, at)[:, 0]


def pick_padded(batch: PaddedBatch, x: Padded, relation: Relation) -> Padded:
    """Return the first or the last row of each sequence. Raises Unpadded for a relation that a batch brings itself."""
    if not relation.picked:
        raise Unpadded(f"it picks rows by the relation {relation}, which only a batch of this project can give")
    return batch.pick(x, relation.name)


def reduce_padded(x: Padded, batch: PaddedBatch, how: str) -> Padded:
    """Reduce the rows of each sequence to one: (batch, length, p) to (batch, p)."""
    if how in PICKS:
        return batch.pick(x, how)
    inside = np.expand_dims(batch.valid, 2)
    if how == "max":
        return np.where(inside, x, LOWEST).max(1)
    rows, count = np.where(inside, x, 0.0), batch.lengths * 1.0
    match how:
        case "sum":
            return rows.sum(1)
        case "mean":
            return rows.sum(1) / count
        case "by_root":
            return rows.sum(1) / np.sqrt(count)
    return (rows * np.expand_dims(batch.counts, 2)).sum(1) / (count * (count + 1) / 2)
