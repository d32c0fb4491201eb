"""Structures of int8 beside dense int8: how long a product takes, as a share.

    python benchmarks/structured.py [--shapes 384x1536,768x3072] [--rows 1,16,128] [--caches 2] [--rounds 25] [--csv
    OUT]

Calls are those of a recorded program (see products.py) on one processor, the last that is allowed; candidates take
turns, shares are medians of the shares within a round. N of M is judged at one row, on a square matrix of so many last
caches."""

import os
from statistics import median

from lib import command
from lib.command import Figure, Parser, cell, concluded, count, listed, number, shape, spread, tabled, takes

import numpy as np
from products import F4, ours, rounds_of

from formats import FORMATS
from formats.core.arrays import aligned, room
from formats.core.epilogue import Epilogue
from formats.host.host import caches
from formats.host.threads import limit

DENSE = "int8"
COLUMNS = "form", "inputs", "outputs", "rows", "microseconds", "share", "spread", "megabytes"
BARS = {"blocks 0.5": 0.6, "blocks 0.25": 0.35, "low rank": 0.65, "2:4": 1 / 1.4}  # of dense int8's time
JUDGED, STEP = 128, 1024  # rows of all but 2:4; columns that a large matrix repeats


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--shapes", type=listed, default=["384x1536", "768x3072"])
    parser.add_argument("--rows", type=listed, default=["1", "16", "128"])
    parser.add_argument("--caches", type=number(float, 0, 100, "from 0 to 100"), default=2.0)
    parser.add_argument("--rounds", type=count, default=25)
    given = parser.parse_args()
    shapes, rows = [shape(word) for word in given.shapes], [int(count(word)) for word in given.rows]
    takes(10 + 0.02 * given.rounds * len(shapes) * len(rows))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    table = []
    with limit(1):
        for n, p in shapes:
            table += raced(stored(np.random.default_rng(0).standard_normal((n, p), np.float32)), rows, given.rounds)
        if given.caches:
            table += raced(large(given.caches), [1], given.rounds)
    for line in (COLUMNS, *table):
        print(" ".join(cell(each, 12) for each in line))
    tabled(given.csv, [COLUMNS, *table])
    concluded(given, figures(table))


def stored(W):
    """The forms of a weight; low rank has half the products of dense."""
    (n, p), forms = W.shape, FORMATS
    rank = max(8, n * p // (2 * (n + p)) // 8 * 8)
    return {
        DENSE: forms["int8"].approximate(W),
        "blocks 0.5": forms["blockint8"].approximate(W, density=0.5),
        "blocks 0.25": forms["blockint8"].approximate(W, density=0.25),
        "2:4": forms["nmint8"].approximate(W),
        "low rank": forms["lowrankint8"].pack_factors(W[:, :rank], W[:rank]),
    }


def large(times):
    """Dense and 2:4, dense of so many last caches."""
    side = -(-int((times * caches()[-1]) ** 0.5) // STEP) * STEP
    W = np.tile(np.random.default_rng(0).standard_normal((side, STEP), np.float32), (1, side // STEP))
    return {DENSE: FORMATS["int8"].approximate(W), "2:4": FORMATS["nmint8"].approximate(W)}


def raced(forms, sizes, rounds):
    """The rows of the table for one weight."""
    alive, found, (n, p) = [], [], forms[DENSE].shape
    rng = np.random.default_rng(1)
    for rows in sizes:
        x = aligned(rng.standard_normal((rows, n), np.float32), F4, "x")
        bias = Epilogue(bias=rng.standard_normal(p, np.float32))
        taken = rounds_of(
            {name: ours(each, x, room((rows, p), F4), bias, alive) for name, each in forms.items()}, rounds
        )
        for name, each in forms.items():
            shares = [mine / dense for mine, dense in zip(taken[name], taken[DENSE], strict=True)]
            found.append(
                (name, n, p, rows, 1e6 * median(taken[name]), median(shares), spread(shares) or 0.0, each.nbytes / 1e6)
            )
    return found


def figures(table):
    """Shares, those of the declared rows with their bars."""
    widest = max((row[1] for row in table if row[0] == "2:4" and row[3] == 1), default=0)
    for form, n, p, rows, _, part, apart, _ in table:
        if form == DENSE:
            continue
        judged = (rows, n) == (1, widest) if form == "2:4" else rows == JUDGED
        if judged:
            yield Figure(f"{form}: {n}x{p}, {rows} rows", part, "x int8", apart, most=BARS[form])


if __name__ == "__main__":
    command.run(main)
