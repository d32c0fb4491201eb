"""Matches of laws in a graph: by facts and by the shapes of their sides, which may admit more than the annotations. A
graph has no sizes: `x: value[n], y: value[n]` side by side are matched at widths 6 and 4, and a matrix for each head
where one matrix was meant."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from opmatrix.algebra.oracles import dense
from opmatrix.algebra.term import PROPERTIES, Operator
from rewrites.laws.facts import DIRECTING, MARKED, flags, name_flag
from rewrites.laws.guards import SAME_SIZE, Guard, read_guard
from rewrites.laws.instances import CHOICES
from rewrites.laws.law import (
    ATTRIBUTE,
    MOST_TRIALS,
    ROWS,
    SAMPLE,
    VARIABLES,
    Law,
    Sort,
    apart,
    attribute_over,
    h,
    input_columns,
    list_ways,
    ragged,
    sampled,
    stand_in,
)

OTHER_SIZES = 11, 4, 1  # replacements of a size in a law: odd, even, least
SIZED = {
    "value",
    "varying",
    "constant",
    "placed",
    "matrix",
    "operator",
    "rotation",
    "choice",
    "array",
    "scores",
    "level",
    "distances",
    "relative",
}  # sorts whose sizes no graph reads
ONE_HEAD = {"value": 1, "constant": 1, "matrix": 2}  # number of sizes of a sort without several heads
APART_BY = 1e-6  # least relative difference of sides that differ
MATCH_TRIALS = 16  # trials of each match; the annotations have more


class SizePlace(NamedTuple):
    """One size of a variable's sort, counted from the last."""

    variable: str
    at: int


class Match(NamedTuple):
    """Sorts of some variables that a graph matches as it does those of the annotations. A single column fits beside any
    width: a result of it then fits nowhere, and no program has it."""

    sorts: dict[str, Sort]
    column: bool = False

    def __str__(self) -> str:
        return ", ".join(f"{name}: {sort}" for name, sort in self.sorts.items())


ANNOTATED = Match({})


def find_mismatch(law: Law, seed: int = 0) -> str:
    """Return sorts with which the left side of a law is matched and the law is wrong; empty if there are none."""
    return next((str(match) for match in list_matches(law) if fails(law, match, seed)), "")


def check_matches(law: Law, seed: int = 0) -> None:
    """Raise AssertionError for a law that is wrong where a graph matches it, and for a condition that is not needed."""
    sorts, needless = find_mismatch(law, seed), list_needless(law, seed)
    assert not sorts, f"{law.name}: {describe_mismatch(sorts)}"
    assert not needless, f"{law.name}: it holds without when={needless[0]!r}, too: leave that out"


def describe_mismatch(sorts: str) -> str:
    """Return the sentence about sorts with which a law is matched and wrong."""
    return (
        f"it is wrong for {sorts}, which its left side matches, too: a graph knows facts and which shapes fit, "
        "but no sizes: write a left side that matches no other shapes, or add a guard, such as "
        'when="(single A)" of one matrix, or when="(same_size x y)" of two values'
    )


def list_needless(law: Law, seed: int = 0) -> list[str]:
    """Return the conditions under `when` without which the law still holds wherever it is matched, so no test shows
    that they are needed. Facts that only direct laws are not among them."""
    needless = []
    for condition in law.when:
        guard = read_guard(condition)
        if guard is None or guard.fact in DIRECTING or guard.fact in MARKED:
            continue
        freed = replace(law, when=tuple(other for other in law.when if other != condition))
        if not (fails(freed, ANNOTATED, seed, MOST_TRIALS) or find_mismatch(freed, seed)):
            needless.append(condition)
    return needless


def find_unasked(law: Law) -> str:
    """Return the first condition of a law that is invalid, or that no drawn variable meets, as a sentence; empty if
    there is none."""
    for condition in law.when:
        guard = read_guard(condition)
        if guard is None:
            return f"when={condition!r}: write a fact and a variable in brackets, such as (linear A)"
        if reason := find_unknown(law, guard):
            return f"when={condition!r}: {reason}"
    for name, sort in law.sorts.items():
        if list_ways(sort):
            continue
        asked = " and ".join(dict.fromkeys(map(str, (*sort.facts, *(sort.sizes if takes_flags(sort) else ())))))
        able = ", ".join(fact for fact in name_facts(sort) if list_ways(replace(law.variables[name], facts=(fact,))))
        return (
            f"no test value of {name}: {law.variables[name]} is {asked}, so the law cannot "
            f"be tried: annotate {name} in another way" + (f", or require one of {able}" if able else "")
        )
    return ""


def find_unknown(law: Law, guard: Guard) -> str:
    """Return the reason why a condition requires no fact of a law's variables; empty if it does."""
    if strange := [name for name in guard.variables if name not in law.variables]:
        return f"{strange[0]} is not one of its variables, which are {', '.join(law.variables)}"
    if guard.fact in MARKED:
        if len(guard.variables) == MARKED[guard.fact]:
            return ""
        return f"{guard.fact} takes {MARKED[guard.fact]} variables"
    if guard.fact == SAME_SIZE:
        values = all("act" in law.variables[name].facts for name in guard.variables)
        return "" if len(guard.variables) == 2 and values else f"{SAME_SIZE} takes two values"
    if len(guard.variables) > 1:
        return f"{guard.fact} takes one variable"
    sort = law.variables[guard.variables[0]]
    if guard.fact in (able := name_facts(sort)):
        return ""
    return f"{guard.fact} is not a fact of {guard.variables[0]}: {sort}, which has " + (
        f"{', '.join(able)}" if able else "none: leave it out"
    )


