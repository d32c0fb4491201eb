"""What one layer of a model computes, sends, keeps and stores on a rank, as formulas of b sequences of s tokens, t
tensor ranks, c context ranks and e ranks of experts: read off its term, forward and backward, once a kind of layer and
strategy."""
from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple, TypeAlias

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.algebra.shapes import LiveSize, size
from opmatrix.models import normalise_config, promised, spelling
from opmatrix.models.config import Settings
from opmatrix.parallel.cost.expert_work import (
    EXPERT_STEPS,
    ProductSides,
    count_experts,
    expert_products,
    made_by_experts,
)
from opmatrix.parallel.cost.quantities import Formula, Powers
from opmatrix.parallel.cost.step_costs import BackwardBooked, Chunk, training_step
from opmatrix.parallel.sharding.axis_states import even
from opmatrix.parallel.sharding.cost_formulas import add_up
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import partition
from opmatrix.parallel.sharding.placement import Placement

LayerPass: TypeAlias = Literal["forward", "backward"]
LAYERS_READ, UNEVEN = 3, ("first_k_dense_replace", "decoder_sparse_step", "mlp_only_layers")
DATA_RANKS, CONTEXT_RANKS, EXPERT_RANKS = map(size, "dce")
NO_SIZE = Formula(())
WHOLE_READ = 8                                              # numbers of two bytes that are read at once


@dataclass(frozen=True)
class ProductWork:
    """Products that are alike: rows x inner x cols, so many at once, and how many of them there are in a layer.
    `numbers`: those it reads and makes, of which `scores` have one for each pair of tokens. `ragged`: columns of a head
    that are no whole 16 bytes, which matrix units do not read. `again`: forward has made it already, whatever is kept;
    `learns`: it gives a gradient of weights, for which nothing else waits."""
    during: LayerPass
    count: int
    rows: Formula
    inner: Formula
    cols: Formula
    batch: Formula
    numbers: Formula
    scores: Formula
    ragged: bool = False
    again: bool = False
    learns: bool = False

    @property
    def between(self) -> bool: return bool(self.scores.terms)


@dataclass(frozen=True)
class CrossingWork:
    """What a group of an axis makes of what its ranks hand over, in numbers, and how often a layer does so."""
    during: LayerPass
    op: str
    axis: str
    count: int
    whole: Formula


@dataclass(frozen=True, eq=False)                            # told apart by which they are
class LayerWork:
    """One layer, or what stands before or behind all of them. `kept`: numbers by unit that backward reads; units of
    `between` have one for each pair of tokens. `parameters`: numbers that a rank stores, of which `experts` are of
    those that are there; `made`: numbers that these make of rows, which nothing keeps. `lines`: operations forward."""
    products: tuple[ProductWork, ...]
    crossings: tuple[CrossingWork, ...]
    kept: Mapping[str, Formula]
    between: frozenset[str]
    masks: Mapping[str, Formula]
    out: Formula
    parameters: Formula
    lines: int
    experts: Formula = NO_SIZE
    made: Formula = NO_SIZE


class ModelWork(NamedTuple):
    """A model: layers that are alike with how many they are, and what stands before and behind."""
    first: LayerWork
    layers: tuple[tuple[LayerWork, int], ...]
    last: LayerWork
    heads: int
    key_heads: int
    tied: bool

    @property
    def count(self) -> int: return sum(count for _, count in self.layers)          # type: ignore[override]
    @property
    def asks(self) -> bool:
        """Whether rows ask experts."""
        return any(work.experts.terms for work, _ in self.layers)


def model_work(config: Settings, context: str = "ulysses", sequence: bool = False, dropout: float = 0) -> ModelWork:
    """What a model computes, sends, keeps and stores, read off it once for a configuration and a strategy; of layers
    that are all alike a few are read. Raises InputError for what has no pullback or no head."""
    def read(said: Settings) -> ModelWork:
        found: ModelWork = read_model(json.dumps(said, sort_keys=True), context, sequence, dropout)
        return found
    depth = spelling(config, "num_hidden_layers")
    count = config.get(depth)
    if not isinstance(count, int) or count <= LAYERS_READ or layers_differ(config): return read(config)
    few = read({**config, depth: LAYERS_READ})
    return read(config) if len(few.layers) > 1 else few._replace(layers=((few.layers[0][0], count),))


