"""The choices of the search within budgets: methods that spectra proposed for every weight of the exact program, with
the error of each as the model itself measured it."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from math import inf
from threading import Lock
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from formats import FORMATS
from formats.core.stage import NoPullback
from formats.host.freed_memory import release_memory
from formats.host.threads import in_threads
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.custom.custom_names import list_own_names
from opmatrix.runtime.cotangents import product_gram
from opmatrix.runtime.program import Constant, Program
from opmatrix.spectra import Limits
from opmatrix.spectra.gram import Seen, Symmetric
from rewrites.approximate.budgets import Budgets
from rewrites.approximate.error_cache import errors_file, recall, save_errors
from rewrites.approximate.predicted_errors import (
    HALF_PASSES,
    PROBES,
    OutputProbe,
    last_choosing,
    predict_weights,
    sites_with_cotangents,
)
from rewrites.approximate.sites import ValueKey, WeightSite, observe, sites
from rewrites.approximate.trials import sample
from rewrites.approximate.weight_errors import TriedWeights, measure_weights
from rewrites.egraph.attempts import Attempts
from rewrites.laws.kernel_law import STACK
from rewrites.lowering.lower import TURNED, Lowering, Method, Use
from rewrites.lowering.narrowing import narrowed
from rewrites.lowering.representations import Representable
from rewrites.search.approximation import Approximation
from rewrites.search.emit import ConstantKey, Emitter
from rewrites.search.fit import Directions, Fitter, OutputGram, WeightKey
from rewrites.search.search import SearchSpace, Structure

REPEATED = 0.1  # share of repeated rows from which fits to both sides say too little
NEAR_FRONT = "near"  # errors of methods are predicted, those of programs near the front measured
Leaves = frozenset[str]  # content keys of the leaves that a weight is made of
ERRORS_OF = {NEAR_FRONT: predict_weights, "all": measure_weights}


@dataclass
class Choices:
    """All programs of a space where a weight may be stored by the methods `measured` for the leaves that it is made of,
    each with the squared error that it alone causes."""

    space: SearchSpace
    measured: dict[frozenset[str], Sequence[Method]]
    fit: Batch
    representable: Representable
    own: dict[str, Approximation] = field(default_factory=dict)
    seen: dict[ValueKey, Seen] = field(default_factory=dict)  # inputs of weights in programs
    fitters: dict[Hashable, Fitter] = field(default_factory=dict)
    directions: dict[tuple[WeightKey, int], Directions] = field(default_factory=dict)  # of low rank
    weigh: Callable[[], dict[Leaves, OutputGram]] = dict  # cotangents of products in the exact program
    fitted: dict[Hashable, WeakValueDictionary[ConstantKey, Constant]] = field(default_factory=dict)  # by border states
    sources: WeakKeyDictionary[Program, Emitter] = field(default_factory=WeakKeyDictionary)  # by program
    notes: list[str] = field(default_factory=list)  # errors that were not predicted, and why
    predicted_by: dict[str, str] = field(default_factory=dict)  # kind of approximation -> how errors were found

    @cached_property
    def cotangents(self) -> dict[Leaves, OutputGram]:
        """The cotangents S of products with weights in the exact program, by the leaves of each weight."""
        return self.weigh()

    @cached_property
    def budgets(self) -> Budgets:
        """The search within budgets, which all choices share."""
        return Budgets(self.space, self.methods)

    def methods(self, lowering: Lowering, use: Use) -> Sequence[Method]:
        """Return the exact representations of a weight, and the methods measured for its leaves. If the leaves were
        measured together these apply as they are, else errors are summed over the sets that make up the leaves."""
        exact = self.representable(lowering, use)
        leaves = frozenset(keys(lowering, use.weight))
        if (methods := self.measured.get(leaves)) is None:
            inside = {those: methods for those, methods in self.measured.items() if those and those < leaves}
            methods = [*add_errors([*inside.values()])] if frozenset().union(*inside) == leaves else ()
        return *exact, *(
            method
            for method in methods
            if lowering.holdable(use, method) and (not lowering.gathers(use) or lowering.gatherable(use, method))
        )

    def choose(
        self,
        error: float,
        memory: float | None = None,
        weights: tuple[float, float, float] = (1, 0, 0),
        prove: bool = False,
    ) -> Structure:
        """Return the cheapest program whose squared errors add to at most `error` squared. Raises Infeasible. Without
        `prove` its bound is not proved."""
        return self.budgets.within(error**2, memory, weights, gap=1e-3 if prove else inf)

    def program(self, structure: Structure, meta: dict[str, object]) -> Program:
        """Return the program of a structure with its methods, fitted to the inputs of each weight in its exact
        program."""
        exact, emitter = structure.program(meta, fitted=self.kept(structure), fitter=self.fitter(structure, meta))
        program = narrowed(exact, self.space.prices)
        self.sources[program] = replace(emitter, fitted={}, fitter=Fitter())
        return program

    def kept(self, structure: Structure) -> WeakValueDictionary[ConstantKey, Constant]:
        """Return the constants of programs in use that have the same border states."""
        return self.fitted.setdefault(structure.route, WeakValueDictionary())

    def fitter(self, structure: Structure, meta: dict[str, object]) -> Fitter:
        """Return the fitter of the weights of a structure."""
        constants, shape = self.kept(structure), list_uses(structure)
        if shape not in self.fitters:
            multiplied = inputs(structure)
            if not all(self.has_seen(value, how == STACK) for (_, _, how), value in multiplied.items()):
                exact, emitter = structure.program(meta, structure.plainly, constants)
                self.observe(exact, sites(exact, structure, emitter))
            self.fitters[shape] = Fitter(
                {key: self.seen[value] for key, value in multiplied.items()}, self.own, self.directions
            )
        fitter = self.fitters[shape]
        if not fitter.cotangents and any(fits_both_sides(method) for method in chosen_methods(structure)):
            fitter.cotangents |= self.cotangents_of(structure)
        return fitter

    def cotangents_of(self, structure: Structure) -> dict[WeightKey, OutputGram]:
        """Return the cotangents of the weights of a program that are weights of the exact program, too."""
        by_key = dict[WeightKey, OutputGram]()
        for number, lowering, use, _ in structure.uses():
            s = None if use.layout in (STACK, TURNED) else self.cotangents.get(frozenset(keys(lowering, use.weight)))
            if s is not None and len(s) == lowering.stored(use.weight, use.layout)[-1]:
                by_key[number, use.weight, use.layout] = s
        return by_key

    def has_seen(self, value: ValueKey, columns: bool) -> bool:
        """True if a value is known, or only its columns where these are enough."""
        return (seen := self.seen.get(value)) is not None and (columns or seen.whole)

    def settle(self) -> None:
        """Release the data that weights were fitted to, once programs are chosen: it is as large as the largest of
        them."""
        for table in (self.seen, self.directions, self.fitters):
            table.clear()
        self.__dict__.pop("cotangents", None)

    def observe(self, exact: Program, found: Sequence[WeightSite]) -> None:
        """Record the inputs of weights, except values that an earlier program had. For matrices of heads only the
        columns are recorded."""
        lacking = [site for site in found if site.x and not self.has_seen(site.value, site.heads)]
        names = {site.value: site.x for site in lacking if site.x}
        seen = observe(exact, [*names.values()], self.fit, {site.x for site in lacking if site.x and not site.heads})
        self.seen |= {value: seen[name] for value, name in names.items()}


def weigh_products(
    structure: Structure, program: Program, places: Sequence[WeightSite], batch: Batch
) -> dict[Leaves, OutputGram]:
    """Return the cotangents S of products with these weights on a batch, by the leaves of each; none where errors are
    not predicted either: too few sentences, before a choice of entries, or before a step without a derivative."""
    rows = sample(program, batch, HALF_PASSES)
    probe, chooser = OutputProbe(program, rows), last_choosing(program)
    if not probe.suffices:
        return {}
    named = {site.name: site for site in places if site.x and not site.heads and site.readers(program)[0] > chooser}
    totals, middle = GramSums(), len(rows) // 2
    halves = [rows.sentences(*cut) for cut in pairwise((0, middle, len(rows))) if cut[0] < cut[1]]
    in_threads(partial(totals.add_products, replace(probe, batch=half, probes=PROBES // 2), named) for half in halves)
    release_memory()
    return {
        frozenset(keys(structure.lowering(site.part), site.stored.weight)): totals.by_name[name]
        for name, site in named.items()
        if name in totals.by_name
    }


@dataclass
class GramSums:
    """Sums of the cotangents S of products with weights, by name of a site; several threads may add to them."""

    by_name: dict[str, OutputGram] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def add_products(self, probe: OutputProbe, named: Mapping[str, WeightSite]) -> None:
        """Add the cotangents of products with these weights on the sentences of a probe, up to a step without a
        derivative."""
        with suppress(NoPullback):
            for site, readers in sites_with_cotangents(probe, named):
                grams = [gram for gram in (product_gram(reader, probe.batch) for reader in readers) if gram is not None]
                if grams and np.any(total := sum(grams[1:], grams[0])):
                    held = total.astype(np.float32)
                    self.add(site.name, held if held.ndim == 1 else Symmetric.of(held))

    def add(self, name: str, gram: OutputGram) -> None:
        """Add S of a site on some sentences. Two parts add to the same bits in either order."""
        with self.lock:
            self.by_name[name] = self.by_name[name] + gram if name in self.by_name else gram


def repeated_rows(fit: Batch, batch: Batch) -> float:
    """Return the share of a batch's rows in sentences that rows which fit have, too: these say too little of others."""
    known = {sentence.tokens.tobytes() for sentence in fit}
    return sum(sentence.rows for sentence in batch if sentence.tokens.tobytes() in known) / max(1, batch.rows)


