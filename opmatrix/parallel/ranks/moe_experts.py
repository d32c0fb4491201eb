"""A rank's part of a mixture: rows go to the ranks of their experts, one array for each expert, and the answers come
back to the senders. A gate is known only once it is computed: a row is routed to the experts whose gate is not 0."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.batch.mixtures import contracts
from opmatrix.algebra.data import Data, Numeric
from opmatrix.algebra.oracles import DenseReading
from opmatrix.algebra.term import Operator
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.moe_rows import live_lines
from opmatrix.parallel.sharding.placement import Coordinates, Placement
from opmatrix.parallel.sharding.redistribute import RankStep

ByExpert: TypeAlias = tuple[Numeric, ...]  # rows of each expert, or of each expert and sender
AskedExperts: TypeAlias = NDArray[np.bool_]  # rows x experts
CountFlops: TypeAlias = Callable[[int], None]  # counts multiplications and additions
NOT_ASKED = np.inf  # marks no routing: a gate may be 0 in even routing


def whom(gate: Numeric, asked: int, even: bool, nodes: int = 1, visits: int = 1) -> AskedExperts:
    """Return the experts that the rows of a gate are routed to, as rows x experts: those whose gate is not 0. With
    `even` routing they are `asked` experts in turn, equally many on each of the nodes that a row visits in turn."""
    if not even:
        return np.asarray(gate != 0)
    routed, turn = np.zeros(gate.shape, bool), np.arange(len(gate) * visits)
    many, here = asked // visits, gate.shape[1] // nodes
    times = (turn // nodes)[:, None] * many + np.arange(many)
    routed[(turn // visits)[:, None], (turn % nodes)[:, None] * here + times % here] = True
    return routed


def rows_asked(x: Numeric, asked: AskedExperts) -> ByExpert:
    """Return the rows of x that are routed to each expert, in order."""
    rows = x.reshape(-1, x.shape[-1])
    return tuple(rows[mine] for mine in asked.T)


def combined(answers: ByExpert, gate: Numeric, asked: AskedExperts) -> Numeric:
    """Return the answers to each row times its gate, summed in ascending order of experts."""
    total: Numeric = np.zeros((len(gate), answers[0].shape[-1]))
    for e, answer in enumerate(answers):
        total[asked[:, e]] += gate[asked[:, e], e, None] * answer
    return total


def answered(
    body: Sequence[RankStep], narrowed: Sequence[Operator | None], came: ByExpert, experts: int, count: CountFlops
) -> tuple[ByExpert, int]:
    """Return the answers of experts to rows, which are sorted by sender, and the most numbers that are held of
    intermediate values. `narrowed`: matrices with the local numbers."""
    values: list[list[Numeric]] = [[rows for rows in came]]
    room, live = 0, live_lines(body)
    for at, (step, matrix) in enumerate(zip(body, narrowed, strict=True)):
        if not at:
            continue
        results = []
        for place in range(len(came)):
            taken = [values[a][place] for a in step.args]
            results.append(entry(step, expert_of(matrix, place % experts) if matrix else None, taken, count))
        values.append(results)
        room = max(room, sum(block.size for k in live[at - 1] for block in values[k]))
    return tuple(values[-1]), room - sum(block.size for block in values[-1])


def entry(step: RankStep, matrix: Operator | None, taken: Sequence[Numeric], count: CountFlops) -> Numeric:
    """Apply one step of an expert to rows."""
    if matrix is None:
        one, other = taken
        return one + other if step.op == "add" else one * other
    if not taken:
        return np.atleast_2d(matrix.args[0].array)[-1:].astype(np.float64)
    result: Numeric = DenseReading(taken[0]).act(matrix).array
    if contracts(matrix):
        count(2 * result.size * taken[0].shape[-1])
    return result


def expert_of(matrix: Operator, e: int) -> Operator:
    """Return the matrix of one expert."""

    def own(each: Any) -> Any:
        """Return the expert's matrix of a stack, and any other attribute as it is."""
        return Data.of(each.array[e]) if isinstance(each, Data) and len(each.shape) == 3 else each

    sliced: Operator = matrix.kind(*map(own, matrix.args))
    return sliced


