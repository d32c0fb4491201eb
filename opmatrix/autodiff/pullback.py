"""`pullback`: a term in, terms out. Backward lines stand behind forward's: saved values, values recomputed from them,
cotangents, gradients of stored arrays. Any reading takes them one by one, so they are terms, numbers, and steps on a
mesh."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import sympy

from formats.core.errors import InputError, suggest_name
from opmatrix.algebra.attributes import brief
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.algebra.batch.signature import Port
from opmatrix.algebra.batch.traced import Operation, Trace, TracedValue
from opmatrix.algebra.data import Data, Numeric
from opmatrix.algebra.oracles import ReadInput
from opmatrix.algebra.shapes import H, N, Shape
from opmatrix.algebra.term import Operator
from opmatrix.autodiff.checkpoint_policy import DROPOUT_MASK, LEAST, Keep, Policy, kept_lines, name_units, policy_of
from opmatrix.autodiff.forward_lines import Forward, traced_forward
from opmatrix.autodiff.least_saved import least_kept
from opmatrix.autodiff.line_readings import COTANGENT, computed_lines, term_of
from opmatrix.autodiff.vjp_rules import PULLS, refuse, teaches

PassPhase: TypeAlias = Literal["forward", "kept", "again", "backward"]


class Gradients(NamedTuple):
    """The numbers of a step backward: the value of forward, the cotangent of x where it was requested, and the gradient
    of each stored array by name."""

    value: Numeric
    x: Numeric | None
    arrays: dict[str, Numeric]


class Pull:
    """The lines of one pullback, while they are written."""

    def __init__(
        self, forward: Forward, kept: frozenset[int] | None, learned: Collection[Data], wants_x: bool, selects: bool
    ) -> None:
        self.forward, self.kept_lines, self.learned, self.wants_x = forward, kept, learned, wants_x
        self.selects = selects
        self.live = [False] * len(forward.values)
        self.waiting: dict[int, TracedValue] = {}
        self.back: dict[int, TracedValue] = {}
        self.kept: dict[int, int] = {}  # line of forward -> line that saves it
        self.masks: list[int] = []
        self.reads: dict[int, list[int]] = {}
        self.gradients: dict[Data, TracedValue] = {}
        self.phases: list[PassPhase] = ["forward"] * len(forward.values)
        self.phase: PassPhase = "backward"
        for at, value in enumerate(forward.values):
            line = value.line
            learns = any(teaches(matrix) in learned for matrix in matrices_of(line))
            self.live[at] = learns or (at == 0 and wants_x) or any(self.live[a] for a in line.args)

    @property
    def trace(self) -> Trace:
        """The trace that forward's and backward's lines belong to."""
        return self.forward.trace

    def shape(self, at: int) -> Shape:
        """Return the shape of a line of forward."""
        return self.forward.line(at).shape

    def written(self, write: Callable[[], TracedValue], phase: PassPhase) -> TracedValue:
        """Run `write`; the lines that it adds belong to `phase`."""
        self.mark()
        before, self.phase = self.phase, phase
        value = write()
        self.mark()
        self.phase = before
        return value

    def mark(self) -> None:
        """Assign the lines that were added since the last call to the present phase."""
        self.phases += [self.phase] * (len(self.trace.lines) - len(self.phases))

    def run(self, g: TracedValue) -> None:
        """Pull the cotangent of the result back to every live line."""
        self.mark()
        self.waiting[self.forward.result] = g
        for at in range(len(self.forward.values) - 1, -1, -1):
            if at not in self.waiting or not self.live[at]:
                continue
            line = self.forward.line(at)
            if line.op not in PULLS:
                raise refuse(line.more[0] if line.op == "symbol" else line.op)
            PULLS[line.op](self, at, line, self.waiting[at])
        self.mark()

    def give(self, at: int, make: Callable[[], TracedValue]) -> None:
        """Add a part of the cotangent of a line, if the line is live."""
        if not self.live[at]:
            return
        part = make()
        self.waiting[at] = self.waiting[at] + part if at in self.waiting else part

    def learn(self, matrix: Operator, make: Callable[[], TracedValue]) -> None:
        """Add a part of the gradient of a stored array, if the array learns."""
        data = teaches(matrix)
        if data is None or data not in self.learned:
            return
        part = make()
        self.gradients[data] = self.gradients[data] + part if data in self.gradients else part

    def mask(self, at: int) -> None:
        """Note a dropout, whose mask backward needs again."""
        self.masks.append(at)

    def value(self, at: int, reader: int) -> TracedValue:
        """Return a value of forward as backward has it; `reader` is the line whose pullback reads it."""
        read_lines = self.reads.setdefault(reader, [])
        if at not in read_lines:
            read_lines.append(at)
        return self.recalled(at)

    def recalled(self, at: int) -> TracedValue:
        """Return a value that was saved, or recompute it from saved values."""
        if at in self.back:
            return self.back[at]
        line, forward = self.forward.line(at), self.forward
        known = at == 0 and self.selects
        if known:
            value = self.written(forward.values[0].kept, "kept")  # ids, which the batch holds in any case
        elif not line.args and line.op != "input":
            value = forward.values[at]
        elif self.keeps(at):
            value = self.written(forward.values[at].kept, "kept")
            self.kept[at] = value.at
        elif at == 0:
            raise InputError("pullback: x is needed in backward, and neither saved nor recomputed: add 'input' to keep")
        else:
            args = [self.recalled(a) for a in line.args]
            value = self.written(
                lambda: self.trace.write(line.op, tuple(a.at for a in args), line.more, line.shape, line.level), "again"
            )
        self.back[at] = value
        return value

    def keeps(self, at: int) -> bool:
        """True if forward saves this line: by the policy, or, without one, unless it is only a view of another line."""
        if self.forward.free(at):
            return False
        if self.kept_lines is None:
            return self.forward.source(at) == at
        return at in self.kept_lines


@dataclass(frozen=True)
class Pulled:
    """A pullback. `lines`: forward's, and behind them backward's; `phases`: for each line one of forward, kept (saved),
    again (recomputed) or backward. `kept`: the unit of each line of forward that is saved, `gradients`: the line of
    each stored array's gradient, `reads`: lines of forward that each line's pullback reads."""

    pull: Pull
    named: Mapping[int, str]
    policy: Policy | str
    routed: bool = False

    @property
    def forward(self) -> Forward:
        """The lines of forward, with the units that they belong to."""
        return self.pull.forward

    @property
    def lines(self) -> list[Operation]:
        """All lines of the trace: forward's, then backward's."""
        return self.pull.trace.lines

    @property
    def phases(self) -> list[PassPhase]:
        """The phase of each line."""
        return self.pull.phases

    @property
    def gradients(self) -> dict[Data, int]:
        """The line of the gradient of each stored array that learns."""
        return {data: value.at for data, value in self.pull.gradients.items()}

    @property
    def reads(self) -> dict[int, list[int]]:
        """The lines of forward that each line's pullback reads."""
        return self.pull.reads

    @property
    def result(self) -> int:
        """The line of forward's result."""
        return self.forward.result

    @property
    def x(self) -> int | None:
        """The line of the cotangent of x."""
        cotangent = self.pull.waiting.get(0) if self.pull.wants_x else None
        return None if cotangent is None else cotangent.at

    @cached_property
    def kept(self) -> dict[int, str]:
        """The unit of each line of forward that is saved; "read" for a line that is no unit but that backward reads."""
        return {at: self.named.get(at, "read") for at in self.pull.kept}

    @property
    def masks(self) -> list[int]:
        """The lines whose masks are saved; other masks are drawn again from their seeds."""
        policy = self.policy
        if not isinstance(policy, Policy):
            return self.pull.masks
        return [at for at in self.pull.masks if policy.keeps(DROPOUT_MASK, self.forward, at)]

    @property
    def again(self) -> list[int]:
        """The lines that are recomputed in backward."""
        return [at for at, phase in enumerate(self.phases) if phase == "again"]

    def kept_bytes(self, sizes: BatchSizes = BatchSizes(), number: float = 2, mask: float = 1) -> dict[str, sympy.Expr]:
        """Return the bytes that are saved for backward, by unit."""
        totals: dict[str, sympy.Expr] = {}
        for lines, size in ((self.kept, number), (dict.fromkeys(self.masks, DROPOUT_MASK), mask)):
            for at, unit in lines.items():
                line = self.forward.line(at)
                dims = sizes.dims(line.shape, line.level)
                totals[unit] = totals.get(unit, sympy.Integer(0)) + sympy.nsimplify(size) * dims.numbers
        return {unit: sympy.expand(total) for unit, total in totals.items()}

    def term(self, at: int) -> Operator:
        """Return a line as a term: backward reads x, and the cotangent as an input of that name."""
        return term_of(self.lines, at)

    @property
    def cotangent(self) -> Operator:
        """The cotangent of x as a term. Raises InputError where it was not requested."""
        if self.x is None:
            raise InputError("pullback: the cotangent of x was not requested: tokens=False")
        return self.term(self.x)

    def gradient(self, name: str) -> Operator:
        """Return the gradient of a stored array as a term, by the name of the array. Raises InputError for a name that
        no array has, and for an array that is read in parts."""
        lines_by_name = {str(data): at for data, at in self.gradients.items()}
        if name not in lines_by_name:
            raise InputError(
                f"pullback: no learned array is called {name!r}: {suggest_name(name, lines_by_name)}arrays are "
                f"{', '.join([*lines_by_name][:6])}"
            )
        return self.term(lines_by_name[name])

    def at(self, x: ReadInput, batch: Batch | None = None, cotangent: Numeric | None = None) -> Gradients:
        """Compute forward's value and all gradients in float64, at x, and at a cotangent of ones where none is given.
        Gradients of parts of an array are put in their places."""
        value, values = computed_lines(self, x, batch, cotangent)
        return Gradients(value, None if self.x is None else values[self.x], assembled_gradients(self, values))


