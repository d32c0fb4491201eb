"""Approximations: spectra propose them for every weight of the exact program, the model itself says what each costs in error,
and a search over whole programs chooses structure and methods within budgets of error and memory."""
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from formats import FORMATS, Dense
from opmatrix.patterns import Batch
from opmatrix.program import Program
from opmatrix.spectra import Gram, Limits, propose
from opmatrix.spectra.propose import Proposals
from rewrites.approximation import Approximation
from rewrites.compiler.emit import Emitter
from rewrites.compiler.fit import Fitter, Key
from rewrites.compiler.lower import TURNED, Lowering, Method, Stored, Use
from rewrites.compiler.mixed import Mean
from rewrites.compiler.narrowing import narrowed
from rewrites.compiler.price import Prices, stored_bytes
from rewrites.compiler.representations import Representable, wide
from rewrites.compiler.search import Space, Structure
from rewrites.front.budgets import Budgets
from rewrites.front.remember import Measured, keep, place, recall

DRAWS = 1000                                                # of sentences, to say how an error varies
SAMPLE = 512                                                # rows of a table that spectra look at
CHANGED = "changed"                                         # name of a constant that is tried instead of another
RIDGE = 0.1                                                 # share of the energy of the rows that is spread over all directions


Source = tuple[int, str, int]                               # a value of any program: its part, the border state before it, its class


@dataclass(frozen=True)
class Site:
    """A weight where a program reads it: the constant's name, its class in its part, what it multiplies (a value's
    name, or none for a table that is gathered from, and the value that this is in any program), its float64 numbers; whether the leaf
    stands elsewhere, too, and how many products read the constant."""

    constant: str
    part: int
    stored: Stored
    x: str | None
    value: Source
    matrix: np.ndarray
    tied: bool = False
    products: int = 1

    @property
    def name(self) -> str:
        """Of what is measured: a constant from which rows are gathered is another thing than the same one multiplied by."""
        return f"{self.constant} gathered" if self.stored.layout == TURNED else self.constant

    @property
    def key(self) -> tuple[int, int, str]:
        return self.part, self.stored.weight, self.stored.layout


@dataclass
class Choices:
    """All programs of a space where a weight may be stored by what was `measured` for the leaves that it is made of, each
    method with the squared error that it alone brings about."""

    space: Space
    measured: dict[frozenset[str], Sequence[Method]]
    fit: Batch
    representable: Representable
    own: dict[str, Approximation] = field(default_factory=dict)
    grams: dict[Source, Gram] = field(default_factory=dict)  # of what programs multiply weights by
    fitters: dict[Any, Fitter] = field(default_factory=dict)
    fitted: dict[Any, dict[Any, Any]] = field(default_factory=dict)

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
        return *exact, *(method for method in own if not lowering.gathers(use) or lowering.gatherable(use, method))

    def choose(self, error: float, memory: float | None = None, weights: tuple[float, float, float] = (1, 0, 0),
               prove: bool = False) -> Structure:
        """The cheapest program whose errors, squared, add to at most `error` squared. Raises Infeasible. Where nothing is to
        be proved its bound is none."""
        return self.budgets.within(error ** 2, memory, weights, gap=1e-3 if prove else inf)

    def program(self, structure: Structure, meta: dict[str, Any]) -> Program:
        """A structure with its methods, fitted to what its exact program multiplies each weight by."""
        found = self.emitted(structure, meta)[0]
        return narrowed(found, self.space.prices)

    def emitted(self, structure: Structure, meta: dict[str, Any]) -> tuple[Program, Emitter]:
        """The same before its attention is narrowed, and where its constants come from."""
        kept, shape = self.fitted.setdefault(tuple(structure.path), {}), uses(structure)
        if shape not in self.fitters:
            multiplied = inputs(structure)
            if not self.grams.keys() >= {*multiplied.values()}:
                exact, emitter = structure.program(meta, lambda number, use, method: Method(), kept)
                self.observe(exact, sites(exact, structure, emitter))
            self.fitters[shape] = Fitter({key: self.grams[value] for key, value in multiplied.items()}, self.own)
        return structure.program(meta, fitted=kept, fitter=self.fitters[shape])

    def observe(self, exact: Program, found: Sequence[Site]) -> None:
        """What weights are multiplied by, as far as no program before had the same value."""
        names = {site.value: site.x for site in found if site.x and site.value not in self.grams}
        grams = observe(exact, [*names.values()], self.fit)
        self.grams |= {value: grams[name] for value, name in names.items()}


