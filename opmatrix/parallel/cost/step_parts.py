"""The seconds of one step of training, part by part: computation, collectives by axis and level, synchronisation, the
bubble, gradients, the optimiser. The parts add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from math import inf
from typing import NamedTuple

from formats.machine.datasheets import BYTES, EIGHT_BITS, Datasheet
from opmatrix.parallel.axes.known_axes import PLANNED_AXES
from opmatrix.parallel.cost.constants import Constants
from opmatrix.parallel.cost.layer_work import NO_SIZE, CrossingWork, LayerPass, LayerWork, ModelWork, ProductWork
from opmatrix.parallel.cost.level_seconds import LevelSeconds, collective_parts, relayed_parts, units_of
from opmatrix.parallel.cost.quantities import (
    Formula,
    Quantity,
    add_all,
    least,
    most,
    multiply,
    round_up,
    soft_most,
    step_at,
)
from opmatrix.parallel.cost.source_rows import DECODER_ROWS, SOURCE_ROWS
from opmatrix.parallel.cost.strategies import BALANCED_PLACES, BLOCK_AGAIN, Strategy
from opmatrix.parallel.schedules.closed_forms import rounds
from opmatrix.parallel.schedules.named import SCHEDULES
from opmatrix.parallel.schedules.pipeline_schedule import none_hidden

PartSeconds = dict[str, Quantity]
LEAST_SHARE = 1e-9  # a negligible share of a layer, or of a second
CORE_TILE = 1 << 15  # sums that a core holds: 256 x 128 in float32
LAYER_PASSES: tuple[LayerPass, ...] = ("forward", "backward")
SORTS = 4  # sorts of the rows of experts in a pass
ROUNDED_BYTES = 4  # two are read, and one is written twice
DISPATCHED_EIGHT = 3 / 4  # of the bytes of both ways: rows go to experts in eight bits and come back in sixteen, so do
# their gradients (DeepSeek-AI 2024, DeepSeek-V3, section 3.3.3)
HIDDEN_BY_PAIRS = "ep over", "pp over"  # parts that passes of two directions hide (the same, section 3.2.1)
EXPERTS_SAVED = 2 / 3  # of the three exchanges of backward two are left where rows of experts are saved


class Setting(NamedTuple):
    """All inputs of the formulas."""

    model: ModelWork
    machine: Datasheet
    strategy: Strategy
    batch: Quantity
    seq: Quantity
    constants: Constants
    passes: dict[tuple[object, ...], PartSeconds] | None = None  # parts already computed for other strategies that
    # differ in nothing but their form

    @property
    def sizes(self) -> Mapping[str, Quantity]:
        """The sizes of a layer's formulas: micro-batch, tokens, and the ranks of the tensor, context and expert
        axes."""
        strategy = self.strategy
        ranks = {axis.letter: getattr(strategy, axis.name) for axis in PLANNED_AXES if axis.letter}
        return {"b": strategy.micro_batch, DECODER_ROWS: self.seq, SOURCE_ROWS: self.model.source, **ranks}

    @property
    def number(self) -> float:
        """The bytes of a value's number."""
        return BYTES[self.strategy.values]

    @property
    def expert_sizes(self) -> Mapping[str, Quantity]:
        """The sizes of the formulas of experts. Where tensor ranks shard no expert each has its share of the rows, and
        meets whole experts; the busiest rank has `load` times as many rows."""
        strategy, sizes = self.strategy, self.sizes
        rows = strategy.micro_batch * strategy.load
        if not strategy.whole_experts:
            return {**sizes, "b": rows}
        return {**sizes, "b": rows / strategy.tp, "t": 1}

    @property
    def micro_batches(self) -> Quantity:
        """The micro-batches of a step: the batch over data-parallel ranks and sequences of a micro-batch."""
        return self.batch / (self.strategy.dp * self.strategy.micro_batch)

    @property
    def bandwidth(self) -> float:
        """The bytes a second of the device's memory, times the share of them that constants count on."""
        return self.constants.memory * self.machine.memory[-1][2]


