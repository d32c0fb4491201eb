"""What one step of training takes, part by part: computation, what crosses by axis and level, synchronisation, the
bubble, gradients, the optimiser. The parts add up."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import NamedTuple

from formats.machine.datasheets import BYTES, Datasheet
from opmatrix.parallel.cost.constants import Constants
from opmatrix.parallel.cost.layer_work import CrossingWork, LayerPass, LayerWork, ModelWork, ProductWork
from opmatrix.parallel.cost.level_seconds import collective_parts
from opmatrix.parallel.cost.quantities import Quantity, add_all, most, round_up, soft_most, step_at
from opmatrix.parallel.cost.strategies import Strategy
from opmatrix.parallel.schedules.closed_forms import rounds
from opmatrix.parallel.schedules.named import SCHEDULES

PartSeconds = dict[str, Quantity]
LEAST_SHARE = 1e-9                                          # of a layer, or seconds: next to nothing
CORE_TILE = 1 << 15                                         # sums that a core holds: 256 x 128 in float32


class Setting(NamedTuple):
    """All that the formulas read: a model, a machine, a strategy, sizes, constants. `passes`: passes over layers that
    were found already, of strategies that differ in nothing but their form."""
    model: ModelWork
    machine: Datasheet
    strategy: Strategy
    batch: Quantity
    seq: Quantity
    constants: Constants
    passes: dict[tuple[object, ...], PartSeconds] | None = None

    @property
    def sizes(self) -> Mapping[str, Quantity]:
        own = self.strategy
        return {"b": own.micro_batch, "s": self.seq, "t": own.tp, "c": own.cp, "e": own.ep}

    @property
    def number(self) -> float: return BYTES[self.strategy.precision]
    @property
    def micro_batches(self) -> Quantity: return self.batch / (self.strategy.dp * self.strategy.micro_batch)
    @property
    def bandwidth(self) -> float: return self.constants.memory * self.machine.memory[-1][2]


def add_parts(*each: Mapping[str, Quantity]) -> PartSeconds:
    found: PartSeconds = {}
    for one in each:
        for name, seconds in one.items(): found[name] = found[name] + seconds if name in found else seconds
    return found


def scale_parts(each: Mapping[str, Quantity], count: Quantity) -> PartSeconds:
    return {name: count * seconds for name, seconds in each.items()}


def sum_parts(parts: Mapping[str, Quantity]) -> Quantity: return add_all(parts.values())


def product_seconds(setting: Setting, work: ProductWork) -> Quantity:
    """All of these products: what their operations take or what their bytes take, whichever is more. Cores compute
    tiles of what comes out, one each at a time, all inner products of a tile: of the last round a part is idle."""
    own, sizes, flash = setting.constants, setting.sizes, setting.strategy.flash
    rate = setting.machine.product_rate(setting.strategy.precision)[0]
    if work.ragged and not flash: rate = setting.machine.vector_rate("float32")
    inner, cores = work.inner.at(sizes), setting.machine.cores
    operations = 2 * work.rows.at(sizes) * inner * work.cols.at(sizes) * work.batch.at(sizes)
    numbers = work.numbers.at(sizes)
    if flash and work.between: operations, numbers = operations / 2, numbers - work.scores.at(sizes)
    idle = own.idle * 2 * inner * CORE_TILE * cores         # cores that have no tile while others do their last
    return work.count * most((operations + idle) / (own.matrix * rate), setting.number * numbers / setting.bandwidth)


def passing_seconds(setting: Setting, work: LayerWork, during: LayerPass) -> Quantity:
    """What is no product: what backward keeps is written and read once forward, and twice as often backward."""
    flash, sizes = setting.strategy.flash, setting.sizes
    kept = [formula.at(sizes) for unit, formula in work.kept.items() if not (flash and unit in work.between)]
    masks = [formula.at(sizes) for formula in work.masks.values()]
    size, made = setting.number * add_all(kept) + add_all(masks), setting.number * work.made.at(sizes)
    once = (2 if during == "forward" else 3) * size         # experts go forward again before they go back
    return (once + (2 if during == "forward" else 5) * made) / setting.bandwidth


def crossing_parts(setting: Setting, crossings: Iterable[CrossingWork], during: LayerPass) -> PartSeconds:
    """What crosses in a pass over a layer."""
    found: PartSeconds = {}
    for each in crossings:
        if each.during != during: continue
        n, stride = getattr(setting.strategy, each.axis), setting.strategy.stride(each.axis)
        size = setting.number * each.whole.at(setting.sizes)
        took = collective_parts(each.op, size, n, stride, setting.machine.links, setting.constants)
        moved = {f"{each.axis} over {level}": each.count * seconds for level, seconds in took.moved}
        found = add_parts(found, moved, {"synchronisation": each.count * took.waited})
    return found


def pass_parts(setting: Setting, work: LayerWork, during: LayerPass) -> PartSeconds:
    """A pass over a layer of a micro-batch, once. The host issues operations ahead of the device, which waits for it
    where it is faster: for some operations of a layer it is, for others not, so the larger of both is taken softly.
    Ranks of a group wait for the slowest of them beside it."""
    products = add_all(product_seconds(setting, each) for each in work.products if each.during == during)
    computed = products + passing_seconds(setting, work, during)
    crossed = crossing_parts(setting, work.crossings, during)
    busy = computed + add_all(seconds for name, seconds in crossed.items() if name != "synchronisation")
    issued = setting.constants.gap * work.lines * (1 if during == "forward" else 2)
    return add_parts({"computation": computed}, crossed, {"host": soft_most(busy, issued) - busy})


def known_pass(setting: Setting, work: LayerWork, during: LayerPass) -> PartSeconds:
    """`pass_parts`, once for all forms of strategies that lay axes alike."""
    if setting.passes is None: return pass_parts(setting, work, during)
    key = work, during, setting.strategy.order
    if key not in setting.passes: setting.passes[key] = pass_parts(setting, work, during)
    return setting.passes[key]


def layer_parts(setting: Setting, work: LayerWork) -> PartSeconds:
    """Forward, what is computed again, and backward."""
    forward, backward = known_pass(setting, work, "forward"), known_pass(setting, work, "backward")
    again: PartSeconds = {}
    if setting.strategy.recompute == "full": again = {f"{name}, again": each for name, each in forward.items()}
    if setting.strategy.recompute == "selective" and not setting.strategy.flash:
        again = {"computation, again": add_all(product_seconds(setting, each) for each in work.products
                                               if each.between and each.during == "forward")}
    if setting.strategy.recompute == "selective" and setting.strategy.flash:
        again = {"computation, again": passing_seconds(setting, work, "forward")}
    summed = 4 * setting.strategy.gradient_bytes * work.parameters.at(setting.sizes) / setting.bandwidth
    return add_parts(forward, again, backward, {"computation": summed})


LOSS_FORWARD, LOSS_BACKWARD = 38, 22                        # bytes that pass for each score of the vocabulary


def score_count(setting: Setting) -> Quantity | None:
    """Scores of the vocabulary of a micro-batch; None where the model has no head."""
    products = [each for each in setting.model.last.products if each.during == "forward"]
    return products[-1].rows.at(setting.sizes) * products[-1].cols.at(setting.sizes) if products else None


def loss_parts(setting: Setting) -> PartSeconds:
    """The loss of a micro-batch: scores in float32, their maximum, exponents, sum and shares, and back."""
    if (scores := score_count(setting)) is None: return {}
    return {"loss": (LOSS_FORWARD + LOSS_BACKWARD) * scores / setting.bandwidth}


def known_parts(setting: Setting, name: str, find: Callable[[Setting], PartSeconds]) -> PartSeconds:
    """Parts that forms of strategies have in common where they compute the same again and lay axes alike, once."""
    if setting.passes is None: return find(setting)
    own = setting.strategy
    key = name, setting.model, own.recompute, own.order, own.sequence, own.balanced
    if key not in setting.passes: setting.passes[key] = find(setting)
    return setting.passes[key]


def step_parts(setting: Setting) -> PartSeconds:
    """A step of training of the slowest stage, with what it waits for the others."""
    own = setting.strategy
    busy, rest = known_parts(setting, "busy", busy_parts), known_parts(setting, "bubble", waited_parts)
    found = {**scale_parts(busy, setting.micro_batches), "bubble": rest["bubble"] / own.virtual}
    if SCHEDULES[own.schedule].weights_apart: found["bubble"] = most(found["bubble"] - filled_seconds(setting), 0)
    found = add_parts(found, known_parts(setting, "gradients", gradient_parts), stored_parts(setting),
                      optimiser_parts(setting))
    return add_parts(found, turn_parts(setting, found))


COMPUTED = "computation", "loss", "host", "optimiser"       # what parts of a step begin with that need a processor


def turn_parts(setting: Setting, parts: Mapping[str, Quantity]) -> PartSeconds:
    """What ranks that share processors wait for their turn; while a stage waits for others these have its processor."""
    if setting.machine.processors == inf: return {}
    computed = add_all(seconds for name, seconds in parts.items() if name.startswith(COMPUTED))
    others = most(setting.strategy.devices / setting.machine.processors, 1) - 1
    return {"turns": most(others * computed - parts["bubble"], 0)}


def end_parts(setting: Setting) -> tuple[PartSeconds, PartSeconds]:
    """What stands before all layers, and behind them, which nothing computes again."""
    once = setting._replace(strategy=replace(setting.strategy, recompute="none"))
    return (layer_parts(once, setting.model.first),
            add_parts(layer_parts(once, setting.model.last), loss_parts(setting)))


def body_parts(setting: Setting) -> PartSeconds:
    """All layers, for a micro-batch."""
    return add_parts(*(scale_parts(layer_parts(setting, work), count) for work, count in setting.model.layers))


def slowest_parts(setting: Setting) -> PartSeconds:
    """The slowest stage, for a micro-batch: one that has a layer more than the last where layers do not divide, or the
    last, which has what stands behind all layers."""
    own, (first, last) = setting.strategy, end_parts(setting)
    bodies = known_parts(setting, "bodies", body_parts)
    if own.balanced: return scale_parts(add_parts(bodies, first, last), 1 / own.pp)
    alone, share = 1 - step_at(own.pp, 2), fullest_share(setting)
    fewer = round_up(setting.model.count / own.pp - 1 + LEAST_SHARE) / setting.model.count
    longer = (share - fewer) * sum_parts(bodies) / most(sum_parts(last), LEAST_SHARE)
    return add_parts(scale_parts(bodies, share), scale_parts(last, most(1 - longer, 0)), scale_parts(first, alone))


def busy_parts(setting: Setting) -> PartSeconds:
    """What the slowest stage does for a micro-batch, with what it hands on."""
    return add_parts(known_parts(setting, "slowest", slowest_parts), send_parts(setting))


def every_second(setting: Setting) -> Quantity:
    """Seconds of a micro-batch on all stages."""
    return add_all(map(sum_parts, (known_parts(setting, "bodies", body_parts), *end_parts(setting))))


def waited_parts(setting: Setting) -> PartSeconds:
    """What the slowest stage waits for all others, where each has one chunk."""
    slowest = sum_parts(known_parts(setting, "slowest", slowest_parts))
    sent = (setting.strategy.pp - 1) * sum_parts(send_parts(setting))
    return {"bubble": every_second(setting) - slowest + sent}


def learning_seconds(setting: Setting, work: LayerWork) -> Quantity:
    """Seconds of the products that give gradients of a layer's weights."""
    return add_all(product_seconds(setting, each) for each in work.products if each.learns)


