"""A rank's part of a mixture: rows go to the ranks that have the experts that they ask, one array for each expert, and
their answers come back to who asked. Nothing is known of a gate before it is there: whom a row asks is where its gate
is not 0."""
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

ByExpert: TypeAlias = tuple[Numeric, ...]                   # an array of rows for each expert, or for each and sender
AskedExperts: TypeAlias = NDArray[np.bool_]                        # rows x experts
CountFlops: TypeAlias = Callable[[int], None]                    # of multiplications and additions
NOT_ASKED = np.inf                                          # in place of a gate, which is 0 where routing is even


def whom(gate: Numeric, asked: int, even: bool, nodes: int = 1, visits: int = 1) -> AskedExperts:
    """Which experts the rows of a gate ask: where it is not 0, or, where routing is forced to be `even`, so many each
    in turn, as many on each of the nodes that a row visits in turn."""
    if not even: return np.asarray(gate != 0)
    found, turn = np.zeros(gate.shape, bool), np.arange(len(gate) * visits)
    many, here = asked // visits, gate.shape[1] // nodes
    times = (turn // nodes)[:, None] * many + np.arange(many)
    found[(turn // visits)[:, None], (turn % nodes)[:, None] * here + times % here] = True
    return found


def rows_asked(x: Numeric, asked: AskedExperts) -> ByExpert:
    """The rows of x that ask each expert, in order."""
    rows = x.reshape(-1, x.shape[-1])
    return tuple(rows[mine] for mine in asked.T)


def combined(answers: ByExpert, gate: Numeric, asked: AskedExperts) -> Numeric:
    """The answers to each row times its gate, summed in ascending order of experts."""
    found: Numeric = np.zeros((len(gate), answers[0].shape[-1]))
    for e, answer in enumerate(answers): found[asked[:, e]] += gate[asked[:, e], e, None] * answer
    return found


def answered(body: Sequence[RankStep], narrowed: Sequence[Operator | None], came: ByExpert, experts: int,
             count: CountFlops) -> tuple[ByExpert, int]:
    """What experts answer to rows, which are those of each sender one after the other; beside these, the most numbers
    that are held of what they make. `narrowed` are matrices with the numbers that are here."""
    values: list[list[Numeric]] = [[rows for rows in came]]
    room, live = 0, live_lines(body)
    for at, (step, matrix) in enumerate(zip(body, narrowed, strict=True)):
        if not at: continue
        made = []
        for place in range(len(came)):
            taken = [values[a][place] for a in step.args]
            made.append(entry(step, expert_of(matrix, place % experts) if matrix else None, taken, count))
        values.append(made)
        room = max(room, sum(each.size for k in live[at - 1] for each in values[k]))
    return tuple(values[-1]), room - sum(each.size for each in values[-1])


def entry(step: RankStep, matrix: Operator | None, taken: Sequence[Numeric], count: CountFlops) -> Numeric:
    """What one step of an expert makes of rows."""
    if matrix is None:
        one, other = taken
        return one + other if step.op == "add" else one * other
    if not taken: return np.atleast_2d(matrix.args[0].array)[-1:].astype(np.float64)
    found: Numeric = DenseReading(taken[0]).act(matrix).array
    if contracts(matrix): count(2 * found.size * taken[0].shape[-1])
    return found


def expert_of(matrix: Operator, e: int) -> Operator:
    """The matrix of one expert."""
    def own(each: Any) -> Any:
        return Data.of(each.array[e]) if isinstance(each, Data) and len(each.shape) == 3 else each
    found: Operator = matrix.kind(*map(own, matrix.args))
    return found


class AskingRank(ABC):
    """What a rank does for mixtures, beside all else that it does."""
    values: dict[int, Any]
    steps: Sequence[RankStep]
    mesh: Mesh
    place: Coordinates
    feed: Feed

    @abstractmethod
    def exchanged(self, at: int, axis: int, arrays: ByExpert, op: str = "exchange",
                  among: tuple[int, ...] = ()) -> Generator[Any, Any, ByExpert]:
        """To each rank of an axis, or of those `among` them, its share of the arrays, in order; what came, in the order
        of senders."""

    @abstractmethod
    def narrowed(self, step: RankStep) -> Operator:
        """The matrix of a step with the numbers that are here."""

    def by_expert(self, stored: Placement) -> bool:
        """Whether an array lies expert by expert."""
        return any(self.mesh.axes[k].strategy.experts for k, _ in stored.cuts)

    @abstractmethod
    def worked(self, flops: int) -> None:
        """Counts multiplications and additions."""

    def gate(self, at: int, asked: int) -> tuple[Numeric, AskedExperts]:
        """The rows of a gate, and whom they ask."""
        rows = self.values[at].reshape(-1, self.values[at].shape[-1])
        return rows, whom(rows, asked, self.feed.even, self.mesh.nodes, int(self.mesh.visited(asked)))

    def experts_of(self, node: int, count: int) -> slice:
        """The experts of a node."""
        here = count // self.mesh.nodes
        return slice(node * here, (node + 1) * here)

    def alike(self, axis: int) -> tuple[int, ...]:
        """The ranks of experts that lie in their nodes as this one does."""
        n, node = self.mesh.axes[axis].count, self.mesh.node
        return tuple(range(self.place[axis] % node, n, node))

    def neighbours(self, axis: int) -> tuple[int, ...]:
        """The ranks of experts among whom rows go to experts: those of a node, or all of them (none are named)."""
        if self.mesh.nodes == 1: return ()
        first = self.place[axis] - self.place[axis] % self.mesh.node
        return tuple(range(first, first + self.mesh.node))

    def visit(self, at: int, step: RankStep) -> Generator[Any, Any, tuple[ByExpert, int]]:
        """Rows to each node that they ask, once, beside their gates of the experts there; what is held meanwhile."""
        count, asked, axis = step.more
        x = self.values[step.args[0]].reshape(-1, self.values[step.args[0]].shape[-1])
        gate, mine = self.gate(step.args[1], asked)
        told = np.where(mine, gate, NOT_ASKED)
        own = [(mine[:, here].any(1), here) for here in (self.experts_of(j, count) for j in range(self.mesh.nodes))]
        sent = tuple(np.concatenate([x[rows], told[rows, here]], -1) for rows, here in own)
        return (yield from self.exchanged(at, axis, sent, "visit", self.alike(axis))), sum(each.size for each in sent)

    def visitors(self, at: int, count: int) -> tuple[Numeric, Numeric, AskedExperts]:
        """The rows that visit this rank's node by it, their gates, and whom they ask there."""
        rows, here = np.concatenate(self.values[at]), count // self.mesh.nodes
        gate = rows[:, -here:]
        return rows[:, :-here], gate, gate != NOT_ASKED

    def dispatch(self, at: int, step: RankStep) -> Generator[Any, Any, tuple[ByExpert, int]]:
        """Rows to the experts that they ask; what is held meanwhile."""
        count, asked, axis = step.more
        if len(step.args) == 1: x, _, mine = self.visitors(step.args[0], count)
        else: x, (_, mine) = self.values[step.args[0]], self.gate(step.args[1], asked)
        sent = rows_asked(x, mine)
        if axis is None: return sent, 0
        return (yield from self.exchanged(at, axis, sent, among=self.neighbours(axis))), sum(
            each.size for each in sent)

    def answer(self, at: int, step: RankStep) -> Generator[Any, Any, tuple[ByExpert, int]]:
        """Rows that came through the experts that are here."""
        yield from ()
        [body], came = step.more, self.values[step.args[0]]
        count, _, axis = self.steps[step.args[0]].more
        here = len(came) if axis is None else int(count) // self.mesh.axes[axis].count
        matrices = [self.narrowed(each) if each.op == "act" else None for each in body]
        return answered(body, matrices, came, here, self.worked)

    def combine(self, at: int, step: RankStep) -> Generator[Any, Any, tuple[Numeric | ByExpert, int]]:
        """Answers back to who asked, and their sum, of visitors by the node that they came from; what is held
        meanwhile."""
        count, asked, axis = step.more
        visits = self.steps[step.args[1]].op == "visit"
        if visits: _, gate, mine = self.visitors(step.args[1], count)
        else: gate, mine = self.gate(step.args[1], asked)
        answers, room = self.values[step.args[0]], 0
        if axis is not None:
            answers = yield from self.exchanged(at, axis, answers, among=self.neighbours(axis))
            room = sum(each.size for each in answers)
        found = combined(answers, gate, mine)
        if visits: return tuple(np.split(found, np.cumsum([*map(len, self.values[step.args[1]])])[:-1])), room
        return found.reshape(*self.values[step.args[1]].shape[:-1], -1), room

    def leave(self, at: int, step: RankStep) -> Generator[Any, Any, tuple[Numeric, int]]:
        """What rows found at the nodes that they visited, and its sum; what is held meanwhile."""
        count, asked, axis = step.more
        gate, mine = self.gate(step.args[1], asked)
        came = yield from self.exchanged(at, axis, self.values[step.args[0]], "visit", self.alike(axis))
        found: Numeric = np.zeros((len(gate), came[0].shape[-1]))
        for node, each in enumerate(came): found[mine[:, self.experts_of(node, count)].any(1)] += each
        return found.reshape(*self.values[step.args[1]].shape[:-1], -1), sum(each.size for each in came)
