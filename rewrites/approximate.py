"""Approximations of a chosen structure: spectra propose them, the model itself says what each costs in error, and a
program over all uses chooses them for a budget of error and memory."""
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from formats import FORMATS
from opmatrix.patterns import Batch
from opmatrix.program import Program
from opmatrix.spectra import Gram, Limits, propose
from opmatrix.spectra.propose import Proposals
from rewrites.approximation import Approximation
from rewrites.emit import Emitter
from rewrites.extraction import Extraction, Node, Problem, extract
from rewrites.fit import Fitter
from rewrites.lower import Method, Stored, Use
from rewrites.price import Prices, stored_bytes
from rewrites.remember import Measured, keep, place, recall
from rewrites.representations import forms
from rewrites.search import Structure

ROOT = "program"
RIDGE = 0.1                                                 # share of the energy of the rows that is spread over all directions


@dataclass(frozen=True)
class Site:
    """A weight where a program stores it: the constant's name, its class in its part, what it multiplies (a value's
    name, or none for a table that is gathered from), its float64 numbers."""

    constant: str
    part: int
    stored: Stored
    x: str | None
    matrix: np.ndarray

    @property
    def key(self) -> tuple[int, int, str]:
        return self.part, self.stored.weight, self.stored.layout


@dataclass
class Choices:
    """For every site the methods it may be stored by, each with seconds, bytes and the squared error it was measured
    at."""

    structure: Structure
    sites: list[Site]
    options: dict[tuple[int, int, str], list[tuple[Method, float, float]]]
    fitter: Fitter
    fitted: dict[Any, Any] = field(default_factory=dict)

    @property
    def fixed(self) -> tuple[float, float]:
        """Seconds and bytes of what no choice changes."""
        exact = [rows[0] for rows in self.options.values()]
        return (self.structure.time - sum(seconds for _, seconds, _ in exact),
                self.structure.memory - sum(size for _, _, size in exact))

    def problem(self) -> Problem:
        """A knapsack: one node for each method of each site, under one root."""
        nodes = [Node(ROOT, tuple(self.options), self.fixed[0], self.fixed[1])]
        nodes += [Node(key, (), seconds, size, method.error, method) for key, rows in self.options.items()
                  for method, seconds, size in rows]
        return Problem(nodes, (ROOT,))

    def choose(self, error: float, memory: float | None = None,
               weights: tuple[float, float, float] = (1, 0, 0)) -> Extraction:
        """The cheapest methods whose errors, squared, add to at most `error` squared. Raises Infeasible."""
        return extract(self.problem(), error=error ** 2, memory=memory, weights=weights, time_limit=2.0, gap=1e-4)

    def program(self, chosen: dict[Any, Node], meta: dict[str, Any]) -> Program:
        """The structure with these methods."""
        def decide(part: int, use: Use, method: Method) -> Method:
            node = chosen.get((part, use.weight, use.layout))
            return node.label if node is not None and isinstance(node.label, Method) else method
        return self.structure.program(meta, decide, self.fitted, self.fitter)[0]


def sites(program: Program, structure: Structure, emitter: Emitter) -> list[Site]:
    """Every weight of a program and where it stands."""
    users = {step.operands[name]: (step, name) for step in program.steps for name in step.operands}
    found = []
    for constant, (part, stored) in emitter.sources.items():
        step, name = users[constant]
        x = None if name.startswith("table") else step.operands["x"]
        found.append(Site(constant, part, stored, x, structure.lowerings[part].matrix(stored.weight, stored.layout)))
    return found


def upto(program: Program, name: str) -> Program:
    """The same program, ending at one of its values."""
    steps = program.steps[:1 + next(i for i, step in enumerate(program.steps) if step.output == name)]
    read = {ref for step in steps for ref in step.operands.values()}
    return Program(steps, {ref: constant for ref, constant in program.constants.items() if ref in read}, name)


def observe(program: Program, names: Sequence[str | None], batch: Batch) -> dict[str, Gram]:
    """XᵀX of each of these values on a batch, with a ridge: few rows say nothing of most directions, which is no reason to
    drop those."""
    return {name: Gram.of(ridged(upto(program, name).run(batch)), name) for name in dict.fromkeys(names) if name is not None}


def ridged(rows: np.ndarray) -> np.ndarray:
    """The rows, and below them a multiple of the identity with a share of their energy."""
    width = rows.shape[1]
    return np.vstack([rows, np.sqrt(RIDGE / width) * np.linalg.norm(rows) * np.eye(width, dtype=rows.dtype)])


def difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """Relative change of a whole output: the Frobenius norm of the difference over that of the output."""
    return float(np.linalg.norm(np.asarray(found, np.float64) - wanted) / np.linalg.norm(wanted))


def methods(site: Site, gram: Gram | None, prices: Prices, limits: Limits) -> Proposals:
    """What the spectra propose for a weight, and the cost repays, in the metric of its inputs' norms: the model itself
    says later what each really costs. A table that is gathered from may be stored narrower."""
    def price(name: str, parameters: dict[str, Any], n: int, p: int) -> tuple[float, float]:
        key = tuple(parameters.items())
        if site.x is None:
            return prices.machine.seconds("gather", T=prices.rows, p=p), stored_bytes(name, n, p, key)
        return prices.linear(name, n, p, key), stored_bytes(name, n, p, key)
    if site.x is None:
        sample = propose(site.matrix[:512], None, limits, price)
        return Proposals(tuple(each for each in sample if each.method == "half"))
    return propose(site.matrix, None if gram is None else np.diagonal(np.asarray(gram)), limits, price)


def candidates(program: Program, structure: Structure, emitter: Emitter, prices: Prices, fit: Batch, batch: Batch,
               limits: Limits, progress: Callable[[int, int], None] = lambda done, of: None,
               own: Sequence[Approximation] = ()) -> Choices:
    """Proposes methods for every weight, fitted to the rows `fit`, and measures each alone: the relative change of the
    output on the rows of `batch`. What was measured before for the same program, rows, limits and prices is recalled. `own`
    are approximations that a user declared: these are proposed for every weight, and never recalled."""
    found = sites(program, structure, emitter)
    grams = observe(program, [site.x for site in found], fit)
    fitter = Fitter({site.key: grams[site.x] for site in found if site.x}, own={each.name: each for each in own})
    file = place(program, (fit, batch), limits, prices)
    if (measured := None if own else recall(file)) is None:
        measured = proposed(program, found, grams, prices, batch, limits, fitter, progress)
        if not own:
            keep(file, measured)
    options = {}
    for site in found:
        exact = dict.fromkeys([site.stored.method, Method(), *(forms(site.matrix) if site.x else ())])
        options[site.key] = [(method, *own_price(site, method, prices)) for method in (*exact, *measured[site.constant])]
    return Choices(structure, found, options, fitter)


def proposed(program: Program, found: Sequence[Site], grams: dict[str, Gram], prices: Prices, batch: Batch, limits: Limits,
             fitter: Fitter, progress: Callable[[int, int], None]) -> Measured:
    """The methods that spectra propose for each weight, with the squared error that each alone brings about."""
    wanted = np.asarray(program.run(batch), np.float64)
    with ThreadPoolExecutor() as pool:
        proposals = list(pool.map(lambda site: methods(site, grams.get(site.x or ""), prices, limits), found))
    total, done = sum(map(len, proposals)), 0
    measured: Measured = {}
    for site, offered in zip(found, proposals, strict=True):
        measured[site.constant] = []
        declared = [method for each in fitter.own.values() if site.x for method in each.methods(site.matrix)]
        for method in (*(Method(each.method, tuple(each.parameters.items()), each.fit) for each in offered), *declared):
            stored = as_dense(fitter.store(site.matrix, method, site.key))
            changed = Program(program.steps, {**program.constants, site.constant: stored}, program.output)
            error = difference(changed.run(batch), wanted) ** 2
            measured[site.constant].append(method._replace(error=error))
            done += 1
            progress(done, total)
    return measured


def as_dense(stored: Any) -> Any:
    """The same numbers in the dense kernel, which is quick to measure errors with."""
    return stored if stored.name in ("dense", "half") else FORMATS["dense"].pack(stored.unpack())


def own_price(site: Site, method: Method, prices: Prices) -> tuple[float, float]:
    """Seconds and bytes of a site stored by a method."""
    n, p = site.matrix.shape
    size = stored_bytes(method.format, n, p, method.parameters)
    if site.x is None:
        return prices.machine.seconds("gather", T=prices.rows, p=p), size
    return prices.linear(method.format, n, p, method.parameters), size


def undominated(points: Sequence[Extraction]) -> Iterator[Extraction]:
    """Points that no other is at least as good as in time, memory and error."""
    seen: list[Extraction] = []
    for point in sorted(points, key=lambda e: (e.time, e.memory, e.error)):
        if not any(o.time <= point.time * 1.001 and o.memory <= point.memory * 1.001
                   and o.error <= point.error * 1.001 + 1e-18 for o in seen):
            seen.append(point)
            yield point
