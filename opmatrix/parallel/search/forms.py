"""Forms of strategies: what is chosen by name, as sizes are by number. A form is predicted for all sizes at once."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opmatrix.parallel.cost.strategies import RECOMPUTES, RecomputeKind
from opmatrix.parallel.schedules.named import SCHEDULES, USUAL_SCHEDULE
from opmatrix.parallel.search.legal_sizes import ModelLimits, SizeColumns

FormMask: TypeAlias = "NDArray[np.bool_]"
# axes by where their ranks lie, the nearest first; tensor ranks meet in every layer and lie nearest in all of them
ORDERS: tuple[tuple[str, ...], ...] = (("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"), ("tp", "pp", "cp", "dp"))


class StrategyForm(NamedTuple):
    """What a strategy does, whatever its sizes. `recompute`: what backward computes again; `zero`: what ranks of data
    store once; `context`: how attention meets cut tokens; `sequence`: whether norms are cut over tp; `order`: where
    axes lie, the nearest first."""
    recompute: RecomputeKind = "none"
    zero: int = 0
    schedule: str = USUAL_SCHEDULE.name
    context: str = "ring"
    sequence: bool = False
    order: tuple[str, ...] = ORDERS[0]


PLANNED = [each.name for each in SCHEDULES.values() if each.planned]
STRATEGY_FORMS = tuple(StrategyForm(*each) for each in product(
    RECOMPUTES, range(4), PLANNED, ("ring", "ulysses"), (False, True), ORDERS))


class FormMasks:
    """For forms and rows of sizes: which form is for which sizes. What a form names is there, so that no strategy is
    met in two forms. `local`: processes store once over ranks of data alone."""
    def __init__(self, forms: Sequence[StrategyForm], limits: ModelLimits, tokens: int, local: bool = False) -> None:
        self.forms, self.limits, self.tokens, self.local = forms, limits, tokens, local

    def __call__(self, sizes: SizeColumns) -> FormMask:
        """A row for each form, a column for each row of sizes."""
        several = sizes.virtual > 1
        staged = ~several & (sizes.pp > 1)
        scheduled = {name: several if SCHEDULES[name].chunked else staged for name in PLANNED}
        scheduled[USUAL_SCHEDULE.name] = ~several           # of one stage, too
        whole = np.ones(len(sizes), bool)
        cut = (sizes.tp > 1) & (self.tokens % (sizes.tp * sizes.cp) == 0)
        met = {"ring": whole, "ulysses": (sizes.cp > 1) & (self.limits.heads % (sizes.tp * sizes.cp) == 0)}
        stored = (sizes.dp > 1) & (sizes.cp == 1) if self.local else sizes.dp * sizes.cp > 1
        laid = {order: laid_first(order, sizes) for order in ORDERS}
        found: FormMask = np.stack([
            scheduled[form.schedule] & met[form.context] & laid[form.order] & (cut if form.sequence else whole)
            & (stored if form.zero else whole) for form in self.forms])
        return found


def laid_first(order: tuple[str, ...], sizes: SizeColumns) -> FormMask:
    """Whether no order before this one lays the axes of more than one rank alike."""
    several = {name: getattr(sizes, name) > 1 for name in order}
    fits = np.ones(len(sizes), bool)
    for other in ORDERS[:ORDERS.index(order)]:
        differs = np.zeros(len(sizes), bool)
        for left, right in pairs(order):
            if other.index(left) > other.index(right): differs |= several[left] & several[right]
        fits &= differs
    return fits


def pairs(order: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Each axis with each that lies farther."""
    for at, left in enumerate(order):
        for right in order[at + 1:]: yield left, right
