"""The backward pass of mixtures: rows of a cotangent go to the experts that forward's rows were routed to, which
recompute forward and run backward; the cotangents of each row and of its gate come back. There is one line of forward
and one of backward, whose parts are the cotangents of rows and gate and the gradients of each stack."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import sympy

from opmatrix.algebra.batch.mixtures import Mixture, contracts
from opmatrix.algebra.batch.traced import Operation, TracedValue
from opmatrix.algebra.data import Data, Numeric
from opmatrix.algebra.nodes import diag, weight
from opmatrix.algebra.oracles import DenseReading
from opmatrix.algebra.shapes import Shape
from opmatrix.algebra.term import Operator
from opmatrix.autodiff.backward_kinds import derivative, derivative_of
from opmatrix.autodiff.vjp_rules import pulls, refuse, teaches
from opmatrix.parallel.ranks.moe_experts import AskingRank, ByExpert, CountFlops, entry, expert_of
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.moe_dispatch import mixture_steps
from opmatrix.parallel.sharding.placement import Placement
from opmatrix.parallel.sharding.redistribute import RankStep

if TYPE_CHECKING:
    from opmatrix.autodiff.pullback import Pull
    from opmatrix.parallel.train.backward_split import BackwardSplit

MIXTURE, BACK, PART = "mixture", "mixture_back", "mixture_part"
FoundGradients: TypeAlias = dict[int, Numeric]  # gradients of local experts, by line of their body


def taught(mixture: Mixture) -> dict[int, Data]:
    """Return the trained arrays of a mixture, by the line of its body. Raises InputError for an array that two lines
    read."""
    arrays = {
        at: data
        for at, line in enumerate(mixture.body)
        if line.op == "act" and (data := teaches(line.more[0])) is not None
    }
    if len({*arrays.values()}) < len(arrays):
        raise refuse("an expert that reads one array twice")
    return arrays


@pulls(MIXTURE)
def pull_mixture(pull: Pull, at: int, line: Operation, g: TracedValue) -> None:
    """Pull back through a mixture in one line, whose parts are the cotangents of rows and gate, and the gradients of
    experts."""
    [mixture] = line.more
    x, gate = line.args
    for body_line in mixture.body:
        if body_line.op == "act" and body_line.args:
            check_pulled(body_line.more[0])
    back = pull.value(x, at).then(BACK, pull.value(gate, at), g, more=(mixture,), shape=pull.shape(x))

    def part(number: int, shape: Shape) -> TracedValue:
        """Return a part of the backward line, with its shape."""
        return back.then(PART, more=(number,), shape=shape)

    pull.give(x, lambda: part(0, pull.shape(x)))
    pull.give(gate, lambda: part(1, pull.shape(gate)))
    for number, data in enumerate(taught(mixture).values(), 2):
        if data in pull.learned:
            pull.gradients[data] = part(number, Shape(*data.shape))


def check_pulled(matrix: Operator) -> None:
    """Raise InputError for an operator of an expert that has no pullback."""
    if matrix.entrywise and not matrix.linear:
        derivative_of(matrix)
    elif matrix.kind not in (weight, diag):
        raise refuse(matrix)


def split_mixture(split: BackwardSplit, line: Operation, args: Sequence[int]) -> int:
    """Add the backward step of a mixture, which is placed like its forward steps."""
    [mixture] = line.more
    last = split.steps[split.combined[mixture]]
    rows, answer = mixture_steps(split.steps, split.combined[mixture])
    lies = split.steps[rows].placement
    taken = []
    for at in args:
        for k in range(len(split.mesh)):
            at = split.want(at, k, lies.on(k))
        taken.append(at)
    return split.add(
        RankStep(
            BACK,
            tuple(taken),
            (*last.more, split.steps[answer].more[0]),
            split.steps[rows].dims,
            last.placement,
            why="experts backward",
        )
    )


def split_part(split: BackwardSplit, line: Operation, back: int) -> int:
    """Add the step of a part of a mixture's backward: cotangents are placed like the rows, gradients like the stored
    stacks."""
    [number], step = line.more, split.steps[back]
    placement = step.placement
    if number > 1:
        trained = [part for part in step.more[3] if part.op == "act" and teaches(part.more[0]) is not None]
        placement = trained[number - 2].stored
    return split.add(RankStep(PART, (back,), line.more, split.sizes.dims(line.shape), placement, why="a part"))


class ExpertGradients(AskingRank):
    """The backward steps of mixtures on a rank."""

    def mixture_back(self, at: int, step: RankStep) -> Generator[Any, Any, tuple[ByExpert, int]]:
        """Return the cotangents of rows and gate, and the gradients of the local experts. Rows, their cotangents and
        gates go to experts at once; cotangents of rows and gates come back."""
        count, asked, axis, body = step.more
        x, g = (self.values[a].reshape(-1, self.values[a].shape[-1]) for a in (step.args[0], step.args[2]))
        gate, mine = self.gate(step.args[1], asked)
        sent: ByExpert = tuple(np.concatenate([x[m], g[m], gate[m, e, None]], -1) for e, m in enumerate(mine.T))
        came: ByExpert = sent
        if axis is not None:
            came = yield from self.exchanged(at, axis, sent)
        here = len(came) if axis is None else int(count) // self.mesh.axes[axis].count
        matrices = [self.narrowed(line) if line.op == "act" else None for line in body]
        answers, gradients = back_through(body, matrices, came, (here, x.shape[-1]), self.worked)
        if axis is not None:
            answers = yield from self.exchanged(at, axis, answers)
        rows, gates = np.zeros_like(x), np.zeros_like(gate)
        for e, answer in enumerate(answers):
            rows[mine[:, e]] += answer[:, :-1]
            gates[mine[:, e], e] = answer[:, -1]
        shaped = (array.reshape(self.values[a].shape) for array, a in zip((rows, gates), step.args, strict=False))
        return (*shaped, *gradients), 0

    def mixture_part(self, step: RankStep, whole: ByExpert) -> Numeric:
        """Return a part of a backward step's result, with an axis of sequences in front."""
        part: Numeric = whole[step.more[0]]
        return part if part.ndim == 4 else part[None]


