"""The work of one layer on a rank: operations, collectives, saved values and parameters, as formulas of b sequences of
s tokens, t tensor ranks, c context ranks and e expert ranks. They are read off the layer's term, forward and backward,
once for each kind of layer and strategy."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import gcd
from typing import Literal, NamedTuple, TypeAlias

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import repeat
from opmatrix.algebra.positions.patterns import everyone
from opmatrix.algebra.shapes import LiveSize, size
from opmatrix.algebra.term import Operator
from opmatrix.models import normalise_config, promised, spelling
from opmatrix.models.config import Settings
from opmatrix.models.decoders.next_tokens import NEXT_TOKEN_MODULES, next_token_module
from opmatrix.models.encoders.encoder_decoders import DecoderHalf, has_halves, read_halves
from opmatrix.models.encoders.towers import Tower, decoder_settings, has_tower, read_tower
from opmatrix.models.rope import with_few_positions
from opmatrix.parallel.axes.axis_strategy import meet
from opmatrix.parallel.axes.known_axes import COPYING_AXES, PLANNED_AXES, farthest_first, mesh_choices, strategy_named
from opmatrix.parallel.cost.expert_work import (
    EXPERT_STEPS,
    ProductSides,
    RowRouting,
    count_experts,
    expert_products,
    made_by_experts,
    row_routing,
)
from opmatrix.parallel.cost.quantities import Formula, Powers, multiply
from opmatrix.parallel.cost.source_rows import DECODER_ROWS, SOURCE_ROWS, rename_rows, with_source
from opmatrix.parallel.cost.step_costs import BackwardBooked, Chunk, training_step
from opmatrix.parallel.sharding.axis_states import even
from opmatrix.parallel.sharding.cost_formulas import add_up
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import partition
from opmatrix.parallel.sharding.placement import Placement

LayerPass: TypeAlias = Literal["forward", "backward"]
LAYERS_READ, UNEVEN = 3, ("first_k_dense_replace", "decoder_sparse_step", "mlp_only_layers")
RANKS = {axis.name: size(axis.letter) for axis in PLANNED_AXES if axis.letter}  # in formulas
COPIES = [RANKS[name] for name in COPYING_AXES]  # ranks that share sequences, then those that share tokens
NO_SIZE = Formula(())
ROW_SIZES = DECODER_ROWS, SOURCE_ROWS  # rows of a sequence: tokens, and what a tower has of it
WHOLE_READ = 8  # numbers of two bytes that a matrix unit reads at once


@dataclass(frozen=True)
class ProductWork:
    """Equal products of a layer: rows x inner x cols, `batch` of them at once, `count` times."""

    during: LayerPass  # the pass that computes them
    count: int  # how many of them a layer has
    rows: Formula
    inner: Formula
    cols: Formula
    batch: Formula  # products of one batched call
    numbers: Formula  # numbers that the product reads and writes
    scores: Formula  # the part of them with one for each pair of tokens
    ragged: bool = False  # columns of a head are no multiple of 16 bytes, so
    # matrix units do not read them
    again: bool = False  # forward has computed it already, whatever is saved
    learns: bool = False  # it gives a gradient of weights; no other step waits
    routed: bool = False  # of experts, on the rows that are routed to them
    fused: int = 1  # products of one value by different weights, which kernels compute as one
    causal: bool = False  # no row sees those behind it, so half of all pairs have scores

    @property
    def makes_scores(self) -> bool:
        """True if the result has a number for each pair of tokens."""
        return self.between and any({*ROW_SIZES} & dict(powers).keys() for _, powers in self.cols.terms)

    @property
    def between(self) -> bool:
        """True if the product reads or writes scores, a number for each pair of tokens."""
        return bool(self.scores.terms)


@dataclass(frozen=True)
class CrossingWork:
    """A collective of a group of ranks of an axis: its result in numbers, and how often a layer runs it."""

    during: LayerPass
    op: str
    axis: str
    count: int
    whole: Formula  # numbers of the result
    routed: bool = False  # over tp: it gathers or adds up the rows that meet experts


@dataclass(frozen=True, eq=False)  # compared by identity
class LayerWork:
    """One layer, or the operations before or behind all layers. Equal layers that are different objects are unequal."""

    products: tuple[ProductWork, ...]
    crossings: tuple[CrossingWork, ...]
    kept: Mapping[str, Formula]  # numbers saved for backward, by unit
    between: frozenset[str]  # units with one number for each pair of tokens
    masks: Mapping[str, Formula]  # numbers of dropout masks, by unit
    out: Formula  # numbers of the output
    parameters: Formula  # numbers of weights that a rank stores
    lines: int  # operations forward
    experts: Formula = NO_SIZE  # the part of `parameters` that belongs to experts
    made: Formula = NO_SIZE  # numbers that these experts compute of rows, not saved


class ModelWork(NamedTuple):
    """A model: its kinds of layers, each with its count, and the operations before and behind all layers."""

    first: LayerWork
    layers: tuple[tuple[LayerWork, int], ...]
    last: LayerWork
    heads: int
    key_heads: int
    tied: bool
    experts: int = 0  # experts of a layer
    routing: RowRouting = RowRouting()  # of rows to experts
    further: int = 0  # tokens that a row predicts besides the next one
    latent: int = 0  # numbers of a row that keys and values of all heads are made of; 0 where heads have their own
    tower: int = 0  # layers of a tower before the decoder; they are the first kind
    source: int = 0  # rows that a tower has of a sequence

    @property
    def count(self) -> int:  # type: ignore[override]
        """The number of layers of all kinds."""
        return sum(count for _, count in self.layers)

    @property
    def kinds(self) -> list[LayerWork]:
        """The kinds of layers that values are counted of: the first; behind a tower the last, too."""
        return [self.layers[0][0], *([self.layers[-1][0]] if self.tower else [])]

    @property
    def decoding(self) -> tuple[tuple[LayerWork, int], ...]:
        """The layers behind a tower; all where there is none."""
        return self.layers[1:] if self.tower else self.layers

    @property
    def asks(self) -> bool:
        """True if the model routes rows to experts."""
        return any(work.experts.terms for work, _ in self.layers)


def model_work(config: Settings, context: str = "ulysses", sequence: bool = False, dropout: float = 0) -> ModelWork:
    """Read the operations, collectives, saved values and parameters of a model, once for a configuration and a
    strategy. Where all layers are alike only a few are read. Raises InputError for a model without a backward pass or
    without a head."""

    def read(said: Settings) -> ModelWork:
        """Read the work of the model with this configuration."""
        work: ModelWork = read_model(json.dumps(said, sort_keys=True), context, sequence, dropout)
        return work

    if has_tower(config) or has_halves(config):
        whole: ModelWork = read_sourced(json.dumps(config, sort_keys=True), context, sequence, dropout)
        return whole
    config = with_few_positions(config)
    depth = spelling(config, "num_hidden_layers")
    count = config.get(depth)
    if not isinstance(count, int) or count <= LAYERS_READ or layers_differ(config):
        return read(config)
    few = read({**config, depth: LAYERS_READ})
    return read(config) if len(few.layers) > 1 else few._replace(layers=((few.layers[0][0], count),))


@cache
def read_sourced(config: str, context: str, sequence: bool, dropout: float) -> ModelWork:
    """Read the work of a model whose decoder stands behind a tower, or attends to an encoder; its configuration is
    given as JSON."""
    settings, mesh = json.loads(config), Mesh.of(**axes_read(context, sequence, experts=False))
    if has_halves(settings):
        tower, half = read_halves(settings)
        return stand_behind(tower, read_decoder(half, mesh, dropout), mesh, dropout)
    decoder = decoder_settings(settings)
    tower = read_tower(settings, normalise_config(decoder)["hidden_size"])
    return stand_behind(tower, model_work(decoder, context, sequence, dropout), mesh, dropout)


def read_part(operator: Operator, mesh: Mesh, dropout: float = 0, ids: bool = False, source: int = 0) -> LayerWork:
    """Read the work of a part of a model, which takes ids of tokens or numbers. `source`: its first column of rows of a
    source, where it has some."""
    step = training_step(partition(operator, mesh, tokens=ids), "units", dropout)
    chunks = [chunk for stage in step.stages for chunk in stage for _ in range(chunk.count)]
    return add_layers(
        read_layer(with_source(chunk.booked, source) if source else chunk.booked, causal=source > 0) for chunk in chunks
    )


def read_decoder(half: DecoderHalf, mesh: Mesh, dropout: float) -> ModelWork:
    """Read the work of a decoder that attends to an encoder, whose rows go from stage to stage beside its own."""
    layer = read_part(half.layer, mesh, dropout, source=half.width)
    layer = beside_source(layer)
    first = read_part(half.first, mesh, ids=True) if half.first else add_layers(())
    last = read_part(half.last, mesh)
    return ModelWork(first, ((layer, half.layers),), last, half.heads, half.heads, half.tied)


def beside_source(layer: LayerWork) -> LayerWork:
    """Return the work of a layer that takes rows of a source beside its own. Its own are the input that it saves, which
    a norm meets first; those of the source are saved once for all layers, and sent to the next stage."""
    own, source = layer.out, rename_rows(layer.out)
    saved = {unit: subtract(layer.kept[unit], part) for unit, part in (("norm in", own), ("weight in", source))}
    return replace(layer, kept={**layer.kept, **saved, "input": own}, out=add_formulas([own, source]))


def stand_behind(tower: Tower, decoder: ModelWork, mesh: Mesh, dropout: float) -> ModelWork:
    """Return the work of a tower and a decoder behind it. What leads from one to the other, and the decoder's table,
    are in the decoder's first layer."""

    def read(operator: Operator, rows: int, dropout: float = 0, ids: bool = False) -> LayerWork:
        """Read a part whose rows are those of the tower, or fewer."""
        return of_source(read_part(operator, mesh, dropout, ids), rows / tower.rows)

    (layer, count), *others = decoder.layers
    entered = add_layers([read(tower.last, tower.last_rows), decoder.first, layer])
    rest = ((layer, count - 1),) if count > 1 else ()
    return decoder._replace(
        first=read(tower.first, tower.rows, ids=tower.ids),
        layers=((read(tower.layer, tower.rows, dropout), tower.layers), (entered, 1), *rest, *others),
        heads=gcd(tower.heads, decoder.heads),
        tower=tower.layers,
        source=tower.rows,
    )


