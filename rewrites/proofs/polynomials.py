"""Entries as polynomials: sums of products of atoms over indices, in one form for all that are equal by the axioms of
commutative rings. An atom is a tensor, or a function of other entries, at its indices; an index is free (0 is the row,
1 the column) or bound (below 0), which is summed over. What numbers are known of tensors is merged into one array."""
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import permutations, product
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.shapes import LiveSize

ROW_INDEX, COLUMN_INDEX = 0, 1
MOST_TERMS, MOST_ORDERS, MOST_AXES = 300, 720, 3            # of a polynomial; of bound indices; of an array of numbers
MOST_WORK = 4_000                                           # products of a comparison: about a second
ROUNDED_BITS = 47                                           # numbers that agree in so many bits are one: literals are
                                                            # rounded to 53, and products and sums of them
EntryFloats: TypeAlias = NDArray[np.float64]
IndexTuple: TypeAlias = tuple[int, ...]
AtomAt: TypeAlias = tuple["Head", IndexTuple]


CANCELLED = Fraction(1, 2 ** 43)                                 # of a number: less is not told apart for certain


class GaveUp(Exception):
    """A polynomial that is too large, or a term that has none."""


@dataclass(frozen=True, eq=False)
class Head:
    """Identity of an atom, wherever it stands: there is one for equal content, numbered as they come. `numbers` is its
    array where it is one of known numbers, `sizes` what these were summed of, without signs; `content` what else it is.
    If it is `symmetric`, its indices may be exchanged."""
    number: int
    content: tuple[Any, ...]
    numbers: EntryFloats | None = None
    sizes: EntryFloats | None = None
    symmetric: bool = False

    @property
    def rank(self) -> int:
        """Key by which atoms are ordered, so that arrays are alike."""
        return -1 if self.numbers is not None else self.number


@dataclass(frozen=True)
class Monomial:
    """Factors in their order, and the sizes over which the indices -1, -2, .. are summed."""
    factors: tuple[AtomAt, ...] = ()
    bound: tuple[LiveSize, ...] = ()

    @cached_property
    def key(self) -> tuple[Hashable, ...]:
        """Key by which it is ordered."""
        return tuple((head.rank, at) for head, at in self.factors), tuple(map(str, self.bound))

    @cached_property
    def free(self) -> frozenset[int]:
        return frozenset(index for _, at in self.factors for index in at if index >= 0)

    def moved(self, to: Mapping[int, int]) -> "Monomial":
        """Over other indices; the order may be another then."""
        return Monomial(tuple((head, tuple(to.get(i, i) for i in at)) for head, at in self.factors), self.bound)


UNIT_TERM = Monomial()
TermNumbers: TypeAlias = dict[Monomial, Fraction]
Simplify: TypeAlias = Callable[[Monomial], "Polynomial | None"]


def rounded(number: Fraction) -> Fraction:
    """The nearest number of few bits: two that rounding may have made of one become one."""
    if number == 0: return number
    scale = ROUNDED_BITS - (abs(number.numerator).bit_length() - number.denominator.bit_length())
    power = Fraction(2) ** scale
    return Fraction(round(number * power)) / power


@dataclass(frozen=True, eq=False)
class Polynomial:
    """A number for each monomial; none is zero."""
    terms: TermNumbers

    @cached_property
    def free(self) -> frozenset[int]:
        return frozenset(index for each in self.terms for index in each.free)

    @cached_property
    def ordered(self) -> list[tuple[Monomial, Fraction]]:
        """Its terms by their monomials; arrays by their numbers' heads last."""
        return sorted(self.terms.items(), key=lambda term: (term[0].key, head_numbers(term[0])))

    @cached_property
    def key(self) -> Hashable:
        """Equal for equal polynomials, whose numbers may be off by rounding."""
        return tuple((each, rounded(number)) for each, number in self.ordered)

    @property
    def number(self) -> Fraction | None:
        """Its value where it is a number."""
        if not self.terms: return Fraction(0)
        return self.terms[UNIT_TERM] if self.terms.keys() == {UNIT_TERM} else None

    @property
    def leading(self) -> Fraction:
        """The number of its first monomial that is none itself: what it is scaled by."""
        alone = self.terms.get(UNIT_TERM, Fraction(0))
        return next((number for each, number in self.ordered if each != UNIT_TERM), alone)

    def scaled(self, by: Fraction) -> "Polynomial":
        return Polynomial({each: number * by for each, number in self.terms.items()} if by else {})


