"""Measure whether a law of the user's own is in the way: random operators, each searched without and with true laws.

    python benchmarks/own_laws.py [--count 500] [--seed 0] [--laws NAME ...] [--machine A100] [--csv OUT]

Operators are of tests/support/random_operators.py, the twenty laws of tests/support/true_laws.py: laws that pay and
that do not, that subsume what is cheaper, that never end. Each is added alone to the laws of the search, then all of
them together; prices are a data sheet's, so nothing of this machine counts. `dearer`: the program with the law is
predicted to take more than without. `wrong`: a program that a law changed gives other numbers than the model in
float64. `fault`: any exception that is no InputError. None of them may be."""

import time
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from lib import command
from lib.command import Figure, Parser, concluded, count, followed, tabled, takes, whole

import numpy as np
from drawn import compared
from random_operators import random_operator
from true_laws import TRUE_LAWS

from formats.core.errors import InputError
from opmatrix.algebra.batch.extents import collect_needs
from opmatrix.display.tables import table
from opmatrix.runtime.pricing import datasheet
from opmatrix.runtime.program import Program
from rewrites.egraph.layers import outputs
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS
from rewrites.laws.law import Law
from rewrites.search.search import search

SAME = 1e-9  # relative: what sums of prices round
ALL = "all together"
BAD = "dearer", "wrong", "fault"


class WithLaw(NamedTuple):
    """Seconds of a seed's program with a law, over those without, less 1."""

    seed: int
    law: str
    outcome: str
    change: float
    seconds: float
    said: str

    @property
    def case(self) -> str:
        return f"seed {self.seed}, {self.law}"


class Point(NamedTuple):
    """A program as `drawn.compared` looks at one."""

    name: str
    program: Program
    methods: tuple[()] = ()


def with_laws(seed: int, laws: Sequence[Law], machine: object) -> Iterator[WithLaw]:
    """The operator of a seed: what each law changes, and all of them."""
    drawn = random_operator(seed)
    extents = drawn.batch(0).extents(*collect_needs(*outputs(drawn.model).values()))
    find = partial(search, drawn.model, machine=machine, extents=extents)
    try:
        before = find(laws=EXACT_LAWS)
    except (InputError, Infeasible) as error:
        yield WithLaw(seed, "", "refused", 0.0, 0.0, str(error))
        return
    plain = str(before.program({})[0])
    for name, added in [*((law.name, (law,)) for law in laws), (ALL, tuple(laws))]:
        start = time.perf_counter()
        change, outcome, said = 0.0, "same", ""
        try:
            found = find(laws=(*EXACT_LAWS, *added))
            change, said = found.time / before.time - 1, "; ".join(found.cut)
            program = found.program({})[0]
            if str(program) != plain:
                right, off = compared(drawn, Point(name, program))
                outcome = "cheaper" if change < -SAME else "as dear"
                if right != "right":
                    outcome, said = "wrong", off
            if change > SAME:
                outcome = "dearer"
        except Exception as fault:
            outcome, said = "fault", f"{type(fault).__name__}: {fault} {traceback.extract_tb(fault.__traceback__)[-1]}"
        yield WithLaw(seed, name, outcome, change, time.perf_counter() - start, " ".join(said.split()))


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--count", type=count, default=500, help="operators")
    parser.add_argument("--seed", type=whole, default=0, help="of the first; the others follow")
    parser.add_argument(
        "--laws", nargs="*", default=[law.name for law in TRUE_LAWS], help="of tests/support/true_laws.py"
    )
    parser.add_argument("--machine", default="A100", help="a data sheet")
    given = parser.parse_args()
    machine, laws = datasheet(given.machine), [law for law in TRUE_LAWS if law.name in given.laws]
    takes(15 * given.count)
    seeds = range(given.seed, given.seed + given.count)
    rows = followed((row for seed in seeds for row in with_laws(seed, laws, machine)), "searches", BAD)
    shown = []
    for law in [*(law.name for law in laws), ALL]:
        own = [row for row in rows if row.law == law]
        counts = [sum(row.outcome == outcome for row in own) for outcome in ("same", "as dear", "cheaper", *BAD)]
        shown.append(
            [
                law,
                *map(str, counts),
                f"{np.median([row.seconds for row in own] or [0]):.2f}",
                f"{min((row.change for row in own), default=0):.1%}",
            ]
        )
    print(table(shown, ["law", "same", "as dear", "cheaper", *BAD, "s", "best"]))
    tabled(given.csv, [WithLaw._fields, *rows])
    refused = sum(row.outcome == "refused" for row in rows)
    figures = [
        Figure(f"programs of {len(rows)} that are {kind}", sum(row.outcome == kind for row in rows), most=0)
        for kind in BAD
    ]
    concluded(given, [*figures, Figure("operators refused", refused)])
    return int(any(row.outcome in BAD for row in rows))


if __name__ == "__main__":
    command.run(main)