def of_source(work: LayerWork, share: float) -> LayerWork:
    """Return work of tokens as that of a source, of whose rows a `share` is meant."""

    def renamed(formulas: Mapping[str, Formula]) -> dict[str, Formula]:
        """Rename the rows of formulas by name."""
        return {name: rename_rows(formula, share) for name, formula in formulas.items()}

    products = (
        replace(
            product,
            rows=rename_rows(product.rows, share),
            inner=rename_rows(product.inner, share),
            cols=rename_rows(product.cols, share),
            batch=rename_rows(product.batch, share),
            numbers=rename_rows(product.numbers, share),
            scores=rename_rows(product.scores, share),
        )
        for product in work.products
    )
    crossings = (replace(crossing, whole=rename_rows(crossing.whole, share)) for crossing in work.crossings)
    return replace(
        work,
        products=tuple(products),
        crossings=tuple(crossings),
        kept=renamed(work.kept),
        masks=renamed(work.masks),
        out=rename_rows(work.out, share),
    )


def layers_differ(config: Settings) -> bool:
    """True if a configuration says that layers differ."""
    return any(key in config for key in UNEVEN) or any(isinstance(value, list | tuple) for value in config.values())


@cache
def read_model(config: str, context: str, sequence: bool, dropout: float) -> ModelWork:
    """Read the work of a configuration, given as JSON, from one forward and backward pass."""
    settings = json.loads(config)
    axes = axes_read(context, sequence, count_experts(settings) > 0)
    batch = BatchSizes()
    if count_experts(settings):  # experts are sharded over the ranks that share sequences and tokens
        batch = BatchSizes(batch.sequences * COPIES[0])
    model = promised(settings, scores=True)
    plan = partition(model, Mesh.of(**axes), batch)
    chunks = [chunk for stage in training_step(plan, "units", dropout).stages for chunk in stage]
    causal = looks_back(model)
    works = [read_layer(chunk.booked, causal) for chunk in chunks]
    places = [at for at, work in enumerate(works) if any(product.between for product in work.products)]
    if not places:
        raise InputError("planner: the model has no layer with attention")
    lo, hi = places[0], places[-1] + 1
    behind = [works[at] for at in range(lo) for _ in range(chunks[at].count - 1)]  # such as a norm at both ends
    sizes = normalise_config(settings)
    heads = sizes["num_attention_heads"]
    work = ModelWork(
        add_layers(works[:lo]),
        tuple((works[at], chunks[at].count) for at in places),
        add_layers([*behind, *works[hi:]]),
        heads,
        sizes.get("num_key_value_heads") or heads,
        shares_table(chunks[:lo], chunks[hi:]),
        count_experts(settings),
        row_routing(sizes),
        latent=latent_numbers(model),
    )
    return with_next_tokens(work, settings, sizes.get(NEXT_TOKEN_MODULES, 0), Mesh.of(**axes), batch)


