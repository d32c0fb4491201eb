"""Small sizes that fit one another as the sizes of a template do. The ties between sizes are not listed: sizes that
record every comparison go through the shape rules of kinds (concolic execution: Godefroid, Klarlund, Sen 2005), and
small ones are searched for that give every comparison its old answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count
from math import prod
from operator import eq, le, lt, mul
from typing import NamedTuple

from opmatrix.algebra.batch.signature import Port
from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.shapes import Shape
from opmatrix.algebra.term import Operator

Terms = tuple[tuple[tuple[int, ...], int], ...]  # polynomial in sizes: factors, coefficient
LARGEST = (64, False), (256, False), (64, True)  # largest small size, and if others may stay: in order
FIRST_TRIED, FACTOR = 4, 2  # first number tried, and that for factors
TRIES = 1000  # most assignments in each search


ShapeQuery = tuple["Question", bool, set[int]]  # a question, its answer, and its sizes
About = Mapping[int, Sequence[ShapeQuery]]


def divides(a: int, b: int) -> bool:
    """True if b divides a; 0 divides no number."""
    return b != 0 and a % b == 0


class Question(NamedTuple):
    """A comparison of two sizes: eq, lt, le or divides."""

    asked: Callable[[int, int], bool]
    left: Terms
    right: Terms

    def sizes(self) -> set[int]:
        """Return the template's sizes that occur in either side."""
        return {size for terms in self[1:] for factors, _ in terms for size in factors}

    def answer(self, small: Mapping[int, int]) -> bool:
        """Compare both sides with these numbers for the sizes."""
        left, right = (
            sum(times * prod(small[size] for size in factors) for factors, times in terms) for terms in self[1:]
        )
        return self.asked(left, right)

    def leave(self, answer: bool, size: int, able: Sequence[int], small: Mapping[int, int]) -> list[int]:
        """Return the numbers in `able` for a size that give this answer, where the other sizes have the numbers in
        `small`. Both sides are polynomials in it."""
        left, right = (polynomial_in(size, terms, small) for terms in self[1:])
        return [n for n in able if self.asked(evaluate_at(n, left), evaluate_at(n, right)) == answer]


def polynomial_in(size: int, terms: Terms, small: Mapping[int, int]) -> list[int]:
    """Return the coefficients of terms as a polynomial in one size, highest power first, where the other sizes have the
    numbers in `small`."""
    by_power: dict[int, int] = {}
    for factors, times in terms:
        power = factors.count(size)
        by_power[power] = by_power.get(power, 0) + times * prod(small[factor] for factor in factors if factor != size)
    return [by_power.get(power, 0) for power in range(max(by_power, default=0), -1, -1)]


def evaluate_at(n: int, coefficients: Sequence[int]) -> int:
    """Evaluate a polynomial, highest power first, by Horner's rule."""
    value = 0
    for coefficient in coefficients:
        value = value * n + coefficient
    return value


SERIALS = count()