def add_parts(*each: Mapping[str, Quantity]) -> PartSeconds:
    """Add seconds part by part."""
    parts: PartSeconds = {}
    for one in each:
        for name, seconds in one.items():
            parts[name] = parts[name] + seconds if name in parts else seconds
    return parts


def scale_parts(each: Mapping[str, Quantity], count: Quantity) -> PartSeconds:
    """Multiply the seconds of every part by a count."""
    return {name: count * seconds for name, seconds in each.items()}


def sum_parts(parts: Mapping[str, Quantity]) -> Quantity:
    """Add up all parts."""
    return add_all(parts.values())


def without_parts(parts: Mapping[str, Quantity], beginnings: tuple[str, ...]) -> PartSeconds:
    """Return the parts whose names begin otherwise."""
    return {name: seconds for name, seconds in parts.items() if not name.startswith(beginnings)}


def sustained_rate(setting: Setting, rate: float) -> Quantity:
    """Return the operations a second that products of sixteen bits sustain of a data sheet's rate: a fraction of it,
    and at most what the chip's watts pay for."""
    constants, sheet = setting.constants, setting.machine
    joule, reached = constants.a_joule(sheet.family), constants.matrix * computing_share(setting) * rate
    if sheet.watts is None or joule is None:
        return reached
    return least(reached, joule * sheet.watts)


def computing_share(setting: Setting) -> float:
    """Return the share of a device's cores that compute, since no others send."""
    return 1 - setting.strategy.sending_cores / setting.machine.cores


def product_rate(setting: Setting, work: ProductWork) -> Quantity:
    """Return the operations a second of a product. Fused attention is in sixteen bits, and reaches a share of the rate;
    products of weights may be in eight, which watts were not seen to limit."""
    constants, strategy, sheet = setting.constants, setting.strategy, setting.machine
    if work.ragged and not strategy.flash:
        return constants.matrix * sheet.vector_rate("float32")
    if strategy.precision in EIGHT_BITS and not work.between:
        return constants.eight * computing_share(setting) * sheet.eight_bit_rate
    rate, unit, _ = sheet.product_rate(strategy.values)
    reached = sustained_rate(setting, rate) if unit == "matrix" else constants.matrix * rate
    return reached * constants.attention if work.between and strategy.flash else reached


def product_seconds(setting: Setting, work: ProductWork) -> Quantity:
    """Return the seconds of all these products: by their operations or by their bytes, whichever is more. A core
    computes one tile of the result at a time, with all inner products of the tile; in the last round some cores are
    idle."""
    if work.again and not setting.strategy.launched:
        return 0  # what experts compute is saved
    constants, flash = setting.constants, setting.strategy.flash
    sizes = setting.expert_sizes if work.routed else setting.sizes
    inner, cores = work.inner.at(sizes), setting.machine.cores
    operations = 2 * work.rows.at(sizes) * inner * work.cols.at(sizes) * work.batch.at(sizes)
    numbers = work.numbers.at(sizes)
    if flash and work.between:
        operations, numbers = operations / (2 if work.causal else 1), numbers - work.scores.at(sizes)
    last_tiles = 2 * inner * CORE_TILE * cores  # operations of all cores while each computes a tile
    idle = constants.idle * last_tiles / work.fused
    return work.count * most(
        (operations + idle) / product_rate(setting, work), setting.number * numbers / setting.bandwidth
    )


def products_during(setting: Setting, work: LayerWork, during: LayerPass) -> Quantity:
    """Return the seconds of all products of a pass. Fused attention stores no scores, so backward computes them again
    (Dao et al. 2022, algorithm 4)."""
    seconds = add_all(product_seconds(setting, product) for product in work.products if product.during == during)
    if during == "forward" or not setting.strategy.flash:
        return seconds
    return seconds + add_all(
        product_seconds(setting, product)
        for product in work.products
        if product.makes_scores and product.during == "forward"
    )


