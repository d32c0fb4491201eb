"""Attention over masks by blocks against attention that computes all scores, or those within reach; and in programs, as
priced.

    python benchmarks/masks.py [--lengths 512 2048] [--heads 8] [--width 64] [--blocks 32 64 128] [--rounds 9]
    [--programs 512 4096]
                               [--csv OUT]

All take turns in one process; `whole` is attention without a mask, `reach` leaves out what is beyond a causal or
a window's reach, and is empty where a pattern is no range of keys; `pass` is the kernel of programs, by the same mask.

In programs a model of one attention is searched for each pattern, and its sentence of 512 or 4096 tokens is run beside
one of the embeddings alone: what the program takes more is the attention's. It is predicted from the machine's
calibration by the scores that the pattern holds."""

import argparse
from dataclasses import dataclass
from functools import partial
from statistics import median

from lib import command
from lib.command import Figure, Parser, cell, concluded, count, say, spread, tabled, takes

import numpy as np

from formats import Mask, kernels
from formats.host.threads import threads
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import patterns
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoids import softmax
from opmatrix.algebra.operators import heads, product, weight
from opmatrix.algebra.positions.patterns import causal, mask, sequence, window
from opmatrix.algebra.term import formula
from opmatrix.runtime.measure import measure, medians
from opmatrix.runtime.pricing import this_machine
from opmatrix.runtime.scheme import Running
from rewrites.laws import EXACT_LAWS
from rewrites.search.search import search

