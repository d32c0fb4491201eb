"""Laws where a graph matches them: by facts and by the shapes of their sides, which may be more than their annotations
say. A graph knows no sizes: `x: value[n], y: value[n]` side by side are matched at widths 6 and 4, and a matrix for
each head where one matrix was meant."""
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
    h,
    input_columns,
    is_variable,
    list_ways,
    ragged,
    sampled,
    stand_in,
)

OTHER_SIZES = 11, 4, 1                                      # instead of a size that a law names: odd, even, least
SIZED = {"value", "varying", "constant", "placed", "matrix", "operator", "rotation", "choice", "array", "scores",
         "level", "distances"}                              # sorts whose sizes no graph looks at
ONE_HEAD = {"value": 1, "constant": 1, "matrix": 2}         # those that may have several heads: sizes without them
APART_BY = 1e-6                                             # relative, of sides that differ
MATCH_TRIALS = 16                                           # of each match; of all that is annotated more


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


ANNOTATED = Match({})


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
            'when="(single A)" of one matrix, or when="(same_size x y)" of two values')


def list_needless(law: Law, seed: int = 0) -> list[str]:
    """The conditions under `when` without which the law holds wherever it is matched, so that nothing shows that they
    are needed. What directs laws makes none true, and is not among them."""
    found = []
    for condition in law.when:
        guard = read_guard(condition)
        if guard is None or guard.fact in DIRECTING or guard.fact in MARKED: continue
        freed = replace(law, when=tuple(each for each in law.when if each != condition))
        if not (fails(freed, ANNOTATED, seed, MOST_TRIALS) or find_mismatch(freed, seed)): found.append(condition)
    return found


def find_unasked(law: Law) -> str:
    """The first condition of a law that is none, or that nothing which a check draws meets, as a sentence; empty where
    there is none."""
    for condition in law.when:
        guard = read_guard(condition)
        if guard is None: return f"when={condition!r}: write a fact and a variable in brackets, such as (linear A)"
        if reason := find_unknown(law, guard): return f"when={condition!r}: {reason}"
    for name, sort in law.sorts.items():
        if list_ways(sort): continue
        asked = " and ".join(dict.fromkeys(map(str, (*sort.facts, *(sort.sizes if takes_flags(sort) else ())))))
        able = ", ".join(fact for fact in name_facts(sort) if list_ways(replace(law.variables[name], facts=(fact,))))
        return (f"nothing that {name}: {law.variables[name]} stands for in a check is {asked}, so that the law cannot "
                f"be tried: annotate {name} otherwise" + (f", or ask for one of {able}" if able else ""))
    return ""


def find_unknown(law: Law, guard: Guard) -> str:
    """The reason why a condition asks for no fact of variables of a law; empty where it does."""
    if strange := [name for name in guard.variables if name not in law.variables]:
        return f"{strange[0]} is none of its variables, which are {', '.join(law.variables)}"
    if guard.fact in MARKED:
        if len(guard.variables) == MARKED[guard.fact]: return ""
        return f"{guard.fact} is asked of {MARKED[guard.fact]} variables"
    if guard.fact == SAME_SIZE:
        values = all("act" in law.variables[name].facts for name in guard.variables)
        return "" if len(guard.variables) == 2 and values else f"{SAME_SIZE} is asked of two values"
    if len(guard.variables) > 1: return f"{guard.fact} is asked of one variable"
    sort = law.variables[guard.variables[0]]
    if guard.fact in (able := name_facts(sort)): return ""
    return (f"{guard.fact} is no fact of {guard.variables[0]}: {sort}, of which "
            + (f"may be asked {', '.join(able)}" if able else "none may be asked: leave it out"))


def takes_flags(sort: Sort) -> bool:
    """True of monoids, patterns and relations, which are named in brackets by their flags."""
    return VARIABLES.get(sort.name, ATTRIBUTE) is ATTRIBUTE


def name_facts(sort: Sort) -> tuple[str, ...]:
    """The facts that may be asked of a variable of a sort, as a graph calls them."""
    if sort.name == "count": return ()
    if sort.name in CHOICES and not takes_flags(sort): return *PROPERTIES,
    if not takes_flags(sort): return *PROPERTIES, *(DIRECTING if "act" in sort.facts else ("imported", "turning"))
    return tuple(fact for fact in map(name_flag, flags()) if list_ways(Sort(sort.name, (fact,))))


def list_matches(law: Law) -> Iterator[Match]:
    """The sorts that a graph may match in place of the annotated ones: other sizes for some of those that are one size
    in the annotations, several heads where one is meant."""
    sorts = law.sorts
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
               if len(sort.sizes) == ONE_HEAD.get(sort.name)}
    for name, sort in stacked.items(): yield Match({name: sort})
    for pair in list_same_sizes(law):
        if {*pair} <= stacked.keys(): yield Match({name: stacked[name] for name in pair})


def list_same_sizes(law: Law) -> list[tuple[str, ...]]:
    """The variables that conditions ask to be of one size, pair by pair."""
    guards = filter(None, map(read_guard, law.when))
    return [guard.variables for guard in guards if guard.fact == SAME_SIZE]


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
        sort = made.get(name, law.sorts[name])
        sizes = [*sort.sizes]
        sizes[len(sizes) - 1 - at] = size
        made[name] = sort[tuple(sizes)]
    return Match(made, size == 1)


def fails(law: Law, match: Match, seed: int, most: int = MATCH_TRIALS) -> bool:
    """True where the left side fits these sorts, and the right does not, or is not equal, with some choice of monoids,
    patterns, functions and operators."""
    sorts, rng = law.sorts | match.sorts, np.random.default_rng([seed, 0])
    for one, other in list_same_sizes(law):
        if [*map(sampled, sorts[one].sizes)] != [*map(sampled, sorts[other].sizes)]: return False
    try: trials = [*law.trials(rng, most, **match.sorts)]
    except (TypeError, ValueError): return False            # nothing is of such sorts
    for variables in trials:
        off = compare_sides(law, variables, rng)
        if off is None: continue                            # no graph matches it
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
