"""The rules that a strategy of plain numbers must meet, each with a complaint and the nearest legal number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import isfinite
from numbers import Real
from typing import get_args

from formats.core.errors import InputError, suggest_name
from formats.machine.datasheets import BYTES, EIGHT_BITS
from opmatrix.parallel.axes.context_axis import CONTEXTS
from opmatrix.parallel.axes.data_axis import STORING
from opmatrix.parallel.axes.known_axes import COPYING_AXES, DEVICE_AXES, FOLDED_AXES, ORDERS, PLANNED_AXES
from opmatrix.parallel.axes.parallel_axis import CutSizes, ModelLimits, ParallelAxis
from opmatrix.parallel.cost.layer_work import ModelWork
from opmatrix.parallel.cost.strategies import BALANCED_PLACES, RecomputeKind, Strategy
from opmatrix.parallel.schedules.named import SCHEDULES

COUNTED = *(axis.name for axis in DEVICE_AXES), *FOLDED_AXES, "micro_batch", "virtual"
NEAREST = 4096  # distance within which a legal number is sought
LARGEST_COUNT = 10**9  # the largest number of ranks, sequences or tokens


def check_named_choices(strategy: Strategy) -> None:
    """Raise InputError for a choice by name that there is none of."""
    kinds = {
        "recompute": (strategy.recompute, get_args(RecomputeKind)),
        "context": (strategy.context, [name for name, way in CONTEXTS.items() if way.planned_as]),
        "schedule": (strategy.schedule, [*SCHEDULES]),
        "precision": (strategy.precision, [*BYTES, *EIGHT_BITS]),
    }
    for what, (name, known) in kinds.items():
        if name not in known:
            raise InputError(f"{what} {name!r}: {suggest_name(str(name), known)}it is one of {', '.join(known)}")
    if strategy.zero not in range(len(STORING)):
        raise InputError(f"zero {strategy.zero!r}: a stage of ZeRO is 0, 1, 2 or 3")
    if sorted(strategy.order) != sorted(ORDERS[0]):
        raise InputError(f"order {' '.join(strategy.order)}: it has each of {', '.join(ORDERS[0])} once")


def check_legal(work: ModelWork, strategy: Strategy, batch: object, seq: object) -> None:
    """Raise InputError for a strategy that a model cannot be trained by, with the rule that it breaks and the nearest
    legal number. Arrays and symbols are not checked."""
    numbers = {**{name: getattr(strategy, name) for name in COUNTED}, "batch": batch, "seq": seq}
    if any(hasattr(number, "__array_ufunc__") or hasattr(number, "free_symbols") for number in numbers.values()):
        return
    counts = {name: whole_count(name, number) for name, number in numbers.items()}
    if not (isinstance(strategy.load, Real) and isfinite(strategy.load) and strategy.load >= 1):
        raise InputError(
            f"load {strategy.load!r}: rows of the busiest expert rank over the mean: give a number from 1 on"
        )
    for complaint in complaints(work, strategy, counts):
        raise InputError(complaint)


def whole_count(name: str, number: object) -> int:
    """Return a number as an int. Raises InputError for one that is no whole number from 1 on."""
    value = float(number) if isinstance(number, Real) else 0.0
    if isfinite(value) and value == int(value) and 1 <= value <= LARGEST_COUNT:
        return int(value)
    raise InputError(f"{name} {number!r}: give a whole number from 1 to {LARGEST_COUNT:,}")


def limits_of_work(work: ModelWork) -> ModelLimits:
    """Return the sizes of a model that axes divide; the columns of a head divide nothing."""
    return ModelLimits(work.count, work.heads, work.key_heads, work.experts, 0)


def complaints(work: ModelWork, strategy: Strategy, counts: dict[str, int]) -> Iterator[str]:
    """Yield what is illegal about a strategy, rule by rule."""
    ranks = {axis.name: counts[axis.name] for axis in DEVICE_AXES}
    sizes = CutSizes(limits_of_work(work), counts["batch"], counts["seq"], ranks)
    for axis in PLANNED_AXES:
        if undivided := axis.refused(counts[axis.name], sizes):
            near = nearest_counts(counts[axis.name], partial(axis_takes, axis, sizes))
            yield f"{axis.name} {counts[axis.name]}: {undivided}: {axis.name} ranks: {axis.legal}; {near}"
    yield from batch_complaints(counts)
    yield from stage_complaints(work, strategy, counts)
    yield from token_complaints(work, strategy, counts)
    yield from expert_complaints(work, strategy, counts)


def axis_takes(axis: ParallelAxis, sizes: CutSizes, ranks: int) -> bool:
    """True if an axis may have a number of ranks."""
    return not axis.refused(ranks, sizes)


def nearest_counts(count: int, legal: Callable[[int], bool]) -> str:
    """Return the nearest numbers that are legal, as text."""
    below = next((n for n in range(count - 1, max(0, count - NEAREST), -1) if legal(n)), None)
    above = next((n for n in range(count + 1, count + NEAREST) if legal(n)), None)
    numbers = " and ".join(str(n) for n in (below, above) if n is not None)
    return f"the nearest legal are {numbers}" if numbers else "none near it is legal"


def batch_complaints(counts: dict[str, int]) -> Iterator[str]:
    """Yield the complaint about a batch that data ranks and micro-batches do not divide."""
    together = counts["dp"] * counts["micro_batch"]
    if counts["batch"] % together:
        below, above = counts["batch"] // together * together, -(-counts["batch"] // together) * together
        near = f"{below} and {above}" if below else f"{above}"
        yield (
            f"batch {counts['batch']}: dp {counts['dp']} ranks with micro-batches of {counts['micro_batch']} take "
            f"multiples of {together}; the nearest legal are {near}"
        )


def stage_complaints(work: ModelWork, strategy: Strategy, counts: dict[str, int]) -> Iterator[str]:
    """Yield the complaints about stages, chunks and the order of their passes."""
    stages, chunks = counts["pp"], counts["virtual"]
    places = work.count + BALANCED_PLACES * strategy.balanced
    if stages * chunks > places:
        yield (
            f"virtual {chunks}: {stages} stages of {chunks} chunks are more than {places} layers; "
            f"the nearest legal is {max(places // stages, 1)}"
        )
    if stages == 1:
        return
    schedule, micro_batches = SCHEDULES[strategy.schedule], counts["batch"] // (counts["dp"] * counts["micro_batch"])
    if complaint := schedule.illegal(stages, micro_batches):
        yield f"schedule {schedule.name}: {micro_batches} micro-batches on {stages} stages: {complaint}"
    cut = strategy.cut
    if cut is not None and work.tower and sum(cut) == work.count - work.tower:
        yield (
            f"cut {cut}: its {sum(cut)} layers are the decoder's, and the {work.tower} of the tower have no stage: "
            f"give layers that add up to {work.count}"
        )
    elif cut is not None and (len(cut) != stages * chunks or sum(cut) != work.count or min(cut) < 0):
        yield f"cut {cut}: give layers of {stages * chunks} chunks that add up to {work.count}"


def token_complaints(work: ModelWork, strategy: Strategy, counts: dict[str, int]) -> Iterator[str]:
    """Yield the complaints about tokens and heads that several axes share."""
    tensor, context, tokens = counts["tp"], counts["cp"], counts["seq"]
    if strategy.sequence and tokens % (tensor * context):
        yield (
            f"sequence: tp {tensor} x cp {context} ranks do not divide {tokens} tokens; "
            f"{nearest_counts(tokens, lambda n: n % (tensor * context) == 0)} tokens"
        )
    if context > 1 and CONTEXTS[strategy.context].mixing == "heads" and work.heads % (tensor * context):
        yield (
            f"context {strategy.context}: tp {tensor} x cp {context} ranks do not divide {work.heads} heads; "
            f"{nearest_counts(context, lambda n: work.heads % (tensor * n) == 0)} for cp"
        )


def expert_complaints(work: ModelWork, strategy: Strategy, counts: dict[str, int]) -> Iterator[str]:
    """Yield the complaints about ranks of experts."""
    experts, folded = counts["ep"], strategy.whole_experts
    if folded and not (work.experts and (strategy.sequence or counts["tp"] == 1)):
        yield "whole experts: they need a model with experts, and norms cut over tensor ranks: give sequence"
    over = counts["tp"] if folded else 1
    for name in COPYING_AXES:
        over *= counts[name]
    if over % experts:
        axes = " x ".join((*COPYING_AXES, "tp") if folded else COPYING_AXES)
        near = nearest_counts(experts, lambda n: over % n == 0 and work.experts % n == 0)
        yield f"ep {experts}: it must divide the {over} ranks of {axes}, which share the experts; {near}"
