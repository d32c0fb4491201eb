"""Latency of tensor-parallel inference as it was published, beside what a partition on the data sheet predicts.

    python benchmarks/tensor_parallel.py [--csv OUT]

Published: FasterTransformer's GPT guide, on A100 of 80 GB (a SuperPOD, eight devices a node), in float16: a prompt of
`input` tokens and `output` new ones; a part of its rows, from the smallest batch to the largest. Predicted: the bound
of one batch of prompts, and of the other new tokens one by one, whose keys and values are not counted: lower bounds, of
which only the order is asked. `order` is the share of pairs of meshes that both put into one order. Stages are bounded
for one batch, one after another: where parts of a batch overlap, less time may be published."""

import itertools
from functools import cache
from typing import NamedTuple

from lib import command
from lib.command import Figure, Parser, concluded, say, tabled, takes

SOURCE = (
    "NVIDIA FasterTransformer, docs/gpt_guide.md at commit 07fdd2fc6aa46f961f304d5f3791efad016e38a3, "
    "Performance of GPT-20B and of Megatron-530B"
)
COLUMNS = "model", "batch", "input", "output", "tp", "pp", "published_ms", "predicted_ms"


class Model(NamedTuple):
    """A GPT of the guide: heads, columns of a head, layers."""

    heads: int
    columns: int
    layers: int

    def config(self):
        width = self.heads * self.columns
        return dict(
            model_type="gpt2", vocab_size=51200, n_embd=width, n_positions=2048, n_head=self.heads, n_layer=self.layers
        )


class Series(NamedTuple):
    """What was published of a model: (tp, pp) of each column, and by batch, input and output milliseconds; None ran out
    of memory."""

    model: Model
    ranks: tuple[tuple[int, int], ...]
    rows: dict[tuple[int, int, int], tuple[int | None, ...]]


PUBLISHED = {
    "GPT-20B": Series(
        Model(48, 128, 44),
        ((1, 1), (2, 1), (4, 1), (8, 1)),
        {
            (1, 20, 8): (225, 147, 102, 89),
            (8, 20, 8): (239, 169, 121, 107),
            (64, 20, 8): (452, 314, 200, 169),
            (256, 20, 8): (1352, 844, 533, 416),
            (1, 60, 20): (560, 358, 248, 212),
            (8, 60, 20): (635, 429, 299, 247),
            (64, 60, 20): (1352, 887, 574, 454),
            (256, 60, 20): (4141, 2424, 1574, 1152),
            (1, 128, 20): (566, 362, 254, 217),
            (8, 128, 20): (740, 487, 333, 267),
            (64, 128, 20): (2157, 1379, 832, 634),
            (256, 128, 20): (None, 4414, 2639, 1943),
            (1, 80, 200): (5609, 3532, 2438, 2053),
            (8, 80, 200): (5838, 3984, 2741, 2268),
            (64, 80, 200): (8290, 6003, 3815, 3173),
        },
    ),
    "Megatron-530B": Series(
        Model(128, 160, 105),
        ((16, 1), (32, 1), (8, 3)),
        {
            (1, 20, 8): (565, 431, 842),
            (8, 20, 8): (660, 523, 929),
            (64, 20, 8): (1191, 942, 1722),
            (256, 20, 8): (3341, 2483, 3140),
            (1, 60, 20): (1379, 1037, 2085),
            (64, 60, 20): (3383, 2646, 4117),
            (128, 60, 20): (5406, 4099, 5319),
            (1, 128, 8): (585, 451, 866),
            (32, 128, 8): (2251, 1741, 2623),
            (64, 128, 8): (4002, 3114, 3578),
            (128, 128, 8): (None, 5784, 5512),
        },
    ),
}


def main() -> None:
    parser = Parser(__doc__)
    given = parser.parse_args()
    takes(60)
    table, figures = [], []
    for name, series in PUBLISHED.items():
        alike, staged = [], []
        for at, published in series.rows.items():
            predicted = [seconds(series.model, tp, pp, *at) for tp, pp in series.ranks]
            alike += [*same_order(series.ranks, published, predicted, stages=False)]
            staged += [*same_order(series.ranks, published, predicted, stages=True)]
            table += [
                (name, *at, *ranks, said, f"{1e3 * found:.1f}")
                for ranks, said, found in zip(series.ranks, published, predicted, strict=True)
                if said
            ]
        for what, pairs in (("over tp", alike), ("stages against none", staged)):
            if not pairs:
                continue
            figures.append(Figure(f"order {what}, {name}", sum(pairs) / len(pairs), "of pairs"))
            say(f"{name}, {what}: {sum(pairs)} of {len(pairs)} pairs are in the published order")
    say(f"published: {SOURCE}")
    tabled(given.csv, [COLUMNS, *table])
    concluded(given, figures)


def seconds(model, tp, pp, batch, prompt, output):
    """What the prompt takes, and the other new tokens one by one."""
    return bound(model, tp, pp, batch, prompt) + (output - 1) * bound(model, tp, pp, batch, 1)


@cache
def operator(model):
    """What every partition of a model begins with."""
    from opmatrix.models import promised

    return promised(model.config(), scores=True)


@cache
def bound(model, tp, pp, batch, tokens):
    """The stages of one batch on the data sheet, one after another."""
    from opmatrix.algebra.batch.batch_sizes import BatchSizes
    from opmatrix.parallel.cost.timing import Timing
    from opmatrix.parallel.sharding.mesh import usual_mesh
    from opmatrix.parallel.sharding.partition import partition
    from opmatrix.runtime.pricing import datasheet

    plan = partition(operator(model), usual_mesh(tp=tp, pp=pp, vocabulary=True), BatchSizes(batch, tokens))
    timing = Timing(plan, datasheet("A100"), "float16", "float16")
    return sum(float(timing.stage(stage).seconds) for stage in range(len(plan.stages)))


def same_order(ranks, published, predicted, stages):
    """For each pair of meshes, without stages or of which one has some, whether both put it into one order."""
    columns = zip(ranks, published, predicted, strict=True)
    for ((_, p), a, one), ((_, q), b, other) in itertools.combinations(columns, 2):
        if a and b and a != b and (p != q) == stages:
            yield (a < b) == (one < other)


if __name__ == "__main__":
    command.run(main)
