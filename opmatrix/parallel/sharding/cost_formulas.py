"""The costs of steps as formulas: operations, communication, stored numbers and the peak of held numbers. They are
exact for any sharding: `Piece` (opmatrix/parallel/sharding/axis_states.py) is the part that a rank holds."""

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

CROSSED = "payload", "wire", "messages"  # fields of a crossing that are formulas and are counted
PAIR = 2  # group of two ranks, which both merge the whole value
RENAMED = ("kept",)  # steps whose value is their operand itself


class Crossing(NamedTuple):
    """The communication of one rank in an operation on an axis, in numbers or in bytes."""

    op: str  # collective or transfer, such as all_gather
    axis: str  # name of the axis
    payload: sympy.Expr  # handed over by the rank
    wire: sympy.Expr  # leaves the rank
    whole: sympy.Expr  # value that its group makes of the payloads
    messages: sympy.Expr  # messages of a ring algorithm
    supersteps: sympy.Expr  # times that all ranks wait for each other
    of: Literal["values", "weights", "stage"] = "values"  # values of a step, stored weights, or a stage's output

    @property
    def name(self) -> str:
        """The operation and its axis, such as `all_gather over tp`."""
        return f"{self.op} over {self.axis}"


NONE = sympy.Integer(0)
StoredKey: TypeAlias = tuple[str, Placement]  # key of an array, and its placement


class ByRank(sympy.Function):  # type: ignore[misc]
    """One of several expressions, selected by the coordinate of a rank."""

    @classmethod
    def eval(cls, r: Any, *each: Any) -> Any:
        """Return the expression of a known coordinate, or the one that all share; else stay a choice."""
        if len({*each}) == 1:
            return each[0]
        return each[int(r)] if r.is_Integer else None


def on_rank(axis: Axis, e: LiveSize, r: LiveSize) -> sympy.Expr:
    """Return an expression for another coordinate of an axis."""
    return sympy.sympify(e).xreplace({axis.at: sympy.sympify(r)})


