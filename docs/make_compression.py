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

from lib.command import DATA, Parser, readable, say  # noqa: E402
from lib.sentence_pairs import halves  # noqa: E402

from composition import QUICK_ROWS, Judge, State  # noqa: E402
from errors import joined  # noqa: E402

from formats.disk.files import replacing  # noqa: E402
from opmatrix.files.checkpoint import open_model  # noqa: E402
from opmatrix.runtime.pricing import this_machine  # noqa: E402
from rewrites.approximate.sites import sites  # noqa: E402
from rewrites.laws import EXACT_LAWS  # noqa: E402
from rewrites.lowering.mixed import parse_mix  # noqa: E402
from rewrites.metrics.pairs import SentencePairs  # noqa: E402
from rewrites.opened import Opened, Searched, search_exact  # noqa: E402
from rewrites.run import Frontier, Proposed, compile_kernels, find_front, propose_approximations  # noqa: E402
from rewrites.workload.phases import silence_stdout  # noqa: E402
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
        pairs, checkpoint = joined(SentencePairs.read(judges[0]), judges[1]), open_model("minilm")
        workload = Workload.of(checkpoint, mix=parse_mix("1:8x128"))
        searched = search_exact(
            Opened(checkpoint.operator(True), workload, this_machine(), EXACT_LAWS, source(checkpoint))
        )
        compile_kernels(searched)
        say("searched")
        proposed = propose_approximations(searched, ERROR)
        say("measured methods")
        made: dict[str, Any] = {"spectra": spectra(proposed), "proposed": list_methods(proposed)}
        made["front"] = list_programs(find_front(proposed, ERROR, None))
        say("found the front")
        batch = calibration(text, searched.exact.tokenizer, searched.workload, pairs.texts)
        made["composition"] = taken_apart(searched, next(batch.pieces(QUICK_ROWS)), pairs)
    with replacing(FILE) as raw:
        raw.write((json.dumps(made) + "\n").encode())


def few(values: np.ndarray) -> list[list[float]]:
    """Of falling values: at what share of them each stands, and the value as a share of the first."""
    at = np.unique(np.linspace(0, len(values) - 1, POINTS).round().astype(int))
    return [[round(float(i / len(values)), 4) for i in at], [float(f"{values[i] / values[0]:.3g}") for i in at]]


def spectra(proposed: Proposed) -> list[dict[str, Any]]:
    """Singular values of each weight, the spectrum of what it multiplies, root of the eigenvalues of XᵀX, and how large
    columns of X are beside their mean."""
    searched, found = proposed.searched, []
    for site in sites(searched.exact, searched.optimum, searched.emitter):
        if site.x is None:
            continue
        gram = proposed.choices.seen[site.value].gram.matrix
        numbers, columns = site.numbers(), np.sort(np.sqrt(np.diagonal(gram)))[::-1]
        energy = np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0)
        found.append(
            {
                "name": label(searched, site),
                "shape": numbers.shape,
                "weight": few(np.linalg.svd(numbers, compute_uv=False)),
                "activation": few(np.sqrt(energy)),
                "columns": few(columns),
                "largest_column": float(columns[0] / columns.mean()),
            }
        )
    return found


def label(searched: Searched, site: Any) -> str:
    """A weight by its leaves, joined ones together."""
    lowering = searched.optimum.lowering(site.part)
    leaves = [
        str(term.args[0].label) for term in lowering.terms[site.stored.weight].walk() if term.kind.name == "weight"
    ]
    return " + ".join(leaves)


def list_methods(proposed: Proposed) -> list[dict[str, Any]]:
    """Every method that was measured, with the relative error that it alone brings about."""
    return [
        {
            "format": method.format,
            "parameters": {name: value for name, value in method.parameters if isinstance(value, int | float)},
            "error": method.error**0.5,
        }
        for methods in proposed.choices.measured.values()
        for method in methods
    ]


def list_programs(front: Frontier) -> list[dict[str, Any]]:
    """The programs found, as predicted; errors as measured on rows that choose."""
    return [
        {
            "name": point.name,
            "ms": 1e3 * point.predicted_s,
            "megabytes": point.program.stored_bytes / 1e6,
            "error": point.predicted_error,
        }
        for point in front.points
    ]


def taken_apart(searched: Searched, batch: Any, pairs: SentencePairs) -> list[dict[str, Any]]:
    """Every subset of the composition's techniques, in its order: time and memory as shares of the exact program's."""
    judge, states, found = Judge(searched, pairs), dict[Sequence[str], State](), []
    for count in range(len(COMPOSED) + 1):
        for names in combinations(COMPOSED, count):
            states[names] = states[names[:-1]].by(names[-1], batch) if names else State(searched.opened.operator, {})
            found.append({"techniques": names, **judge.factor(judge.outcome(states[names]))._asdict()})
            say(", ".join(names) or "exact")
    return found


if __name__ == "__main__":
    main()