def fits_both_sides(method: Method) -> bool:
    """True if a method is fitted to the cotangents of its product, where they are known."""
    form = FORMATS.get(method.format)
    return form is not None and (form.projected or form.prunes)


def keys(lowering: Lowering, cls: int) -> Iterator[str]:
    """Yield the content keys of the leaves that a weight is made of."""
    return (data.key for data in lowering.arrays(cls))


def add_errors(sets: Sequence[Sequence[Method]]) -> Iterator[Method]:
    """Yield the methods that were measured for every set, each with the sum of its errors."""
    errors: dict[Method, list[float]] = {}
    for methods in sets:
        for method in methods:
            errors.setdefault(method._replace(error=0.0), []).append(method.error)
    return (method._replace(error=sum(values)) for method, values in errors.items() if len(values) == len(sets))


def list_uses(structure: Structure) -> tuple[Hashable, ...]:
    """Return the border states and the uses of weights of a program, without their representations."""
    return (*structure.route, *((number, use) for number, _, use, _ in structure.uses()))


def inputs(structure: Structure) -> dict[WeightKey, ValueKey]:
    """Return the input value of each weight of a program."""
    return {
        (number, use.weight, use.layout): (number, structure.before(number), use.x)
        for number, lowering, use, _ in structure.uses()
        if not lowering.gathers(use)
    }


