"""Expert parallelism: the ranks that share sequences and tokens place experts, too (Liu et al. 2025, MoE Parallel
Folding)."""

from __future__ import annotations

from opmatrix.parallel.axes.axis_strategy import AxisStrategy
from opmatrix.parallel.axes.parallel_axis import AxisOption, CutSizes, LaidAxes, MeshChoices, ParallelAxis


def placed_experts(choices: MeshChoices) -> LaidAxes:
    """Return the ranks, and the strategy by its options."""
    return {"ep": (choices["ep"], "whole-experts" if choices["whole_experts"] else "experts")}


def of_no_experts(choices: MeshChoices) -> str:
    """Return the complaint about options of experts where these have no ranks."""
    whole, load = choices["whole_experts"], choices["load"]
    if choices["ep"] != 1 or not (whole or load != 1):
        return ""
    return f"{'whole experts' if whole else f'load {load}'}: of no ranks of experts: give ep"


def undivided_experts(n: int, sizes: CutSizes) -> str:
    """Return the experts if n ranks would not have equally many."""
    experts = sizes.limits.experts
    return "" if n == 1 or (experts and experts % n == 0) else f"{experts or 'no'} experts"


EXPERT = ParallelAxis(
    "ep",
    "expert parallel",
    "experts",
    "ranks of dp and cp that share the experts",
    place=50,
    strategies=(AxisStrategy("experts", experts="cut"), AxisStrategy("whole-experts", experts="whole")),
    collectives=("all_to_all",),
    refused=undivided_experts,
    legal="they divide the experts",
    options=(
        AxisOption("whole_experts", bool, False, "tp shards no expert: its ranks share the experts, too"),
        AxisOption(
            "node",
            int,
            0,
            "neighbours of ep that form a node: a row is sent to a node once, "
            "however many of its experts are there; 0: once to each expert",
        ),
        AxisOption("visits", int, 0, "nodes that a row is routed to; 0: as many as possible"),
        AxisOption("load", float, 1, "load of the busiest expert rank, relative to the mean", 1, run=False),
    ),
    illegal=of_no_experts,
    laid=placed_experts,
    letter="e",
    folded=True,
)
