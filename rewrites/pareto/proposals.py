"""Approximations: spectra propose them for every weight of the exact program, the model itself says what each costs in
error, and a search over whole programs chooses structure and methods within budgets of error and memory."""
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from formats import FORMATS
from opmatrix.batch import Batch
from opmatrix.files.storage import own_functions
from opmatrix.program import Program
from opmatrix.spectra import Limits, propose
from opmatrix.spectra.gram import Seen
from opmatrix.spectra.propose import Proposals
from rewrites.approximate.error_cache import Measured, errors_file, recall, save_errors
from rewrites.approximate.sites import Site, Source, gathered_rows, observe, sites, stored_for
from rewrites.approximate.trials import changed, sample
from rewrites.compiler.approximation import Approximation
from rewrites.compiler.emit import Emitter
from rewrites.compiler.fit import Fitter, WeightKey
from rewrites.compiler.search import Space, Structure
from rewrites.lower.lower import Lowering, Method, Use
from rewrites.lower.mixed import Mean
from rewrites.lower.narrowing import narrowed
from rewrites.lower.price import Prices, stored_bytes
from rewrites.lower.representations import Representable, keeps_width
from rewrites.pareto.budgets import Budgets
from rewrites.verify.differences import difference

SAMPLED_ROWS = 512                                          # rows of a table that spectra look at
COLUMNS = 4096                                              # of a wide weight that spectra look at, or twice as many as
                                                            # it has rows


@dataclass
class Choices:
    """All programs of a space where a weight may be stored by what was `measured` for the leaves that it is made of,
    each method with the squared error that it alone brings about."""

    space: Space
    measured: dict[frozenset[str], Sequence[Method]]
    fit: Batch
    representable: Representable
    own: dict[str, Approximation] = field(default_factory=dict)
    seen: dict[Source, Seen] = field(default_factory=dict)  # of what programs multiply weights by
    fitters: dict[Any, Fitter] = field(default_factory=dict)
    directions: dict[Any, np.ndarray] = field(default_factory=dict)         # of low rank, which fitters share
    fitted: dict[Any, WeakValueDictionary[Any, Any]] = field(default_factory=dict)      # constants of programs in use
    sources: WeakKeyDictionary[Program, Emitter] = field(default_factory=WeakKeyDictionary)     # where they come from

    @cached_property
    def budgets(self) -> Budgets:
        return Budgets(self.space, self.methods)

    def methods(self, lowering: Lowering, use: Use) -> Sequence[Method]:
        """What holds a weight exactly, and what was measured for its leaves: as it is where these leaves were measured
        together, else the sum of errors over the sets that make it up."""
        exact = self.representable(lowering, use)
        if use.layout == "stack":
            return exact
        leaves = frozenset(keys(lowering, use.weight))
        if (own := self.measured.get(leaves)) is None:
            inside = {those: methods for those, methods in self.measured.items() if those and those < leaves}
            own = [*summed([*inside.values()])] if frozenset().union(*inside) == leaves else ()
        return *exact, *(method for method in own if lowering.holdable(use, method)
                         and (not lowering.gathers(use) or lowering.gatherable(use, method)))

    def choose(self, error: float, memory: float | None = None, weights: tuple[float, float, float] = (1, 0, 0),
               prove: bool = False) -> Structure:
        """The cheapest program whose errors, squared, add to at most `error` squared. Raises Infeasible. Where nothing
        is to be proved its bound is none."""
        return self.budgets.within(error ** 2, memory, weights, gap=1e-3 if prove else inf)

    def program(self, structure: Structure, meta: dict[str, Any]) -> Program:
        """A structure with its methods, fitted to what its exact program multiplies each weight by."""
        found, emitter = structure.program(meta, fitted=self.kept(structure), fitter=self.fitter(structure, meta))
        made = narrowed(found, self.space.prices)
        self.sources[made] = replace(emitter, fitted={}, fitter=Fitter())
        return made

    def kept(self, structure: Structure) -> WeakValueDictionary[Any, Any]:
        """The constants of programs in use that hand on the same border states."""
        return self.fitted.setdefault(structure.route, WeakValueDictionary())

    def fitter(self, structure: Structure, meta: dict[str, Any]) -> Fitter:
        """What fits the weights of a structure."""
        kept, shape = self.kept(structure), uses(structure)
        if shape not in self.fitters:
            multiplied = inputs(structure)
            if not self.seen.keys() >= {*multiplied.values()}:
                exact, emitter = structure.program(meta, structure.plainly, kept)
                self.observe(exact, sites(exact, structure, emitter))
            self.fitters[shape] = Fitter({key: self.seen[value] for key, value in multiplied.items()}, self.own,
                                         self.directions)
        return self.fitters[shape]

    def settle(self) -> None:
        """Programs are chosen: what their weights were fitted to, which is as large as the largest of them, is let
        go."""
        for each in (self.seen, self.directions, self.fitters): each.clear()

    def observe(self, exact: Program, found: Sequence[Site]) -> None:
        """What weights are multiplied by, as far as no program before had the same value."""
        names = {site.value: site.x for site in found if site.x and site.value not in self.seen}
        seen = observe(exact, [*names.values()], self.fit)
        self.seen |= {value: seen[name] for value, name in names.items()}