def passing_seconds(setting: Setting, work: LayerWork, during: LayerPass) -> Quantity:
    """Return the seconds of all operations but products: values saved for backward pass twice through memory forward,
    and three times backward; so do those of experts, where they are saved."""
    flash, sizes, launched = setting.strategy.flash, setting.sizes, setting.strategy.launched
    saved = [formula.at(sizes) for unit, formula in work.kept.items() if not (flash and unit in work.between)]
    masks = [formula.at(sizes) for formula in work.masks.values()]
    size, expert_bytes = setting.number * add_all(saved) + add_all(masks), setting.number * made_numbers(setting, work)
    size = size + cast_bytes(setting, work, during) / (2 if during == "forward" else 3)
    once = (2 if during == "forward" else 3) * size  # experts recompute forward before their backward
    backward = 5 if launched else 3
    moved = (2 if during == "forward" else backward) * expert_bytes + sorted_bytes(setting, work)
    return (once + moved) / setting.bandwidth


def sent_rows(work: LayerWork) -> Formula:
    """Return the numbers of the rows that a rank sends to experts, once for each expert that a row is routed to; none
    in a layer without experts."""
    sent = [crossing.whole for crossing in work.crossings if crossing.axis == "ep" and crossing.during == "forward"]
    return sent[0] if sent else NO_SIZE


def sorted_bytes(setting: Setting, work: LayerWork) -> Quantity:
    """Return the bytes that pass through memory in a pass to sort rows by experts: before they are sent and after, and
    the same on the way back; each time a row is read and written."""
    strategy = setting.strategy
    if strategy.launched:
        return 0
    rows = strategy.load * sent_rows(work).at(setting.sizes) / (strategy.tp if strategy.sequence else 1)
    return 2 * SORTS * setting.number * rows


def cast_bytes(setting: Setting, work: LayerWork, during: LayerPass) -> Quantity:
    """Return the bytes that pass through memory to round the operands of products to eight bits: each value is read in
    sixteen and written twice, as it is and transposed (Micikevicius et al. 2022). Forward rounds what comes in, and
    backward the gradients of what went out."""
    if setting.strategy.precision not in EIGHT_BITS:
        return 0
    sizes = [(product, setting.expert_sizes if product.routed else setting.sizes) for product in work.products]
    rounded = [
        product.count * product.batch.at(at) * product.inner.at(at) * rounded_side(product, during).at(at) / shared
        for product, at in sizes
        for shared in [product.fused if during == "forward" else 1]
        if not product.between and product.during == during and (during == "forward" or product.learns)
    ]
    return ROUNDED_BYTES * add_all(rounded)


def rounded_side(product: ProductWork, during: LayerPass) -> Formula:
    """Return the side of the operand that a pass rounds, besides the inner one: rows of what comes in, or columns of a
    gradient."""
    return product.rows if during == "forward" else product.cols


def made_numbers(setting: Setting, work: LayerWork) -> Quantity:
    """Count the numbers that the experts of a layer compute on a rank."""
    return work.made.at(setting.expert_sizes)


def rank_crossings(setting: Setting, work: LayerWork) -> Iterator[CrossingWork]:
    """Yield the collectives of a layer as the strategy runs them. Where norms are cut a tensor rank sends its share of
    the rows to experts, whose tensor ranks gather what was sent to them; whole experts need no gathering (Liu et al.
    2025, MoE Parallel Folding)."""
    strategy = setting.strategy
    cuts = strategy.sequence and not strategy.launched
    for crossing in work.crossings:
        if crossing.routed and cuts:
            continue
        yield crossing
    if not cuts or strategy.whole_experts or not work.experts.terms:
        return
    sent = sent_rows(work)
    for during in LAYER_PASSES:
        yield CrossingWork(during, "all_gather", "tp", 1, sent, True)
        yield CrossingWork(during, "reduce_scatter", "tp", 1, sent, True)