def back_through(
    body: Sequence[RankStep],
    narrowed: Sequence[Operator | None],
    came: ByExpert,
    sizes: tuple[int, int],
    count: CountFlops,
) -> tuple[ByExpert, list[Numeric]]:
    """Return the cotangents of the rows and gates that came to experts, and the gradient of each trained stack.
    `sizes`: the number of local experts, and the columns of a row."""
    here, wide = sizes
    gradients: FoundGradients = {
        at: np.zeros(matrix.args[0].array.shape)
        for at, (step, matrix) in enumerate(zip(body, narrowed, strict=True))
        if matrix is not None and teaches(step.more[0]) is not None
    }
    answers = []
    for place, block in enumerate(came):
        matrices = [expert_of(matrix, place % here) if matrix else None for matrix in narrowed]
        values, g = [block[:, :wide]], block[:, wide:-1]
        for at, (step, matrix) in enumerate(zip(body, matrices, strict=True)):
            if at:
                values.append(entry(step, matrix, [values[a] for a in step.args], count))
        one = ExpertBack(body, matrices, values, gradients, place % here, count)
        x_back = one.run(block[:, -1:] * g)
        answers.append(np.concatenate([x_back, (g * values[-1]).sum(-1, keepdims=True)], -1))
    return tuple(answers), [*gradients.values()]


@dataclass
class ExpertBack:
    """Backward of an expert over the rows that came to it: the lines of its body, their matrices and values, and the
    gradients of all experts, of which this is number `e`."""

    body: Sequence[RankStep]
    matrices: Sequence[Operator | None]
    values: Sequence[Numeric]
    gradients: FoundGradients
    e: int
    count: CountFlops
    cotangents: FoundGradients = field(default_factory=dict)  # of lines whose backward is still to run

    def run(self, g: Numeric) -> Numeric:
        """Return the cotangent of the rows, from that of the answers."""
        last = len(self.body) - 1
        self.cotangents = {0: np.zeros_like(self.values[0]), last: g}
        for at in range(last, 0, -1):
            if at in self.cotangents:
                self.line_back(at)
        return self.cotangents[0]

    def line_back(self, at: int) -> None:
        """Run backward through a line: give its cotangent to its operands, and the gradient to its trained array."""
        step, matrix, g = self.body[at], self.matrices[at], self.cotangents.pop(at)
        if matrix is None:
            one, other = step.args
            self.give(one, g if step.op == "add" else g * self.values[other])
            self.give(other, g if step.op == "add" else g * self.values[one])
        elif step.args:
            self.matrix_back(at, matrix, g)
        elif at in self.gradients:
            array = self.gradients[at]
            array[self.e] += g.sum(0) if array[self.e].ndim == 1 else g.sum(0, keepdims=True)

    def matrix_back(self, at: int, matrix: Operator, g: Numeric) -> None:
        """Run backward through a matrix that is applied to a value."""
        arg, gradient = self.body[at].args[0], self.gradients.get(at)
        x = self.values[arg]
        if contracts(matrix):
            self.give(arg, g @ matrix.args[0].array.T)
            self.count(2 * 2 * g.size * x.shape[-1])
            if gradient is not None:
                gradient[self.e] += x.T @ g
        elif matrix.kind is diag:
            self.give(arg, g * matrix.args[0].array)
            if gradient is not None:
                gradient[self.e] += (x * g).sum(0).reshape(gradient[self.e].shape)
        else:
            self.give(arg, g * DenseReading(x).act(derivative(matrix)).array)

    def give(self, arg: int, more: Numeric) -> None:
        """Add to the cotangent of an operand, summed over rows and columns along which it was broadcast."""
        value = self.values[arg]
        if len(value) == 1 != len(more):
            more = more.sum(0, keepdims=True)
        if value.shape[-1] == 1 != more.shape[-1]:
            more = more.sum(-1, keepdims=True)
        self.cotangents[arg] = self.cotangents[arg] + more if arg in self.cotangents else more


def expert_copies(mesh: Mesh, stored: Placement) -> tuple[tuple[int, int], ...]:
    """Return the axes whose ranks have copies of an expert, with the number of copies, for an array that ranks have
    expert by expert; empty for another array. Raises InputError if experts lie across parts of axes."""
    axis = mesh.experts
    if axis is None or stored.on(mesh.index(axis.name)) is None:
        return ()
    if prod([mesh.axes[k].ranks for k in mesh.folded]) == axis.ranks:
        return ()
    return tuple((k, int(n)) for k in mesh.folded if (n := mesh.copies(mesh.axes[k])) != 1)


def back_flops(step: RankStep, widths: Sequence[Any]) -> sympy.Expr:
    """Return the operations that a row takes backward: forward recomputed, the cotangent of each weight's operand, and
    the gradient of the weight."""
    body = step.more[3]
    return 3 * sum(
        (
            sympy.sympify(2 * widths[line.args[0]] * width)
            for line, width in zip(body, widths, strict=True)
            if line.op == "act" and line.args and contracts(line.more[0])
        ),
        sympy.Integer(0),
    )
