"""What programs would take on a machine that is not here: bounds from its data sheet. Nothing is run, nothing is
claimed measured."""
import os
from dataclasses import replace
from typing import NamedTuple

from formats.core.errors import InputError
from formats.machine.datasheets import Datasheet
from opmatrix.algebra.batch.extents import Extents, counted, patterns
from opmatrix.algebra.term import Operator
from opmatrix.display.tables import megabytes, table
from opmatrix.files.checkpoint import Checkpoint, open_model
from opmatrix.files.fetch import MODELS
from opmatrix.models.known import find_known
from opmatrix.runtime.pricing import datasheet
from rewrites.egraph.layers import parts
from rewrites.laws import EXACT_LAWS
from rewrites.search.planned import shapes, weightless
from rewrites.search.search import SearchSpace, Structure, cheapest
from rewrites.workload.phases import silence_stdout

NUMBER_TYPES = ("float32", "bf16")                           # of activations; the vector unit has the first, matrix
                                                             # units the second
PROGRAMS = ("imported", (), False), ("exact", EXACT_LAWS, True)    # by laws, and whether kernels are fused
BOTTLENECKS = ("matrix", "vector", "memory")


def elsewhere(model: str, name: str, tokens: int | None) -> tuple[str, dict[str, object]]:
    """What programs of a model would take on a machine from its data sheet, as text and as figures."""
    sheet = datasheet(name)
    if tokens is not None and tokens < 1:
        raise InputError(f"--tokens {tokens}: at least 1")
    with silence_stdout():
        return predicted(open_promised(model), sheet, tokens or 128)


def open_promised(model: str) -> Operator:
    """The operator of a MODEL where nothing is run: of a checkpoint, of a configuration alone, or of a well-known
    model. Raises InputError for a name that there is not; for one that is no path, with the well-known ones."""
    return shapes(model) if weightless(model) else open_known(model).operator()


def open_known(model: str) -> Checkpoint:
    """A MODEL that has weights. Raises InputError for a name that there is not; for one that is no path, with the
    well-known ones."""
    if not (os.path.exists(model) or model in MODELS or os.sep in model): find_known(model)
    return open_model(model)


def predicted(model: Operator, sheet: Datasheet, tokens: int = 128) -> tuple[str, dict[str, object]]:
    """The imported program and the cheapest equal one on this machine, for one sentence: seconds, bytes, what bounds
    them."""
    extents, found, spaces = counted([tokens], patterns(model)), parts(model), dict[str, SearchSpace]()
    rows: list[ProgramBounds] = []
    for kind in NUMBER_TYPES:
        machine = replace(sheet, activations=kind)
        for name, laws, fusion in PROGRAMS:
            spaces[name] = space = SearchSpace(model, laws, machine, extents, fusion, found=found,
                                               elsewhere=spaces.get(name))
            structure = cheapest(space)
            rows.append(ProgramBounds(name, kind, structure.time, structure.memory,
                                      shares(structure, machine, extents)))
    said = "\n".join([f"{sheet.name}, one sentence of {tokens} tokens: lower bounds from its data sheet, nothing was "
                      "run",
                      f"source: {sheet.source}", "",
                      table([row.cells for row in rows], ["", "activations", "µs at least", "MB stored",
                                                          *(f"{unit} bound" for unit in BOTTLENECKS)])])
    return said, {"machine": sheet.name, "source": sheet.source, "tokens": tokens,
                  "programs": [row._asdict() for row in rows]}


class ProgramBounds(NamedTuple):
    """What a program takes at least on a machine that is not here, and which unit decides which share of that."""

    name: str
    activations: str
    predicted_s: float
    stored_bytes: float
    bound: dict[str, float]

    @property
    def cells(self) -> list[str]:
        """The row of the table."""
        return [self.name, self.activations, f"{1e6 * self.predicted_s:.1f}", megabytes(self.stored_bytes),
                *(f"{100 * share:.0f} %" for share in self.bound.values())]


def shares(structure: Structure, machine: Datasheet, extents: Extents) -> dict[str, float]:
    """The share of the seconds of a program's kernels that each unit decides."""
    program, _ = structure.program({})
    spent = dict.fromkeys(BOTTLENECKS, 0.0)
    for kernel, sizes in program.cost(extents):
        parts = machine.roofline(kernel, **sizes)
        spent[max(parts, key=lambda unit: parts[unit])] += max(parts.values())
    return {unit: seconds / sum(spent.values()) for unit, seconds in spent.items()}
