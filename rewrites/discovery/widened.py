"""Guards of laws, widened: of one variable at a time a fact or a flag is dropped, or a wider sort is taken, until
numbers show a counterexample."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rewrites.discovery.stated_laws import StatedEquation, find_misuse, try_law
from rewrites.laws.facts import DIRECTING
from rewrites.laws.law import (
    FITTING,
    Law,
    Sides,
    Sort,
    SortSize,
    constant,
    entrywise,
    matrix,
    mixing,
    normalised,
    operator,
    placed,
    relation,
    right_linear,
    scores,
    value,
    varying,
)

WIDER_SORTS = {
    "matrix": (operator,),
    "rotation": (operator,),
    "relative": (operator,),
    "choice": (matrix,),
    "constant": (placed,),
    "placed": (varying, value),
    "alike_rows": (value,),
    "level": (scores,),
    "distances": (scores,),
}  # the next wider sorts of the same sizes
PLAIN_FACTS = {sort.name: sort.facts for sort in (operator, entrywise, value)}
FOLLOWS_FROM = {normalised: right_linear}  # the flag that is left of another
LEAST_APART, SHOWN_DRAWS = 1e-3, 8  # the least difference of a counterexample, and draws of which most must show it


@dataclass
class WidenedGuards:
    """The widest sort of each variable that numbers do not refute, where it is wider than the law's, and the next wider
    ones that they refute, each with how."""

    wider: dict[str, Sort] = field(default_factory=dict)
    refuted: list[tuple[str, Sort, str]] = field(default_factory=list)


def widen_guards(law: Law, seed: int) -> WidenedGuards:
    """Widen the guard of each variable of a law alone, step by step, until each further step is refuted."""
    guards = WidenedGuards()
    widths = list_widths(law.variables)
    for name, sort in law.variables.items():
        steps = [*list_wider(sort, widths)]
        while steps:
            wide = steps.pop(0)
            verdict = try_law(with_sorts(law, {name: wide}), seed)
            if verdict.refuted:
                guards.refuted.append((name, wide, verdict.refuted))
            elif verdict.trials:
                guards.wider[name] = wide
                steps += list_wider(wide, widths)
    return guards


def list_widths(sorts: Mapping[str, Sort]) -> list[SortSize]:
    """Return the columns of the values of a law, each once."""
    return list(dict.fromkeys(sort.last for sort in sorts.values() if sort.name == "value" and sort.sizes))


def list_wider(sort: Sort, widths: Sequence[SortSize]) -> Iterator[Sort]:
    """Yield the sorts that ask one fact, flag or column less; none where a law that asks less fits nothing."""
    if sort.name in ("over", "where"):
        for flag in sort.sizes:
            if flag not in FITTING:
                left = [FOLLOWS_FROM.get(str(other), "") if other == flag else other for other in sort.sizes]
                yield replace(sort, sizes=tuple(filter(None, left)))
        return
    plain = PLAIN_FACTS.get(sort.name, sort.facts)
    if dropped := [fact for fact in sort.facts if fact not in (*DIRECTING, *plain)]:
        for fact in dropped:
            rest = replace(sort, facts=tuple(one for one in sort.facts if one != fact))
            yield mixing[sort.sizes] if fact == "row_wise" else rest
    elif sort.name == "scalar":
        yield from (placed[1], *(constant[width] for width in widths))
    elif sort.name == "column":
        yield from (value[width] for width in widths)
    elif sort.name == "relation" and sort.sizes:
        yield relation
    else:
        yield from (replace(wide, sizes=sort.sizes, space=sort.space) for wide in WIDER_SORTS.get(sort.name, ()))


def with_sorts(law: Law, sorts: Mapping[str, Sort]) -> Law:
    """Return a law with other sorts of some variables, without conditions and counterexamples."""

    def body(**variables: object) -> Sides:
        """Build the sides of the law."""
        return law.of(variables)

    body.__name__, body.__doc__, body.__annotations__ = law.name, law.doc, {**law.variables, **sorts}
    return replace(law, body=body, when=(), without=())


def widen_equation(equation: StatedEquation, name: str, seed: int) -> tuple[StatedEquation, Law]:
    """Widen the guards of an equation that holds, and return it with its law, whose counterexamples show where a guard
    can be no wider."""
    guards = widen_guards(equation.law(name), seed)
    for variable, wide in guards.wider.items():
        wider = equation.widen(variable, wide)
        holds = not equation.widened or not try_law(wider.law(name), seed).refuted  # one alone was tried
        if holds and not find_misuse(wider.law(name)):
            equation = wider
    law = equation.law(name)
    return equation, replace(law, without=tuple(list_counterexamples(law, guards, seed)))


def list_counterexamples(law: Law, guards: WidenedGuards, seed: int) -> Iterator[dict[str, Sort]]:
    """Yield the refuted sorts that a check of the law shows to be too wide, in most of its draws."""
    small, rng = replace(law, largest=1.0), np.random.default_rng(seed)
    for name, wide, _ in guards.refuted:
        if sum(is_far(small, name, wide, rng) for _ in range(SHOWN_DRAWS)) > SHOWN_DRAWS / 2:
            yield {name: wide}


def is_far(law: Law, name: str, wide: Sort, rng: np.random.Generator) -> bool:
    """True if the sides of a law are far apart in a draw with a wider sort."""
    try:
        return law.difference(rng, **{name: wide}) > LEAST_APART
    except (TypeError, ValueError, LookupError):
        return False
