"""A layer of a graph, by mean and by maximum over neighbours (Hamilton et al. 2017, GraphSAGE), found by the search
from a term over nodes of a space of their own, whose features enter as a matrix; and its product with the relation
against scipy's, each on two threads.

    python benchmarks/graph.py [--nodes 5000] [--edges 50000] [--width 128] [--rounds 41] [--csv OUT]"""

from concurrent.futures import ThreadPoolExecutor
from statistics import median

from lib import command
from lib.command import Figure, Parser, cell, concluded, count, spread, tabled, takes

import numpy as np

from formats import kernels
from formats.host.threads import limit
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import collect_needs
from opmatrix.algebra.monoids import max as largest
from opmatrix.algebra.monoids import mean
from opmatrix.algebra.operators import gelu, given, product, relation, row, weight
from opmatrix.algebra.term import formula
from opmatrix.runtime.measure import measure
from opmatrix.runtime.pricing import this_machine
from opmatrix.runtime.scheme import Running
from rewrites.laws import EXACT_LAWS
from rewrites.search.search import search
from rewrites.verify import unrounded

COLUMNS = "over", "steps", "layer_ms", "float64_off", "float32_off"
THREADS = 2


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--nodes", type=count, default=5000)
    parser.add_argument("--edges", type=count, default=50000)
    parser.add_argument("--width", type=count, default=128)
    parser.add_argument("--rounds", type=count, default=41)
    sizes = parser.parse_args()
    takes(15 + 0.02 * sizes.rounds)
    from scipy.sparse import random_array

    rng = np.random.default_rng(0)
    links = random_array((sizes.nodes, sizes.nodes), density=sizes.edges / sizes.nodes**2, rng=rng, format="csr")
    features, W = (
        rng.normal(size=(sizes.nodes, sizes.width)),
        rng.normal(size=(2 * sizes.width, sizes.width)) * sizes.width**-0.5,
    )
    batch, machine = Batch(relations={"edges": links}, inputs={"features": features}), this_machine()
    table, figures = [COLUMNS], list[Figure]()
    for over in (mean, largest):
        line, off = layer(over, features, W, links, batch, machine, sizes.rounds)
        table.append(line)
        figures.append(Figure(f"a layer over {over.__name__}: off in float64", off, most=1e-12))
    ratios = raced(links, features.astype(np.float32), sizes.rounds)
    figures.append(
        Figure(
            f"product with the relation over scipy's, {THREADS} threads", median(ratios), "x", spread(ratios), most=1.2
        )
    )
    for line in table:
        print(" ".join(cell(each, 12) for each in line))
    tabled(sizes.csv, table)
    concluded(sizes, figures)


def layer(over, features, W, links, batch, machine, rounds):
    """The layer as a program against numpy: a row of the table, and how far its float64 meaning is off."""
    edges = relation("edges", "V", "V")
    layer = formula(lambda x: row(x, product(given(edges), x, over=over)) @ weight(W)) @ gelu
    term = given("features", features.shape[1], "V") @ layer
    found = search(term, EXACT_LAWS, Running.of(machine, batch.starts), batch.extents(*collect_needs(term)))
    program, emitter = found.program({})
    wanted = by_hand(over, features, W, links)
    exact, ran = program.exact(batch, unrounded(found, emitter)), program.run(batch)
    off, rough = (float(np.linalg.norm(each - wanted) / np.linalg.norm(wanted)) for each in (exact, ran))
    taken = measure({"layer": program}, [batch], max(3, rounds // 4))["layer"]
    return (over.__name__, " ".join(step.kernel for step in program.steps), 1e3 * median(taken), off, rough), off


def by_hand(over, features, W, links):
    """The same by scipy and numpy, in float64."""
    from scipy.special import erf

    counts = np.diff(links.indptr)
    if over is mean:
        beside = links @ features / np.maximum(counts, 1)[:, None]
    else:
        beside = np.full(features.shape, -np.inf)
        np.maximum.at(beside, np.repeat(np.arange(len(counts)), counts), links.data[:, None] * features[links.indices])
    with np.errstate(invalid="ignore"):
        z = np.hstack([features, beside]) @ W
        return z * 0.5 * (1 + erf(z / 2**0.5))


def raced(links, x, rounds):
    """Ours over scipy's, in turn. scipy multiplies with one thread, so each of two takes half of the rows."""
    links, out, half = links.astype(np.float32), np.empty_like(x), links.shape[0] // 2
    starts, at = (np.asarray(each, np.int64) for each in (links.indptr, links.indices))
    parts = links[:half], links[half:]
    with ThreadPoolExecutor(THREADS) as pool, limit(THREADS):
        runs = {
            "ours": lambda batch: kernels.link_rows(x, starts, at, links.data, out, "sum"),
            "scipy": lambda batch: [*pool.map(lambda part: part @ x, parts)],
        }
        taken = measure(runs, [None], rounds)
        assert np.allclose(out, links @ x, rtol=1e-4, atol=1e-4)
    return [a / b for a, b in zip(taken["ours"], taken["scipy"], strict=True)]


if __name__ == "__main__":
    command.run(main)
