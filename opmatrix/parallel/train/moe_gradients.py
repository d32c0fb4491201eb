"""Mixtures backward: rows of a cotangent go to the experts that forward's rows asked, which compute forward once more
and go back; what they found for each row and for its gate comes back. One line of forward and one of backward, whose
parts are the cotangents of rows and gate and the gradients of each stack."""
from __future__ import annotations

from collections.abc import Generator, Sequence
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
FoundGradients: TypeAlias = dict[int, Numeric]              # of the experts that are here, by the line of their body


def taught(mixture: Mixture) -> dict[int, Data]:
    """The arrays of a mixture that learn, by the line of its body. Raises InputError for one that two lines read."""
    found = {at: data for at, line in enumerate(mixture.body) if line.op == "act"
             and (data := teaches(line.more[0])) is not None}
    if len({*found.values()}) < len(found): raise refuse("an expert that reads one array twice")
    return found


@pulls(MIXTURE)
def pull_mixture(pull: Pull, at: int, line: Operation, g: TracedValue) -> None:
    [mixture] = line.more
    x, gate = line.args
    for each in mixture.body:
        if each.op == "act" and each.args: check_pulled(each.more[0])
    back = pull.value(x, at).then(BACK, pull.value(gate, at), g, more=(mixture,), shape=pull.shape(x))

    def part(number: int, shape: Shape) -> TracedValue: return back.then(PART, more=(number,), shape=shape)
    pull.give(x, lambda: part(0, pull.shape(x)))
    pull.give(gate, lambda: part(1, pull.shape(gate)))
    for number, data in enumerate(taught(mixture).values(), 2):
        if data in pull.learned: pull.gradients[data] = part(number, Shape(*data.shape))


def check_pulled(matrix: Operator) -> None:
    """Raises InputError for what an expert has no way back through."""
    if matrix.entrywise and not matrix.linear: derivative_of(matrix)
    elif matrix.kind not in (weight, diag): raise refuse(matrix)


def split_mixture(split: BackwardSplit, line: Operation, args: Sequence[int]) -> int:
    """The step that goes back through a mixture, which lies as its forward steps do."""
    [mixture] = line.more
    last = split.steps[split.combined[mixture]]
    rows, answer = mixture_steps(split.steps, split.combined[mixture])
    lies = split.steps[rows].placement
    taken = []
    for at in args:
        for k in range(len(split.mesh)): at = split.want(at, k, lies.on(k))
        taken.append(at)
    return split.add(RankStep(BACK, tuple(taken), (*last.more, split.steps[answer].more[0]), split.steps[rows].dims,
                              last.placement, why="experts backward"))


def split_part(split: BackwardSplit, line: Operation, back: int) -> int:
    """A part of what came back: cotangents lie as the rows, gradients as the stacks are stored."""
    [number], step = line.more, split.steps[back]
    placement = step.placement
    if number > 1:
        own = [each for each in step.more[3] if each.op == "act" and teaches(each.more[0]) is not None]
        placement = own[number - 2].stored
    return split.add(RankStep(PART, (back,), line.more, split.sizes.dims(line.shape), placement, why="a part"))


class ExpertGradients(AskingRank):
    """What a rank does for mixtures backward."""
    def mixture_back(self, at: int, step: RankStep) -> Generator[Any, Any, tuple[ByExpert, int]]:
        """Cotangents of rows and gate, and gradients of the experts that are here. Rows, their cotangents and gates go
        to experts at once; cotangents of rows and gates come back."""
        count, asked, axis, body = step.more
        x, g = (self.values[a].reshape(-1, self.values[a].shape[-1]) for a in (step.args[0], step.args[2]))
        gate, mine = self.gate(step.args[1], asked)
        sent: ByExpert = tuple(np.concatenate([x[m], g[m], gate[m, e, None]], -1) for e, m in enumerate(mine.T))
        came: ByExpert = sent
        if axis is not None: came = yield from self.exchanged(at, axis, sent)
        here = len(came) if axis is None else int(count) // self.mesh.axes[axis].count
        matrices = [self.narrowed(each) if each.op == "act" else None for each in body]
        answers, found = back_through(body, matrices, came, (here, x.shape[-1]), self.worked)
        if axis is not None: answers = yield from self.exchanged(at, axis, answers)
        rows, gates = np.zeros_like(x), np.zeros_like(gate)
        for e, answer in enumerate(answers):
            rows[mine[:, e]] += answer[:, :-1]
            gates[mine[:, e], e] = answer[:, -1]
        shaped = (each.reshape(self.values[a].shape) for each, a in zip((rows, gates), step.args, strict=False))
        return (*shaped, *found), 0

    def mixture_part(self, step: RankStep, whole: ByExpert) -> Numeric:
        found: Numeric = whole[step.more[0]]
        return found if found.ndim == 4 else found[None]


