"""What a mesh makes of values: their steps, how they lie between operators, and `want`, the one place where anything
moves, once a value and not once a reader."""
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

KNOWN_WHOLE = "given", "related", "by_distance"                   # what every rank knows whole, whatever was computed
GIVEN = "input", *KNOWN_WHOLE, "entered"                          # what the batch gives
TURNED_ROLES: dict[Role, Role] = {"rows": "cols", "cols": "rows"}


class RankStep(NamedTuple):
    """What a rank does: an operation on what it holds, or a move. `dims` are those of the whole value, `placement` says
    what of it the rank holds, `stored` how the numbers of a matrix lie; `why` names the rule, `rules` that of each
    axis."""
    op: str
    args: tuple[int, ...]
    more: tuple[Any, ...]
    dims: Dims
    placement: Placement
    stored: Placement = Placement()
    why: str = ""
    selects: bool = False                                   # one-hot rows: held as a number each
    where: Any = None                                       # the pattern under which scores are read
    rules: tuple[tuple[int, str], ...] = ()                 # by the number of the axis, where the step is cut on it

    def by_rule(self, k: int, state: AxisState, name: str) -> RankStep:
        """With that rule for an axis on which it lies in that state."""
        rest = tuple(each for each in self.rules if each[0] != k)
        return self._replace(rules=rest if state is None else (*rest, (k, name)))


class WaitingScores(NamedTuple):
    """Scores that are not computed yet: rows are cut the same way as their keys, which come round in a ring; or only
    the entries of a relation are read of them."""
    axis: int
    queries: int
    keys: int
    body: tuple[tuple[str, int | Operator], ...]            # what scores go through before they are shares
    dims: Dims
    relation: Relation | None = None


class Ground:
    """The steps on a mesh, for a batch of those sizes."""
    def __init__(self, mesh: Mesh, sizes: BatchSizes, carried: Cuttable, asked: Mapping[int, str]) -> None:
        self.mesh, self.sizes, self.carried, self.asked = mesh, sizes, carried, asked
        self.steps, self.made = list[RankStep](), dict[RankStep, int]()

    @property
    def lines(self) -> Sequence[Operation]: return self.carried.lines

    def add(self, step: RankStep) -> int:
        key = step._replace(why="", rules=())
        if key not in self.made:
            self.made[key] = len(self.steps)
            self.steps.append(step)
        return self.made[key]

    def home(self, k: int, at: int) -> AxisState:
        """How a value lies on an axis between operators."""
        return self.home_of(k, self.steps[at].dims)

    def home_of(self, k: int, dims: Dims) -> AxisState:
        match self.mesh.axes[k].strategy.home:
            case "batch" if dims.batch != 1: return self.shared(k, Cut("batch", self.sizes.sequences))
            case "rows" if dims.rows != 1 and self.is_live(dims.rows): return self.shared(k, Cut("rows", dims.rows))
        return None

    def merged_on(self, k: int, at: int) -> AxisState:
        """How a value lies on an axis, at home where it is a part of a sum, which is merged first."""
        own = self.steps[at].placement.on(k)
        return self.home(k, at) if isinstance(own, Partial) else own

    def shared(self, k: int, cut: Cut) -> Cut:
        """A cut of which every rank gets something. Raises InputError for more ranks than units."""
        axis, what = self.mesh.axes[k], "sequences" if cut.role == "batch" else "rows"
        if isinstance(cut.units, int) and isinstance(axis.ranks, int) and cut.units < axis.ranks:
            raise InputError(f"mesh: {axis.name} has {axis.ranks} ranks and there are {cut.units} {what}: at most "
                             f"{cut.units} ranks")
        return cut

    def is_live(self, rows: LiveSize) -> bool:
        """Whether rows may be cut: the tokens of a sequence, and those of other spaces."""
        return isinstance(rows, Space) or rows in (self.sizes.tokens, *self.sizes.spaces.values())

    # What crosses.

    def want(self, at: int, k: int, state: AxisState) -> int:
        """The value in that state on an axis: itself, a slice, or what crosses."""
        step = self.steps[at]
        own = step.placement.on(k)
        if own == state: return at
        if isinstance(state, Cut) and getattr(step.dims, state.role) == 1: state = None
        if own == state: return at
        if isinstance(state, Needed) and not isinstance(own, Cut): return self.want(
            self.want(at, k, Cut("rows", state.units)), k, state)
        for inner in reversed(step.placement.inner(k)): at, step = (b := self.want(at, inner, None)), self.steps[b]
        if self.is_known(at) or (step.op == "act" and not step.args): return self.known(at, k, state)
        if self.free(at) and (state is None or role_of(state) in ("batch", "rows")): return self.again(at, k, state)
        placement = step.placement.but(k, state)
        if own is None:
            return self.add(RankStep("slice", (at,), (k, state), step.dims, placement, why="slice",
                                     rules=((k, "slice"),)))
        if step.op in ("turn", "repeat") and (found := self.through(at, k, state)) is not None: return found
        why = crossing(own, state)
        return self.add(RankStep("move", (at,), (k, own, state), step.dims, placement, why=why, rules=((k, why),)))

    def is_known(self, at: int) -> bool:
        """Whether every rank knows a value whole: ids and relations that the batch gives, no numbers."""
        return self.steps[at].op in KNOWN_WHOLE or (self.steps[at].op == "input" and self.steps[at].selects)

    def known(self, at: int, k: int, state: AxisState) -> int:
        """A rank takes what it wants of what every rank knows, or stores."""
        step = self.steps[at]
        stored = step.stored.but(k, state) if step.op == "act" else step.stored
        found = step._replace(placement=step.placement.but(k, state), stored=stored)
        return self.add(found.by_rule(k, state, "slice"))

    def free(self, at: int) -> bool:
        """Whether a value is made of what every rank knows alone, as the angles of positions are: it is computed where
        it is wanted, and never sent."""
        step = self.steps[at]
        if step.op in GIVEN: return step.op in KNOWN_WHOLE
        return step.op in ("act", "add", "mul") and not step.stored.cuts and all(map(self.free, step.args))

    def again(self, at: int, k: int, state: AxisState) -> int:
        """Computes a value that is free in another state."""
        step = self.steps[at]
        args = tuple(self.want(a, k, state) for a in step.args)
        found = step._replace(args=args, placement=step.placement.but(k, state))
        return self.add(found.by_rule(k, state, "rows one by one" if step.op == "act" else "entry by entry"))

    def through(self, at: int, k: int, state: AxisState) -> int | None:
        """Moves what a value is a copy or a turn of, which is not more, and does that again."""
        step = self.steps[at]
        own = step.placement.on(k)
        if isinstance(state, Needed) and step.op == "turn": return None
        if isinstance(own, Partial) or (step.op == "repeat" and not self.repeats(step, own, state)): return None
        back: dict[Role, Role] = TURNED_ROLES if step.op == "turn" else {}
        asked = state._replace(role=back.get(state.role, state.role)) if isinstance(state, Cut) else state
        moved = self.want(step.args[0], k, asked)
        placement = self.steps[moved].placement.turned(back) if back else step.placement.but(k, state)
        rule = "turned" if step.op == "turn" else pass_rule(asked)
        return self.add(step._replace(args=(moved,), placement=placement).by_rule(k, asked, rule))

    def repeats(self, step: RankStep, own: AxisState, state: AxisState) -> bool:
        """Whether repeated heads may move before they are repeated: heads stay, or are cut between whole groups."""
        before = self.steps[step.args[0]]
        if role_of(own) == "heads": return False
        if not (isinstance(state, Cut) and state.role == "heads"): return True
        return not before.placement.copied and state.units == before.dims.heads


