"""What compression without retraining costs, each technique in three metrics: the whole Gram of what a weight reads
(OBS, whitened), its diagonal (Wanda), or none (magnitude).

    python benchmarks/quality.py [--model minilm] [--pairs CSV] [--only 2:4,units] [--csv OUT]

Weights are fitted layer after layer, on the activations of what is already compressed, to the sentences of every other
pair without its score; the other pairs, of which no sentence was seen, judge. Layer error, cosine and rank correlation
stand side by side, as the first alone orders methods wrongly."""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial, reduce
from operator import matmul
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from lib import command
from lib.command import Figure, Parser, concluded, listed, named, readable, say, tabled, takes

import numpy as np
from all import DATA
from composition import halves
from sparsity import Sparsity, sparsify

from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import I, const, weight
from opmatrix.algebra.oracles import apply_factor, entered, factors
from opmatrix.algebra.term import Operator, substitute
from opmatrix.display.tables import table
from opmatrix.files.checkpoint import open_model
from opmatrix.inference.pooling import normalise_rows
from opmatrix.runtime.pricing import this_machine
from opmatrix.spectra.gram import Gram, low_rank, predicted_error
from rewrites.approximate.removing import METRICS, Level, remove_groups
from rewrites.approximate.structured import weight_and_bias
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.lower import plainly
from rewrites.metrics.pairs import SentencePairs, score_pairs
from rewrites.opened import Opened, Searched, search_exact
from rewrites.search.search import SearchSpace, cheapest
from rewrites.workload.phases import silence_stdout
from rewrites.workload.resolve import source
from rewrites.workload.workload import Workload, calibration

COLUMNS = "technique", "metric", "layer_error", "cosine", "spearman_lost"
NAMES = dict(zip(METRICS, ("OBS", "Wanda", "magnitude"), strict=True))
FFN_LEFT = 0.8  # of the numbers of a feed-forward weight, as two factors


class Technique(NamedTuple):
    """`fit(W, gram=metric)` of every weight that it `takes` (inputs, outputs), or a level of what is removed; what the
    best metric may lose of 100 times the rank correlation at most, and the cosine that it keeps at least."""

    lost: float
    cosine: float
    fit: Callable[..., np.ndarray] | None = None
    takes: Callable[[int, int], bool] = lambda n, p: True
    level: Level | None = None


def project(W: np.ndarray, gram: np.ndarray | None) -> np.ndarray:
    """W (n, p) as the product of two factors of so many numbers as are left."""
    return matmul(*low_rank(W, round(FFN_LEFT * W.size / sum(W.shape)), gram))


TECHNIQUES = {
    "2:4": Technique(0.6, 0.86, partial(sparsify, sparsity=Sparsity(groups=(2, 4)))),
    "half of the entries": Technique(0.4, 0.91, partial(sparsify, sparsity=Sparsity(0.5))),
    "low rank": Technique(0.7, 0.89, project, lambda n, p: n != p),
    "half of the units": Technique(0.3, 0.92, level=Level(0.5)),
}


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--pairs", type=readable, default=DATA / "sts" / "stsb-en-dev.csv")
    parser.add_argument("--only", type=listed, default=list(TECHNIQUES))
    given = parser.parse_args()
    named("only", given.only, TECHNIQUES)
    takes(20 + 75 * len(given.only))
    with tempfile.TemporaryDirectory() as place, silence_stdout():
        rows = [*measured(given, Path(place))]
    print(
        table(
            [[*row[:2], f"{100 * row[2]:.3g} %", f"{row[3]:.4f}", f"{row[4]:.2f}"] for row in rows],
            ["technique", "metric", "layer error", "mean cosine", "Spearman x 100 lost"],
        )
    )
    tabled(given.csv, [COLUMNS, *rows])
    concluded(given, [each for name in given.only for each in figures(name, [row for row in rows if row[0] == name])])


