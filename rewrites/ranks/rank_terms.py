"""A stretch of a rank as a model: terms over the numbers that this rank stores, on the rows that it holds. Values of
other steps enter as inputs; a factor of the model stays a factor, so borders are where the model has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from operator import matmul
from typing import NamedTuple

import numpy as np

from opmatrix.algebra import nodes
from opmatrix.algebra.batch.batch_sizes import Bounds, Role
from opmatrix.algebra.batch.signature import Port
from opmatrix.algebra.batch.traced import sliced
from opmatrix.algebra.operators import I
from opmatrix.algebra.term import Operator
from opmatrix.parallel.ranks.ranks import Meter, Rank
from opmatrix.parallel.sharding.cost_formulas import stored_arrays
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.placement import Coordinates
from opmatrix.parallel.sharding.redistribute import RankStep
from rewrites.ranks.rotations import Rotation, find_rotation
from rewrites.ranks.stretches import StageSteps, Stretch


class StretchModel(NamedTuple):
    """The outputs of a stretch by name; the steps of its outputs (`gives`) and of its inputs. `sequences` and `rows`
    are the part of the batch on this rank. `ids` is the range of tokens whose table rows it holds, if these are not
    all: other tokens read the last row, which is zero."""

    outputs: Mapping[str, Operator]
    inputs: Mapping[str, int]
    gives: Mapping[str, int]
    sequences: Bounds
    rows: Bounds
    ids: Bounds | None

    @property
    def size(self) -> tuple[int, int]:
        """The number of sequences, and of rows of each."""
        return self.sequences[1] - self.sequences[0], self.rows[1] - self.rows[0]


class LocalNumbers(Rank):
    """The arrays of a stage that one rank stores, and its values."""

    def __init__(self, stage: StageSteps, place: Coordinates) -> None:
        super().__init__(stage, place, Feed(np.zeros((1, 1))), Meter(), None, {})

    def matrix(self, step: RankStep) -> Operator:
        """Return the matrix of a step with the numbers stored on this rank."""
        for key, data, _ in stored_arrays([step]):
            if key not in self.kept:
                self.kept[key] = self.own(data.base or data, key[1])
        return super().narrowed(step)

    def bounds(self, at: int, role: Role) -> Bounds:
        """Return the range of this rank along a dimension of a value."""
        return self.span(self.steps[at], role)

    def extent(self, at: int, role: Role) -> int:
        """Return the length of a value's dimension on this rank."""
        lo, hi = self.bounds(at, role)
        return hi - lo


