"""Attention alone, in float32 and in bfloat16, against the product that comes nearest to what a core can do, and
against torch.

    python benchmarks/attention.py [--heads 12] [--widths 32 64] [--rounds 15] [--threads 1] [--csv OUT]

q, k and v are columns of one array, as a joined projection leaves them. Rates are in Gflop/s: four flops for each pair
of tokens of a sentence and number of a head, counted once. `share` is of the rate of the best product of packed
float32."""

import argparse
from importlib.util import find_spec
from itertools import pairwise
from statistics import geometric_mean, median

from lib import command
from lib.command import Figure, Parser, cell, concluded, count, say, spread, tabled, takes

import numpy as np

from formats import kernels
from formats.core.layout import panels
from formats.host.threads import limit
from opmatrix.runtime.measure import measure, medians

COLUMNS = (
    "sentences",
    "tokens",
    "width",
    "float32_ms",
    "float32",
    "share",
    "bfloat16_ms",
    "bfloat16",
    "torch_ms",
    "error",
    "error_bfloat16",
    "spread",
)
MIXED = np.random.default_rng(0).integers(8, 41, 32).tolist()
LONG = 128, 256, 512
BATCHES = [
    *([tokens] * sentences for sentences in (1, 8) for tokens in (16, 64, *LONG)),
    [12] * 32,
    [31] * 32,
    [77] * 8,
    MIXED,
]


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--heads", type=count, default=12)
    parser.add_argument("--widths", type=count, nargs="+", default=[32, 64])
    parser.add_argument("--rounds", type=count, default=15)
    parser.add_argument("--threads", type=count, default=1)
    given = parser.parse_args()
    takes(3 + 0.08 * len(BATCHES) * len(given.widths) * given.rounds * given.heads / 12)
    rows = []
    for width in given.widths:
        with limit(given.threads):
            rows += [raced(lengths, width, given) for lengths in BATCHES]
        say(f"heads of {width} columns")
    print(" ".join(f"{name:>14}" for name in COLUMNS))
    for row in rows:
        print(" ".join(cell(each, 14) for each in row))
    tabled(given.csv, [COLUMNS, *rows])
    concluded(given, figures(rows))


def figures(rows: list[tuple]) -> list[Figure]:
    """The least share of a product's rate where sentences are long enough for tiles, and times torch's seconds."""
    found = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    wide = [row["spread"] for row in found if row["spread"] is not None]
    ratios = [row["torch_ms"] / row["float32_ms"] for row in found if row["torch_ms"]]
    least = min((row["share"] for row in found if row["tokens"] in LONG), default=None)
    middle = median(wide) if wide else None
    return [
        Figure(f"least share of a product's rate, {LONG[0]} tokens and more", least, spread=middle, ceiling=1),
        Figure(
            "torch's seconds over ours, geometric mean",
            geometric_mean(ratios) if ratios else None,
            "x",
            middle,
            why="torch is not installed",
        ),
    ]


def raced(lengths: list[int], width: int, given: argparse.Namespace) -> tuple:
    """One row: all take turns."""
    rng, starts, h = np.random.default_rng(1), np.concatenate([[0], np.cumsum(lengths)]), given.heads
    T, scale = int(starts[-1]), width**-0.5
    q, k, v = (
        part.reshape(T, h, width) for part in np.split(rng.standard_normal((T, 3 * h * width), np.float32), 3, axis=1)
    )
    x, w = rng.standard_normal((256, 384), np.float32), panels(rng.standard_normal((384, 384), np.float32))
    outs, y = [np.empty((T, h, width), np.float32) for _ in range(2)], np.empty((256, 384), np.float32)
    calls = {
        "float32": lambda: kernels.attention(q, k, v, starts, outs[0], scale),
        "bfloat16": lambda: kernels.attention_halves(q, k, v, starts, outs[1], scale),
        "product": lambda: kernels.product_packed(x, w, y),
    }
    if (peer := by_torch(q, k, v, starts, scale, given.threads)) is not None:
        calls["torch"] = peer
    taken = measure({each: lambda _, call=call: call() for each, call in calls.items()}, [None], given.rounds)
    ms = {each: 1e3 * seconds for each, seconds in medians(taken).items()}
    flops, best = (
        4e-6 * h * width * sum(length**2 for length in lengths),
        2e-9 * 256 * 384 * 384 / min(taken["product"]),
    )
    rate = {each: flops / ms[each] for each in ("float32", "bfloat16")}
    errors = (off(out, q, k, v, starts, scale) for out in outs)
    tokens = lengths[0] if len(set(lengths)) == 1 else f"{min(lengths)} to {max(lengths)}"
    return (
        len(lengths),
        tokens,
        width,
        ms["float32"],
        rate["float32"],
        rate["float32"] / best,
        ms["bfloat16"],
        rate["bfloat16"],
        ms.get("torch", ""),
        *errors,
        spread(taken["float32"]),
    )


def by_torch(q: np.ndarray, k: np.ndarray, v: np.ndarray, starts: np.ndarray, scale: float, threads: int):
    """scaled_dot_product_attention over sentences of one length; None for others, or without torch."""
    if len(set(np.diff(starts).tolist())) > 1 or not find_spec("torch"):
        return None
    import torch

    torch.set_num_threads(threads)
    parts = [
        torch.from_numpy(part.reshape(len(starts) - 1, -1, *part.shape[1:]).swapaxes(1, 2).copy()) for part in (q, k, v)
    ]
    return lambda: torch.nn.functional.scaled_dot_product_attention(*parts, scale=scale)


def off(out: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, starts: np.ndarray, scale: float) -> float:
    """The relative error of the first head against float64."""
    found = []
    for a, b in pairwise(starts):
        s = scale * q[a:b, 0].astype(np.float64) @ k[a:b, 0].T.astype(np.float64)
        p = np.exp(s - s.max(1, keepdims=True))
        found.append(p @ v[a:b, 0].astype(np.float64) / p.sum(1, keepdims=True))
    want = np.concatenate(found)
    return float(np.linalg.norm(out[:, 0] - want) / np.linalg.norm(want))


if __name__ == "__main__":
    command.run(main)
