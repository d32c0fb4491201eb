"""Small sizes that fit one another as those of a template do. What ties sizes is listed nowhere: sizes that remember
what they are asked go through the shape rules of kinds (concolic execution: Godefroid, Klarlund, Sen 2005), and small
ones are found of which every question has the answer that it had."""
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

Terms = tuple[tuple[tuple[int, ...], int], ...]             # of a polynomial in sizes: factors, how many times
LARGEST = (64, False), (256, False), (64, True)             # of small sizes, and whether others may stay: in this order
FIRST_TRIED, FACTOR = 4, 2                                        # what is tried first, and for what others are made of
TRIES = 1000                                                # numbers that may be given in each


ShapeQuery = tuple["Question", bool, set[int]]                   # with its answer, and the sizes that it is about
About = Mapping[int, Sequence[ShapeQuery]]


def divides(a: int, b: int) -> bool: return b != 0 and a % b == 0


class Question(NamedTuple):
    """What was asked of two sizes: eq, lt, le or divides."""
    asked: Callable[[int, int], bool]
    left: Terms
    right: Terms

    def sizes(self) -> set[int]: return {size for terms in self[1:] for factors, _ in terms for size in factors}

    def answer(self, small: Mapping[int, int]) -> bool:
        left, right = (sum(times * prod(small[size] for size in factors) for factors, times in terms)
                       for terms in self[1:])
        return self.asked(left, right)

    def leave(self, answer: bool, size: int, able: Sequence[int], small: Mapping[int, int]) -> list[int]:
        """The numbers, among those that a size is able to become, that leave the answer, where the other sizes have
        theirs. Both sides are polynomials in it."""
        left, right = (polynomial_in(size, terms, small) for terms in self[1:])
        return [n for n in able if self.asked(evaluate_at(n, left), evaluate_at(n, right)) == answer]


def polynomial_in(size: int, terms: Terms, small: Mapping[int, int]) -> list[int]:
    """What terms are in one size where the others are these: coefficients, that of the highest power first."""
    found: dict[int, int] = {}
    for factors, times in terms:
        power = factors.count(size)
        found[power] = found.get(power, 0) + times * prod(small[each] for each in factors if each != size)
    return [found.get(power, 0) for power in range(max(found, default=0), -1, -1)]


def evaluate_at(n: int, coefficients: Sequence[int]) -> int:
    value = 0
    for each in coefficients: value = value * n + each
    return value


SERIALS = count()


