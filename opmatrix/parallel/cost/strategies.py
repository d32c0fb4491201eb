"""A strategy: how a number of devices trains a model. Its numbers may be arrays or symbols; its words are one form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import Literal, TypeAlias

from formats.machine.datasheets import EIGHT_BITS
from opmatrix.parallel.axes.known_axes import COPYING_AXES, DEVICE_AXES, FOLDED_AXES, ORDERS, TOKEN_AXES
from opmatrix.parallel.cost.quantities import Quantity
from opmatrix.parallel.schedules.named import USUAL_SCHEDULE

RecomputeKind: TypeAlias = Literal["none", "selective", "full", "core_attention", "block"]
RECOMPUTES: tuple[RecomputeKind, ...] = ("none", "selective", "full")  # those that a plan tries
BLOCK_AGAIN: RecomputeKind = "block"  # in full, of the first layers of each chunk: as many as it takes to fit
BALANCED_PLACES = 2  # places of layers that the table of tokens and the head take, where stages count them
SIXTEEN_BITS = "bf16"  # number type of values beside products of eight bits


@dataclass(frozen=True)
class Strategy:
    """A way to train a model on many devices: ranks of each axis, sizes, and choices by name. Numbers may be arrays or
    symbols."""

    dp: Quantity = 1  # data-parallel ranks
    tp: Quantity = 1  # tensor-parallel ranks
    pp: Quantity = 1  # pipeline stages
    cp: Quantity = 1  # context-parallel ranks
    ep: Quantity = 1  # expert-parallel ranks, laid over the ranks of dp and cp
    micro_batch: Quantity = 1  # sequences of a micro-batch
    virtual: Quantity = 1  # virtual stages of a rank
    zero: int = 0  # ZeRO: dp and cp shard 1 optimiser, 2 + gradients,
    # 3 + weights
    sequence: bool = False  # sequence parallelism: norms are sharded over tp
    recompute: RecomputeKind = "none"  # the part of forward that backward recomputes
    again: Quantity | None = None  # share of layers of "block"; None: what the room asks for
    room: float | None = None  # bytes that a device may report; None: all of its memory
    context: str = "ring"  # how attention meets tokens sharded over cp
    schedule: str = USUAL_SCHEDULE.name  # pipeline schedule
    order: tuple[str, ...] = ORDERS[0]  # axes by the distance of their ranks, nearest first
    flash: bool = False  # scores of attention are never stored
    overlap: bool = True  # sums of gradients run beside the backward pass
    precision: str = "bf16"  # number type of values
    cut: tuple[int, ...] | None = None  # layers of each stage; None: as many each
    balanced: bool = False  # the embedding table and the head count as a layer each
    gradient_bytes: float = 2  # bytes of a parameter's gradient that are summed
    accumulated: float = 0  # bytes of accumulated gradients beside them
    fused_sums: bool = False  # products of gradients add to the sum themselves
    beside: tuple[str, ...] = ()  # axes whose collectives run beside products of a layer
    whole_experts: bool = False  # tp shards no expert: ep is laid over its ranks first
    load: float = 1  # rows of the busiest expert rank, relative to the mean
    relays: bool = False  # a row is sent to each node of its experts once, and on from there
    sent_in_eight: bool = False  # with products of eight bits, rows go to experts in eight, too
    sending_cores: float = 0  # cores that send, and compute nothing
    process_bytes: float = 4e9  # bytes of a device beside its allocator's: the driver's
    # context, buffers of collectives and of graphs
    launched: bool = False  # as `opmatrix launch` runs it: every tensor rank sends all
    # rows to experts, and experts are computed again

    @property
    def devices(self) -> Quantity:
        return self.ranks_of(axis.name for axis in DEVICE_AXES)

    @property
    def copies(self) -> Quantity:
        """The ranks that compute with the same weights, but for experts: those that share sequences and tokens."""
        return self.ranks_of(COPYING_AXES)

    @property
    def token_ranks(self) -> Quantity:
        """The ranks that share the tokens of a sequence."""
        return self.ranks_of(TOKEN_AXES)

    @property
    def values(self) -> str:
        """The number type of values that are stored and sent."""
        return SIXTEEN_BITS if self.precision in EIGHT_BITS else self.precision

    @property
    def expert_ranks(self) -> Quantity:
        """The ranks that experts are placed on: those that share sequences and tokens; whole ones also over tp."""
        return self.copies * (self.tp if self.whole_experts else 1)

    @property
    def copies_stride(self) -> Quantity:
        """The devices between neighbours of the ranks that share sequences and tokens."""
        farthest, *others = COPYING_AXES
        return self.stride(farthest) / self.ranks_of(others)

    def ranks_of(self, axes: Iterable[str]) -> Quantity:
        """Return the number of ranks of some axes together."""
        return reduce(mul, (getattr(self, name) for name in axes))

    def stride(self, axis: str) -> Quantity:
        """Return how many devices lie between neighbours of an axis. Expert ranks, and the groups that sum gradients,
        run over all ranks that share sequences and tokens: over the nearest axis first."""
        if axis in FOLDED_AXES and self.whole_experts:
            return self.stride("tp")
        if axis in FOLDED_AXES:
            return self.copies_stride
        distance: Quantity = 1
        for name in self.order[: self.order.index(axis)]:
            distance = distance * getattr(self, name)
        return distance