def crossing_bytes(setting: Setting, crossing: CrossingWork) -> Quantity:
    """Return the bytes of a collective's result. Rows of experts are those of the tensor rank where norms are cut; what
    experts compute is saved, so backward sends no rows a second time."""
    strategy = setting.strategy
    if crossing.axis != "ep" and not crossing.routed:
        return setting.number * crossing.whole.at(setting.sizes)
    size = setting.number * strategy.load * crossing.whole.at(setting.sizes)
    if crossing.axis != "ep" or strategy.launched:
        return size
    share = EXPERTS_SAVED if crossing.during == "backward" else 1
    if strategy.sent_in_eight and strategy.precision in EIGHT_BITS:
        share = share * DISPATCHED_EIGHT
    return share * size / (strategy.tp if strategy.sequence else 1)


def seen_share(setting: Setting, axis: str) -> float:
    """Return the share of an axis' collectives that does not run beside products."""
    return 1 - setting.constants.hidden * (axis in setting.strategy.beside)


def crossing_parts(setting: Setting, work: LayerWork, during: LayerPass) -> PartSeconds:
    """Return the seconds of the collectives of a pass over a layer, by axis and level. A share of those over some axes
    runs beside products."""
    parts: PartSeconds = {}
    strategy, links = setting.strategy, setting.machine.links
    for crossing in rank_crossings(setting, work):
        axis = crossing.axis
        if crossing.during != during:
            continue
        n, stride, size = getattr(strategy, axis), strategy.stride(axis), crossing_bytes(setting, crossing)
        if axis == "ep" and strategy.relays:
            took = relayed_rows(setting, size, n, stride)
        else:
            took = collective_parts(crossing.op, size, n, stride, links, setting.constants)
        seen = crossing.count * seen_share(setting, axis)
        moved = {f"{axis} over {level}": seen * seconds for level, seconds in took.moved}
        parts = add_parts(parts, moved, {"synchronisation": seen * took.waited})
    return parts


def relayed_rows(setting: Setting, size: Quantity, n: Quantity, stride: Quantity) -> LevelSeconds:
    """Return the seconds of rows on their way to experts, or back, that are sent to each node once."""
    links = setting.machine.links
    nodes = multiply(units_of(n, stride, links)[1:])
    share = setting.model.routing.share_to_nodes(nodes)
    return relayed_parts(size, n, stride, links, setting.constants, share)


def pass_parts(setting: Setting, work: LayerWork, during: LayerPass) -> PartSeconds:
    """Return the seconds of one pass over a layer, for a micro-batch. The host issues operations ahead of the device,
    and the device waits for it where the device is faster. That is so for some operations of a layer and not for
    others, so the result is the soft maximum of both. Besides, the ranks of a group wait for the slowest of them."""
    computed = products_during(setting, work, during) + passing_seconds(setting, work, during)
    crossed = crossing_parts(setting, work, during)
    busy = computed + add_all(seconds for name, seconds in crossed.items() if name != "synchronisation")
    issued = setting.constants.gap * work.lines * (1 if during == "forward" else 2)
    return add_parts({"computation": computed}, crossed, {"host": soft_most(busy, issued) - busy})


def known_pass(setting: Setting, work: LayerWork, during: LayerPass) -> PartSeconds:
    """Return `pass_parts`, computed once for all forms of strategies that lay out the axes alike."""
    if setting.passes is None:
        return pass_parts(setting, work, during)
    key = work, during, setting.seq, setting.strategy.order, setting.strategy.whole_experts
    if key not in setting.passes:
        setting.passes[key] = pass_parts(setting, work, during)
    return setting.passes[key]


def layer_parts(setting: Setting, work: LayerWork) -> PartSeconds:
    """Return the seconds of forward, recomputation and backward of a layer."""
    forward, backward = known_pass(setting, work, "forward"), known_pass(setting, work, "backward")
    fused = setting.strategy.recompute == "selective" and setting.strategy.flash
    again: PartSeconds = {}
    if (share := again_share(setting.strategy)) is not None:
        again = {f"{name}, again": share * seconds for name, seconds in forward.items()}
    elif fused:
        again = {"computation, again": passing_seconds(setting, work, "forward")}
    elif setting.strategy.recompute != "none":
        between = (product for product in work.products if product.between and product.during == "forward")
        again = {"computation, again": add_all(product_seconds(setting, product) for product in between)}
    summed = summing_bytes(setting) * layer_parameters(setting, work) / setting.bandwidth
    return add_parts(forward, again, backward, {"computation": summed})


