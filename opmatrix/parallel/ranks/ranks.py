"""A rank: a generator that runs its steps in float64 and yields what crosses. It counts what it computes, hands over
and holds at the arrays themselves, so a formula is compared with what happened."""
from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

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
from opmatrix.parallel.ranks.related import HeldRows, dense_window, locate, merge_entries, pick_held
from opmatrix.parallel.sharding.axis_states import Cut, Needed, Partial, bounds, widths
from opmatrix.parallel.sharding.block_mask import seen_blocks, sent_blocks, visibility
from opmatrix.parallel.sharding.carrier_pieces import Carriers, cut_piece, each_of, unit_size
from opmatrix.parallel.sharding.cost_formulas import stored_arrays, stored_dims, stored_key
from opmatrix.parallel.sharding.feeds import Feed, OneHot, window
from opmatrix.parallel.sharding.haloed import named_rows, own_rows, part_of_relation
from opmatrix.parallel.sharding.mesh import HOST, Mesh
from opmatrix.parallel.sharding.moe_dispatch import ASKED
from opmatrix.parallel.sharding.placement import Coordinates, Placement, found_at
from opmatrix.parallel.sharding.redistribute import RankStep, last_reads

Held: TypeAlias = "Numeric | OneHot | Sparse | Carriers"


class Message(NamedTuple):
    """What a rank hands over on an axis, and waits for. `cut` is how it lies now, `then` how it shall; sizes of a unit
    of each. `unfinished`: other axes have parts of it, too, so what is merged is a carrier still. `among`: the ranks of
    the axis that take part, all where none are named."""
    op: str
    axis: int
    arrays: Carriers
    at: int
    over: type[Monoid] | None = None
    cut: Cut | None = None
    then: Cut | None = None
    unit: int = 1
    units: int = 0
    unfinished: bool = False
    among: tuple[int, ...] = ()

    @property
    def numbers(self) -> int: return sum(each.size for each in self.arrays)


@dataclass
class Meter:
    """What one rank did, in numbers; payload and wire by operation and axis."""
    flops: int = 0
    peak: int = 0
    stored: int = 0
    gathered: int = 0
    payload: dict[tuple[str, str], int] = field(default_factory=dict)
    wire: dict[tuple[str, str], int] = field(default_factory=dict)
    messages: dict[tuple[str, str], int] = field(default_factory=dict)

    def sent(self, key: tuple[str, str], payload: int, wire: int, messages: int) -> None:
        for table, more in ((self.payload, payload), (self.wire, wire), (self.messages, messages)):
            table[key] = table.get(key, 0) + more


def count_held(held: Held) -> int:
    """Numbers that are held."""
    if isinstance(held, OneHot): return held.ids.size
    if isinstance(held, Sparse): return held.starts.size + held.at.size + held.numbers.size
    return held.size if isinstance(held, np.ndarray) else sum(int(each.size) for each in held)


WAITING = "ring", *ASKED                                     # steps that yield what crosses while they run


