"""A small program of the public parts, which `mypy --strict` accepts: what users call has ordinary types."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import opmatrix as om
from formats import FORMATS, Epilogue, Format, from_arrays
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.operators import I, const, layernorm, relu, weight
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.term import Operator
from opmatrix.files.checkpoint import Checkpoint, open_model
from opmatrix.runtime.measure import measure, medians
from opmatrix.runtime.program import Program, Step
from opmatrix.spectra import Spectrum
from rewrites import optimize
from rewrites.extraction import Extraction, Node, Problem, extract
from rewrites.laws import EXACT_LAWS
from rewrites.laws.law import Law
from rewrites.report.points import Point
from rewrites.report.results import Result


def stored(W: NDArray[np.float32], x: NDArray[np.float32]) -> NDArray[np.float32]:
    """A sparse matrix times rows, read back from its arrays first."""
    packed: Format = FORMATS["csr"].approximate(W, density=0.5)
    again: Format = from_arrays(packed.meta(), packed.arrays())
    size: int = again.nbytes
    return again.matmul(x, epilogue=Epilogue(activation="gelu")) * np.float32(size > 0)


def block(W: NDArray[np.float64], b: NDArray[np.float64]) -> Operator:
    """A residual block, as an operator."""
    made: Operator = (I + weight(W) @ relu + const(b)) @ layernorm(1e-5)
    return made


def entry(A: Operator, x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """One entry of an operator matrix, and the whole at x."""
    return float(A[0, 0](2.0)), dense(A, x)


def whole(monoid: type[Monoid], left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """A generalised product, in tiles."""
    monoid.check(np.random.default_rng(0))
    found: NDArray[np.float64] = monoid.product(left, right, tile=8)
    return found


def steps(W: NDArray[np.float32]) -> Program:
    """A program by hand."""
    table: Format = FORMATS["dense"].pack(W)
    return Program([Step("embed", {"table0": "table"}, {"fields": "tokens"}, "h0")], {"table": table}, "h0")


def cheapest() -> Extraction:
    """Two ways to the root; the shared one is cheaper."""
    nodes = [Node("root", ("a",), 1.0), Node("root", ("b",), 2.0), Node("a", (), 5.0), Node("b", (), 1.0)]
    return extract(Problem(nodes, ["root"]))


def laws() -> list[str]:
    """What every law says."""
    ring: tuple[Law, ...] = EXACT_LAWS
    return [law.statement() for law in ring]


def door(W: NDArray[np.float64], out: Path) -> tuple[str, NDArray[np.float32]]:
    """The same by the one import that users need."""
    A: om.Operator = om.weight(W) @ om.relu + om.const(W[0])
    same: bool = om.prove(A, om.I @ A).proved and A.shape == W.shape
    best: om.Program = om.optimize("minilm", error=0.02, laws=om.laws if same else om.laws[:1]).best.program
    best.save(out)
    return om.select(W, rows=8)[0].format, om.load(out).run(om.Batch([[101, 102]]))


def main(model: str, out: Path) -> float:
    """Optimise, run, save, load and time a model."""
    checkpoint: Checkpoint = open_model(model)
    spectrum: Spectrum = Spectrum.of(np.eye(4), "identity")
    found: Result = optimize(model, error=0.02)
    best: Point = found.best
    best.program.save(out)
    program: Program = Program.load(out)
    rows: NDArray[np.float32] = program.run(Batch([[101, 7592, 102]]))
    vectors: NDArray[np.float32] = program.embed(["a sentence"])
    taken = medians(measure({"program": program}, [Batch([[101, 102]])]))
    return taken["program"] + float(rows.sum()) + float(vectors.sum()) + spectrum.stable_rank + len(checkpoint.name)