class Answers(dict[Question, bool]):
    """Every question with its answer, and the sizes it was about. A size is identified by its number, so equal ones are
    one. `serial` tells these sizes from those of deleted answers, whose address may be used again."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: set[int] = set()
        self.serial = next(SERIALS)

    def size(self, number: int) -> int:
        """Return a size that records its comparisons; 0 and 1 stay plain."""
        return number if number < 2 else self.known(number)

    def known(self, number: int) -> Traced:
        """Return the size of this number, which is noted."""
        self.sizes.add(number)
        return Traced.of(number, (((number,), 1),), self)

    def ask(self, asked: Callable[[int, int], bool], a: Traced, b: Traced) -> bool:
        """Compare two sizes, and record the answer unless both are the same polynomial."""
        answer = asked(int(a), int(b))
        if a.terms != b.terms:
            self[Question(asked, a.terms, b.terms)] = answer
        return answer


class Traced(int):
    """A size that holds its polynomial in the template's sizes, and records its comparisons. A plain number from 3 on
    that it meets is the size of that number; 2 stays a factor."""

    terms: Terms
    answers: Answers

    @classmethod
    def of(cls, number: int, terms: Terms, answers: Answers) -> Traced:
        """Make a size from its number and its polynomial."""
        size = cls(number)
        size.terms, size.answers = terms, answers
        return size

    def met(self, other: int) -> Traced:
        """Return the other operand as such a size."""
        if isinstance(other, Traced):
            return other
        return self.answers.known(other) if other > 2 else Traced.of(other, (((), int(other)),), self.answers)

    def __hash__(self) -> int:
        return hash((self.answers.serial, self.terms))


def combined(sign: int) -> Callable[[Traced, Traced], int]:
    """Return the sum of two sizes (`sign` 1), or their difference (-1)."""

    def add(a: Traced, b: Traced) -> int:
        """Add the terms of b to those of a, with the sign."""
        count: dict[tuple[int, ...], int] = {}
        for factors, times in chain(a.terms, ((factors, sign * times) for factors, times in b.terms)):
            count[factors] = count.get(factors, 0) + times
        return made_of(int(a) + sign * int(b), count, a.answers)

    return add


def multiplied(a: Traced, b: Traced) -> int:
    """Return the product of two sizes, term by term."""
    count: dict[tuple[int, ...], int] = {}
    for one, times in a.terms:
        for other, again in b.terms:
            factors = tuple(sorted(one + other))
            count[factors] = count.get(factors, 0) + times * again
    return made_of(mul(int(a), int(b)), count, a.answers)


def made_of(number: int, count: Mapping[tuple[int, ...], int], answers: Answers) -> int:
    """Return a sum of terms; a plain number where no size is left in it."""
    terms = tuple(sorted((factors, times) for factors, times in count.items() if times))
    return Traced.of(number, terms, answers) if any(factors for factors, _ in terms) else number


def divide_sizes(a: Traced, b: Traced) -> int:
    """Return the quotient as a size of that number; b times it is a, or less by the remainder."""
    quotient = a.met(int(a) // int(b))
    product = a.met(multiplied(quotient, b))
    if not a.answers.ask(divides, a, b):
        a.answers.ask(le, product, a)
        a.answers.ask(lt, a, a.met(combined(1)(product, b)))
    else:
        a.answers.ask(eq, product, a)
    return quotient if int(quotient) > 1 else int(quotient)


def left_over(a: Traced, b: Traced) -> int:
    """Return the remainder as a plain number, and record whether it is 0."""
    a.answers.ask(divides, a, b)
    return int(a) % int(b)


def compared(asked: Callable[[int, int], bool], a: Traced, b: Traced) -> bool:
    """Compare two sizes by one of the recorded questions."""
    return a.answers.ask(asked, a, b)


def swapped(does: Callable[[Traced, Traced], int]) -> Callable[[Traced, Traced], int]:
    """Return the operation with its operands exchanged."""
    return lambda a, b: does(b, a)


OPERATIONS: dict[str, Callable[[Traced, Traced], int]] = {
    "add": combined(1),
    "sub": combined(-1),
    "mul": multiplied,
    "floordiv": divide_sizes,
    "mod": left_over,
}
QUESTIONS: dict[str, Callable[[Traced, Traced], int]] = {
    "eq": partial(compared, eq),
    "lt": partial(compared, lt),
    "le": partial(compared, le),
    "ne": lambda a, b: not compared(eq, a, b),
    "gt": swapped(partial(compared, lt)),
    "ge": swapped(partial(compared, le)),
}


def method(does: Callable[[Traced, Traced], int]) -> Callable[[Traced, object], object]:
    """Return the method of an operator for sizes; any other operand than a whole number is refused."""

    def applied(self: Traced, other: object) -> object:
        """Apply the operation to a size and a whole number."""
        return does(self, self.met(other)) if isinstance(other, int) else NotImplemented

    return applied


for name, does in OPERATIONS.items():
    setattr(Traced, f"__{name}__", method(does))
    setattr(Traced, f"__r{name}__", method(swapped(does)))
for name, does in QUESTIONS.items():
    setattr(Traced, f"__{name}__", method(does))


def traced(name: str, value: object, answers: Answers) -> object:
    """Return a value of a template with sizes that record their comparisons."""
    size = answers.size
    if isinstance(value, Data):
        return Promised(f"{name} {answers.serial}", tuple(map(size, value.shape)))
    if isinstance(value, Port):
        return replace(value, columns=size(value.columns), heads=size(value.heads))
    if isinstance(value, Shape):
        return Shape(*(size(s) if isinstance(s, int) else s for s in value))
    if isinstance(value, type) and issubclass(value, Monoid) and value.width and value.width > 1:
        return asking(value, value.width, answers)
    return size(value) if type(value) is int else value


def asking(monoid: type[Monoid], columns: int, answers: Answers) -> type:
    """Return a monoid of several columns, whose number is fixed; it records whether as many numbers are merged."""
    width = answers.known(columns)
    answers[Question(eq, width.terms, (((), columns),))] = True

    def count(merged: object) -> int:
        """Return the fixed number of columns, and record whether as many numbers are merged."""
        if isinstance(merged, int):
            answers.ask(le, width, width.met(merged))
        return columns

    return type(monoid.__name__, (monoid,), {"count": staticmethod(count)})


def ask_shapes(
    values: Mapping[str, object], instance: Callable[[dict[str, object]], Mapping[str, Operator]]
) -> Answers:
    """Return the comparisons of a template's sizes by the shape rules of kinds, and by the sizes of its terms."""
    answers = Answers()
    built = instance({name: traced(name, value, answers) for name, value in values.items()})
    for term in built.values():
        for size in (*term.into, *term.out):
            if isinstance(size, Traced):
                size.__eq__(answers.size(int(size)))
        for shape in [known for known in [*term.shapes] if any(isinstance(size, Traced) for size in known)]:
            term.shapes.pop(shape, None)  # terms without such sizes outlive this call
    return answers


