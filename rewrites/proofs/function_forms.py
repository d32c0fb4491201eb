"""Functions of entries that are polynomials. The facts about a function are its declared properties, and laws
(rewrites/laws/proving/functions.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import permutations
from math import isfinite
from typing import Any, TypeAlias

import numpy as np

from opmatrix.algebra.nodes import SCALAR_FUNCTIONS, exp, magnitude, reciprocal
from opmatrix.algebra.operators import I, relu, rsqrt, square
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.term import KINDS, Operator
from rewrites.laws.law import Law
from rewrites.proofs.law_shapes import LawsByShape, shaped
from rewrites.proofs.polynomials import (
    NO_TERMS,
    UNIT_TERM,
    AtomAt,
    GaveUp,
    Head,
    IndexTuple,
    Monomial,
    Polynomial,
    Ring,
    TermNumbers,
    as_polynomial,
    head_numbers,
    order_of,
    parts_of,
    split_off,
    without_factors,
)

ZERO_OR_RECIPROCAL = "one over, and of zero zero"  # the weight of a row without keys
MOST_FACTORS = 24  # most powers of e in a product
LOGARITHM = SCALAR_FUNCTIONS["log"]
INNER = 2  # the index that a product over a monoid merges
POWERS = {exp: None, reciprocal: Fraction(-1), rsqrt: Fraction(-1, 2)}


Exponents: TypeAlias = dict[tuple[Monomial, IndexTuple], Fraction]  # the exponent of e in a product, term by term


@dataclass
class Functions:
    """Functions of polynomials of a ring, each in one form. `inner` maps an atom to the argument of its function, over
    the indices 0, 1, .. in the order of the atom's own indices."""

    ring: Ring
    laws: LawsByShape = field(default_factory=shaped)
    inner: dict[Head, Polynomial] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)  # names of laws

    def __post_init__(self) -> None:
        self.ring.rules += [self.one_power, self.less_powers, self.shares]

    # ---- atoms

    def atom(self, f: object, p: Polynomial) -> Polynomial:
        """Return a function without known properties as an atom."""
        return self.of_lines(("of", f), [p], sorted(p.free))

    def of_lines(
        self,
        content: tuple[object, ...],
        line: Sequence[Polynomial],
        places: Sequence[int],
        commutes: bool = False,
        more: IndexTuple = (),
    ) -> Polynomial:
        """Make an atom of several polynomials over some indices, in any order if it commutes."""
        best: tuple[Any, IndexTuple, list[Polynomial]] | None = None
        keys = set[Any]()
        for order in permutations(places):
            to = {index: k for k, index in enumerate(order)}
            moved = [self.ring.moved(p, to) for p in line]
            if commutes:
                moved = [*{p.key: p for p in sorted(moved, key=order_of)}.values()]
            key = tuple(map(order_of, moved))
            keys.add(key)
            if best is None or key < best[0]:
                best = key, tuple(order), moved
        assert best is not None
        symmetric = len(places) > 1 and len(keys) == 1 and not more
        head = self.ring.head(*content, *(p.key for p in best[2]), symmetric=symmetric)
        if len(line) == 1:
            self.inner.setdefault(head, best[2][0])
        return self.ring.atom(head, (*best[1], *more))

    def is_of(self, factor: AtomAt, f: object) -> bool:
        """True if an atom is a value of the function f."""
        return factor[0].content[:2] == ("of", f)

    def argument(self, factor: AtomAt) -> Polynomial:
        """Return the argument of the function that an atom is, at the atom's indices, which are free."""
        head, at = factor
        return self.ring.moved(self.inner[head], dict(enumerate(at)))

    def single(self, p: Polynomial) -> AtomAt | None:
        """Return the atom that a polynomial is; None if it is more than one atom."""
        if len(p.terms) != 1:
            return None
        ((monomial, number),) = p.terms.items()
        return monomial.factors[0] if number == 1 and len(monomial.factors) == 1 and not monomial.bound else None

    # ---- functions

    def apply(self, f: Operator, p: Polynomial) -> Polynomial:
        """Return a function of single numbers at a polynomial."""
        if p.number is not None:
            return self.of_number(f, p.number)
        if f is exp:
            return self.power(p)
        if law := self.laws.definitions.get(f):
            return self.by(law, p)
        if (factor := self.single(p)) and factor[0] in self.inner:
            law = self.laws.behind.get((f, factor[0].content[1]))
            if law:
                return self.by(law, self.argument(factor))
        if f in POWERS:
            return self.inverse(f, p)
        if f is LOGARITHM:
            return self.logarithm(p)
        return self.plain(f, p)

    def of_number(self, f: Operator, number: Fraction) -> Polynomial:
        """Return f at a number, as a polynomial: an atom if f holds a symbol. Raises GaveUp if the value is not
        finite."""
        if number == 0 and f.maps_zero_to_zero:
            return NO_TERMS
        if any(node.kind is KINDS["symbol"] for node in f.walk()):
            return self.ring.atom(self.ring.head("of number", f, number), ())
        with np.errstate(all="ignore"):
            value = float(dense(f, np.array([[float(number)]]))[0, 0])
        if not isfinite(value):
            raise GaveUp(f"{f} of {float(number):g}")
        return as_polynomial(value)

    def by(self, law: Law, p: Polynomial) -> Polynomial:
        """Return the right side of a law at a polynomial."""
        self.used.add(law.name)
        _, (right,) = law.sides()
        values: dict[Operator, Polynomial] = {}
        for node in right.walk():
            match node.kind.name, node.args:
                case "compose", (a, f) if f.kind is KINDS["mul"]:
                    values[node] = values[a].scaled(values[f.args[1]].terms[UNIT_TERM])
                case "compose", (a, f):
                    values[node] = self.apply(f, values[a])
                case "add", (a, b):
                    values[node] = self.ring.add(values[a], values[b])
                case "mul", (a, b) if a is I:
                    values[node] = values[b]
                case "mul", (a, b):
                    values[node] = self.ring.multiply(values[a], values[b])
                case "const", (data,):
                    values[node] = as_polynomial(data[0])
                case _ if not node.children:
                    values[node] = p
        return values[right]

    def plain(self, f: Operator, p: Polynomial) -> Polynomial:
        """Return a function with declared properties at a polynomial; laws may rewrite it at a negated number."""
        if f is relu and (simpler := self.rectified(p)) is not None:
            return simpler
        if f.positively_homogeneous:
            size = abs(p.leading)
            if size != 1:
                return self.apply(f, p.scaled(1 / size)).scaled(size)
        if p.leading < 0 and (law := self.laws.reflections.get(f)):
            return self.by(law, p.scaled(Fraction(-1)))
        if f.positively_homogeneous and f.maps_zero_to_zero and (shared := self.positive_factor(p)):
            rest = Polynomial({without_factors(monomial, shared): number for monomial, number in p.terms.items()})
            outside = self.ring.simple([*shared], (), Fraction(1))
            return self.ring.multiply(outside, self.apply(f, self.ring.add(rest)))
        return self.atom(f, p)

    def rectified(self, p: Polynomial) -> Polynomial | None:
        """Rewrite relu of a polynomial with a certain sign, and relu(a relu(u) - b) as relu(a u - b), where a and b
        are positive; None if neither applies."""
        if self.is_positive(p):
            return p
        if self.is_positive(p.scaled(Fraction(-1))):
            return NO_TERMS
        for monomial, number in p.terms.items():
            factor = self.single(Polynomial({monomial: Fraction(1)}))
            if number < 0 or factor is None or not self.is_of(factor, relu):
                continue
            rest = Polynomial({other: by for other, by in p.terms.items() if other != monomial})
            if self.is_positive(rest.scaled(Fraction(-1))):
                return self.apply(relu, self.ring.add(rest, self.argument(factor).scaled(number)))
        return None

    def is_positive(self, p: Polynomial) -> bool:
        """True if no value is negative, for certain: neither relu(u) nor relu(u) - u is."""
        for monomial, number in p.terms.items():
            factor = self.single(Polynomial({monomial: Fraction(1)}))
            if number < 0 or factor is None or not self.is_of(factor, relu):
                continue
            u = self.argument(factor)
            first, by = next((term for term in u.ordered if term[0] != UNIT_TERM), (UNIT_TERM, Fraction(0)))
            taken = -p.terms.get(first, Fraction(0)) / by if by else Fraction(0)
            if not 0 < taken <= number:
                continue
            rest = self.ring.add(p, Polynomial({monomial: -taken}), u.scaled(taken))
            return self.is_positive(rest)

        def even(each: Monomial, factor: AtomAt) -> bool:
            """True if a factor occurs an even number of times at free indices: its power is a square."""
            return each.factors.count(factor) % 2 == 0 and all(i >= 0 for i in factor[1])

        return all(
            number > 0 and all(self.is_positive_atom(factor) or even(term, factor) for factor in term.factors)
            for term, number in p.terms.items()
        )

    def is_positive_atom(self, factor: AtomAt) -> bool:
        """True if an atom is never negative: a count, a power of e, or a function whose relu is known by a law."""
        content: Any = factor[0].content
        if content[0] in ("size", "one over size", "sees"):
            return True
        if self.is_of_power(factor):
            return True
        return content[0] == "of" and (relu, content[1]) in self.laws.behind

    def is_above_zero(self, factor: AtomAt) -> bool:
        """True if an atom is positive and never zero, for certain: powers of e, and one over sums of them."""
        if self.is_of_power(factor):
            return True
        return self.is_of(factor, reciprocal) and self.is_sum_of_powers(self.inner[factor[0]])

    def is_sum_of_powers(self, p: Polynomial) -> bool:
        """True if a polynomial is a sum of powers of e alone, over all columns or over a pattern by which each row
        sees itself."""

        def seen(factor: AtomAt) -> bool:
            """True if an atom says that a row sees itself."""
            content = factor[0].content
            return content[0] == "sees" and content[1].reflexive and 0 in factor[1]

        return all(
            number > 0
            and any(map(self.is_of_power, term.factors))
            and all(self.is_of_power(factor) or seen(factor) for factor in term.factors)
            for term, number in p.terms.items()
        )

    def is_of_power(self, factor: AtomAt) -> bool:
        """True if an atom is e to some power."""
        return self.is_of(factor, exp) or factor[0].content[:1] == ("power",)

    def shares(self, each: Monomial) -> Polynomial | None:
        """Rewrite a sum of powers of e times one over itself as one; None if there is none."""
        for factor in each.factors:
            if not any(self.is_of(factor, f) for f in (reciprocal, ZERO_OR_RECIPROCAL)):
                continue
            inner = self.inner[factor[0]]
            if len(inner.terms) != 1 or any(i < 0 for i in factor[1]) or not self.is_sum_of_powers(inner):
                continue
            ((wanted, number),) = self.argument(factor).terms.items()
            for part in parts_of(each):
                taken, rest = split_off(each, part)
                if number == 1 and part and taken == wanted:
                    rest_factors = list(rest.factors)
                    rest_factors.remove(factor)
                    return self.ring.simple(rest_factors, rest.bound, Fraction(1))
        return None

    def positive_factor(self, p: Polynomial) -> list[AtomAt]:
        """Return atoms that are never negative, shared by all terms."""
        first, *rest = p.terms
        shared = [
            factor
            for factor in dict.fromkeys(first.factors)
            if self.is_positive_atom(factor)
            and all(i >= 0 for i in factor[1])
            and all(factor in term.factors for term in rest)
        ]
        return shared if len(p.terms) > 1 or len(shared) < len(first.factors) else shared[:-1]

    # ---- powers of e

    def power(self, p: Polynomial) -> Polynomial:
        """Return e to the power of a polynomial, with a factor for each of its terms; many terms of equal indices get
        one factor together."""
        groups: dict[frozenset[int], TermNumbers] = {}
        for monomial, number in p.terms.items():
            groups.setdefault(monomial.free, {})[monomial] = number
        power = as_polynomial(1)
        for free, group in groups.items():
            if len(group) > MOST_FACTORS:
                factor = self.of_lines(("power",), [Polynomial(group)], sorted(free))
            else:
                factor = self.power_by_term(Polynomial(group))
            power = self.ring.multiply(power, factor)
        return power

    def power_by_term(self, p: Polynomial) -> Polynomial:
        """Return e to the power of a polynomial of few terms."""
        power = as_polynomial(1)
        for monomial, number in p.ordered:
            if monomial == UNIT_TERM:
                with np.errstate(over="ignore"):
                    value = float(np.exp(float(number)))
                if not isfinite(value) or value == 0:
                    raise GaveUp(f"e to the power {float(number):g}")
                factor = as_polynomial(value)
            else:
                factor = self.power_of_term(monomial, number)
            power = self.ring.multiply(power, factor)
        return power

    def power_of_term(self, each: Monomial, number: Fraction) -> Polynomial:
        """Return e to a number times a term; by a law if the term is a function that e undoes."""
        if abs(number) == 1 and (factor := self.single(Polynomial({each: Fraction(1)}))) and factor[0] in self.inner:
            if law := self.laws.behind.get((exp, factor[0].content[1])):
                value = self.by(law, self.argument(factor))
                return value if number == 1 else self.apply(reciprocal, value)
        return self.atom(exp, Polynomial({each: number}))

    def exponents(self, each: Monomial) -> Exponents:
        """Return the exponents of e in a product."""
        sums: Exponents = {}
        for factor in each.factors:
            if not self.is_of(factor, exp):
                continue
            ((inner, number),) = self.inner[factor[0]].terms.items()
            sums[inner, factor[1]] = sums.get((inner, factor[1]), Fraction(0)) + number
        return sums  # arrays of numbers stay apart: their sum is one of them

    def one_power(self, each: Monomial) -> Polynomial | None:
        """Merge powers of e whose exponents have equal terms; None if there are none."""
        powers = [factor for factor in each.factors if self.is_of(factor, exp)]
        exponents = self.exponents(each)
        if len(exponents) == len(powers):
            return None
        factors = [factor for factor in each.factors if factor not in powers]
        symmetric = {(*self.inner[head].terms, at): head.symmetric for head, at in powers}
        for (inner, at), number in exponents.items():
            if number:
                factors.append((self.head_of_power(inner, number, symmetric[inner, at]), at))
        return self.ring.simple(factors, each.bound, Fraction(1))

    def head_of_power(self, inner: Monomial, number: Fraction, symmetric: bool) -> Head:
        """Return the head of e to a number times a term, whose argument is remembered."""
        p = Polynomial({inner: number})
        head = self.ring.head("of", exp, p.key, symmetric=symmetric)
        self.inner.setdefault(head, p)
        return head

    def logarithm_of(self, found: Exponents) -> Polynomial:
        """Return the exponents as a polynomial; their indices are free."""
        return self.ring.add(
            *(
                self.ring.moved(Polynomial({inner: number}), dict(enumerate(at)))
                for (inner, at), number in found.items()
            )
        )

    def is_power(self, each: Monomial) -> bool:
        """True if a product is of powers of e alone, without a sum."""
        return not each.bound and all(self.is_of(factor, exp) for factor in each.factors)

    def shared_powers(self, p: Polynomial) -> Polynomial:
        """Return the least exponents of e shared by all terms of a polynomial, where no index is bound."""
        every = [
            {key: number for key, number in self.exponents(monomial).items() if all(i >= 0 for i in key[1])}
            for monomial in p.terms
        ]
        keys = dict.fromkeys(key for exponents in every for key in exponents)
        least = {key: min(exponents.get(key, Fraction(0)) for exponents in every) for key in keys}
        return self.logarithm_of({key: number for key, number in least.items() if number})

    def one_and_power(self, p: Polynomial) -> tuple[Fraction, Polynomial, Polynomial] | None:
        """Return c, u and v of a polynomial c e^u (1 + e^v); None if it has another form."""
        if len(p.terms) != 2:
            return None
        terms = sorted(p.terms.items(), key=lambda term: (term[0] != UNIT_TERM, term[0].key, head_numbers(term[0])))
        (one, c), (other, d) = terms
        if c != d or not (self.is_power(one) and self.is_power(other)):
            return None
        u, w = (self.logarithm_of(self.exponents(term)) for term in (one, other))
        return c, u, self.ring.add(w, u.scaled(Fraction(-1)))

    # ---- one over, and logarithms

    def inverse(self, f: Any, p: Polynomial) -> Polynomial:
        """Return a power of a polynomial, -1 or -1/2, with numbers and powers of e as factors of their own."""
        half = f is rsqrt
        if f is reciprocal and (parts := self.one_and_power(p)):
            c, u, v = parts
            share = self.by(self.laws.behind_one[reciprocal, exp], v)
            return self.ring.multiply(self.power(u.scaled(Fraction(-1))), share).scaled(1 / c)
        scale = abs(p.leading) if half else p.leading
        number = Fraction(float(scale) ** -0.5) if half else 1 / scale
        p = p.scaled(1 / scale)
        shared = self.shared_powers(p)
        outside = self.power(shared.scaled(Fraction(-1, 2) if half else Fraction(-1))).scaled(number)
        rest = self.ring.multiply(p, self.power(shared.scaled(Fraction(-1)))) if shared.terms else p
        return outside if rest.number == 1 else self.ring.multiply(outside, self.inverse_of_rest(f, rest))

    def inverse_of_rest(self, f: Operator | str, p: Polynomial) -> Polynomial:
        """Return a power, -1 or -1/2, of a polynomial without a number or powers of e as factors: of a product factor
        by factor, of a square and of a number without its sign by laws."""
        if f is reciprocal and len(p.terms) == 1:
            return self.each_inverse(p)
        if f is reciprocal and (parts := self.without_sign(p)):
            number, u = parts
            return self.by(self.laws.behind[reciprocal, magnitude], u).scaled(1 / number)
        if f is rsqrt and (root := self.root_of_square(p)):
            return self.by(self.laws.behind[rsqrt, square], root)
        return self.atom(f, p)

    def root_of_square(self, p: Polynomial) -> Polynomial | None:
        """Return u of a polynomial u u with one term; None if it is no square of one."""
        if len(p.terms) != 1 or p.leading != 1:
            return None
        ((monomial, _),) = p.terms.items()
        counts = {factor: monomial.factors.count(factor) for factor in dict.fromkeys(monomial.factors)}
        if monomial.bound or any(count % 2 for count in counts.values()):
            return None
        halves = [factor for factor, count in counts.items() for _ in range(count // 2)]
        return self.ring.simple(halves, (), Fraction(1))

    def without_sign(self, p: Polynomial) -> tuple[Fraction, Polynomial] | None:
        """Return c and u of a polynomial c |u|, which is c (2 relu(u) - u); None if it has another form."""
        for monomial, number in p.terms.items():
            factor = self.single(Polynomial({monomial: Fraction(1)}))
            if factor is None or not self.is_of(factor, relu):
                continue
            u = self.argument(factor)
            rest = Polynomial({other: by for other, by in p.terms.items() if other != monomial})
            if not self.ring.add(rest, u.scaled(number / 2)).terms:
                return number / 2, u
        return None

    def each_inverse(self, p: Polynomial) -> Polynomial:
        """Return one over a product, factor by factor; factors with summed indices stay together."""
        ((monomial, number),) = p.terms.items()
        held = {factor for factor in monomial.factors if any(i < 0 for i in factor[1])}
        parts = [self.inverse_of_factor(factor) for factor in monomial.factors if factor not in held]
        if held:
            inner = Monomial(tuple(factor for factor in monomial.factors if factor in held), monomial.bound)
            parts.append(self.atom(reciprocal, Polynomial({inner: Fraction(1)})))
        inverse = as_polynomial(1 / number)
        for part in parts:
            inverse = self.ring.multiply(inverse, part)
        return inverse

    def inverse_of_factor(self, factor: AtomAt) -> Polynomial:
        """Return one over an atom: sizes are inverted, and reciprocals undone."""
        head, at = factor
        match head.content:
            case ("size", size):
                return self.ring.atom(self.ring.head("one over size", size), ())
            case ("one over size", size):
                return self.ring.atom(self.ring.head("size", size), ())
        if self.is_of(factor, reciprocal):
            return self.by(self.laws.behind[reciprocal, reciprocal], self.argument(factor))
        return self.atom(reciprocal, self.ring.atom(head, at))

    def logarithm(self, p: Polynomial) -> Polynomial:
        """Return the logarithm of a polynomial: shared powers and factors are taken out first."""
        if parts := self.one_and_power(p):
            c, u, v = parts
            return self.ring.add(u, self.by(self.laws.behind_one[LOGARITHM, exp], v), self.of_number(LOGARITHM, c))
        if root := self.root_of_square(p):
            return self.by(self.laws.behind[LOGARITHM, square], root)
        scale, shared = abs(p.leading), self.shared_powers(p)
        if not shared.terms and scale == 1:
            return self.atom(LOGARITHM, p)
        rest = self.ring.multiply(p, self.power(shared.scaled(Fraction(-1)))).scaled(1 / scale)
        return self.ring.add(shared, self.of_number(LOGARITHM, scale), self.apply(LOGARITHM, rest))

    # ---- products of functions

    def less_powers(self, each: Monomial) -> Polynomial | None:
        """Apply laws of products of functions to a product."""
        for law in self.laws.products:
            (left,), _ = law.sides()
            f, g = (part.args[1] for part in left.args)
            for factor in each.factors:
                if not self.is_of(factor, g):
                    continue
                if f is g:
                    other = [factor]
                else:
                    other = self.factors_of_power(factor)
                if other and all(each.factors.count(one) >= 1 + (one == factor) for one in other):
                    return self.replaced(each, [factor, *other], law, factor)
        return None

    def factors_of_power(self, factor: AtomAt) -> list[AtomAt]:
        """Return the factors of e to the power of minus an atom's argument; empty if that has a constant term."""
        inner = self.inner[factor[0]]
        if UNIT_TERM in inner.terms:
            return []
        factors: list[AtomAt] = []
        for monomial, number in inner.terms.items():
            p = self.atom(exp, Polynomial({monomial: -number}))
            ((term, _),) = p.terms.items()
            if len(term.factors) != 1:
                return []
            head, at = term.factors[0]
            factors.append((head, tuple(factor[1][i] for i in at)))
        return factors

    def replaced(self, each: Monomial, factors: list[AtomAt], law: Law, of: AtomAt) -> Polynomial:
        """Replace some factors of a product by the right side of a law."""
        opened = {-k - 1: 100 + k for k in range(len(each.bound))}
        rest = list(each.factors)
        for factor in factors:
            rest.remove(factor)

        def free(factor: AtomAt) -> AtomAt:
            """Give an atom's bound indices free numbers."""
            return factor[0], tuple(opened.get(i, i) for i in factor[1])

        result = self.by(law, self.argument(free(of)))
        result = self.ring.multiply(self.ring.simple([free(factor) for factor in rest], (), Fraction(1)), result)
        for k, size in enumerate(each.bound):
            result = self.ring.summed(result, 100 + k, size)
        return result
