"""Entries as polynomials: sums of products of atoms over indices, in one form for all that are equal by the axioms of
commutative rings. An atom is a tensor, or a function of other entries, at its indices; an index is free (0 is the row,
1 the column) or bound (below 0), that is, summed over. Known numbers of tensors are merged into one array."""

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
MOST_TERMS, MOST_ORDERS, MOST_AXES = 300, 720, 3  # terms; orders of bound indices; axes of an array
MOST_WORK = 4_000  # most products of a comparison: about a second
ROUNDED_BITS = 47  # numbers that agree in these bits are taken as equal:
# literals, their products and sums are rounded to 53
EntryFloats: TypeAlias = NDArray[np.float64]
IndexTuple: TypeAlias = tuple[int, ...]
AtomAt: TypeAlias = tuple["Head", IndexTuple]


CANCELLED = Fraction(1, 2**43)  # a smaller share of a number is not certain


class GaveUp(Exception):
    """The comparison stopped: a polynomial is too large, or a term has none."""


@dataclass(frozen=True, eq=False)
class Head:
    """The identity of an atom at any indices: one for equal content, numbered in the order of creation. `numbers` is
    its array if it is one of known numbers, `sizes` the sums of the absolute values of its terms; `content` is the
    rest of its identity. If it is `symmetric`, its indices may be exchanged."""

    number: int
    content: tuple[Any, ...]
    numbers: EntryFloats | None = None
    sizes: EntryFloats | None = None
    symmetric: bool = False

    @property
    def rank(self) -> int:
        """The key by which atoms are ordered; all arrays have the same rank."""
        return -1 if self.numbers is not None else self.number


@dataclass(frozen=True)
class Monomial:
    """Factors in their order, and the sizes over which the indices -1, -2, .. are summed."""

    factors: tuple[AtomAt, ...] = ()
    bound: tuple[LiveSize, ...] = ()

    @cached_property
    def key(self) -> tuple[Hashable, ...]:
        """The key by which it is ordered."""
        return tuple((head.rank, at) for head, at in self.factors), tuple(map(str, self.bound))

    @cached_property
    def free(self) -> frozenset[int]:
        """The free indices of its factors: 0 the row, 1 the column."""
        return frozenset(index for _, at in self.factors for index in at if index >= 0)

    def moved(self, to: Mapping[int, int]) -> "Monomial":
        """Return it over other indices; its factors may then be out of order."""
        return Monomial(tuple((head, tuple(to.get(i, i) for i in at)) for head, at in self.factors), self.bound)


UNIT_TERM = Monomial()
TermNumbers: TypeAlias = dict[Monomial, Fraction]
Simplify: TypeAlias = Callable[[Monomial], "Polynomial | None"]


def rounded(number: Fraction) -> Fraction:
    """Return the nearest number of few bits: two numbers that differ by rounding become one."""
    if number == 0:
        return number
    scale = ROUNDED_BITS - (abs(number.numerator).bit_length() - number.denominator.bit_length())
    power = Fraction(2) ** scale
    return Fraction(round(number * power)) / power


@dataclass(frozen=True, eq=False)
class Polynomial:
    """A number for each monomial, never zero."""

    terms: TermNumbers

    @cached_property
    def free(self) -> frozenset[int]:
        """The free indices of its terms."""
        return frozenset(index for term in self.terms for index in term.free)

    @cached_property
    def ordered(self) -> list[tuple[Monomial, Fraction]]:
        """Its terms, ordered by their monomials; terms equal but for arrays by the numbers of their heads."""
        return sorted(self.terms.items(), key=lambda term: (term[0].key, head_numbers(term[0])))

    @cached_property
    def key(self) -> Hashable:
        """A key that is equal for equal polynomials, whose numbers may be off by rounding."""
        return tuple((monomial, rounded(number)) for monomial, number in self.ordered)

    @property
    def number(self) -> Fraction | None:
        """Its value if it is a number, else None."""
        if not self.terms:
            return Fraction(0)
        return self.terms[UNIT_TERM] if self.terms.keys() == {UNIT_TERM} else None

    @property
    def leading(self) -> Fraction:
        """The number of its first monomial other than 1: it is scaled by this."""
        alone = self.terms.get(UNIT_TERM, Fraction(0))
        return next((number for monomial, number in self.ordered if monomial != UNIT_TERM), alone)

    def scaled(self, by: Fraction) -> "Polynomial":
        """Multiply by a number; no terms are left for 0."""
        return Polynomial({monomial: number * by for monomial, number in self.terms.items()} if by else {})


NO_TERMS = Polynomial({})


def head_numbers(monomial: Monomial) -> tuple[int, ...]:
    """Return the numbers of a monomial's heads, in its order."""
    return tuple(head.number for head, _ in monomial.factors)


