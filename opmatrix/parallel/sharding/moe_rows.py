"""What rows that ask experts cost, as formulas: how many come to a rank, what their answers take, what crosses. Each
asks as many experts as its gate keeps, and each expert is asked as often as any other, but for the load that the mesh
says: so many times the mean on the busiest rank. Where routing is even the formulas are exact."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sympy

from opmatrix.algebra.batch.batch_sizes import Dims
from opmatrix.algebra.batch.mixtures import contracts
from opmatrix.algebra.shapes import LiveSize
from opmatrix.parallel.sharding.axis_states import Coordinate, Largest, Piece, even
from opmatrix.parallel.sharding.mesh import Axis, Mesh
from opmatrix.parallel.sharding.moe_dispatch import ASKED
from opmatrix.parallel.sharding.placement import local
from opmatrix.parallel.sharding.redistribute import RankStep, last_reads

SENDING = "visit", "dispatch", "mixture_back"                        # steps that take rows and their gate
ZERO_SUM = sympy.Integer(0)
ByRanks = Callable[..., sympy.Expr]                         # one of several expressions, by the coordinate of a rank


class Exchanged(NamedTuple):
    """What a rank hands over to those that its rows ask, or that asked it, in numbers; what of it leaves the rank; and
    what it hands over where it has the load of the busiest."""
    payload: sympy.Expr
    wire: sympy.Expr
    whole: sympy.Expr


@dataclass(frozen=True)
class AskedRows:
    """The formulas of the steps of mixtures, among others, on a mesh. `held` are the sizes that a rank holds of the
    value of each; `by_rank` makes one expression of those of several ranks."""
    steps: Sequence[RankStep]
    held: Sequence[Dims]
    mesh: Mesh
    by_rank: ByRanks

    def dispatched(self, at: int) -> int:
        """The step that sends the rows of a mixture, of any of its steps."""
        return at if self.steps[at].op in SENDING else self.dispatched(self.steps[at].args[0])

    def sent(self, at: int) -> sympy.Expr:
        """Rows that a rank sends, one for each expert that a row of its own asks."""
        at = self.dispatched(at)
        return sympy.sympify(self.steps[at].more[1] * self.held[at].batch * self.held[at].rows)

    def came(self, at: int) -> sympy.Expr:
        """Rows that come to a rank: its share of what its group sends, times the load."""
        at, sent = self.dispatched(at), self.sent(at)
        if self.axis(at) is None: return sent
        return self.load * self.group_rows(sent) / sympy.sympify(self.axis(at).ranks)      # type: ignore[union-attr]

    def visiting(self, at: int) -> bool:
        """Whether rows visit nodes on their way."""
        return self.steps[at].op in ("visit", "leave") or len(self.steps[self.dispatched(at)].args) == 1

    def ragged(self, at: int) -> bool:
        """Whether a step's value is rows by whom they ask, or by where they come from."""
        op = self.steps[at].op
        return op in ("visit", "dispatch", "answer") or (op == "combine" and self.visiting(at))

    def visits(self, at: int) -> sympy.Expr:
        """Rows that a rank sends to nodes, one for each that a row of its own visits."""
        at = self.dispatched(at)
        return sympy.sympify(self.mesh.visited(self.steps[at].more[1]) * self.held[at].batch * self.held[at].rows)

    def relayed(self, sent: sympy.Expr) -> sympy.Expr:
        """What comes to a rank of what those send that lie in their nodes as it does, as much to each node."""
        return self.group_rows(sent, self.mesh.node) / self.mesh.nodes

    def axis(self, at: int) -> Axis | None:
        """The axis of experts, where rows of a mixture cross it."""
        number = self.steps[self.dispatched(at)].more[2]
        return None if number is None else self.mesh.axes[number]

    @property
    def load(self) -> sympy.Expr: return sympy.nsimplify(self.mesh.load)

    def group_rows(self, own: sympy.Expr, apart: int = 1) -> sympy.Expr:
        """Rows of all ranks that have all experts together, or of those of them that are a multiple of so many ranks
        apart, from those of one."""
        assert self.mesh.experts is not None
        whole, count = evened(own), self.mesh.experts.ranks
        folded = [self.mesh.axes[k] for k in self.mesh.folded]
        if not whole.atoms(Coordinate) or not all(isinstance(n, int) for n in (count, *(a.ranks for a in folded))):
            return even(whole) * count / apart
        origin = (0,) * len(self.mesh.devices)
        places = [self.mesh.placed(origin, at) for at in range(sympy.prod([axis.ranks for axis in folded]))]
        each = [whole.xreplace({self.mesh.axes[k].at: sympy.Integer(place[k]) for k in self.mesh.folded})
                for place in places]
        groups = [sum(each[first + at % apart:first + count:apart], ZERO_SUM)
                  for at in range(len(places)) for first in [at - at % count]]
        for axis in reversed(folded):
            groups = [self.by_rank(axis.at, *groups[at:at + axis.count]) for at in range(0, len(groups), axis.count)]
        return groups[0]

    def numbers(self, at: int) -> sympy.Expr:
        """Numbers that a rank holds of rows that came, or of their answers, which may be parts of sums."""
        if self.steps[at].op in ("dispatch", "answer"): return self.came(at) * self.held[at].cols
        return self.relayed(self.visits(at)) * self.wide(at)

    def wide(self, at: int) -> LiveSize:
        """Columns of a row on its way in a step, with its gates where it visits a node."""
        return self.held[at].cols + (self.told(at) if self.steps[at].op == "visit" else 0)

    def told(self, at: int) -> LiveSize:
        """Gates that go with a row to a node."""
        return sympy.sympify(self.steps[at].more[0]) / self.mesh.nodes

    def flops(self, at: int) -> sympy.Expr:
        """Multiplications and additions of the rows that came, each through one expert."""
        widths = self.widths(at)
        pairs = [(widths[step.args[0]], own) for step, own in zip(self.steps[at].more[0], widths, strict=True)
                 if step.op == "act" and step.args and contracts(step.more[0])]
        return self.came(at) * sum((sympy.sympify(2 * rows * cols) for rows, cols in pairs), ZERO_SUM)

    def widths(self, at: int) -> list[LiveSize]:
        """Columns that a rank has of each value within an expert."""
        return [local(step.dims, step.placement, self.mesh).cols for step in self.steps[at].more[0]]

    def room(self, at: int) -> sympy.Expr:
        """What is held beside the operands and the value: rows on their way, or what an expert makes of them."""
        step = self.steps[at]
        if step.op == "answer":
            made = [sympy.sympify(sum((self.widths(at)[k] for k in live), ZERO_SUM))
                    for live in live_lines(step.more[0])]
            return self.came(at) * (Largest(*made) - self.held[at].cols)
        if self.axis(at) is None: return ZERO_SUM
        return self.own_rows(at) * self.wide(at)

    def own_rows(self, at: int) -> sympy.Expr:
        """Rows that a rank sends to nodes or to experts in a step, or gets back from them."""
        if self.steps[at].op in ("visit", "leave"): return self.visits(at)
        return self.relayed(self.sent(at)) if self.visiting(at) else self.sent(at)

    def exchanged(self, at: int) -> Exchanged | None:
        """What a step sends; None where all experts are here. Of what a rank hands over for its node, or for itself,
        nothing leaves it."""
        step, axis = self.steps[at], self.axis(at) if self.steps[at].op in ASKED else None
        if step.op == "answer" or axis is None: return None
        n, wide = self.meeting(at), self.wide(at)
        own = self.own_rows(at) * wide
        if step.op == "visit": return Exchanged(own, own - own / n, own)
        if step.op == "dispatch": return Exchanged(own, own - own / n, self.load * own)
        load = self.load if step.op == "combine" else 1
        handed = (self.came(at) if step.op == "combine" else self.relayed(self.visits(at))) * wide
        return Exchanged(handed, handed - load * own / n, handed)

    def meeting(self, at: int) -> sympy.Expr:
        """Ranks that exchange rows in a step: of all nodes one, of a node all, or all that have experts."""
        if self.steps[at].op in ("visit", "leave"): return sympy.Integer(self.mesh.nodes)
        assert self.mesh.experts is not None
        return sympy.sympify(self.mesh.node if self.visiting(at) else self.mesh.experts.ranks)


def evened(e: sympy.Expr) -> sympy.Expr:
    """An expression in which cuts that divide are numbers, whatever the rank."""
    return e.xreplace({cut: cut.even() for cut in e.atoms(Piece)
                       if all(each.is_Integer for each in cut.args[:2]) and cut.args[0] % cut.args[1] == 0})


def live_lines(body: Sequence[RankStep]) -> list[list[int]]:
    """What is held of what an expert makes while each of its steps runs: its rows are not, nor rows that are the same
    for all."""
    lasts = last_reads(body, len(body) - 1)
    return [[k for k in range(1, at + 1) if body[k].args and lasts[k] >= at] for at in range(1, len(body))]
