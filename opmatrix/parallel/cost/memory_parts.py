"""The peak memory of the fullest stage, part by part; the parts add up."""

from __future__ import annotations

from opmatrix.parallel.cost.layer_work import LayerWork, is_of_pairs
from opmatrix.parallel.cost.quantities import Formula, Quantity, add_all, least, most, step_at
from opmatrix.parallel.cost.step_parts import (
    PartSeconds,
    Setting,
    fullest_share,
    known_part,
    layer_parameters,
    made_numbers,
    score_count,
    stored_numbers,
)
from opmatrix.parallel.schedules.named import SCHEDULES, USUAL_SCHEDULE

MEMORY_KINDS = "allocated", "reserved", "driver"  # by tensors, by the allocator, as the device reports
STATE = "weights", "gradients", "optimiser"
PRODUCT_INPUTS = "input", "weight in", "product in"


def memory_parts(setting: Setting) -> PartSeconds:
    """Return the bytes that are allocated at the peak, by part."""
    strategy = setting.strategy
    schedule = SCHEDULES[strategy.schedule]
    if schedule.chunked:
        schedule = USUAL_SCHEDULE  # its virtual stages hold a factor more: `chunks`
    held = schedule.held(0, strategy.pp, setting.micro_batches, 1)
    chunks = 1 + (strategy.pp - 1) / (strategy.pp * strategy.virtual) * step_at(strategy.virtual, 2)
    state = zip(STATE, bytes_of_state(setting), strict=True)
    chains = 1 + (schedule.chains - 1) * step_at(strategy.pp, 2)  # chains of chunks that a stage has the weights of
    return {
        **{
            name: chains * size * known_part(setting, stored_numbers, of=(strategy.zero > 2 - at,))
            for at, (name, size) in enumerate(state)
        },
        "kept": known_part(setting, saved_bytes, strategy.recompute) * held * chunks,
        "working": known_part(setting, working_bytes, strategy.recompute),
        "logits": known_part(setting, logits_bytes),
    }


def saved_bytes(setting: Setting) -> Quantity:
    """Return the bytes that the layers of the fullest stage save for backward, for one micro-batch."""
    return fullest_share(setting) * add_all(count * kept_bytes(setting, work) for work, count in setting.model.layers)


def working_bytes(setting: Setting) -> Quantity:
    """Return the bytes of values that live during the pass of one layer only."""
    body = setting.model.layers[0][0]
    working = whole_bytes(setting, body) if setting.strategy.recompute == "full" else 0 * setting.strategy.micro_batch
    if setting.model.asks:
        working = working + setting.number * most(*(made_numbers(setting, work) for work, _ in setting.model.layers), 0)
    return working


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