class Booked:
    """Formulas of the steps on a mesh."""

    def __init__(self, steps: Sequence[RankStep], mesh: Mesh, out: int) -> None:
        self.steps, self.mesh, self.out = steps, mesh, out
        self.held_dims = [local(step.dims, step.placement, mesh) for step in steps]
        self.asked = AskedRows(steps, self.held_dims, mesh, ByRank)

    def numbers(self, at: int) -> sympy.Expr:
        """Return the numbers that a rank holds of a value: one a row for one-hot rows, the carrier for a partial
        value."""
        step, dims = self.steps[at], self.held_dims[at]
        if step.selects:
            return sympy.sympify(dims.batch * dims.rows)
        if step.op == "related":
            return dims.rows + 1 + 2 * self.entries(at)
        if step.op in ASKED and self.asked.ragged(at):
            return self.asked.numbers(at)
        return sympy.sympify(self.carrier(step.placement, dims).numbers)

    def entries(self, at: int) -> sympy.Expr:
        """Return the entries that a rank holds of a relation (of one sequence if it is within sequences). They are
        stored by rows: the start of each row, and a column and a number for each entry."""
        step, dims = self.steps[at], self.held_dims[at]
        if step.more[0].pooled:
            return sympy.sympify(dims.rows * dims.cols)
        return HeldEntries.at(
            step.more[0],
            *(
                (state.role, self.mesh.axes[k].ranks, self.mesh.axes[k].at)
                for k, state in step.placement.cuts
                if isinstance(state, Cut) and state.role in ("rows", "cols")
            ),
        )

    @staticmethod
    def carrier(placement: Placement, dims: Dims) -> Dims:
        """Return the sizes of a value as a carrier: a partial sum may have more columns than the finished value."""
        merging = dict.fromkeys(state.over for _, state in placement.cuts if isinstance(state, Partial))
        for over in merging:
            dims = dims._replace(cols=carried_columns(over, dims.cols))
        return dims

    def flops(self, at: int) -> sympy.Expr:
        """Return the multiplications and additions of the products of a step."""
        step = self.steps[at]
        if step.op == "ring":
            return self.ring_flops(at)
        if step.op == "answer":
            return self.asked.flops(at)
        if step.op == "among":
            return self.entry_scores(at) * 2 * self.entry_columns(at)
        if step.op == "delta_rule":  # a key reads the state, a row adds to it, a query reads it
            result, d = self.held_dims[at], self.held_dims[step.args[0]].cols
            return sympy.sympify(6 * result.batch * result.heads * result.rows * result.cols * d)
        if not step.args or step.op not in ("act", "product"):
            return NONE
        x, result = self.held_dims[step.args[0]], self.held_dims[at]
        if step.op == "act" and (self.steps[step.args[0]].selects or not contracts(step.more[0])):
            return NONE
        cols = result.cols if step.op == "act" else self.held_dims[step.args[1]].cols
        if self.steps[step.args[0]].op == "related":
            return sympy.sympify(2 * result.batch * result.heads * self.entries(step.args[0]) * cols)
        return sympy.sympify(2 * result.batch * result.heads * result.rows * x.cols * cols)

    def entry_scores(self, at: int) -> sympy.Expr:
        """Return the number of scores of the entries that a rank has, over all heads."""
        q, k, _, entries = self.steps[at].args[:4]
        heads = self.held_dims[q if self.steps[q].dims.heads != 1 else k].heads
        return sympy.sympify(self.held_dims[at].batch * heads) * self.entries(entries)

    def entry_columns(self, at: int) -> sympy.Expr:
        """Return the columns of queries plus the columns of values, which each entry multiplies."""
        return sympy.sympify(sum(self.held_dims[a].cols for a in (self.steps[at].args[0], self.steps[at].args[2])))

    def ring_flops(self, at: int) -> sympy.Expr:
        """Return the operations of attention in a ring: each query with the keys of the blocks that it sees."""
        step = self.steps[at]
        q, v = (self.held_dims[a] for a in (step.args[0], step.args[2]))
        return sympy.sympify(2 * q.batch * q.heads * q.rows * (q.cols + v.cols)) * self.keys_seen(at)

    def keys_seen(self, at: int) -> sympy.Expr:
        """Return the number of keys in the blocks that a rank sees."""
        axis, where, whole = self.ring_of(self.steps[at])
        if not isinstance(axis.ranks, int):
            return sympy.sympify(self.all_seen(axis, where, whole))
        seen = seen_blocks(where, whole, axis.ranks)
        return ByRank(
            axis.at, *(add_up(piece(whole, len(seen), j) for j, sees in enumerate(row) if sees) for row in seen)
        )

    def ring_of(self, step: RankStep) -> tuple[Axis, Any, LiveSize]:
        """Return the axis of a ring, its pattern, and the number of keys that go round in it."""
        cut = self.steps[step.args[0]].placement.on(step.more[0])
        assert isinstance(cut, Cut)
        return self.mesh.axes[step.more[0]], step.where, cut.units

    @staticmethod
    def all_seen(axis: Axis, where: Any, whole: LiveSize) -> LiveSize:
        """Return the number of all keys. Raises InputError if ranks are a symbol and a rank does not see all keys."""
        if sees_all(where):
            return whole
        raise InputError(
            f"partition: a ring of {axis.ranks} ranks under {where} sends only blocks that the mask shows: give "
            f"the ranks of {axis.name} as a number"
        )

    def crossing(self, at: int) -> Crossing | None:
        """Return the communication of a step; None for a local step."""
        step = self.steps[at]
        if step.op == "ring":
            return self.ring_crossing(at)
        if step.op in ASKED:
            return self.rows_crossing(at)
        if step.op != "move":
            return None
        k, _, state = step.more
        axis, n = self.mesh.axes[k], sympy.sympify(self.mesh.axes[k].ranks)
        before = self.steps[step.args[0]]
        handed = sympy.sympify(self.carrier(before.placement, self.held_dims[step.args[0]]).numbers)
        if isinstance(state, Needed):
            return self.halo_crossing(at, axis, state)
        retained = self.stays(before, k, state)
        match step.why:
            case "all_gather":
                whole = self.numbers(at)
                return Crossing("all_gather", axis.name, handed, whole - handed, whole, n - 1, sympy.Integer(1))
            case "all_reduce":
                return all_reduced(axis.name, handed, piece(handed, axis.ranks, axis.at), n)
            case "reduce_scatter":
                return Crossing("reduce_scatter", axis.name, handed, handed - retained, handed, n - 1, sympy.Integer(1))
        return Crossing("all_to_all", axis.name, handed, handed - retained, handed, n - 1, sympy.Integer(1))

    def rows_crossing(self, at: int) -> Crossing | None:
        """Return the communication of rows to their nodes or experts, or of answers to the senders; None if all experts
        are local."""
        amounts, axis = self.asked.exchanged(at), self.mesh.experts
        if amounts is None or axis is None:
            return None
        op = "visit" if self.steps[at].op in ("visit", "leave") else "all_to_all"
        return Crossing(op, axis.name, *amounts, self.asked.meeting(at) - 1, sympy.Integer(1))

    def halo_crossing(self, at: int, axis: Axis, state: Needed) -> Crossing:
        """Return the communication of a halo: each rank receives the rows that its entries name, and no message if they
        name none."""
        dims = self.held_dims[self.steps[at].args[0]]
        slicing = HALO_ROWS, axis.ranks, axis.at
        sent = SentRows.at(state.relation, slicing) * dims.batch * dims.heads * dims.cols
        return Crossing(
            "halo",
            axis.name,
            sent,
            sent,
            sympy.sympify(self.held_dims[at].numbers),
            Receivers.at(state.relation, slicing),
            sympy.Integer(1),
        )

    def stays(self, step: RankStep, k: int, state: AxisState) -> sympy.Expr:
        """Return the part of a rank's payload that it retains itself, in numbers."""
        if not isinstance(state, Cut):
            return NONE
        dims = local(step.dims, Placement((*step.placement.cuts, (k, state))), self.mesh)
        return sympy.sympify(self.carrier(step.placement, dims).numbers)

    def ring_crossing(self, at: int) -> Crossing:
        """Return the communication of a ring: keys and values of a block, before heads are repeated, go on as long as a
        later rank sees them."""
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
        """Return the numbers of the keys and values that a rank begins with."""
        return add_up(self.numbers(a) for a in {*self.steps[at].args[3:5]})

    def crossings(self) -> Iterator[Crossing]:
        """Yield the communication of all steps that have any."""
        return (crossing for at in range(len(self.steps)) if (crossing := self.crossing(at)) is not None)

    def stored(self) -> dict[StoredKey, tuple[Data, Dims]]:
        """Return the arrays that a rank stores, with their local sizes, by key: each array once, however often it is
        read, transposed or not. Single numbers are left out."""
        arrays: dict[StoredKey, tuple[Data, Dims]] = {}
        for key, data, step in stored_arrays(self.steps):
            if (dims := stored_dims(data)).numbers != 1:
                arrays[key] = data, local(dims, step.stored, self.mesh)
        return arrays

    def held(self, to_end: Iterable[int] = ()) -> Iterator[sympy.Expr]:
        """Yield the numbers that are held while each step runs: values that are read later, its operands and its
        result. `to_end`: steps beside the result whose values are held until all steps have run. A saved value is the
        computed value, and no copy of it."""
        lasts, now = last_reads(self.steps, self.out, *to_end), NONE
        ending: dict[int, list[int]] = {}
        for at, last in enumerate(lasts):
            ending.setdefault(last, []).append(at)
        for at, step in enumerate(self.steps):
            over = ending.get(at, [])
            if step.op in RENAMED and step.args[0] in over:
                over.remove(step.args[0])
            else:
                now += self.numbers(at)
            yield now + (ROOM[step.op](self, at) if step.op in ROOM else 0)
            now -= add_up(map(self.numbers, over))

    def ring_room(self, at: int) -> sympy.Expr:
        """Return the numbers that a ring holds beside its operands: a carrier, and the visiting block with its
        scores."""
        step, block = self.steps[at], self.block(at)
        axis, where, whole = self.ring_of(step)
        q, v = (self.held_dims[a] for a in (step.args[0], step.args[2]))
        rows = sympy.sympify(q.batch * q.heads * q.rows)
        carrier = q._replace(cols=carried_columns(step.more[2], v.cols)).numbers
        if not isinstance(axis.ranks, int):
            return block + rows * piece(whole, axis.ranks, axis.at) + carrier
        seen, n = seen_blocks(where, whole, axis.ranks), axis.ranks
        return carrier + ByRank(
            axis.at,
            *(
                Largest(
                    *(
                        (on_rank(axis, block, j) if j != r else NONE) + rows * piece(whole, n, j)
                        for j in range(n)
                        if seen[r][j]
                    )
                )
                for r in range(n)
            ),
        )