def keys(lowering: Lowering, cls: int) -> Iterator[str]:
    """The contents of the leaves that a weight is made of."""
    return (data.key for data in lowering.arrays(cls))


def summed(sets: Sequence[Sequence[Method]]) -> Iterator[Method]:
    """The methods that were measured for every set, each with the sum of its errors."""
    errors: dict[Method, list[float]] = {}
    for methods in sets:
        for method in methods:
            errors.setdefault(method._replace(error=0.0), []).append(method.error)
    return (method._replace(error=sum(each)) for method, each in errors.items() if len(each) == len(sets))


def uses(structure: Structure) -> tuple[Any, ...]:
    """The border states and the uses of weights of a program, whatever they are stored by."""
    return (*structure.route, *((number, node.cls) for number, extraction in zip(structure.numbers,
                                                                                 structure.extractions, strict=True)
                                for node in extraction.nodes if isinstance(node.cls, Use)))


def inputs(structure: Structure) -> dict[WeightKey, Source]:
    """What a program multiplies each weight by."""
    found = {}
    for number, extraction, lowering in zip(structure.numbers, structure.extractions, structure.lowerings, strict=True):
        for use in (node.cls for node in extraction.nodes if isinstance(node.cls, Use)):
            if use.layout != "stack" and not lowering.gathers(use):
                found[number, use.weight, use.layout] = number, structure.before(number), use.x
    return found


def chosen_methods(structure: Structure) -> Iterator[Method]:
    """The method of every weight of a program."""
    return (node.label for extraction in structure.extractions for node in extraction.nodes
            if isinstance(node.cls, Use) and isinstance(node.label, Method))


