"""Mutants of every law: how many the checks name, how many are proved equal, and which survive.

    python benchmarks/mutants.py [--csv OUT] [--only exact|kernels] [--list] [--processes 2] [--every 1]

A mutant is a law with one thing changed: a guard dropped, operands exchanged, a transpose, sign or scale put in or left
out, the order of a composition, an index, a term. `law` is how many fail alone on random operators, `e-class` how many
are named in a graph that starts from their own left side, `equal` how many no check names because both sides are proved
to be one, `tried` how many of the kernels lack a guard without which their term was still computed, with numbers. Those
of the kernels are thousands and take minutes; --every 10 judges each tenth.
"""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial

from lib import command
from lib.command import Figure, Parser, concluded, count, say, tabled, takes

from judge import AXIOMS, TRIED, Verdict, judge
from law_mutants import Mutant, kernel_mutants, mutants

from rewrites.laws import EXACT_LAWS
from rewrites.laws.implementation import implementations

COLUMNS = ("kind", "mutants", "law", "e-class", "equal", "tried", "survivors")


def table(verdicts: list[Verdict]) -> list[tuple[str | int, ...]]:
    """A row for each kind of mutant, and their sum."""
    counts = {kind: Counter[str]() for kind in (*sorted({v.mutant.kind for v in verdicts}), "all")}
    for v in verdicts:
        for kind in (v.mutant.kind, "all"):
            counts[kind] += Counter(
                {
                    "mutants": 1,
                    "law": v.law,
                    "e-class": v.graph,
                    "equal": v.equal == AXIOMS,
                    "tried": v.equal == TRIED,
                    "survivors": v.survived,
                }
            )
    return [(kind, *(count[column] for column in COLUMNS[1:])) for kind, count in counts.items()]


def show(name: str, verdicts: list[Verdict], seconds: float, listed: bool) -> list[tuple[str | int, ...]]:
    rows = table(verdicts)
    print(f"{name}: {len(verdicts)} mutants, {seconds:.1f} s")
    for row in (COLUMNS, *rows):
        print("  " + "".join(f"{cell:>12}" for cell in row))
    for v in verdicts:
        if v.survived or (listed and v.equal):
            print(f"  {'SURVIVED' if v.survived else 'equal'}: {v.mutant}" + (f" ({v.equal})" if v.equal else ""))
    return [(name, *row) for row in rows]


MADE = {"exact": partial(mutants, EXACT_LAWS), "kernels": partial(kernel_mutants, [*implementations()])}


@cache
def made(name: str) -> list[Mutant]:
    """All mutants of these: a process makes them itself, as they hold functions."""
    return list(MADE[name]())


def one(name: str, at: int) -> tuple[bool, bool, str]:
    """What becomes of a mutant: a verdict without the mutant."""
    verdict = judge(made(name)[at])
    return verdict.law, verdict.graph, verdict.equal


def judged(name: str, processes: int, every: int) -> tuple[list[Verdict], float]:
    """The verdicts on each so many mutants, and the seconds that it took."""
    start, places = time.perf_counter(), range(0, len(made(name)), every)
    verdicts: list[Verdict] = []
    with ProcessPoolExecutor(processes) as pool:
        for at, found in zip(places, pool.map(partial(one, name), places, chunksize=20), strict=True):
            verdicts.append(Verdict(made(name)[at], *found))
            if len(verdicts) % 200 == 0:
                say(f"{name}: {len(verdicts)} of {len(places)}")
    return verdicts, time.perf_counter() - start


def main() -> int:
    """Run, print a table for each kind of law, write the CSV."""
    parser = Parser(__doc__)
    parser.add_argument("--only", choices=("exact", "kernels"))
    parser.add_argument("--list", action="store_true", help="list what is equal, and why")
    parser.add_argument("--processes", type=count, default=2)
    parser.add_argument("--every", type=count, default=1, metavar="N", help="judge each N-th mutant")
    options = parser.parse_args()
    takes(5 + 270 * 2 / options.processes / options.every)
    rows, survivors = [], 0
    for name in MADE:
        if options.only not in (None, name):
            continue
        verdicts, seconds = judged(name, options.processes, options.every)
        survivors += sum(v.survived for v in verdicts)
        rows += show(name, verdicts, seconds, options.list)
    tabled(options.csv, [("laws", *COLUMNS), *rows])
    judged_in_all = sum(row[2] for row in rows if row[1] == "all")
    concluded(options, [Figure(f"survivors of {judged_in_all} mutants", survivors, most=0)])
    return int(bool(survivors))


if __name__ == "__main__":
    command.run(main)