def again_share(strategy: Strategy) -> Quantity | None:
    """Return the share of layers that are computed again in full; None where parts of layers are, or none."""
    if strategy.recompute == BLOCK_AGAIN:
        return strategy.again
    return 1 if strategy.recompute == "full" else None


def summing_bytes(setting: Setting) -> float:
    """Return the bytes that pass through memory to add a number's gradient to those of other micro-batches. A product
    that adds to what is there reads and writes the sum alone."""
    strategy = setting.strategy
    return 2 * (strategy.gradient_bytes + strategy.accumulated) if strategy.fused_sums else 4 * strategy.gradient_bytes


LOSS_FORWARD, LOSS_BACKWARD = 38, 22  # bytes read and written for each vocabulary score


def score_count(setting: Setting) -> Quantity | None:
    """Count the vocabulary scores of a micro-batch; None where the model has no head."""
    products = [product for product in setting.model.last.products if product.during == "forward"]
    return products[-1].rows.at(setting.sizes) * products[-1].cols.at(setting.sizes) if products else None


def loss_parts(setting: Setting) -> PartSeconds:
    """Return the seconds of the loss of a micro-batch: scores in float32, their maximum, exponentials, sum and shares,
    and the backward pass."""
    if (scores := score_count(setting)) is None:
        return {}
    return {"loss": (1 + setting.model.further) * (LOSS_FORWARD + LOSS_BACKWARD) * scores / setting.bandwidth}


def known_parts(setting: Setting, name: str, find: Callable[[Setting], PartSeconds]) -> PartSeconds:
    """Return parts, computed once for all forms of strategies that recompute the same and lay out the axes alike."""
    if setting.passes is None:
        return find(setting)
    strategy = setting.strategy
    choices = strategy.recompute, strategy.order, strategy.sequence, strategy.balanced, strategy.whole_experts
    schedule, again = SCHEDULES[strategy.schedule], strategy.again
    key = name, setting.model, setting.seq, choices, again, schedule.chunked, schedule.chains
    if key not in setting.passes:
        setting.passes[key] = find(setting)
    return setting.passes[key]


def step_parts(setting: Setting) -> PartSeconds:
    """Return the seconds of a step of training of the slowest stage, with its waits for the other stages."""
    strategy = setting.strategy
    busy, rest = known_parts(setting, "busy", busy_parts), known_parts(setting, "bubble", waited_parts)
    parts = {**scale_parts(hide_paired(setting, busy), setting.micro_batches)}
    parts["bubble"] = rest["bubble"] / strategy.virtual
    if SCHEDULES[strategy.schedule].weights_apart:
        parts["bubble"] = most(parts["bubble"] - filled_seconds(setting), 0)
    parts = add_parts(
        parts, known_parts(setting, "gradients", gradient_parts), stored_parts(setting), optimiser_parts(setting)
    )
    return add_parts(parts, turn_parts(setting, parts))


def hide_paired(setting: Setting, busy: PartSeconds) -> PartSeconds:
    """Return the seconds of a micro-batch on the slowest stage without what is hidden, on the mean, where a forward
    pass of one direction runs at once with a backward pass of the other: each computes while the other sends."""
    schedule, pp = SCHEDULES[setting.strategy.schedule], setting.strategy.pp
    if schedule.hidden is none_hidden:
        return busy
    sent, m = (
        add_all(seconds for name, seconds in busy.items() if name.startswith(HIDDEN_BY_PAIRS)),
        setting.micro_batches,
    )
    forward = known_parts(setting, "forward", forward_parts)["forward"]
    hidden = most(schedule.hidden(pp, m, forward, least(sent, sum_parts(busy) - sent)), 0)
    seen = 1 - step_at(pp, 2) * hidden / (m * most(sent, LEAST_SHARE))
    return {name: seen * seconds if name.startswith(HIDDEN_BY_PAIRS) else seconds for name, seconds in busy.items()}


