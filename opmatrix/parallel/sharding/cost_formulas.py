"""What steps cost, as formulas: operations, what crosses, what is stored and what is held at most. They are exact for
any cut: `Piece` (opmatrix/parallel/sharding/axis_states.py) is what a rank holds."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any, Literal, NamedTuple, TypeAlias

import sympy

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch_sizes import Dims
from opmatrix.algebra.batch.mixtures import contracts
from opmatrix.algebra.data import Data
from opmatrix.algebra.shapes import LiveSize
from opmatrix.parallel.sharding.axis_states import AxisState, Cut, Largest, Needed, Partial, carried_columns, piece
from opmatrix.parallel.sharding.block_mask import seen_blocks, sees_all, sent_blocks
from opmatrix.parallel.sharding.haloed import HALO_ROWS, HeldEntries, Receivers, SentRows
from opmatrix.parallel.sharding.mesh import Axis, Mesh
from opmatrix.parallel.sharding.moe_dispatch import ASKED
from opmatrix.parallel.sharding.moe_rows import AskedRows
from opmatrix.parallel.sharding.placement import Placement, local
from opmatrix.parallel.sharding.redistribute import TURNED_ROLES, RankStep, last_reads

CROSSED = "payload", "wire", "messages"                     # what of a crossing is a formula, and is counted
PAIR = 2                                                    # ranks that merge all that both have
RENAMED = ("kept",)                                         # steps whose value is the one that they read


class Crossing(NamedTuple):
    """What one rank sends of an operation on an axis, in numbers or in bytes: `payload` is what it hands over, `wire`
    what leaves it, `whole` the value that its group makes of them. `messages` are those of a ring, `supersteps` the
    times that all wait for each other. `of`: values of a step, stored weights, or what a stage hands on."""
    op: str
    axis: str
    payload: sympy.Expr
    wire: sympy.Expr
    whole: sympy.Expr
    messages: sympy.Expr
    supersteps: sympy.Expr
    of: Literal["values", "weights", "stage"] = "values"

    @property
    def name(self) -> str: return f"{self.op} over {self.axis}"


NONE = sympy.Integer(0)
StoredKey: TypeAlias = tuple[str, Placement]                # of an array, and how it lies


class ByRank(sympy.Function):                               # type: ignore[misc]
    """One of several expressions, by the coordinate of a rank."""
    @classmethod
    def eval(cls, r: Any, *each: Any) -> Any:
        if len({*each}) == 1: return each[0]
        return each[int(r)] if r.is_Integer else None


def on_rank(axis: Axis, e: LiveSize, r: LiveSize) -> sympy.Expr:
    """An expression for another coordinate of an axis."""
    return sympy.sympify(e).xreplace({axis.at: sympy.sympify(r)})


class Booked:
    """The formulas of steps on a mesh."""
    def __init__(self, steps: Sequence[RankStep], mesh: Mesh, out: int) -> None:
        self.steps, self.mesh, self.out = steps, mesh, out
        self.held_dims = [local(step.dims, step.placement, mesh) for step in steps]
        self.asked = AskedRows(steps, self.held_dims, mesh, ByRank)

    def numbers(self, at: int) -> sympy.Expr:
        """Numbers that a rank holds of a value: of one-hot rows a number each, of a part the carrier."""
        step, dims = self.steps[at], self.held_dims[at]
        if step.selects: return sympy.sympify(dims.batch * dims.rows)
        if step.op == "related": return dims.rows + 1 + 2 * self.entries(at)
        if step.op in ASKED and self.asked.ragged(at): return self.asked.numbers(at)
        return sympy.sympify(self.carrier(step.placement, dims).numbers)

    def entries(self, at: int) -> sympy.Expr:
        """Entries that a rank holds of a relation, of one sequence where it is within sequences. By rows it is held as
        where each row begins, and a column and a number an entry."""
        step, dims = self.steps[at], self.held_dims[at]
        if step.more[0].pooled: return sympy.sympify(dims.rows * dims.cols)
        return HeldEntries.at(step.more[0], *((state.role, self.mesh.axes[k].ranks, self.mesh.axes[k].at)
                                              for k, state in step.placement.cuts
                                              if isinstance(state, Cut) and state.role in ("rows", "cols")))

    @staticmethod
    def carrier(placement: Placement, dims: Dims) -> Dims:
        merging = dict.fromkeys(state.over for _, state in placement.cuts if isinstance(state, Partial))
        for over in merging: dims = dims._replace(cols=carried_columns(over, dims.cols))
        return dims

    def flops(self, at: int) -> sympy.Expr:
        """Multiplications and additions of the products of a step."""
        step = self.steps[at]
        if step.op == "ring": return self.ring_flops(at)
        if step.op == "answer": return self.asked.flops(at)
        if step.op == "among": return self.entry_scores(at) * 2 * self.entry_columns(at)
        if not step.args or step.op not in ("act", "product"): return NONE
        x, own = self.held_dims[step.args[0]], self.held_dims[at]
        if step.op == "act" and (self.steps[step.args[0]].selects or not contracts(step.more[0])): return NONE
        cols = own.cols if step.op == "act" else self.held_dims[step.args[1]].cols
        if self.steps[step.args[0]].op == "related":
            return sympy.sympify(2 * own.batch * own.heads * self.entries(step.args[0]) * cols)
        return sympy.sympify(2 * own.batch * own.heads * own.rows * x.cols * cols)

    def entry_scores(self, at: int) -> sympy.Expr:
        """The scores of the entries that a rank has, of all heads."""
        q, k, _, entries = self.steps[at].args[:4]
        heads = self.held_dims[q if self.steps[q].dims.heads != 1 else k].heads
        return sympy.sympify(self.held_dims[at].batch * heads) * self.entries(entries)

    def entry_columns(self, at: int) -> sympy.Expr:
        """Columns of queries and of values, which each entry multiplies."""
        return sympy.sympify(sum(self.held_dims[a].cols for a in (self.steps[at].args[0], self.steps[at].args[2])))

    def ring_flops(self, at: int) -> sympy.Expr:
        step = self.steps[at]
        q, v = (self.held_dims[a] for a in (step.args[0], step.args[2]))
        return sympy.sympify(2 * q.batch * q.heads * q.rows * (q.cols + v.cols)) * self.keys_seen(at)

    def keys_seen(self, at: int) -> sympy.Expr:
        """Keys of the blocks that a rank sees."""
        axis, where, whole = self.ring_of(self.steps[at])
        if not isinstance(axis.ranks, int): return sympy.sympify(self.all_seen(axis, where, whole))
        seen = seen_blocks(where, whole, axis.ranks)
        return ByRank(axis.at, *(add_up(piece(whole, len(seen), j) for j, sees in enumerate(row) if sees)
                                 for row in seen))

    def ring_of(self, step: RankStep) -> tuple[Axis, Any, LiveSize]:
        """The axis of a ring, its pattern and the keys that go round in it."""
        cut = self.steps[step.args[0]].placement.on(step.more[0])
        assert isinstance(cut, Cut)
        return self.mesh.axes[step.more[0]], step.where, cut.units

    @staticmethod
    def all_seen(axis: Axis, where: Any, whole: LiveSize) -> LiveSize:
        """All keys. Raises InputError where ranks are a symbol and a rank does not see all."""
        if sees_all(where): return whole
        raise InputError(f"partition: a ring of {axis.ranks} ranks under {where} sends what each of them sees: give "
                         f"the ranks of {axis.name} as a number")

    def crossing(self, at: int) -> Crossing | None:
        """What a step sends; None for one that stays."""
        step = self.steps[at]
        if step.op == "ring": return self.ring_crossing(at)
        if step.op in ASKED: return self.rows_crossing(at)
        if step.op != "move": return None
        k, _, state = step.more
        axis, n = self.mesh.axes[k], sympy.sympify(self.mesh.axes[k].ranks)
        before = self.steps[step.args[0]]
        handed = sympy.sympify(self.carrier(before.placement, self.held_dims[step.args[0]]).numbers)
        if isinstance(state, Needed): return self.halo_crossing(at, axis, state)
        kept = self.stays(before, k, state)
        match step.why:
            case "all_gather":
                whole = self.numbers(at)
                return Crossing("all_gather", axis.name, handed, whole - handed, whole, n - 1, sympy.Integer(1))
            case "all_reduce":
                return all_reduced(axis.name, handed, piece(handed, axis.ranks, axis.at), n)
            case "reduce_scatter":
                return Crossing("reduce_scatter", axis.name, handed, handed - kept, handed, n - 1, sympy.Integer(1))
        return Crossing("all_to_all", axis.name, handed, handed - kept, handed, n - 1, sympy.Integer(1))

    def rows_crossing(self, at: int) -> Crossing | None:
        """Rows to nodes or to the experts that they ask, or answers to who asked."""
        found, axis = self.asked.exchanged(at), self.mesh.experts
        if found is None or axis is None: return None
        op = "visit" if self.steps[at].op in ("visit", "leave") else "all_to_all"
        return Crossing(op, axis.name, *found, self.asked.meeting(at) - 1, sympy.Integer(1))

    def halo_crossing(self, at: int, axis: Axis, state: Needed) -> Crossing:
        """To each rank the rows that its entries name, and to none where they name none."""
        dims = self.held_dims[self.steps[at].args[0]]
        slicing = HALO_ROWS, axis.ranks, axis.at
        sent = SentRows.at(state.relation, slicing) * dims.batch * dims.heads * dims.cols
        return Crossing("halo", axis.name, sent, sent, sympy.sympify(self.held_dims[at].numbers),
                        Receivers.at(state.relation, slicing), sympy.Integer(1))

    def stays(self, step: RankStep, k: int, state: AxisState) -> sympy.Expr:
        """Numbers of what a rank hands over that it keeps."""
        if not isinstance(state, Cut): return NONE
        dims = local(step.dims, Placement((*step.placement.cuts, (k, state))), self.mesh)
        return sympy.sympify(self.carrier(step.placement, dims).numbers)

    def ring_crossing(self, at: int) -> Crossing:
        """Keys and values of a block, as they were before heads were repeated, go on as long as somebody sees them."""
        axis, where, whole = self.ring_of(self.steps[at])
        block, n = self.block(at), axis.ranks
        every = block.xreplace({sympy.sympify(piece(whole, n, axis.at)): sympy.sympify(whole)})
        if isinstance(n, int):
            hops = [sent_blocks(seen_blocks(where, whole, n), r) for r in range(n)]
            sent = ByRank(axis.at, *(add_up(on_rank(axis, block, j) for j in js) for js in hops))
            messages = ByRank(axis.at, *(sympy.Integer(len(js)) for js in hops))
        else:
            self.all_seen(axis, where, whole)
            sent, messages = every - block, sympy.sympify(n) - 1
        return Crossing("send", axis.name, sent, sent, every, messages, sympy.sympify(n) - 1)

    def block(self, at: int) -> sympy.Expr:
        """Numbers of the keys and values that a rank begins with."""
        return add_up(self.numbers(a) for a in {*self.steps[at].args[3:5]})

    def crossings(self) -> Iterator[Crossing]:
        return (found for at in range(len(self.steps)) if (found := self.crossing(at)) is not None)

    def stored(self) -> dict[StoredKey, tuple[Data, Dims]]:
        """What a rank stores of each array, once however often it is read, and turned or not; single numbers are
        none."""
        found: dict[StoredKey, tuple[Data, Dims]] = {}
        for key, data, step in stored_arrays(self.steps):
            if (dims := stored_dims(data)).numbers != 1: found[key] = data, local(dims, step.stored, self.mesh)
        return found

    def held(self, to_end: Iterable[int] = ()) -> Iterator[sympy.Expr]:
        """Numbers that are held while each step runs: what is read later, what it reads, what it makes. `to_end`: steps
        beside the result whose values are held until all have run. What is kept is no copy of what was computed."""
        lasts, now = last_reads(self.steps, self.out, *to_end), NONE
        ending: dict[int, list[int]] = {}
        for at, last in enumerate(lasts): ending.setdefault(last, []).append(at)
        for at, step in enumerate(self.steps):
            over = ending.get(at, [])
            if step.op in RENAMED and step.args[0] in over: over.remove(step.args[0])
            else: now += self.numbers(at)
            yield now + (ROOM[step.op](self, at) if step.op in ROOM else 0)
            now -= add_up(map(self.numbers, over))

    def ring_room(self, at: int) -> sympy.Expr:
        """Beside its operands a ring holds a carrier, and the block that came with its scores."""
        step, block = self.steps[at], self.block(at)
        axis, where, whole = self.ring_of(step)
        q, v = (self.held_dims[a] for a in (step.args[0], step.args[2]))
        rows = sympy.sympify(q.batch * q.heads * q.rows)
        carrier = q._replace(cols=carried_columns(step.more[2], v.cols)).numbers
        if not isinstance(axis.ranks, int): return block + rows * piece(whole, axis.ranks, axis.at) + carrier
        seen, n = seen_blocks(where, whole, axis.ranks), axis.ranks
        return carrier + ByRank(axis.at, *(Largest(*(
            (on_rank(axis, block, j) if j != r else NONE) + rows * piece(whole, n, j)
            for j in range(n) if seen[r][j])) for r in range(n)))


def all_reduced(axis: str, numbers: sympy.Expr, own: sympy.Expr, ranks: LiveSize) -> Crossing:
    """A sum over ranks, of each of which one merges a piece, its `own`, and gives it to all. Two ranks give each other
    all at once, which is as much as two halves, and merge it both."""
    if ranks == PAIR: return Crossing("all_reduce", axis, numbers, numbers, numbers, sympy.Integer(1), sympy.Integer(1))
    return Crossing("all_reduce", axis, numbers, 2 * (numbers - own), numbers, 2 * (sympy.sympify(ranks) - 1),
                    sympy.Integer(2))


def asked_room(booked: Booked, at: int) -> sympy.Expr: return booked.asked.room(at)


ROOM = dict(ring=Booked.ring_room, among=Booked.entry_scores,          # what a step holds beside operands and value
            **dict.fromkeys(ASKED, asked_room))


def add_up(each: Iterable[LiveSize]) -> sympy.Expr: return sum(map(sympy.sympify, each), NONE)


def gathers(arrays: Sequence[LiveSize], axes: Iterable[Axis]) -> Iterator[Crossing]:
    """How arrays of so many numbers that axes store in pieces become whole on a rank, the nearest axis first."""
    for axis in axes if arrays else ():
        whole, arrays = add_up(arrays), [piece(each, axis.ranks, axis.at) for each in arrays]
        own = add_up(arrays)
        yield Crossing("all_gather", axis.name, own, whole - own, whole, sympy.sympify(axis.ranks) - 1,
                       sympy.Integer(1), "weights")


def stored_arrays(steps: Iterable[RankStep]) -> Iterator[tuple[StoredKey, Data, RankStep]]:
    """Every array that steps read, by what it is stored as, with the step, which may be one of an expert."""
    for step in steps:
        if step.op == "answer": yield from stored_arrays(step.more[0])
        for data in step.more[0].args if step.op == "act" else ():
            if isinstance(data, Data): yield stored_key(data, step.stored), data, step


def stored_key(data: Data, stored: Placement) -> StoredKey:
    """What is stored once: an array, however it is turned, and how it lies."""
    if data.base is None: return data.key, stored
    return data.base.key, stored.turned(TURNED_ROLES)


def stored_dims(data: Data) -> Dims:
    """Heads x rows x columns of an array of a model."""
    shape = (1, 1, 1, *data.shape)
    return Dims(1, prod(shape[:-2], start=1), shape[-2], shape[-1])
