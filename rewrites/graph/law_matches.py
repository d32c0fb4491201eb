"""Laws where a graph matches them: by facts and by the shapes of their sides, which may be more than their annotations
say. A graph knows no sizes: `x: value[n], y: value[n]` side by side are matched at widths 6 and 4, and a matrix for
each head where one matrix was meant."""
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from opmatrix.algebra.oracles import dense
from opmatrix.algebra.term import Operator
from rewrites.law import ROWS, SAMPLE, Law, Sort, apart, h, input_columns, is_variable, ragged, sampled, stand_in
from rewrites.laws.facts import DIRECTING, MARKERS

OTHER_SIZES = 11, 4, 1                                      # instead of a size that a law names: odd, even, least
SIZED = {"value", "varying", "constant", "placed", "matrix", "operator", "rotation", "choice", "array", "scores",
         "level", "distances"}                              # sorts whose sizes no graph looks at
ONE_HEAD = {"value": 1, "constant": 1, "matrix": 2}         # those that may have several heads: sizes without them
APART_BY, MATCH_DRAWS = 1e-6, 2                             # relative, of sides that differ; draws for each match


class SizePlace(NamedTuple):
    """One size of a variable's sort, counted from the last."""

    variable: str
    at: int


class Match(NamedTuple):
    """Sorts of some variables that a graph matches as it does those of the annotations. A single column fits beside any
    width: what is made of it then fits nowhere, and no program has it."""

    sorts: dict[str, Sort]
    column: bool = False

    def __str__(self) -> str:
        return ", ".join(f"{name}: {sort}" for name, sort in self.sorts.items())


def find_mismatch(law: Law, seed: int = 0) -> str:
    """Sorts with which the left side of a law is matched and the law is wrong; empty where there are none."""
    return next((str(each) for each in list_matches(law) if fails(law, each, seed)), "")


def check_matches(law: Law, seed: int = 0) -> None:
    """Raises AssertionError for a law that is wrong where a graph matches it, and for a condition that is not
    needed."""
    sorts, needless = find_mismatch(law, seed), list_needless(law, seed)
    assert not sorts, f"{law.name}: {describe_mismatch(sorts)}"
    assert not needless, f"{law.name}: it holds without when={needless[0]!r}, too: leave that out"


def describe_mismatch(sorts: str) -> str:
    """The sentence about sorts with which a law is matched and wrong."""
    return (f"it is wrong with {sorts}, with which its left side is matched, too: a graph sees facts and what fits "
            "together, and no sizes: write a left side that fits no others, or add a guard, such as "
            'when=("(single A)",) of one matrix')


def list_needless(law: Law, seed: int = 0) -> list[str]:
    """The conditions under `when` without which the law holds wherever it is matched, so that nothing shows that they
    are needed. What directs laws makes none true, and is not among them."""
    found = []
    for condition in law.when:
        fact = condition.strip("()").split()[0]
        if fact in DIRECTING or f"(relation {fact} " in MARKERS: continue
        freed = replace(law, when=tuple(each for each in law.when if each != condition))
        if not find_mismatch(freed, seed): found.append(condition)
    return found


def list_matches(law: Law) -> Iterator[Match]:
    """The sorts that a graph may match in place of the annotated ones: other sizes for some of those that are one size
    in the annotations, several heads where one is meant."""
    sorts = law.variables
    by_size: dict[Any, list[SizePlace]] = {}
    for name, sort in sorts.items():
        for at, size in enumerate(reversed(sort.sizes if sort.name in SIZED else ())):
            by_size.setdefault(size, []).append(SizePlace(name, at))
    for size, places in by_size.items():
        named = size in SAMPLE                              # else a number, or what not every number is
        for other in OTHER_SIZES:
            if other != sampled(size):
                yield from (resize(law, each, other) for each in list_some(places, other == 1, not named))
    stacked = {name: sort[(h, *sort.sizes)] for name, sort in sorts.items()
               if len(sort.sizes) == ONE_HEAD.get(sort.name) and f"(single {name})" not in law.when}
    for name, sort in stacked.items(): yield Match({name: sort})


def list_some(places: list[SizePlace], first: bool, every: bool) -> Iterator[tuple[SizePlace, ...]]:
    """Some of the places in every way. Sizes at the others differ from these, whichever of both are changed, so the
    `first` is asked for where one size is unlike another by itself, as 1 is; and `every` place at once where the size
    is no name."""
    for count in range(1, len(places)): yield from combinations(places if first else places[1:], count)
    if every: yield tuple(places)


def resize(law: Law, places: tuple[SizePlace, ...], size: int) -> Match:
    """The sorts of variables with another size at these places."""
    made = dict[str, Sort]()
    for name, at in places:
        sort = made.get(name, law.variables[name])
        sizes = [*sort.sizes]
        sizes[len(sizes) - 1 - at] = size
        made[name] = sort[tuple(sizes)]
    return Match(made, size == 1)


def fails(law: Law, match: Match, seed: int) -> bool:
    """True where the left side fits these sorts, and the right does not, or is not equal, with some choice of monoids,
    patterns and functions."""
    for draw in range(MATCH_DRAWS):
        rng = np.random.default_rng([seed, draw])
        try: variables = law.drawn(rng, **match.sorts)
        except (TypeError, ValueError): return False        # nothing is of such sorts
        off = compare_sides(law, variables, rng)
        if off is None: return False                        # no graph matches it
        if not off <= APART_BY and not (match.column and off == np.inf): return True
    return False


def compare_sides(law: Law, variables: Mapping[str, Any], rng: np.random.Generator) -> float | None:
    """The largest difference of the sides over these variables, built as a graph builds them, infinite where the right
    does not fit; None where the left does not."""
    left, right = law.sides()
    named = {**variables} | {str(stand_in(name, sort)): variables[name] for name, sort in law.variables.items()
                         if sort.name == "count"}
    try:
        before = [build_over(term, named) for term in left]
        x, batch = rng.normal(size=(sum(ROWS), input_columns((tuple(before), ())))), ragged()
        wanted = [dense(term, x, batch) for term in before]
    except (TypeError, ValueError): return None
    try: given = [dense(build_over(term, named), x, batch) for term in right]
    except (TypeError, ValueError): return np.inf
    return max(apart(a, b) if a.shape == b.shape else np.inf for a, b in zip(wanted, given, strict=True))


def build_over(term: Operator, variables: Mapping[str, Any]) -> Operator:
    """A side over what its variables stand for."""
    if term.kind.name == "symbol":
        found: Operator = variables[str(term.args[0])]
        return found
    children = [build_over(child, variables) for child in term.children]
    attributes = [variables[str(each)] if is_variable(each) else each for each in term.attributes]
    return Operator(term.kind, *children, *attributes)
