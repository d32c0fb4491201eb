"""Models that may stand for the one that was asked for: itself, and itself with less of its units and heads. Each is
searched for by itself, over graphs that all share; their programs meet in one front, where errors and goals are of
the model that was asked for."""
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
from rewrites.approximate.losses import SHARES, Curve, count_trials, curves, levels
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

BUDGETS = (0.05, 0.15, 0.3)                                 # that methods may add, where pairs judge
BOTH = (1.0, 5e-11, 0.0)                                    # weights of seconds, bytes, error: 20 MB are worth 1 ms
MOST = 6                                                    # programs of smaller models that are verified and measured


@dataclass
class Variant:
    """A model with its space and exact program; `removed` says how it was made, None of the one that was asked for.
    `off` is how far its exact program is from that one's output, relative."""

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
        """How many approximations of each kind made it."""
        whats = [cut.what for cut in self.removed.cuts] if self.removed else []
        return {what: whats.count(what) for what in dict.fromkeys(whats)}

    def name(self, structure: Structure) -> str:
        """What is removed, then what methods a program uses."""
        own = describe_methods(structure) if structure.error or self.removed is None else ""
        return " + ".join(filter(None, [self.removed.name if self.removed else "", own]))

    def methods(self, structure: Structure) -> dict[str, int]:
        return self.cuts | count_methods(structure)

    def sources(self, structure: Structure, program: Program) -> Emitter:
        """Where the constants of one of its programs come from."""
        if self.choices is None or structure is self.structure: return self.emitter
        return self.choices.sources[program]

    def verified(self, batch: Batch) -> tuple[NDArray[np.float64], dict[str, object]]:
        """Its output in float64, and what a certificate says of how it was made. Raises VerificationError where its
        sizes are not those of the model with rows of zeros."""
        found, removed = dense(self.operator, batch), self.removed
        return found, {"removed": removed.described() | {"difference": removed.checked(batch)}} if removed else {}


class Untried(NamedTuple):
    """A program of a variant, or of the model that was asked for, which nobody has looked at yet."""

    variant: Variant | None
    structure: Structure
    program: Program


class Outcome(NamedTuple):
    """A candidate, how far it is off on rows that choose, and what it is planned to be off by."""

    made: Untried
    joint: float
    stated: float


def carry_methods(choices: Choices, model: Operator, variant: Variant) -> Choices:
    """The number types that weights of the whole model were measured by, for what is left of the same weights, with
    the same errors: they decide what is tried, and each program's own error is measured."""
    old, new = leaves(model), leaves(variant.operator)
    named = {key: new[name] for name, key in old.items() if name in new}
    measured: dict[frozenset[str], Sequence[Method]] = {
        frozenset(named[key] for key in those): [each for each in methods if only_narrows([each.format])]
        for those, methods in choices.measured.items() if those <= named.keys()}
    return Choices(variant.space, measured, choices.fit, choices.representable)


def leaves(model: Operator) -> dict[str, str]:
    """The contents of a model's weights by their names."""
    data = (term.args[0] for term in model.walk() if term.kind.name == "weight")
    return {re.sub(r"\W", "_", each.label): each.key for each in data}


def list_programs(variant: Variant, front: Front, error: float | None) -> list[Untried]:
    """The exact program of a smaller model, and the fastest, the smallest and one that is both with a little more
    error by methods; where an error is asked for, with what it leaves them."""
    assert variant.choices is not None
    found = [Untried(variant, variant.structure, variant.program)]
    room = None if error is None else max(0.0, (error / TRUST) ** 2 - variant.off ** 2)
    for budget in BUDGETS if room is None else (sqrt(room), sqrt(room) / 2):
        for weights in (*OBJECTIVES, BOTH):
            try: structure = variant.choices.choose(budget, None, weights)
            except Infeasible: continue
            if not structure.error: continue
            with front.attempts.leave_out(f"{variant.name(structure)}, {describe_methods(structure)}"):
                found.append(Untried(variant, structure, variant.choices.program(structure, front.meta)))
    return found


@dataclass
class Pruning:
    """What smaller models are made from: a model with its space and exact program, the representations that hold
    weights as they are, the rows that fit and choose, and the meta of programs."""

    model: Operator
    space: SearchSpace
    exact: Program
    representable: Representable
    workload: Workload
    meta: dict[str, object]
    attempts: Attempts = field(default_factory=Attempts)

    def variants(self, quality: Quality, what: Sequence[str], file: str | Path | None, progress: Tell) -> list[Variant]:
        """Models with less of what may go, where it costs least, fitted to a file or to the lines that methods are
        fitted to, as far as their exact programs keep the quality."""
        batch, choose = self.workload.fit, self.workload.choose
        if file is not None: batch = calibration(file, self.exact.tokenizer, self.workload, quality.texts)
        all_steps, losses, kept = len(every_coupled(self.model)) + len(SHARES), list[Curve](), list[Variant]()
        for curve in curves(self.model, what, batch, sample(self.exact, choose, count_trials(self.model))):
            losses.append(curve)
            progress(len(losses), all_steps)
        for done, level in enumerate(levels(losses, what), len(losses) + 1):
            with self.attempts.leave_out(f"the smaller model {level}"):
                made = self.prune(level, batch)
                if quality.kept(made.program, made.off): kept.append(made)
            progress(done, all_steps)
        return kept

    def prune(self, level: Level, fit: Batch) -> Variant:
        """The model with as much removed as a level says, and its optimum, over graphs that it shares with the whole
        one."""
        made, whole = remove_groups(self.model, level, fit), self.space
        space = SearchSpace(made.model, whole.laws, whole.machine, whole.extents, like=whole)
        structure = cheapest(space, self.representable)
        program, emitter = structure.program(self.meta)
        run, exact = (partial(each.run, self.workload.choose) for each in (program, self.exact))
        return Variant(made.model, space, structure, program, emitter, made, difference(*Reference(exact).free(run)))


def choose_pruned(variants: Sequence[Variant], front: Front, quality: Quality) -> list[Outcome]:
    """The programs of smaller models that keep the quality, and that no other of them is better than."""
    return choose_best([each for variant in variants for each in list_programs(variant, front, quality.error)],
                       front, quality) if variants else []


def choose_best(candidates: Sequence[Untried], front: Front, quality: Quality, most: int = MOST) -> list[Outcome]:
    """The candidates that keep the quality, and that no other such one beats in predicted seconds and bytes; at most so
    many, the fastest first, and always the smallest. Only what is not beaten is looked at."""
    best, least = list[Outcome](), inf
    sized = sorted(((each.structure.time, front.bytes(each.program), at) for at, each in enumerate(candidates)))
    for _, size, at in sized:
        if size >= least: continue
        joint, stated = front.errors(candidates[at].program, inf)
        if quality.kept(candidates[at].program, stated, size):
            best.append(Outcome(candidates[at], joint, stated))
            least = size
    return best if len(best) <= most else [*best[:most - 1], best[-1]]
