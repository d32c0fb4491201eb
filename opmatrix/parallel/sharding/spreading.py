"""From a term and a mesh to the steps of every rank: the lines of the trace with sharded operands, and the
redistributions between them. A rule demands the states of its operands and returns the state of the result, axis by
axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch_sizes import BatchSizes, Dims
from opmatrix.algebra.batch.mixtures import Mixture, contracts, find_mixtures
from opmatrix.algebra.batch.traced import Operation, renumber, trace
from opmatrix.algebra.shapes import Shape, Space, T
from opmatrix.algebra.term import Operator
from opmatrix.parallel.sharding.axis_states import AxisState, Cut, Partial
from opmatrix.parallel.sharding.carrying import Cuttable, asked_of
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.moe_dispatch import ask_experts
from opmatrix.parallel.sharding.placement import Placement, role_of
from opmatrix.parallel.sharding.redistribute import GIVEN, Ground, RankStep, Ruling, WaitingScores
from opmatrix.parallel.sharding.relating import check_pattern
from opmatrix.parallel.sharding.ring_attention import computed, deferred
from opmatrix.parallel.sharding.rules import RULES


@dataclass(frozen=True)
class SplitOptions:
    """The use of a term in a model: its input, and how its weights are asked to be sharded."""

    x: Shape | None = None  # shape of its input; None for as many columns as the term takes
    selects: bool = False  # its input is ids of tokens
    cuts: Mapping[str, str] | None = None  # sharding of weights by patterns of their names
    last: bool = True  # its result is the model's


class Split(Ground):
    """The steps of a term on a mesh. If it is `routed`, experts answer only the rows that are routed to them. Raises
    InputError naming the operation that no rule splits."""

    mixtures: Mapping[int, Mixture] = MappingProxyType({})

    def __init__(
        self,
        term: Operator,
        mesh: Mesh,
        sizes: BatchSizes = BatchSizes(),
        options: SplitOptions = SplitOptions(),
        *,
        routed: bool = True,
    ) -> None:
        self.options, self.selects, self.last = options, options.selects, options.last
        self.x = options.x or Shape(1, term.into.rows, term.into.cols)
        lines, self.result = trace(term, self.x)
        self.cuts = dict(options.cuts or {})
        carried = Cuttable(lines)
        super().__init__(
            mesh,
            sizes,
            carried,
            carried.spread(
                {
                    at: how
                    for at, line in enumerate(lines)
                    if line.op == "act"
                    and contracts(line.more[0])
                    and (how := asked_of(line.more[0].args[0], self.cuts))
                }
            ),
        )
        self.place: dict[int, int | WaitingScores] = {}
        self.scored = patterns_of_scores(self.lines)
        self.mixtures = find_mixtures(lines) if routed else {}
        inside = frozenset[int]().union(*(mixture.inside for mixture in self.mixtures.values()))
        for at, line in enumerate(self.lines):
            if at not in inside:
                self.place[at] = self.split(at, line, self.selects)
        out = self.settled(self.place[self.result])
        for k in range(len(mesh)):
            if not self.last or isinstance(self.steps[out].placement.on(k), Partial):
                out = self.want(out, k, self.home(k, out))
        self.steps, self.out = live(self.steps, out)

    def split(self, at: int, line: Operation, selects: bool) -> int | WaitingScores:
        """Add the step of a line, behind the redistributions that its operands need."""
        dims = self.sizes.dims(line.shape, line.level)
        if line.op in ("related", "pick"):
            self.sizes.check(line.more[0])
        if line.op == "given" and line.shape.rows is not T:
            raise InputError(
                f"partition: {line.more[0]} of rows of {line.shape.rows} is not supported, only of tokens: "
                "pick rows after the operator that reads it"
            )
        if line.op == "product":
            self.check_within(line)
        if line.op in GIVEN:
            homes = [(k, self.home_of(k, dims)) for k in range(len(self.mesh))]
            placement = Placement(tuple((k, s) for k, s in homes if s is not None))
            return self.add(
                RankStep(
                    line.op,
                    (),
                    line.more or ((at,) if line.op == "input" else ()),
                    dims,
                    placement,
                    selects=selects if line.op == "input" else line.op == "given",
                    rules=tuple((k, "slice") for k, _ in placement.cuts),
                )
            )
        if line.op == "act" and not line.args:
            return self.add(RankStep("act", (), line.more, dims, Placement()))
        if (mixture := self.mixtures.get(at)) is not None:
            rows, gate = (self.settled(self.place[a]) for a in (mixture.rows, mixture.gate))
            return ask_experts(self, mixture, dims, rows, gate)
        if line.op == "product":
            check_pattern(line, self.lines[line.args[0]])
        later = deferred(self, [self.place[a] for a in line.args], line, dims, self.scored.get(at))
        if later is not None:
            return later
        args = [self.settled(self.place[a]) for a in line.args]
        return self.ruled(at, line, dims, args)

    def check_within(self, line: Operation) -> None:
        """Raise InputError for a product that merges tokens of several sequences, because sequences are computed one by
        one."""
        over, where = line.more
        left = self.lines[line.args[0]]
        apart = where.within or (left.op == "related" and not left.more[0].custom)
        if left.shape.cols is T and not apart and self.sizes.sequences != 1:
            raise InputError(
                f"partition: a product over {over.__name__} where {where} merges tokens of all sequences: "
                f"give a pattern within sequences, or one sequence in place of {self.sizes.sequences}"
            )

    def ruled(self, at: int, line: Operation, dims: Dims, args: list[int]) -> int:
        """Add the step of a line by its rule: redistribute its operands axis by axis, then place the result. Raises
        InputError for an operation without a rule."""
        if line.op not in RULES:
            raise InputError(f"partition: there is no sharding rule for {line.op} {line.more[0] if line.more else ''}")
        placement, stored, why = Placement(), Placement(), ""
        order: list[int] = []
        outs: dict[int, AxisState] = {}
        rules: list[tuple[int, str]] = []
        for k in self.turns(line, args):
            demand, out, numbers, rule = self.ruling(k, at, line, args)
            args = [self.want(a, k, state) for a, state in zip(args, demand, strict=True)]
            outs[k], stored, why = out, stored.but(k, numbers), why or rule
            if any(state is not None for state in (*demand, out, numbers)):
                rules.append((k, rule))
        for a in args:
            order += [k for k, _ in self.steps[a].placement.cuts if k not in order]
        order += [k for k in outs if k not in order]
        for k in order:
            placement = placement.but(k, outs[k])
        for a in args:
            self.check_nested(a, placement, line)
        where = self.scored.get(at)
        return self.add(
            RankStep(line.op, tuple(args), line.more, dims, placement, stored, why, where=where, rules=tuple(rules))
        )

    def ruling(self, k: int, at: int, line: Operation, args: Sequence[int]) -> Ruling:
        """Return the states and the name of an operation's rule on an axis."""
        return RULES[line.op](self, k, self.mesh.axes[k], at, line, args)

    def turns(self, line: Operation, args: Sequence[int]) -> list[int]:
        """Return the axes in the order in which they are ruled: for a product first those that shard its heads
        already."""
        by_heads = [role_of(self.steps[args[0]].placement.on(k)) == "heads" for k in range(len(self.mesh))]
        return sorted(range(len(by_heads)), key=lambda k: line.op == "product" and not by_heads[k])

    def check_nested(self, at: int, placement: Placement, line: Operation) -> None:
        """Raise InputError for operands that are sharded twice along a dimension, in different orders."""
        lies = self.steps[at].placement
        shared = [k for k, state in lies.cuts if isinstance(state, Cut) and placement.on(k) == state]
        for role in {role_of(lies.on(k)) for k in shared}:
            axes = [k for k in shared if role_of(lies.on(k)) == role]
            if axes == [k for k, _ in placement.cuts if k in axes]:
                continue
            names = [self.mesh.axes[k].name for k in sorted(axes)]
            raise InputError(
                f"mesh: {line.op} gets {role} that axes {' and '.join(names)} shard in different orders: "
                f"give {names[-1]} before {' and '.join(names[:-1])}"
            )

    def settled(self, found: int | WaitingScores) -> int:
        """Return a step; waiting scores of a ring are computed, with keys that are gathered first."""
        if isinstance(found, int):
            return found
        return computed(self, found)


