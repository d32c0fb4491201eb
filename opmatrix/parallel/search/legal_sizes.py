"""The sizes that strategies may have, as columns of whole numbers: how devices are factored over axes, sequences of a
micro-batch, chunks of a stage. What a model or a batch cannot divide is none of them."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from math import isqrt
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from opmatrix.models import normalise_config
from opmatrix.models.config import Settings
from opmatrix.parallel.cost.expert_work import count_experts

SizeColumn: TypeAlias = "NDArray[np.int64]"
Axes: TypeAlias = "tuple[int, int, int, int]"               # dp, tp, pp, cp
FARTHEST = 4096                                             # devices away that a number which works is looked for
DEEPEST = 16                                                # chunks of a stage, at most
MAX_COUNT = 10 ** 9                                         # devices, sequences of a step, tokens of a sequence
MAX_NUMBERS = 1e18                                          # of the values of a step, below 2^63 with room


@dataclass(frozen=True)
class ModelLimits:
    """What a model lets axes divide: layers, heads, heads of keys, experts (0: none), and how wide a head is."""
    layers: int
    heads: int
    key_heads: int
    experts: int
    head: int

    def cuts_heads(self, tp: int) -> bool:
        """Whether so many ranks have whole heads of queries, and each whole heads of keys, or copies of one."""
        return self.heads % tp == 0 and (self.key_heads % tp == 0 or tp % self.key_heads == 0)


@dataclass(frozen=True)
class SizeColumns:
    """Sizes of strategies, one a row. `virtual`: chunks of a stage."""
    dp: SizeColumn
    tp: SizeColumn
    pp: SizeColumn
    cp: SizeColumn
    ep: SizeColumn
    micro_batch: SizeColumn
    virtual: SizeColumn

    def __len__(self) -> int: return len(self.dp)

    def __getitem__(self, at: NDArray[np.bool_] | NDArray[np.intp] | slice) -> SizeColumns:
        return SizeColumns(*(getattr(self, each.name)[at] for each in fields(self)))

    def row(self, at: int) -> dict[str, int]:
        """The sizes of one strategy, by name."""
        return {each.name: int(getattr(self, each.name)[at]) for each in fields(self)}

    def blocks(self, rows: int) -> Iterator[SizeColumns]:
        """So many rows at a time."""
        for start in range(0, len(self), rows): yield self[start:start + rows]


def limits_of(config: Settings) -> ModelLimits:
    """What a configuration lets axes divide. Raises InputError for one that has no such sizes, or names for them."""
    said = normalise_config(config)
    wanted = {"num_hidden_layers": "layers", "num_attention_heads": "heads", "hidden_size": "width"}
    for key in wanted:
        if not isinstance(said.get(key), int):
            raise InputError(f"config: {key} is {said.get(key)!r}: a plan needs its number")
    heads = said["num_attention_heads"]
    return ModelLimits(said["num_hidden_layers"], heads, said.get("num_key_value_heads") or heads,
                       count_experts(said),
                       said.get("head_dim") or said["hidden_size"] // heads)


@cache
def divisors(number: int) -> tuple[int, ...]:
    """All of them, the smallest first."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def axis_sizes(limits: ModelLimits, devices: int, batch: int, tokens: int) -> Iterator[Axes]:
    """How devices are factored over dp, tp, pp and cp: heads are cut whole, a stage has a layer at least, ranks of data
    a sequence, those of context as many tokens each."""
    for tp in divisors(devices):
        if not limits.cuts_heads(tp): continue
        for pp in divisors(devices // tp):
            if pp > limits.layers: break
            for dp in divisors(devices // (tp * pp)):
                cp = devices // (tp * pp * dp)
                if batch % dp == 0 and tokens % cp == 0 and cp <= tokens // 2: yield dp, tp, pp, cp


def legal_sizes(limits: ModelLimits, devices: int, batch: int, tokens: int) -> SizeColumns:
    """All sizes of strategies of so many devices, for a batch of sequences of so many tokens. Chunks of a stage are
    several where layers divide into them, and micro-batches into groups of as many as there are stages. Raises
    InputError where there are none, with what would work."""
    check_counts(limits, devices, batch, tokens)
    rows: list[tuple[int, ...]] = []
    for dp, tp, pp, cp in axis_sizes(limits, devices, batch, tokens):
        experts = [n for n in divisors(dp * cp) if n == 1 or (limits.experts and limits.experts % n == 0)]
        for micro in divisors(batch // dp):
            for chunks in chunk_counts(limits.layers, pp, batch // (dp * micro)):
                rows += [(dp, tp, pp, cp, n, micro, chunks) for n in experts]
    if not rows: refuse_sizes(limits, devices, batch, tokens)
    return SizeColumns(*np.array(rows, np.int64).T)


def check_counts(limits: ModelLimits, devices: int, batch: int, tokens: int) -> None:
    """Raises InputError for counts beyond any machine, whose formulas would not fit into whole numbers of 64 bits."""
    for option, count in (("--devices", devices), ("--batch", batch), ("--seq", tokens)):
        if not 1 <= count <= MAX_COUNT: raise InputError(f"{option} {count}: give a number from 1 to {MAX_COUNT:,}")
    numbers = batch * tokens * limits.layers * limits.heads * limits.head
    if numbers > MAX_NUMBERS:
        raise InputError(f"--batch {batch}, --seq {tokens}: a step of {numbers:.2g} numbers: at most "
                         f"{MAX_NUMBERS:.0g}: give a smaller batch")


@cache
def chunk_counts(layers: int, pp: int, micro_batches: int) -> tuple[int, ...]:
    """How many chunks a stage may have."""
    if pp == 1 or layers % pp or micro_batches % pp: return (1,)
    return tuple(d for d in divisors(layers // pp) if d <= DEEPEST)


def refuse_sizes(limits: ModelLimits, devices: int, batch: int, tokens: int) -> None:
    """Raises InputError for devices that no strategy divides, or a batch that is too small for them."""
    near = nearest_devices(limits, devices, batch, tokens)
    larger = next((n for n in range(batch + 1, batch + FARTHEST) if any(axis_sizes(limits, devices, n, tokens))), None)
    counts = " and ".join(map(str, near)) or "none near it"
    if larger is not None and batch < devices and not devices_alone(limits, devices, tokens):
        raise InputError(f"--batch {batch}: too small for {devices} devices: {larger} is the next that they divide; "
                         f"with {batch} sequences {counts} devices work")
    raise InputError(f"--devices {devices}: no strategy divides them: {limits.heads} heads, {limits.layers} layers, "
                     f"{batch} sequences of {tokens} tokens: the nearest counts that work are {counts}")


def devices_alone(limits: ModelLimits, devices: int, tokens: int) -> bool:
    """Whether devices cannot be divided whatever the batch, up to one sequence a device."""
    return not any(axis_sizes(limits, devices, devices, tokens))


def nearest_devices(limits: ModelLimits, devices: int, batch: int, tokens: int) -> list[int]:
    """The next smaller and the next larger number of devices that some strategy divides."""
    found = []
    for step in (-1, 1):
        near = (n for n in range(devices + step, max(0, devices + step * FARTHEST), step))
        found += [n for n in [next((n for n in near if any(axis_sizes(limits, n, batch, tokens))), 0)] if n]
    return found