def as_polynomial(number: Fraction | float) -> Polynomial:
    """Return a number as a polynomial; 0 has no terms."""
    return Polynomial({UNIT_TERM: Fraction(number)} if number else {})


@dataclass
class Ring:
    """Polynomials over the heads that are made here. Each rule of `rules` may rewrite a monomial before it is added to
    a sum."""

    rules: list[Simplify] = field(default_factory=list)
    heads: dict[Hashable, Head] = field(default_factory=dict)
    arrays: dict[tuple[int, ...], list[Head]] = field(default_factory=dict)
    evaluated: int = 0  # products and sums of known numbers
    work: int = 0  # products of atoms that were brought into one form

    def head(self, *content: Any, symmetric: bool = False) -> Head:
        """Return the head of this content."""
        if content not in self.heads:
            self.heads[content] = Head(len(self.heads) + 1, content, symmetric=symmetric)
        return self.heads[content]

    def array(self, numbers: EntryFloats, sizes: EntryFloats | None = None) -> Head:
        """Return the head of an array; that of an earlier one if they differ only by the rounding of their sums."""
        if not np.isfinite(numbers).all():
            raise GaveUp("numbers that are not finite")
        alike = self.arrays.setdefault(numbers.shape, [])
        sizes = abs(numbers) if sizes is None else sizes
        for other in alike:
            off = np.maximum(sizes, magnitudes_of(other)) * 2.0**-ROUNDED_BITS
            if (abs(numbers_of(other) - numbers) <= off).all():
                return other
        head = Head(len(self.heads) + 1, ("numbers", len(self.heads)), numbers, sizes)
        self.heads[head.content] = head
        alike.append(head)
        return head

    def atom(self, head: Head, at: IndexTuple) -> Polynomial:
        """Return an atom at these indices as a polynomial, in its one form."""
        return self.simple([(head, at)], (), Fraction(1))

    # ---- sums and products

    def add(self, *parts: Polynomial) -> Polynomial:
        """Return the sum, in which terms equal but for one array are merged."""
        total: TermNumbers = {}
        for part in parts:
            for monomial, number in part.terms.items():
                before = total.get(monomial, Fraction(0))
                check_seen(before, number)
                total[monomial] = before + number
        return self.gathered({monomial: number for monomial, number in total.items() if number})

    def gathered(self, terms: TermNumbers) -> Polynomial:
        """Merge terms that are alike but for one array of numbers into one, with the sum of the arrays."""
        if len(terms) > MOST_TERMS:
            raise GaveUp(f"{len(terms)} terms")
        alike: dict[Hashable, list[Monomial]] = {}
        for monomial in terms:
            arrays = sum(head.numbers is not None for head, _ in monomial.factors)
            if arrays == 1:
                alike.setdefault(monomial.key, []).append(monomial)
        for those in alike.values():
            if len(those) == 1 and terms[those[0]] == 1:
                continue
            place = next(k for k, (head, _) in enumerate(those[0].factors) if head.numbers is not None)
            by = [float(terms.pop(monomial)) for monomial in those]
            heads = [monomial.factors[place][0] for monomial in those]
            total = sum(number * numbers_of(head) for number, head in zip(by, heads, strict=True))
            sizes = sum(abs(number) * magnitudes_of(head) for number, head in zip(by, heads, strict=True))
            self.evaluated += len(those) > 1
            parts = [abs(number * numbers_of(head)) for number, head in zip(by, heads, strict=True)]
            lost = [(part > 0) & (part < float(CANCELLED) * sizes) for part in parts]
            if np.any(lost):
                raise GaveUp("numbers too far apart")
            if not np.any(total):
                continue
            factors = list(those[0].factors)
            factors[place] = self.array(np.asarray(total), np.asarray(sizes)), factors[place][1]
            merged = Monomial(tuple(factors), those[0].bound)
            terms[merged] = terms.get(merged, Fraction(0)) + 1
        return Polynomial(terms)

    def multiply(self, a: Polynomial, b: Polynomial) -> Polynomial:
        """Multiply term by term. Raises GaveUp for more than MOST_TERMS products."""
        if len(a.terms) * len(b.terms) > MOST_TERMS:
            raise GaveUp(f"{len(a.terms) * len(b.terms)} terms")
        return self.add(
            *(self.joined(one, other, number * by) for one, number in a.terms.items() for other, by in b.terms.items())
        )

    def joined(self, one: Monomial, other: Monomial, number: Fraction) -> Polynomial:
        """Return the product of two monomials, whose bound indices are kept apart."""
        behind = {-k - 1: -k - 1 - len(one.bound) for k in range(len(other.bound))}
        return self.simple([*one.factors, *other.moved(behind).factors], one.bound + other.bound, number)

    def power(self, a: Polynomial, times: int) -> Polynomial:
        """Multiply a polynomial by itself; 1 for no times."""
        result = as_polynomial(1)
        for _ in range(times):
            result = self.multiply(result, a)
        return result

    def summed(self, a: Polynomial, index: int, size: LiveSize) -> Polynomial:
        """Return the sum over a free index of `size` values."""

        def over(each: Monomial) -> list[AtomAt]:
            """Rename the index to the next bound one in a monomial."""
            return [*each.moved({index: -len(each.bound) - 1}).factors]

        return self.add(
            *(self.simple(over(monomial), (*monomial.bound, size), number) for monomial, number in a.terms.items())
        )

    def moved(self, a: Polynomial, to: Mapping[int, int]) -> Polynomial:
        """Return it over other free indices."""
        if not any(to.get(index, index) != index for index in a.free):
            return a
        return self.add(
            *(
                self.simple(list(monomial.moved(to).factors), monomial.bound, number)
                for monomial, number in a.terms.items()
            )
        )

    # ---- one form of a monomial

    def simple(self, factors: list[AtomAt], bound: tuple[LiveSize, ...], number: Fraction) -> Polynomial:
        """Return a product of atoms in its one form. A sum over an index that does not occur becomes a factor."""
        self.work += 1
        if self.work > MOST_WORK:
            raise GaveUp(f"{self.work} products of entries")
        used = {index for _, at in factors for index in at}
        for k, size in enumerate(bound):
            if -k - 1 in used:
                continue
            if isinstance(size, int) or getattr(size, "is_Integer", False):
                number *= int(size)
            else:
                factors = [*factors, (self.head("size", size), ())]
        factors = cancel_sizes(self.merged(factors))
        for k, (head, at) in enumerate(factors):  # a single number is a factor, no array
            if head.numbers is not None and not at:
                return self.simple([*factors[:k], *factors[k + 1 :]], bound, number * Fraction(float(head.numbers)))
        monomial = canonical(factors, bound)
        for rule in self.rules:
            if (other := rule(monomial)) is not None:
                return self.add(other.scaled(number))
        return Polynomial({monomial: number})

    def merged(self, factors: list[AtomAt]) -> list[AtomAt]:
        """Return factors with their arrays multiplied, if the result has at most MOST_AXES axes."""
        known = [factor for factor in factors if factor[0].numbers is not None]
        if not has_sums(known):
            return factors
        rest = [factor for factor in factors if factor[0].numbers is None]
        needed = {index for _, at in rest for index in at}
        left = tuple(sorted({i for _, at in known for i in at if i >= 0 or i in needed}))
        if len(left) > MOST_AXES:
            return factors
        if len(known) == 1 and left == known[0][1]:
            return factors
        text = einsum_text([at for _, at in known], left)
        heads = [head for head, _ in known]
        total, sizes = (np.asarray(np.einsum(text, *map(of, heads))) for of in (numbers_of, magnitudes_of))
        self.evaluated += len(known) > 1
        return [*rest, (self.array(total, sizes), left)]


