"""The costs of rows that are routed to experts, as formulas: rows that arrive at a rank, operations of their answers,
communication. Each row is routed to as many experts as its gate keeps, and each expert gets equally many rows, times
the load of the mesh: rows of the busiest rank, relative to the mean. The formulas are exact for even routing."""

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

SENDING = "visit", "dispatch", "mixture_back"  # steps that take rows and their gate
ZERO_SUM = sympy.Integer(0)
ByRanks = Callable[..., sympy.Expr]  # one of several expressions, by the coordinate of a rank


class Exchanged(NamedTuple):
    """The numbers that a rank hands over to the experts of its rows, or back to the senders."""

    payload: sympy.Expr  # handed over
    wire: sympy.Expr  # leaves the rank
    whole: sympy.Expr  # handed over by a rank with the busiest load


@dataclass(frozen=True)
class AskedRows:
    """Formulas of the steps of mixtures, among other steps, on a mesh."""

    steps: Sequence[RankStep]  # all steps
    held: Sequence[Dims]  # local sizes of the value of each step
    mesh: Mesh
    by_rank: ByRanks  # makes one expression of those of several ranks

    def dispatched(self, at: int) -> int:
        """Return the step that sends the rows of a mixture, given any of its steps."""
        return at if self.steps[at].op in SENDING else self.dispatched(self.steps[at].args[0])

    def sent(self, at: int) -> sympy.Expr:
        """Return the rows that a rank sends: one for each expert that a row of its own is routed to."""
        at = self.dispatched(at)
        return sympy.sympify(self.steps[at].more[1] * self.held[at].batch * self.held[at].rows)

    def came(self, at: int) -> sympy.Expr:
        """Return the rows that arrive at a rank: its share of the rows that its group sends, times the load."""
        at, sent = self.dispatched(at), self.sent(at)
        if self.axis(at) is None:
            return sent
        return self.load * self.group_rows(sent) / sympy.sympify(self.axis(at).ranks)  # type: ignore[union-attr]

    def visiting(self, at: int) -> bool:
        """True if rows visit nodes on their way."""
        return self.steps[at].op in ("visit", "leave") or len(self.steps[self.dispatched(at)].args) == 1

    def ragged(self, at: int) -> bool:
        """True if a step's value is rows grouped by expert, or by sender."""
        op = self.steps[at].op
        return op in ("visit", "dispatch", "answer") or (op == "combine" and self.visiting(at))

    def visits(self, at: int) -> sympy.Expr:
        """Return the rows that a rank sends to nodes: one for each node that a row of its own visits."""
        at = self.dispatched(at)
        return sympy.sympify(self.mesh.visited(self.steps[at].more[1]) * self.held[at].batch * self.held[at].rows)

    def relayed(self, sent: sympy.Expr) -> sympy.Expr:
        """Return the rows that arrive at a rank from the ranks with the same position in their nodes; each of them
        sends equally many to each node."""
        return self.group_rows(sent, self.mesh.node) / self.mesh.nodes

    def axis(self, at: int) -> Axis | None:
        """Return the axis of experts if rows of a mixture cross it, else None."""
        number = self.steps[self.dispatched(at)].more[2]
        return None if number is None else self.mesh.axes[number]

    @property
    def load(self) -> sympy.Expr:
        """The rows of the busiest rank, relative to the mean, as an exact number or a symbol."""
        return sympy.nsimplify(self.mesh.load)

    def group_rows(self, own: sympy.Expr, apart: int = 1) -> sympy.Expr:
        """Return the rows of all ranks that together have all experts, or of those of them that are a multiple of
        `apart` ranks apart, given the rows of one rank."""
        assert self.mesh.experts is not None
        whole, count = evened(own), self.mesh.experts.ranks
        folded = [self.mesh.axes[k] for k in self.mesh.folded]
        if not whole.atoms(Coordinate) or not all(isinstance(n, int) for n in (count, *(a.ranks for a in folded))):
            return even(whole) * count / apart
        origin = (0,) * len(self.mesh.devices)
        places = [self.mesh.placed(origin, at) for at in range(sympy.prod([axis.ranks for axis in folded]))]
        by_place = [
            whole.xreplace({self.mesh.axes[k].at: sympy.Integer(place[k]) for k in self.mesh.folded})
            for place in places
        ]
        groups = [
            sum(by_place[first + at % apart : first + count : apart], ZERO_SUM)
            for at in range(len(places))
            for first in [at - at % count]
        ]
        for axis in reversed(folded):
            groups = [self.by_rank(axis.at, *groups[at : at + axis.count]) for at in range(0, len(groups), axis.count)]
        return groups[0]

    def numbers(self, at: int) -> sympy.Expr:
        """Return the numbers that a rank holds of arrived rows, or of their answers, which may be partial sums."""
        if self.steps[at].op in ("dispatch", "answer"):
            return self.came(at) * self.held[at].cols
        return self.relayed(self.visits(at)) * self.wide(at)

    def wide(self, at: int) -> LiveSize:
        """Return the columns of a row on its way in a step, including its gates if it visits a node."""
        return self.held[at].cols + (self.told(at) if self.steps[at].op == "visit" else 0)

    def told(self, at: int) -> LiveSize:
        """Return the number of gates that go with a row to a node."""
        return sympy.sympify(self.steps[at].more[0]) / self.mesh.nodes

    def flops(self, at: int) -> sympy.Expr:
        """Return the multiplications and additions of the arrived rows, each through one expert."""
        widths = self.widths(at)
        pairs = [
            (widths[step.args[0]], width)
            for step, width in zip(self.steps[at].more[0], widths, strict=True)
            if step.op == "act" and step.args and contracts(step.more[0])
        ]
        return self.came(at) * sum((sympy.sympify(2 * rows * cols) for rows, cols in pairs), ZERO_SUM)

    def widths(self, at: int) -> list[LiveSize]:
        """Return the columns that a rank has of each value within an expert."""
        return [local(step.dims, step.placement, self.mesh).cols for step in self.steps[at].more[0]]

    def room(self, at: int) -> sympy.Expr:
        """Return the numbers that are held beside the operands and the value: rows on their way, or intermediate values
        of an expert."""
        step = self.steps[at]
        if step.op == "answer":
            sums = [
                sympy.sympify(sum((self.widths(at)[k] for k in live), ZERO_SUM)) for live in live_lines(step.more[0])
            ]
            return self.came(at) * (Largest(*sums) - self.held[at].cols)
        if self.axis(at) is None:
            return ZERO_SUM
        return self.own_rows(at) * self.wide(at)

    def own_rows(self, at: int) -> sympy.Expr:
        """Return the rows that a rank sends to nodes or experts in a step, or gets back from them."""
        if self.steps[at].op in ("visit", "leave"):
            return self.visits(at)
        return self.relayed(self.sent(at)) if self.visiting(at) else self.sent(at)

    def exchanged(self, at: int) -> Exchanged | None:
        """Return the communication of a step; None if all experts are local. The part of the payload for its own node,
        or for the rank itself, does not leave the rank."""
        step, axis = self.steps[at], self.axis(at) if self.steps[at].op in ASKED else None
        if step.op == "answer" or axis is None:
            return None
        n, wide = self.meeting(at), self.wide(at)
        outgoing = self.own_rows(at) * wide
        if step.op == "visit":
            return Exchanged(outgoing, outgoing - outgoing / n, outgoing)
        if step.op == "dispatch":
            return Exchanged(outgoing, outgoing - outgoing / n, self.load * outgoing)
        load = self.load if step.op == "combine" else 1
        handed = (self.came(at) if step.op == "combine" else self.relayed(self.visits(at))) * wide
        return Exchanged(handed, handed - load * outgoing / n, handed)

    def meeting(self, at: int) -> sympy.Expr:
        """Return the number of ranks that exchange rows in a step: one of each node, all of a node, or all that have
        experts."""
        if self.steps[at].op in ("visit", "leave"):
            return sympy.Integer(self.mesh.nodes)
        assert self.mesh.experts is not None
        return sympy.sympify(self.mesh.node if self.visiting(at) else self.mesh.experts.ranks)


def evened(e: sympy.Expr) -> sympy.Expr:
    """Return the expression with numbers in place of pieces that divide evenly, whatever the rank."""
    return e.xreplace(
        {
            cut: cut.even()
            for cut in e.atoms(Piece)
            if all(argument.is_Integer for argument in cut.args[:2]) and cut.args[0] % cut.args[1] == 0
        }
    )


def live_lines(body: Sequence[RankStep]) -> list[list[int]]:
    """Return the intermediate values of an expert that are held while each of its steps runs. Its input rows are not
    among them, nor rows that are the same for all."""
    lasts = last_reads(body, len(body) - 1)
    return [[k for k in range(1, at + 1) if body[k].args and lasts[k] >= at] for at in range(1, len(body))]
