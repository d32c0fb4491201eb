"""Errors as the search takes them, against measured ones: of programs, the root of the sum of the squared errors of
their methods and detours; and of methods alone, predicted by one pullback or measured, against those measured on other
rows, from 0.1 to 20 %.

    python benchmarks/errors.py [--model minilm] [--programs 20] [--measure near|all] [--csv OUT]

Methods have their errors on a few sentences, as in `optimize`, programs on other ones. Programs are the fastest and the
smallest over a ladder of errors, all different."""

import time
from math import inf, sqrt
from statistics import median

from lib import command
from lib.command import Figure, Parser, concluded, count, say, tabled, takes

import numpy as np
from scipy.stats import spearmanr

from opmatrix.display.tables import table
from opmatrix.files.checkpoint import open_model
from opmatrix.runtime.pricing import this_machine
from opmatrix.spectra import Limits
from rewrites.approximate.error_levels import OBJECTIVES, describe_methods
from rewrites.approximate.proposals import ERRORS_OF, NEAR_FRONT, propose_methods
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS
from rewrites.opened import Opened, search_exact
from rewrites.run import Proposed, propose_approximations
from rewrites.verify.differences import difference
from rewrites.workload.phases import silence_stdout
from rewrites.workload.resolve import source
from rewrites.workload.workload import Workload

COLUMNS = "program", "predicted", "measured", "factor"
LEAST, MOST = 0.002, 0.4  # errors of the ladder
LEAST_ALONE, MOST_ALONE = 0.001, 0.2  # errors of methods that are compared
LIMITS = Limits(error=0.5, most=6)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--programs", type=count, default=20)
    parser.add_argument("--measure", choices=[*ERRORS_OF], default=NEAR_FRONT)
    given = parser.parse_args()
    takes(20 + 4 * given.programs)
    checkpoint = open_model(given.model)
    with silence_stdout():
        opened = Opened(
            checkpoint.operator(True), Workload.of(checkpoint), this_machine(), EXACT_LAWS, source(checkpoint)
        )
        searched = search_exact(opened)
        start = time.perf_counter()
        proposed = propose_approximations(searched, MOST, measure=given.measure)
        tried_s = time.perf_counter() - start
        say(f"the errors of methods of all weights took {tried_s:.1f} s")
        start = time.perf_counter()
        proved = proposed.choices.choose(0.02, prove=True)
        took = time.perf_counter() - start
        rows = [*programs(proposed, given.programs)]
        alone, others = np.array([*methods(proposed)])
    factors = np.maximum(alone / others, others / alone)
    print(
        table(
            [[row[0], *(f"{100 * each:.3g} %" for each in row[1:3]), f"{row[3]:.2f}"] for row in rows],
            ["program", "predicted", "measured", "factor"],
        )
    )
    tabled(given.csv, [COLUMNS, *rows])
    what = f"predicted and measured errors of {len(rows)} programs apart by a factor of"
    concluded(
        given,
        [
            Figure(f"{what}, at most", max((row[3] for row in rows), default=inf), most=1.3),
            Figure(f"{what}, median", median(row[3] for row in rows) if rows else None, why="no program"),
            Figure(
                f"rank correlation of {len(alone)} errors of single methods with those on other rows",
                float(spearmanr(alone, others).statistic),
                least=0.97,
                ceiling=1,
            ),
            Figure("errors of single methods over those on other rows, median", float(np.median(alone / others))),
            Figure("errors of single methods and those on other rows apart by, median", median(factors), most=1.15),
            Figure("share of single methods within a factor of 1.5", float(np.mean(factors <= 1.5)), least=0.9),
            Figure("seconds of errors of methods and detours, cached ones included", tried_s, "s"),
            Figure(
                f"the search within 2 %, {len(opened.parts)} parts, "
                f"{len(proposed.searched.space.substitutions)} detours",
                took,
                "s",
                most=10,
            ),
            Figure(
                "its gap",
                100 * (1 - proved.bound / proved.time) if proved.bound > 0 else None,
                "%",
                why="nothing is proved",
            ),
        ],
    )


def programs(proposed: Proposed, most: int):
    """Rows of so many different programs, spread over the ladder."""
    searched, choices, found = proposed.searched, proposed.choices, {}
    exact, batch = searched.exact, searched.workload.choose
    for step in range(most):
        for weights in OBJECTIVES:
            try:
                structure = choices.choose(LEAST * (MOST / LEAST) ** (step / max(1, most - 1)), None, weights)
            except Infeasible:
                continue
            if structure.error:
                found[structure.time, structure.memory] = structure
    say(f"{len(found)} programs")
    wanted, every = exact.run(batch), sorted(found.values(), key=lambda each: each.error)
    for at in range(min(most, len(every))):
        structure = every[at * len(every) // min(most, len(every))]
        measured = difference(choices.program(structure, searched.opened.meta).run(batch), wanted)
        predicted = sqrt(structure.error)
        yield describe_methods(structure), predicted, measured, max(predicted / measured, measured / predicted)


def methods(proposed: Proposed):
    """The errors of methods alone as the search has them, and as measured on the rows that states are made of: those
    that these rows put between LEAST_ALONE and MOST_ALONE."""
    searched = proposed.searched
    again = propose_methods(
        searched.space,
        searched.optimum,
        searched.exact,
        searched.emitter,
        searched.opened.representable,
        searched.workload.fit,
        searched.workload.verify,
        LIMITS,
        measure="all",
    )
    pairs = [
        (sqrt(each.error), sqrt(other.error))
        for leaves, found in proposed.choices.measured.items()
        for each in found
        for other in again.measured[leaves]
        if each._replace(error=0) == other._replace(error=0) and LEAST_ALONE <= sqrt(other.error) <= MOST_ALONE
    ]
    yield from zip(*pairs, strict=True)


if __name__ == "__main__":
    command.run(main)
