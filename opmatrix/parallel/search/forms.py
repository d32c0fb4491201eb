"""Forms of strategies: the choices by name, as sizes are the choices by number. A form is predicted for all sizes at
once."""

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
# axes by the distance of their ranks, nearest first; tensor ranks meet in every layer, so they are always nearest
ORDERS: tuple[tuple[str, ...], ...] = (("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"), ("tp", "pp", "cp", "dp"))


class StrategyForm(NamedTuple):
    """The choices of a strategy that do not depend on its sizes."""

    recompute: RecomputeKind = "none"  # the part of forward that backward recomputes
    zero: int = 0  # ZeRO: data ranks shard 1 optimiser, 2 + gradients,
    # 3 + weights
    schedule: str = USUAL_SCHEDULE.name  # pipeline schedule
    context: str = "ring"  # how attention meets sharded tokens
    sequence: bool = False  # norms are sharded over tp
    order: tuple[str, ...] = ORDERS[0]  # axes by the distance of their ranks, nearest first


PLANNED = [schedule.name for schedule in SCHEDULES.values() if schedule.planned]
STRATEGY_FORMS = tuple(
    StrategyForm(*choices)
    for choices in product(RECOMPUTES, range(4), PLANNED, ("ring", "ulysses"), (False, True), ORDERS)
)


class FormMasks:
    """A mask of the forms that apply to rows of sizes. A form applies only where its choices have an effect, so no
    strategy has two forms. `local`: processes shard over data ranks alone."""

    def __init__(self, forms: Sequence[StrategyForm], limits: ModelLimits, tokens: int, local: bool = False) -> None:
        self.forms, self.limits, self.tokens, self.local = forms, limits, tokens, local

    def __call__(self, sizes: SizeColumns) -> FormMask:
        """Return the mask: a row for each form, a column for each row of sizes."""
        several = sizes.virtual > 1
        staged = ~several & (sizes.pp > 1)
        scheduled = {name: several if SCHEDULES[name].chunked else staged for name in PLANNED}
        scheduled[USUAL_SCHEDULE.name] = ~several  # also for a single stage
        whole = np.ones(len(sizes), bool)
        cut = (sizes.tp > 1) & (self.tokens % (sizes.tp * sizes.cp) == 0)
        met = {"ring": whole, "ulysses": (sizes.cp > 1) & (self.limits.heads % (sizes.tp * sizes.cp) == 0)}
        stored = (sizes.dp > 1) & (sizes.cp == 1) if self.local else sizes.dp * sizes.cp > 1
        laid = {order: laid_first(order, sizes) for order in ORDERS}
        mask: FormMask = np.stack(
            [
                scheduled[form.schedule]
                & met[form.context]
                & laid[form.order]
                & (cut if form.sequence else whole)
                & (stored if form.zero else whole)
                for form in self.forms
            ]
        )
        return mask


def laid_first(order: tuple[str, ...], sizes: SizeColumns) -> FormMask:
    """True, by row of sizes, if no earlier order lays out the axes of more than one rank in the same way."""
    several = {name: getattr(sizes, name) > 1 for name in order}
    fits = np.ones(len(sizes), bool)
    for other in ORDERS[: ORDERS.index(order)]:
        differs = np.zeros(len(sizes), bool)
        for left, right in pairs(order):
            if other.index(left) > other.index(right):
                differs |= several[left] & several[right]
        fits &= differs
    return fits


def pairs(order: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield each axis with each axis that is farther."""
    for at, left in enumerate(order):
        for right in order[at + 1 :]:
            yield left, right
