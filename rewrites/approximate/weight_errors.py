"""What each method of a weight alone does to the output: spectra propose methods, the exact program says what each
costs in error."""
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf

import numpy as np

from formats import FORMATS, can_stack
from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime.program import Program
from opmatrix.spectra import Limits, propose
from opmatrix.spectra.propose import Failed, Proposals
from rewrites.approximate.error_cache import Measured
from rewrites.approximate.sites import WeightSite, gathered_rows, stored_for
from rewrites.approximate.trials import FloatRows, Trials, try_weights
from rewrites.egraph.attempts import Attempts
from rewrites.lowering.lower import TURNED, Method
from rewrites.lowering.mixed import Mean
from rewrites.lowering.price import Prices, stored_bytes
from rewrites.lowering.representations import keeps_width
from rewrites.search.fit import Fitter, head_squares
from rewrites.verify.differences import difference

SAMPLED_ROWS = 512                                          # rows of a table that spectra look at
COLUMNS = 4096                                              # of a wide weight that spectra look at, or twice its rows


@dataclass
class WeightTrials(Trials[Method]):
    """The methods of one weight, tried on a batch in the program that reads it. `wanted` is the program's output,
    `values` are those of the steps before the first that reads the weight. Rows are routed by their own scores, as
    where the error of a program is stated."""

    program: Program
    site: WeightSite
    prices: Prices | Mean
    limits: Limits
    fitter: Fitter
    batch: Batch
    wanted: FloatRows
    values: Sequence[FloatRows | None]
    attempts: Attempts

    @cached_property
    def numbers(self) -> np.ndarray:
        """The weight in float64, while it is tried."""
        return self.site.numbers()

    def candidates(self) -> list[Method]:
        """What spectra propose, what approximations of a user's make of a weight that is multiplied by, and what a
        product may store a table by."""
        found = list[Method]()
        with self.attempts.leave_out(f"{self.site.name}, all that spectra propose"):
            proposals = self.proposals()
            found += [Method(each.method, tuple(each.parameters.items()), each.fit) for each in proposals]
            self.attempts.failed += [f"{self.site.name}, {each}: it is left out: {each.reason}"
                                     for each in proposals.rejected if isinstance(each, Failed)]
        for own in self.fitter.own.values() if self.site.x and not self.site.heads else ():     # it takes a matrix
            with self.attempts.leave_out(f"{self.site.name}, {own.name}"):
                found += [each for each in own.methods(self.numbers) if keeps_width(each, self.limits.narrowest)]
        return [*found, *self.shareable(), *self.in_blocks()]

    def measure_errors(self, most: float = inf) -> list[Method]:
        """Each with the squared error that it alone brings about, a share of it for each product that reads the weight;
        those that change the output by at most `most`, relative."""
        rows = slice(None) if self.site.x else gathered_rows(self.site, self.program, self.batch)
        return [each._replace(error=change ** 2 / self.site.products)
                for each, change in self.list_changes(self.candidates(), rows) if not change > most]

    def list_changes(self, tried: Sequence[Method], rows: slice | np.ndarray) -> list[tuple[Method, float]]:
        """Each method with the relative change of the output that it brings about; one that fails is left out. They are
        tried together, and one by one where that fails."""
        try: return [*zip(tried, self.find_changes(tried, rows), strict=True)]
        except Exception:
            found = list[tuple[Method, float]]()
            for each in tried:
                with self.attempts.leave_out(f"{self.site.name}, {each}"):
                    [change] = self.find_changes([each], rows)
                    found.append((each, change))
            return found

    def find_changes(self, tried: Sequence[Method], rows: slice | np.ndarray) -> list[float]:
        """The relative change of the output by each method. Raises ValueError where it is no number."""
        stored = [partial(stored_for, self.site, self.numbers, self.fitter, each, rows) for each in tried]
        outputs = try_weights(self.program, self.site, stored, self.values, self.batch)
        changes = [difference(rows, self.wanted) for rows in outputs]
        if np.isnan(changes).any(): raise ValueError("what the program gives with it is not finite")
        return changes

    def proposals(self) -> Proposals:
        """What the spectra propose, and the cost repays, in the metric of its inputs' norms: the model itself says
        later what each really costs. A table that is gathered from may be stored narrower. Spectra look at some of the
        columns of a weight that is far wider than high."""
        numbers, prices = self.numbers, self.prices
        if self.site.x is None:
            def price_rows(name: str, parameters: Mapping[str, Hashable], n: int, p: int) -> tuple[float, float]:
                return prices.gathered(p), stored_bytes(name, n, p, tuple(parameters.items()))
            sampled = propose(numbers[:SAMPLED_ROWS], None, self.limits, price_rows)
            return Proposals(tuple(each for each in sampled if FORMATS[each.method].rowwise))
        if self.site.heads: return self.head_proposals()
        n, p = numbers.shape

        def price(name: str, parameters: Mapping[str, Hashable], *_: int) -> tuple[float, float]:
            key = tuple(parameters.items())
            return prices.linear(name, n, p, key), stored_bytes(name, n, p, key)
        seen = self.fitter.seen.get(self.site.key)
        return propose(some_columns(numbers), None if seen is None else seen.diagonal, self.limits, price)

    def head_proposals(self) -> Proposals:
        """What the matrices of heads, side by side, propose for all of them: formats that can be stacked."""
        (heads, n, p), prices = self.numbers.shape, self.prices
        most = next((most for use, most in self.site.lowering.routed.items() if use.weight == self.site.stored.weight),
                    None)                                   # matrices that a row names

        def price(name: str, parameters: Mapping[str, Hashable], *_: int) -> tuple[float, float]:
            return prices.stack(name, heads, n, p, tuple(parameters.items()), most=most)
        squares = head_squares(self.fitter.seen.get(self.site.key), self.numbers)
        formats = [name for name, form in FORMATS.items() if can_stack(form)]
        beside = some_columns(self.numbers.swapaxes(0, 1).reshape(n, -1))
        return propose(beside, None if squares is None else squares.mean(0), self.limits, price, formats)

    def in_blocks(self) -> Iterator[Method]:
        """What keeps the blocks of the weight's file and rounds what they multiply; of a table what a product may
        share."""
        how = self.site.stored.layout if self.site.x else TURNED
        blocks = self.site.lowering.filed(self.site.stored.weight, how)
        for method in map(Method, FORMATS) if blocks and not self.site.heads else ():
            form = FORMATS[method.format]
            if form.rounds and form.filed == blocks[0].dtype and (self.site.x or form.panelled) and keeps_width(
                    method, self.limits.narrowest): yield method

    def shareable(self) -> Iterator[Method]:
        """What a product may store a table by that rows can be gathered from: whether it pays is up to all uses
        together."""
        for name, form in FORMATS.items():
            if self.site.x is None and form.panelled and form.proposed:
                found = (Method(name, tuple(options.items())) for options in form.choices(*self.numbers.T.shape))
                yield from (method for method in found if keeps_width(method, self.limits.narrowest))


def some_columns(numbers: np.ndarray) -> np.ndarray:
    """A weight, or, where it is far wider than high, some of its columns."""
    n, p = numbers.shape
    return numbers[:, ::-(-p // most)] if p > (most := max(COLUMNS, 2 * n)) else numbers


def measure_weights(program: Program, sites: Sequence[WeightSite], prices: Prices | Mean, batch: Batch, limits: Limits,
                    fitter: Fitter, progress: Callable[[int, int], None], attempts: Attempts) -> Measured:
    """The methods of every weight with their errors. Weights are met in the order in which the program reads them: what
    comes before one is computed once for all, and nothing is kept of it afterwards."""
    wanted, values = program.run(batch), list[FloatRows | None]()
    measured: Measured = {}
    for done, site in enumerate(sorted(sites, key=lambda site: site.readers(program)[0])):
        progress(done, len(sites))
        if site.name in measured: continue
        for _ in program.schedule.walk(batch, values, site.readers(program)[0]): pass
        trials = WeightTrials(program, site, prices, limits, fitter, batch, wanted, values, attempts)
        measured[site.name] = trials.measure_errors()
        fitter.directions.clear()
    progress(len(sites), len(sites))
    return measured