def last_reads(steps: Sequence[RankStep], *results: int) -> list[int]:
    """The last step that reads each value; results are read at the end."""
    found = [*range(len(steps))]
    for at, step in enumerate(steps):
        for arg in step.args: found[arg] = at
    for out in results: found[out] = len(steps)
    return found


def crossing(own: AxisState, state: AxisState) -> str:
    """What moves a value from one state to another."""
    match own, state:
        case Partial(), None: return "all_reduce"
        case Partial(), Cut(): return "reduce_scatter"
        case Cut(), None: return "all_gather"
        case Cut(), Cut(): return "all_to_all"
        case Cut(), Needed(): return "halo"
    raise InputError(f"partition: nothing moves a value from {describe(own)} to {describe(state)}")


def heads_for_rows(split: Ground, axis: Axis, queries: int, grain: Grain | None = None) -> Cut:
    """The heads of attention, for an axis that takes some with all their rows; of keys that groups share, as they are
    before they are repeated, where each rank gets one. Raises InputError for more ranks than heads."""
    step = split.steps[queries]
    h, taken = step.dims.heads, [k for k, state in step.placement.cuts if role_of(state) == "heads"]
    over = prod([axis.ranks, *(split.mesh.axes[k].ranks for k in taken)])
    if isinstance(h, int) and isinstance(over, int) and h < over:
        beside = " beside " + " and ".join(split.mesh.axes[k].name for k in taken) if taken else ""
        raise InputError(f"mesh: {axis.name} has {axis.ranks} ranks and attention has {h} heads, of which each takes "
                         f"some{beside}: at most {h * axis.ranks // over} ranks, or strategy ring")
    shared = grain.heads if grain else h
    few = isinstance(shared, int) and isinstance(over, int) and shared < over
    return Cut("heads", h if few else shared)


Ruling: TypeAlias = tuple[list[AxisState], AxisState, AxisState, str]      # of operands, result, numbers; the rule
SplitRule: TypeAlias = Callable[[Ground, int, Axis, int, Operation, Sequence[int]], Ruling]
