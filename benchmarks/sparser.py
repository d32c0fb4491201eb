"""Attention that sees fewer keys, as the search chooses it for a long sentence, against all keys.

    python benchmarks/sparser.py [--model NAME --text FILE] [--tokens 4096] [--errors 0.05 0] [--rounds 9]
                                 [--layers 4] [--heads 4] [--width 64] [--number-type float32] [--csv OUT]

Seconds as predicted and measured, and errors. Without --model it is a decoder of random numbers, every other layer of
which looks near by and every other one anywhere, on random tokens: patterns serve the former, where the error allows
any. With a model its texts are joined to as many tokens, which say the errors. Without an error, and at a quarter of
LONG tokens, none may be chosen."""

import argparse
from functools import reduce
from operator import matmul

from lib import command
from lib.command import Figure, Parser, concluded, count, number, readable, say, tabled, takes

import numpy as np

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import I, attention, const, rmsnorm, rotary, weight
from opmatrix.algebra.positions.patterns import causal, sequence
from opmatrix.display.tables import table
from rewrites.report.points import Point
from rewrites.run import optimize
from rewrites.search.sparse_attention import LEFT_OUT, LONG

COLUMNS = "tokens", "error asked", "program", "ms predicted", "ms measured", "error stated"
VOCABULARY, AROUND, SHARP = 4096, 6.0, 3.0  # tokens; how sharply layers look near by, and at what they
# look for
OFF = 1.3  # times that a saving may be from what is predicted


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--model", help="a checkpoint by name, or a directory")
    parser.add_argument("--text", type=readable, help="its text, a file of lines")
    parser.add_argument("--tokens", type=count, default=4096)
    parser.add_argument("--errors", type=number(float, 0, 1, "a share, from 0 to 1"), nargs="+", default=[0.05, 0.0])
    parser.add_argument("--rounds", type=count, default=9)
    parser.add_argument("--layers", type=count, default=4)
    parser.add_argument("--heads", type=count, default=4)
    parser.add_argument("--width", type=count, default=64, help="of a head")
    parser.add_argument("--number-type", choices=("float32", "bf16", "int8"), default="float32")
    given = parser.parse_args()
    takes(1200 if given.model else 20 + 4e-7 * given.tokens**2 * given.layers * given.heads * len(given.errors))
    rows, figures = [], []
    for tokens, error in [*((given.tokens, error) for error in given.errors), (LONG // 4, max(given.errors))]:
        dense, best = raced(given, tokens, error)
        say(f"{tokens} tokens, error {error:g}")
        rows += [
            (
                tokens,
                f"{error:g}",
                point.name,
                1e3 * point.predicted_s,
                1e3 * (point.measured_s or 0.0),
                f"{point.stated_error:.2g}",
            )
            for point in (dense, best)
        ]
        figures += judged(tokens, error, dense, best)
    print(
        table([[f"{each:.1f}" if isinstance(each, float) else str(each) for each in row] for row in rows], [*COLUMNS])
    )
    tabled(given.csv, [COLUMNS, *rows])
    concluded(given, figures)


def raced(given: argparse.Namespace, tokens: int, error: float) -> tuple[Point, Point]:
    """The exact program, and of those within the error the one predicted fastest."""
    asked = dict(error=error, rounds=given.rounds, number_type=given.number_type)
    if given.model:
        found = optimize(given.model, text=str(given.text) if given.text else None, tokens=tokens, **asked)
    else:
        drawn = np.random.default_rng(1).integers(0, VOCABULARY, tokens)
        found = optimize(decoder(given, tokens), workload=Batch([drawn]), **asked)
    within = [point for point in found.points if point.stated_error <= max(error, found.points[0].stated_error)]
    return found.points[0], min(within, key=lambda point: point.predicted_s)


def judged(tokens: int, error: float, dense: Point, best: Point) -> list[Figure]:
    """Whether attention sees fewer keys where that serves, and nowhere else, and whether it saves what was said."""
    said, taken = f"{tokens} tokens, error {error:g}", best.methods.get(LEFT_OUT, 0)
    if not error or tokens < LONG:
        return [Figure(f"{said}: parts that see fewer keys", taken, most=0)]
    measured, predicted = (
        (other or 0.0) / (own or 1.0)
        for own, other in ((dense.measured_s, best.measured_s), (dense.predicted_s, best.predicted_s))
    )
    return [
        Figure(f"{said}: parts that see fewer keys", taken, least=1),
        Figure(f"{said}: of the time with all keys, measured", measured, most=0.9),
        Figure(f"{said}: of it, predicted over measured", predicted / measured, least=1 / OFF, most=OFF),
    ]


def decoder(given: argparse.Namespace, tokens: int) -> object:
    """Layers of causal attention by turns near the query's own position, by RoPE of one vector, and by what tokens
    are."""
    rng, n = np.random.default_rng(0), given.heads * given.width
    turned = rotary(tokens, given.width, 1000.0)

    def one(scale: float = 1.0) -> object:
        return weight(Data((scale * rng.standard_normal((n, n)) * n**-0.5).astype(np.float32)))

    def layer(number: int) -> object:
        near = one(0.1) + const(np.full(n, AROUND * (8 / given.width) ** 0.25))
        Q, K, by = (near, near, turned) if number % 2 == 0 else (one(SHARP), one(SHARP), None)
        return (I + rmsnorm(1e-6) @ attention(Q, K, one(), given.heads, sequence & causal, by) @ one()) @ (
            I + rmsnorm(1e-6) @ one() @ one(0.5)
        )

    embed = weight(Data(rng.standard_normal((VOCABULARY, n)).astype(np.float32)))
    return reduce(matmul, [embed, *map(layer, range(given.layers))])


if __name__ == "__main__":
    command.run(main)
