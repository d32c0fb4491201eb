"""Mutants of every law: how many the checks name, how many are proved equal, and which survive.

    python benchmarks/mutants.py [--csv OUT] [--only exact|kernels|values] [--list]

A mutant is a law with one thing changed: a guard dropped, operands exchanged, a transpose, sign or scale put in or left out,
the order of a composition, an index, a term. `law` is how many fail alone on random operators, `e-class` how many are named in
a graph that starts from their own left side, `equal` how many no check names because both sides are proved to be one.
"""
from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from rewrites.laws import EXACT_LAWS
from rewrites.laws.implementation import IMPLEMENTATIONS
from rewrites.verify.judge import Verdict, judge
from rewrites.verify.mutants import kernel_mutants, mutants

COLUMNS = ("kind", "mutants", "law", "e-class", "equal", "survivors")


def table(verdicts: list[Verdict]) -> list[tuple[str | int, ...]]:
    """A row for each kind of mutant, and their sum."""
    counts = {kind: Counter[str]() for kind in (*sorted({v.mutant.kind for v in verdicts}), "all")}
    for v in verdicts:
        for kind in (v.mutant.kind, "all"):
            counts[kind] += Counter({"mutants": 1, "law": v.law, "e-class": v.graph, "equal": bool(v.equal),
                                     "survivors": v.survived})
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


def main() -> None:
    """Run, print a table for each kind of law, write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--only", choices=("exact", "kernels"))
    parser.add_argument("--list", action="store_true", help="list what is equal, and why")
    options = parser.parse_args()
    rows, survivors = [], 0
    for name, made in (("exact", mutants(EXACT_LAWS)), ("kernels", kernel_mutants(IMPLEMENTATIONS))):
        if options.only not in (None, name):
            continue
        start = time.process_time()
        verdicts = [judge(mutant) for mutant in made]
        survivors += sum(v.survived for v in verdicts)
        rows += show(name, verdicts, time.process_time() - start, options.list)
    if options.csv:
        with options.csv.open("w", newline="") as file:
            csv.writer(file).writerows([("laws", *COLUMNS), *rows])
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