def assembled_gradients(pulled: Pulled, found: Mapping[int, Numeric]) -> dict[str, Numeric]:
    """Return gradients by the names of whole arrays, as they are stored: parts put in place, transposed ones turned
    back."""
    gradients: dict[str, Numeric] = {}
    for data, at in pulled.gradients.items():
        part, stored = found[at], stored_whole(data)
        target = gradients.setdefault(name_of_array(data), np.zeros(stored.shape))
        target = target if (data.cut_of or data).base is None else target.swapaxes(-1, -2)
        if data.cut_at is not None:
            axis, lo, hi = data.cut_at
            inside: tuple[Any, ...] = (..., slice(int(lo), int(hi)), *[slice(None)] * (-1 - axis))
            target = target[inside]
        target += part.reshape(target.shape)
    return gradients


def pullback(
    term: Operator,
    *,
    wrt: Collection[str] | None = None,
    keep: Keep = "units",
    dropout: float = 0,
    tokens: bool = False,
    routed: bool = False,
    sizes: Mapping[str, int] | None = None,
    x: Shape | int | None = None,
) -> Pulled:
    """Return the pullback of a term: cotangents, gradients of its stored arrays, the values that are saved for them and
    the values that are recomputed. `wrt`: names of the arrays that learn; by default all, except tables of rotations.
    `keep`: a policy ("units", "selective", "full", "reads", "least") or units by name. `dropout`: the rate at which
    entries are dropped from shares of softmax and from branches that are added to the stream, by masks that the batch
    gives. `tokens`: x is one-hot tokens, so no cotangent of it is computed. `routed`: experts answer the rows that are
    routed to them alone, as ranks run them. `sizes`: numbers for sizes with names, by which "least" weighs. `x`:
    columns of x, or its shape, where the term takes any. Raises InputError for a kind that has no pullback, a policy
    that does not exist, and a value that is read but neither saved nor recomputed."""
    if not 0 <= dropout < 1:
        raise InputError(f"pullback: dropout {dropout!r}: it is from 0 to below 1, such as 0.1")
    policy = policy_of(keep)
    into = (
        x
        if isinstance(x, Shape)
        else Shape(1 if term.into.heads is H else term.into.heads, term.into.rows, term.into.cols if x is None else x)
    )
    if sympy.sympify(into.cols).has(N):
        raise InputError(f"pullback: {brief(term)} takes any number of columns: give the number of x, such as x=64")
    fixed = wrt is not None
    forward = traced_forward(term, into, dropout, routed, fixed)
    learned = learning(forward, wrt)
    named = name_units(forward)
    if isinstance(policy, Policy):
        saved: frozenset[int] | None = kept_lines(forward, policy, named)
    else:
        saved = None
    if policy == LEAST:
        first = written_pull(forward, None, learned, not tokens, tokens)
        saved = least_kept(forward, first.reads, tokens, sizes or {})
        forward = traced_forward(term, into, dropout, routed, fixed)
    return Pulled(written_pull(forward, saved, learned, not tokens, tokens), named, policy, routed)