def filled_seconds(setting: Setting) -> Quantity:
    """Seconds of the bubble of 1F1B that gradients of weights fill, which are passes of their own: the difference of
    both closed forms, by the work of an equal stage."""
    return known_parts(setting, f"filled by {setting.strategy.schedule}", filled_parts)["bubble"]


def filled_parts(setting: Setting) -> PartSeconds:
    """Seconds of the bubble of 1F1B that gradients of weights fill."""
    own, model, every = setting.strategy, setting.model, every_second(setting)
    layers = [(model.first, 1), *model.layers, (model.last, 1)]
    forward = add_all(count * sum_parts(known_pass(setting, work, "forward")) for work, count in layers) / own.pp
    learnt = add_all(count * learning_seconds(setting, work) for work, count in layers) / own.pp
    took = own.pp, setting.micro_batches, 1, forward, every / own.pp - forward - learnt, learnt
    return {"bubble": rounds(*took) - SCHEDULES[own.schedule].bubble(*took)}


def send_parts(setting: Setting) -> PartSeconds:
    """What a stage hands on for a micro-batch, forward and backward: each tensor rank its share, which are gathered
    again where they came (Narayanan et al. 2021, section 4.1)."""
    own, links, constants = setting.strategy, setting.machine.links, setting.constants
    whole = setting.number * setting.model.layers[0][0].out.at(setting.sizes) * (own.tp if own.sequence else 1)
    several = step_at(own.pp, 2)
    sent = collective_parts("send", whole / own.tp, 1 + several, own.stride("pp"), links, constants)
    gathered = collective_parts("all_gather", several * whole, own.tp, own.stride("tp"), links, constants)
    shared = 0 if own.sequence else 1
    moved = add_parts(dict(sent.moved), scale_parts(dict(gathered.moved), shared))
    return add_parts({f"pp over {level}": 2 * own.virtual * seconds for level, seconds in moved.items()},
                     {"synchronisation": 2 * own.virtual * (sent.waited + shared * several * gathered.waited)})


