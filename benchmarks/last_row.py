"""A causal model of which the last token alone is read, against the same model with all rows: no law knows a layer, so
the saving is found. Weights are random; both programs are found on this machine's prices, and take turns in one
process.

    python benchmarks/last_row.py [--layers 4 12] [--words 0 50000] [--tokens 512] [--width 768] [--rounds 15] [--csv
    OUT]"""

from statistics import median

from lib import command
from lib.command import Figure, Parser, cell, concluded, count, number, say, spread, tabled, takes

import numpy as np
from random_models import random_weights

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import patterns
from opmatrix.algebra.operators import pick, weight
from opmatrix.algebra.shapes import S
from opmatrix.models.transformer import transformer
from opmatrix.runtime.measure import measure
from opmatrix.runtime.pricing import this_machine
from opmatrix.runtime.scheme import Running
from rewrites.explain.derivations.chain import derive_chain
from rewrites.laws import EXACT_LAWS
from rewrites.search.search import search

BARS = {(4, 0): 0.82, (12, 0): 0.945, (12, 50000): 0.70}  # layers, words of the head: of the time of all rows
WORDS, OFF = 1000, 0.25  # of the table of tokens; what a prediction may be off by
COLUMNS = "layers", "words", "rows_ms", "last_ms", "ratio", "predicted", "difference"


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--layers", type=count, nargs="+", default=[4, 12])
    parser.add_argument("--words", type=number(int, 0, 10**6, "words of a head"), nargs="+", default=[0, 50000])
    parser.add_argument("--tokens", type=count, default=512)
    parser.add_argument("--width", type=count, default=768)
    parser.add_argument("--rounds", type=count, default=15)
    given = parser.parse_args()
    cases = [
        (layers, words) for layers in given.layers for words in given.words if not words or layers == max(given.layers)
    ]
    work = [given.tokens * given.width * (24 * layers * given.width + 2 * words) for layers, words in cases]
    takes(sum(20 + 2 * given.rounds * each / 5e10 for each in work))
    machine, table, figures = this_machine(), [COLUMNS], list[Figure]()
    for layers, words in cases:
        row, found = compared(machine, given, layers, words)
        table.append(row)
        figures += found
    for line in table:
        print(" ".join(cell(each, 11) for each in line))
    tabled(given.csv, table)
    concluded(given, figures)


def compared(machine, given, layers, words):
    """One row of the table, and its figures."""
    rng = np.random.default_rng(0)
    model = causal(layers, given.width, given.tokens, rng)
    head = [weight(rng.standard_normal((given.width, words), np.float32) * given.width**-0.5)] if words else []
    batch = Batch([rng.integers(0, WORDS, given.tokens)])
    operators = {"rows": model, "last": model @ pick("last")}
    if head:
        operators = {name: each @ head[0] for name, each in operators.items()}
    found = {
        name: search(each, EXACT_LAWS, Running.of(machine, batch.starts), batch.extents(patterns(each)))
        for name, each in operators.items()
    }
    programs = {name: each.program({})[0] for name, each in found.items()}
    behind(programs["last"])
    say(f"{layers} layers, {words} words: steps by which the last row is found")
    for line in str(derive_chain(found["last"], EXACT_LAWS)).splitlines():
        if "pick" in line:
            print("   ", line[:200])
    wanted, last = programs["rows"].run(batch)[-1], programs["last"].run(batch)[0]
    taken = measure(programs, [batch], given.rounds)
    ratios = [a / b for a, b in zip(taken["last"], taken["rows"], strict=True)]
    ratio, predicted = median(ratios), found["last"].time / found["rows"].time
    what = f"{layers} layers{f', a head of {words} words' if words else ''}"
    return (
        (
            layers,
            words,
            *(1e3 * median(taken[name]) for name in ("rows", "last")),
            ratio,
            predicted,
            float(abs(last - wanted).max() / abs(wanted).max()),
        ),
        [
            Figure(f"{what}: last row over all rows", ratio, "x", spread(ratios), most=BARS.get((layers, words))),
            Figure(f"{what}: predicted ratio off by", abs(predicted / ratio - 1), "", most=OFF),
        ],
    )


def behind(program):
    """Raises AssertionError where a product behind the last attention has other rows than those that are read."""
    calls = program.schedule.calls
    last = max(i for i, call in enumerate(calls) if call.kernel.name in ("attention", "attend_once"))
    wide = [call.kernel.name for call in calls[last:] if str(call.shape.space) != str(S)]
    assert not wide, f"behind the last attention all rows go through {wide}"


def causal(layers, width, tokens, rng):
    """A causal transformer of this width: norms before, gelu, biases."""
    config = dict(
        model_type="transformer",
        vocab_size=WORDS,
        max_position_embeddings=tokens,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        head_dim=64,
        norm="layer",
        norm_eps=1e-5,
        pre_norm=True,
        hidden_act="gelu",
        gated=False,
        bias=True,
        mask="sequence & causal",
    )
    return transformer(config, random_weights(config, rng))


if __name__ == "__main__":
    command.run(main)
