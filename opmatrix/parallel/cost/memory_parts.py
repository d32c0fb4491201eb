"""The peak memory of the fullest stage, part by part; the parts add up."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from opmatrix.parallel.cost.layer_work import LayerWork, is_of_pairs
from opmatrix.parallel.cost.quantities import Formula, Quantity, add_all, least, most, round_up, step_at
from opmatrix.parallel.cost.step_parts import (
    LEAST_SHARE,
    PartSeconds,
    Setting,
    again_share,
    first_share,
    fullest_share,
    layer_parameters,
    made_numbers,
    score_count,
    stored_numbers,
    sum_parts,
)
from opmatrix.parallel.cost.strategies import BLOCK_AGAIN, RecomputeKind
from opmatrix.parallel.schedules.named import SCHEDULES, USUAL_SCHEDULE

BLOCK_ENDS: tuple[RecomputeKind, ...] = ("none", "full")  # kinds of recomputation of layers without and within a block
MEMORY_KINDS = "allocated", "reserved", "driver"  # by tensors, by the allocator, as the device reports
STATE = "weights", "gradients", "optimiser"
PRODUCT_INPUTS = "input", "weight in", "product in"


def memory_parts(setting: Setting) -> PartSeconds:
    """Return the bytes that are allocated at the peak, by part."""
    strategy = setting.strategy
    saved = add_all(count * kept_bytes(setting, work) for work, count in setting.model.layers)
    working = 0 * strategy.micro_batch
    if (share := again_share(strategy)) is not None:
        working = reduce(most, (whole_bytes(setting, work) for work in setting.model.kinds)) * least(
            share / LEAST_SHARE, 1
        )
    if setting.model.asks:
        working = working + setting.number * most(*(made_numbers(setting, work) for work, _ in setting.model.layers), 0)
    state = zip(STATE, bytes_of_state(setting), strict=True)
    return {
        **{name: size * stored_numbers(setting, strategy.zero > 2 - at) for at, (name, size) in enumerate(state)},
        "kept": saved * held_layers(setting),
        "working": working,
        "logits": logits_bytes(setting),
    }


def recomputing(setting: Setting, kind: RecomputeKind) -> Setting:
    """Return the setting with another kind of recomputation."""
    return setting._replace(strategy=replace(setting.strategy, recompute=kind, again=None), passes=None)


def block_share(setting: Setting) -> Quantity:
    """Return the share of layers that must be computed again for a stage to fit: whole layers of a chunk, as few as it
    takes, and all of them where these do not suffice."""
    strategy, model = setting.strategy, setting.model
    none, full = (memory_parts(recomputing(setting, kind)) for kind in BLOCK_ENDS)
    room = setting.machine.memory[-1][1] if strategy.room is None else strategy.room
    over = sum_parts(none) - allocatable(setting, room)
    missing = over + least(most(over, 0), 1) * (full["working"] - none["working"])  # a layer's, while it runs again
    chunk = round_up(fullest_share(setting) * model.count / strategy.virtual)
    share = round_up(chunk * missing / most(none["kept"] - full["kept"], 1)) / chunk
    return least(most(share, 0), 1)


def held_layers(setting: Setting) -> Quantity:
    """Return the micro-batches that are held at the peak, each times the share of all layers that its stage has: on the
    first stage, or on the second, which holds fewer micro-batches and may have a layer more."""
    return most(first_share(setting) * held_at(setting, 0), fullest_share(setting) * held_at(setting, 1))


def held_at(setting: Setting, stage: int) -> Quantity:
    """Return the micro-batches that a stage holds at the peak; one chunk a stage is the usual schedule."""
    strategy, m = setting.strategy, setting.micro_batches
    schedule = SCHEDULES[strategy.schedule]
    if not schedule.chunked:
        return schedule.held(stage, strategy.pp, m, 1)
    alone = USUAL_SCHEDULE.held(stage, strategy.pp, m, 1)
    return alone + (schedule.held(stage, strategy.pp, m, strategy.virtual) - alone) * step_at(strategy.virtual, 2)


def bytes_of_state(setting: Setting) -> tuple[float, float, float]:
    """Return the bytes of a number's weight, gradient and optimiser state."""
    strategy = setting.strategy
    return setting.number, strategy.gradient_bytes + strategy.accumulated, 12


