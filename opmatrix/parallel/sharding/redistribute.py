"""Values on a mesh: their steps, their placement between operators, and `want`, the only place that redistributes
values: once for a value, not once for each reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, TypeAlias

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch_sizes import BatchSizes, Dims, Role
from opmatrix.algebra.batch.relations import Relation
from opmatrix.algebra.batch.traced import Operation
from opmatrix.algebra.shapes import LiveSize, Space
from opmatrix.algebra.term import Operator
from opmatrix.parallel.sharding.axis_states import AxisState, Cut, Needed, Partial, describe
from opmatrix.parallel.sharding.carrying import Cuttable, Grain
from opmatrix.parallel.sharding.mesh import Axis, Mesh
from opmatrix.parallel.sharding.placement import Placement, pass_rule, role_of

KNOWN_WHOLE = "given", "related", "by_distance"  # values that every rank knows in full
GIVEN = "input", *KNOWN_WHOLE, "entered"  # values that the batch gives
TURNED_ROLES: dict[Role, Role] = {"rows": "cols", "cols": "rows"}


class RankStep(NamedTuple):
    """A step of a rank: an operation on the values that it holds, or a redistribution."""

    op: str  # name of the operation
    args: tuple[int, ...]  # steps of the operands
    more: tuple[Any, ...]  # attributes of the operation
    dims: Dims  # sizes of the whole value
    placement: Placement  # part of the value that the rank holds
    stored: Placement = Placement()  # placement of the numbers of a matrix
    why: str = ""  # name of the rule
    selects: bool = False  # one-hot rows: each is held as one number
    where: Any = None  # the pattern under which scores are read
    rules: tuple[tuple[int, str], ...] = ()  # rules by the number of the axis that the step is split on

    def by_rule(self, k: int, state: AxisState, name: str) -> RankStep:
        """Return the step with a rule for an axis on which it has a state."""
        rest = tuple(entry for entry in self.rules if entry[0] != k)
        return self._replace(rules=rest if state is None else (*rest, (k, name)))


class WaitingScores(NamedTuple):
    """Scores that are not computed yet: their rows are sharded like their keys, which go round in a ring, or only the
    entries of a relation are read."""

    axis: int  # axis of the ring; -1 for a relation
    queries: int  # step of the queries
    keys: int  # step of the keys
    body: tuple[tuple[str, int | Operator], ...]  # operations between scores and shares
    dims: Dims  # sizes of the scores
    relation: Relation | None = None  # relation whose entries are read


class Ground:
    """The steps on a mesh, for a batch of given sizes."""

    def __init__(self, mesh: Mesh, sizes: BatchSizes, carried: Cuttable, asked: Mapping[int, str]) -> None:
        self.mesh, self.sizes, self.carried, self.asked = mesh, sizes, carried, asked
        self.steps, self.made = list[RankStep](), dict[RankStep, int]()

    @property
    def lines(self) -> Sequence[Operation]:
        """The lines of the term that is split."""
        return self.carried.lines

    def add(self, step: RankStep) -> int:
        """Return the number of a step, which is added unless an equal one is there; reasons and rules do not count."""
        key = step._replace(why="", rules=())
        if key not in self.made:
            self.made[key] = len(self.steps)
            self.steps.append(step)
        return self.made[key]

    def home(self, k: int, at: int) -> AxisState:
        """Return the placement of a value on an axis between operators."""
        return self.home_of(k, self.steps[at].dims)

    def home_of(self, k: int, dims: Dims) -> AxisState:
        """Return the placement of a value of these sizes between operators: sharded along the axis's dimension if the
        value has it."""
        match self.mesh.axes[k].strategy.home:
            case "batch" if dims.batch != 1:
                return self.shared(k, Cut("batch", self.sizes.sequences))
            case "rows" if dims.rows != 1 and self.is_live(dims.rows):
                return self.shared(k, Cut("rows", dims.rows))
        return None

    def merged_on(self, k: int, at: int) -> AxisState:
        """Return the placement of a value on an axis; for a partial value the placement between operators, because it
        is reduced first."""
        state = self.steps[at].placement.on(k)
        return self.home(k, at) if isinstance(state, Partial) else state

    def shared(self, k: int, cut: Cut) -> Cut:
        """Return a sharding that gives each rank at least one unit. Raises InputError for more ranks than units."""
        axis, what = self.mesh.axes[k], "sequences" if cut.role == "batch" else "rows"
        if isinstance(cut.units, int) and isinstance(axis.ranks, int) and cut.units < axis.ranks:
            raise InputError(
                f"mesh: {axis.name} has {axis.ranks} ranks and there are {cut.units} {what}: at most {cut.units} ranks"
            )
        return cut

    def is_live(self, rows: LiveSize) -> bool:
        """True if rows may be sharded: the tokens of a sequence, and the rows of other spaces."""
        return isinstance(rows, Space) or rows in (self.sizes.tokens, *self.sizes.spaces.values())

    # Redistribution.

    def want(self, at: int, k: int, state: AxisState) -> int:
        """Return the value with a state on an axis: itself, a slice, or the result of a collective."""
        step = self.steps[at]
        current = step.placement.on(k)
        if current == state:
            return at
        if isinstance(state, Cut) and getattr(step.dims, state.role) == 1:
            state = None
        if current == state:
            return at
        if isinstance(state, Needed) and not isinstance(current, Cut):
            return self.want(self.want(at, k, Cut("rows", state.units)), k, state)
        for inner in reversed(step.placement.inner(k)):
            at, step = (b := self.want(at, inner, None)), self.steps[b]
        if self.is_known(at) or (step.op == "act" and not step.args):
            return self.known(at, k, state)
        if self.free(at) and (state is None or role_of(state) in ("batch", "rows")):
            return self.again(at, k, state)
        placement = step.placement.but(k, state)
        if current is None:
            return self.add(
                RankStep("slice", (at,), (k, state), step.dims, placement, why="slice", rules=((k, "slice"),))
            )
        if step.op in ("turn", "repeat") and (moved := self.through(at, k, state)) is not None:
            return moved
        why = crossing(current, state)
        return self.add(RankStep("move", (at,), (k, current, state), step.dims, placement, why=why, rules=((k, why),)))

    def is_known(self, at: int) -> bool:
        """True if every rank knows a value in full: ids and relations that the batch gives, no numbers."""
        return self.steps[at].op in KNOWN_WHOLE or (self.steps[at].op == "input" and self.steps[at].selects)

    def known(self, at: int, k: int, state: AxisState) -> int:
        """Add the part that a rank needs of a value that every rank knows, or stores."""
        step = self.steps[at]
        stored = step.stored.but(k, state) if step.op == "act" else step.stored
        part = step._replace(placement=step.placement.but(k, state), stored=stored)
        return self.add(part.by_rule(k, state, "slice"))

    def free(self, at: int) -> bool:
        """True if a value is made only of values that every rank knows, such as the angles of positions. It is computed
        where it is read, and never sent."""
        step = self.steps[at]
        if step.op in GIVEN:
            return step.op in KNOWN_WHOLE
        return step.op in ("act", "add", "mul") and not step.stored.cuts and all(map(self.free, step.args))

    def again(self, at: int, k: int, state: AxisState) -> int:
        """Recompute a free value in another state."""
        step = self.steps[at]
        args = tuple(self.want(a, k, state) for a in step.args)
        recomputed = step._replace(args=args, placement=step.placement.but(k, state))
        return self.add(recomputed.by_rule(k, state, "rows one by one" if step.op == "act" else "entry by entry"))

    def through(self, at: int, k: int, state: AxisState) -> int | None:
        """Redistribute the operand of a repeat or transpose (it is no larger), then redo the operation. Returns None if
        this cannot be done."""
        step = self.steps[at]
        current = step.placement.on(k)
        if isinstance(state, Needed) and step.op == "turn":
            return None
        if isinstance(current, Partial) or (step.op == "repeat" and not self.repeats(step, current, state)):
            return None
        back: dict[Role, Role] = TURNED_ROLES if step.op == "turn" else {}
        asked = state._replace(role=back.get(state.role, state.role)) if isinstance(state, Cut) else state
        moved = self.want(step.args[0], k, asked)
        placement = self.steps[moved].placement.turned(back) if back else step.placement.but(k, state)
        rule = "turned" if step.op == "turn" else pass_rule(asked)
        return self.add(step._replace(args=(moved,), placement=placement).by_rule(k, asked, rule))

    def repeats(self, step: RankStep, own: AxisState, state: AxisState) -> bool:
        """True if repeated heads may be redistributed before they are repeated: heads stay, or are sharded between
        whole groups."""
        before = self.steps[step.args[0]]
        if role_of(own) == "heads":
            return False
        if not (isinstance(state, Cut) and state.role == "heads"):
            return True
        return not before.placement.copied and state.units == before.dims.heads


def last_reads(steps: Sequence[RankStep], *results: int) -> list[int]:
    """Return the last step that reads each value; results are read at the end."""
    lasts = [*range(len(steps))]
    for at, step in enumerate(steps):
        for arg in step.args:
            lasts[arg] = at
    for out in results:
        lasts[out] = len(steps)
    return lasts


def crossing(own: AxisState, state: AxisState) -> str:
    """Return the operation that redistributes a value from one state to another. Raises InputError if there is none."""
    match own, state:
        case Partial(), None:
            return "all_reduce"
        case Partial(), Cut():
            return "reduce_scatter"
        case Cut(), None:
            return "all_gather"
        case Cut(), Cut():
            return "all_to_all"
        case Cut(), Needed():
            return "halo"
    raise InputError(f"partition: no collective redistributes a value from {describe(own)} to {describe(state)}")


def heads_for_rows(split: Ground, axis: Axis, queries: int, grain: Grain | None = None) -> Cut:
    """Return the sharding of attention's heads, for an axis that takes some heads with all their rows. If groups share
    keys, and each rank gets a key head, it is that of the keys before they are repeated. Raises InputError for more
    ranks than heads."""
    step = split.steps[queries]
    h, taken = step.dims.heads, [k for k, state in step.placement.cuts if role_of(state) == "heads"]
    over = prod([axis.ranks, *(split.mesh.axes[k].ranks for k in taken)])
    if isinstance(h, int) and isinstance(over, int) and h < over:
        beside = " beside " + " and ".join(split.mesh.axes[k].name for k in taken) if taken else ""
        raise InputError(
            f"mesh: {axis.name} has {axis.ranks} ranks and attention has {h} heads, at least one for "
            f"each{beside}: at most {h * axis.ranks // over} ranks, or strategy ring"
        )
    shared = grain.heads if grain else h
    few = isinstance(shared, int) and isinstance(over, int) and shared < over
    return Cut("heads", h if few else shared)


Ruling: TypeAlias = tuple[list[AxisState], AxisState, AxisState, str]  # states of operands, result, numbers; rule
SplitRule: TypeAlias = Callable[[Ground, int, Axis, int, Operation, Sequence[int]], Ruling]