class Answers(dict[Question, bool]):
    """Every question with its answer, and the sizes it was about. A size is known by its number, so equal ones are
    one. `serial` tells these sizes from those of answers that are gone: an address may be another's again."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: set[int] = set()
        self.serial = next(SERIALS)

    def size(self, number: int) -> int:
        """A size that remembers what it is asked; none and one are what they are."""
        return number if number < 2 else self.known(number)

    def known(self, number: int) -> Traced:
        self.sizes.add(number)
        return Traced.of(number, (((number,), 1),), self)

    def ask(self, asked: Callable[[int, int], bool], a: Traced, b: Traced) -> bool:
        answer = asked(int(a), int(b))
        if a.terms != b.terms: self[Question(asked, a.terms, b.terms)] = answer
        return answer


class Traced(int):
    """A size that knows what it was made of, and notes what is asked of it. A plain number from 3 on that it meets is
    the size of that number; 2 is what doubles."""
    terms: Terms
    answers: Answers

    @classmethod
    def of(cls, number: int, terms: Terms, answers: Answers) -> Traced:
        made = cls(number)
        made.terms, made.answers = terms, answers
        return made

    def met(self, other: int) -> Traced:
        """What it meets, as such a size."""
        if isinstance(other, Traced): return other
        return self.answers.known(other) if other > 2 else Traced.of(other, (((), int(other)),), self.answers)

    def __hash__(self) -> int: return hash((self.answers.serial, self.terms))


def combined(sign: int) -> Callable[[Traced, Traced], int]:
    def add(a: Traced, b: Traced) -> int:
        count: dict[tuple[int, ...], int] = {}
        for factors, times in chain(a.terms, ((factors, sign * times) for factors, times in b.terms)):
            count[factors] = count.get(factors, 0) + times
        return made_of(int(a) + sign * int(b), count, a.answers)
    return add


def multiplied(a: Traced, b: Traced) -> int:
    count: dict[tuple[int, ...], int] = {}
    for one, times in a.terms:
        for other, again in b.terms:
            factors = tuple(sorted(one + other))
            count[factors] = count.get(factors, 0) + times * again
    return made_of(mul(int(a), int(b)), count, a.answers)


def made_of(number: int, count: Mapping[tuple[int, ...], int], answers: Answers) -> int:
    """A sum of terms; a plain number where no size is left in it."""
    terms = tuple(sorted((factors, times) for factors, times in count.items() if times))
    return Traced.of(number, terms, answers) if any(factors for factors, _ in terms) else number


def divide_sizes(a: Traced, b: Traced) -> int:
    """The size of that number; b times it is a, or less by what is left over."""
    quotient = a.met(int(a) // int(b))
    product = a.met(multiplied(quotient, b))
    if not a.answers.ask(divides, a, b):
        a.answers.ask(le, product, a)
        a.answers.ask(lt, a, a.met(combined(1)(product, b)))
    else: a.answers.ask(eq, product, a)
    return quotient if int(quotient) > 1 else int(quotient)


def left_over(a: Traced, b: Traced) -> int:
    a.answers.ask(divides, a, b)
    return int(a) % int(b)


def compared(asked: Callable[[int, int], bool], a: Traced, b: Traced) -> bool: return a.answers.ask(asked, a, b)


def swapped(does: Callable[[Traced, Traced], int]) -> Callable[[Traced, Traced], int]: return lambda a, b: does(b, a)


OPERATIONS: dict[str, Callable[[Traced, Traced], int]] = {
    "add": combined(1), "sub": combined(-1), "mul": multiplied, "floordiv": divide_sizes, "mod": left_over}
QUESTIONS: dict[str, Callable[[Traced, Traced], int]] = {
    "eq": partial(compared, eq), "lt": partial(compared, lt), "le": partial(compared, le),
    "ne": lambda a, b: not compared(eq, a, b), "gt": swapped(partial(compared, lt)),
    "ge": swapped(partial(compared, le))}


def method(does: Callable[[Traced, Traced], int]) -> Callable[[Traced, object], object]:
    def applied(self: Traced, other: object) -> object:
        return does(self, self.met(other)) if isinstance(other, int) else NotImplemented
    return applied


for name, does in OPERATIONS.items():
    setattr(Traced, f"__{name}__", method(does))
    setattr(Traced, f"__r{name}__", method(swapped(does)))
for name, does in QUESTIONS.items(): setattr(Traced, f"__{name}__", method(does))


def traced(name: str, value: object, answers: Answers) -> object:
    """A value of a template with sizes that remember what they are asked."""
    size = answers.size
    if isinstance(value, Data): return Promised(f"{name} {answers.serial}", tuple(map(size, value.shape)))
    if isinstance(value, Port): return replace(value, columns=size(value.columns), heads=size(value.heads))
    if isinstance(value, Shape): return Shape(*(size(s) if isinstance(s, int) else s for s in value))
    if isinstance(value, type) and issubclass(value, Monoid) and value.width and value.width > 1:
        return asking(value, value.width, answers)
    return size(value) if type(value) is int else value


def asking(monoid: type[Monoid], columns: int, answers: Answers) -> type:
    """A monoid that gives several columns, which stay as many; it asks whether as many numbers are merged."""
    width = answers.known(columns)
    answers[Question(eq, width.terms, (((), columns),))] = True

    def count(merged: object) -> int:
        if isinstance(merged, int): answers.ask(le, width, width.met(merged))
        return columns
    return type(monoid.__name__, (monoid,), {"count": staticmethod(count)})


def ask_shapes(values: Mapping[str, object],
               instance: Callable[[dict[str, object]], Mapping[str, Operator]]) -> Answers:
    """What the shape rules of kinds ask of the sizes of a template, and what its terms' sizes are made of."""
    answers = Answers()
    built = instance({name: traced(name, value, answers) for name, value in values.items()})
    for term in built.values():
        for size in (*term.into, *term.out):
            if isinstance(size, Traced): size.__eq__(answers.size(int(size)))
        for shape in [each for each in [*term.shapes] if any(isinstance(size, Traced) for size in each)]:
            term.shapes.pop(shape, None)                    # terms without sizes of their own live on
    return answers


def shrink(answers: Answers) -> dict[int, int]:
    """A small number for each size, another for each, so that every answer is what it was; where that is not found
    soon, sizes may stay as they are. Nothing where that is not found soon either."""
    products = {size for question in answers for terms in question[1:] for factors, _ in terms
                if len(factors) > 1 or question.asked is divides for size in factors}
    about = {size: [(question, answer, question.sizes()) for question, answer in answers.items()
                    if size in question.sizes()] for size in answers.sizes}
    tried = ({size: candidates(size, FACTOR if size in products else FIRST_TRIED, largest, stays)
              for size in answers.sizes} for largest, stays in LARGEST)
    return next((found for domains in tried if (found := search(about, domains)) is not None), {})


def candidates(size: int, first: int, largest: int, stays: bool) -> list[int]:
    """The numbers that a size may become, those tried first first: none is larger than itself."""
    most = min(size, largest)
    return [*range(first, most + 1), *range(min(first, most + 1) - 1, 1, -1), *[size] * (stays and size > most)]


def search(about: About, domains: Mapping[int, list[int]]) -> dict[int, int] | None:
    """Sizes given one after another, first those of which fewest numbers are left, each with a look at what it leaves
    others."""
    left = TRIES

    def give(small: dict[int, int], domains: Mapping[int, list[int]]) -> dict[int, int] | None:
        nonlocal left
        if not domains: return small
        size = min(domains, key=lambda each: (len(domains[each]), each))
        for number in domains[size]:
            left -= 1
            if left < 0: return None
            more = small | {size: number}
            rest = {each: [n for n in able if n != number] for each, able in domains.items() if each != size}
            if narrow_domains(about[size], more, rest) and (found := give(more, rest)) is not None: return found
        return None

    start = dict(domains)
    return give({}, start) if all(narrow_domains(each, {}, start) for each in about.values()) else None


def narrow_domains(about: Sequence[ShapeQuery], small: Mapping[int, int], domains: dict[int, list[int]]) -> bool:
    """Whether a number is left for each size, where questions about one that has none yet leave it those that answer
    them so."""
    for question, answer, sizes in about:
        waiting = [size for size in sizes if size not in small]
        if len(waiting) == 1:
            size = waiting[0]
            domains[size] = question.leave(answer, size, domains[size], small)
            if not domains[size]: return False
    return all(domains.values())
