"""The exact laws of the search beside laws that discovery finds: which are found, follow, or are out of its reach,
which axioms prove, and which guards are tighter than truth needs."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from opmatrix.algebra.shapes import ShapeError, as_int
from rewrites.discovery.derived import Consequences
from rewrites.discovery.rounds import Discovery, FoundLaw
from rewrites.discovery.small_terms import OPERAND_ROLES, state_variable
from rewrites.discovery.stated_laws import StatedEquation, count_operators, resize_sort, try_law
from rewrites.discovery.widened import widen_guards
from rewrites.discovery.written import spell_side
from rewrites.laws import EXACT_LAWS
from rewrites.laws.law import Law, Sort, h
from rewrites.laws.proving.values import VALUE_LAWS
from rewrites.proofs.equations import TriedEquation
from rewrites.proofs.open_attributes import close_term

PAIRS = (
    (("add", "compose"), 2),
    (("mul", "compose"), 2),
    (("add", "product"), 2),
    (("compose", "product"), 2),
    (("product", "turn"), 2),
    (("compose", "related"), 2),
)  # pairs of kinds, and number of operators
ROUNDS = (
    (("add",), 1),
    (("mul",), 1),
    (("product",), 1),
    (("add",), 2),
    (("compose",), 2),
    (("turn",), 2),
    (("product",), 2),
    *PAIRS,
    (("compose", "pick"), 2),
    (("add", "compose", "pick"), 2),
    (("add", "compose"), 3),
)  # kinds and number of operators; what a law of the search needs
MOST_OPERATORS = 4  # of a side, that discovery is asked for
PROOF_NODES, HEADS = 2000, 2
FOLLOWS, MISSED = "follows", "not reached in these rounds"
EQUAL, WEAKER, TIGHTER, TOO_WEAK = "equal", "weaker than the found one", "tighter", "too weak"
NARROWER = ", under a narrower guard"
REASON = re.compile(r"True of .*", re.DOTALL)  # of a docstring, how far a law holds, and why its guard is tighter
COLUMNS = ("law", "operators", "standing", "axioms", "guard", "why tighter")


class SearchLaw(NamedTuple):
    """A law of the search: operators of its larger side, its standing beside found laws, and the way in which axioms
    prove it; empty if they do not."""

    name: str
    operators: int
    standing: str
    axioms: str


class ComparedGuard(NamedTuple):
    """The guard of a law beside the widest that numbers do not refute, and why it is tighter, in the words of the law;
    empty if it does not say."""

    words: str
    reason: str


def discover(rounds: Sequence[tuple[tuple[str, ...], int]], tell: Callable[[str], object]) -> Discovery:
    """Run the rounds, tell the counts of each, and return the discovery."""
    discovery = Discovery(tuple(dict.fromkeys(kind for kinds, _ in rounds for kind in kinds)), rounds[-1][1])
    for kinds, size in rounds:
        tell(str(discovery.run_round(kinds, size)))
    return discovery


def equations_of(law: Law, heads: int | None = None) -> list[StatedEquation]:
    """Return the equations of a law, over symbols that have the facts of their sorts, in any number of heads or in so
    many."""
    sorts = {name: in_heads(sort, heads) if heads else sort for name, sort in law.variables.items()}
    variables = {name: state_variable(name, sort) for name, sort in sorts.items()}
    pairs = zip(*law.of(variables), strict=True)
    return [StatedEquation(left, right, count_operators(left) + count_operators(right)) for left, right in pairs]


def in_heads(sort: Sort, heads: int) -> Sort:
    """Return a sort with so many heads; a count of heads is that number."""
    if sort.name in ("over", "where"):
        return sort
    sizes = (heads,) if sort.name == "count" else resize_sort(sort, {h: heads}).sizes
    return replace(sort, sizes=tuple(map(as_int, sizes)))


def judge_laws(found: Sequence[FoundLaw], laws: Sequence[Law] = EXACT_LAWS) -> Iterator[SearchLaw]:
    """Yield each law of the search with its standing beside found ones."""
    deriver = Consequences([one.equation.undirected(one.law.name) for one in found])
    for law in laws:
        equations = equations_of(law)
        most = max(count_operators(side) for one in equations for side in (one.left, one.right))
        same, standing = name_found(equations, found), name_standing(law, equations, most, deriver)
        if same:
            standing = f"found as {same}{'' if standing == FOLLOWS else NARROWER}"
        axioms = name_axioms(law, equations) or name_axioms(law, equations_of(law, HEADS), f", of {HEADS} heads")
        yield SearchLaw(law.name, most, standing, axioms)


def compare_guard(judged: SearchLaw, law: Law) -> ComparedGuard:
    """Compare the guard of a law with the widest that numbers do not refute, one variable at a time. Facts that only
    direct laws are no part of a guard here."""
    base = try_law(law, 0)
    if base.refuted:
        return ComparedGuard(f"{TOO_WEAK}: {base.refuted}", "")
    wider = widen_guards(law, 0).wider
    if wider:
        sorts = ", ".join(f"{name}: {sort}" for name, sort in wider.items())
        reason = REASON.search(" ".join(law.doc.split()))
        return ComparedGuard(f"{TIGHTER} than {sorts}", reason[0] if reason else "")
    return ComparedGuard(WEAKER if judged.standing.endswith(NARROWER) else EQUAL, "")


def name_found(equations: list[StatedEquation], found: Sequence[FoundLaw]) -> str:
    """Name the found law whose sides a law of the search has, whatever its variables are called; empty if none has."""
    outlines = {outline(one.equation): one.law.name for one in found}
    return outlines.get(outline(equations[0]), "") if len(equations) == 1 else ""


def outline(equation: StatedEquation) -> frozenset[str]:
    """Return both sides as text, with variables by their place."""
    places = {name: f"_{at}" for at, name in enumerate(equation.names)}
    return frozenset(
        re.sub(r"\w+", lambda match: places.get(match[0], match[0]), spell_side(side))
        for side in (equation.left, equation.right)
    )


def name_standing(law: Law, equations: list[StatedEquation], operators: int, deriver: Consequences) -> str:
    """Say if a law follows from what was found, else why not."""
    if len(equations) == 1 and deriver.laws and not deriver.open_in_graph(equations):
        return FOLLOWS
    if len(equations) > 1:
        return "has several results"
    nodes = [node for one in equations for side in (one.left, one.right) for node in side.walk()]
    others = {node.kind.name for node in nodes} - {*OPERAND_ROLES, "symbol", "I"}
    if others:
        return f"has kinds that are not enumerated: {', '.join(sorted(others))}"
    if operators > MOST_OPERATORS:
        return f"needs more than {MOST_OPERATORS} operators"
    return "has a condition" if law.when else MISSED


def name_axioms(law: Law, equations: list[StatedEquation], more: str = "") -> str:
    """Name the way in which axioms prove a law, `entries` or `values`, and what more to say; empty if they do not."""
    ways = {prove_by_axioms(law, one) for one in equations}
    return "" if "" in ways else ", ".join(sorted(ways)) + more


def prove_by_axioms(law: Law, equation: StatedEquation) -> str:
    """Name the way in which axioms prove one equation of a law."""
    try:
        left, right = (close_term(side, law.variables) for side in (equation.left, equation.right))
        tried = TriedEquation(left, right, PROOF_NODES)
        if tried.by_entries() is not None:
            return "entries"
    except (AttributeError, ShapeError, TypeError):  # kinds that read stored numbers, scans of open patterns
        return ""
    return "values" if tried.by("the laws of values", VALUE_LAWS) else ""