COMPUTED = "computation", "loss", "host", "optimiser"  # beginnings of the names of parts that need a processor


def turn_parts(setting: Setting, parts: Mapping[str, Quantity]) -> PartSeconds:
    """Return the seconds that ranks on shared processors wait for their turn. While a stage waits for other stages
    these use its processor."""
    if setting.machine.processors == inf:
        return {}
    computed = add_all(seconds for name, seconds in parts.items() if name.startswith(COMPUTED))
    others = most(setting.strategy.devices / setting.machine.processors, 1) - 1
    return {"turns": most(others * computed - parts["bubble"], 0)}


def end_parts(setting: Setting) -> tuple[PartSeconds, PartSeconds]:
    """Return the seconds of the operations before all layers, and of the operations behind them. Neither are ever
    recomputed."""
    once = setting._replace(strategy=replace(setting.strategy, recompute="none", again=None))
    return (
        layer_parts(once, setting.model.first),
        add_parts(layer_parts(once, setting.model.last), loss_parts(setting)),
    )


def body_parts(setting: Setting) -> PartSeconds:
    """Return the seconds of all layers, for a micro-batch."""
    return add_parts(*(scale_parts(layer_parts(setting, work), count) for work, count in setting.model.layers))


def slowest_parts(setting: Setting) -> PartSeconds:
    """Return the seconds of the slowest stage, for a micro-batch. It is a stage with one layer more than the last,
    where layers do not divide, or the last stage, which has the operations behind all layers: of every second
    micro-batch where these enter at both ends."""
    strategy, (first, last) = setting.strategy, end_parts(setting)
    schedule, alone = SCHEDULES[strategy.schedule], 1 - step_at(strategy.pp, 2)
    last = scale_parts(last, alone + (1 - alone) / schedule.chains)
    bodies = known_parts(setting, "bodies", body_parts)
    share = fullest_share(setting)
    places = setting.model.count + BALANCED_PLACES * strategy.balanced
    fewer = (round_up(places / strategy.pp - 1 + LEAST_SHARE) - strategy.balanced) / setting.model.count
    hidden = () if schedule.hidden is none_hidden else HIDDEN_BY_PAIRS  # no stage is slower by these
    body, end = (sum_parts(without_parts(parts, hidden)) for parts in (bodies, last))
    longer = (share - fewer) * body / most(end, LEAST_SHARE)
    return add_parts(scale_parts(bodies, share), scale_parts(last, most(1 - longer, 0)), scale_parts(first, alone))


def busy_parts(setting: Setting) -> PartSeconds:
    """Return the busy seconds of the slowest stage for a micro-batch, with its sends."""
    return add_parts(known_parts(setting, "slowest", slowest_parts), send_parts(setting))


def every_second(setting: Setting) -> Quantity:
    """Return the seconds of a micro-batch on all stages."""
    return add_all(map(sum_parts, (known_parts(setting, "bodies", body_parts), *end_parts(setting))))


def waited_parts(setting: Setting) -> PartSeconds:
    """Return the seconds that the slowest stage waits for all others, with one virtual stage a rank."""
    slowest = sum_parts(known_parts(setting, "slowest", slowest_parts))
    sent = (setting.strategy.pp - 1) * sum_parts(send_parts(setting))
    return {"bubble": every_second(setting) - slowest + sent}


def learning_seconds(setting: Setting, work: LayerWork) -> Quantity:
    """Return the seconds of the products that give the gradients of a layer's weights."""
    return add_all(product_seconds(setting, product) for product in work.products if product.learns)


def filled_seconds(setting: Setting) -> Quantity:
    """Return the seconds of the 1F1B bubble that gradients of weights fill where they are passes of their own: the
    difference of both closed forms, for equal stages."""
    return known_parts(setting, f"filled by {setting.strategy.schedule}", filled_parts)["bubble"]


def forward_parts(setting: Setting) -> PartSeconds:
    """Return the seconds of a stage forward, on the mean of all stages."""
    layers = [(setting.model.first, 1), *setting.model.layers, (setting.model.last, 1)]
    every = add_all(count * sum_parts(known_pass(setting, work, "forward")) for work, count in layers)
    return {"forward": every / setting.strategy.pp}


