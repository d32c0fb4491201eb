"""Data parallelism: ranks share the sequences of a batch, and may store state once (Rajbhandari et al. 2020, ZeRO)."""

from __future__ import annotations

from math import gcd

from opmatrix.parallel.axes.axis_strategy import AxisStrategy
from opmatrix.parallel.axes.parallel_axis import AxisOption, CutSizes, LaidAxes, MeshChoices, ParallelAxis

STORING = (
    AxisStrategy("data", home="batch"),
    AxisStrategy("zero1", home="batch", stored=1),
    AxisStrategy("zero2", home="batch", stored=2),
    AxisStrategy("zero3", home="batch", stored=3),
)  # by ZeRO stage


def data_ranks(choices: MeshChoices) -> int:
    """Return the number of ranks: as stated, or as many as the experts need."""
    if choices["dp"] is not None:
        return int(choices["dp"])
    experts = max(choices["ep"], 1)
    return int(experts // gcd(experts, choices["cp"] * (choices["tp"] if choices["whole_experts"] else 1)))


def storing_ranks(choices: MeshChoices) -> int:
    """Return the number of neighbours that store state once."""
    return data_ranks(choices) if choices["zero_ranks"] is None else int(choices["zero_ranks"])


def ranks_and_copies(choices: MeshChoices) -> LaidAxes:
    """Return groups that store state again, and the ranks of a group."""
    zero, within = choices["zero"], storing_ranks(choices)
    return {"copies": (data_ranks(choices) // within, "data"), "dp": (within, STORING[zero].name)}


def stored_wrongly(choices: MeshChoices) -> str:
    """Return the complaint about a stage of ZeRO, or about ranks that store state once."""
    dp, zero, within = data_ranks(choices), choices["zero"], storing_ranks(choices)
    if zero not in range(len(STORING)):
        return f"zero {zero}: a stage of ZeRO is 0, 1, 2 or 3"
    if zero and dp == 1:
        return f"zero {zero}: it stores state over the ranks of dp, of which there is one"
    if choices["zero_ranks"] is not None and not zero:
        return f"zero ranks {within}: of no stage of ZeRO: give zero"
    if within < 1 or dp % within:
        return f"zero ranks {within}: they divide dp, {dp}"
    return ""


def undivided_batch(n: int, sizes: CutSizes) -> str:
    """Return the batch if n ranks would not have equally many of its sequences."""
    return f"{sizes.sequences} sequences of {sizes.tokens} tokens" if sizes.sequences % n else ""


DATA = ParallelAxis(
    "dp",
    "data parallel",
    "sequences of a batch",
    "ranks that share the sequences; without it 1, or as many as --ep needs",
    place=20,
    strategies=STORING,
    collectives=("all_reduce", "reduce_scatter", "all_gather"),
    refused=undivided_batch,
    legal="they divide the sequences",
    usual=None,
    options=(
        AxisOption("zero", int, 0, "ZeRO stage, sharded over dp: 1 optimiser state, 2 also gradients, 3 also weights"),
        AxisOption(
            "zero_ranks",
            int | None,
            None,
            "ranks of dp in a ZeRO group: the state is sharded in a group and replicated over groups",
            1,
            run=False,
        ),
    ),
    illegal=stored_wrongly,
    laid=ranks_and_copies,
    letter="d",
)