def methods(site: Site, numbers: np.ndarray, seen: Seen | None, prices: Prices | Mean, limits: Limits) -> Proposals:
    """What the spectra propose for a weight, and the cost repays, in the metric of its inputs' norms: the model itself
    says later what each really costs. A table that is gathered from may be stored narrower. Spectra look at some of the
    columns of a weight that is far wider than high."""
    if site.x is None:
        def gathered(name: str, parameters: dict[str, Any], n: int, p: int) -> tuple[float, float]:
            return prices.gathered(p), stored_bytes(name, n, p, tuple(parameters.items()))
        sample = propose(numbers[:SAMPLED_ROWS], None, limits, gathered)
        return Proposals(tuple(each for each in sample if FORMATS[each.method].rowwise))
    n, p = numbers.shape

    def price(name: str, parameters: dict[str, Any], *_: int) -> tuple[float, float]:
        key = tuple(parameters.items())
        return prices.linear(name, n, p, key), stored_bytes(name, n, p, key)
    some = numbers[:, ::-(-p // most)] if p > (most := max(COLUMNS, 2 * n)) else numbers
    return propose(some, None if seen is None else seen.diagonal, limits, price)


def shareable(site: Site, numbers: np.ndarray, limits: Limits) -> Iterator[Method]:
    """What a product may store a table by that rows can be gathered from: whether it pays is up to all uses
    together."""
    for name, form in FORMATS.items():
        if site.x is None and form.panelled and form.proposed:
            found = (Method(name, tuple(options.items())) for options in form.choices(*numbers.T.shape))
            yield from (method for method in found if keeps_width(method, limits.narrowest))


def propose_methods(space: Space, structure: Structure, program: Program, emitter: Emitter,
                    representable: Representable, fit: Batch,
                    batch: Batch, limits: Limits, progress: Callable[[int, int], None] = lambda done, of: None,
                    own: Sequence[Approximation] = ()) -> Choices:
    """Proposes methods for every weight of an exact structure, fitted to the rows `fit`, and measures each alone: the
    relative change of the output on the rows of `batch`. What was measured before for the same program, rows, limits
    and prices is recalled, but of none that computes functions of one's own, which may be others next time. `own` are
    approximations that a user declared: these are proposed for every weight, and never recalled. Where no error is
    allowed nothing is proposed."""
    choices = Choices(space, {}, fit, representable, {each.name: each for each in own},
                      fitted={structure.route: WeakValueDictionary(emitter.fitted)})
    if not limits.error: return choices
    found, prices = sites(program, structure, emitter), space.prices
    batch = sample(program, batch, len(found) * limits.most)
    file = errors_file(program, (fit, batch), limits, prices)
    lasting = not own and not any(own_functions(step.attributes) for step in program.steps)
    if (measured := recall(file, [site.name for site in found]) if lasting else None) is None:
        choices.observe(program, found)
        fitting = Fitter({each.key: choices.seen[each.value] for each in found if each.x}, choices.own)
        measured = proposed(program, found, prices, batch, limits, fitting, progress)
        if lasting:
            save_errors(file, measured)
    for site in found:
        leaves = frozenset(keys(structure.lowering(site.part), site.stored.weight))
        choices.measured.setdefault(leaves, measured[site.name])
    return choices


def proposed(program: Program, found: Sequence[Site], prices: Prices | Mean, batch: Batch, limits: Limits,
             fitter: Fitter,
             progress: Callable[[int, int], None]) -> Measured:
    """The methods that spectra propose for each weight, with the squared error that each alone brings about. Weights
    are met in the order in which the program reads them: what comes before one is computed once for all, and nothing is
    kept of it afterwards."""
    wanted, values = program.run(batch), list[Any]()
    measured: Measured = {}
    for done, (first, site) in enumerate(sorted(((site.readers(program)[0], site) for site in found),
                                                key=lambda pair: pair[0])):
        progress(done, len(found))
        if site.name in measured: continue
        for _ in program.schedule.walk(batch, values, first): pass
        numbers = site.numbers()
        offered = methods(site, numbers, fitter.seen.get(site.key), prices, limits)
        own = [method for each in fitter.own.values() if site.x for method in each.methods(numbers)
               if keeps_width(method, limits.narrowest)]
        tried = [*(Method(each.method, tuple(each.parameters.items()), each.fit) for each in offered), *own,
                 *shareable(site, numbers, limits)]
        rows = slice(None) if site.x else gathered_rows(site, program, batch)
        outputs = changed(program, site, [partial(stored_for, site, numbers, fitter, each, rows) for each in tried],
                          values, batch)
        measured[site.name] = [each._replace(error=difference(rows, wanted) ** 2 / site.products)
                               for each, rows in zip(tried, outputs, strict=True)]
        fitter.directions.clear()
    progress(len(found), len(found))
    return measured


def undominated(points: Sequence[Structure]) -> Iterator[Structure]:
    """Points that no other is at least as good as in time, memory and error."""
    seen: list[Structure] = []
    for point in sorted(points, key=lambda e: (e.time, e.memory, e.error)):
        if not any(o.time <= point.time * 1.001 and o.memory <= point.memory * 1.001
                   and o.error <= point.error * 1.001 + 1e-18 for o in seen):
            seen.append(point)
            yield point