def filled_parts(setting: Setting) -> PartSeconds:
    """Return the seconds of the 1F1B bubble that gradients of weights fill."""
    strategy, model, every = setting.strategy, setting.model, every_second(setting)
    layers, forward = [(model.first, 1), *model.layers, (model.last, 1)], forward_parts(setting)["forward"]
    learnt = add_all(count * learning_seconds(setting, work) for work, count in layers) / strategy.pp
    took = strategy.pp, setting.micro_batches, 1, forward, every / strategy.pp - forward - learnt, learnt
    return {"bubble": rounds(*took) - SCHEDULES[strategy.schedule].bubble(*took)}


def send_parts(setting: Setting) -> PartSeconds:
    """Return the seconds in which a stage sends the values of a micro-batch, forward and backward. Each tensor rank
    sends its share, and the receiving ranks gather them (Narayanan et al. 2021, section 4.1)."""
    strategy, links, constants = setting.strategy, setting.machine.links, setting.constants
    whole = setting.number * widest_out(setting) * (strategy.tp if strategy.sequence else 1)
    several = step_at(strategy.pp, 2)
    sent = collective_parts("send", whole / strategy.tp, 1 + several, strategy.stride("pp"), links, constants)
    gathered = collective_parts("all_gather", several * whole, strategy.tp, strategy.stride("tp"), links, constants)
    shared = 0 if strategy.sequence else 1
    moved = add_parts(dict(sent.moved), scale_parts(dict(gathered.moved), shared))
    waited = sent.waited + shared * several * gathered.waited
    seen = 2 * strategy.virtual * (seen_share(setting, "pp") if SCHEDULES[strategy.schedule].chunked else 1)
    return add_parts(
        {f"pp over {level}": seen * seconds for level, seconds in moved.items()}, {"synchronisation": seen * waited}
    )


def widest_out(setting: Setting) -> Quantity:
    """Return the numbers that a layer gives to the next one; behind a tower those of the kind that gives the most."""
    return reduce(most, (work.out.at(setting.sizes) for work in setting.model.kinds))


def fullest_share(setting: Setting) -> Quantity:
    """Return the share of all layers that the fullest stage has: as many as the others, or one more. Where table and
    head count as a layer each the first stage, which is among those with one more, has one less; of two stages both
    have."""
    pp, count = setting.strategy.pp, setting.model.count
    between = step_at(pp, BALANCED_PLACES + 1) if setting.strategy.balanced else 0
    return round_up((count + between) / pp) / count


def first_share(setting: Setting) -> Quantity:
    """Return the share of all layers that the first stage has: of the stages with one more, less that of the table
    where it counts as a layer."""
    strategy, count = setting.strategy, setting.model.count
    places = count + BALANCED_PLACES * strategy.balanced
    several = step_at(strategy.pp, 2)
    return (round_up(places / strategy.pp) - strategy.balanced * several) / count


def stage_parameters(setting: Setting) -> Quantity:
    """Count the numbers that a rank of the fullest stage stores. Where micro-batches enter at both ends it has the
    layers of two stages, and the first rank both ends."""
    strategy, model, sizes = setting.strategy, setting.model, setting.sizes
    bodies = stage_layers(setting) * add_all(count * layer_parameters(setting, work) for work, count in model.layers)
    fewer = (fullest_share(setting) - first_share(setting)) * model.count  # layers whose place the table takes
    layer = fewer * model.layers[0][0].parameters.at(sizes)
    one, other = model.first.parameters.at(sizes), layer_parameters(setting, model.last)
    several, chains = step_at(strategy.pp, 2), SCHEDULES[strategy.schedule].chains
    ends = most(one, other) - layer if chains == 1 else one + other - chains * layer
    return bodies + most(ends, 0) * several + (1 - several) * (one if model.tied else one + other)


