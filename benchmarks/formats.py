"""How long x @ W takes in every format, against dense, over the density of W and the rows of x.

    python benchmarks/formats.py [--rows 1 16 128 1024] [--rounds 15] [--patterns] [--csv OUT]

A random W of 384 by 1536 is fitted to every format at each density (low rank: the rank that stores as many numbers).
With --patterns, the patterns of pruned transformers in OPMATRIX_DATA (DLMC: Gale et al. 2020) are packed as they are.
One round times every format once, in turn; times are medians over rounds, ratios medians of the rounds' ratios."""
import argparse
import csv
import gzip
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[0] = str(ROOT)                                      # not this folder: its formats.py is not the package

import numpy as np  # noqa: E402

from formats import CSR, NM, Block, Dense, Half, LowRank  # noqa: E402
from formats.sizes import T  # noqa: E402

DATA = Path(os.environ.get("OPMATRIX_DATA", ROOT.parent / "shared" / "data"))
SHAPE, DENSITIES = (384, 1536), (0.5, 0.25, 0.125, 0.0625)
TILES = (16, 16), (8, 8), (32, 1)
COLUMNS = "pattern", "inputs", "outputs", "density", "rows", "format", "bytes", "microseconds", "times_dense"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 128, 1024])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--patterns", action="store_true", help="also the patterns of DLMC")
    parser.add_argument("--csv", type=Path, help="write the table there, too")
    arguments = parser.parse_args()
    rng, table = np.random.default_rng(0), []
    for name, candidates in [*fitted(rng), *(patterns(rng) if arguments.patterns else [])]:
        for rows in arguments.rows:
            table += measured(name, candidates, rows, arguments.rounds, rng)
            show(table[-len(candidates):])
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file: csv.writer(file).writerows([COLUMNS, *table])


def fitted(rng):
    """(name, formats) at each density: dense first, the others as near to W as they get."""
    W = rng.standard_normal(SHAPE, np.float32)
    for density in DENSITIES:
        group = max(4, round(1 / density))
        options = [(Dense, {}), (Half, {}), (CSR, {"density": density}),
                   *((Block, {"density": density, "tile": tile}) for tile in TILES),
                   (NM, {"n": round(density * group), "m": group}),
                   (LowRank, {"rank": round(density * W.size / sum(SHAPE))})]
        yield f"random {density:g}", [F.approximate(W, **given) for F, given in options]


def patterns(rng):
    """(name, formats that hold it in fewer bytes than dense) for each pattern of DLMC, with normal numbers."""
    for path in sorted((DATA / "dlmc").glob("*.smtx.gz")):
        (outputs, inputs, stored), starts, columns = (
            np.array(line.replace(",", " ").split(), int) for line in gzip.open(path, "rt").read().split("\n")[:3])
        W = np.zeros((inputs, outputs), np.float32)
        W[columns, np.repeat(np.arange(outputs), np.diff(starts))] = rng.standard_normal(stored)
        most = max(1, int((W != 0).T.reshape(outputs, -1, 16).sum(2).max()))
        tried = [(CSR, {}), *((Block, {"tile": tile}) for tile in TILES), (NM, {"n": most, "m": 16})]
        dense = Dense.pack(W)
        held = [packed for F, given in tried if (packed := F.pack(W, **given)).nbytes < dense.nbytes]
        yield path.name.removesuffix(".smtx.gz").replace("transformer__", ""), [dense, *held]


def measured(name, candidates, rows, rounds, rng):
    """The rows of the table for one matrix and one number of rows."""
    x = rng.standard_normal((rows, candidates[0].shape[0]), np.float32)
    out = np.empty((rows, candidates[0].shape[1]), np.float32)
    repeats = [max(1, round(5e-4 / once(packed, x, out, 3))) for packed in candidates]
    seconds = np.array([[once(packed, x, out, repeat) for packed, repeat in zip(candidates, repeats, strict=True)]
                        for _ in range(rounds)])
    ratios = np.median(seconds / seconds[:, :1], 0)
    for packed, second, ratio in zip(candidates, np.median(seconds, 0), ratios, strict=True):
        stored = packed.flops.subs(packed.sizes) / (2 * T)
        density = float(stored / (packed.shape[0] * packed.shape[1]))
        label = repr(packed).replace(f"({packed.shape[0]}×{packed.shape[1]}", "(").replace("(, ", "(").replace("()", "")
        yield (name, *packed.shape, round(density, 4), rows, label, packed.nbytes,
               float(round(second * 1e6, 1)), float(round(ratio, 3)))


def once(packed, x, out, repeat):
    """Seconds of one product, from so many in a row after one to warm up."""
    packed.matmul(x, out)
    started = time.perf_counter()
    for _ in range(repeat): packed.matmul(x, out)
    return (time.perf_counter() - started) / repeat


def show(lines):
    """A few rows of the table, with the fastest marked."""
    name, inputs, outputs, _, rows, *_ = lines[0]
    print(f"\n{name}  {inputs}×{outputs}  {rows} rows")
    least = min(line[-1] for line in lines)
    for *_, density, _, label, stored, micro, ratio in lines:
        print(f"  {label:40s} {density:7.3f} {stored:10,d} bytes {micro:10.1f} µs {ratio:7.2f} × dense"
              f"{'  fastest' if ratio == least else ''}")


if __name__ == "__main__": main()
