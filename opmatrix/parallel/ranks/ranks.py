"""A rank: a generator that runs its steps in float64 and yields the messages that it sends. It counts operations, sent
and held numbers at the arrays themselves, so a formula is compared with the run."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch_sizes import ROLES, Bounds, Dims, Role
from opmatrix.algebra.batch.mixtures import contracts
from opmatrix.algebra.batch.relations import Relation, Sparse
from opmatrix.algebra.batch.traced import sliced_at
from opmatrix.algebra.data import Data, Numeric
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.oracles import DenseReading, reduced
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.algebra.routes import keep_taken, largest
from opmatrix.algebra.term import Operator
from opmatrix.parallel.ranks.moe_experts import AskingRank, ByExpert
from opmatrix.parallel.ranks.recurrences import correct_states, merge_rows
from opmatrix.parallel.ranks.related import HeldRows, dense_window, locate, merge_entries, pick_held, rows_before
from opmatrix.parallel.ranks.weight_pieces import WeightPieces
from opmatrix.parallel.sharding.axis_states import Cut, Needed, Partial, bounds, widths
from opmatrix.parallel.sharding.block_mask import seen_blocks, sent_blocks, visibility
from opmatrix.parallel.sharding.carrier_pieces import Carriers, cut_piece, each_of, unit_size
from opmatrix.parallel.sharding.cost_formulas import StoredKey, stored_arrays, stored_dims, stored_key
from opmatrix.parallel.sharding.feeds import Feed, OneHot, window
from opmatrix.parallel.sharding.haloed import named_rows, own_rows, part_of_relation
from opmatrix.parallel.sharding.mesh import HOST, Mesh
from opmatrix.parallel.sharding.moe_dispatch import ASKED
from opmatrix.parallel.sharding.placement import Coordinates, Placement, found_at
from opmatrix.parallel.sharding.redistribute import RankStep, last_reads

Held: TypeAlias = "Numeric | OneHot | Sparse | Carriers"


class Message(NamedTuple):
    """The arrays that a rank hands over on an axis, and how the result for which it waits is made."""

    op: str  # collective or transfer
    axis: int  # number of the axis
    arrays: Carriers  # the arrays that are handed over
    at: int  # number of the step
    over: type[Monoid] | None = None  # monoid of a partial value
    cut: Cut | None = None  # present sharding
    then: Cut | None = None  # wanted sharding
    unit: int = 1  # size of a unit of the wanted sharding
    units: int = 0  # units of the present sharding
    unfinished: bool = False  # partial on other axes, too: the merge stays a carrier
    among: tuple[int, ...] = ()  # ranks of the axis that take part; empty for all

    @property
    def numbers(self) -> int:
        """The count of numbers that the rank hands over."""
        return sum(array.size for array in self.arrays)


@dataclass
class Meter:
    """The counts of one rank, in numbers; payload, wire and messages by operation and axis."""

    flops: int = 0  # multiplications and additions
    peak: int = 0  # most numbers of values held at a time
    stored: int = 0  # stored weights
    gathered: int = 0  # most gathered weights held at a time
    payload: dict[tuple[str, str], int] = field(default_factory=dict)  # handed over
    wire: dict[tuple[str, str], int] = field(default_factory=dict)  # left the rank
    messages: dict[tuple[str, str], int] = field(default_factory=dict)  # messages sent

    def sent(self, key: tuple[str, str], payload: int, wire: int, messages: int) -> None:
        """Add to the counts of an operation on an axis: numbers handed over, numbers that left the rank, messages."""
        for table, more in ((self.payload, payload), (self.wire, wire), (self.messages, messages)):
            table[key] = table.get(key, 0) + more


def count_held(held: Held) -> int:
    """Return the numbers that are held of a value."""
    if isinstance(held, OneHot):
        return held.ids.size
    if isinstance(held, Sparse):
        return held.starts.size + held.at.size + held.numbers.size
    return held.size if isinstance(held, np.ndarray) else sum(int(part.size) for part in held)


WAITING = "ring", *ASKED  # steps that yield messages while they run


class StepsOnMesh(Protocol):
    """The steps of a term on a mesh, and the step of its result: a split term, with its backward or without, or a
    stage."""

    @property
    def steps(self) -> Sequence[RankStep]: ...

    @property
    def out(self) -> int: ...

    @property
    def mesh(self) -> Mesh: ...


class Rank(AskingRank):
    """A rank that runs the steps of a term at one place of a mesh."""

    def __init__(
        self,
        split: StepsOnMesh,
        place: Coordinates,
        feed: Feed,
        meter: Meter,
        start: Numeric | None,
        kept: dict[Any, Data],
    ) -> None:
        self.steps, self.out, self.mesh, self.place, self.feed = split.steps, split.out, split.mesh, place, feed
        self.values: dict[int, Held] = {}
        self.meter, self.start, self.kept = meter, start, kept

    def run(self) -> Generator[Message, Any, Numeric]:
        """Run all steps, and return the part of the result that this rank holds."""
        yield from self.fetch()
        lasts = last_reads(self.steps, self.out)
        for at, step in enumerate(self.steps):
            room = 0
            if step.op == "move":
                self.values[at] = yield self.message(at, step)
            elif step.op in WAITING:
                self.values[at], room = yield from getattr(self, step.op)(at, step)
            elif step.op == "among":
                self.values[at], room = self.among(step)
            else:
                self.values[at] = getattr(self, step.op)(step, *self.operands(step))
            held = sum(map(count_held, self.values.values())) + room
            self.meter.peak = max(self.meter.peak, held)
            for done in [v for v in self.values if lasts[v] <= at]:
                del self.values[done]
        result = self.values[self.out]
        assert isinstance(result, np.ndarray)
        return result

    def fetch(self) -> Generator[Message, Any, None]:
        """Store the local numbers of all matrices, each array once. If an axis stores weights once, a rank stores a
        piece of each and gathers the rest. Weights on the host are fetched."""
        arrays, large, of_experts = self.local_arrays()
        flat, levels = [arrays[key].array.ravel() for key in large], list[WeightPieces]()
        whole = sum(map(len, flat))
        for k, axis in reversed([*enumerate(self.mesh.axes)]):
            if axis.strategy.stored > 2 and large:
                levels.append(WeightPieces(k, int(axis.ranks), self.place[k], tuple(map(len, flat))))
                flat = levels[-1].cut(flat)
        pieces = dict(zip(large, map(len, flat), strict=True))
        self.count_weights(pieces, {key: arrays[key].array.size for key in of_experts}, whole, bool(levels))
        for level in reversed(levels):
            vector, cut = np.concatenate([*flat, np.zeros(0)]), Cut("batch", sum(level.sizes))
            came = yield Message("all_gather", level.axis, (vector,), 99_999 - level.axis, cut=cut)
            flat = level.join(came)
        for key, numbers in zip(large, flat, strict=True):
            arrays[key] = Data.of(numbers.reshape(arrays[key].shape))
        self.kept.update(arrays)

    def local_arrays(self) -> tuple[dict[StoredKey, Data], list[StoredKey], list[StoredKey]]:
        """Return the local numbers of all arrays by key, and the keys of those of more than one number: of all ranks,
        and of experts."""
        arrays: dict[StoredKey, Data] = {}
        large, of_experts = list[StoredKey](), list[StoredKey]()
        for key, data, _ in stored_arrays(self.steps):
            if key in arrays:
                continue
            arrays[key] = self.own(data.base or data, key[1])
            if stored_dims(data).numbers != 1:
                (of_experts if self.by_expert(key[1]) else large).append(key)
        return arrays, large, of_experts

    def count_weights(
        self, pieces: dict[StoredKey, int], of_experts: dict[StoredKey, int], whole: int, gathers: bool
    ) -> None:
        """Count the numbers of weights that a rank stores, takes from the host, and holds once they are whole."""
        stored, offloaded = pieces | of_experts, self.mesh.offload > 2
        self.meter.stored += sum(count for key, count in stored.items() if key not in self.kept)
        if offloaded:
            whole += sum(of_experts.values())
            fetched = sum(stored.values())
            if fetched:
                self.meter.sent(("fetch", HOST), fetched, fetched, 1)
        if gathers or offloaded:
            self.meter.gathered = max(self.meter.gathered, whole)

    def own(self, data: Data, stored: Placement) -> Data:
        """Return the part of an array that a rank stores."""
        return sliced_at(data, found_at(stored_dims(data), stored, self.mesh, self.place))

    def worked(self, flops: int) -> None:
        """Count operations."""
        self.meter.flops += flops

    def exchanged(
        self, at: int, axis: int, arrays: ByExpert, op: str = "exchange", among: tuple[int, ...] = ()
    ) -> Generator[Message, Any, ByExpert]:
        """Hand arrays to other ranks of an axis, and return those that arrive."""
        return (yield Message(op, axis, arrays, at, among=among))  # type: ignore[no-any-return]

    def array(self, at: int) -> Numeric:
        """Return the value of a step, which must be an array."""
        held = self.values[at]
        assert isinstance(held, np.ndarray)
        return held

    # Inputs of the batch.

    def window(self, dims: Dims, placement: Placement) -> tuple[slice, ...]:
        """Return the ranges of a value's dimensions that this rank has."""
        return window(dims, found_at(dims, placement, self.mesh, self.place))

    def selecting(self, step: RankStep, ids: Numeric) -> OneHot:
        """Select this rank's rows of ids as one-hot rows of its columns. Raises InputError for an id outside the
        columns."""
        batch, _, rows, cols = self.window(step.dims, step.placement)
        if wrong := [number for number in (ids.min(initial=0), ids.max(initial=0)) if not 0 <= number < step.dims.cols]:
            raise InputError(
                f"batch: id {wrong[0]} of {step.more[0] if step.op == 'given' else 'tokens'} is outside "
                f"0..{int(step.dims.cols) - 1}"
            )
        return OneHot(ids[batch, rows], cols.start, cols.stop)

    def input(self, step: RankStep) -> Held:
        """Return the rank's part of x: the value handed to its stage, one-hot ids, or rows of numbers."""
        if self.start is not None:
            return self.start
        if step.selects:
            return self.selecting(step, self.feed.x)
        return self.feed.x[:, None][self.window(step.dims, step.placement)]

    def given(self, step: RankStep) -> Held:
        """Select this rank's rows of a field of the batch."""
        return self.selecting(step, self.feed.ids(step.more[0]))

    def by_distance(self, step: RankStep) -> Held:
        """Read the rank's part of a table at the clipped distances of its rows and columns."""
        batch, heads, rows, cols = self.window(step.dims, step.placement)
        table, most = step.more
        apart = np.arange(cols.start, cols.stop) - np.arange(rows.start, rows.stop)[:, None]
        numbers = table.array[heads][:, np.clip(apart, -most, most) + most]
        return np.repeat(numbers[None], batch.stop - batch.start, 0)

    def entered(self, step: RankStep) -> Held:
        """Return the rank's part of an input of the batch."""
        return self.feed.inputs[step.more[0].name][None][self.window(step.dims, step.placement)]

    def related(self, step: RankStep) -> Held:
        """Return the rank's entries of a relation."""
        _, _, rows, cols = self.window(step.dims, step.placement)
        whole = self.relation(step.more[0], step.dims)
        return part_of_relation(whole, (rows.start, rows.stop), (cols.start, cols.stop))

    def relation(self, relation: Relation, dims: Dims) -> Sparse:
        """Return all of a relation: every rank knows it."""
        return self.feed.relation(relation, (int(dims.rows), int(dims.cols)))

    def operands(self, step: RankStep) -> list[Held]:
        """Return the operands of a step; a relation becomes a matrix unless it is the left operand of a product."""
        values = [self.values[a] for a in step.args]
        for place, (at, held) in enumerate(zip(step.args, values, strict=True)):
            if isinstance(held, Sparse) and (step.op != "product" or place):
                batch, _, _, cols = self.window(self.steps[at].dims, self.steps[at].placement)
                values[place] = np.repeat(dense_window(held, cols)[None, None], batch.stop - batch.start, 0)
        return values

    def rows_held(self, at: int) -> HeldRows:
        """Return the numbers of the rows of a whole value that this rank has."""
        step = self.steps[at]
        for k, state in step.placement.cuts:
            if isinstance(state, Needed):
                return named_rows(self.feed.sparse[state.relation.name], int(self.mesh.axes[k].ranks), self.place[k])
        rows = self.window(step.dims, step.placement)[2]
        return np.arange(rows.start, rows.stop)

    # Computation.

    def narrowed(self, step: RankStep) -> Operator:
        """Return the matrix of a step with the numbers that this rank stores."""
        matrix: Operator = step.more[0]
        if not any(isinstance(a, Data) for a in matrix.args):
            return matrix

        def own(data: Data) -> Data:
            """Return the rank's part of an array, turned if the matrix uses its transpose."""
            stored = self.kept[stored_key(data, step.stored)]
            return stored if data.base is None else stored.T

        local: Operator = matrix.kind(*(own(a) if isinstance(a, Data) else a for a in matrix.args))
        return local

    def act(self, step: RankStep, x: Held | None = None) -> Held:
        """Apply the rank's part of a matrix, to ids by choosing rows, and count the operations; a constant gives its
        row. A partial result stays a carrier if only a carrier can be merged."""
        matrix = self.narrowed(step)
        if x is None:
            return np.atleast_2d(matrix.args[0].array)[None, None, -1:].astype(np.float64)
        if isinstance(x, OneHot):
            return self.chosen(matrix, x)
        assert isinstance(x, np.ndarray)
        partial = next(
            (
                s
                for k, s in step.placement.cuts
                if isinstance(s, Partial) and not isinstance(self.steps[step.args[0]].placement.on(k), Partial)
            ),
            None,
        )
        if partial is not None and not partial.over.plain():
            return self.carrier(matrix, x)
        result = DenseReading(x).act(matrix).array
        if contracts(matrix):
            self.meter.flops += 2 * result.size * x.shape[-1]
        return np.asarray(result)

    def chosen(self, matrix: Operator, x: OneHot) -> Held:
        """Return rows of a table, with zeros for rows of other ranks."""
        table = matrix.args[0].array
        inside = (x.ids >= x.lo) & (x.ids < x.hi)
        rows = table[np.where(inside, x.ids - x.lo, 0)] * inside[..., None]
        return np.asarray(rows[:, None], np.float64)

    def carrier(self, matrix: Operator, x: Numeric) -> Carriers:
        """Return the carrier of a matrix over a monoid, from the local columns."""
        a, over = reduced(matrix)
        return carried(over, x, DenseReading(np.eye(x.shape[-1])).act(a).array)

    def add(self, step: RankStep, u: Numeric, v: Numeric) -> Held:
        """Add the operands' parts, entry by entry."""
        return u + v

    def mul(self, step: RankStep, u: Numeric | OneHot, v: Numeric | OneHot) -> Held:
        """Multiply the operands' parts, entry by entry; of one-hot ids their 0 and 1."""
        one, other = (operand.rows if isinstance(operand, OneHot) else operand for operand in (u, v))
        return one * other

    def keep_top(self, step: RankStep, s: Numeric, by: Numeric) -> Held:
        """Keep the k largest of each row by other numbers, zero the rest."""
        return keep_taken(np.broadcast_to(s, by.shape), by, largest(by, *step.more))

    def scan(self, step: RankStep, u: Numeric, v: Numeric) -> Held:
        """Merge the rows of each sequence with those before them."""
        over, where = step.more
        return merge_rows(over, where, u, v)

    def delta_rule(self, step: RankStep, *operands: Numeric) -> Held:
        """Pass the rows of each sequence through a state that each corrects."""
        result, flops = correct_states(*operands)
        self.meter.flops += flops
        return result

    def turn(self, step: RankStep, x: Numeric) -> Held:
        """Exchange rows and columns."""
        return x.swapaxes(-1, -2)

    def beside(self, step: RankStep, u: Numeric, v: Numeric) -> Held:
        """Put columns side by side, spread over sequences, heads and rows."""
        shape = np.broadcast_shapes(u.shape[:-1], v.shape[:-1])
        return np.concatenate([np.broadcast_to(operand, (*shape, operand.shape[-1])) for operand in (u, v)], -1)

    def span(self, step: RankStep, role: Role) -> Bounds:
        """Return the range of a dimension of a value that this rank has."""
        part = self.window(step.dims, step.placement)[ROLES.index(role)]
        return part.start, part.stop

    def heads(self, step: RankStep) -> int:
        """Return the number of heads of a step's value on this rank."""
        return len(range(*self.span(step, "heads")))

    def split(self, step: RankStep, x: Numeric) -> Held:
        """Divide columns into the rank's heads: (b, 1, s, c) to (b, h, s, c / h)."""
        b, _, s, c = x.shape
        h = self.heads(step)
        return x.reshape(b, s, h, c // h).swapaxes(1, 2)

    def join(self, step: RankStep, x: Numeric) -> Held:
        """Put the rank's heads side by side: (b, h, s, c) to (b, 1, s, h c)."""
        b, h, s, c = x.shape
        return x.swapaxes(1, 2).reshape(b, 1, s, h * c)

    def repeat(self, step: RankStep, x: Numeric) -> Held:
        """Copy each head as often as the rank's part of the result needs."""
        return np.repeat(x, self.heads(step) // x.shape[1], 1)

    def total(self, step: RankStep, x: Numeric) -> Held:
        """Sum over the rank's heads."""
        return np.asarray(x.sum(1, keepdims=True))

    def slice(self, step: RankStep, x: Numeric | Carriers) -> Held:
        """Cut the rank's piece out of a value that it has whole."""
        k, state = step.more
        return each_of(
            x,
            lambda each: cut_piece(
                each, state, unit_size(step.dims, state), int(self.mesh.axes[k].ranks), self.place[k]
            ),
        )

    def pick(self, step: RankStep, x: Numeric) -> Held:
        """Pick the rows of the relation that this rank has, zeros for rows of other ranks."""
        relation, rows = step.more[0], self.window(step.dims, step.placement)[2]
        whole = self.relation(relation, Dims(rows=step.dims.rows, cols=self.steps[step.args[0]].dims.rows))
        return pick_held(x, self.rows_held(step.args[0]), whole.single()[rows])

    def shift(self, step: RankStep, x: Numeric) -> Held:
        """Shift the rows of each sequence, of which the rank has all rows."""
        return rows_before(x, *step.more)

    def backwards(self, step: RankStep, x: Numeric) -> Held:
        """Turn the rows of each sequence round, of which the rank has all rows."""
        return x[..., ::-1, :]

    def related_product(self, step: RankStep, u: Sparse, v: Numeric | OneHot) -> Held:
        """Return the product of the local entries with the rows that they name."""
        over, x = step.more[0], v.rows if isinstance(v, OneHot) else v
        carrier, flops = merge_entries(over, u, u.numbers, x, self.rows_held(step.args[1]))
        self.meter.flops += flops
        if any(isinstance(s, Partial) for _, s in step.placement.cuts):
            return carrier[0] if over.plain() else carrier
        return np.asarray(over.finished(carrier, (*x.shape[:-2], len(u.starts) - 1, x.shape[-1])), np.float64)

    def among(self, step: RankStep) -> tuple[Numeric, int]:
        """Return attention between the rows of entries, and the number of their scores, which are held beside the
        result."""
        (q, keys, values), entries = (self.array(a) for a in step.args[:3]), self.values[step.args[3]]
        assert isinstance(entries, Sparse)
        _, body, over, _ = step.more
        rows = np.repeat(np.arange(len(entries.starts) - 1), np.diff(entries.starts))
        z = (q[..., rows, :] * keys[..., locate(self.rows_held(step.args[1]), entries.at), :]).sum(-1)[..., None, :]
        self.meter.flops += 2 * z.size * q.shape[-1]
        z = self.through(body, z)
        carrier, flops = merge_entries(over, entries, z[..., 0, :], values, self.rows_held(step.args[2]))
        self.meter.flops += flops
        shape = (*carrier[0].shape[:-1], values.shape[-1])
        return np.asarray(over.finished(carrier, shape), np.float64), z.size

    def through(self, body: Sequence[tuple[str, int | Operator]], z: Numeric) -> Numeric:
        """Apply the operations of the body to scores."""
        for op, other in body:
            if isinstance(other, Operator):
                z = DenseReading(z).act(other).array
            else:
                z = z + self.array(other) if op == "add" else z * self.array(other)
        return z

    def product(self, step: RankStep, u: Numeric | Sparse, v: Numeric) -> Held:
        """Multiply the operands' parts over a monoid under a pattern, and count the operations. A partial result stays
        a carrier if only a carrier can be merged."""
        over, where = step.more
        if isinstance(u, Sparse):
            return self.related_product(step, u, v)
        partial = next((s for k, s in step.placement.cuts if isinstance(s, Partial)), None)
        rows = int(np.prod(np.broadcast_shapes(u.shape[:-1], (*v.shape[:-2], 1))))
        self.meter.flops += 2 * rows * u.shape[-1] * v.shape[-1]
        seen = None if where.name == "everyone" else self.seen(where, self.steps[step.args[0]])
        if partial is not None and not partial.over.plain():
            return carried(over, u, v, seen)
        return np.asarray(over.product_of_seen(u, v, seen), np.float64)

    def seen(self, where: Pattern, scores: RankStep) -> Numeric:
        """Return which local columns of scores their rows see."""
        _, _, rows, cols = self.window(scores.dims, scores.placement)
        if where.relation is None:
            return visibility(where, np.arange(rows.start, rows.stop), np.arange(cols.start, cols.stop))
        whole = self.relation(where.relation, scores.dims)
        part = part_of_relation(whole, (rows.start, rows.stop), (cols.start, cols.stop))
        return part.there()[:, cols]

    # Communication.

    def message(self, at: int, step: RankStep) -> Message:
        """Return the message of a communication step: the held value, its placement and the wanted one."""
        k, current, state = step.more
        held = self.values[step.args[0]]
        if isinstance(state, Needed):
            return Message("halo", k, self.halo(step, state), at)
        arrays = held if isinstance(held, tuple) and not isinstance(held, OneHot) else (held,)
        dims = self.steps[step.args[0]].dims
        return Message(
            step.why,
            k,
            arrays,  # type: ignore[arg-type]
            at,
            current.over if isinstance(current, Partial) else None,
            current if isinstance(current, Cut) else None,
            state,
            unit_size(dims, state) if state is not None else 1,
            int(current.units) if isinstance(current, Cut) else 0,
            any(isinstance(s, Partial) and not s.over.plain() for _, s in step.placement.cuts),
        )

    def halo(self, step: RankStep, state: Needed) -> Carriers:
        """Return the local rows that each rank of the axis names."""
        k, x, held = step.more[0], self.array(step.args[0]), self.rows_held(step.args[0])
        n, whole = int(self.mesh.axes[k].ranks), self.feed.sparse[state.relation.name]
        return tuple(pick_held(x, held, own_rows(whole, n, q, self.place[k])) for q in range(n))

    def ring(self, at: int, step: RankStep) -> Generator[Message, Any, tuple[Numeric, int]]:
        """Run a ring: blocks come from the left and go on to the right, and each block that is seen is merged into the
        carrier."""
        k, body, over, where = step.more
        q, keys, values = (self.array(a) for a in step.args[:3])
        sources = [*dict.fromkeys(step.args[3:5])]
        n, r = int(self.mesh.axes[k].ranks), self.place[k]
        cut = self.steps[step.args[0]].placement.on(k)
        assert isinstance(cut, Cut)
        seen = seen_blocks(where, int(cut.units), n)
        carrier, room, block = over.unit(), 0, tuple(self.array(a) for a in sources)
        for d in range(n):
            j = (r - d) % n
            if d:
                hands = block if (j + 1) % n in sent_blocks(seen, r) else ()
                block = yield Message("send", k, hands, at)
            if not seen[r][j]:
                continue
            if d:
                keys, values = (self.rewound(step, a, dict(zip(sources, block, strict=True))) for a in (1, 2))
            z = q @ keys
            self.meter.flops += 2 * z.size * (q.shape[-1] + values.shape[-1])
            z = self.through(body, z)
            near = visibility(where, np.arange(*bounds(int(cut.units), n, r)), np.arange(*bounds(int(cut.units), n, j)))
            carrier = over.merged(carrier, carried(over, z, values, near))
            came = sum(map(count_held, block)) if d else 0
            room = max(room, came + z.size)
        shape = (*q.shape[:-1], values.shape[-1])
        return np.asarray(over.finished(carrier, shape), np.float64), room + sum(map(count_held, carrier))

    def rewound(self, step: RankStep, which: int, came: dict[int, Numeric]) -> Numeric:
        """Return keys or values of a block from the block that came: repeat heads and transpose again."""
        source, path, at = step.args[2 + which], [], step.args[which]
        while at != source:
            path.append(self.steps[at])
            at = self.steps[at].args[0]
        value = came[source]
        for later in reversed(path):
            value = getattr(self, later.op)(later, value)
        return value


def carried(over: type[Monoid], left: Numeric, right: Numeric, seen: Numeric | None = None) -> Carriers:
    """Return the carrier of a product over a monoid before it is finished. Components that depend on the left operand
    alone have one column."""
    rows, cols = (*np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), left.shape[-2]), right.shape[-1]
    total = tuple(np.full((*rows, width), unit) for unit, width in zip(over.unit(), widths(over, cols), strict=True))
    for i in range(left.shape[-1]):
        part = over.lifted(left[..., i, None], right[..., i, None, :], i)
        if seen is not None:
            part = over.masked(part, seen[..., i, None])
        total = over.merged(total, part)
    return tuple(np.asarray(component, np.float64) for component in total)
