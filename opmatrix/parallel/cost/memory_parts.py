"""What the fullest stage holds at most, part by part; the parts add up."""
from __future__ import annotations

from opmatrix.parallel.cost.layer_work import LayerWork, is_of_pairs
from opmatrix.parallel.cost.quantities import Formula, Quantity, add_all, least, most, step_at
from opmatrix.parallel.cost.step_parts import PartSeconds, Setting, fullest_share, score_count, stored_numbers
from opmatrix.parallel.schedules.named import SCHEDULES, USUAL_SCHEDULE

# what allocators reserve of what they hand out, and what a process, its library of collectives and buckets take:
# chosen with all BLOOM rows in view
RESERVED_SHARE, CONTEXT = 1.2, 4e9
TIGHT_SHARE = 1.1                                           # with what fragments leave, where all else is given back
STATE = "weights", "gradients", "optimiser"
PRODUCT_INPUTS = "input", "weight in", "product in"


def memory_parts(setting: Setting) -> PartSeconds:
    """Bytes that are allocated at the peak."""
    own = setting.strategy
    schedule = SCHEDULES[own.schedule]
    if schedule.chunked: schedule = USUAL_SCHEDULE                   # what its chunks hold beside that is a factor
    held = schedule.held(0, own.pp, setting.micro_batches, 1)
    chunks = 1 + (own.pp - 1) / (own.pp * own.virtual) * step_at(own.virtual, 2)
    kept = fullest_share(setting) * add_all(count * kept_bytes(setting, work) for work, count in setting.model.layers)
    body = setting.model.layers[0][0]
    working = whole_bytes(setting, body) if own.recompute == "full" else 0 * own.micro_batch
    if setting.model.asks:
        working = working + setting.number * most(*(work.made.at(setting.sizes) for work, _ in setting.model.layers), 0)
    state = zip(STATE, bytes_of_state(setting), strict=True)
    return {**{name: size * stored_numbers(setting, own.zero > 2 - at) for at, (name, size) in enumerate(state)},
            "kept": kept * held * chunks, "working": working,
            "logits": logits_bytes(setting)}


def bytes_of_state(setting: Setting) -> tuple[float, float, float]:
    """Bytes of a number's weight, gradient and optimiser's state."""
    own = setting.strategy
    return setting.number, own.gradient_bytes + own.accumulated, 12


def state_bytes(setting: Setting, work: LayerWork) -> float:
    """Bytes of the state of one layer on a rank."""
    own, sizes = setting.strategy, setting.sizes
    whole, experts = work.parameters.at(sizes), work.experts.at(sizes)
    once = (whole + (own.ep - 1) * experts) / (own.dp * own.cp)
    return float(sum(size * (once if own.zero > 2 - at else whole)
                     for at, size in enumerate(bytes_of_state(setting))))


def kept_bytes(setting: Setting, work: LayerWork) -> Quantity:
    """Bytes that a layer keeps of a micro-batch."""
    own, sizes = setting.strategy, setting.sizes
    if own.recompute == "full": return setting.number * work.kept["input"].at(sizes)
    if own.recompute == "selective" and own.flash:          # what is no product runs again
        return setting.number * add_all(each.at(sizes) for unit, each in work.kept.items()
                                        if unit in PRODUCT_INPUTS and unit not in work.between)
    return whole_bytes(setting, work, own.flash or own.recompute == "selective")


def whole_bytes(setting: Setting, work: LayerWork, without_pairs: bool | None = None) -> Quantity:
    """Bytes that a layer keeps where nothing is computed again; without those of pairs of tokens."""
    without = setting.strategy.flash if without_pairs is None else without_pairs

    def held(formula: Formula) -> Quantity:
        terms = tuple(each for each in formula.terms if not (without and is_of_pairs(each[1])))
        return Formula(terms).at(setting.sizes)
    return setting.number * add_all(map(held, work.kept.values())) + add_all(map(held, work.masks.values()))


def logits_bytes(setting: Setting) -> Quantity:
    """Scores of the vocabulary, as numbers and in float32 with their gradients, of one micro-batch, where one stage has
    all layers; else the last stage has them, which keeps fewer micro-batches."""
    if (scores := score_count(setting)) is None: return 0
    return (setting.number + 4) * scores * (1 - step_at(setting.strategy.pp, 2))


def allocatable(setting: Setting, room: float) -> float:
    """What may be allocated where so many bytes of a device may be reserved."""
    return (room - CONTEXT) / (RESERVED_SHARE if room < setting.machine.memory[-1][1] else TIGHT_SHARE)


def reserved_bytes(setting: Setting, allocated: Quantity) -> Quantity:
    """What the device reports: blocks that an allocator keeps while there is room, and the process itself."""
    room = setting.machine.memory[-1][1] - CONTEXT
    return least(RESERVED_SHARE * allocated, most(TIGHT_SHARE * allocated, room)) + CONTEXT