@dataclass
class StretchTerms:
    """A stretch while it is written. The body of a value is an operator of its factor's input: the result of the
    factor before, tokens, or, for the first factor, the input step `main`."""

    stage: StageSteps
    stretch: Stretch
    here: LocalNumbers
    memo: dict[tuple[int, int], Operator] = field(default_factory=dict)
    ids: Bounds | None = None

    def __post_init__(self) -> None:
        self.own = {*self.stretch.steps}
        self.first = min(self.stage.factor[at] for at in self.own)
        self.ports = {at: f"x{k}" for k, at in enumerate(self.stretch.inputs)}
        begun = [at for at in self.own if self.stage.factor[at] == self.first]
        by_tokens = any(self.is_tokens(a) for at in begun for a in self.stage.steps[at].args)
        entering = [a for at in begun for a in self.stage.reads(at) if a in self.ports]
        self.main = None if by_tokens or not entering else max(entering)

    def is_tokens(self, at: int) -> bool:
        """True if a step is the input of token ids."""
        return self.stage.steps[at].op == "input" and self.stage.steps[at].selects

    def is_x(self, at: int, factor: int) -> bool:
        """True if a value is the input of a factor."""
        if at in self.own:
            return self.stage.factor[at] != factor
        return self.is_tokens(at) or (at == self.main and factor == self.first)

    def reads_x(self, at: int, factor: int) -> bool:
        """True if the body of a value reads the input of its factor."""
        todo, seen = [at], set[int]()
        while todo:
            if (one := todo.pop()) in seen:
                continue
            seen.add(one)
            if self.is_x(one, factor):
                return True
            if one in self.own or self.stage.inlined[one]:
                todo += self.stage.steps[one].args
        return False

    def entered(self, at: int) -> Operator:
        """Return an input as a matrix of the batch."""
        columns = self.here.extent(at, "heads") * self.here.extent(at, "cols")
        matrix: Operator = nodes.entered(Port(self.ports[at], "T", columns))
        return matrix

    def in_heads(self, at: int, rows: Operator) -> Operator:
        """Return an input, which is passed as rows, split into heads if the value has several."""
        h = self.here.extent(at, "heads")
        return rows if h == 1 else rows @ nodes.heads(h)

    def body(self, at: int, factor: int) -> Operator:
        """Return the operator of a value over its factor's input, written once."""
        key = at, factor
        if key not in self.memo:
            if at == self.main and factor == self.first:
                operator = self.in_heads(at, I)
            elif self.is_x(at, factor):
                operator = I
            elif at in self.ports:
                operator = self.in_heads(at, self.entered(at))
            else:
                operator = self.write(at, factor)
            self.memo[key] = operator
        return self.memo[key]

    def write(self, at: int, factor: int) -> Operator:
        """Return an operation on bodies."""
        step = self.stage.steps[at]
        if (turned := find_rotation(self.stage.steps, at)) is not None:
            return self.rotated(turned, factor)
        if step.op == "act":
            return self.acted(step, factor)
        taken = [self.body(a, factor) for a in step.args]
        term: Operator
        match step.op:
            case "given":
                term = nodes.given(*step.more)
            case "by_distance":
                table, most = step.more
                term = nodes.by_distance(sliced(table, -2, *self.here.bounds(at, "heads")), most)
            case "add":
                term = nodes.add(*taken)
            case "mul":
                term = nodes.mul(*taken)
            case "keep_top":
                term = nodes.keep_top(*taken, *step.more)
            case "scan":
                term = nodes.scan(*taken, *step.more)
            case "delta_rule":
                term = nodes.gated_delta_rule(*taken)
            case "turn":
                term = nodes.turn(*taken)
            case "beside":
                term = nodes.row(*taken)
            case "split":
                term = taken[0] @ nodes.heads(self.here.extent(at, "heads"))
            case "join":
                term = taken[0] @ nodes.join(self.here.extent(step.args[0], "heads"))
            case "repeat":
                term = taken[0] @ nodes.repeat(self.here.extent(at, "heads"))
            case "total":
                term = taken[0] @ nodes.total()
            case "product":
                term = nodes.product(*taken, *step.more)
            case _:
                raise AssertionError(f"{step.op} is not an operation of terms")
        return term

    def acted(self, step: RankStep, factor: int) -> Operator:
        """Return x @ A, with the rows of a table for the tokens, or positions, on this rank."""
        matrix = self.here.matrix(step)
        if not step.args:
            return matrix
        [x] = step.args
        source = self.stage.steps[x]
        if source.op == "given" and source.more[0] == "positions" and (lo := self.here.bounds(x, "rows")[0]):
            table = sliced(matrix.args[0], -2, lo, matrix.args[0].shape[-2])
            return nodes.given("positions", table.shape[-2]) @ nodes.weight(table)
        if self.is_tokens(x) and self.here.extent(x, "cols") < int(source.dims.cols):
            self.ids, table = self.here.bounds(x, "cols"), matrix.args[0].array
            return nodes.weight(np.vstack([table, np.zeros_like(table[:1])]))
        return self.body(x, factor) @ matrix

    def rotated(self, found: Rotation, factor: int) -> Operator:
        """Return a value rotated by the positions of the rows on this rank."""
        lo = self.here.bounds(found.angles, "rows")[0]
        cos, sin = (sliced(table, -2, lo, table.shape[0]) for table in (found.cos, found.sin))
        return self.body(found.turned, factor) @ nodes.rotate(cos, sin, found.rest)

    def whole(self, at: int, layer_of: Mapping[int, int]) -> Operator:
        """Return a value as a model: the input first, then a factor for each layer."""
        factor = self.stage.factor[at]
        bodies = [(factor, self.outer(at, self.body(at, factor)))]
        while self.reads_x(at, factor) and factor != self.first:
            at = self.stage.entry[factor]
            factor = self.stage.factor[at]
            bodies.insert(0, (factor, self.body(at, factor)))
        starts = [self.entered(self.main)] if self.main is not None else []
        if not starts:
            starts, bodies = [bodies[0][1]], bodies[1:]
        layers = [
            reduce(lambda right, left: left @ right, [body for _, body in reversed([*group])])
            for _, group in groupby(bodies, lambda each: layer_of.get(each[0], 0))
        ]
        return reduce(matmul, [*starts, *layers])

    def outer(self, at: int, body: Operator) -> Operator:
        """Return the output of a program as rows, in which heads are joined as columns."""
        h = self.here.extent(at, "heads")
        return body if h == 1 else body @ nodes.join(h)


def write_model(stage: StageSteps, stretch: Stretch, here: LocalNumbers, layer_of: Mapping[int, int]) -> StretchModel:
    """Return a stretch of a rank as a model. `layer_of` numbers the layers of factors. A stretch that mixes rows at
    most once is one part, however many layers it touches."""
    terms = StretchTerms(stage, stretch, here)
    mixing = {stage.factor[at] for at in stretch.steps if stage.steps[at].op in ("product", "scan", "delta_rule")}
    layers = layer_of if len(mixing) > 1 else {}
    gives = {f"y{k}": at for k, at in enumerate(stretch.outputs)}
    outputs = {name: terms.whole(at, layers) for name, at in gives.items()}
    at = stretch.outputs[0]
    return StretchModel(
        outputs,
        {name: at for at, name in terms.ports.items()},
        gives,
        here.bounds(at, "batch"),
        here.bounds(at, "rows"),
        terms.ids,
    )