def with_next_tokens(work: ModelWork, config: Settings, further: int, mesh: Mesh, batch: BatchSizes) -> ModelWork:
    """Return the work of a model with modules that predict `further` tokens behind all layers, and their scores. They
    share the head, so that its weights count once."""
    if not further:
        return work
    step = training_step(partition(next_token_module(config), mesh, batch))
    module = [read_layer(chunk.booked, causal=True) for stage in step.stages for chunk in stage]
    scores = replace(work.last, parameters=NO_SIZE)
    return work._replace(last=add_layers([work.last, *[*module, scores] * further]), further=further)


def looks_back(model: Operator) -> bool:
    """True if attention meets no token behind a row's own."""
    patterns = [where for node in model.walk() if node.kind.name == "product" for *_, where in [node.args]]
    return all(where.reach is not None and where.reach[1] == 0 for where in patterns if where is not everyone)


def latent_numbers(model: Operator) -> int:
    """Return how many numbers of a row the keys of all heads of a layer are made of, by way of rows of one head
    (DeepSeek-V2, section 2.1); 0 where heads have keys of their own."""
    keys = [node.children[0] for node in model.walk() if node.kind.name == "turn"]
    rows = {part.children[0] for part in (keys[0].walk() if keys else ()) if part.children[1:] == (repeat(1),)}
    return int(sum(row.out.cols for row in rows))


