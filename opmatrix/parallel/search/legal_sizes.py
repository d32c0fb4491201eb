"""The legal sizes of strategies, as columns of whole numbers: factors of the devices over axes, sequences of a
micro-batch, chunks of a stage. Sizes that a model or a batch does not divide into are left out."""

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
Axes: TypeAlias = "tuple[int, int, int, int]"  # dp, tp, pp, cp
FARTHEST = 4096  # distance in devices within which a legal count is sought
DEEPEST = 16  # chunks of a stage, at most
MAX_COUNT = 10**9  # devices, sequences of a step, tokens of a sequence
MAX_NUMBERS = 1e18  # numbers of all values of a step: well below 2^63


@dataclass(frozen=True)
class ModelLimits:
    """The sizes of a model that axes divide."""

    layers: int
    heads: int
    key_heads: int  # heads of keys
    experts: int  # experts of a layer; 0: none
    head: int  # columns of a head

    def cuts_heads(self, tp: int) -> bool:
        """True if `tp` ranks have whole heads of queries, and each has whole heads of keys, or copies of one."""
        return self.heads % tp == 0 and (self.key_heads % tp == 0 or tp % self.key_heads == 0)


@dataclass(frozen=True)
class SizeColumns:
    """Sizes of strategies, one a row."""

    dp: SizeColumn
    tp: SizeColumn
    pp: SizeColumn
    cp: SizeColumn
    ep: SizeColumn
    micro_batch: SizeColumn
    virtual: SizeColumn  # virtual stages (chunks) of a stage

    def __len__(self) -> int:
        return len(self.dp)

    def __getitem__(self, at: NDArray[np.bool_] | NDArray[np.intp] | slice) -> SizeColumns:
        return SizeColumns(*(getattr(self, column.name)[at] for column in fields(self)))

    def row(self, at: int) -> dict[str, int]:
        """Return the sizes of one strategy, by name."""
        return {column.name: int(getattr(self, column.name)[at]) for column in fields(self)}

    def blocks(self, rows: int) -> Iterator[SizeColumns]:
        """Yield the sizes in blocks of at most `rows` rows."""
        for start in range(0, len(self), rows):
            yield self[start : start + rows]


def limits_of(config: Settings) -> ModelLimits:
    """Return the sizes of a configuration that axes divide. Raises InputError for a configuration that lacks them, or
    has names for them."""
    settings = normalise_config(config)
    wanted = {"num_hidden_layers": "layers", "num_attention_heads": "heads", "hidden_size": "width"}
    for key in wanted:
        if not isinstance(settings.get(key), int):
            raise InputError(f"config: {key} is {settings.get(key)!r}: a plan needs its number")
    heads = settings["num_attention_heads"]
    return ModelLimits(
        settings["num_hidden_layers"],
        heads,
        settings.get("num_key_value_heads") or heads,
        count_experts(settings),
        settings.get("head_dim") or settings["hidden_size"] // heads,
    )


@cache
def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors of a number, the smallest first."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def axis_sizes(limits: ModelLimits, devices: int, batch: int, tokens: int) -> Iterator[Axes]:
    """Yield the ways to factor devices over dp, tp, pp and cp: heads are never split, a stage has at least one layer, a
    data rank at least one sequence, and context ranks have equal numbers of tokens."""
    for tp in divisors(devices):
        if not limits.cuts_heads(tp):
            continue
        for pp in divisors(devices // tp):
            if pp > limits.layers:
                break
            for dp in divisors(devices // (tp * pp)):
                cp = devices // (tp * pp * dp)
                if batch % dp == 0 and tokens % cp == 0 and cp <= tokens // 2:
                    yield dp, tp, pp, cp


def legal_sizes(limits: ModelLimits, devices: int, batch: int, tokens: int) -> SizeColumns:
    """Return all sizes of strategies of `devices` devices, for `batch` sequences of `tokens` tokens. A stage has
    several chunks only where layers divide into them, and micro-batches into groups of the number of stages. Raises
    InputError where there are none, with sizes that would work."""
    check_counts(limits, devices, batch, tokens)
    rows: list[tuple[int, ...]] = []
    for dp, tp, pp, cp in axis_sizes(limits, devices, batch, tokens):
        experts = [n for n in divisors(dp * cp) if n == 1 or (limits.experts and limits.experts % n == 0)]
        for micro in divisors(batch // dp):
            for chunks in chunk_counts(limits.layers, pp, batch // (dp * micro)):
                rows += [(dp, tp, pp, cp, n, micro, chunks) for n in experts]
    if not rows:
        refuse_sizes(limits, devices, batch, tokens)
    return SizeColumns(*np.array(rows, np.int64).T)


def check_counts(limits: ModelLimits, devices: int, batch: int, tokens: int) -> None:
    """Raise InputError for counts beyond any machine: their formulas would not fit into 64-bit integers."""
    for option, count in (("--devices", devices), ("--batch", batch), ("--seq", tokens)):
        if not 1 <= count <= MAX_COUNT:
            raise InputError(f"{option} {count}: give a number from 1 to {MAX_COUNT:,}")
    numbers = batch * tokens * limits.layers * limits.heads * limits.head
    if numbers > MAX_NUMBERS:
        raise InputError(
            f"--batch {batch}, --seq {tokens}: a step of {numbers:.2g} numbers: at most "
            f"{MAX_NUMBERS:.0g}: give a smaller batch"
        )


@cache
def chunk_counts(layers: int, pp: int, micro_batches: int) -> tuple[int, ...]:
    """Return the legal numbers of chunks of a stage."""
    if pp == 1 or layers % pp or micro_batches % pp:
        return (1,)
    return tuple(d for d in divisors(layers // pp) if d <= DEEPEST)


def refuse_sizes(limits: ModelLimits, devices: int, batch: int, tokens: int) -> None:
    """Raise InputError for devices that no strategy divides, or a batch that is too small for them."""
    near = nearest_devices(limits, devices, batch, tokens)
    larger = next((n for n in range(batch + 1, batch + FARTHEST) if any(axis_sizes(limits, devices, n, tokens))), None)
    counts = " and ".join(map(str, near)) or "none near it"
    if larger is not None and batch < devices and not devices_alone(limits, devices, tokens):
        raise InputError(
            f"--batch {batch}: too small for {devices} devices: {larger} is the next that they divide; "
            f"with {batch} sequences use {counts} devices"
        )
    raise InputError(
        f"--devices {devices}: no strategy divides them: {limits.heads} heads, {limits.layers} layers, "
        f"{batch} sequences of {tokens} tokens: the nearest counts that work are {counts}"
    )


def devices_alone(limits: ModelLimits, devices: int, tokens: int) -> bool:
    """True if the devices have no legal factors even with one sequence a device."""
    return not any(axis_sizes(limits, devices, devices, tokens))


def nearest_devices(limits: ModelLimits, devices: int, batch: int, tokens: int) -> list[int]:
    """Return the next smaller and the next larger number of devices that some strategy divides."""
    counts = []
    for step in (-1, 1):
        near = (n for n in range(devices + step, max(0, devices + step * FARTHEST), step))
        counts += [n for n in [next((n for n in near if any(axis_sizes(limits, n, batch, tokens))), 0)] if n]
    return counts