NO_TERMS = Polynomial({})


def head_numbers(monomial: Monomial) -> tuple[int, ...]:
    return tuple(head.number for head, _ in monomial.factors)


def as_polynomial(number: Fraction | float) -> Polynomial:
    return Polynomial({UNIT_TERM: Fraction(number)} if number else {})


@dataclass
class Ring:
    """Polynomials over heads that are made here. `rules` say what becomes of a monomial, before it is one of a sum."""
    rules: list[Simplify] = field(default_factory=list)
    heads: dict[Hashable, Head] = field(default_factory=dict)
    arrays: dict[tuple[int, ...], list[Head]] = field(default_factory=dict)
    evaluated: int = 0                                      # products and sums of known numbers
    work: int = 0                                           # products of atoms that were brought to their form

    def head(self, *content: Any, symmetric: bool = False) -> Head:
        """The head of this content."""
        if content not in self.heads: self.heads[content] = Head(len(self.heads) + 1, content, symmetric=symmetric)
        return self.heads[content]

    def array(self, numbers: EntryFloats, sizes: EntryFloats | None = None) -> Head:
        """The head of an array: that of one that differs from it by rounding of what both were summed of, where there
        is one."""
        if not np.isfinite(numbers).all(): raise GaveUp("numbers that are not finite")
        alike = self.arrays.setdefault(numbers.shape, [])
        sizes = abs(numbers) if sizes is None else sizes
        for each in alike:
            off = np.maximum(sizes, magnitudes_of(each)) * 2.0 ** -ROUNDED_BITS
            if (abs(numbers_of(each) - numbers) <= off).all(): return each
        made = Head(len(self.heads) + 1, ("numbers", len(self.heads)), numbers, sizes)
        self.heads[made.content] = made
        alike.append(made)
        return made

    def atom(self, head: Head, at: IndexTuple) -> Polynomial:
        return self.simple([(head, at)], (), Fraction(1))

    # ---- sums and products

    def add(self, *parts: Polynomial) -> Polynomial:
        """The sum, in which arrays at equal places are one."""
        total: TermNumbers = {}
        for part in parts:
            for each, number in part.terms.items():
                before = total.get(each, Fraction(0))
                check_seen(before, number)
                total[each] = before + number
        return self.gathered({each: number for each, number in total.items() if number})

    def gathered(self, terms: TermNumbers) -> Polynomial:
        """TermNumbers that are alike but for one array of numbers are one, with the sum of the arrays."""
        if len(terms) > MOST_TERMS: raise GaveUp(f"{len(terms)} terms")
        alike: dict[Hashable, list[Monomial]] = {}
        for each in terms:
            arrays = sum(head.numbers is not None for head, _ in each.factors)
            if arrays == 1: alike.setdefault(each.key, []).append(each)
        for those in alike.values():
            if len(those) == 1 and terms[those[0]] == 1: continue
            place = next(k for k, (head, _) in enumerate(those[0].factors) if head.numbers is not None)
            by = [float(terms.pop(each)) for each in those]
            heads = [each.factors[place][0] for each in those]
            total = sum(number * numbers_of(head) for number, head in zip(by, heads, strict=True))
            sizes = sum(abs(number) * magnitudes_of(head) for number, head in zip(by, heads, strict=True))
            self.evaluated += len(those) > 1
            parts = [abs(number * numbers_of(head)) for number, head in zip(by, heads, strict=True)]
            lost = [(part > 0) & (part < float(CANCELLED) * sizes) for part in parts]
            if np.any(lost): raise GaveUp("numbers too far apart")
            if not np.any(total): continue
            factors = list(those[0].factors)
            factors[place] = self.array(np.asarray(total), np.asarray(sizes)), factors[place][1]
            made = Monomial(tuple(factors), those[0].bound)
            terms[made] = terms.get(made, Fraction(0)) + 1
        return Polynomial(terms)

    def multiply(self, a: Polynomial, b: Polynomial) -> Polynomial:
        if len(a.terms) * len(b.terms) > MOST_TERMS: raise GaveUp(f"{len(a.terms) * len(b.terms)} terms")
        return self.add(*(self.joined(one, other, number * by) for one, number in a.terms.items()
                          for other, by in b.terms.items()))

    def joined(self, one: Monomial, other: Monomial, number: Fraction) -> Polynomial:
        """The product of two monomials, whose bound indices are apart."""
        behind = {-k - 1: -k - 1 - len(one.bound) for k in range(len(other.bound))}
        return self.simple([*one.factors, *other.moved(behind).factors], one.bound + other.bound, number)

    def power(self, a: Polynomial, times: int) -> Polynomial:
        made = as_polynomial(1)
        for _ in range(times): made = self.multiply(made, a)
        return made

    def summed(self, a: Polynomial, index: int, size: LiveSize) -> Polynomial:
        """The sum over a free index of so many values."""
        def over(each: Monomial) -> list[AtomAt]: return [*each.moved({index: -len(each.bound) - 1}).factors]
        return self.add(*(self.simple(over(each), (*each.bound, size), number) for each, number in a.terms.items()))

    def moved(self, a: Polynomial, to: Mapping[int, int]) -> Polynomial:
        """Over other free indices."""
        if not any(to.get(index, index) != index for index in a.free): return a
        return self.add(*(self.simple(list(each.moved(to).factors), each.bound, number)
                          for each, number in a.terms.items()))

    # ---- one form of a monomial

    def simple(self, factors: list[AtomAt], bound: tuple[LiveSize, ...], number: Fraction) -> Polynomial:
        """A product of atoms in its one form; a sum over what does not occur is a factor."""
        self.work += 1
        if self.work > MOST_WORK: raise GaveUp(f"{self.work} products of entries")
        used = {index for _, at in factors for index in at}
        for k, size in enumerate(bound):
            if -k - 1 in used: continue
            if isinstance(size, int) or getattr(size, "is_Integer", False): number *= int(size)
            else: factors = [*factors, (self.head("size", size), ())]
        factors = cancel_sizes(self.merged(factors))
        for k, (head, at) in enumerate(factors):            # one number is no array
            if head.numbers is not None and not at:
                return self.simple([*factors[:k], *factors[k + 1:]], bound, number * Fraction(float(head.numbers)))
        made = canonical(factors, bound)
        for rule in self.rules:
            if (other := rule(made)) is not None: return self.add(other.scaled(number))
        return Polynomial({made: number})

    def merged(self, factors: list[AtomAt]) -> list[AtomAt]:
        """Factors with their arrays multiplied, where no more axes are left than an array has."""
        known = [factor for factor in factors if factor[0].numbers is not None]
        if len(known) < 2 and not any(len({*at}) < len(at) or any(i < 0 for i in at) for _, at in known): return factors
        rest = [factor for factor in factors if factor[0].numbers is None]
        needed = {index for _, at in rest for index in at}
        left = sorted({i for _, at in known for i in at if i >= 0 or i in needed})
        if not known or len(left) > MOST_AXES: return factors
        letters = {index: chr(ord("a") + k) for k, index in enumerate({i for _, at in known for i in at})}
        text = ",".join("".join(letters[i] for i in at) for _, at in known)
        if len(known) == 1 and tuple(left) == known[0][1]: return factors
        text = f"{text}->{''.join(letters[i] for i in left)}"
        heads = [head for head, _ in known]
        total, sizes = (np.asarray(np.einsum(text, *map(of, heads))) for of in (numbers_of, magnitudes_of))
        self.evaluated += len(known) > 1
        return [*rest, (self.array(total, sizes), tuple(left))]


