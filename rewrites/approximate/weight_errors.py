"""The change of the output by each method of a weight alone: spectra propose methods, and the error of each is either
measured, by a run of the exact program's further steps, or predicted (predicted_errors.py)."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf

import numpy as np

from formats import FORMATS, can_stack
from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime.program import Constant, Program
from opmatrix.spectra import Limits, propose
from opmatrix.spectra.propose import Failed, Proposals
from rewrites.approximate.error_cache import Measured
from rewrites.approximate.sites import WeightSite, gathered_rows, stored_for
from rewrites.approximate.trials import FloatRows, Trials, sample, try_weights
from rewrites.egraph.attempts import Attempts
from rewrites.lowering.lower import TURNED, Method
from rewrites.lowering.mixed import Mean
from rewrites.lowering.price import Prices, stored_bytes
from rewrites.lowering.representations import keeps_width
from rewrites.search.fit import Fitter, head_squares
from rewrites.verify.differences import difference

MakeConstant = Callable[[], Constant]
ChangesOf = Callable[[Sequence[MakeConstant]], list[float]]
SAMPLED_ROWS = 512  # rows of a table that spectra read
COLUMNS = 4096  # least columns of a wide weight that spectra read


@dataclass(frozen=True)
class TriedWeights:
    """The weights of a program whose methods are tried: the sites, prices that a method must repay, rows for errors,
    limits of proposals, weights fitted to other rows, and failures. `notes` gets a line for errors that cannot be
    predicted."""

    program: Program
    sites: Sequence[WeightSite]
    prices: Prices | Mean
    batch: Batch
    limits: Limits
    fitter: Fitter
    attempts: Attempts
    notes: list[str] = field(default_factory=list)

    def sampled(self, trials: int) -> "TriedWeights":
        """Return the same with as many of the rows as so many trials can have: see `sample`."""
        return replace(self, batch=sample(self.program, self.batch, trials))

    def methods(self, site: WeightSite, changes: ChangesOf) -> list[Method]:
        """Return the methods of a site, each with the error that `changes` gives it. Several threads may do so for
        different sites."""
        alone = replace(self, fitter=replace(self.fitter, directions={}))
        return WeightTrials(alone, site, changes).measure_errors()


@dataclass
class WeightTrials(Trials[Method]):
    """The methods of one weight. `changes` maps weights as they would be stored, each a function that makes one, to the
    relative changes of the output."""

    of: TriedWeights
    site: WeightSite
    changes: ChangesOf

    @cached_property
    def numbers(self) -> np.ndarray:
        """The weight in float64, while it is tried; contiguous, as formats read it many times."""
        return np.ascontiguousarray(self.site.numbers())

    def candidates(self) -> list[Method]:
        """Return the methods that spectra propose, the methods of a user's approximations for a weight of a product,
        and the methods by which a product may store a table."""
        methods = list[Method]()
        with self.of.attempts.leave_out(f"{self.site.name}, all that spectra propose"):
            proposals = self.proposals()
            methods += [
                Method(proposal.method, tuple(proposal.parameters.items()), proposal.fit) for proposal in proposals
            ]
            self.of.attempts.failed += [
                f"{self.site.name}, {failure}: it is left out: {failure.reason}"
                for failure in proposals.rejected
                if isinstance(failure, Failed)
            ]
        # an approximation takes a matrix
        for approximation in self.of.fitter.own.values() if self.site.x and not self.site.heads else ():
            with self.of.attempts.leave_out(f"{self.site.name}, {approximation.name}"):
                methods += [
                    method
                    for method in approximation.methods(self.numbers)
                    if keeps_width(method, self.of.limits.narrowest)
                ]
        return [*methods, *self.shareable(), *self.in_blocks()]

    def measure_errors(self, most: float = inf) -> list[Method]:
        """Return the methods that change the output by at most `most`, relative, each with the squared error that it
        alone causes, divided by the number of products that read the weight."""
        rows = slice(None) if self.site.x else gathered_rows(self.site, self.of.program, self.of.batch)
        return [
            method._replace(error=change**2 / self.site.products)
            for method, change in self.list_changes(self.candidates(), rows)
            if not change > most
        ]

    def list_changes(self, tried: Sequence[Method], rows: slice | np.ndarray) -> list[tuple[Method, float]]:
        """Return each method with the relative change of the output that it causes; a method that fails is left out.
        They are tried together, and one by one where that fails."""
        try:
            return [*zip(tried, self.find_changes(tried, rows), strict=True)]
        except Exception:
            changes = list[tuple[Method, float]]()
            for method in tried:
                with self.of.attempts.leave_out(f"{self.site.name}, {method}"):
                    [change] = self.find_changes([method], rows)
                    changes.append((method, change))
            return changes

    def find_changes(self, tried: Sequence[Method], rows: slice | np.ndarray) -> list[float]:
        """Return the relative change of the output by each method. Raises ValueError where it is not finite."""
        stored = [partial(stored_for, self.site, self.numbers, self.of.fitter, method, rows) for method in tried]
        changes = self.changes(stored)
        if np.isnan(changes).any():
            raise ValueError("what the program gives with it is not finite")
        return changes

    def proposals(self) -> Proposals:
        """Return the methods that spectra propose, and whose cost pays, in the metric of its inputs' norms: the model
        itself measures the error later. A table that is gathered from may be stored in narrower numbers. Spectra read a
        sample of the columns of a weight that is far wider than high."""
        numbers, prices = self.numbers, self.of.prices
        if self.site.x is None:

            def price_rows(name: str, parameters: Mapping[str, Hashable], n: int, p: int) -> tuple[float, float]:
                """Return the seconds of gathering rows, and the bytes of the table in this format."""
                return prices.gathered(p), stored_bytes(name, n, p, tuple(parameters.items()))

            sampled = propose(numbers[:SAMPLED_ROWS], None, self.of.limits, price_rows)
            return Proposals(tuple(proposal for proposal in sampled if FORMATS[proposal.method].rowwise))
        if self.site.heads:
            return self.head_proposals()
        n, p = numbers.shape

        def price(name: str, parameters: Mapping[str, Hashable], *_: int) -> tuple[float, float]:
            """Return the seconds of the product, and the bytes of the weight in this format."""
            key = tuple(parameters.items())
            return prices.linear(name, n, p, key), stored_bytes(name, n, p, key)

        seen = self.of.fitter.seen.get(self.site.key)
        return propose(some_columns(numbers), None if seen is None else seen.diagonal, self.of.limits, price)

    def head_proposals(self) -> Proposals:
        """Return the methods that the matrices of heads, side by side, propose for all of them: formats that can be
        stacked."""
        (heads, n, p), prices = self.numbers.shape, self.of.prices
        most = next(
            (most for use, most in self.site.lowering.routed.items() if use.weight == self.site.stored.weight), None
        )  # most matrices that a row names

        def price(name: str, parameters: Mapping[str, Hashable], *_: int) -> tuple[float, float]:
            """Return the seconds and the bytes of the stack of all heads in this format."""
            return prices.stack(name, heads, n, p, tuple(parameters.items()), most=most)

        squares = head_squares(self.of.fitter.seen.get(self.site.key), self.numbers)
        formats = [name for name, form in FORMATS.items() if can_stack(form)]
        beside = some_columns(self.numbers.swapaxes(0, 1).reshape(n, -1))
        return propose(beside, None if squares is None else squares.mean(0), self.of.limits, price, formats)

    def in_blocks(self) -> Iterator[Method]:
        """Yield the methods that keep the blocks of the weight's file and round its inputs; for a table the methods
        that a product may share."""
        how = self.site.stored.layout if self.site.x else TURNED
        block = self.site.lowering.block_type(self.site.stored.weight, how)
        for method in map(Method, FORMATS) if block is not None and not self.site.heads else ():
            form = FORMATS[method.format]
            if (
                form.rounds
                and form.filed == block
                and (self.site.x or form.panelled)
                and keeps_width(method, self.of.limits.narrowest)
            ):
                yield method

    def shareable(self) -> Iterator[Method]:
        """Yield the methods by which a product may store a table and rows can be gathered from it: the costs of all
        uses together decide."""
        for name, form in FORMATS.items():
            if self.site.x is None and form.panelled and form.proposed:
                methods = (Method(name, tuple(options.items())) for options in form.choices(*self.numbers.T.shape))
                yield from (method for method in methods if keeps_width(method, self.of.limits.narrowest))


def some_columns(numbers: np.ndarray) -> np.ndarray:
    """Return a weight, or, where it is far wider than high, some of its columns."""
    n, p = numbers.shape
    return numbers[:, :: -(-p // most)] if p > (most := max(COLUMNS, 2 * n)) else numbers


def measure_changes(
    program: Program,
    site: WeightSite,
    batch: Batch,
    wanted: FloatRows,
    values: Sequence[FloatRows | None],
    stored: Sequence[MakeConstant],
) -> list[float]:
    """Return the relative change of the output `wanted` by each of these in place of a site's weight, given the values
    of the steps before the first that reads it. Rows are routed by their own scores, as where the error of a program is
    stated."""
    return [difference(rows, wanted) for rows in try_weights(program, site, stored, values, batch)]


def measure_weights(tried: TriedWeights, progress: Callable[[int, int], None]) -> Measured:
    """Return the methods of every weight with their measured errors. Weights are visited in the order in which the
    program reads them: the steps before one run once for all its methods, and their values are released afterwards."""
    tried = tried.sampled(len(tried.sites) * tried.limits.most)
    program, batch, sites = tried.program, tried.batch, tried.sites
    wanted, values = program.run(batch), list[FloatRows | None]()
    measured: Measured = {}
    for done, site in enumerate(sorted(sites, key=lambda site: site.readers(program)[0])):
        progress(done, len(sites))
        if site.name in measured:
            continue
        for _ in program.schedule.walk(batch, values, site.readers(program)[0]):
            pass
        measured[site.name] = tried.methods(site, partial(measure_changes, program, site, batch, wanted, values))
    progress(len(sites), len(sites))
    return measured
