"""Context parallelism: ranks share the tokens of each sequence, and attention meets tokens of other ranks."""

from __future__ import annotations

from opmatrix.parallel.axes.axis_strategy import AxisStrategy
from opmatrix.parallel.axes.parallel_axis import AxisOption, CutSizes, LaidAxes, MeshChoices, ParallelAxis

ULYSSES = AxisStrategy("ulysses", home="rows", mixing="heads", planned_as="ulysses")
CONTEXTS = {
    strategy.name: strategy
    for strategy in (
        AxisStrategy("ring", home="rows", mixing="ring", planned_as="gathered"),
        ULYSSES,
        AxisStrategy("keys", home="rows", mixing="keys"),
        AxisStrategy("gathered", home="rows", mixing="gathered"),
    )
}


def spell_contexts() -> str:
    """Return the names of the strategies as text: `ring, ulysses, keys or gathered`."""
    *names, last = CONTEXTS
    return f"{', '.join(names)} or {last}"


def shared_tokens(choices: MeshChoices) -> LaidAxes:
    """Return the ranks, and the strategy that is chosen."""
    return {"cp": (choices["cp"], choices["context"])}


def unknown_context(choices: MeshChoices) -> str:
    """Return the complaint about a strategy that is none of the axis."""
    context = choices["context"]
    return "" if context in CONTEXTS else f"context {context!r}: it is one of {', '.join(CONTEXTS)}"


def undivided_tokens(n: int, sizes: CutSizes) -> str:
    """Return the batch if n ranks would not have equally many tokens of a sequence, two at least."""
    if sizes.tokens % n == 0 and n <= sizes.tokens // 2:
        return ""
    return f"{sizes.sequences} sequences of {sizes.tokens} tokens"


CONTEXT = ParallelAxis(
    "cp",
    "context parallel",
    "tokens of each sequence",
    "ranks that share the tokens of each sequence",
    place=30,
    strategies=(*CONTEXTS.values(), AxisStrategy("rows", home="rows", mixing="gathered")),
    collectives=("send", "all_to_all", "all_gather", "all_reduce", "reduce_scatter"),
    refused=undivided_tokens,
    legal="they divide the tokens of a sequence, two or more a rank",
    options=(AxisOption("context", str, "ring", f"how attention meets cut rows: {spell_contexts()}"),),
    illegal=unknown_context,
    laid=shared_tokens,
    letter="c",
)
