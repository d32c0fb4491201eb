"""The choices of the search within budgets: methods that spectra proposed for every weight of the exact program, with
the errors that the model itself said each has."""
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.custom.custom_names import list_own_names
from opmatrix.runtime.program import Constant, Program
from opmatrix.spectra import Limits
from opmatrix.spectra.gram import Seen
from rewrites.approximate.budgets import Budgets
from rewrites.approximate.error_cache import errors_file, recall, save_errors
from rewrites.approximate.sites import ValueKey, WeightSite, observe, sites
from rewrites.approximate.trials import sample
from rewrites.approximate.weight_errors import measure_weights
from rewrites.egraph.attempts import Attempts
from rewrites.laws.kernel_law import STACK
from rewrites.lowering.lower import Lowering, Method, Use
from rewrites.lowering.narrowing import narrowed
from rewrites.lowering.representations import Representable
from rewrites.search.approximation import Approximation
from rewrites.search.emit import ConstantKey, Emitter
from rewrites.search.fit import Fitter, WeightKey
from rewrites.search.search import SearchSpace, Structure


@dataclass
class Choices:
    """All programs of a space where a weight may be stored by what was `measured` for the leaves that it is made of,
    each method with the squared error that it alone brings about."""

    space: SearchSpace
    measured: dict[frozenset[str], Sequence[Method]]
    fit: Batch
    representable: Representable
    own: dict[str, Approximation] = field(default_factory=dict)
    seen: dict[ValueKey, Seen] = field(default_factory=dict)  # of what programs multiply weights by
    fitters: dict[Hashable, Fitter] = field(default_factory=dict)
    directions: dict[tuple[WeightKey, int], np.ndarray] = field(default_factory=dict)    # of low rank
    fitted: dict[Hashable, WeakValueDictionary[ConstantKey, Constant]] = field(default_factory=dict)  # in use
    sources: WeakKeyDictionary[Program, Emitter] = field(default_factory=WeakKeyDictionary)     # where they come from

    @cached_property
    def budgets(self) -> Budgets:
        """The search within budgets, which all choices share."""
        return Budgets(self.space, self.methods)

    def methods(self, lowering: Lowering, use: Use) -> Sequence[Method]:
        """What holds a weight exactly, and what was measured for its leaves: as it is where these leaves were measured
        together, else the sum of errors over the sets that make it up."""
        exact = self.representable(lowering, use)
        leaves = frozenset(keys(lowering, use.weight))
        if (own := self.measured.get(leaves)) is None:
            inside = {those: methods for those, methods in self.measured.items() if those and those < leaves}
            own = [*add_errors([*inside.values()])] if frozenset().union(*inside) == leaves else ()
        return *exact, *(method for method in own if lowering.holdable(use, method)
                         and (not lowering.gathers(use) or lowering.gatherable(use, method)))

    def choose(self, error: float, memory: float | None = None, weights: tuple[float, float, float] = (1, 0, 0),
               prove: bool = False) -> Structure:
        """The cheapest program whose errors, squared, add to at most `error` squared. Raises Infeasible. Where nothing
        is to be proved its bound is none."""
        return self.budgets.within(error ** 2, memory, weights, gap=1e-3 if prove else inf)

    def program(self, structure: Structure, meta: dict[str, object]) -> Program:
        """A structure with its methods, fitted to what its exact program multiplies each weight by."""
        found, emitter = structure.program(meta, fitted=self.kept(structure), fitter=self.fitter(structure, meta))
        made = narrowed(found, self.space.prices)
        self.sources[made] = replace(emitter, fitted={}, fitter=Fitter())
        return made

    def kept(self, structure: Structure) -> WeakValueDictionary[ConstantKey, Constant]:
        """The constants of programs in use that hand on the same border states."""
        return self.fitted.setdefault(structure.route, WeakValueDictionary())

    def fitter(self, structure: Structure, meta: dict[str, object]) -> Fitter:
        """What fits the weights of a structure."""
        kept, shape = self.kept(structure), list_uses(structure)
        if shape not in self.fitters:
            multiplied = inputs(structure)
            if not all(self.has_seen(value, how == STACK) for (_, _, how), value in multiplied.items()):
                exact, emitter = structure.program(meta, structure.plainly, kept)
                self.observe(exact, sites(exact, structure, emitter))
            self.fitters[shape] = Fitter({key: self.seen[value] for key, value in multiplied.items()}, self.own,
                                         self.directions)
        return self.fitters[shape]

    def has_seen(self, value: ValueKey, columns: bool) -> bool:
        """Whether a value is known, by its columns alone where these are enough."""
        return (seen := self.seen.get(value)) is not None and (columns or seen.whole)

    def settle(self) -> None:
        """Programs are chosen: what their weights were fitted to, which is as large as the largest of them, is let
        go."""
        for each in (self.seen, self.directions, self.fitters): each.clear()

    def observe(self, exact: Program, found: Sequence[WeightSite]) -> None:
        """What weights are multiplied by, as far as no program before had the same value; what matrices of heads alone
        are multiplied by by its columns."""
        lacking = [site for site in found if site.x and not self.has_seen(site.value, site.heads)]
        names = {site.value: site.x for site in lacking if site.x}
        seen = observe(exact, [*names.values()], self.fit, {site.x for site in lacking if site.x and not site.heads})
        self.seen |= {value: seen[name] for value, name in names.items()}