def check_seen(one: Fraction, other: Fraction) -> None:
    """Raises GaveUp where one of two numbers would be lost in their sum, as numbers are told apart."""
    least, most = sorted((abs(one), abs(other)))
    if 0 < least < CANCELLED * most: raise GaveUp("numbers too far apart")


def numbers_of(head: Head) -> EntryFloats:
    assert head.numbers is not None
    return head.numbers


def magnitudes_of(head: Head) -> EntryFloats:
    assert head.sizes is not None
    return head.sizes


def cancel_sizes(factors: list[AtomAt]) -> list[AtomAt]:
    """Without sizes that are both multiplied and divided by."""
    counts = Counter(head.content for head, at in factors if not at)
    drop = Counter[Hashable]()
    for content, times in counts.items():
        match content:
            case ("size", size) if (other := counts["one over size", size]):
                drop["size", size] = drop["one over size", size] = min(times, other)
    if not drop: return factors
    left = []
    for head, at in factors:
        if drop[head.content]: drop[head.content] -= 1
        else: left.append((head, at))
    return left


def canonical(factors: list[AtomAt], bound: tuple[LiveSize, ...]) -> Monomial:
    """The monomial with its bound indices numbered and its factors ordered in one way."""
    used = sorted({index for _, at in factors for index in at if index < 0}, reverse=True)
    size = {index: bound[-index - 1] for index in used}
    if len(used) < 2:
        to = {index: -1 for index in used}
        return order_factors(factors, to, tuple(size.values()))
    classes = refined(factors, used, {index: (str(size[index]),) for index in used})
    if (orders := np.prod([float(np.prod(range(1, len(each) + 1))) for each in classes])) > MOST_ORDERS:
        raise GaveUp(f"{orders:g} orders of bound indices")
    best: Monomial | None = None
    for order in product(*map(permutations, classes)):
        line = [index for part in order for index in part]
        to = {index: -k - 1 for k, index in enumerate(line)}
        made = order_factors(factors, to, tuple(size[index] for index in line))
        if best is None or (made.key, head_numbers(made)) < (best.key, head_numbers(best)): best = made
    assert best is not None
    return best