def stage_layers(setting: Setting) -> Quantity:
    """Return the share of all layers that a rank of the fullest stage stores."""
    chains = SCHEDULES[setting.strategy.schedule].chains
    return fullest_share(setting) * (1 + (chains - 1) * step_at(setting.strategy.pp, 2))


def layer_parameters(setting: Setting, work: LayerWork) -> Quantity:
    """Count the numbers of a layer's weights that a rank stores."""
    sizes = setting.sizes
    if not setting.strategy.whole_experts:
        return work.parameters.at(sizes)
    return work.parameters.at(sizes) - work.experts.at(sizes) + work.experts.at(setting.expert_sizes)


def stage_experts(setting: Setting) -> Quantity:
    """Count the numbers of experts that a rank of the fullest stage stores."""
    if not setting.model.asks:
        return 0
    model, sizes = setting.model, setting.expert_sizes
    layers = stage_layers(setting) * add_all(count * work.experts.at(sizes) for work, count in model.layers)
    return layers + model.last.experts.at(sizes)  # of modules behind all layers


def stored_numbers(setting: Setting, once: bool) -> Quantity:
    """Count the numbers that a rank stores: replicated, or with `once` sharded over data and context. Experts are
    sharded over their replicas."""
    whole, strategy = stage_parameters(setting), setting.strategy
    if not once:
        return whole
    experts = stage_experts(setting)
    return (whole - experts) / strategy.copies + experts * strategy.ep / strategy.expert_ranks


def over_copies(
    setting: Setting, op: str, bytes_each: float, seen: Quantity, name: str, calls: Quantity = 1
) -> PartSeconds:
    """Return the seconds of a collective of all gradients or weights of a stage, over the data and context ranks, which
    replicate everything but experts; for experts over their replicas. It is run in `calls` pieces, each with its
    messages."""
    strategy, experts = setting.strategy, stage_experts(setting)
    groups = [(stage_parameters(setting) - experts, strategy.copies, strategy.copies_stride)]
    if setting.model.asks:
        replicas = most(strategy.expert_ranks / strategy.ep, 1)  # columns have rows that no form applies to
        groups.append((experts, replicas, strategy.stride("ep") * strategy.ep))
    parts: PartSeconds = {}
    for numbers, n, apart in groups:
        took = collective_parts(op, bytes_each * numbers, n, apart, setting.machine.links, setting.constants)
        parts = add_parts(
            parts,
            {f"{name} over {level}": seen * seconds for level, seconds in took.moved},
            {"synchronisation": calls * (took.waited if op == "all_reduce" else seen * took.waited)},
        )
    return parts


def gradient_parts(setting: Setting) -> PartSeconds:
    """Return the seconds of gradient sums over data and context. A part of them runs beside backward."""
    seen = 1 - setting.constants.hidden * setting.strategy.overlap
    return over_copies(setting, "all_reduce", setting.strategy.gradient_bytes, seen, "gradients")


def stored_parts(setting: Setting) -> PartSeconds:
    """Return the seconds of the further collectives of sharded storage: weights are gathered for each micro-batch,
    forward and backward; gradients of each micro-batch but the last are sharded, too (Rajbhandari et al. 2020, section
    7). Each layer has messages of its own."""
    strategy, m = setting.strategy, setting.micro_batches
    layers = fullest_share(setting) * setting.model.count
    parts: PartSeconds = {}
    for stage, what, op, size, times in (
        (2, "gradients", "reduce_scatter", strategy.gradient_bytes, m - 1),
        (3, "weights", "all_gather", setting.number, 2 * m - 1),
    ):
        if strategy.zero < stage:
            continue
        seen = times * (1 - setting.constants.hidden * strategy.overlap)
        parts = add_parts(parts, over_copies(setting, op, size, seen, what, layers))
    return parts


def optimiser_parts(setting: Setting) -> PartSeconds:
    """Return the seconds in which Adam reads and writes its state, in float32, and weights and gradients."""
    strategy = setting.strategy
    numbers = stored_numbers(setting, strategy.zero > 0)
    return {"optimiser": numbers * (2 * 12 + 2 * strategy.gradient_bytes + 2) / setting.bandwidth}
