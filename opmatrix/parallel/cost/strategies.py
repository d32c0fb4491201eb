"""A strategy: how so many devices train a model. Its numbers may be arrays or symbols; its words are one form."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from opmatrix.parallel.cost.quantities import Quantity
from opmatrix.parallel.schedules.named import USUAL_SCHEDULE

RecomputeKind: TypeAlias = Literal["none", "selective", "full"]
AXES = "tp", "cp", "dp", "pp"
RECOMPUTES: tuple[RecomputeKind, ...] = ("none", "selective", "full")


@dataclass(frozen=True)
class Strategy:
    """Ranks of data, tensor, stages, context and experts (over those of data and context); `context`: how tokens of a
    sequence meet over cp; `zero`: what is stored once over dp and cp; `sequence`: norms are cut over tp; `recompute`:
    what is computed again; `micro_batch` sequences at once; `virtual` stages a rank; `cut`: layers of each stage, as
    many each where it is None; `balanced`: tables and heads count as layers do; `order`: axes, neighbours first;
    `flash`: scores of attention are never stored; `overlap`: sums of gradients run beside the backward pass;
    `gradient_bytes` of each parameter that are summed, and those that are `accumulated` beside them."""
    dp: Quantity = 1
    tp: Quantity = 1
    pp: Quantity = 1
    cp: Quantity = 1
    ep: Quantity = 1
    micro_batch: Quantity = 1
    virtual: Quantity = 1
    zero: int = 0
    sequence: bool = False
    recompute: RecomputeKind = "none"
    context: str = "ring"
    schedule: str = USUAL_SCHEDULE.name
    order: tuple[str, ...] = AXES
    flash: bool = False
    overlap: bool = True
    precision: str = "bf16"
    cut: tuple[int, ...] | None = None
    balanced: bool = False
    gradient_bytes: float = 2
    accumulated: float = 0

    @property
    def devices(self) -> Quantity: return self.dp * self.tp * self.pp * self.cp

    def stride(self, axis: str) -> Quantity:
        """How many devices lie between neighbours of an axis; experts, and what is summed over data, lie over ranks of
        context first, then over those of data."""
        if axis == "ep": return self.stride("dp") / self.cp
        found: Quantity = 1
        for name in self.order[:self.order.index(axis)]: found = found * getattr(self, name)
        return found
