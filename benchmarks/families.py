"""One model of every family, as imported, exact, and within an error: time, memory and peak, measured, and as they
were predicted beside it.

    python benchmarks/families.py [--families bert,gpt] [--tokens 128] [--error 0.02] [--rounds 9] [--csv OUT]

Weights are `published` (MiniLM, SmolLM2), `trained` by tests/support/train_models.py (small models over bytes: their
sizes are no one's, their numbers are), or `random` (a network over a graph of 2,000 nodes, each with 8 others). MB
are of what is stored, peak those of values beside it while a batch runs. Each is optimised for one sentence of so
many tokens, or as many as it has positions for; a graph is read whole."""

from collections.abc import Iterator
from functools import reduce
from operator import matmul
from typing import NamedTuple

from lib import command
from lib.command import TESTS, Figure, Parser, concluded, count, listed, named, number, say, tabled, takes

import numpy as np
from scipy.sparse import csr_array

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoids import mean
from opmatrix.algebra.operators import given, product, relation, relu, row, weight
from opmatrix.algebra.term import Operator, formula
from opmatrix.display.tables import table
from opmatrix.files.checkpoint import open_model
from rewrites.report.points import Point
from rewrites.report.results import Result
from rewrites.run import optimize

COLUMNS = (
    "family",
    "model",
    "weights",
    "program",
    "ms",
    "ms_predicted",
    "mb",
    "peak_mb",
    "mb_predicted",
    "error",
    "error_stated",
)
NODES, NEIGHBOURS, WIDE, DEEP = 2000, 8, 128, 3  # of the graph and of its network


class Subject(NamedTuple):
    """What is optimised: a model by name or directory, or an operator with its batch; where its weights are from."""

    model: str
    weights: str


MODELS = {
    "bert": Subject("minilm", "published"),
    "gpt": Subject(str(TESTS / "data" / "gpt2_bytes"), "trained"),
    "llama": Subject("smollm2", "published"),
    "pangu": Subject(str(TESTS / "data" / "pangu_bytes"), "trained"),
    "experts": Subject(str(TESTS / "data" / "mixtral_bytes"), "trained"),
    "graph": Subject("graph network", "random"),
}


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--families", type=listed, default=[*MODELS])
    parser.add_argument("--tokens", type=count, default=128)
    parser.add_argument("--error", type=number(float, 0, 1, "from 0 to 1"), default=0.02)
    parser.add_argument("--rounds", type=count, default=9)
    asked = parser.parse_args()
    named("families", asked.families, MODELS)
    takes(60 * len(asked.families) + 300 * ("llama" in asked.families))
    rows = []
    for name in asked.families:
        rows += rows_of(name, optimised(name, asked.tokens, asked.error, asked.rounds))
        say(name)
    print(table([[*row[:4], *map(shown, row[4:])] for row in rows], COLUMNS, (0, 1, 2, 3)))
    tabled(asked.csv, [COLUMNS, *rows])
    concluded(asked, figures(rows))


def optimised(name: str, tokens: int, error: float, rounds: int) -> Result:
    """What `optimize` finds of a family's model."""
    subject = MODELS[name]
    if name == "graph":
        model, batch = graph_network(np.random.default_rng(0))
        return optimize(model, workload=batch, error=error, rounds=rounds)
    limit = open_model(subject.model).positions
    return optimize(subject.model, tokens=min(tokens, limit), error=error, rounds=rounds, output="rows")


def graph_network(rng: np.random.Generator) -> tuple[Operator, Batch]:
    """Layers of a node beside the mean of its neighbours (Hamilton et al. 2017, GraphSAGE), and a graph."""
    edges = relation("edges", "T", "T")

    def drawn(*shape: int) -> Operator:
        return weight(Data(rng.normal(size=shape) * shape[0] ** -0.5))

    def layer() -> Operator:
        W = drawn(2 * WIDE, WIDE)
        return formula(lambda x: row(x, product(given(edges), x, over=mean)) @ W) @ relu

    to = rng.integers(0, NODES, NODES * NEIGHBOURS)
    matrix = csr_array((np.ones(to.size), to, np.arange(0, to.size + 1, NEIGHBOURS)), (NODES, NODES))
    matrix.sum_duplicates()
    model = reduce(matmul, [drawn(NODES, WIDE), *(layer() for _ in range(DEEP)), drawn(WIDE, WIDE)])
    return model, Batch([range(NODES)], relations={"edges": matrix})


def rows_of(name: str, found: Result) -> Iterator[tuple[str | float, ...]]:
    """As imported, exact and chosen, each once: the chosen one may be exact."""
    subject, timed = MODELS[name], found.workload.timed
    exact = next(point for point in found.points if point.name == "exact")
    for what, point in {"imported": found.imported, "exact": exact, "chosen": found.best}.items():
        peak = point.program.peak_bytes(timed)
        yield (
            name,
            subject.model.rsplit("/", 1)[-1],
            subject.weights,
            what if what != "chosen" else f"chosen: {point.name}",
            *milliseconds(point),
            point.program.stored_bytes / 1e6,
            peak / 1e6,
            point.predicted_bytes / 1e6,
            np.nan if point.measured_error is None else point.measured_error,
            point.stated_error,
        )


def milliseconds(point: Point) -> tuple[float, float]:
    return (np.nan if point.measured_s is None else 1e3 * point.measured_s), 1e3 * point.predicted_s


def shown(value: float) -> str:
    return "" if value != value else f"{value:.4g}"


def figures(rows: list[tuple[str | float, ...]]) -> Iterator[Figure]:
    """Times of exact and chosen programs over the import's; how far predictions are off."""
    by = {(each[0], str(each[3]).split(":")[0]): each for each in rows}
    for name in dict.fromkeys(name for name, *_ in rows):
        imported = by[name, "imported"]
        for what in ("exact", "chosen"):
            for column, of in ((4, "time"), (6, "MB")):
                ratio = float(by[name, what][column]) / float(imported[column])
                yield Figure(f"{name}: {what}, {of} over the import's", ratio)
    off = [100 * abs(float(each[5]) / float(each[4]) - 1) for each in rows if each[4] == each[4]]
    yield Figure("predicted seconds off, median", float(np.median(off)), "%")


if __name__ == "__main__":
    command.run(main)