def layers_differ(config: Settings) -> bool:
    """Whether a configuration says that layers differ."""
    return any(key in config for key in UNEVEN) or any(isinstance(each, list | tuple) for each in config.values())


@cache
def read_model(config: str, context: str, sequence: bool, dropout: float) -> ModelWork:
    """One reading, forward and backward, of a configuration as JSON."""
    said = json.loads(config)
    axes: dict[str, tuple[LiveSize | str, str]] = dict(
        cp=("c", "gathered" if context == "ring" else context),
        tp=("t", "sequence-vocabulary" if sequence else "tensor-vocabulary"))
    batch = BatchSizes()
    if count_experts(said):                                 # experts lie over ranks of data and of context
        axes = dict(dp=("d", "data")) | axes | dict(ep=(DATA_RANKS * CONTEXT_RANKS, "experts"))
        batch = BatchSizes(batch.sequences * DATA_RANKS)
    plan = partition(promised(said, scores=True), Mesh.of(**axes), batch)
    chunks = [chunk for stage in training_step(plan, "units", dropout).stages for chunk in stage]
    works = [read_layer(chunk.booked) for chunk in chunks]
    places = [at for at, work in enumerate(works) if any(each.between for each in work.products)]
    if not places: raise InputError("planner: the model has no layer in which tokens meet")
    lo, hi = places[0], places[-1] + 1
    sizes = normalise_config(said)
    heads = sizes["num_attention_heads"]
    return ModelWork(add_layers(works[:lo]), tuple((works[at], chunks[at].count) for at in places),
                     add_layers(works[hi:]), heads, sizes.get("num_key_value_heads") or heads,
                     shares_table(chunks[:lo], chunks[hi:]))


def shares_table(first: Iterable[Chunk], last: Iterable[Chunk]) -> bool:
    """Whether an array stands before all layers and behind them."""
    def keys(chunks: Iterable[Chunk]) -> set[str]:
        return {key for chunk in chunks for key, _ in chunk.booked.stored()}
    return bool(keys(first) & keys(last))


def read_layer(booked: BackwardBooked) -> LayerWork:
    """The work of a chunk of a pullback."""
    kept, masks = booked.kept(1, 0), booked.kept(0, 1)
    held = {unit: of_a_rank(size) for unit, size in kept.items() if size != 0}
    between = frozenset(unit for unit, formula in held.items() if squares(formula))
    asked = [at for at, step in enumerate(booked.steps) if step.op == "answer"]
    bodies = sum(bool(each.args) for at in asked for each in booked.steps[at].more[0])
    stored = [(key[1], dims.numbers) for key, (_, dims) in booked.stored().items()]
    return LayerWork(
        tuple(read_products(booked)), tuple(read_crossings(booked)), held, between,
        {unit: of_a_rank(size) for unit, size in masks.items() if size != 0},
        of_a_rank(booked.numbers(booked.out)), of_a_rank(add_up(numbers for _, numbers in stored)),
        sum(phase == "forward" for phase in booked.split.step_phases) + bodies,
        of_a_rank(add_up(numbers for lies, numbers in stored if lies_by_expert(booked.mesh, lies))),
        of_a_rank(add_up(made_by_experts(booked, at) for at in asked)))


def of_a_rank(e: LiveSize) -> Formula:
    """A size as a formula, where cuts are even. Experts are read among d ranks of data, each with b sequences: so e
    ranks, d by those of context, have all experts together."""
    return Formula.of(even(e).xreplace({DATA_RANKS: EXPERT_RANKS / CONTEXT_RANKS}))


def lies_by_expert(mesh: Mesh, lies: Placement) -> bool:
    """Whether an array has a matrix for each expert, of which a rank stores some."""
    return mesh.experts is not None and lies.on(mesh.index(mesh.experts.name)) is not None


