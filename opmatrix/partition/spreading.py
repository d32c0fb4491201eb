"""From a term and a mesh to what every rank does: the lines of the trace with their operands cut, and between them what
crosses. A rule asks for the states that its operands must have and says which state comes out, axis by axis; `want` is
the one place where anything moves, once a value and not once a reader."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from formats.core.errors import InputError
from opmatrix.algebra.data import Data
from opmatrix.algebra.shapes import LiveSize, S, Shape, Space, T, size
from opmatrix.algebra.term import Operator
from opmatrix.partition.carrying import Carried
from opmatrix.partition.cuts import Cut, Dims, Partial, State, describe
from opmatrix.partition.lies import Spread
from opmatrix.partition.mesh import Axis, Mesh
from opmatrix.partition.traced import Line, trace

GIVEN = "input", "given", "related", "entered"              # what the batch gives
TURNED = {"rows": "cols", "cols": "rows"}


class Step(NamedTuple):
    """What a rank does: an operation on what it holds, or a move. `dims` are those of the whole value, `lie` says what
    of it the rank holds; `stored` how the numbers of a matrix lie; `why` names the rule."""
    op: str
    args: tuple[int, ...]
    more: tuple[Any, ...]
    dims: Dims
    lie: Spread
    stored: Spread = Spread()
    why: str = ""
    selects: bool = False                                   # one-hot rows: held as a number each
    where: Any = None                                       # the pattern under which scores are read


class Sizes(NamedTuple):
    """How large a batch is: so many sequences of so many tokens, and rows of other spaces."""
    sequences: LiveSize = size("b")
    tokens: LiveSize = size("s")
    spaces: Mapping[str, LiveSize] = {}

    def rows(self, rows: LiveSize) -> LiveSize:
        """Of a sequence, or of a space that has no sequences."""
        if rows is T: return self.tokens
        if rows is S: return 1
        return self.spaces.get(str(rows), rows) if isinstance(rows, Space) else rows

    def dims(self, shape: Shape, level: bool = False) -> Dims:
        if level: return Dims(1, shape.heads, 1, shape.cols)
        batch = self.sequences if {T, S} & {shape.rows, shape.cols} else 1
        return Dims(batch, shape.heads, self.rows(shape.rows), self.rows(shape.cols))


Demand: TypeAlias = tuple[list[State], State]               # of the operands, of what comes out


class Scores(NamedTuple):
    """Scores of rows that are cut the same way as their keys, not computed yet: keys come round in a ring."""
    axis: int
    queries: int
    keys: int
    body: tuple[tuple[str, int | Operator], ...]            # what scores go through before they are shares
    dims: Dims


class Split:
    """The steps of a term on a mesh. Raises InputError naming the operation that no rule splits."""
    def __init__(self, term: Operator, mesh: Mesh, sizes: Sizes = Sizes(), *, selects: bool = False,
                 x: Shape | None = None, cuts: Mapping[str, str] | None = None, last: bool = True) -> None:
        self.mesh, self.sizes, self.cuts, self.selects, self.last = mesh, sizes, dict(cuts or {}), selects, last
        start = self.x = x or Shape(1, term.into.rows, term.into.cols)
        self.lines, self.result = trace(term, start)
        self.carried, self.steps, self.made = Carried(self.lines), list[Step](), dict[Any, int]()
        self.place: dict[int, int | Scores] = {}
        self.scored = patterns_of_scores(self.lines)
        for at, line in enumerate(self.lines): self.place[at] = self.split(at, line, selects)
        found = self.settled(self.place[self.result])
        for k in range(len(mesh)):
            if not last or isinstance(self.steps[found].lie.on(k), Partial): found = self.want(found, k, self.home(k, found))
        self.steps, self.out = live(self.steps, found)

    # What there is.

    def add(self, step: Step) -> int:
        key = step._replace(why="")
        if key not in self.made:
            self.made[key] = len(self.steps)
            self.steps.append(step)
        return self.made[key]

    def home(self, k: int, at: int) -> State:
        """How a value lies on an axis between operators."""
        return self.home_of(k, self.steps[at].dims)

    def home_of(self, k: int, dims: Dims) -> State:
        match self.mesh.axes[k].strategy.home:
            case "batch" if dims.batch != 1: return self.shared(k, Cut("batch", self.sizes.sequences))
            case "rows" if dims.rows == self.row_units and dims.rows != 1: return self.shared(k, Cut("rows", self.row_units))
        return None

    def shared(self, k: int, cut: Cut) -> Cut:
        """A cut of which every rank gets something. Raises InputError for more ranks than units."""
        axis, what = self.mesh.axes[k], "sequences" if cut.role == "batch" else "rows"
        if isinstance(cut.units, int) and isinstance(axis.ranks, int) and cut.units < axis.ranks:
            raise InputError(f"mesh: {axis.name} has {axis.ranks} ranks and there are {cut.units} {what}: at most "
                             f"{cut.units} ranks")
        return cut

    @property
    def row_units(self) -> LiveSize:
        """Rows that may be cut: the tokens of a sequence, or those of the one other space that there is."""
        own = [n for n in self.sizes.spaces.values()]
        return own[0] if own else self.sizes.tokens

    def split(self, at: int, line: Line, selects: bool) -> int | Scores:
        """The step of a line, behind what its operands must cross for it."""
        dims = self.sizes.dims(line.shape, line.level)
        if line.op in GIVEN:
            lie = Spread(tuple((k, s) for k in range(len(self.mesh)) if (s := self.home_of(k, dims)) is not None))
            return self.add(Step(line.op, (), line.more or ((at,) if line.op == "input" else ()), dims, lie,
                                 selects=selects if line.op == "input" else line.op == "given"))
        if line.op == "act" and not line.args: return self.add(Step("act", (), line.more, dims, Spread()))
        from opmatrix.partition.ringed import deferred
        later = deferred(self, at, line, dims)
        if later is not None: return later
        args = [self.settled(self.place[a]) for a in line.args]
        return self.ruled(at, line, dims, args)

    def ruled(self, at: int, line: Line, dims: Dims, args: list[int]) -> int:
        from opmatrix.partition.rules import RULES
        if line.op not in RULES:
            raise InputError(f"partition: no rule splits {line.op} {line.more[0] if line.more else ''}: "
                             "what it does is not known")
        lie, stored, why = Spread(), Spread(), ""
        order: list[int] = []
        outs: dict[int, State] = {}
        for k, axis in enumerate(self.mesh.axes):
            demand, out, kept, said = RULES[line.op](self, k, axis, at, line, args)
            args = [self.want(a, k, state) for a, state in zip(args, demand, strict=True)]
            outs[k], stored, why = out, stored.but(k, kept), why or said
        for a in args: order += [k for k, _ in self.steps[a].lie.cuts if k not in order]
        order += [k for k in outs if k not in order]
        for k in order: lie = lie.but(k, outs[k])
        for a in args: self.check_nested(a, lie, line)
        return self.add(Step(line.op, tuple(args), line.more, dims, lie, stored, why, where=self.scored.get(at)))

    def check_nested(self, at: int, lie: Spread, line: Line) -> None:
        """Operands that are cut twice along a dimension must be so in one order."""
        own = [k for k, _ in self.steps[at].lie.cuts if lie.on(k) == self.steps[at].lie.on(k)]
        if own != [k for k, _ in lie.cuts if k in own]:
            names = " and ".join(self.mesh.axes[k].name for k in own)
            raise InputError(f"partition: {line.op} meets values that axes {names} cut in different orders: put the axis "
                             "that cuts heads inside the one that cuts rows")

    def settled(self, found: int | Scores) -> int:
        """A step: scores that were to be computed in a ring are computed, of keys that are gathered first."""
        if isinstance(found, int): return found
        from opmatrix.partition.ringed import computed
        return computed(self, found)

    # What crosses.

    def want(self, at: int, k: int, state: State) -> int:
        """The value in that state on an axis: itself, a slice, or what crosses."""
        step = self.steps[at]
        own = step.lie.on(k)
        if isinstance(state, Cut) and getattr(step.dims, state.role) == 1: state = None
        if own == state: return at
        for inner in reversed(step.lie.inner(k)): at, step = (b := self.want(at, inner, None)), self.steps[b]
        if self.is_known(at) or (step.op == "act" and not step.args): return self.known(at, k, state)
        if self.free(at) and (state is None or state.role in ("batch", "rows")): return self.again(at, k, state)
        if own is None: return self.add(Step("slice", (at,), (k, state), step.dims, step.lie.but(k, state), why="slice"))
        if step.op in ("turn", "repeat") and (found := self.through(at, k, state)) is not None: return found
        return self.add(Step("move", (at,), (k, own, state), step.dims, step.lie.but(k, state), why=crossing(own, state)))

    def is_known(self, at: int) -> bool:
        """Whether every rank knows a value whole: ids and relations that the batch gives, no numbers."""
        return self.steps[at].op in ("given", "related") or (self.steps[at].op == "input" and self.steps[at].selects)

    def known(self, at: int, k: int, state: State) -> int:
        """Of what every rank knows, or stores, it takes what it wants."""
        step = self.steps[at]
        stored = step.stored.but(k, state) if step.op == "act" else step.stored
        return self.add(step._replace(lie=step.lie.but(k, state), stored=stored))

    def free(self, at: int) -> bool:
        """Whether a value is made of what every rank knows alone, as the angles of positions are: it is computed where it
        is wanted, and never sent."""
        step = self.steps[at]
        if step.op in GIVEN: return step.op in ("given", "related")
        return step.op in ("act", "add", "mul") and not step.stored.cuts and all(map(self.free, step.args))

    def again(self, at: int, k: int, state: State) -> int:
        """Computes a value that is free in another state."""
        step = self.steps[at]
        return self.add(step._replace(args=tuple(self.want(a, k, state) for a in step.args), lie=step.lie.but(k, state)))

    def through(self, at: int, k: int, state: State) -> int | None:
        """Moves what a value is a copy or a turn of, which is not more, and does that again."""
        step = self.steps[at]
        own = step.lie.on(k)
        if isinstance(own, Partial) or (step.op == "repeat" and "heads" in (own and own.role, isinstance(
                state, Cut) and state.role)): return None
        back = TURNED if step.op == "turn" else {}
        asked = state._replace(role=back.get(state.role, state.role)) if isinstance(state, Cut) else state
        moved = self.want(step.args[0], k, asked)
        lie = self.steps[moved].lie.turned(back) if back else self.steps[moved].lie
        return self.add(step._replace(args=(moved,), lie=lie))


def live(steps: Sequence[Step], result: int) -> tuple[list[Step], int]:
    """The steps that a result takes, and where it is."""
    needed = {result}
    for at in range(len(steps) - 1, -1, -1):
        if at in needed: needed |= {*steps[at].args}
    place = {at: k for k, at in enumerate(sorted(needed))}
    return [steps[at]._replace(args=tuple(place[a] for a in steps[at].args), more=replaced(steps[at], place))
            for at in place], place[result]


def replaced(step: Step, place: Mapping[int, int]) -> tuple[Any, ...]:
    """The attributes of a step; what scores of a ring go through names steps, too."""
    if step.op != "ring": return step.more
    body = tuple((op, place[other] if isinstance(other, int) else other) for op, other in step.more[1])
    return (step.more[0], body, *step.more[2:])


def crossing(own: State, state: State) -> str:
    """What moves a value from one state to another."""
    match own, state:
        case Partial(), None: return "all_reduce"
        case Partial(), Cut(): return "reduce_scatter"
        case Cut(), None: return "all_gather"
        case Cut(), Cut(): return "all_to_all"
    raise InputError(f"partition: nothing moves a value from {describe(own)} to {describe(state)}")


def patterns_of_scores(lines: Sequence[Line]) -> dict[int, Any]:
    """The pattern under which each line of scores is read, by the product that reads it."""
    found: dict[int, Any] = {}
    for at in range(len(lines) - 1, -1, -1):
        line = lines[at]
        if line.op == "product":
            left = lines[line.args[0]]
            if left.shape.cols is T and left.shape.rows is T: found.setdefault(line.args[0], line.more[1])
        if at in found and line.op in ("add", "mul", "act"):
            for arg in line.args:
                if lines[arg].shape.cols is T: found.setdefault(arg, found[at])
    return found


Rule: TypeAlias = Callable[[Split, int, Axis, int, Line, Sequence[int]], tuple[list[State], State, State, str]]
__all__ = ["Data", "Rule", "Scores", "Sizes", "Split", "Step"]
