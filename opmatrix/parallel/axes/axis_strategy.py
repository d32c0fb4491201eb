"""A strategy of an axis: the placement of values between operators, and the dimensions and weights that are sharded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from opmatrix.algebra.batch.batch_sizes import Role

Mixing: TypeAlias = Literal["ring", "heads", "keys", "gathered"]


@dataclass(frozen=True)
class AxisStrategy:
    """The way in which one axis of a mesh splits a model.

    `mixing`: "ring" sends keys round in a ring (Liu et al. 2023), "heads" exchanges rows for heads (Jacobs et al. 2023,
    Ulysses), "keys" keeps keys in place and sends queries (each rank merges a carrier), "gathered" gathers keys.
    `stored`: the state that is stored once over the axis: 1 optimiser, 2 gradients, too, 3 weights, too (Rajbhandari et
    al. 2020, ZeRO). `experts`: the axis places experts; with "cut" a tensor axis shards each expert further, with
    "whole" it does not, and experts are placed over that axis, too."""

    name: str  # its name, such as tensor
    home: Role | None = None  # sharded dimension of values between operators, if any
    weights: bool = False  # weights by columns, then rows (Shoeybi et al. 2019)
    vocabulary: bool = False  # tables by rows, heads of the vocabulary by columns
    mixing: Mixing | None = None  # how attention meets sharded rows
    layers: bool = False  # pipeline stages of layers
    stored: int = 0  # ZeRO stage: 1 optimiser, 2 gradients, 3 weights
    by_hand: bool = False  # only named weights are sharded, and those that follow
    experts: Literal["cut", "whole"] | None = None  # experts are placed on the axis
    planned_as: str = ""  # for attention: strategy whose formulas `plan` reads; empty: it is not tried

    @property
    def cuts_weights(self) -> bool:
        return self.weights or self.vocabulary or self.by_hand

    @property
    def copies_weights(self) -> bool:
        """True if ranks share sequences or tokens and each computes with all weights but experts."""
        return self.home is not None and not self.weights


def meet(one: AxisStrategy, other: AxisStrategy) -> bool:
    """True if two strategies split the same thing, so that a mesh has only one of them. State that is stored once is
    gathered level by level, so ZeRO may have several axes."""
    alike = one.name == other.name and not one.stored
    return (
        alike
        or (one.weights and other.weights)
        or (one.layers and other.layers)
        or bool(one.experts and other.experts)
        or (one.mixing is not None and one.mixing == other.mixing)
    )