def has_sums(known: Sequence[AtomAt]) -> bool:
    """True for several arrays, and for one with an index that is bound or repeated."""
    if len(known) != 1:
        return len(known) > 1
    [(_, at)] = known
    return len({*at}) < len(at) or any(i < 0 for i in at)


def einsum_text(operands: Sequence[IndexTuple], left: IndexTuple) -> str:
    """Return the subscripts, as einsum reads them, of arrays at some indices, of which some are left."""
    letters = {index: chr(ord("a") + k) for k, index in enumerate({i for at in operands for i in at})}
    *words, result = ["".join(letters[i] for i in at) for at in (*operands, left)]
    return f"{','.join(words)}->{result}"


def check_seen(one: Fraction, other: Fraction) -> None:
    """Raise GaveUp if one of two numbers is lost in their sum, given the precision of comparisons."""
    least, most = sorted((abs(one), abs(other)))
    if 0 < least < CANCELLED * most:
        raise GaveUp("numbers too far apart")


def numbers_of(head: Head) -> EntryFloats:
    """Return the known numbers of a head."""
    assert head.numbers is not None
    return head.numbers


def magnitudes_of(head: Head) -> EntryFloats:
    """Return the magnitudes of a head's known numbers."""
    assert head.sizes is not None
    return head.sizes