COLUMNS = (
    "pattern",
    "length",
    "block",
    "threads",
    "share",
    "bytes",
    "mask_ms",
    "pass_ms",
    "whole_ms",
    "reach_ms",
    "times_whole",
    "error",
    "spread",
)
FAR = 2**40
EXACT = 1e-5  # relative, of float32
PATTERNS = {
    "causal": (Mask.causal, (FAR, 0)),
    "window 64": (lambda length, block: Mask.window(length, 64, block=block), (64, 64)),
    "bigbird": (lambda length, block: Mask.bigbird(length, block=block), None),
    "sentences of 100": (
        lambda length, block: Mask.sentences([100] * (length // 100) + [length % 100], block=block),
        None,
    ),
}


@dataclass(frozen=True)
class Case:
    """A pattern in programs: the length of its sentence, and the most and the least of what it may take of full
    attention; `off`: how far its price may be from what is measured."""

    name: str
    length: int
    where: object
    most: float
    least: float | None = None
    off: float | None = None


def bigbird(length: int, block: int = 64) -> object:
    """3 blocks of a window, 2 that see all and that all see, 3 at random."""
    return mask(Mask.bigbird(length, window=1, everywhere=2, random=3, block=block).grid, block)


CASES = (
    Case("causal", 512, causal, 0.65, 0.45),
    Case("window(64)", 512, window(64), 0.42),
    Case("bigbird", 4096, bigbird(4096), 0.25, off=0.25),
)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--lengths", type=count, nargs="+", default=[512, 2048])
    parser.add_argument("--heads", type=count, default=8)
    parser.add_argument("--width", type=count, default=64)
    parser.add_argument("--blocks", type=count, nargs="+", default=[32, 64, 128])
    parser.add_argument("--rounds", type=count, default=9)
    parser.add_argument(
        "--programs", type=count, nargs="*", default=[512, 4096], help="sentences that programs are run on"
    )
    given = parser.parse_args()
    scores = 4e-8 * len(PATTERNS) * sum(length**2 for length in given.lengths) + 2e-8 * sum(
        length**2 for length in given.programs
    )
    takes(3 + scores * given.rounds * given.heads / 8)
    rows = []
    for length in given.lengths:
        rows += [row for name in PATTERNS for row in raced(name, length, given)]
        say(f"{length} tokens")
    print(" ".join(f"{name:>16}" for name in COLUMNS))
    for row in rows:
        print(" ".join(cell(each, 16) for each in row))
    tabled(given.csv, [COLUMNS, *rows])
    concluded(given, [*figures(rows), *(each for length in given.programs for each in priced(length, given))])


def figures(rows: list[tuple]) -> list[Figure]:
    """What is gained by the best block of each pattern, on the longest sentence; and the worst error."""
    found = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    longest = [row for row in found if row["length"] == max(row["length"] for row in found)]
    best = [
        max((row for row in longest if row["pattern"] == name), key=lambda row: row["times_whole"]) for name in PATTERNS
    ]
    said = "{pattern}: times as fast as all scores, {share:.0%} of which are kept"
    return [
        *(Figure(said.format(**row), row["times_whole"], "x", row["spread"]) for row in best),
        Figure("largest relative error", max(row["error"] for row in found), most=EXACT),
    ]


def raced(name: str, length: int, given: argparse.Namespace) -> list[tuple]:
    """A row for each side of a block."""
    make, reach = PATTERNS[name]
    rng, shape, starts = np.random.default_rng(0), (length, given.heads, given.width), np.array([0, length])
    q, k, v = (rng.standard_normal(shape, np.float32) for _ in range(3))
    out, scale = np.empty(shape, np.float32), given.width**-0.5
    masks = {block: make(length, block=block) for block in given.blocks}
    calls = {block: lambda mask=mask: mask.attention(q, k, v, out, scale) for block, mask in masks.items()}
    calls |= {
        f"{block} in a pass": partial(kernels.attention, q, k, v, starts, out, scale, mask=each)
        for block, each in masks.items()
    }
    calls["whole"] = lambda: kernels.attention(q, k, v, starts, out, scale)
    if reach:
        calls["reach"] = lambda: kernels.attention(q, k, v, starts, out, scale, reach)
    taken = measure({each: lambda _, call=call: call() for each, call in calls.items()}, [None], given.rounds)
    ms = {each: 1e3 * seconds for each, seconds in medians(taken).items()}
    return [
        (
            name,
            length,
            block,
            threads(),
            mask.share,
            mask.nbytes,
            ms[block],
            ms[f"{block} in a pass"],
            ms["whole"],
            ms.get("reach", ""),
            ms["whole"] / ms[block],
            off(mask, q, k, v, scale),
            spread(taken[block]),
        )
        for block, mask in masks.items()
    ]


def priced(length: int, given: argparse.Namespace) -> list[Figure]:
    """What attention in programs takes of full attention, as measured and as predicted, on one sentence."""
    cases = [case for case in CASES if case.length == length]
    batch, machine = Batch([np.arange(length)]), this_machine()
    made = {case.name: program(sequence & case.where, batch, machine, given) for case in cases}
    made |= {"full": program(sequence, batch, machine, given), "embeddings": program(None, batch, machine, given)}
    taken = measure(
        {name: each for name, (each, _) in made.items()}, [batch], max(given.rounds, 2 * given.rounds * 512 // length)
    )
    rounds = {name: [a - b for a, b in zip(taken[name], taken["embeddings"], strict=True)] for name in made}
    found = []
    for case in cases:
        ratios = [a / b for a, b in zip(rounds[case.name], rounds["full"], strict=True)]
        price, said = made[case.name][1], f"{case.name} at {length} tokens"
        found += [
            Figure(f"{said}: of full attention, measured", median(ratios), "", spread(ratios), case.least, case.most),
            Figure(f"{said}: of full attention, predicted", price / made["full"][1], "", None, case.least, case.most),
        ]
        bars = {} if case.off is None else {"least": 1 - case.off, "most": 1 + case.off}
        found.append(
            Figure(
                f"{said}: predicted of measured",
                price / median(rounds[case.name]),
                "",
                spread(rounds[case.name]),
                **bars,
            )
        )
    return found


def program(where: object, batch: Batch, machine: object, given: argparse.Namespace) -> tuple[object, float]:
    """The cheapest program of embeddings, and attention over them where there is a pattern; the seconds that its
    attention is predicted to take."""
    rng = np.random.default_rng(0)
    model = weight(Data(rng.standard_normal((batch.rows, given.heads * given.width), np.float32)))
    if where is not None:
        model = model @ attention(given.heads, given.width, where)
    machine = Running.of(machine, batch.starts)
    found, _ = search(model, EXACT_LAWS, machine, batch.extents(patterns(model))).program({})
    costs = [machine.seconds(kernel, **sizes) for kernel, sizes in found.cost(batch) if kernel == "attention"]
    return found, sum(costs)


def attention(h: int, d: int, where: object) -> object:
    """Rows that see one another; queries, keys and values are the rows themselves."""
    return formula(lambda x: product((q := x @ heads(h)) @ q.T * d**-0.5, q, over=softmax, where=where) @ heads(h).T)


def off(mask: Mask, q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> float:
    """The relative error of the first head's first 64 queries against float64."""
    rows = slice(0, min(64, mask.shape[0]))
    s = np.where(mask.unpack()[rows], scale * q[rows, 0].astype(np.float64) @ k[:, 0].T.astype(np.float64), -np.inf)
    p = np.exp(s - s.max(1, keepdims=True))
    want = p @ v[:, 0].astype(np.float64) / p.sum(1, keepdims=True)
    return float(np.linalg.norm(mask.attention(q, k, v, scale=scale)[rows, 0] - want) / np.linalg.norm(want))


if __name__ == "__main__":
    command.run(main)
