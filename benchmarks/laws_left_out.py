"""Whether a law is in the way: of random transformers, what the exact search finds with each law that fired left
out.

    python benchmarks/laws_left_out.py [--count 20] [--seed 0] [--machine A100] [--csv OUT]

Models are of tests/support/random_models.py: shared keys, biases, gates, norms, windows; prices are a data sheet's,
so nothing of this machine counts. With all laws no program may be dearer than without one: what is, hides another
form, by its phase or by what it subsumes."""

from collections.abc import Iterator
from typing import NamedTuple

from lib import command
from lib.command import Figure, Parser, concluded, count, say, tabled, takes, whole

import numpy as np
from random_models import random_config, random_weights

from opmatrix.algebra.batch.extents import collect_needs, counted
from opmatrix.display.tables import table
from opmatrix.models import build
from opmatrix.runtime.pricing import datasheet
from rewrites.laws import EXACT_LAWS, without
from rewrites.search.search import search

LENGTHS = 24, 1, 7
SAME = 1e-9  # relative: what sums of prices round


class LeftOut(NamedTuple):
    """What a model's program takes without a law, over what it takes with all, less 1."""

    seed: int
    law: str
    change: float


def left_out(seed: int, machine: object) -> Iterator[LeftOut]:
    """Each law that fired for the model of a seed."""
    config = random_config(np.random.default_rng(seed))
    model = build(config, random_weights(config, np.random.default_rng(seed)))
    extents = counted([*LENGTHS], collect_needs(model)[0])
    every = search(model, EXACT_LAWS, machine, extents)
    for law in sorted(every.fired):
        found = search(model, without(EXACT_LAWS, [law]), machine, extents)
        yield LeftOut(seed, law, found.time / every.time - 1)


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--count", type=count, default=20, help="models")
    parser.add_argument("--seed", type=whole, default=0, help="of the first; the others follow")
    parser.add_argument("--machine", default="A100", help="a data sheet")
    given = parser.parse_args()
    machine, rows = datasheet(given.machine), list[LeftOut]()
    takes(12 * given.count)
    for seed in range(given.seed, given.seed + given.count):
        rows += left_out(seed, machine)
        say(f"model {seed}: {sum(row.seed == seed for row in rows)} laws")
    hiding = [row for row in rows if row.change < -SAME]
    shown = [[str(row.seed), row.law, f"{row.change:.3%}"] for row in hiding]
    if shown:
        print(table(shown, ["model", "without", "takes"]))
    tabled(given.csv, [LeftOut._fields, *rows])
    concluded(given, [Figure(f"programs of {len(rows)} that are cheaper without a law", len(hiding), most=0)])
    return int(bool(hiding))


if __name__ == "__main__":
    command.run(main)
