"""Pipeline parallelism: ranks are stages of layers (Huang et al. 2019, GPipe)."""

from __future__ import annotations

from opmatrix.parallel.axes.axis_strategy import AxisStrategy
from opmatrix.parallel.axes.parallel_axis import CutSizes, ParallelAxis


def too_few_layers(n: int, sizes: CutSizes) -> str:
    """Return the layers if n stages would not have one each."""
    return f"{sizes.limits.layers} layers" if n > sizes.limits.layers else ""


PIPELINE = ParallelAxis(
    "pp",
    "pipeline parallel",
    "layers",
    "stages of layers",
    place=10,
    strategies=(AxisStrategy("pipeline", layers=True),),
    collectives=("send", "all_reduce"),  # sums: of gradients of a table that stages share
    refused=too_few_layers,
    legal="at most as many as layers",
    anywhere=True,
)
