"""The exact search of every stretch of every rank, with the sizes on that rank: `compile_ranks`. Stretches of equal
structure share a saturated graph; if their sizes are equal too, they share the result, so equal layers and ranks are
searched once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import collect_needs
from opmatrix.display.progress import unheard
from opmatrix.parallel.sharding.factor_chain import layers
from opmatrix.parallel.sharding.partition import Partition
from opmatrix.parallel.sharding.placement import Coordinates
from opmatrix.runtime.program import Program
from opmatrix.runtime.scheme import Running
from rewrites.egraph.layers import Explorer, Part, parts
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS
from rewrites.laws.law import Law
from rewrites.lowering.price import TimeModel
from rewrites.lowering.representations import Representable, content
from rewrites.opened import count_bytes
from rewrites.ranks.rank_terms import LocalNumbers, StretchModel, write_model
from rewrites.ranks.stretches import StageSteps, Stretch, divide
from rewrites.search.emit import Emitter
from rewrites.search.search import SearchSpace, Structure, cheapest, sizes
from rewrites.workload.phases import Tell


class StretchProgram(NamedTuple):
    """A stretch of a rank with the program that computes it, the emitter of its constants, its structure, and the
    number of the search that found it."""

    model: StretchModel
    program: Program
    emitter: Emitter
    structure: Structure
    search: int

    @property
    def kernels(self) -> list[str]:
        """The names of the kernels of the program's steps, in order."""
        return [step.kernel for step in self.program.steps]


@dataclass(frozen=True)
class RankPrograms:
    """The items that each rank of a partition runs, in order: programs, and steps outside of stretches, which are
    collectives or interpreted. `stages` are the steps of each stage; `searches` are the results of the searches."""

    plan: Partition
    stages: Sequence[StageSteps]
    items: Mapping[Coordinates, Sequence[StretchProgram | int]]
    searches: Sequence[Structure]

    def programs(self, place: Coordinates) -> list[StretchProgram]:
        """Return the programs of a rank."""
        return [entry for entry in self.items[place] if isinstance(entry, StretchProgram)]

    def interpreted(self, place: Coordinates) -> list[str]:
        """Return the operations that a rank computes without a program, by name."""
        steps = self.stages[self.plan.stage(place)].steps
        return [
            steps[entry].op
            for entry in self.items[place]
            if isinstance(entry, int) and steps[entry].op not in ("move", "slice", "input")
        ]


@dataclass
class StretchSearch:
    """Searches of stretches, each made once."""

    machine: TimeModel
    laws: Sequence[Law]
    representable: Representable = field(default_factory=Representable)
    found: list[Structure] = field(default_factory=list)
    spaces: dict[Hashable, tuple[int, SearchSpace]] = field(default_factory=dict)
    made: dict[Hashable, StretchProgram] = field(default_factory=dict)
    explorers: dict[bool, Explorer] = field(default_factory=dict)

    def program(self, model: StretchModel) -> StretchProgram:
        """Return the program of a stretch. Replicas of a rank share one, as their terms are the same."""
        key = (*model.outputs.items(), model.size)
        if key not in self.made:
            self.made[key] = self.compile(model)
        return self.made[key]._replace(model=model)

    def compile(self, model: StretchModel) -> StretchProgram:
        """Compile the program of a stretch: the result of an equal search, with the numbers of this stretch."""
        split = parts(model.outputs)
        key = model.size, *model.outputs, *map(describe_search, split)
        if key not in self.spaces:
            space, structure = self.explore(model, split)
            self.spaces[key] = len(self.found), space
            self.found.append(structure)
        number, first = self.spaces[key]
        known = self.found[number]
        space = SearchSpace(model.outputs, first.laws, first.machine, first.extents, found=split, like=first)
        structure = space.structure(known.route, known.extractions, known.bound, known.greedy, {})
        return StretchProgram(model, *structure.program({}), structure, number)

    def explore(self, model: StretchModel, split: Sequence[dict[str, Part]]) -> tuple[SearchSpace, Structure]:
        """Return the search space of a stretch and its optimum. Canonical forms depend on one another: if they lead to
        no program, the search is repeated with laws that keep both their sides."""
        batch, terms = batch_of(model), [*model.outputs.values()]
        extents = batch.extents(*collect_needs(*terms))
        running = Running.of(self.machine, batch.starts, sum(map(count_bytes, terms)))
        for canonical in (True, False):
            laws = self.laws if canonical else [replace(law, canonical=False) for law in self.laws]
            space = SearchSpace(model.outputs, laws, running, extents, found=split)
            space.explorer = self.explorers.setdefault(canonical, space.explorer)  # a graph does not depend on sizes
            try:
                return space, cheapest(space, self.representable)
            except Infeasible:
                if not canonical:
                    raise
        raise AssertionError("one of the two returns")


def describe_search(states: Mapping[str, Part]) -> Hashable:
    """Return the key of a part's search: its structure, its sizes, and the properties of its numbers that decide which
    formats can hold its weights."""
    return tuple(
        (state, part.template.text, sizes(part), content(part.template), *part.roots.items(), *part.outputs.items())
        for state, part in states.items()
    )


def batch_of(
    model: StretchModel,
    tokens: np.ndarray | None = None,
    kinds: np.ndarray | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
) -> Batch:
    """Return rows of a stretch as a batch: sequences of one length, with the input matrices."""
    count, rows = model.size
    none = np.zeros((count, rows), np.int64)
    ports = {port.name: port for port in collect_needs(*model.outputs.values())[1]}
    matrices = {name: np.zeros((count * rows, port.columns), np.float32) for name, port in ports.items()}
    matrices |= {name: matrix for name, matrix in (inputs or {}).items() if name in ports}
    return Batch([*(none if tokens is None else tokens)], [*(none if kinds is None else kinds)], inputs=matrices)


def compile_ranks(
    plan: Partition, machine: TimeModel, laws: Sequence[Law] = EXACT_LAWS, progress: Tell = unheard
) -> RankPrograms:
    """Return the programs of every rank of a partition: exact ones over these laws, the cheapest on a machine for the
    rows of that rank. Raises InputError if a size of the batch, or a number of ranks, is a symbol."""
    named = {"sequences": plan.sizes.sequences, "tokens": plan.sizes.tokens} | {
        f"ranks of {axis.name}": axis.ranks for axis in plan.mesh
    }
    for name, size in named.items():
        if not isinstance(size, int):
            raise InputError(f"{name}: {size} is a symbol: programs need a number")
    stages = [StageSteps.of(plan, stage) for stage in range(len(plan.stages))]
    orders: list[list[Stretch | int]] = [divide(stage) for stage in stages]
    layer_of = {at: k for k, (lo, hi) in enumerate(layers(plan.chain), 1) for at in range(lo, hi)}
    search, items = StretchSearch(machine, laws), dict[Coordinates, list[StretchProgram | int]]()
    for place in plan.mesh.places():
        progress(f"rank {place}")
        stage = plan.stage(place)
        here = LocalNumbers(stages[stage], plan.flat(place))
        items[place] = []
        for entry in orders[stage]:
            if isinstance(entry, int):
                items[place].append(entry)
                continue
            model = write_model(stages[stage], entry, here, layer_of)
            items[place].append(search.program(model))
    return RankPrograms(plan, stages, items, search.found)