def order_factors(factors: Iterable[AtomAt], to: Mapping[int, int], bound: tuple[LiveSize, ...]) -> Monomial:
    moved = [(head, place_of(head, tuple(to.get(i, i) for i in at))) for head, at in factors]
    return Monomial(tuple(sorted(moved, key=lambda one: (one[0].rank, one[1], one[0].number))), bound)


def place_of(head: Head, at: IndexTuple) -> IndexTuple: return tuple(sorted(at)) if head.symmetric else at


def refined(factors: list[AtomAt], used: list[int], colours: dict[int, Any]) -> list[list[int]]:
    """Bound indices in classes, by where they stand and beside which others."""
    for _ in range(len(used)):
        seen = {index: sorted((head.rank, k, tuple(str(colours.get(i, i)) for i in at))
                              for head, at in factors for k, i in enumerate(at) if i == index) for index in used}
        ranks = {text: k for k, text in enumerate(sorted({str((colours[i], seen[i])) for i in used}))}
        new = {index: (ranks[str((colours[index], seen[index]))],) for index in used}
        if len({*new.values()}) == len({*map(str, colours.values())}) and colours != new and _ > 0: break
        colours = new
    groups: dict[Any, list[int]] = {}
    for index in used: groups.setdefault(colours[index], []).append(index)
    return [groups[colour] for colour in sorted(groups)]


def are_equal(a: Polynomial, b: Polynomial) -> bool:
    """Tell whether two have the same monomials, with numbers that differ by rounding at most."""
    if a.terms.keys() != b.terms.keys(): return False
    return all(abs(u - b.terms[each]) <= Fraction(1, 2 ** ROUNDED_BITS) * max(abs(u), abs(b.terms[each]))
               for each, u in a.terms.items())


def parts_of(each: Monomial) -> list[frozenset[int]]:
    """The bound indices of a product, those together that factors join."""
    parts: list[frozenset[int]] = []
    for _, at in each.factors:
        own = frozenset(i for i in at if i < 0)
        if not own: continue
        joined = own.union(*(part for part in parts if part & own))
        parts = [*(part for part in parts if not part & own), joined]
    return parts


def split_off(each: Monomial, part: frozenset[int]) -> tuple[Monomial, Monomial]:
    """The factors that have some bound indices, and the others, each with its own."""
    own = [factor for factor in each.factors if part.intersection(factor[1])]
    rest = [factor for factor in each.factors if factor not in own]
    return canonical(own, each.bound), canonical(rest, each.bound)


def order_of(p: Polynomial) -> Any:
    """Key by which polynomials are ordered."""
    return tuple((each.key, head_numbers(each), rounded(number)) for each, number in p.ordered)


def without_factors(each: Monomial, factors: Sequence[AtomAt]) -> Monomial:
    """A product without some of its factors, once each."""
    left = list(each.factors)
    for factor in factors: left.remove(factor)
    return Monomial(tuple(left), each.bound)
