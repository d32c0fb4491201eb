"""Models that may replace the requested one: itself, and itself with fewer units and heads. Each is searched
separately, over graphs that all share. Their programs meet in one front, where errors and goals refer to the requested
model."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.term import Operator
from opmatrix.runtime.program import Program
from rewrites.approximate.error_levels import OBJECTIVES, TRUST, Front, count_methods, describe_methods
from rewrites.approximate.losses import SHARES, Curve, count_trials, curves, levels, uniform_levels
from rewrites.approximate.proposals import Choices
from rewrites.approximate.removing import Level, Removed, every_coupled, remove_groups
from rewrites.approximate.trials import sample
from rewrites.egraph.attempts import Attempts
from rewrites.extraction import Infeasible
from rewrites.lowering.lower import Method
from rewrites.lowering.representations import Representable, only_narrows
from rewrites.metrics.quality import Quality
from rewrites.search.emit import Emitter
from rewrites.search.search import SearchSpace, Structure, cheapest
from rewrites.verify.differences import difference
from rewrites.verify.routed import Reference
from rewrites.workload.phases import Tell
from rewrites.workload.workload import Workload, calibration

BUDGETS = (0.05, 0.15, 0.3)  # errors that methods may add, where pairs judge
BOTH = (1.0, 5e-11, 0.0)  # weights of seconds, bytes, error: 20 MB are worth 1 ms
MOST = 6  # programs of smaller models that are verified and measured


@dataclass
class Variant:
    """A model with its space and exact program. `removed` describes how it was derived; None for the requested model.
    `off` is the relative difference of its exact program's output from the requested model's."""

    operator: Operator
    space: SearchSpace
    structure: Structure
    program: Program
    emitter: Emitter
    removed: Removed | None = None
    off: float = 0.0
    choices: Choices | None = field(default=None, repr=False)

    @property
    def cuts(self) -> dict[str, int]:
        """Number of removals of each kind that it was derived by."""
        whats = [cut.what for cut in self.removed.cuts] if self.removed else []
        return {what: whats.count(what) for what in dict.fromkeys(whats)}

    def name(self, structure: Structure) -> str:
        """Return the removals, then the methods of a program, in words."""
        methods = describe_methods(structure) if structure.error or self.removed is None else ""
        return " + ".join(filter(None, [self.removed.name if self.removed else "", methods]))

    def methods(self, structure: Structure) -> dict[str, int]:
        """Count the methods that are not exact: groups that are removed, and storage of weights."""
        return self.cuts | count_methods(structure)

    def sources(self, structure: Structure, program: Program) -> Emitter:
        """Return the emitter of one of its programs, which holds the sources of its constants."""
        if self.choices is None or structure is self.structure:
            return self.emitter
        return self.choices.sources[program]

    def verified(self, batch: Batch) -> tuple[NDArray[np.float64], dict[str, object]]:
        """Return its output in float64, and the entries of a certificate about its removal. Raises VerificationError
        where it differs from the model with rows of zeros."""
        output, removed = dense(self.operator, batch), self.removed
        return output, {"removed": removed.described() | {"difference": removed.checked(batch)}} if removed else {}


class Untried(NamedTuple):
    """A program of a variant, or of the requested model, that has not been measured yet."""

    variant: Variant | None
    structure: Structure
    program: Program


class Outcome(NamedTuple):
    """A candidate, its error on rows that choose, and its planned error."""

    made: Untried
    joint: float
    stated: float


def carry_methods(choices: Choices, model: Operator, variant: Variant) -> Choices:
    """Return the number types that weights of the whole model were measured by, for the remaining parts of the same
    weights, with the same errors. They decide which programs are tried; each program's own error is measured."""
    old, new = leaves(model), leaves(variant.operator)
    named = {key: new[name] for name, key in old.items() if name in new}
    measured: dict[frozenset[str], Sequence[Method]] = {
        frozenset(named[key] for key in those): [method for method in methods if only_narrows([method.format])]
        for those, methods in choices.measured.items()
        if those <= named.keys()
    }
    return Choices(variant.space, measured, choices.fit, choices.representable)


def leaves(model: Operator) -> dict[str, str]:
    """Return the content keys of a model's weights by their names."""
    data = (term.args[0] for term in model.walk() if term.kind.name == "weight")
    return {re.sub(r"\W", "_", data_of.label): data_of.key for data_of in data}


