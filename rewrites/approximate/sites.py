"""The places where a program reads its weights, the inputs of these weights, and their storage there by another
method."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from formats import FORMATS, Dense, Format, Stacked
from formats.core.arrays import Floats
from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime.program import Constant, Program
from opmatrix.spectra.gram import Seen
from rewrites.laws.kernel_law import STACK
from rewrites.lowering.calls import table_number
from rewrites.lowering.lower import TURNED, Lowering, Method, Stored
from rewrites.search.approximation import Approximation
from rewrites.search.emit import Emitter, store_blocks
from rewrites.search.fit import Fitter
from rewrites.search.search import Structure

ValueKey = tuple[int, str, int]  # a value of any program: its part, the border state before
# it, its class


@dataclass(frozen=True)
class WeightSite:
    """A weight where a program reads it: the constant's name, its class in its part, its input (a value's name, or None
    for a table that is gathered from; and the key of that value in any program), and the part's graph; whether the leaf
    is a weight elsewhere, too, and the number of products that read the constant."""

    constant: str
    part: int
    stored: Stored
    x: str | None
    value: ValueKey
    lowering: Lowering
    tied: bool = False
    products: int = 1

    @property
    def name(self) -> str:
        """Name that its errors are stored under: a constant from which rows are gathered differs from the same one in a
        product."""
        return f"{self.constant} gathered" if self.stored.layout == TURNED else self.constant

    @property
    def key(self) -> tuple[int, int, str]:
        """The part, the class and the layout of the weight, by which methods are assigned."""
        return self.part, self.stored.weight, self.stored.layout

    @property
    def heads(self) -> bool:
        """True if it is a matrix for each head."""
        return self.stored.layout == STACK

    def numbers(self) -> np.ndarray:
        """Return the weight in float64, in x out, a matrix for each head where there are several, or the rows that are
        gathered from it. It is evaluated again each time, as the matrices of all sites together would be twice the
        model."""
        matrix = self.lowering.matrix(self.stored.weight, self.stored.layout)
        return matrix.T if self.stored.layout == TURNED else matrix

    def reads(self, operand: str, constant: str) -> bool:
        """True if an operand is this weight, gathered from or multiplied by as the site requires."""
        return constant == self.constant and bool(table_number(operand)) == (self.x is None)

    def readers(self, program: Program) -> list[int]:
        """Return the steps that read it, in order."""
        return [
            i for i, step in enumerate(program.steps) if any(self.reads(*operand) for operand in step.operands.items())
        ]


def sites(program: Program, structure: Structure, emitter: Emitter) -> list[WeightSite]:
    """Return every weight of a program, with the place where it is read."""
    users: dict[str, list[str]] = {}  # constant -> its inputs, step by step
    for step in program.steps:
        if "x" in step.operands:
            for constant in step.operands.values():
                users.setdefault(constant, []).append(step.operands["x"])
    counts, places = {constant: len(inputs) for constant, inputs in users.items()}, []
    for constant, part, stored, value in emitter.sources:
        lowering, before = structure.lowering(part), structure.before(part)
        gathered = value in lowering.graph.facts["given"]
        x = None if gathered else users[constant].pop(0)
        places.append(
            WeightSite(
                constant,
                part,
                stored,
                x,
                (part, before, value),
                lowering,
                lowering.stands_elsewhere(stored.weight),
                1 if gathered else counts[constant],
            )
        )
    return places


def observe(
    program: Program, names: Sequence[str], batch: Batch, whole: Container[str] | None = None
) -> dict[str, Seen]:
    """Return each of these values on a batch, which provides the inputs among them; for values that are not in `whole`,
    only the norms of their columns. Steps behind the last of them, such as the scores of a vocabulary, are not run."""
    wanted, values = set(names), dict[str, Seen]()
    for port in program.inputs:
        if port.name in wanted:
            values[port.name] = Seen.of(batch.input(port).reshape(-1, port.heads * port.columns))
    last = max((at for at, step in enumerate(program.steps, 1) if step.output in wanted), default=0)
    for step, (_, _, value) in zip(program.steps, program.schedule.walk(batch, until=last), strict=False):
        if step.output in wanted:
            see = Seen.of if whole is None or step.output in whole else Seen.by_columns
            values[step.output] = see(value.reshape(len(value), -1), step.output)
    return values


def fitter(program: Program, found: Sequence[WeightSite], batch: Batch, own: dict[str, Approximation]) -> Fitter:
    """Return the fitter of the weights of a program to the rows that it multiplies them by."""
    seen = observe(program, [site.x for site in found if site.x], batch)
    return Fitter({site.key: seen[site.x] for site in found if site.x}, own)


def stored_for(
    site: WeightSite, numbers: np.ndarray, fitter: Fitter, method: Method, rows: slice | np.ndarray = slice(None)
) -> Constant:
    """Return a site's weight by another method, in the form that its step takes. For a table only the numbers matter,
    and only those of gathered rows, as each row is stored by itself."""
    form: Any = FORMATS.get(method.format)
    if site.x is not None:
        blocks = site.lowering.filed(site.stored.weight, site.stored.layout) if form and form.filed else []
        return as_dense(store_blocks(form, blocks) if blocks else fitter.store(numbers, method, site.key))
    turned, some, whole = not FORMATS[method.format].rowwise, numbers[rows], numbers.astype(np.float32)
    rounded = fitter.store(some.T if turned else some, method, site.key).unpack()
    whole[rows] = rounded.T if turned else rounded
    if site.stored.layout == TURNED:
        return FORMATS["packed"].approximate(whole.T)
    return FORMATS["dense"].approximate(whole)


def gathered_rows(site: WeightSite, program: Program, batch: Batch) -> np.ndarray:
    """Return the rows of a table that a batch chooses."""
    count = program.constants[site.constant].shape[1 if site.stored.layout == TURNED else 0]
    fields = {
        str(step.attributes["fields"]).split(",")[int(table_number(operand))]
        for step in map(program.steps.__getitem__, site.readers(program))
        for operand, constant in step.operands.items()
        if site.reads(operand, constant)
    }
    chosen: np.ndarray = np.unique([batch.field(field, count) for field in sorted(fields)])
    return chosen


def as_dense(stored: Format | Stacked | Floats) -> Constant:
    """Return a stored weight in the form of the dense kernel, which is fast to measure errors with; a format that
    rounds x stays as it is."""
    if isinstance(stored, np.ndarray):
        return stored
    if isinstance(stored, Stacked):
        return stored if stored.rounds else stored.unpack()
    return stored if stored.rounds or stored.rowwise else FORMATS[Dense.name].approximate(stored.unpack())