def keys(lowering: Lowering, cls: int) -> Iterator[str]:
    """The contents of the leaves that a weight is made of."""
    return (term.args[0].key for term in lowering.terms[cls].walk() if term.kind.name == "weight")


def summed(sets: Sequence[Sequence[Method]]) -> Iterator[Method]:
    """The methods that were measured for every set, each with the sum of its errors."""
    errors: dict[Method, list[float]] = {}
    for methods in sets:
        for method in methods:
            errors.setdefault(method._replace(error=0.0), []).append(method.error)
    return (method._replace(error=sum(each)) for method, each in errors.items() if len(each) == len(sets))


def uses(structure: Structure) -> tuple[Any, ...]:
    """The border states and the uses of weights of a program, whatever they are stored by."""
    return (*structure.path, *((number, node.cls) for number, extraction in enumerate(structure.extractions)
                               for node in extraction.nodes if isinstance(node.cls, Use)))


def inputs(structure: Structure) -> dict[Key, Source]:
    """What a program multiplies each weight by."""
    found = {}
    for number, (extraction, lowering) in enumerate(zip(structure.extractions, structure.lowerings, strict=True)):
        for use in (node.cls for node in extraction.nodes if isinstance(node.cls, Use)):
            if use.layout != "stack" and not lowering.gathers(use):
                found[number, use.weight, use.layout] = number, structure.path[number][0], use.x
    return found


def chosen(structure: Structure) -> Iterator[Method]:
    """The method of every weight of a program."""
    return (node.label for extraction in structure.extractions for node in extraction.nodes
            if isinstance(node.cls, Use) and isinstance(node.label, Method))


def sites(program: Program, structure: Structure, emitter: Emitter) -> list[Site]:
    """Every weight of a program and where it stands."""
    users: dict[str, list[str]] = {}                        # of a constant: what it multiplies, step by step
    for step in program.steps:
        if "x" in step.operands:
            for constant in step.operands.values(): users.setdefault(constant, []).append(step.operands["x"])
    counts, found = {constant: len(each) for constant, each in users.items()}, []
    for constant, part, stored, value in emitter.sources:
        lowering, before = structure.lowerings[part], structure.path[part][0]
        gathered = value in lowering.graph.facts["given"]
        x = None if gathered else users[constant].pop(0)
        found.append(Site(constant, part, stored, x, (part, before, value), lowering.matrix(stored.weight, stored.layout),
                          lowering.stands_elsewhere(stored.weight), 1 if gathered else counts[constant]))
    return found


def observe(program: Program, names: Sequence[str], batch: Batch) -> dict[str, Gram]:
    """XᵀX of each of these values on a batch, with a ridge: few rows say nothing of most directions, which is no reason to
    drop those."""
    wanted, found = set(names), dict[str, Gram]()
    if not wanted:
        return found
    for step, (_, _, value) in zip(program.steps, program.schedule.walk(batch), strict=True):
        if step.output in wanted:
            found[step.output] = ridged(Gram.of(value.reshape(len(value), -1), step.output))
    return found


def fitter(program: Program, found: Sequence[Site], batch: Batch, own: dict[str, Approximation]) -> Fitter:
    """What fits the weights of a program to the rows that it multiplies them by."""
    grams = observe(program, [site.x for site in found if site.x], batch)
    return Fitter({site.key: grams[site.x] for site in found if site.x}, own)