def takes_flags(sort: Sort) -> bool:
    """True for sorts of monoids, patterns and relations, whose flags are named in brackets."""
    return VARIABLES.get(sort.name, ATTRIBUTE) is ATTRIBUTE


def name_facts(sort: Sort) -> tuple[str, ...]:
    """Return the facts that may be required of a variable of a sort, by their names in a graph."""
    if sort.name in ("count", "lag"):
        return ()
    if sort.name in CHOICES and not takes_flags(sort):
        return (*PROPERTIES,)
    if not takes_flags(sort):
        return *PROPERTIES, *(DIRECTING if "act" in sort.facts else ("imported", "turning"))
    return tuple(fact for fact in map(name_flag, flags()) if list_ways(Sort(sort.name, (fact,))))


def list_matches(law: Law) -> Iterator[Match]:
    """Yield the sorts that a graph may match in place of the annotated ones: other sizes for some of those that are one
    size in the annotations, several heads where one is meant."""
    sorts = law.sorts
    by_size: dict[Any, list[SizePlace]] = {}
    for name, sort in sorts.items():
        for at, size in enumerate(reversed(sort.sizes if sort.name in SIZED else ())):
            by_size.setdefault(size, []).append(SizePlace(name, at))
    for size, places in by_size.items():
        named = size in SAMPLE  # else a number, or an expression such as 2 * n
        for other in OTHER_SIZES:
            if other != sampled(size):
                yield from (resize(law, chosen, other) for chosen in list_some(places, other == 1, not named))
    stacked = {
        name: sort[(h, *sort.sizes)] for name, sort in sorts.items() if len(sort.sizes) == ONE_HEAD.get(sort.name)
    }
    for name, sort in stacked.items():
        yield Match({name: sort})
    for pair in list_same_sizes(law):
        if {*pair} <= stacked.keys():
            yield Match({name: stacked[name] for name in pair})


def list_same_sizes(law: Law) -> list[tuple[str, ...]]:
    """Return the variables that conditions require to be of one size, pair by pair."""
    guards = filter(None, map(read_guard, law.when))
    return [guard.variables for guard in guards if guard.fact == SAME_SIZE]


def list_some(places: list[SizePlace], first: bool, every: bool) -> Iterator[tuple[SizePlace, ...]]:
    """Yield some of the places, in every combination. It is enough to change one group of places or its complement, so
    the first place is left out, unless `first`, for a size such as 1 that differs by itself. With `every`, for a size
    that is no name, also all places at once."""
    for count in range(1, len(places)):
        yield from combinations(places if first else places[1:], count)
    if every:
        yield tuple(places)


def resize(law: Law, places: tuple[SizePlace, ...], size: int) -> Match:
    """Return the sorts of variables with another size at these places."""
    resized = dict[str, Sort]()
    for name, at in places:
        sort = resized.get(name, law.sorts[name])
        sizes = [*sort.sizes]
        sizes[len(sizes) - 1 - at] = size
        resized[name] = sort[tuple(sizes)]
    return Match(resized, size == 1)


def fails(law: Law, match: Match, seed: int, most: int = MATCH_TRIALS) -> bool:
    """True if the left side fits these sorts, and the right does not, or is not equal, with some choice of monoids,
    patterns, functions and operators."""
    sorts, rng = law.sorts | match.sorts, np.random.default_rng([seed, 0])
    for one, other in list_same_sizes(law):
        if [*map(sampled, sorts[one].sizes)] != [*map(sampled, sorts[other].sizes)]:
            return False
    try:
        trials = [*law.trials(rng, most, **match.sorts)]
    except (TypeError, ValueError):
        return False  # no operator has such sorts
    for variables in trials:
        off = compare_sides(law, variables, rng)
        if off is None:
            continue  # no graph matches it
        if not off <= APART_BY and not (match.column and off == np.inf):
            return True
    return False


def compare_sides(law: Law, variables: Mapping[str, Any], rng: np.random.Generator) -> float | None:
    """Return the largest difference of the sides over these variables, built as a graph builds them; infinite where the
    right does not fit; None where the left does not."""
    left, right = law.sides()
    named = {**variables} | {
        str(stand_in(name, sort)): variables[name] for name, sort in law.variables.items() if sort.name == "count"
    }
    try:
        before = [build_over(term, named) for term in left]
        x, batch = rng.normal(size=(sum(ROWS), input_columns((tuple(before), ())))), ragged()
        wanted = [dense(term, x, batch) for term in before]
    except (TypeError, ValueError):
        return None
    try:
        results = [dense(build_over(term, named), x, batch) for term in right]
    except (TypeError, ValueError):
        return np.inf
    return max(apart(a, b) if a.shape == b.shape else np.inf for a, b in zip(wanted, results, strict=True))


def build_over(term: Operator, variables: Mapping[str, Any]) -> Operator:
    """Return a side over the operators of its variables."""
    if term.kind.name == "symbol":
        operator: Operator = variables[str(term.args[0])]
        return operator
    children = [build_over(child, variables) for child in term.children]
    attributes = [attribute_over(attribute, variables) for attribute in term.attributes]
    return Operator(term.kind, *children, *attributes)