def shrink(answers: Answers) -> dict[int, int]:
    """Return a small number for each size, all different, so that every answer is as before. If none is found soon,
    some sizes may stay as they are; empty if that finds none either."""
    products = {
        size
        for question in answers
        for terms in question[1:]
        for factors, _ in terms
        if len(factors) > 1 or question.asked is divides
        for size in factors
    }
    about = {
        size: [(question, answer, question.sizes()) for question, answer in answers.items() if size in question.sizes()]
        for size in answers.sizes
    }
    tried = (
        {size: candidates(size, FACTOR if size in products else FIRST_TRIED, largest, stays) for size in answers.sizes}
        for largest, stays in LARGEST
    )
    return next((small for domains in tried if (small := search(about, domains)) is not None), {})


def candidates(size: int, first: int, largest: int, stays: bool) -> list[int]:
    """Return the numbers that a size may become, in the order of trial: none is larger than itself."""
    most = min(size, largest)
    return [*range(first, most + 1), *range(min(first, most + 1) - 1, 1, -1), *[size] * (stays and size > most)]


def search(about: About, domains: Mapping[int, list[int]]) -> dict[int, int] | None:
    """Return numbers for the sizes, or None. Sizes with the fewest numbers left come first, and each choice narrows the
    others' numbers."""
    left = TRIES

    def give(small: dict[int, int], domains: Mapping[int, list[int]]) -> dict[int, int] | None:
        """Give the size with the fewest numbers left each of them in turn; None if no number leads to a solution, or
        tries are used up."""
        nonlocal left
        if not domains:
            return small
        size = min(domains, key=lambda each: (len(domains[each]), each))
        for number in domains[size]:
            left -= 1
            if left < 0:
                return None
            more = small | {size: number}
            rest = {other: [n for n in able if n != number] for other, able in domains.items() if other != size}
            if narrow_domains(about[size], more, rest) and (solution := give(more, rest)) is not None:
                return solution
        return None

    start = dict(domains)
    return give({}, start) if all(narrow_domains(queries, {}, start) for queries in about.values()) else None


def narrow_domains(about: Sequence[ShapeQuery], small: Mapping[int, int], domains: dict[int, list[int]]) -> bool:
    """True if a number is left for each size. Questions about a single open size restrict it to numbers that give their
    answer."""
    for question, answer, sizes in about:
        waiting = [size for size in sizes if size not in small]
        if len(waiting) == 1:
            size = waiting[0]
            domains[size] = question.leave(answer, size, domains[size], small)
            if not domains[size]:
                return False
    return all(domains.values())
