"""Attention over masks by blocks against attention that computes all scores, or those within reach.

    python benchmarks/masks.py [--lengths 512 2048] [--heads 8] [--width 64] [--blocks 32 64 128] [--rounds 9] [--csv OUT]

All take turns in one process; `whole` is attention without a mask, `reach` leaves out what is beyond a causal or
a window's reach, and is empty where a pattern is no range of keys."""
import argparse

import command
import numpy as np
from command import Figure, Parser, cell, concluded, count, say, spread, tabled, takes

from formats import Mask, kernels
from formats.threads import threads
from opmatrix.measure import measure, medians

COLUMNS = ("pattern", "length", "block", "threads", "share", "bytes", "mask_ms", "whole_ms", "reach_ms", "times_whole",
           "error", "spread")
FAR = 2 ** 40
EXACT = 1e-5                                                # relative, of float32
PATTERNS = {
    "causal": (Mask.causal, (FAR, 0)),
    "window 64": (lambda length, block: Mask.window(length, 64, block=block), (64, 64)),
    "bigbird": (lambda length, block: Mask.bigbird(length, block=block), None),
    "sentences of 100": (lambda length, block: Mask.sentences([100] * (length // 100) + [length % 100], block=block), None),
}


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--lengths", type=count, nargs="+", default=[512, 2048])
    parser.add_argument("--heads", type=count, default=8)
    parser.add_argument("--width", type=count, default=64)
    parser.add_argument("--blocks", type=count, nargs="+", default=[32, 64, 128])
    parser.add_argument("--rounds", type=count, default=9)
    given = parser.parse_args()
    takes(3 + 4e-8 * sum(length ** 2 for length in given.lengths) * given.rounds * given.heads / 8 * len(PATTERNS))
    rows = []
    for length in given.lengths:
        rows += [row for name in PATTERNS for row in raced(name, length, given)]
        say(f"{length} tokens")
    print(" ".join(f"{name:>16}" for name in COLUMNS))
    for row in rows: print(" ".join(cell(each, 16) for each in row))
    tabled(given.csv, [COLUMNS, *rows])
    concluded(given, figures(rows))


def figures(rows: list[tuple]) -> list[Figure]:
    """What is gained by the best block of each pattern, on the longest sentence; and the worst error."""
    found = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    longest = [row for row in found if row["length"] == max(row["length"] for row in found)]
    best = [max((row for row in longest if row["pattern"] == name), key=lambda row: row["times_whole"])
            for name in PATTERNS]
    said = "{pattern}: times as fast as all scores, {share:.0%} of which are kept"
    return [*(Figure(said.format(**row), row["times_whole"], "x", row["spread"]) for row in best),
            Figure("largest relative error", max(row["error"] for row in found), most=EXACT)]


def raced(name: str, length: int, given: argparse.Namespace) -> list[tuple]:
    """A row for each side of a block."""
    make, reach = PATTERNS[name]
    rng, shape, starts = np.random.default_rng(0), (length, given.heads, given.width), np.array([0, length])
    q, k, v = (rng.standard_normal(shape, np.float32) for _ in range(3))
    out, scale = np.empty(shape, np.float32), given.width ** -0.5
    masks = {block: make(length, block=block) for block in given.blocks}
    calls = {block: lambda mask=mask: mask.attention(q, k, v, out, scale) for block, mask in masks.items()}
    calls["whole"] = lambda: kernels.attention(q, k, v, starts, out, scale)
    if reach: calls["reach"] = lambda: kernels.attention(q, k, v, starts, out, scale, reach)
    taken = measure({each: lambda _, call=call: call() for each, call in calls.items()}, [None], given.rounds)
    ms = {each: 1e3 * seconds for each, seconds in medians(taken).items()}
    return [(name, length, block, threads(), mask.share, mask.nbytes, ms[block], ms["whole"], ms.get("reach", ""), ms["whole"] / ms[block],
             off(mask, q, k, v, scale), spread(taken[block])) for block, mask in masks.items()]


def off(mask: Mask, q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> float:
    """The relative error of the first head's first 64 queries against float64."""
    rows = slice(0, min(64, mask.shape[0]))
    s = np.where(mask.unpack()[rows], scale * q[rows, 0].astype(np.float64) @ k[:, 0].T.astype(np.float64), -np.inf)
    p = np.exp(s - s.max(1, keepdims=True))
    want = p @ v[:, 0].astype(np.float64) / p.sum(1, keepdims=True)
    return float(np.linalg.norm(mask.attention(q, k, v, scale=scale)[rows, 0] - want) / np.linalg.norm(want))


if __name__ == "__main__": command.run(main)
