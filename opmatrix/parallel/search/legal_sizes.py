"""The legal sizes of strategies, as columns of whole numbers: factors of the devices over axes, sequences of a
micro-batch, chunks of a stage. Sizes that a model or a batch does not divide into are left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from math import gcd, isqrt, prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from opmatrix.models import normalise_config
from opmatrix.models.config import Settings
from opmatrix.models.encoders.encoder_decoders import has_halves, read_halves
from opmatrix.models.encoders.towers import decoder_settings, has_tower, read_tower
from opmatrix.parallel.axes.known_axes import AXES, COPYING_AXES, DEVICE_AXES, FOLDED_AXES, PLANNED_AXES, farthest_first
from opmatrix.parallel.axes.parallel_axis import CutSizes, ModelLimits, ParallelAxis
from opmatrix.parallel.cost.expert_work import count_experts
from opmatrix.parallel.cost.strategies import BALANCED_PLACES

SizeColumn: TypeAlias = "NDArray[np.int64]"
FARTHEST = 4096  # distance in devices within which a legal count is sought
DEEPEST = 16  # chunks of a stage, at most
LIFTED_FIELDS = {"heads": ("heads", "key_heads"), "layers": ("layers",)}
LIFTED_CHUNKS = 240  # 16 x 3 x 5: chunks of a stage that divide layers which are lifted
MAX_COUNT = 10**9  # devices, sequences of a step, tokens of a sequence
MAX_NUMBERS = 1e18  # numbers of all values of a step: well below 2^63


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
        return len(self.virtual)

    def __getitem__(self, at: NDArray[np.bool_] | NDArray[np.intp] | slice) -> SizeColumns:
        return SizeColumns(*(getattr(self, column.name)[at] for column in fields(self)))

    def row(self, at: int) -> dict[str, int]:
        """Return the sizes of one strategy, by name."""
        return {column.name: int(getattr(self, column.name)[at]) for column in fields(self)}

    def ranks_of(self, axes: Iterable[str]) -> SizeColumn:
        """Return the number of ranks of axes together."""
        ranks: SizeColumn = np.prod([getattr(self, name) for name in axes], axis=0)
        return ranks

    def blocks(self, rows: int) -> Iterator[SizeColumns]:
        """Yield the sizes in blocks of at most `rows` rows."""
        for start in range(0, len(self), rows):
            yield self[start : start + rows]


def limits_of(config: Settings) -> ModelLimits:
    """Return the sizes of a configuration that axes divide. Raises InputError for a configuration that lacks them, or
    has names for them."""
    if has_halves(config):
        encoder, half = read_halves(config)
        return ModelLimits(
            encoder.layers + half.layers, gcd(encoder.heads, half.heads), half.heads, 0, half.width // half.heads
        )
    if has_tower(config):
        decoder = limits_of(decoder_settings(config))
        tower = read_tower(config, decoder.heads * decoder.head)
        return replace(decoder, layers=decoder.layers + tower.layers, heads=gcd(decoder.heads, tower.heads))
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


def lift_limits(limits: ModelLimits, names: Iterable[str], devices: int) -> ModelLimits:
    """Return limits whose named sizes (heads, layers) are multiples that all factors of the devices divide."""
    fields_of = [field for name in names for field in LIFTED_FIELDS[name]]
    return replace(limits, **{field: getattr(limits, field) * devices * LIFTED_CHUNKS for field in fields_of})


@cache
def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors of a number, the smallest first."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def chosen_in_turn() -> list[ParallelAxis]:
    """Return the axes in the order in which their sizes are chosen: the nearest, whose sizes are the fewest, then from
    the farthest on."""
    *others, nearest = farthest_first(DEVICE_AXES)
    return [nearest, *others]


TURNS = chosen_in_turn()


def axis_sizes(limits: ModelLimits, devices: int, batch: int, tokens: int) -> Iterator[Mapping[str, int]]:
    """Yield the ways to factor devices over axes, none of which refuses its number of ranks."""
    return factored(devices, CutSizes(limits, batch, tokens, {}), TURNS)


def factored(devices: int, sizes: CutSizes, turns: Sequence[ParallelAxis]) -> Iterator[Mapping[str, int]]:
    """Yield the ways to factor devices over the axes whose turn is to come, beside the ranks that are chosen. The last
    axis has all that are left."""
    axis, *others = turns
    for ranks in divisors(devices) if others else (devices,):
        if axis.refused(ranks, sizes):
            continue
        chosen = sizes.with_ranks(axis.name, ranks)
        if others:
            yield from factored(devices // ranks, chosen, others)
        else:
            yield chosen.ranks


def folded_sizes(sizes: CutSizes) -> Iterator[Mapping[str, int]]:
    """Yield the ways to factor the ranks that share sequences and tokens, and tensor ranks, over folded axes."""
    over = prod(sizes.ranks[name] for name in (*COPYING_AXES, "tp"))
    for numbers in product(*(divisors(over) for _ in FOLDED_AXES)):
        ranks = dict(zip(FOLDED_AXES, numbers, strict=True))
        if not any(AXES[name].refused(n, sizes) for name, n in ranks.items()):
            yield ranks


def legal_sizes(limits: ModelLimits, devices: int, batch: int, tokens: int, lifted: Iterable[str] = ()) -> SizeColumns:
    """Return all sizes of strategies of `devices` devices, for `batch` sequences of `tokens` tokens. A stage has
    several chunks only where layers divide into them, with or without table and head, and micro-batches into groups
    of the number of stages. `lifted`: sizes of the model that any ranks are taken to divide. Raises InputError where
    there are none, with sizes that would work."""
    check_counts(limits, devices, batch, tokens)
    limits = lift_limits(limits, lifted, devices)
    rows: list[tuple[int, ...]] = []
    for ranks in axis_sizes(limits, devices, batch, tokens):
        dp, pp = ranks["dp"], ranks["pp"]
        folded = [*folded_sizes(CutSizes(limits, batch, tokens, ranks))]
        laid = [tuple({**ranks, **more}[axis.name] for axis in PLANNED_AXES) for more in folded]
        for micro in divisors(batch // dp):
            for chunks in chunk_counts(limits.layers, pp, batch // (dp * micro)):
                rows += [(*sizes, micro, chunks) for sizes in laid]
    if not rows:
        refuse_sizes(limits, devices, batch, tokens)
    names = *(axis.name for axis in PLANNED_AXES), "micro_batch", "virtual"
    return SizeColumns(**dict(zip(names, np.array(rows, np.int64).T, strict=True)))


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
    """Return the legal numbers of chunks of a stage, the smallest first: those that divide the layers of a stage, or
    its layers where table and head count as one each."""
    if pp == 1 or micro_batches % pp:
        return (1,)
    shares = (places // pp for places in (layers, layers + BALANCED_PLACES) if places % pp == 0)
    return tuple(sorted({1}.union(*({d for d in divisors(share) if d <= DEEPEST} for share in shares))))


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
    sizes = CutSizes(limits, batch, tokens, {})
    reasons = ", ".join(dict.fromkeys(filter(None, (axis.refused(devices, sizes) for axis in TURNS))))
    raise InputError(
        f"--devices {devices}: no strategy divides them: {reasons}: the nearest counts that work are {counts}"
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