def written_pull(
    forward: Forward, kept: frozenset[int] | None, learned: Collection[Data], wants_x: bool, selects: bool
) -> Pull:
    """Write the pullback of forward lines behind them."""
    pull = Pull(forward, kept, learned, wants_x, selects)
    shape = forward.line(forward.result).shape
    pull.run(forward.values[0].entered_as(Port(COTANGENT, str(shape.rows), shape.cols, shape.heads), shape))
    return pull


def learning(forward: Forward, wrt: Collection[str] | None) -> list[Data]:
    """Return the arrays that learn. Raises InputError for a name that no array has."""
    arrays = [
        data
        for value in forward.values
        for matrix in matrices_of(value.line)
        for data in [teaches(matrix)]
        if data is not None and data not in forward.tables
    ]
    if wrt is None:
        return arrays
    names = {name_of_array(data) for data in arrays}
    if unknown := sorted({*wrt} - names):
        raise InputError(
            f"pullback: wrt {unknown[0]!r}: there is no such array: {suggest_name(unknown[0], names)}"
            f"arrays are {', '.join(sorted(names)[:6])}"
        )
    return [data for data in arrays if name_of_array(data) in wrt]


def matrices_of(line: Operation) -> list[Operator]:
    """Return the matrices of a line: of a mixture those of its experts."""
    if line.op == "mixture":
        return [step.more[0] for step in line.more[0].body if step.op == "act"]
    return [line.more[0]] if line.op == "act" else []


def name_of_array(data: Data) -> str:
    """Return the name of the whole stored array that an operator reads, or reads a part of."""
    stored = stored_whole(data)
    return stored.name or str(stored)


def stored_whole(data: Data) -> Data:
    """Return an array as it is stored, given the array, a part of it, or its transpose."""
    whole = data.cut_of or data
    return whole.base or whole