def fullest_share(setting: Setting) -> Quantity:
    """Which part of all layers the fullest stage has: as many as others, or one more; tables and head are one each
    where stages are balanced."""
    more = 2 if setting.strategy.balanced else 0
    return round_up((setting.model.count + more) / setting.strategy.pp) / setting.model.count


def stage_parameters(setting: Setting) -> Quantity:
    """Numbers that a rank of the fullest stage stores."""
    own, model, sizes = setting.strategy, setting.model, setting.sizes
    bodies = fullest_share(setting) * add_all(count * work.parameters.at(sizes) for work, count in model.layers)
    layer = model.layers[0][0].parameters.at(sizes) if own.balanced else 0      # in whose place a table is
    one, other = model.first.parameters.at(sizes), model.last.parameters.at(sizes)
    several = step_at(own.pp, 2)
    return bodies + most(most(one, other) - layer, 0) * several + (1 - several) * (one if model.tied else one + other)


def stage_experts(setting: Setting) -> Quantity:
    """Numbers of experts that a rank of the fullest stage stores."""
    if not setting.model.asks: return 0
    return fullest_share(setting) * add_all(count * work.experts.at(setting.sizes)
                                            for work, count in setting.model.layers)


def stored_numbers(setting: Setting, once: bool) -> Quantity:
    """Numbers that a rank stores, whole or `once` over data and context: experts once over their copies."""
    whole, own = stage_parameters(setting), setting.strategy
    if not once: return whole
    return (whole + (own.ep - 1) * stage_experts(setting)) / (own.dp * own.cp)


