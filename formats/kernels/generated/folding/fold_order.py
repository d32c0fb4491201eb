"""Merges in which no compared number can be NaN. There a minimum is one instruction; five are needed where a NaN must
pass through. The numbers that may occur are tracked by kind: finite, infinite, NaN. Each operation is tried on numbers
of all kinds of its arguments, among them the largest, the smallest and 0, where kinds change."""

import numpy as np
from numpy.typing import NDArray

from formats.core.stage import HUGE, SMALLEST
from formats.kernels.generated.folding.fold_plan import MergeStep
from formats.kernels.generated.rowwise.scalar_functions import SCALAR_OPERATIONS
from formats.kernels.generated.rowwise.scalars import NumberGraph, StandIn

f4 = np.float32
Float32s = NDArray[np.float32]
FINITE_KINDS = np.array([sign * size for sign in (-1, 1) for size in (0, SMALLEST, 1, HUGE)], f4)
UPPER_KINDS, LOWER_KINDS = np.array([*FINITE_KINDS, np.inf], f4), np.array([*FINITE_KINDS, -np.inf], f4)
ORDERED_KINDS = np.array([*UPPER_KINDS, -np.inf], f4)
ALL_KINDS = np.array([*ORDERED_KINDS, np.nan], f4)
COMPARING = "minimum", "maximum"
TILE_KINDS = {"above": UPPER_KINDS, "below": LOWER_KINDS, "above and below": FINITE_KINDS}  # spelt as in texts


def all_kinds(found: Float32s) -> Float32s:
    """Return sample numbers of all the kinds that are among these."""
    none, finite = np.isnan(ALL_KINDS) & np.isnan(found).any(), np.isfinite(ALL_KINDS) & np.isfinite(found).any()
    return ALL_KINDS[np.isin(ALL_KINDS, found) | none | finite]


def keeps_order(step: MergeStep, score: Float32s, factor: Float32s) -> bool:
    """True if a merge of carriers that are numbers, with a score and a factor of these kinds, compares no NaN and makes
    none. Numbers stored from scores alone may be anything."""
    held: dict[int, Float32s] = {id(node): ALL_KINDS for node in step.stored}
    held |= {id(step.carriers[k]): ORDERED_KINDS for k in step.by_factor}
    held |= {id(step.score): score, id(step.factor): factor, id(step.index): FINITE_KINDS}
    compares: list[Float32s] = []

    def kinds(node: StandIn) -> Float32s:
        if node.op == "literal":
            return all_kinds(np.array([node.value], f4))
        if id(node) not in held:
            args = np.meshgrid(*map(kinds, node.args))
            if node.op in COMPARING:
                compares.extend(args)
            held[id(node)] = all_kinds(np.asarray(SCALAR_OPERATIONS[node.op].exact(*args), f4))
        return held[id(node)]

    with np.errstate(all="ignore"):
        results = [kinds(step.merged[k]) for k in step.by_factor]
    return not any(np.isnan(numbers).any() for numbers in (*results, *compares))


def compared(step: MergeStep) -> int:
    """Count the comparisons among the operations on a factor."""
    nodes = NumberGraph(0, tuple(step.merged[k] for k in step.by_factor)).walk()
    return sum(node.op in COMPARING and step.needs(node, step.by_factor) for node in nodes)


def told_by(step: MergeStep, scored: bool) -> str | None:
    """Return the condition on a tile's factors, and on its scores if these are tested (`scored`), under which nothing
    compared is NaN, in the words of the kernel's text. None if nothing is compared, or if no condition suffices."""
    if not compared(step):
        return None
    words = [word for word, kinds in TILE_KINDS.items() if keeps_order(step, kinds if scored else ALL_KINDS, kinds)]
    return " or ".join(words[:2]) or None