def chosen_methods(structure: Structure) -> Iterator[Method]:
    """Yield the method of every weight of a program."""
    return (method for *_, method in structure.uses() if isinstance(method, Method))


def propose_methods(
    space: SearchSpace,
    structure: Structure,
    program: Program,
    emitter: Emitter,
    representable: Representable,
    fit: Batch,
    batch: Batch,
    limits: Limits,
    progress: Callable[[int, int], None] = lambda done, of: None,
    own: Sequence[Approximation] = (),
    attempts: Attempts | None = None,
    measure: str = NEAR_FRONT,
) -> Choices:
    """Propose methods for every weight of an exact structure, fitted to the rows `fit`, each with the error that it
    causes alone: the relative change of the output on the rows of `batch`, predicted or measured as `measure` says.
    Earlier errors of the same program, rows, limits and prices are recalled from the cache, except for programs that
    call a user's own functions, which may change. `own` are approximations that a user declared: these are proposed for
    every weight, and never recalled. If no error is allowed, no method is proposed. `attempts` gets a line for each
    failure, and then the cache file is not written."""
    choices = Choices(
        space,
        {},
        fit,
        representable,
        {approximation.name: approximation for approximation in own},
        fitted={structure.route: WeakValueDictionary(emitter.fitted)},
    )
    if not limits.error:
        return choices
    places, prices = sites(program, structure, emitter), space.prices
    if repeated_rows(fit, batch) > REPEATED:
        choices.notes.append("the text repeats itself: sparse and low-rank weights are fitted to their inputs alone")
    else:
        choices.weigh = partial(weigh_products, structure, program, places, fit)
    file = errors_file(program, (fit, batch), limits, prices, measure)
    lasting = not own and not any(list_own_names(step.attributes) for step in program.steps)
    if (measured := recall(file, [site.name for site in places]) if lasting else None) is None:
        choices.observe(program, places)
        fitting = Fitter(
            {place.key: choices.seen[place.value] for place in places if place.x},
            choices.own,
            cotangents=choices.cotangents_of(structure),
        )
        attempts = attempts or Attempts()
        before = len(attempts.failed)
        tried = TriedWeights(program, places, prices, batch, limits, fitting, attempts, choices.notes)
        measured = ERRORS_OF[measure](tried, progress)
        if lasting and len(attempts.failed) == before:
            save_errors(file, measured)
    for site in places:
        leaves = frozenset(keys(structure.lowering(site.part), site.stored.weight))
        choices.measured.setdefault(leaves, measured[site.name])
    return choices


def undominated(points: Sequence[Structure]) -> Iterator[Structure]:
    """Yield the points that no other point equals or beats in time, memory and error."""
    seen: list[Structure] = []
    for point in sorted(points, key=lambda e: (e.time, e.memory, e.error)):
        if not any(
            o.time <= point.time * 1.001 and o.memory <= point.memory * 1.001 and o.error <= point.error * 1.001 + 1e-18
            for o in seen
        ):
            seen.append(point)
            yield point