def axes_read(context: str, sequence: bool, experts: bool) -> dict[str, tuple[LiveSize, str]]:
    """Return the axes of the mesh that formulas are read on, with their letters as ranks. Ranks that share sequences
    are alike, so they are read only with experts. An axis that would split the same as one before it is left out."""
    strategy = strategy_named(context).planned_as or context
    choices = mesh_choices(context=strategy, sequence=sequence, vocabulary=True)
    axes: dict[str, tuple[LiveSize, str]] = {}
    for axis in farthest_first(axis for axis in PLANNED_AXES if axis.letter):
        shares_sequences = axis.strategies[0].home == "batch"
        if (axis.folded or shares_sequences) and not experts:
            continue
        name = axis.axes(choices)[axis.name][1]
        if not any(meet(strategy_named(other), strategy_named(name)) for _, other in axes.values()):
            axes[axis.name] = (multiply(COPIES) if axis.folded else RANKS[axis.name], name)
    return axes


def shares_table(first: Iterable[Chunk], last: Iterable[Chunk]) -> bool:
    """True if an array is stored both before and behind all layers."""

    def keys(chunks: Iterable[Chunk]) -> set[str]:
        """Return the keys of the arrays that chunks store."""
        return {key for chunk in chunks for key, _ in chunk.booked.stored()}

    return bool(keys(first) & keys(last))


