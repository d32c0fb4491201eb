"""Extraction on a folder of egraph-serialize JSON files, and on generated graphs: cost, proved bound, greedy, seconds.

    python benchmarks/extraction.py DIR [--csv OUT] [--time-limit S] [--generated]

Beside a file `optima.csv` (columns file, optimum) the costs are compared with the optima. Every answer is checked
against the definition. `closed` is the part of the gap between greedy and bound that is closed; 1 where there is no
gap.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from random import Random

from lib import command
from lib.command import Figure, Parser, concluded, folder, positive, tabled, takes

import scipy.optimize  # noqa: F401  (its import is not extraction's time)

from formats.core.errors import InputError
from formats.disk.files import read_text
from rewrites.extraction import Extraction, Node, Problem, extract, read_problem, verify


def far(random: Random, c: int, classes: int) -> Iterable[int]:
    """Any classes below."""
    return (random.randrange(c) for _ in range(random.randint(1, 3)))


def window(random: Random, c: int, classes: int) -> Iterable[int]:
    """The forty classes below: little is shared far apart, and no bound is tight."""
    return (random.randrange(max(0, c - 40), c) for _ in range(random.choice((1, 2, 2, 3))))


def layers(random: Random, c: int, classes: int) -> Iterable[int]:
    """Layers of twenty classes, each on the one below, as in networks."""
    start = max(0, c // 20 * 20 - 20)
    return (random.randrange(start, min(c, start + 20)) for _ in range(random.choice((1, 2, 2))))


def diamonds(random: Random, c: int, classes: int) -> Iterable[int]:
    """Two classes just below: chains of diamonds."""
    return (max(0, c - 1 - int(random.expovariate(0.3))) for _ in range(2))


def deep(random: Random, c: int, classes: int) -> Iterable[int]:
    """A tree with short cuts: many programs of equal cost."""
    return (
        (c // 2, c // 3)
        if random.random() < 0.2
        else (max(0, c - random.randint(1, 30)) for _ in range(random.randint(1, 2)))
    )


def cover(random: Random, c: int, classes: int) -> Iterable[int]:
    """The upper half of the classes needs some of the lower: a choice of what is shared, over and over."""
    return (random.randrange(classes // 2) for _ in range(random.choice((1, 2, 2)))) if c >= classes // 2 else ()


STRUCTURES = far, window, layers, diamonds, deep, cover
PRICES = lambda random: float(random.randint(1, 10)), lambda random: 10 * random.random(), lambda random: 1.0


def generated(nodes: int, structure: Callable[[Random, int, int], Iterable[int]], cyclic: bool, seed: int) -> Problem:
    """A random problem: four nodes a class; if cyclic, one child in ten is any class, so that most of it is one
    component."""
    random = Random(seed)
    classes = nodes // 4
    leaves = max(1, classes // 50)
    price = PRICES[seed % 3]
    out = []
    for i in range(nodes):
        c = i % classes
        children = [
            random.randrange(classes) if cyclic and i >= classes and random.random() < 0.1 else k
            for k in (structure(random, c, classes) if c >= leaves else ())
        ]
        out.append(Node(c, tuple(children), price(random)))
    roots = range(classes // 2, classes) if structure is cover else range(classes - 3, classes)
    return Problem(out, [*roots])


def problems(folder: Path | None, more: bool) -> Iterator[tuple[str, Problem]]:
    """The files of the folder, small ones first, then the generated graphs."""
    for path in sorted(folder.glob("**/*.json"), key=lambda path: path.stat().st_size) if folder else ():
        yield path.name, read_problem(path)
    for nodes in (2_000, 5_000, 10_000, 30_000) if more else ():
        for seed, (structure, cyclic) in enumerate(product(STRUCTURES, (False, True))):
            name = f"{structure.__name__}_{nodes}_{'cyclic' if cyclic else 'acyclic'}"
            yield name, generated(nodes, structure, cyclic, seed // 2)


def closed(answer: Extraction) -> float:
    """The part of the gap between greedy and bound that the answer closes."""
    gap = answer.greedy - answer.bound
    return (answer.greedy - answer.cost) / gap if gap > 1e-9 * answer.greedy else 1.0


def optima(folder: Path | None) -> dict[str, float]:
    """By file, where they are known."""
    if not folder or not (file := folder / "optima.csv").exists():
        return {}
    try:
        return {row["file"]: float(row["optimum"]) for row in csv.DictReader(read_text(file).splitlines())}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: columns file and optimum: {error}") from None


def asking(doc: str | None, seconds: float) -> Parser:
    """The options that say which graphs are extracted from, and for how long each."""
    parser = Parser(doc)
    parser.add_argument("folder", type=folder, nargs="?", metavar="DIR", help="folder of egraph-serialize JSON files")
    parser.add_argument("--time-limit", type=positive, default=seconds, metavar="S", help="seconds for each graph")
    parser.add_argument("--generated", action="store_true", help="also 2,000 to 30,000 nodes, generated")
    return parser


def main() -> None:
    """Run, print a table, write the CSV."""
    parser = asking(__doc__, 10.0)
    options = parser.parse_args()
    if not options.folder and not options.generated:
        raise InputError("nothing to extract: give a folder, or --generated")
    takes(options.time_limit * (24 * options.generated + (options.folder is not None)) + 10)
    best, rows, proved, wrong = optima(options.folder), [], 0, []
    print(f"{'file':52} {'nodes':>6} {'cost':>12} {'bound':>12} {'greedy':>12} {'closed':>6} {'seconds':>8}")
    for name, problem in problems(options.folder, options.generated):
        answer = extract(problem, time_limit=options.time_limit)
        verify(problem, answer)
        proof = "proved" if answer.optimal else f"gap {answer.gap:.2%}"
        proved += answer.optimal
        if name in best and abs(answer.cost - best[name]) > 1e-6 * best[name]:
            wrong.append(name)
            proof += f", not the optimum {best[name]}"
        print(
            f"{name[-52:]:52} {len(problem.nodes):6} {answer.cost:12.6g} {answer.bound:12.6g} {answer.greedy:12.6g} "
            f"{closed(answer):6.2f} {answer.seconds:8.3f}  {proof}",
            flush=True,
        )
        rows.append([name, len(problem.nodes), answer.cost, answer.bound, answer.greedy, answer.seconds])
    tabled(options.csv, [["file", "nodes", "cost", "bound", "greedy", "seconds"], *rows])
    known = sum(row[0] in best for row in rows)
    concluded(
        options,
        [
            Figure(f"graphs of {len(rows)} solved with a proof", proved),
            Figure(
                f"costs of {known} that are not the known optimum",
                len(wrong) if known else None,
                most=0,
                why="the folder has no optima.csv",
            ),
            Figure("longest", max((row[5] for row in rows), default=None), "s"),
        ],
    )


if __name__ == "__main__":
    command.run(main)