def list_programs(variant: Variant, front: Front, error: float | None) -> list[Untried]:
    """Return the exact program of a smaller model, and the fastest, the smallest and a balanced one with a little more
    error by methods. With an `error`, the methods get the part of it that the removal leaves."""
    assert variant.choices is not None
    untried = [Untried(variant, variant.structure, variant.program)]
    room = None if error is None else max(0.0, (error / TRUST) ** 2 - variant.off**2)
    for budget in BUDGETS if room is None else (sqrt(room), sqrt(room) / 2):
        for weights in (*OBJECTIVES, BOTH):
            try:
                structure = variant.choices.choose(budget, None, weights)
            except Infeasible:
                continue
            if not structure.error:
                continue
            with front.attempts.leave_out(f"{variant.name(structure)}, {describe_methods(structure)}"):
                untried.append(Untried(variant, structure, variant.choices.program(structure, front.meta)))
    return untried


@dataclass
class Pruning:
    """The source of smaller models: a model with its space and exact program, the exact representations of weights, the
    rows that fit and choose, and the meta of programs."""

    model: Operator
    space: SearchSpace
    exact: Program
    representable: Representable
    workload: Workload
    meta: dict[str, object]
    attempts: Attempts = field(default_factory=Attempts)

    def variants(
        self, quality: Quality, what: Sequence[str], file: str | Path | None, progress: Tell, uniform: bool = False
    ) -> list[Variant]:
        """Return smaller models, reduced where it costs least, or by one size for all layers, fitted to a file or to
        the lines that methods are fitted to, if their exact programs keep the quality."""
        batch, choose = self.workload.fit, self.workload.choose
        if file is not None:
            batch = calibration(file, self.exact.tokenizer, self.workload, quality.texts, self.exact.scoring)
        all_steps, losses, variants = len(every_coupled(self.model)) + len(SHARES), list[Curve](), list[Variant]()
        for curve in curves(self.model, what, batch, sample(self.exact, choose, count_trials(self.model))):
            losses.append(curve)
            progress(len(losses), all_steps)
        chosen = (uniform_levels if uniform else levels)(losses, what)
        for done, level in enumerate(chosen, len(losses) + 1):
            with self.attempts.leave_out(f"the smaller model {level}"):
                variant = self.prune(level, batch)
                if quality.kept(variant.program, variant.off):
                    variants.append(variant)
            progress(done, all_steps)
        return variants

    def prune(self, level: Level, fit: Batch) -> Variant:
        """Return the model reduced to a level, and its optimum, over graphs that it shares with the whole model."""
        removed, whole = remove_groups(self.model, level, fit), self.space
        space = SearchSpace(removed.model, whole.laws, whole.machine, whole.extents, like=whole)
        structure = cheapest(space, self.representable)
        program, emitter = structure.program(self.meta)
        run, exact = (partial(program_of.run, self.workload.choose) for program_of in (program, self.exact))
        return Variant(
            removed.model, space, structure, program, emitter, removed, difference(*Reference(exact).free(run))
        )


def choose_pruned(variants: Sequence[Variant], front: Front, quality: Quality) -> list[Outcome]:
    """Return the programs of smaller models that keep the quality, and that no other of them beats."""
    return (
        choose_best(
            [untried for variant in variants for untried in list_programs(variant, front, quality.error)],
            front,
            quality,
        )
        if variants
        else []
    )


def choose_best(candidates: Sequence[Untried], front: Front, quality: Quality, most: int = MOST) -> list[Outcome]:
    """Return the candidates that keep the quality, and that no other such one beats in predicted seconds and bytes; at
    most `most`, the fastest first, and always the smallest. Only undominated candidates are measured."""
    best, least = list[Outcome](), inf
    sized = sorted(
        ((candidate.structure.time, front.bytes(candidate.program), at) for at, candidate in enumerate(candidates))
    )
    for _, size, at in sized:
        if size >= least:
            continue
        joint, stated = front.errors(candidates[at].program, inf)
        if quality.kept(candidates[at].program, stated, size):
            best.append(Outcome(candidates[at], joint, stated))
            least = size
    return best if len(best) <= most else [*best[: most - 1], best[-1]]