def state_bytes(setting: Setting, work: LayerWork) -> float:
    """Return the bytes of the state of one layer on a rank."""
    strategy = setting.strategy
    whole, experts = layer_parameters(setting, work), work.experts.at(setting.expert_sizes)
    once = (whole - experts) / strategy.copies + experts * strategy.ep / strategy.expert_ranks
    return float(
        sum(size * (once if strategy.zero > 2 - at else whole) for at, size in enumerate(bytes_of_state(setting)))
    )


def kept_bytes(setting: Setting, work: LayerWork) -> Quantity:
    """Return the bytes that a layer saves for backward, for one micro-batch; what experts compute is saved unless it is
    computed again."""
    share = setting.strategy.again
    if setting.strategy.recompute == BLOCK_AGAIN and share is not None:
        some, every = (kept_bytes(recomputing(setting, kind), work) for kind in BLOCK_ENDS)
        return every + (1 - share) * (some - every)
    if setting.strategy.recompute == "full" or setting.strategy.launched:
        return plain_bytes(setting, work)
    return plain_bytes(setting, work) + setting.number * made_numbers(setting, work)


def plain_bytes(setting: Setting, work: LayerWork) -> Quantity:
    """Return the bytes that a layer saves for backward, but for what experts compute."""
    strategy, sizes = setting.strategy, setting.sizes
    if strategy.recompute == "full":
        return setting.number * work.kept["input"].at(sizes)
    if strategy.recompute == "selective" and strategy.flash:  # all operations but products are recomputed
        return setting.number * add_all(
            formula.at(sizes)
            for unit, formula in work.kept.items()
            if unit in PRODUCT_INPUTS and unit not in work.between
        )
    return whole_bytes(setting, work, strategy.flash or strategy.recompute == "selective")


def whole_bytes(setting: Setting, work: LayerWork, without_pairs: bool | None = None) -> Quantity:
    """Return the bytes that a layer saves where nothing is recomputed. `without_pairs` leaves out numbers for pairs of
    tokens; by default it is so with flash attention."""
    without = setting.strategy.flash if without_pairs is None else without_pairs

    def held(formula: Formula) -> Quantity:
        """Evaluate a formula of bytes, without the numbers for pairs of tokens if these are left out."""
        terms = tuple(term for term in formula.terms if not (without and is_of_pairs(term[1])))
        return Formula(terms).at(setting.sizes)

    return setting.number * add_all(map(held, work.kept.values())) + add_all(map(held, work.masks.values()))


def logits_bytes(setting: Setting) -> Quantity:
    """Return the bytes of the vocabulary scores of one micro-batch, as numbers and in float32 with their gradients,
    where one stage has all layers. With more stages the last one has them, which saves fewer micro-batches, so they do
    not count."""
    if (scores := score_count(setting)) is None:
        return 0
    return (setting.number + 4) * scores * (1 - step_at(setting.strategy.pp, 2))


def allocatable(setting: Setting, room: float) -> float:
    """Return the bytes that may be allocated where a device may report `room` bytes."""
    fragments, tight = setting.constants.fragments, room >= setting.machine.memory[-1][1]
    return (room - setting.strategy.process_bytes) / (1 + fragments * (1 if tight else 2))


def reserved_bytes(setting: Setting, allocated: Quantity) -> Quantity:
    """Return the bytes that the allocator reserves: fragments between blocks, and as many bytes of free blocks, which
    it returns where the device has no more room."""
    fragments = setting.constants.fragments
    room = setting.machine.memory[-1][1] - setting.strategy.process_bytes
    return least((1 + 2 * fragments) * allocated, most((1 + fragments) * allocated, room))


def driver_bytes(setting: Setting, allocated: Quantity) -> Quantity:
    """Return the bytes that the driver reports of a device: those that the allocator reserves, and the process
    itself."""
    return reserved_bytes(setting, allocated) + setting.strategy.process_bytes
