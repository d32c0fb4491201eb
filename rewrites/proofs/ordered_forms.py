"""Entries that are chosen by their order: the largest of a line, and membership among the largest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from opmatrix.algebra.operators import relu
from opmatrix.algebra.shapes import LiveSize
from opmatrix.algebra.term import Operator
from rewrites.proofs.function_forms import INNER, Functions
from rewrites.proofs.polynomials import COLUMN_INDEX, AtomAt, Head, Monomial, Polynomial, order_of, without_factors


def shared_terms(line: Sequence[Polynomial]) -> Polynomial:
    """Return the terms that are added to all of a line."""
    return Polynomial(
        {
            term: number
            for term, number in line[0].terms.items()
            if INNER not in term.free and all(p.terms.get(term) == number for p in line)
        }
    )


@dataclass
class OrderedForms(Functions):
    """Functions of polynomials, and of lines of them by their order. `merged` maps an atom that is a maximum to its
    operands."""

    merged: dict[Head, list[tuple[LiveSize, Polynomial]]] = field(default_factory=dict)

    def largest(self, line: Sequence[tuple[LiveSize, Polynomial]]) -> Polynomial:
        """Return the largest of polynomials, each at as many values of the inner index as its size. Terms that all of
        them have are added afterwards, positive numbers are multiplied afterwards, rising functions applied afterwards;
        a maximum of two numbers is a relu."""
        line = [part for size, p in line for part in self.flattened(size, p)]
        outside = shared_terms([p for _, p in line])
        minus = outside.scaled(Fraction(-1))
        parts: dict[Any, tuple[LiveSize, Polynomial]] = {}
        for size, p in line:
            rest = self.ring.add(p, minus)
            count = size if INNER in rest.free else 1
            parts[str(count), rest.key] = count, rest
        left = sorted(parts.values(), key=lambda part: (str(part[0]), order_of(part[1])))
        if len(left) == 1 and left[0][0] == 1:
            return self.ring.add(outside, left[0][1])
        scale = next(abs(p.leading) for _, p in left if p.terms)
        if rising := self.before_rising([p.scaled(1 / scale) for _, p in left]):
            f, before = rising
            largest = self.largest([(size, p) for (size, _), p in zip(left, before, strict=True)])
            return self.ring.add(outside, self.apply(f, largest).scaled(scale))
        if len(left) == 2 and left[0][0] == left[1][0] == 1:
            (_, a), (_, b) = left
            return self.ring.add(outside, b, self.apply(relu, self.ring.add(a, b.scaled(Fraction(-1)))))
        parts_of_head = [p.scaled(1 / scale) for _, p in left]
        largest = self.of_lines(("largest", tuple(str(size) for size, _ in left)), parts_of_head, outer(parts_of_head))
        (monomial,) = largest.terms
        head, at = monomial.factors[0]
        to = {index: k for k, index in enumerate(at)}
        self.merged.setdefault(
            head, [(size, self.ring.moved(p, to)) for (size, _), p in zip(left, parts_of_head, strict=True)]
        )
        return self.ring.add(outside, largest.scaled(scale))

    def flattened(self, size: LiveSize, p: Polynomial) -> list[tuple[LiveSize, Polynomial]]:
        """List the operands of a maximum, each with the number added to it."""
        if INNER in p.free:
            return [(size, p)]
        for term, number in p.terms.items():
            factor = self.single(Polynomial({term: Fraction(1)}))
            if number < 0 or factor is None or factor[0] not in self.merged:
                continue
            rest = Polynomial({other: by for other, by in p.terms.items() if other != term})
            to = dict(enumerate(factor[1]))
            return [
                (count, self.ring.add(rest, self.ring.moved(part, to).scaled(number)))
                for count, part in self.merged[factor[0]]
            ]
        return [(size, p)]

    def among_largest(self, k: int, line: Sequence[tuple[str, Polynomial]], j: int) -> Polynomial:
        """Return 1 where an entry of piece j of a row is among its k largest, the first ones of equal entries, else 0.
        That does not change if a term is added to the whole row, if all of it is scaled by a positive number, or goes
        through a rising function; so these are removed."""
        polynomials = self.risen([p for _, p in line])
        minus = shared_terms(polynomials).scaled(Fraction(-1))
        left = [self.ring.add(p, minus) for p in polynomials]
        scale = next((abs(p.leading) for p in left if p.terms), Fraction(1))
        more = (COLUMN_INDEX,) if line[j][0] != "1" else ()
        return self.of_lines(
            ("among the largest", k, tuple(size for size, _ in line), j),
            [p.scaled(1 / scale) for p in left],
            outer(left),
            more=more,
        )

    def divided(self, p: Polynomial, factors: Sequence[AtomAt]) -> Polynomial:
        """Return a polynomial without factors that all of its terms have."""
        return Polynomial({without_factors(term, factors): number for term, number in p.terms.items()})

    def risen(self, line: list[Polynomial]) -> list[Polynomial]:
        """Return the row before a function that keeps its order, and without a shared positive factor."""
        before = self.before_product(line)
        if before is None:
            before = self.before_function(line)
        return line if before is None else self.risen(before)

    def before_product(self, line: list[Polynomial]) -> list[Polynomial] | None:
        """Return a row of positive terms without the factors that all share; without such, of powers with one number,
        their logarithms. None for any other row."""
        if not all(len(p.terms) == 1 and p.leading > 0 for p in line):
            return None
        terms = [term for p in line for term in p.terms]
        shared = [factor for factor in dict.fromkeys(terms[0].factors) if self.is_shared(factor, terms)]
        if shared:
            return [self.divided(p, shared) for p in line]
        numbers = {number for p in line for number in p.terms.values()}
        if len(numbers) == 1 and all(term.factors and self.is_power(term) for term in terms):
            return [self.logarithm_of(self.exponents(term)) for term in terms]
        return None

    def is_shared(self, factor: AtomAt, terms: Sequence[Monomial]) -> bool:
        """True if all terms of a row have a factor that is above zero and the same for the whole row."""
        if INNER in factor[1] or not self.is_above_zero(factor):
            return False
        return all(factor in term.factors for term in terms)

    def before_function(self, line: list[Polynomial]) -> list[Polynomial] | None:
        """Return the arguments of a row whose entries are all one function that keeps order; None for any other
        row."""
        rising = self.before_rising(line)
        return rising[1] if rising else None

    def before_rising(self, line: list[Polynomial]) -> tuple[Operator, list[Polynomial]] | None:
        """Return the function that keeps order, and its arguments, if all entries of a row are that function."""
        factors = [self.single(p) for p in line]
        heads = {factor[0].content[1] if factor and factor[0] in self.inner else None for factor in factors}
        f = heads.pop() if len(heads) == 1 else None
        if not isinstance(f, Operator) or not f.keeps_order:
            return None
        return f, [self.argument(factor) for factor in factors if factor]


def outer(line: Sequence[Polynomial]) -> list[int]:
    """Return the free indices of polynomials, without the inner one."""
    return sorted(frozenset().union(*(p.free for p in line)) - {INNER})
