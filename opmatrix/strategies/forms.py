"""Forms of strategies: what is chosen by name, as sizes are by number. A form is predicted for all sizes at once."""
from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from opmatrix.strategies.legal_sizes import ModelLimits, SizeColumns

# axes by where their ranks lie, the nearest first; tensor ranks meet in every layer and lie nearest in all of them
ORDERS = ("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"), ("tp", "pp", "cp", "dp")


class StrategyForm(NamedTuple):
    """What a strategy does, whatever its sizes. `recompute`: what backward computes again; `zero`: what ranks of data
    store once; `context`: how attention meets cut tokens; `sequence`: whether norms are cut over tp; `order`: where
    axes lie, the nearest first."""
    recompute: str = "none"
    zero: int = 0
    schedule: str = "1f1b"
    context: str = "ring"
    sequence: bool = False
    order: tuple[str, ...] = ORDERS[0]


RECOMPUTES = "none", "selective", "full"
SCHEDULES = "1f1b", "interleaved", "gpipe", "zb-h1"
FORMS = tuple(StrategyForm(*each) for each in product(
    RECOMPUTES, range(4), SCHEDULES, ("ring", "ulysses"), (False, True), ORDERS))


def meets(form: StrategyForm, sizes: SizeColumns, limits: ModelLimits, tokens: int) -> NDArray[np.bool_]:
    """The sizes that a form is for: what it names is there, so that no strategy is met in two forms."""
    fits: NDArray[np.bool_] = (sizes.virtual > 1) == (form.schedule == "interleaved")
    if form.schedule in ("gpipe", "zb-h1"): fits &= sizes.pp > 1
    if form.zero: fits &= sizes.dp * sizes.cp > 1
    if form.zero > 1: fits &= sizes.pp == 1                # gradients are whole while micro-batches are in flight
    if form.sequence: fits &= (sizes.tp > 1) & (tokens % (sizes.tp * sizes.cp) == 0)
    if form.context == "ulysses": fits &= (sizes.cp > 1) & (limits.heads % (sizes.tp * sizes.cp) == 0)
    return fits & ordered(form, sizes)


def ordered(form: StrategyForm, sizes: SizeColumns) -> NDArray[np.bool_]:
    """Whether no form before this one orders the axes of more than one rank alike."""
    several = {name: getattr(sizes, name) > 1 for name in form.order}
    fits = np.ones(len(sizes), bool)
    for other in ORDERS[:ORDERS.index(form.order)]:
        differs = np.zeros(len(sizes), bool)
        for left, right in pairs(form.order):
            if other.index(left) > other.index(right): differs |= several[left] & several[right]
        fits &= differs
    return fits


def pairs(order: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Each axis with each that lies farther."""
    for at, left in enumerate(order):
        for right in order[at + 1:]: yield left, right
