"""What one layer of a model computes, sends, keeps and stores on a rank, as formulas of b sequences of s tokens, t
tensor ranks and c context ranks: read off its term, forward and backward, once a kind of layer and strategy."""
from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple, TypeAlias

import sympy

from formats.core.errors import InputError
from opmatrix.models import normalise_config, promised, spelling
from opmatrix.models.config import Settings
from opmatrix.partitions.booked import add_up
from opmatrix.partitions.plan import partition
from opmatrix.planner.quantities import Formula, Powers
from opmatrix.split.axis_states import even
from opmatrix.split.mesh import Mesh
from opmatrix.training.step_costs import BackwardBooked, Chunk, training_step

LayerPass: TypeAlias = Literal["forward", "backward"]
LAYERS_READ, UNEVEN = 3, ("first_k_dense_replace", "decoder_sparse_step", "mlp_only_layers")
WHOLE_READ = 8                                              # numbers of two bytes that are read at once


@dataclass(frozen=True)
class ProductWork:
    """Products that are alike: rows x inner x cols, so many at once, and how many of them there are in a layer.
    `numbers`: those it reads and makes, of which `scores` have one for each pair of tokens. `ragged`: columns of a head
    that are no whole 16 bytes, which matrix units do not read."""
    during: LayerPass
    count: int
    rows: Formula
    inner: Formula
    cols: Formula
    batch: Formula
    numbers: Formula
    scores: Formula
    ragged: bool = False

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


class LayerWork(NamedTuple):
    """One layer, or what stands before or behind all of them. `kept`: numbers by unit that backward reads; units of
    `between` have one for each pair of tokens. `parameters`: numbers that a rank stores. `lines`: operations
    forward."""
    products: tuple[ProductWork, ...]
    crossings: tuple[CrossingWork, ...]
    kept: Mapping[str, Formula]
    between: frozenset[str]
    masks: Mapping[str, Formula]
    out: Formula
    parameters: Formula
    lines: int


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


def model_work(config: Settings, context: str = "ulysses", sequence: bool = False, dropout: float = 0) -> ModelWork:
    """What a model computes, sends, keeps and stores, read off it once for a configuration and a strategy; of layers
    that are all alike a few are read. Raises InputError for what has no pullback or no head."""
    def read(said: Settings) -> ModelWork:
        return read_model(json.dumps(said, sort_keys=True), context, sequence, dropout)
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
    mesh = Mesh.of(cp=("c", "gathered" if context == "ring" else context),
                   tp=("t", "sequence-vocabulary" if sequence else "tensor-vocabulary"))
    plan = partition(promised(said, scores=True), mesh)
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
    held = {unit: Formula.of(even(size)) for unit, size in kept.items() if size != 0}
    between = frozenset(unit for unit, formula in held.items() if squares(formula))
    return LayerWork(
        tuple(read_products(booked)), tuple(read_crossings(booked)), held, between,
        {unit: Formula.of(even(size)) for unit, size in masks.items() if size != 0},
        Formula.of(even(booked.numbers(booked.out))),
        Formula.of(even(add_up(dims.numbers for _, dims in booked.stored().values()))),
        sum(phase == "forward" for phase in booked.split.step_phases))


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
        own = booked.held_dims[at]
        if step.op == "outer":
            u = booked.held_dims[step.args[0]]
            rows, inner, cols, batch = own.rows, u.batch * u.rows, own.cols, own.heads
        else:
            x = booked.held_dims[step.args[0]]
            cols = own.cols if step.op == "act" else booked.held_dims[step.args[1]].cols
            alone = step.op == "act"
            rows, inner = own.rows * (own.batch * own.heads if alone else 1), x.cols
            batch = 1 if alone else own.batch * own.heads
        touched = [*step.args, at] if step.op != "act" else [step.args[0], at]
        numbers = [Formula.of(even(booked.numbers(each))) for each in touched]
        scores = [each for each in numbers if squares(each)]
        if step.op == "act": numbers.append(Formula.of(even(sympy.sympify(inner * cols))))
        during: LayerPass = "forward" if booked.split.step_phases[at] == "forward" else "backward"
        ragged = bool(scores) and any(isinstance(side, int) and side % WHOLE_READ for side in (inner, cols))
        sides = [Formula.of(even(each)) for each in (rows, inner, cols, batch)]
        found[ProductWork(during, 1, sides[0], sides[1], sides[2], sides[3], add_formulas(numbers),
                          add_formulas(scores), ragged)] += 1
    for each, count in found.items(): yield replace(each, count=count)


def read_crossings(booked: BackwardBooked) -> Iterator[CrossingWork]:
    """What crosses in all passes, what is alike as one."""
    found: Counter[CrossingWork] = Counter()
    for at, phase in enumerate(booked.split.step_phases):
        if (crossing := booked.crossing(at)) is None: continue
        during: LayerPass = "forward" if phase == "forward" else "backward"
        found[CrossingWork(during, crossing.op, crossing.axis, 1, Formula.of(even(crossing.whole)))] += 1
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
                     add_formulas(w.parameters for w in works), sum(w.lines for w in works))
