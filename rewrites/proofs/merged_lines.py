"""A line of a product over a monoid, merged by the flags of the monoid, or by its definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from opmatrix.algebra import monoids
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.nodes import exp, reciprocal
from opmatrix.algebra.operators import relu
from opmatrix.algebra.shapes import LiveSize
from rewrites.proofs.function_forms import INNER, LOGARITHM, ZERO_OR_RECIPROCAL
from rewrites.proofs.ordered_forms import OrderedForms, outer, shared_terms
from rewrites.proofs.polynomials import GaveUp, IndexTuple, Polynomial, as_polynomial


@dataclass(frozen=True)
class MergedLine:
    """A row of the left side and a column of the right side, in pieces of these sizes along the inner index, and the
    part of it that is `seen`. If the left side holds entries of a relation, zeros are `absent`."""

    functions: OrderedForms
    sizes: tuple[LiveSize, ...]
    left: Sequence[Polynomial]
    right: Sequence[Polynomial]
    seen: Polynomial | None
    absent: bool = False

    def over(self, monoid: type[Monoid]) -> Polynomial:
        """Merge the line by a monoid."""
        if monoid.ordinary:
            return self.summed(self.seen_of(self.products()))
        if monoid.right_linear:
            return self.weighed(monoid)
        if self.absent or self.seen is not None or monoid not in MERGED:
            return self.opaque(monoid)
        return MERGED[monoid](self)

    # ---- parts

    def products(self) -> list[Polynomial]:
        """Return the product of the entries of both sides, piece by piece."""
        return [self.functions.ring.multiply(a, b) for a, b in zip(self.left, self.right, strict=True)]

    def seen_of(self, line: Sequence[Polynomial]) -> list[Polynomial]:
        """Return the entries of a line that are seen, zeros elsewhere."""
        return [*line] if self.seen is None else [self.functions.ring.multiply(self.seen, p) for p in line]

    def summed(self, line: Sequence[Polynomial]) -> Polynomial:
        """Sum a line over the inner index, pieces of one entry as they are."""
        ring = self.functions.ring
        pairs = zip(self.sizes, line, strict=True)
        return ring.add(*(p if size == 1 else ring.summed(p, INNER, size) for size, p in pairs))

    def of_each(self, f: Any) -> list[Polynomial]:
        """Apply a function to each product."""
        return [self.functions.apply(f, p) for p in self.products()]

    # ---- over monoids

    def weighed(self, monoid: type[Monoid]) -> Polynomial:
        """Return a sum of the right side's entries, weighted by functions of the left side. Where weights sum to one,
        what all entries have is added afterwards."""
        weights = self.weights(monoid)
        ring = self.functions.ring
        shared = shared_terms(self.right) if monoid.normalised and self.is_never_empty() else Polynomial({})
        minus = shared.scaled(Fraction(-1))
        right = [ring.add(p, minus) for p in self.right]
        return ring.add(shared, self.summed([ring.multiply(a, b) for a, b in zip(weights, right, strict=True)]))

    def is_never_empty(self) -> bool:
        """True if each row sees an entry, for certain."""
        if self.absent or self.seen is None:
            return not self.absent
        sees = self.functions.single(self.seen)
        return sees is not None and bool(sees[0].content[1].reflexive)

    def weights(self, monoid: type[Monoid]) -> list[Polynomial]:
        """Return the weights of the right side's entries. Raises GaveUp for a monoid that is linear on both sides."""
        functions, ring = self.functions, self.functions.ring
        if self.absent:
            return self.atoms(monoid, self.left)
        if monoid is monoids.softmax:
            powers = self.seen_of([functions.power(p) for p in self.left])
            mass = self.summed(powers)
            f = reciprocal if self.seen is None else ZERO_OR_RECIPROCAL
            share = functions.inverse(f, mass)
            return [ring.multiply(p, share) for p in powers]
        if monoid is monoids.mean and self.seen is not None:
            seen = self.seen_of([as_polynomial(1)] * len(self.sizes))
            share = functions.inverse(ZERO_OR_RECIPROCAL, self.summed(seen))
            return [ring.multiply(ring.multiply(a, b), share) for a, b in zip(self.left, seen, strict=True)]
        if monoid is monoids.mean:
            return [ring.multiply(p, self.one_over_size()) for p in self.left]
        line = [*self.left]
        if monoid.shift_invariant:
            line = self.unshifted(line)
        if monoid.linear:
            raise GaveUp(f"a product over {monoid.__name__} that is linear on both sides")
        return self.atoms(monoid, line)

    def atoms(self, monoid: type[Monoid], line: Sequence[Polynomial]) -> list[Polynomial]:
        """Return weights without a known form."""
        return [
            self.atom(("weights", monoid, self.absent, j), line, (INNER,) if size != 1 else ())
            for j, size in enumerate(self.sizes)
        ]

    def atom(self, content: tuple[Any, ...], line: Sequence[Polynomial], more: IndexTuple = ()) -> Polynomial:
        """Make an atom of the whole line, and of the pattern by which it is seen."""
        whole = [*line, *(() if self.seen is None else (self.seen,))]
        return self.functions.of_lines((*content, *map(str, self.sizes), len(whole)), whole, outer(whole), more=more)

    def unshifted(self, line: list[Polynomial]) -> list[Polynomial]:
        """Return the line without terms that are added to all of it."""
        minus = shared_terms(line).scaled(Fraction(-1))
        return [self.functions.ring.add(p, minus) for p in line]

    def one_over_size(self) -> Polynomial:
        """Return one over the number of merged entries."""
        return self.functions.inverse(reciprocal, self.summed([as_polynomial(1)] * len(self.sizes)))

    def largest(self) -> Polynomial:
        """Return the largest product."""
        return self.functions.largest([*zip(self.sizes, self.products(), strict=True)])

    def smallest(self) -> Polynomial:
        """Return the smallest product."""
        line = [p.scaled(Fraction(-1)) for p in self.products()]
        return self.functions.largest([*zip(self.sizes, line, strict=True)]).scaled(Fraction(-1))

    def rectified(self) -> Polynomial:
        """Return the largest product, at least 0."""
        return self.functions.apply(relu, self.largest())

    def squares(self) -> Polynomial:
        """Return the sum of the squared products."""
        return self.summed([self.functions.ring.multiply(p, p) for p in self.products()])

    def logarithm(self) -> Polynomial:
        """Return the logarithm of the sum of e to the products."""
        return self.functions.apply(LOGARITHM, self.summed(self.of_each(exp)))

    def mean(self) -> Polynomial:
        """Return the sum of the products over their number."""
        return self.functions.ring.multiply(self.summed(self.products()), self.one_over_size())

    def variance(self) -> Polynomial:
        """Return the mean of the squares, less the square of the mean."""
        ring, mean = self.functions.ring, self.mean()
        squares = ring.multiply(self.squares(), self.one_over_size())
        return ring.add(squares, ring.multiply(mean, mean).scaled(Fraction(-1)))

    def opaque(self, monoid: type[Monoid]) -> Polynomial:
        """Merge pairs by a monoid without known forms."""
        if monoid.width != 1:
            raise GaveUp(f"a product over {monoid.__name__}, of several columns")
        left = self.unshifted([*self.left]) if monoid.shift_invariant and not self.absent else self.left
        return self.atom(("merged", monoid, self.absent), [*left, *self.right])


MERGED = {
    monoids.max: MergedLine.largest,
    monoids.min: MergedLine.smallest,
    monoids.rectify: MergedLine.rectified,
    monoids.sumsq: MergedLine.squares,
    monoids.logsumexp: MergedLine.logarithm,
    monoids.moments: MergedLine.variance,
    monoids.moments.mean: MergedLine.mean,  # type: ignore[attr-defined]
}  # one of its finishes