def live(steps: Sequence[RankStep], result: int) -> tuple[list[RankStep], int]:
    """Return the steps that a result needs, and the number of the result."""
    place = renumber(steps, {result})
    return [
        steps[at]._replace(args=tuple(place[a] for a in steps[at].args), more=replaced(steps[at], place))
        for at in place
    ], place[result]


def replaced(step: RankStep, place: Mapping[int, int]) -> tuple[Any, ...]:
    """Return the attributes of a step with new numbers of steps; the body of waiting scores names steps, too."""
    if step.op not in ("ring", "among"):
        return step.more
    body = tuple((op, place[other] if isinstance(other, int) else other) for op, other in step.more[1])
    return (step.more[0], body, *step.more[2:])


def patterns_of_scores(lines: Sequence[Operation]) -> dict[int, Any]:
    """Return the pattern under which each line of scores is read, from the product that reads it."""
    patterns: dict[int, Any] = {}
    for at in range(len(lines) - 1, -1, -1):
        line = lines[at]
        if line.op == "product":
            left = lines[line.args[0]].shape
            if isinstance(left.cols, Space) and isinstance(left.rows, Space):
                patterns.setdefault(line.args[0], line.more[1])
        if at in patterns and line.op in ("add", "mul", "act"):
            for arg in line.args:
                if isinstance(lines[arg].shape.cols, Space):
                    patterns.setdefault(arg, patterns[at])
    return patterns