def measured(given, place: Path) -> Iterator[tuple[str, str, float, float, float]]:
    """A row for each technique and metric."""
    text, chooses, judges = halves(Path(given.pairs), place)
    pairs = joined(SentencePairs.read(chooses), judges)
    checkpoint = open_model(given.model)
    searched = search_exact(
        Opened(checkpoint.operator(True), Workload.of(checkpoint), this_machine(), EXACT_LAWS, source(checkpoint))
    )
    exact = searched.exact
    batch = calibration(text, exact.tokenizer, searched.workload, pairs.texts)
    say(f"fitted to {batch.rows} tokens, judged by {len(pairs)} pairs")
    whole, wanted = scored(exact, pairs)
    for name in given.only:
        for metric in METRICS:
            model, errors = compressed(searched.opened.operator, TECHNIQUES[name], batch, metric)
            correlation, found = scored(programmed(searched, model), pairs)
            yield name, NAMES[metric], fmean(errors), float((found * wanted).sum(1).mean()), whole - correlation
            say(f"{name}, {NAMES[metric]}")


def joined(*parts: SentencePairs) -> SentencePairs:
    return SentencePairs(
        tuple(text for each in parts for text in each.texts), np.concatenate([each.scores for each in parts])
    )


def scored(program, pairs: SentencePairs) -> tuple[float, np.ndarray]:
    """The rank correlation of a program, times 100, and its embeddings, of length one."""
    return (
        score_pairs("the model", program, pairs).spearman,
        normalise_rows(program.embed(pairs.texts, progress=False)).astype(np.float64),
    )


def programmed(searched: Searched, model: Operator):
    """The fastest program of a model whose sizes are those of the searched one."""
    whole = searched.space
    space = SearchSpace(model, whole.laws, whole.machine, whole.extents, like=whole)
    return cheapest(space, plainly).program(searched.opened.meta)[0]


def compressed(model: Operator, technique: Technique, batch, metric: str) -> tuple[Operator, list[float]]:
    """The model by a technique, at its old sizes, and the relative error of each layer that was changed."""
    if technique.level is not None:
        less = remove_groups(model, technique.level, batch, metric)
        return less.zeroed, [cut.error for cut in less.cuts]
    first, *rest = factors(model)  # tables are looked up
    x, made, errors = apply_factor(first, entered(model, batch, dtype=np.float32)), [first], list[float]()
    for factor in rest:
        for at in range(sum(1 for _ in matrices(factor))):
            node, before = [*matrices(factor)][at]
            if not technique.takes(*weight_and_bias(node)[0].shape):
                continue
            fitted, error = fit(node, apply_factor(before, x).array, technique, metric)
            factor = substitute(factor, {node: fitted})
            errors.append(error)
        made.append(factor)
        x = apply_factor(factor, x)
    return reduce(matmul, made), errors


def matrices(term: Operator, before: Operator = I) -> Iterator[tuple[Operator, Operator]]:
    """Every weight of a factor, with its bias, and what leads to it from the factor's input, in order."""
    if weight_and_bias(term) is not None:
        yield term, before
    elif term.kind.name == "compose":
        makes, reads = term.children
        yield from matrices(makes, before)
        yield from matrices(reads, before @ makes)
    else:
        for child in term.children:
            yield from matrices(child, before)


def fit(node: Operator, rows: np.ndarray, technique: Technique, metric: str) -> tuple[Operator, float]:
    """A weight by a technique, fitted to rows (T, n) that it reads, and its relative output error there. What OBS loses
    on average goes to the bias, if there is one."""
    (data, shift), gram = weight_and_bias(node), Gram.of(rows)
    W, mean = np.asarray(data.array, np.float64), gram.total / gram.rows
    whole = gram.matrix / gram.rows if shift is None else gram.covariance
    assert technique.fit is not None
    found = technique.fit(W, gram={"gram": whole, "diagonal": np.diagonal(gram.matrix), "none": None}[metric])
    made = weight(Data(found.astype(np.float32), data.label))
    error = predicted_error(W, found, whole)
    if shift is None:
        return made, error
    bias = shift.array + (mean @ (W - found) if metric == "gram" else 0.0)
    return made + const(Data(bias.astype(np.float32), shift.label)), error


def figures(name: str, rows) -> list[Figure]:
    """Of a technique."""
    best, *others = rows
    technique = TECHNIQUES[name]
    return [
        Figure(f"{name}: Spearman x 100 lost", best[4], most=technique.lost),
        Figure(f"{name}: mean cosine", best[3], least=technique.cosine),
        Figure(f"{name}: cosine above Wanda's and magnitude's", best[3] - max(each[3] for each in others), least=0.0),
    ]


if __name__ == "__main__":
    command.run(main)
