"""Prices of both sides of a law on machines, at a few sizes: a law whose sides cost the same everywhere saves nothing,
whatever stands around it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isclose
from typing import NamedTuple

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.extents import collect_needs
from opmatrix.algebra.operators import product, weight
from opmatrix.algebra.positions.patterns import causal, everyone, sequence
from opmatrix.algebra.term import Operator
from rewrites.discovery.fingerprints import DrawnValues
from rewrites.discovery.stated_laws import Situation, make_batch, resize_sort
from rewrites.extraction import Infeasible
from rewrites.laws.law import INPUT, Law, Sort, h, k, matrix, n, operator, p, q
from rewrites.lowering.lower import plainly
from rewrites.lowering.price import TimeModel, name_machine
from rewrites.search.search import SearchSpace, cheapest

SAME_PRICE = 1e-6  # relative
PRICED_AT = (
    Situation("as columns become fewer", {h: 4, k: 32, n: 256, p: 64, q: 64}, (64, 64)),
    Situation("as columns become more", {h: 4, k: 32, n: 64, p: 256, q: 64}, (64, 64)),
    Situation("at one row", {h: 4, k: 32, n: 64, p: 64, q: 64}, (1,)),
)
PLAIN_ATTRIBUTES = {
    "over": (monoids.sum, monoids.mean, monoids.softmax),
    "where": (sequence, everyone, causal),
}  # attributes that every machine has kernels for


class SidePrice(NamedTuple):
    """The predicted seconds of both sides of a law, each by the cheapest kernels of the side as it is written."""

    machine: str
    words: str
    left: float
    right: float

    @property
    def same(self) -> bool:
        """True if both sides cost the same."""
        return isclose(self.left, self.right, rel_tol=SAME_PRICE)


@dataclass(frozen=True)
class SidePricer:
    """Machines on which the sides of laws are priced."""

    machines: Sequence[TimeModel]
    seed: int = 0

    def pays(self, law: Law) -> bool:
        """True if the sides of a law differ in price on some machine at some size, or have no price at all."""
        priced = False
        for one in self.price(law):
            if not one.same:
                return True
            priced = True
        return not priced

    def price(self, law: Law) -> Iterator[SidePrice]:
        """Yield the prices of a law on each machine at each size. Sizes at which a side has no program are left out."""
        for situation in PRICED_AT:
            for variables in self.draw(law, situation):
                yield from self.price_at(law, situation, variables)

    def draw(self, law: Law, situation: Situation) -> Iterator[DrawnValues]:
        """Yield variables of a law at the sizes of a situation, operators as general as their sorts and then matrices,
        once for each plain monoid and pattern with the flags of its sort."""
        sorts = {name: resize_sort(sort, situation.sizes) for name, sort in law.variables.items()}
        matrices = {name: as_matrix(sort) for name, sort in sorts.items()}
        options = {name: list_plain(sort) for name, sort in sorts.items() if sort.name in PLAIN_ATTRIBUTES}
        for drawn_as in (sorts, matrices)[: 1 + (matrices != sorts)]:
            for number in range(max(map(len, options.values()), default=1)):
                drawn = law.drawn(np.random.default_rng(self.seed), **drawn_as)
                yield drawn | {name: some[number % len(some)] for name, some in options.items() if some}

    def price_at(self, law: Law, situation: Situation, variables: DrawnValues) -> Iterator[SidePrice]:
        """Yield the prices of a law over these variables on each machine."""
        batch = make_batch(situation.lengths)
        try:
            left, right = (as_rows(sides[0]) for sides in law.of(variables))
            spaces = [
                SearchSpace(side, (), self.machines[0], batch.extents(*collect_needs(side))) for side in (left, right)
            ]
            for machine in self.machines:
                yield SidePrice(name_machine(machine), situation.words, *(price_on(one, machine) for one in spaces))
        except (InputError, Infeasible, TypeError, ValueError, LookupError):
            return


def as_matrix(sort: Sort) -> Sort:
    """Return the sort of a matrix for that of any operator; other sorts as they are."""
    return replace(matrix, sizes=sort.sizes) if sort == replace(operator, sizes=sort.sizes) else sort


def list_plain(sort: Sort) -> list[object]:
    """Return the plain monoids or patterns that have the flags of a sort."""
    return [one for one in PLAIN_ATTRIBUTES[sort.name] if all(getattr(one, str(flag), False) for flag in sort.sizes)]


def as_rows(term: Operator) -> Operator:
    """Return a term as rows of a batch: an array of other rows behind a factor for each row."""
    rows = term.out.rows
    return term if not isinstance(rows, int) else product(weight(np.ones((INPUT, rows))), term)


def price_on(space: SearchSpace, machine: TimeModel) -> float:
    """Return the predicted seconds of the cheapest program of a space on a machine."""
    there = SearchSpace(space.model, (), machine, space.extents, elsewhere=space)
    return cheapest(there, plainly).time