def squares(formula: Formula) -> bool:
    """Whether numbers grow with pairs of tokens."""
    return any(is_of_pairs(powers) for _, powers in formula.terms)


def is_of_pairs(powers: Powers) -> bool:
    """Whether a product of powers has one number for each pair of tokens, at least."""
    return dict(powers).get("s", 0) > 1


def read_products(booked: BackwardBooked) -> Iterator[ProductWork]:
    """Products of all passes, those that are alike as one."""
    found: Counter[ProductWork] = Counter()
    for at, step in enumerate(booked.steps):
        if booked.flops(at) == 0: continue
        during: LayerPass = "forward" if booked.split.step_phases[at] == "forward" else "backward"
        for each in expert_products(booked, at) if step.op in EXPERT_STEPS else [sides_of(booked, at)]:
            touched = [step.args[0], at] if step.op == "act" else [*step.args, at]
            numbers = [of_a_rank(booked.numbers(one)) for one in touched]
            if step.op in EXPERT_STEPS: numbers = [of_a_rank(each.batch * n) for n in each.pairs()]
            scores = [one for one in numbers if squares(one)]
            if step.op == "act": numbers.append(of_a_rank(each.inner * each.cols))
            sides = [of_a_rank(side) for side in each[:4]]
            ragged = bool(scores) and any(isinstance(side, int) and side % WHOLE_READ for side in each[1:3])
            found[ProductWork(during, 1, sides[0], sides[1], sides[2], sides[3], add_formulas(numbers),
                              add_formulas(scores), ragged, each.again, each.learns)] += 1
    for work, count in found.items(): yield replace(work, count=count)


def sides_of(booked: BackwardBooked, at: int) -> ProductSides:
    """The product of a step of no experts."""
    step, own = booked.steps[at], booked.held_dims[at]
    x = booked.held_dims[step.args[0]]
    if step.op == "outer": return ProductSides(own.rows, x.batch * x.rows, own.cols, own.heads, learns=True)
    if step.op == "act": return ProductSides(own.rows * own.batch * own.heads, x.cols, own.cols, 1)
    return ProductSides(own.rows, x.cols, booked.held_dims[step.args[1]].cols, own.batch * own.heads)


def read_crossings(booked: BackwardBooked) -> Iterator[CrossingWork]:
    """What crosses in all passes, what is alike as one."""
    found: Counter[CrossingWork] = Counter()
    for at, phase in enumerate(booked.split.step_phases):
        if (crossing := booked.crossing(at)) is None: continue
        during: LayerPass = "forward" if phase == "forward" else "backward"
        found[CrossingWork(during, crossing.op, crossing.axis, 1, of_a_rank(crossing.whole))] += 1
    for each, count in found.items(): yield replace(each, count=count)


def add_formulas(each: Iterable[Formula]) -> Formula:
    """Their sum."""
    found: dict[Powers, float] = {}
    for formula in each:
        for count, powers in formula.terms: found[powers] = found.get(powers, 0) + count
    return Formula(tuple(sorted(((count, powers) for powers, count in found.items() if count), key=lambda e: e[1])))


def add_layers(works: Iterable[LayerWork]) -> LayerWork:
    """Several of them as one."""
    works = [*works]
    def united(held: Iterable[Mapping[str, Formula]]) -> dict[str, Formula]:
        found: dict[str, Formula] = {}
        for one in held:
            for unit, formula in one.items(): found[unit] = add_formulas([found[unit], formula] if unit in found
                                                                         else [formula])
        return found
    return LayerWork(tuple(e for w in works for e in w.products), tuple(e for w in works for e in w.crossings),
                     united(w.kept for w in works), frozenset(e for w in works for e in w.between),
                     united(w.masks for w in works), works[-1].out if works else Formula(()),
                     add_formulas(w.parameters for w in works), sum(w.lines for w in works),
                     add_formulas(w.experts for w in works), add_formulas(w.made for w in works))