def read_layer(booked: BackwardBooked, causal: bool) -> LayerWork:
    """Read the work of a chunk from its booked forward and backward steps; `causal`: rows see none behind them. Tables
    of rotations are no parameters: they have no gradients."""
    saved, masks = booked.kept(1, 0), booked.kept(0, 1)
    held = {unit: of_a_rank(size) for unit, size in saved.items() if size != 0}
    between = frozenset(unit for unit, formula in held.items() if squares(formula))
    asked = [at for at, step in enumerate(booked.steps) if step.op == "answer"]
    bodies = sum(bool(step.args) for at in asked for step in booked.steps[at].more[0])
    learned = {key_of_array(data) for data in booked.split.pulled.gradients}
    stored = [(key[1], dims.numbers) for key, (_, dims) in booked.stored().items() if key[0] in learned]
    return LayerWork(
        tuple(read_products(booked, causal)),
        tuple(read_crossings(booked)),
        held,
        between,
        {unit: of_a_rank(size) for unit, size in masks.items() if size != 0},
        of_a_rank(booked.numbers(booked.out)),
        of_a_rank(add_up(numbers for _, numbers in stored)),
        sum(phase == "forward" for phase in booked.split.step_phases) + bodies,
        of_a_rank(add_up(numbers for lies, numbers in stored if lies_by_expert(booked.mesh, lies))),
        of_a_rank(add_up(made_by_experts(booked, at) for at in asked)),
    )


def key_of_array(data: Data) -> str:
    """Return the key of a stored array, before any transpose."""
    return data.key if data.base is None else data.base.key


def of_a_rank(e: LiveSize) -> Formula:
    """Return a size as a formula of one rank, with even shards. Experts are read among d data ranks, each with b
    sequences, so e ranks (d times the context ranks) have all experts together."""
    data, *others = COPIES
    return Formula.of(even(e).xreplace({data: RANKS["ep"] / multiply(others)}))


def lies_by_expert(mesh: Mesh, lies: Placement) -> bool:
    """True if an array has a matrix for each expert, and a rank stores some of them."""
    return mesh.experts is not None and lies.on(mesh.index(mesh.experts.name)) is not None


def squares(formula: Formula) -> bool:
    """True if the numbers grow with the pairs of tokens."""
    return any(is_of_pairs(powers) for _, powers in formula.terms)


def is_of_pairs(powers: Powers) -> bool:
    """True if a product of powers has at least one number for each pair of tokens."""
    return sum(power for name, power in powers if name in ROW_SIZES) > 1


def read_products(booked: BackwardBooked, causal: bool) -> Iterator[ProductWork]:
    """Yield the products of all passes, equal ones as one with their count. Scores of a source are of all pairs."""
    counts: Counter[ProductWork] = Counter()
    shared = Counter(shared_value(booked, at) for at, _ in enumerate(booked.steps))
    for at, step in enumerate(booked.steps):
        if booked.flops(at) == 0:
            continue
        during: LayerPass = "forward" if booked.split.step_phases[at] == "forward" else "backward"
        for product in expert_products(booked, at) if step.op in EXPERT_STEPS else [sides_of(booked, at)]:
            touched = [step.args[0], at] if step.op == "act" else [*step.args, at]
            numbers = [of_a_rank(booked.numbers(one)) for one in touched]
            if step.op in EXPERT_STEPS:
                numbers = [of_a_rank(product.batch * n) for n in product.pairs()]
            scores = [one for one in numbers if squares(one)]
            if step.op == "act":
                numbers.append(of_a_rank(product.inner * product.cols))
            sides = [of_a_rank(side) for side in product[:4]]
            ragged = bool(scores) and any(isinstance(side, int) and side % WHOLE_READ for side in product[1:3])
            counts[
                ProductWork(
                    during,
                    1,
                    sides[0],
                    sides[1],
                    sides[2],
                    sides[3],
                    add_formulas(numbers),
                    add_formulas(scores),
                    ragged,
                    product.again,
                    product.learns,
                    step.op in EXPERT_STEPS,
                    product.fused if step.op in EXPERT_STEPS else shared[shared_value(booked, at)],
                    causal and bool(scores) and not any(meets_source(one) for one in scores),
                )
            ] += 1
    for work, count in counts.items():
        yield replace(work, count=count)


def meets_source(formula: Formula) -> bool:
    """True if the numbers grow with the rows of a source."""
    return any(SOURCE_ROWS in dict(powers) for _, powers in formula.terms)


def shared_value(booked: BackwardBooked, at: int) -> tuple[str, int, str]:
    """Return the pass, the value and the kind of a product; products of equal ones are computed as one. Steps that are
    no such product are alone."""
    step = booked.steps[at]
    alone = booked.flops(at) == 0 or step.op not in ("act", "outer")
    return booked.split.step_phases[at], -1 - at if alone else step.args[0], step.op