def cancel_sizes(factors: list[AtomAt]) -> list[AtomAt]:
    """Return factors without sizes that are both multiplied and divided by."""
    counts = Counter(head.content for head, at in factors if not at)
    drop = Counter[Hashable]()
    for content, times in counts.items():
        match content:
            case ("size", size) if other := counts["one over size", size]:
                drop["size", size] = drop["one over size", size] = min(times, other)
    if not drop:
        return factors
    left = []
    for head, at in factors:
        if drop[head.content]:
            drop[head.content] -= 1
        else:
            left.append((head, at))
    return left


def canonical(factors: list[AtomAt], bound: tuple[LiveSize, ...]) -> Monomial:
    """Return the monomial with its bound indices numbered and its factors ordered in one way."""
    used = sorted({index for _, at in factors for index in at if index < 0}, reverse=True)
    size = {index: bound[-index - 1] for index in used}
    if len(used) < 2:
        to = {index: -1 for index in used}
        return order_factors(factors, to, tuple(size.values()))
    classes = refined(factors, used, {index: (str(size[index]),) for index in used})
    if (orders := np.prod([float(np.prod(range(1, len(members) + 1))) for members in classes])) > MOST_ORDERS:
        raise GaveUp(f"{orders:g} orders of bound indices")
    best: Monomial | None = None
    for order in product(*map(permutations, classes)):
        line = [index for part in order for index in part]
        to = {index: -k - 1 for k, index in enumerate(line)}
        monomial = order_factors(factors, to, tuple(size[index] for index in line))
        if best is None or (monomial.key, head_numbers(monomial)) < (best.key, head_numbers(best)):
            best = monomial
    assert best is not None
    return best


def order_factors(factors: Iterable[AtomAt], to: Mapping[int, int], bound: tuple[LiveSize, ...]) -> Monomial:
    """Rename the indices of factors, and put the factors into their order."""
    moved = [(head, place_of(head, tuple(to.get(i, i) for i in at))) for head, at in factors]
    return Monomial(tuple(sorted(moved, key=lambda one: (one[0].rank, one[1], one[0].number))), bound)


def place_of(head: Head, at: IndexTuple) -> IndexTuple:
    """Sort the indices of a head that is symmetric in them."""
    return tuple(sorted(at)) if head.symmetric else at


def refined(factors: list[AtomAt], used: list[int], colours: dict[int, Any]) -> list[list[int]]:
    """Return bound indices in classes, by their places in factors and the other indices there."""
    for _ in range(len(used)):
        seen = {
            index: sorted(
                (head.rank, k, tuple(str(colours.get(i, i)) for i in at))
                for head, at in factors
                for k, i in enumerate(at)
                if i == index
            )
            for index in used
        }
        ranks = {text: k for k, text in enumerate(sorted({str((colours[i], seen[i])) for i in used}))}
        new = {index: (ranks[str((colours[index], seen[index]))],) for index in used}
        if len({*new.values()}) == len({*map(str, colours.values())}) and colours != new and _ > 0:
            break
        colours = new
    groups: dict[Any, list[int]] = {}
    for index in used:
        groups.setdefault(colours[index], []).append(index)
    return [groups[colour] for colour in sorted(groups)]


def are_equal(a: Polynomial, b: Polynomial) -> bool:
    """True if two have the same monomials, with numbers that differ by rounding at most."""
    if a.terms.keys() != b.terms.keys():
        return False
    return all(
        abs(u - b.terms[monomial]) <= Fraction(1, 2**ROUNDED_BITS) * max(abs(u), abs(b.terms[monomial]))
        for monomial, u in a.terms.items()
    )


def parts_of(each: Monomial) -> list[frozenset[int]]:
    """Return the bound indices of a product, in sets that factors join."""
    parts: list[frozenset[int]] = []
    for _, at in each.factors:
        bound = frozenset(i for i in at if i < 0)
        if not bound:
            continue
        joined = bound.union(*(part for part in parts if part & bound))
        parts = [*(part for part in parts if not part & bound), joined]
    return parts


def split_off(each: Monomial, part: frozenset[int]) -> tuple[Monomial, Monomial]:
    """Return the factors that have some bound indices, and the other factors, each as a monomial."""
    taken = [factor for factor in each.factors if part.intersection(factor[1])]
    rest = [factor for factor in each.factors if factor not in taken]
    return canonical(taken, each.bound), canonical(rest, each.bound)


def order_of(p: Polynomial) -> Any:
    """Return the key by which polynomials are ordered."""
    return tuple((monomial.key, head_numbers(monomial), rounded(number)) for monomial, number in p.ordered)


def without_factors(each: Monomial, factors: Sequence[AtomAt]) -> Monomial:
    """Return a product without some of its factors, once each."""
    left = list(each.factors)
    for factor in factors:
        left.remove(factor)
    return Monomial(tuple(left), each.bound)