def over_copies(setting: Setting, op: str, bytes_each: float, seen: Quantity, name: str) -> PartSeconds:
    """A collective of all that a stage learns, over ranks of data and context, which copy what is no expert; of experts
    over their copies."""
    own, experts = setting.strategy, stage_experts(setting)
    ranks, stride = own.dp * own.cp, own.stride("ep")
    groups = [(stage_parameters(setting) - experts, ranks, stride)]
    if setting.model.asks: groups.append((experts, ranks / own.ep, stride * own.ep))
    found: PartSeconds = {}
    for numbers, n, apart in groups:
        took = collective_parts(op, bytes_each * numbers, n, apart, setting.machine.links, setting.constants)
        found = add_parts(found, {f"{name} over {level}": seen * seconds for level, seconds in took.moved},
                          {"synchronisation": took.waited if op == "all_reduce" else seen * took.waited})
    return found


def gradient_parts(setting: Setting) -> PartSeconds:
    """Sums of gradients over data and context, of which a part runs beside backward."""
    seen = 1 - setting.constants.hidden * setting.strategy.overlap
    return over_copies(setting, "all_reduce", setting.strategy.gradient_bytes, seen, "gradients")


def stored_parts(setting: Setting) -> PartSeconds:
    """What is stored once costs more crossings: weights are gathered for each micro-batch forward and backward; of
    gradients, those of each micro-batch but the last are cut, too (Rajbhandari et al. 2020, section 7)."""
    own, m = setting.strategy, setting.micro_batches
    found: PartSeconds = {}
    for least, what, op, size, times in ((2, "gradients", "reduce_scatter", own.gradient_bytes, m - 1),
                                         (3, "weights", "all_gather", setting.number, 2 * m - 1)):
        if own.zero < least: continue
        seen = times * (1 - setting.constants.hidden * own.overlap)
        found = add_parts(found, over_copies(setting, op, size, seen, what))
    return found


def optimiser_parts(setting: Setting) -> PartSeconds:
    """Adam reads and writes its state, in float32, and weights and gradients."""
    own = setting.strategy
    numbers = stored_numbers(setting, own.zero > 0)
    return {"optimiser": numbers * (2 * 12 + 2 * own.gradient_bytes + 2) / setting.bandwidth}