def sides_of(booked: BackwardBooked, at: int) -> ProductSides:
    """Return the sides of the product of a step without experts."""
    step, dims = booked.steps[at], booked.held_dims[at]
    x = booked.held_dims[step.args[0]]
    if step.op == "outer":
        return ProductSides(dims.rows, x.batch * x.rows, dims.cols, dims.heads, learns=True)
    if step.op == "act":
        return ProductSides(dims.rows * dims.batch * dims.heads, x.cols, dims.cols, 1)
    return ProductSides(dims.rows, x.cols, booked.held_dims[step.args[1]].cols, dims.batch * dims.heads)


def read_crossings(booked: BackwardBooked) -> Iterator[CrossingWork]:
    """Yield the collectives of all passes, equal ones as one with their count."""
    counts: Counter[CrossingWork] = Counter()
    routed = routed_crossings(booked)
    for at, phase in enumerate(booked.split.step_phases):
        if (crossing := booked.crossing(at)) is None:
            continue
        during: LayerPass = "forward" if phase == "forward" else "backward"
        counts[CrossingWork(during, crossing.op, crossing.axis, 1, of_a_rank(crossing.whole), at in routed)] += 1
    for work, count in counts.items():
        yield replace(work, count=count)


def routed_crossings(booked: BackwardBooked) -> set[int]:
    """Return the collectives over tensor ranks that gather or add up the rows that meet experts: of those of whole
    rows the half that is nearest to experts, since the other half meets attention. Empty without experts."""
    if not any(step.op in EXPERT_STEPS for step in booked.steps):
        return set()
    rows = of_a_rank(booked.numbers(booked.out))
    if "t" not in {name for _, powers in rows.terms for name, _ in powers}:
        return set()  # norms are whole
    tensor = [at for at, _ in enumerate(booked.steps) if gathers_rows(booked, at)]
    forward = [at for at in tensor if booked.split.step_phases[at] == "forward"]
    backward = [at for at in tensor if booked.split.step_phases[at] != "forward"]
    return {*forward[len(forward) // 2 :], *backward[: len(backward) // 2]}


def gathers_rows(booked: BackwardBooked, at: int) -> bool:
    """True if a step is a collective over tensor ranks of the rows of the layer's output."""
    crossing = booked.crossing(at)
    if crossing is None or crossing.axis != "tp":
        return False
    ranks = RANKS["tp"]
    return of_a_rank(crossing.whole) == of_a_rank(booked.numbers(booked.out) * ranks)


def add_formulas(each: Iterable[Formula]) -> Formula:
    """Return the sum of formulas."""
    coefficients: dict[Powers, float] = {}
    for formula in each:
        for count, powers in formula.terms:
            coefficients[powers] = coefficients.get(powers, 0) + count
    return Formula(
        tuple(sorted(((count, powers) for powers, count in coefficients.items() if count), key=lambda e: e[1]))
    )


def subtract(formula: Formula, part: Formula) -> Formula:
    """Return a sum without a part of it."""
    return add_formulas([formula, Formula(tuple((-count, powers) for count, powers in part.terms))])


def add_layers(works: Iterable[LayerWork]) -> LayerWork:
    """Return the work of several layers as one."""
    works = [*works]

    def united(held: Iterable[Mapping[str, Formula]]) -> dict[str, Formula]:
        """Add formulas unit by unit."""
        sums: dict[str, Formula] = {}
        for one in held:
            for unit, formula in one.items():
                sums[unit] = add_formulas([sums[unit], formula] if unit in sums else [formula])
        return sums

    return LayerWork(
        tuple(e for w in works for e in w.products),
        tuple(e for w in works for e in w.crossings),
        united(w.kept for w in works),
        frozenset(e for w in works for e in w.between),
        united(w.masks for w in works),
        works[-1].out if works else Formula(()),
        add_formulas(w.parameters for w in works),
        sum(w.lines for w in works),
        add_formulas(w.experts for w in works),
        add_formulas(w.made for w in works),
    )