class AskingRank(ABC):
    """The mixture steps of a rank."""

    values: dict[int, Any]
    steps: Sequence[RankStep]
    mesh: Mesh
    place: Coordinates
    feed: Feed

    @abstractmethod
    def exchanged(
        self, at: int, axis: int, arrays: ByExpert, op: str = "exchange", among: tuple[int, ...] = ()
    ) -> Generator[Any, Any, ByExpert]:
        """Send each rank of an axis, or of the ranks `among` them, its share of the arrays, in order. Return the arrays
        that came, in the order of senders."""

    @abstractmethod
    def narrowed(self, step: RankStep) -> Operator:
        """Return the matrix of a step with the local numbers."""

    def by_expert(self, stored: Placement) -> bool:
        """True if an array is placed expert by expert."""
        return any(self.mesh.axes[k].strategy.experts for k, _ in stored.cuts)

    @abstractmethod
    def worked(self, flops: int) -> None:
        """Count multiplications and additions."""

    def gate(self, at: int, asked: int) -> tuple[Numeric, AskedExperts]:
        """Return the rows of a gate, and the experts that they are routed to."""
        rows = self.values[at].reshape(-1, self.values[at].shape[-1])
        return rows, whom(rows, asked, self.feed.even, self.mesh.nodes, int(self.mesh.visited(asked)))

    def experts_of(self, node: int, count: int) -> slice:
        """Return the experts of a node."""
        here = count // self.mesh.nodes
        return slice(node * here, (node + 1) * here)

    def alike(self, axis: int) -> tuple[int, ...]:
        """Return the expert ranks with the same position in their nodes as this one."""
        n, node = self.mesh.axes[axis].count, self.mesh.node
        return tuple(range(self.place[axis] % node, n, node))

    def neighbours(self, axis: int) -> tuple[int, ...]:
        """Return the expert ranks among which rows go to experts: those of a node; empty for all ranks."""
        if self.mesh.nodes == 1:
            return ()
        first = self.place[axis] - self.place[axis] % self.mesh.node
        return tuple(range(first, first + self.mesh.node))

    def visit(self, at: int, step: RankStep) -> Generator[Any, Any, tuple[ByExpert, int]]:
        """Send rows to each of their nodes once, beside their gates of the experts there. Return the rows that came,
        and the numbers held meanwhile."""
        count, asked, axis = step.more
        x = self.values[step.args[0]].reshape(-1, self.values[step.args[0]].shape[-1])
        gate, mine = self.gate(step.args[1], asked)
        told = np.where(mine, gate, NOT_ASKED)
        by_node = [(mine[:, here].any(1), here) for here in (self.experts_of(j, count) for j in range(self.mesh.nodes))]
        sent = tuple(np.concatenate([x[rows], told[rows, here]], -1) for rows, here in by_node)
        return (yield from self.exchanged(at, axis, sent, "visit", self.alike(axis))), sum(block.size for block in sent)

    def visitors(self, at: int, count: int) -> tuple[Numeric, Numeric, AskedExperts]:
        """Return the rows that visit this rank's node through it, their gates, and the experts of the node that they
        are routed to."""
        rows, here = np.concatenate(self.values[at]), count // self.mesh.nodes
        gate = rows[:, -here:]
        return rows[:, :-here], gate, gate != NOT_ASKED

    def dispatch(self, at: int, step: RankStep) -> Generator[Any, Any, tuple[ByExpert, int]]:
        """Send rows to their experts. Return the rows that came, and the numbers held meanwhile."""
        count, asked, axis = step.more
        if len(step.args) == 1:
            x, _, mine = self.visitors(step.args[0], count)
        else:
            x, (_, mine) = self.values[step.args[0]], self.gate(step.args[1], asked)
        sent = rows_asked(x, mine)
        if axis is None:
            return sent, 0
        return (yield from self.exchanged(at, axis, sent, among=self.neighbours(axis))), sum(
            block.size for block in sent
        )

    def answer(self, at: int, step: RankStep) -> Generator[Any, Any, tuple[ByExpert, int]]:
        """Apply the local experts to the rows that came."""
        yield from ()
        [body], came = step.more, self.values[step.args[0]]
        count, _, axis = self.steps[step.args[0]].more
        here = len(came) if axis is None else int(count) // self.mesh.axes[axis].count
        matrices = [self.narrowed(line) if line.op == "act" else None for line in body]
        return answered(body, matrices, came, here, self.worked)

    def combine(self, at: int, step: RankStep) -> Generator[Any, Any, tuple[Numeric | ByExpert, int]]:
        """Send answers back and sum them; the sums of visitors are split by the node that they came from. Return the
        sums, and the numbers held meanwhile."""
        count, asked, axis = step.more
        visits = self.steps[step.args[1]].op == "visit"
        if visits:
            _, gate, mine = self.visitors(step.args[1], count)
        else:
            gate, mine = self.gate(step.args[1], asked)
        answers, room = self.values[step.args[0]], 0
        if axis is not None:
            answers = yield from self.exchanged(at, axis, answers, among=self.neighbours(axis))
            room = sum(block.size for block in answers)
        total = combined(answers, gate, mine)
        if visits:
            return tuple(np.split(total, np.cumsum([*map(len, self.values[step.args[1]])])[:-1])), room
        return total.reshape(*self.values[step.args[1]].shape[:-1], -1), room

    def leave(self, at: int, step: RankStep) -> Generator[Any, Any, tuple[Numeric, int]]:
        """Send the sums of visitors back to the ranks of their rows, and add those of all visited nodes. Return the
        total, and the numbers held meanwhile."""
        count, asked, axis = step.more
        gate, mine = self.gate(step.args[1], asked)
        came = yield from self.exchanged(at, axis, self.values[step.args[0]], "visit", self.alike(axis))
        total: Numeric = np.zeros((len(gate), came[0].shape[-1]))
        for node, block in enumerate(came):
            total[mine[:, self.experts_of(node, count)].any(1)] += block
        return total.reshape(*self.values[step.args[1]].shape[:-1], -1), sum(block.size for block in came)