def all_reduced(axis: str, numbers: sympy.Expr, own: sympy.Expr, ranks: LiveSize) -> Crossing:
    """Return the communication of an all-reduce, in which each rank merges one piece, its `own`, and gives it to all.
    Two ranks give each other all numbers at once, which is as much as two halves, and both merge them."""
    if ranks == PAIR:
        return Crossing("all_reduce", axis, numbers, numbers, numbers, sympy.Integer(1), sympy.Integer(1))
    return Crossing(
        "all_reduce", axis, numbers, 2 * (numbers - own), numbers, 2 * (sympy.sympify(ranks) - 1), sympy.Integer(2)
    )


def asked_room(booked: Booked, at: int) -> sympy.Expr:
    """Return the numbers that a step of a mixture holds beside its operands."""
    return booked.asked.room(at)


ROOM = dict(
    ring=Booked.ring_room,
    among=Booked.entry_scores,  # numbers beside operands and value of a step
    **dict.fromkeys(ASKED, asked_room),
)


def add_up(each: Iterable[LiveSize]) -> sympy.Expr:
    """Add expressions, and sizes that are plain numbers; 0 if there are none."""
    return sum(map(sympy.sympify, each), NONE)


def gathers(arrays: Sequence[LiveSize], axes: Iterable[Axis]) -> Iterator[Crossing]:
    """Yield the all-gathers that make arrays of these sizes whole on a rank, if axes store them in pieces; the nearest
    axis first."""
    for axis in axes if arrays else ():
        whole, arrays = add_up(arrays), [piece(numbers, axis.ranks, axis.at) for numbers in arrays]
        stored = add_up(arrays)
        yield Crossing(
            "all_gather",
            axis.name,
            stored,
            whole - stored,
            whole,
            sympy.sympify(axis.ranks) - 1,
            sympy.Integer(1),
            "weights",
        )


def stored_arrays(steps: Iterable[RankStep]) -> Iterator[tuple[StoredKey, Data, RankStep]]:
    """Yield every array that steps read: its storage key, the array and the step, which may be a step of an expert."""
    for step in steps:
        if step.op == "answer":
            yield from stored_arrays(step.more[0])
        for data in step.more[0].args if step.op == "act" else ():
            if isinstance(data, Data):
                yield stored_key(data, step.stored), data, step


def stored_key(data: Data, stored: Placement) -> StoredKey:
    """Return the identity of a stored array: the key of the array before any transpose, and its placement."""
    if data.base is None:
        return data.key, stored
    return data.base.key, stored.turned(TURNED_ROLES)


def stored_dims(data: Data) -> Dims:
    """Return the heads x rows x columns of an array of a model."""
    shape = (1, 1, 1, *data.shape)
    return Dims(1, prod(shape[:-2], start=1), shape[-2], shape[-1])