def ridged(gram: Gram) -> Gram:
    """A Gram with a share of its energy, which is its trace, spread over all directions."""
    return replace(gram, matrix=gram.matrix + RIDGE * np.trace(gram.matrix) / len(gram.matrix) * np.eye(len(gram.matrix)))


def difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """Relative change of a whole output: the Frobenius norm of the difference over that of the output."""
    return float(np.linalg.norm(np.asarray(found, np.float64) - wanted) / np.linalg.norm(wanted))


def surely(found: np.ndarray, wanted: np.ndarray, starts: np.ndarray) -> float:
    """What such a change of the output stays below, but for one time in a thousand, on as many sentences drawn again from these
    (bootstrap: Efron 1979). `starts` are the offsets of sentences."""
    off, size = squares(found, wanted, starts)
    again = np.random.default_rng(0).integers(0, len(off), (DRAWS, len(off)))
    return float(np.quantile(np.sqrt(off[again].sum(1) / size[again].sum(1)), 0.999))


def squares(found: np.ndarray, wanted: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Squared Frobenius norms of the change and of the output, (S,) each: of every sentence by itself."""
    wanted = np.asarray(wanted, np.float64)
    off, size = (np.add.reduceat(np.square(rows.reshape(len(rows), -1)).sum(1), starts[:-1]) for rows in (found - wanted, wanted))
    return off, size


def methods(site: Site, gram: Gram | None, prices: Prices | Mean, limits: Limits) -> Proposals:
    """What the spectra propose for a weight, and the cost repays, in the metric of its inputs' norms: the model itself
    says later what each really costs. A table that is gathered from may be stored narrower."""
    def price(name: str, parameters: dict[str, Any], n: int, p: int) -> tuple[float, float]:
        key = tuple(parameters.items())
        if site.x is None:
            return prices.gathered(p), stored_bytes(name, n, p, key)
        return prices.linear(name, n, p, key), stored_bytes(name, n, p, key)
    if site.x is None:
        sample = propose(table(site)[:SAMPLE], None, limits, price)
        return Proposals(tuple(each for each in sample if FORMATS[each.method].rowwise))
    return propose(site.matrix, None if gram is None else np.diagonal(np.asarray(gram)), limits, price)


def shareable(site: Site, limits: Limits) -> Iterator[Method]:
    """What a product may store a table by that rows can be gathered from: whether it pays is up to both uses together."""
    for name, form in FORMATS.items():
        if site.x is None and site.tied and form.panelled and form.proposed:
            found = (Method(name, tuple(options.items())) for options in form.choices(*table(site).T.shape))
            yield from (method for method in found if wide(method, limits.narrowest))


def candidates(space: Space, structure: Structure, program: Program, emitter: Emitter, representable: Representable, fit: Batch,
               batch: Batch, limits: Limits, progress: Callable[[int, int], None] = lambda done, of: None,
               own: Sequence[Approximation] = ()) -> Choices:
    """Proposes methods for every weight of an exact structure, fitted to the rows `fit`, and measures each alone: the
    relative change of the output on the rows of `batch`. What was measured before for the same program, rows, limits and
    prices is recalled. `own` are approximations that a user declared: these are proposed for every weight, and never
    recalled."""
    found, prices = sites(program, structure, emitter), space.prices
    choices = Choices(space, {}, fit, representable, {each.name: each for each in own},
                      fitted={tuple(structure.path): emitter.fitted})
    file = place(program, (fit, batch), limits, prices)
    if (measured := None if own else recall(file, [site.name for site in found])) is None:
        choices.observe(program, found)
        fitting = choices.fitters[uses(structure)] = Fitter({each.key: choices.grams[each.value] for each in found if each.x}, choices.own)
        measured = proposed(program, found, prices, batch, limits, fitting, progress)
        if not own:
            keep(file, measured)
    for site in found:
        leaves = frozenset(keys(structure.lowerings[site.part], site.stored.weight))
        choices.measured.setdefault(leaves, measured[site.name])
    return choices


def proposed(program: Program, found: Sequence[Site], prices: Prices | Mean, batch: Batch, limits: Limits, fitter: Fitter,
             progress: Callable[[int, int], None]) -> Measured:
    """The methods that spectra propose for each weight, with the squared error that each alone brings about: what comes before a
    weight is computed once for all of its methods."""
    wanted, values = np.asarray(program.run(batch), np.float64), list[Any]()
    walk = program.schedule.walk(batch, values)
    proposals = [methods(site, fitter.grams.get(site.key), prices, limits) for site in found]  # in threads it took twice as long
    total, done = sum(map(len, proposals)), 0
    measured: Measured = {}
    for site, offered in sorted(zip(found, proposals, strict=True), key=lambda pair: begins(program, pair[0])):
        if site.name in measured: continue
        measured[site.name] = []
        while len(values) < begins(program, site): next(walk)
        own = [method for each in fitter.own.values() if site.x for method in each.methods(site.matrix) if wide(method, limits.narrowest)]
        own += shareable(site, limits)
        for method in (*(Method(each.method, tuple(each.parameters.items()), each.fit) for each in offered), *own):
            changed = otherwise(program, site, stored_for(site, fitter, method))
            error = difference(changed.schedule.resumed(values, batch), wanted) ** 2 / site.products
            measured[site.name].append(method._replace(error=error))
            done += 1
            progress(done, total)
    return measured


def table(site: Site) -> np.ndarray:
    """The rows that are gathered from a site."""
    return site.matrix.T if site.stored.layout == TURNED else site.matrix


def stored_for(site: Site, fitter: Fitter, method: Method) -> Any:
    """A site's weight by another method, as the step that reads it wants it; of a table the numbers alone matter."""
    if site.x is not None: return as_dense(fitter.store(site.matrix, method, site.key))
    turned = not FORMATS[method.format].rowwise
    numbers = fitter.store(table(site).T if turned else table(site), method, site.key).unpack()
    rows = numbers.T if turned else numbers
    return FORMATS["packed"].pack(rows.T) if site.stored.layout == TURNED else FORMATS["dense"].pack(rows)


def reads(site: Site, operand: str, constant: str) -> bool:
    """Whether an operand is the weight of a site, gathered from or multiplied by as the site says."""
    return constant == site.constant and operand.startswith("table") == (site.x is None)


def begins(program: Program, site: Site) -> int:
    """The first step that reads a site's weight."""
    return next(i for i, step in enumerate(program.steps) if any(reads(site, *each) for each in step.operands.items()))


def otherwise(program: Program, site: Site, stored: Any) -> Program:
    """The program where a site, and no other that reads the same constant in another way, has what is stored so."""
    steps = [replace(step, operands={operand: CHANGED if reads(site, operand, each) else each for operand, each in step.operands.items()})
             for step in program.steps]
    return Program(steps, {**program.constants, CHANGED: stored}, program.output)


def as_dense(stored: Any) -> Any:
    """The same numbers in the dense kernel, which is quick to measure errors with; what rounds x, too, as it is."""
    return stored if stored.rounds or stored.rowwise else FORMATS[Dense.name].pack(stored.unpack())


def undominated(points: Sequence[Structure]) -> Iterator[Structure]:
    """Points that no other is at least as good as in time, memory and error."""
    seen: list[Structure] = []
    for point in sorted(points, key=lambda e: (e.time, e.memory, e.error)):
        if not any(o.time <= point.time * 1.001 and o.memory <= point.memory * 1.001
                   and o.error <= point.error * 1.001 + 1e-18 for o in seen):
            seen.append(point)
            yield point
