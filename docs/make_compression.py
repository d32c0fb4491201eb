"""Writes docs/compression.json, what the notebook docs/compression.ipynb draws: spectra of MiniLM, what they propose,
a front, and one composition taken apart. About two minutes on two quiet cores.

    python docs/make_compression.py [--pairs CSV]"""
import json
import sys
import tempfile
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "benchmarks")]

from command import Parser, readable, say  # noqa: E402
from composition import DATA, halves  # noqa: E402
from interactions import QUICK_ROWS, Judge, State  # noqa: E402
from quality import joined  # noqa: E402

from formats.disk.files import replacing  # noqa: E402
from opmatrix.files.checkpoint import open_model  # noqa: E402
from opmatrix.pricing import this_machine  # noqa: E402
from rewrites.approximate.sites import sites  # noqa: E402
from rewrites.evaluate.pairs import Pairs  # noqa: E402
from rewrites.laws import EXACT_LAWS  # noqa: E402
from rewrites.lower.mixed import parse_mix  # noqa: E402
from rewrites.phases import Report, silence_stdout  # noqa: E402
from rewrites.run import Run  # noqa: E402
from rewrites.workload.resolve import source  # noqa: E402
from rewrites.workload.workload import Workload, calibration  # noqa: E402

FILE, POINTS, ERROR = HERE / "compression.json", 48, 0.02
COMPOSED = "units", "heads", "int8"


def main() -> None:
    parser = Parser(__doc__, table=False)
    parser.add_argument("--pairs", type=readable, default=DATA / "sts" / "stsb-en-dev.csv")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, silence_stdout():
        text, *judges = halves(Path(given.pairs), Path(place))
        pairs, checkpoint = joined(Pairs.read(judges[0]), judges[1]), open_model("minilm")
        run = Run(checkpoint.operator(True), Workload.of(checkpoint, mix=parse_mix("1:8x128")), this_machine(),
                  EXACT_LAWS, Report(quiet=True), source(checkpoint))
        run.explore()
        run.compile()
        say("searched")
        run.approximate(ERROR, lambda *_: None)
        say("measured methods")
        made: dict[str, Any] = {"spectra": spectra(run), "proposed": proposed(run)}
        run.front(ERROR, None)
        made["front"] = front(run)
        say("found the front")
        batch = calibration(text, run.programs["exact"].tokenizer, run.workload, pairs.texts)
        made["composition"] = taken_apart(run, next(batch.pieces(QUICK_ROWS)), pairs)
    with replacing(FILE) as raw: raw.write((json.dumps(made) + "\n").encode())


def few(values: np.ndarray) -> list[list[float]]:
    """Of falling values: at what share of them each stands, and the value as a share of the first."""
    at = np.unique(np.linspace(0, len(values) - 1, POINTS).round().astype(int))
    return [[round(float(i / len(values)), 4) for i in at], [float(f"{values[i] / values[0]:.3g}") for i in at]]


def spectra(run: Run) -> list[dict[str, Any]]:
    """Singular values of each weight, the spectrum of what it multiplies, root of the eigenvalues of XᵀX, and how large
    columns of X are beside their mean."""
    assert run.choices is not None
    found, program = [], run.programs["exact"]
    for site in sites(program, run.structures["exact"], run.emitter):
        if site.x is None: continue
        gram = run.choices.seen[site.value].gram.matrix
        numbers, columns = site.numbers(), np.sort(np.sqrt(np.diagonal(gram)))[::-1]
        energy = np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0)
        found.append({"name": label(run, site), "shape": numbers.shape,
                      "weight": few(np.linalg.svd(numbers, compute_uv=False)), "activation": few(np.sqrt(energy)),
                      "columns": few(columns), "largest_column": float(columns[0] / columns.mean())})
    return found


def label(run: Run, site: Any) -> str:
    """A weight by its leaves, joined ones together."""
    lowering = run.structures["exact"].lowering(site.part)
    leaves = [str(term.args[0].label) for term in lowering.terms[site.stored.weight].walk()
              if term.kind.name == "weight"]
    return " + ".join(leaves)


def proposed(run: Run) -> list[dict[str, Any]]:
    """Every method that was measured, with the relative error that it alone brings about."""
    assert run.choices is not None
    return [{"format": method.format, "parameters": {name: value for name, value in method.parameters
                                                     if isinstance(value, int | float)}, "error": method.error ** 0.5}
            for methods in run.choices.measured.values() for method in methods]


def front(run: Run) -> list[dict[str, Any]]:
    """The programs found, as predicted; errors as measured on rows that choose."""
    return [{"name": point.name, "ms": 1e3 * point.predicted_s, "megabytes": point.program.stored_bytes / 1e6,
             "error": point.predicted_error} for point in run.points]


def taken_apart(run: Run, batch: Any, pairs: Pairs) -> list[dict[str, Any]]:
    """Every subset of the composition's techniques, in its order: time and memory as shares of the exact program's."""
    judge, states, found = Judge(run, pairs), dict[Sequence[str], State](), []
    for count in range(len(COMPOSED) + 1):
        for names in combinations(COMPOSED, count):
            states[names] = states[names[:-1]].by(names[-1], batch) if names else State(run.operator, {})
            found.append({"techniques": names, **judge.factor(judge.outcome(states[names]))._asdict()})
            say(", ".join(names) or "exact")
    return found


if __name__ == "__main__": main()
