"""Tensor parallelism: ranks share the columns and rows of each weight (Shoeybi et al. 2019), and with `sequence` the
rows of norms (Korthikanti et al. 2022)."""

from __future__ import annotations

from opmatrix.parallel.axes.axis_strategy import AxisStrategy
from opmatrix.parallel.axes.parallel_axis import AxisOption, CutSizes, LaidAxes, MeshChoices, ParallelAxis


def sharded_weights(choices: MeshChoices) -> LaidAxes:
    """Return the ranks, and the strategy by its options."""
    strategy = ("sequence" if choices["sequence"] else "tensor") + "-vocabulary" * choices["vocabulary"]
    return {"tp": (choices["tp"], strategy)}


def undivided_heads(n: int, sizes: CutSizes) -> str:
    """Return the heads if n ranks would not have whole ones."""
    return "" if sizes.limits.cuts_heads(n) else f"{sizes.limits.heads} heads"


TENSOR = ParallelAxis(
    "tp",
    "tensor parallel",
    "columns and rows of weights, heads",
    "ranks that share each weight",
    place=40,
    strategies=(
        AxisStrategy("tensor", weights=True),
        AxisStrategy("tensor-vocabulary", weights=True, vocabulary=True),
        AxisStrategy("sequence", home="rows", weights=True),
        AxisStrategy("sequence-vocabulary", home="rows", weights=True, vocabulary=True),
        AxisStrategy("vocabulary", vocabulary=True),
    ),
    collectives=("all_reduce", "reduce_scatter", "all_gather", "all_to_all"),
    refused=undivided_heads,
    legal="they divide the heads, and divide heads of keys or are a multiple of them",
    options=(
        AxisOption("sequence", bool, False, "sequence parallelism: norms are sharded by rows over tp"),
        AxisOption("vocabulary", bool, False, "shard the token embedding and the head over tp"),
    ),
    laid=sharded_weights,
    letter="t",
)
