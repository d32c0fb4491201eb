"""A program with one step that no kernel computes, against the same program without it plus the step.

    python benchmarks/segments.py [--rows 1024] [--layers 6] [--rounds 30] [--csv OUT]

Encoders of random weights, written by hand, 384 wide, on sentences of 128 tokens. Behind half of the layers of one of
them stands a term that is read in float64; all its other steps are recorded, in two segments. The step alone is its
kernel, called on rows that lie ready. All three take turns in one process, and a ratio is of one round."""

from statistics import median

from lib import command
from lib.command import Figure, Parser, cell, concluded, count, spread, tabled, takes

import numpy as np
from programs import Writer, embedding, fused_layer

from formats import Dense
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.operators import relu, symbol
from opmatrix.runtime.interpreted import write_term
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.measure import measure
from opmatrix.runtime.program import Program

WIDTH, HEADS, WORDS, SENTENCE = 384, 6, 1000, 128
PARTS = "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"
COLUMNS = "rows", "layers", "without_ms", "step_ms", "with_ms", "ratio"


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--rows", type=count, default=1024)
    parser.add_argument("--layers", type=count, default=6)
    parser.add_argument("--rounds", type=count, default=30)
    given = parser.parse_args()
    takes(3 + 2e-5 * given.rows * given.layers * given.rounds)
    rng = np.random.default_rng(0)
    arrays, batch = weights(given.layers, rng), sentences(given.rows, rng)
    term, _ = write_term(symbol("y", None, WIDTH) @ relu, {symbol("y", None, WIDTH): 0})
    x, out = rng.standard_normal((batch.rows, WIDTH), np.float32), np.empty((batch.rows, WIDTH), np.float32)
    taken = measure(
        {
            "without": encoder(arrays, given.layers),
            "with": encoder(arrays, given.layers, term),
            "step": lambda batch: KERNELS["interpret"].function(out, batch, x, term=term),
        },
        [batch],
        given.rounds,
    )
    ratios = [
        both / (alone + step) for both, alone, step in zip(taken["with"], taken["without"], taken["step"], strict=True)
    ]
    row = (
        batch.rows,
        given.layers,
        *(1e3 * median(taken[name]) for name in ("without", "step", "with")),
        median(ratios),
    )
    for line in (COLUMNS, row):
        print(" ".join(cell(each, 11) for each in line))
    tabled(given.csv, [COLUMNS, row])
    concluded(
        given, [Figure("with the step over without it plus the step", median(ratios), "x", spread(ratios), most=1.1)]
    )


def encoder(arrays, layers, term=None):
    """The program; a term is read behind half of the layers."""
    write = Writer(arrays, Dense.pack)
    x = embedding(write, 1e-12)
    for i in range(layers):
        x = fused_layer(write, x, f"encoder.layer.{i}", HEADS, (WIDTH // HEADS) ** -0.5, 1e-12)
        if term and i == (layers - 1) // 2:
            x = write.step("interpret", {"term": term}, x0=x)
    return Program(write.steps, write.constants, x)


def weights(layers, rng):
    """Arrays of a checkpoint, by name."""
    made = lambda *shape: rng.standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5)

    def affine(name, inputs, outputs):
        return {f"{name}.weight": made(outputs, inputs), f"{name}.bias": made(outputs)}

    def norm(name):
        return {f"{name}.LayerNorm.weight": np.ones(WIDTH, np.float32), f"{name}.LayerNorm.bias": made(WIDTH)}

    found = norm("embeddings") | {
        f"embeddings.{name}_embeddings.weight": made(size, WIDTH)
        for name, size in (("word", WORDS), ("position", SENTENCE), ("token_type", 2))
    }
    for layer in (f"encoder.layer.{i}" for i in range(layers)):
        for part in PARTS:
            found |= affine(f"{layer}.{part}", WIDTH, WIDTH)
        found |= affine(f"{layer}.intermediate.dense", WIDTH, 4 * WIDTH) | affine(
            f"{layer}.output.dense", 4 * WIDTH, WIDTH
        )
        found |= norm(f"{layer}.attention.output") | norm(f"{layer}.output")
    return found


def sentences(rows, rng):
    """Sentences of 128 tokens, the last one shorter."""
    return Batch([rng.integers(0, WORDS, min(SENTENCE, rows - at)) for at in range(0, rows, SENTENCE)])


if __name__ == "__main__":
    command.run(main)
