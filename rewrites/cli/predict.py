"""Predictions of programs on a machine that is not here: bounds from its data sheet. Nothing is run or measured."""

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

NUMBER_TYPES = ("float32", "bf16")  # number types of activations: the vector unit computes
# the first, matrix units the second
PROGRAMS = ("imported", (), False), ("exact", EXACT_LAWS, True)  # name, laws, whether kernels are fused
BOTTLENECKS = ("matrix", "vector", "memory")


def elsewhere(model: str, name: str, tokens: int | None) -> tuple[str, dict[str, object]]:
    """Predict the programs of a model on a machine from its data sheet, as text and as figures."""
    sheet = datasheet(name)
    if tokens is not None and tokens < 1:
        raise InputError(f"--tokens {tokens}: at least 1")
    with silence_stdout():
        return predicted(open_promised(model), sheet, tokens or 128)


def open_promised(model: str) -> Operator:
    """Return the operator of a MODEL where nothing is run: of a checkpoint, of a configuration alone, or of a
    well-known model. Raises InputError for an unknown name; for one that is no path it lists the well-known ones."""
    return shapes(model) if weightless(model) else open_known(model).operator()


def open_known(model: str) -> Checkpoint:
    """Open a MODEL that has weights. Raises InputError for an unknown name; for one that is no path it lists the
    well-known ones."""
    if not (os.path.exists(model) or model in MODELS or os.sep in model):
        find_known(model)
    return open_model(model)


def predicted(model: Operator, sheet: Datasheet, tokens: int = 128) -> tuple[str, dict[str, object]]:
    """Predict the imported program and the cheapest equal one on this machine, for one sentence: seconds, bytes, and
    the units that bound them."""
    extents, layers, spaces = counted([tokens], patterns(model)), parts(model), dict[str, SearchSpace]()
    rows: list[ProgramBounds] = []
    for kind in NUMBER_TYPES:
        machine = replace(sheet, activations=kind)
        for name, laws, fusion in PROGRAMS:
            spaces[name] = space = SearchSpace(
                model, laws, machine, extents, fusion, found=layers, elsewhere=spaces.get(name)
            )
            structure = cheapest(space)
            rows.append(
                ProgramBounds(name, kind, structure.time, structure.memory, shares(structure, machine, extents))
            )
    text = "\n".join(
        [
            f"{sheet.name}, one sentence of {tokens} tokens: lower bounds from its data sheet, nothing was run",
            f"source: {sheet.source}",
            "",
            table(
                [row.cells for row in rows],
                ["", "activations", "µs at least", "MB stored", *(f"{unit} bound" for unit in BOTTLENECKS)],
            ),
        ]
    )
    return text, {
        "machine": sheet.name,
        "source": sheet.source,
        "tokens": tokens,
        "programs": [row._asdict() for row in rows],
    }


class ProgramBounds(NamedTuple):
    """Lower bounds of a program on a machine that is not here."""

    name: str
    activations: str
    predicted_s: float  # seconds, at least
    stored_bytes: float
    bound: dict[str, float]  # unit -> share of the seconds that it decides

    @property
    def cells(self) -> list[str]:
        """The row of the table."""
        return [
            self.name,
            self.activations,
            f"{1e6 * self.predicted_s:.1f}",
            megabytes(self.stored_bytes),
            *(f"{100 * share:.0f} %" for share in self.bound.values()),
        ]


def shares(structure: Structure, machine: Datasheet, extents: Extents) -> dict[str, float]:
    """Return the share of the seconds of a program's kernels that each unit decides."""
    program, _ = structure.program({})
    spent = dict.fromkeys(BOTTLENECKS, 0.0)
    for kernel, sizes in program.cost(extents):
        parts = machine.roofline(kernel, **sizes)
        spent[max(parts, key=lambda unit: parts[unit])] += max(parts.values())
    return {unit: seconds / sum(spent.values()) for unit, seconds in spent.items()}