class Rank(AskingRank):
    """The steps of a term at one place of a mesh."""
    def __init__(self, steps: Sequence[RankStep], out: int, mesh: Mesh, place: Coordinates, feed: Feed, meter: Meter,
                 start: Numeric | None, kept: dict[Any, Data]) -> None:
        self.steps, self.out, self.mesh, self.place, self.feed = steps, out, mesh, place, feed
        self.values: dict[int, Held] = {}
        self.meter, self.start, self.kept = meter, start, kept

    def run(self) -> Generator[Message, Any, Numeric]:
        """Runs all steps; the result is what this rank holds of it."""
        yield from self.fetch()
        lasts = last_reads(self.steps, self.out)
        for at, step in enumerate(self.steps):
            room = 0
            if step.op == "move": self.values[at] = yield self.message(at, step)
            elif step.op in WAITING: self.values[at], room = yield from getattr(self, step.op)(at, step)
            elif step.op == "among": self.values[at], room = self.among(step)
            else: self.values[at] = getattr(self, step.op)(step, *self.operands(step))
            held = sum(map(count_held, self.values.values())) + room
            self.meter.peak = max(self.meter.peak, held)
            for done in [v for v in self.values if lasts[v] <= at]: del self.values[done]
        found = self.values[self.out]
        assert isinstance(found, np.ndarray)
        return found

    def fetch(self) -> Generator[Message, Any, None]:
        """The numbers of all matrices, of which a rank stores what lies there, once; of weights that an axis stores
        once it stores a piece of each, and gathers the rest; what lies by the host it fetches."""
        found: dict[Any, Data] = {}
        large, apart = list[Any](), list[Any]()             # more than a number, however it is cut; of experts
        for key, each, _ in stored_arrays(self.steps):
            if key in found: continue
            found[key] = self.own(each.base or each, key[1])
            if stored_dims(each).numbers != 1: (apart if self.by_expert(key[1]) else large).append(key)
        flat, fresh = [found[key].array.ravel() for key in large], [key not in self.kept for key in large]
        whole = [*map(len, flat)]
        over = [k for k, axis in reversed([*enumerate(self.mesh.axes)]) if axis.strategy.stored > 2 and large]
        levels = []
        for k in over:
            levels.append([*map(len, flat)])
            flat = [each[slice(*bounds(len(each), int(self.mesh.axes[k].ranks), self.place[k]))] for each in flat]
        self.meter.stored += sum(len(each) for each, new in zip(flat, fresh, strict=True) if new)
        self.meter.stored += sum(found[key].array.size for key in apart if key not in self.kept)
        more = sum(found[key].array.size for key in apart) if self.mesh.offload > 2 else 0
        own = sum(map(len, flat)) + more
        if own and self.mesh.offload > 2: self.meter.sent(("fetch", HOST), own, own, 1)
        if over or self.mesh.offload > 2: self.meter.gathered = max(self.meter.gathered, sum(whole) + more)
        for k, sizes in zip(reversed(over), reversed(levels), strict=True):
            n = int(self.mesh.axes[k].ranks)
            came = yield Message("all_gather", k, (np.concatenate([*flat, np.zeros(0)]),), 99_999 - k,
                                 cut=Cut("batch", sum(sizes)))
            ends = np.cumsum([b - a for r in range(n) for a, b in (bounds(s, n, r) for s in sizes)])
            parts = iter(np.split(came, ends))
            by_rank = [[next(parts) for _ in sizes] for _ in range(n)]
            flat = [np.concatenate([ranks[at] for ranks in by_rank]) for at in range(len(sizes))]
        for key, numbers in zip(large, flat, strict=True): found[key] = Data.of(numbers.reshape(found[key].shape))
        self.kept.update(found)

    def own(self, data: Data, stored: Placement) -> Data:
        """What a rank stores of an array."""
        return sliced_at(data, found_at(stored_dims(data), stored, self.mesh, self.place))

    def worked(self, flops: int) -> None: self.meter.flops += flops
    def exchanged(self, at: int, axis: int, arrays: ByExpert, op: str = "exchange",
                  among: tuple[int, ...] = ()) -> Generator[Message, Any, ByExpert]:
        return (yield Message(op, axis, arrays, at, among=among))      # type: ignore[no-any-return]

    def array(self, at: int) -> Numeric:
        held = self.values[at]
        assert isinstance(held, np.ndarray)
        return held

    # What the batch gives.

    def window(self, dims: Dims, placement: Placement) -> tuple[slice, ...]:
        return window(dims, found_at(dims, placement, self.mesh, self.place))

    def selecting(self, step: RankStep, ids: Numeric) -> OneHot:
        batch, _, rows, cols = self.window(step.dims, step.placement)
        if wrong := [each for each in (ids.min(initial=0), ids.max(initial=0)) if not 0 <= each < step.dims.cols]:
            raise InputError(f"batch: id {wrong[0]} of {step.more[0] if step.op == 'given' else 'tokens'} is outside "
                             f"0..{int(step.dims.cols) - 1}")
        return OneHot(ids[batch, rows], cols.start, cols.stop)
    def input(self, step: RankStep) -> Held:
        if self.start is not None: return self.start
        if step.selects: return self.selecting(step, self.feed.x)
        return self.feed.x[:, None][self.window(step.dims, step.placement)]
    def given(self, step: RankStep) -> Held: return self.selecting(step, self.feed.ids(step.more[0]))
    def by_distance(self, step: RankStep) -> Held:
        batch, heads, rows, cols = self.window(step.dims, step.placement)
        table, most = step.more
        apart = np.arange(cols.start, cols.stop) - np.arange(rows.start, rows.stop)[:, None]
        found = table.array[heads][:, np.clip(apart, -most, most) + most]
        return np.repeat(found[None], batch.stop - batch.start, 0)
    def entered(self, step: RankStep) -> Held:
        return self.feed.inputs[step.more[0].name][None][self.window(step.dims, step.placement)]
    def related(self, step: RankStep) -> Held:
        _, _, rows, cols = self.window(step.dims, step.placement)
        whole = self.relation(step.more[0], step.dims)
        return part_of_relation(whole, (rows.start, rows.stop), (cols.start, cols.stop))
    def relation(self, relation: Relation, dims: Dims) -> Sparse:
        """All of a relation: every rank knows it."""
        return self.feed.relation(relation, (int(dims.rows), int(dims.cols)))

    def operands(self, step: RankStep) -> list[Held]:
        """The values that a step takes; a relation is a matrix wherever it is not the left of a product."""
        found = [self.values[a] for a in step.args]
        for place, (at, held) in enumerate(zip(step.args, found, strict=True)):
            if isinstance(held, Sparse) and (step.op != "product" or place):
                batch, _, _, cols = self.window(self.steps[at].dims, self.steps[at].placement)
                found[place] = np.repeat(dense_window(held, cols)[None, None], batch.stop - batch.start, 0)
        return found

    def rows_held(self, at: int) -> HeldRows:
        """Which rows of a whole value this rank has."""
        step = self.steps[at]
        for k, state in step.placement.cuts:
            if isinstance(state, Needed): return named_rows(
                self.feed.sparse[state.relation.name], int(self.mesh.axes[k].ranks), self.place[k])
        rows = self.window(step.dims, step.placement)[2]
        return np.arange(rows.start, rows.stop)

    # What is computed.

    def narrowed(self, step: RankStep) -> Operator:
        """The matrix of a step with the numbers that this rank stores."""
        matrix: Operator = step.more[0]
        if not any(isinstance(a, Data) for a in matrix.args): return matrix
        def own(data: Data) -> Data:
            kept = self.kept[stored_key(data, step.stored)]
            return kept if data.base is None else kept.T
        made: Operator = matrix.kind(*(own(a) if isinstance(a, Data) else a for a in matrix.args))
        return made

    def act(self, step: RankStep, x: Held | None = None) -> Held:
        matrix = self.narrowed(step)
        if x is None: return np.atleast_2d(matrix.args[0].array)[None, None, -1:].astype(np.float64)
        if isinstance(x, OneHot): return self.chosen(matrix, x)
        assert isinstance(x, np.ndarray)
        partial = next((s for k, s in step.placement.cuts if isinstance(s, Partial)
                        and not isinstance(self.steps[step.args[0]].placement.on(k), Partial)), None)
        if partial is not None and not partial.over.plain(): return self.carrier(matrix, x)
        found = DenseReading(x).act(matrix).array
        if contracts(matrix): self.meter.flops += 2 * found.size * x.shape[-1]
        return np.asarray(found)

    def chosen(self, matrix: Operator, x: OneHot) -> Held:
        """Rows of a table; zeros where other ranks have them."""
        table = matrix.args[0].array
        inside = (x.ids >= x.lo) & (x.ids < x.hi)
        rows = table[np.where(inside, x.ids - x.lo, 0)] * inside[..., None]
        return np.asarray(rows[:, None], np.float64)

    def carrier(self, matrix: Operator, x: Numeric) -> Carriers:
        """What a matrix over a monoid carries of the columns that are here."""
        a, over = reduced(matrix)
        return carried(over, x, DenseReading(np.eye(x.shape[-1])).act(a).array)

    def add(self, step: RankStep, u: Numeric, v: Numeric) -> Held: return u + v
    def mul(self, step: RankStep, u: Numeric | OneHot, v: Numeric | OneHot) -> Held:
        one, other = (each.rows if isinstance(each, OneHot) else each for each in (u, v))
        return one * other
    def keep_top(self, step: RankStep, s: Numeric, by: Numeric) -> Held:
        return keep_taken(np.broadcast_to(s, by.shape), by, largest(by, *step.more))
    def turn(self, step: RankStep, x: Numeric) -> Held: return x.swapaxes(-1, -2)
    def beside(self, step: RankStep, u: Numeric, v: Numeric) -> Held:
        shape = np.broadcast_shapes(u.shape[:-1], v.shape[:-1])
        return np.concatenate([np.broadcast_to(each, (*shape, each.shape[-1])) for each in (u, v)], -1)

    def span(self, step: RankStep, role: Role) -> Bounds:
        """From where to where this rank has a dimension of a value."""
        own = self.window(step.dims, step.placement)[ROLES.index(role)]
        return own.start, own.stop
    def heads(self, step: RankStep) -> int: return len(range(*self.span(step, "heads")))
    def split(self, step: RankStep, x: Numeric) -> Held:
        b, _, s, c = x.shape
        h = self.heads(step)
        return x.reshape(b, s, h, c // h).swapaxes(1, 2)
    def join(self, step: RankStep, x: Numeric) -> Held:
        b, h, s, c = x.shape
        return x.swapaxes(1, 2).reshape(b, 1, s, h * c)
    def repeat(self, step: RankStep, x: Numeric) -> Held:
        return np.repeat(x, self.heads(step) // x.shape[1], 1)
    def total(self, step: RankStep, x: Numeric) -> Held: return np.asarray(x.sum(1, keepdims=True))
    def slice(self, step: RankStep, x: Numeric | Carriers) -> Held:
        k, state = step.more
        return each_of(x, lambda each: cut_piece(each, state, unit_size(step.dims, state),
                                                 int(self.mesh.axes[k].ranks), self.place[k]))

    def pick(self, step: RankStep, x: Numeric) -> Held:
        relation, rows = step.more[0], self.window(step.dims, step.placement)[2]
        whole = self.relation(relation, Dims(rows=step.dims.rows, cols=self.steps[step.args[0]].dims.rows))
        return pick_held(x, self.rows_held(step.args[0]), whole.single()[rows])

    def related_product(self, step: RankStep, u: Sparse, v: Numeric | OneHot) -> Held:
        """A product of the entries that are here, with the rows that they name."""
        over, x = step.more[0], v.rows if isinstance(v, OneHot) else v
        carrier, flops = merge_entries(over, u, u.numbers, x, self.rows_held(step.args[1]))
        self.meter.flops += flops
        if any(isinstance(s, Partial) for _, s in step.placement.cuts): return carrier[0] if over.plain() else carrier
        return np.asarray(over.finished(carrier, (*x.shape[:-2], len(u.starts) - 1, x.shape[-1])), np.float64)

    def among(self, step: RankStep) -> tuple[Numeric, int]:
        """Attention between the rows of entries; beside what comes out, their scores are held."""
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
        """Scores behind what they go through."""
        for op, other in body:
            if isinstance(other, Operator): z = DenseReading(z).act(other).array
            else: z = z + self.array(other) if op == "add" else z * self.array(other)
        return z

    def product(self, step: RankStep, u: Numeric | Sparse, v: Numeric) -> Held:
        over, where = step.more
        if isinstance(u, Sparse): return self.related_product(step, u, v)
        partial = next((s for k, s in step.placement.cuts if isinstance(s, Partial)), None)
        rows = int(np.prod(np.broadcast_shapes(u.shape[:-1], (*v.shape[:-2], 1))))
        self.meter.flops += 2 * rows * u.shape[-1] * v.shape[-1]
        seen = None if where.name == "everyone" else self.seen(where, self.steps[step.args[0]])
        if partial is not None and not partial.over.plain(): return carried(over, u, v, seen)
        return np.asarray((over.closed or over.product)(u, v, seen), np.float64)

    def seen(self, where: Pattern, scores: RankStep) -> Numeric:
        """Which of the columns of scores that are here their rows see."""
        _, _, rows, cols = self.window(scores.dims, scores.placement)
        if where.relation is None: return visibility(where, np.arange(rows.start, rows.stop),
                                                     np.arange(cols.start, cols.stop))
        whole = self.relation(where.relation, scores.dims)
        own = part_of_relation(whole, (rows.start, rows.stop), (cols.start, cols.stop))
        return own.there()[:, cols]

    # What crosses.

    def message(self, at: int, step: RankStep) -> Message:
        k, own, state = step.more
        held = self.values[step.args[0]]
        if isinstance(state, Needed): return Message("halo", k, self.halo(step, state), at)
        arrays = held if isinstance(held, tuple) and not isinstance(held, OneHot) else (held,)
        dims = self.steps[step.args[0]].dims
        return Message(step.why, k, arrays, at, own.over if isinstance(own, Partial) else None,      # type: ignore[arg-type]
                       own if isinstance(own, Cut) else None, state,
                       unit_size(dims, state) if state is not None else 1,
                       int(own.units) if isinstance(own, Cut) else 0,
                       any(isinstance(s, Partial) and not s.over.plain() for _, s in step.placement.cuts))

    def halo(self, step: RankStep, state: Needed) -> Carriers:
        """The rows that each rank of the axis names, of those that are here."""
        k, x, held = step.more[0], self.array(step.args[0]), self.rows_held(step.args[0])
        n, whole = int(self.mesh.axes[k].ranks), self.feed.sparse[state.relation.name]
        return tuple(pick_held(x, held, own_rows(whole, n, q, self.place[k])) for q in range(n))

    def ring(self, at: int, step: RankStep) -> Generator[Message, Any, tuple[Numeric, int]]:
        """Blocks come from the left and go on to the right; each that is seen is merged into the carrier."""
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
            if not seen[r][j]: continue
            if d: keys, values = (self.rewound(step, a, dict(zip(sources, block, strict=True))) for a in (1, 2))
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
        """Keys or values of a block, from what came: heads repeated, turned."""
        source, path, at = step.args[2 + which], [], step.args[which]
        while at != source:
            path.append(self.steps[at])
            at = self.steps[at].args[0]
        found = came[source]
        for each in reversed(path): found = getattr(self, each.op)(each, found)
        return found


def carried(over: type[Monoid], left: Numeric, right: Numeric, seen: Numeric | None = None) -> Carriers:
    """What a product over a monoid carries before it is finished: the components that depend on the left alone have one
    column."""
    rows, cols = (*np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), left.shape[-2]), right.shape[-1]
    total = tuple(np.full((*rows, width), each) for each, width in zip(over.unit(), widths(over, cols), strict=True))
    for i in range(left.shape[-1]):
        part = over.lifted(left[..., i, None], right[..., i, None, :], i)
        if seen is not None: part = over.masked(part, seen[..., i, None])
        total = over.merged(total, part)
    return tuple(np.asarray(each, np.float64) for each in total)
