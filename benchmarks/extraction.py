"""Extraction on a folder of egraph-serialize JSON files, and on generated graphs: cost, proved bound, greedy, seconds.

    python benchmarks/extraction.py DIR [--csv OUT] [--time-limit S] [--generated]

Beside a file `optima.csv` (columns file, optimum) the costs are compared with the optima. Every answer is checked against the
definition. `closed` is the part of the gap between greedy and bound that is closed; 1 where there is no gap.
"""
from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import scipy.optimize  # noqa: F401  (its import is not extraction's time)

sys.path.insert(0, str(Path(__file__).parents[1]))

from rewrites.extraction import Extraction, Node, Problem, extract, read, verify


def generated(nodes: int, window: int, cyclic: bool, seed: int) -> Problem:
    """A random problem: three nodes a class, up to three children among the `window` classes below, and if cyclic above."""
    random = Random(seed)
    classes = nodes // 3
    leaves = max(1, classes // 20)
    price = random.choice((lambda: float(random.randint(1, 10)), lambda: 10 * random.random(), lambda: 1.0))

    def child(c: int) -> int:
        above = cyclic and random.random() < 0.3
        return random.randrange(max(0, c - window), min(classes, c + window) if above else c)

    out = []
    for i in range(nodes):
        c = i % classes
        children = tuple(child(c) for _ in range(random.choice((1, 2, 2, 3)))) if c >= leaves else ()
        out.append(Node(c, children, price()))
    return Problem(out, [classes - 1, classes - 2, classes - 3])


def problems(folder: Path | None, more: bool) -> Iterator[tuple[str, Problem]]:
    """The files of the folder, small ones first, then the generated graphs."""
    for path in sorted(folder.glob("**/*.json"), key=lambda path: path.stat().st_size) if folder else ():
        yield path.name, read(path)
    for nodes in (2_000, 5_000, 10_000, 30_000) if more else ():
        for window in (40, 400):
            for cyclic in (False, True):
                yield f"generated_{nodes}_{window}_{'cyclic' if cyclic else 'acyclic'}", generated(nodes, window, cyclic, nodes)


def closed(answer: Extraction) -> float:
    """The part of the gap between greedy and bound that the answer closes."""
    gap = answer.greedy - answer.bound
    return (answer.greedy - answer.cost) / gap if gap > 1e-9 * answer.greedy else 1.0


def main() -> None:
    """Run, print a table, write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", metavar="DIR", help="folder of egraph-serialize JSON files")
    parser.add_argument("--csv", type=Path, metavar="OUT", help="write the columns file, nodes, cost, bound, greedy, seconds")
    parser.add_argument("--time-limit", type=float, default=10.0, metavar="S", help="seconds for each graph")
    parser.add_argument("--generated", action="store_true", help="also 2,000 to 30,000 nodes, generated")
    options = parser.parse_args()
    best = {}
    if options.folder and (options.folder / "optima.csv").exists():
        with (options.folder / "optima.csv").open() as file:
            best = {row["file"]: float(row["optimum"]) for row in csv.DictReader(file)}
    rows = []
    print(f"{'file':52} {'nodes':>6} {'cost':>12} {'bound':>12} {'greedy':>12} {'closed':>6} {'seconds':>8}")
    for name, problem in problems(options.folder, options.generated):
        answer = extract(problem, time_limit=options.time_limit)
        verify(problem, answer)
        proof = "proved" if answer.optimal else f"gap {answer.gap:.2%}"
        if name in best and abs(answer.cost - best[name]) > 1e-6 * best[name]:
            proof += f", not the optimum {best[name]}"
        print(f"{name[-52:]:52} {len(problem.nodes):6} {answer.cost:12.6g} {answer.bound:12.6g} {answer.greedy:12.6g} "
              f"{closed(answer):6.2f} {answer.seconds:8.3f}  {proof}", flush=True)
        rows.append([name, len(problem.nodes), answer.cost, answer.bound, answer.greedy, answer.seconds])
    if options.csv:
        with options.csv.open("w", newline="") as file:
            csv.writer(file).writerows([["file", "nodes", "cost", "bound", "greedy", "seconds"], *rows])


if __name__ == "__main__":
    main()