def keys(lowering: Lowering, cls: int) -> Iterator[str]:
    """The contents of the leaves that a weight is made of."""
    return (data.key for data in lowering.arrays(cls))


def add_errors(sets: Sequence[Sequence[Method]]) -> Iterator[Method]:
    """The methods that were measured for every set, each with the sum of its errors."""
    errors: dict[Method, list[float]] = {}
    for methods in sets:
        for method in methods:
            errors.setdefault(method._replace(error=0.0), []).append(method.error)
    return (method._replace(error=sum(each)) for method, each in errors.items() if len(each) == len(sets))


def list_uses(structure: Structure) -> tuple[Hashable, ...]:
    """The border states and the uses of weights of a program, whatever they are stored by."""
    return (*structure.route, *((number, use) for number, _, use, _ in structure.uses()))


def inputs(structure: Structure) -> dict[WeightKey, ValueKey]:
    """What a program multiplies each weight by."""
    return {(number, use.weight, use.layout): (number, structure.before(number), use.x)
            for number, lowering, use, _ in structure.uses()
            if not lowering.gathers(use)}


def chosen_methods(structure: Structure) -> Iterator[Method]:
    """The method of every weight of a program."""
    return (method for *_, method in structure.uses() if isinstance(method, Method))


def propose_methods(space: SearchSpace, structure: Structure, program: Program, emitter: Emitter,
                    representable: Representable, fit: Batch,
                    batch: Batch, limits: Limits, progress: Callable[[int, int], None] = lambda done, of: None,
                    own: Sequence[Approximation] = (), attempts: Attempts | None = None) -> Choices:
    """Proposes methods for every weight of an exact structure, fitted to the rows `fit`, and measures each alone: the
    relative change of the output on the rows of `batch`. What was measured before for the same program, rows, limits
    and prices is recalled, but of none that computes functions of one's own, which may be others next time. `own` are
    approximations that a user declared: these are proposed for every weight, and never recalled. Where no error is
    allowed nothing is proposed. `attempts` gets a line for each that fails, and then nothing is kept."""
    choices = Choices(space, {}, fit, representable, {each.name: each for each in own},
                      fitted={structure.route: WeakValueDictionary(emitter.fitted)})
    if not limits.error: return choices
    found, prices = sites(program, structure, emitter), space.prices
    batch = sample(program, batch, len(found) * limits.most)
    file = errors_file(program, (fit, batch), limits, prices)
    lasting = not own and not any(list_own_names(step.attributes) for step in program.steps)
    if (measured := recall(file, [site.name for site in found]) if lasting else None) is None:
        choices.observe(program, found)
        fitting = Fitter({each.key: choices.seen[each.value] for each in found if each.x}, choices.own)
        attempts = attempts or Attempts()
        before = len(attempts.failed)
        measured = measure_weights(program, found, prices, batch, limits, fitting, progress, attempts)
        if lasting and len(attempts.failed) == before:
            save_errors(file, measured)
    for site in found:
        leaves = frozenset(keys(structure.lowering(site.part), site.stored.weight))
        choices.measured.setdefault(leaves, measured[site.name])
    return choices


def undominated(points: Sequence[Structure]) -> Iterator[Structure]:
    """Points that no other is at least as good as in time, memory and error."""
    seen: list[Structure] = []
    for point in sorted(points, key=lambda e: (e.time, e.memory, e.error)):
        if not any(o.time <= point.time * 1.001 and o.memory <= point.memory * 1.001
                   and o.error <= point.error * 1.001 + 1e-18 for o in seen):
            seen.append(point)
            yield point