def back_through(body: Sequence[RankStep], narrowed: Sequence[Operator | None], came: ByExpert, sizes: tuple[int, int],
                 count: CountFlops) -> tuple[ByExpert, list[Numeric]]:
    """Cotangents of rows and of gates that came to experts, and the gradient of each stack that learns. `sizes`: how
    many experts are here, and the columns of a row."""
    here, wide = sizes
    found: FoundGradients = {at: np.zeros(matrix.args[0].array.shape)
                             for at, (step, matrix) in enumerate(zip(body, narrowed, strict=True))
                             if matrix is not None and teaches(step.more[0]) is not None}
    answers = []
    for place, block in enumerate(came):
        own = [expert_of(matrix, place % here) if matrix else None for matrix in narrowed]
        values, x, g = [block[:, :wide]], block[:, :wide], block[:, wide:-1]
        for at, (step, matrix) in enumerate(zip(body, own, strict=True)):
            if at: values.append(entry(step, matrix, [values[a] for a in step.args], count))
        back = {0: np.zeros_like(x), len(body) - 1: block[:, -1:] * g}
        for at in range(len(body) - 1, 0, -1):
            if at in back: one_back(at, body[at], own[at], values, back, found, place % here, count)
        answers.append(np.concatenate([back[0], (g * values[-1]).sum(-1, keepdims=True)], -1))
    return tuple(answers), [*found.values()]


def one_back(at: int, step: RankStep, matrix: Operator | None, values: Sequence[Numeric], back: FoundGradients,
             found: FoundGradients, e: int, count: CountFlops) -> None:
    """The cotangent of one line of an expert, given to what it takes and to what it learns."""
    g = back.pop(at)

    def give(arg: int, more: Numeric) -> None:
        if len(values[arg]) == 1 != len(more): more = more.sum(0, keepdims=True)
        if values[arg].shape[-1] == 1 != more.shape[-1]: more = more.sum(-1, keepdims=True)
        back[arg] = back[arg] + more if arg in back else more
    if matrix is None:
        one, other = step.args
        give(one, g if step.op == "add" else g * values[other])
        give(other, g if step.op == "add" else g * values[one])
        return
    data = matrix.args[0].array if matrix.args else None
    if not step.args:
        if at in found: found[at][e] += g.sum(0) if found[at][e].ndim == 1 else g.sum(0, keepdims=True)
        return
    x = values[step.args[0]]
    if contracts(matrix):
        assert data is not None
        give(step.args[0], g @ data.T)
        count(2 * 2 * g.size * x.shape[-1])
        if at in found: found[at][e] += x.T @ g
    elif matrix.kind is diag:
        give(step.args[0], g * data)
        if at in found: found[at][e] += (x * g).sum(0).reshape(found[at][e].shape)
    else: give(step.args[0], g * DenseReading(x).act(derivative(matrix)).array)


def expert_copies(mesh: Mesh, stored: Placement) -> tuple[tuple[int, int], ...]:
    """The axes among whose ranks there are copies of an expert, and how many, of an array that ranks have expert by
    expert; none for another array. Raises InputError where experts lie across parts of axes."""
    axis = mesh.experts
    if axis is None or stored.on(mesh.index(axis.name)) is None: return ()
    if prod([mesh.axes[k].ranks for k in mesh.folded]) == axis.ranks: return ()
    return tuple((k, int(n)) for k in mesh.folded if (n := mesh.copies(mesh.axes[k])) != 1)


def back_flops(step: RankStep, widths: Sequence[Any]) -> sympy.Expr:
    """Operations that a row takes backward: forward again, the cotangent of what each weight takes, its gradient."""
    body = step.more[3]
    return 3 * sum((sympy.sympify(2 * widths[each.args[0]] * own) for each, own in zip(body, widths, strict=True)
                    if each.op == "act" and each.args and contracts(each.more[0])), sympy.Integer(0))

