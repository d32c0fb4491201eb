"""A model all of whose weights are stored in one narrow format: how far its output is off on text that nothing was
fitted to, and how long it takes beside int8.

    python benchmarks/rounding.py [--model minilm] [--formats int8,balancedint8] [--workload 8x128] [--rounds 15]
                                  [--csv OUT]

The programs are the exact one with its products' weights stored otherwise. Errors are relative, of the whole output
(Frobenius), with all that is rounded: beside them what rounding x alone adds is not told apart from W. Times are
medians of rounds in which all take turns; a share is the median over rounds."""

from dataclasses import replace
from statistics import median

from lib import command
from lib.command import Figure, Parser, concluded, count, listed, named, shape, spread, tabled, takes

import numpy as np

from formats import FORMATS
from opmatrix.algebra.batch.batch import Batch
from opmatrix.display.tables import ms, table
from opmatrix.files.checkpoint import open_model
from opmatrix.runtime.measure import measure
from opmatrix.runtime.pricing import this_machine
from rewrites.approximate.sites import fitter, sites
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.lower import Method
from rewrites.opened import Opened, search_exact
from rewrites.verify.differences import difference
from rewrites.workload.resolve import source
from rewrites.workload.workload import Workload

COLUMNS = "format", "ms", "share", "spread", "error", "megabytes"
BASE = "int8"
BARS = {"balancedint8": 0.025}  # error of MiniLM, at most, as long as int8's EQUAL times
EQUAL = 1.03


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--formats", type=listed, default=[BASE, "balancedint8"])
    parser.add_argument("--workload", type=shape, default=(8, 128), help="sentences x tokens")
    parser.add_argument("--rounds", type=count, default=15)
    given = parser.parse_args()
    named("formats", given.formats, FORMATS)
    takes(6 + given.rounds * len(given.formats) / 10)
    rows = [*measured(given)]
    print(
        table(
            [
                [name, ms(seconds), f"{share:.3f}", f"{100 * error:.3g} %", f"{size:.1f}"]
                for name, seconds, share, _, error, size in rows
            ],
            ["all weights in", "ms", f"of {BASE}", "error", "MB"],
        )
    )
    tabled(given.csv, [COLUMNS, *rows])
    concluded(given, figures(rows, given.model == "minilm"))


def figures(rows, judged):
    """Errors and shares of time, with bars where the model is the one that they were declared for."""
    for name, _, share, wide, error, _ in rows:
        bar = BARS.get(name) if judged else None
        yield Figure(f"{name}: error", 100 * error, "%", most=None if bar is None else 100 * bar)
        if name != BASE:
            yield Figure(f"{name}: time", share, f"x {BASE}", wide, most=None if bar is None else EQUAL)


def measured(given):
    """The rows of the table."""
    checkpoint, (sentences, tokens) = open_model(given.model), given.workload
    workload = Workload.of(checkpoint)
    timed = Batch([np.resize(workload.fit.tokens, tokens)] * sentences)
    workload = replace(workload, timed=timed)
    searched = search_exact(Opened(checkpoint.operator(), workload, this_machine(), EXACT_LAWS, source(checkpoint)))
    exact, programs = searched.exact, {}
    for name in dict.fromkeys([BASE, *given.formats]):
        programs[name] = stored_in(name, searched)
    wanted, times = exact.run(workload.state), measure(programs, [timed], given.rounds)
    for name, program in programs.items():
        shares = [mine / base for mine, base in zip(times[name], times[BASE], strict=True)]
        size = sum(constant.nbytes for constant in program.constants.values()) / 1e6
        yield (
            name,
            median(times[name]),
            median(shares),
            spread(shares) or 0.0,
            difference(program.run(workload.state), wanted),
            size,
        )


def stored_in(name, searched):
    """The exact program with every weight that it multiplies by stored so, fitted to the text's first part."""
    structure, meta = searched.optimum, searched.opened.meta
    program, emitter = structure.program(meta)
    found = [site for site in sites(program, structure, emitter) if site.x]
    keys, method = {site.key for site in found}, Method(name, (), FORMATS[name].metric())

    def decide(part, use, as_it_is):
        return method if (part, use.weight, use.layout) in keys else as_it_is

    return structure.program(meta, decide, {}, fitter(program, found, searched.workload.fit, {}))[0]


if __name__ == "__main__":
    command.run(main)
