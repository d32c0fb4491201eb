"""Statements shown to be equal: both sides in one class of a graph of axioms. What mutation leaves standing is either
caught by no check, or is proved here."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import permutations
from typing import Any

from axioms import LAWS as AXIOMS
from sympy import sympify

from opmatrix.algebra.shapes import N
from opmatrix.algebra.term import Operator
from rewrites.egraph.egraph import engine, rules, saturate
from rewrites.egraph.template import Template, quoted, spell_values
from rewrites.laws.facts import LAG_SUM
from rewrites.laws.law import FITTING, FLAGS, Law, Name, list_summands, normalised, right_linear, up_to_each

IMPLIED = {normalised: (right_linear,), up_to_each: FITTING}  # flags of a monoid or a pattern

# (alike a b): as many columns, (like a b): in as many heads too; of what is made on the way as well. (one a): of one
# head. A number of one head, times which heads stay as they are, is a K_const.
FACTS = """
(rule ((= e (K_add a b)) (alike a c) (alike b c)) ((alike e c) (alike c e)) :ruleset facts)
(rule ((= e (K_mul a s)) (column s) (alike a c)) ((alike e c) (alike c e)) :ruleset facts)
(rule ((= e (K_compose x a)) (alike a c)) ((alike e c) (alike c e)) :ruleset facts)
(rule ((= e (K_add a b)) (like a c) (like b c)) ((like e c) (like c e)) :ruleset facts)
(rule ((= e (K_mul a s)) (= s (K_const d)) (column s) (like a c)) ((like e c) (like c e)) :ruleset facts)
(rule ((= e (K_blank a)) (like a c)) ((like e c) (like c e)) :ruleset facts)
(rule ((= e (K_compose x a)) (one x) (like a c)) ((like e c) (like c e)) :ruleset facts)
(rule ((like a b) (like b c)) ((like a c)) :ruleset facts)
"""


@cache
def prover() -> Any:
    """An engine that knows the axioms."""
    made = engine((), later=AXIOMS)
    relations = "(relation alike (Op Op)) (relation like (Op Op)) (relation one (Op))"
    for text in (relations, FACTS, *(rule for each in AXIOMS for rule in rules(each))):
        made.run_program(*made.parse_program(text))
    return made


def proved(statement: Law, rounds: int = 4) -> bool:
    """Whether both sides are one class by the axioms, over variables of which the statement's own guards hold, and of
    the sizes that it says. A round more takes several times as long."""
    before, after = statement.sides()
    roots = {f"{name}{i}": term for name, side in (("left", before), ("right", after)) for i, term in enumerate(side)}
    template = spell_values(Template.of(roots), AXIOMS)
    named = {
        str(term.args[0]): name
        for name, term in template.instance(template.values).items()
        if term.kind.name == "symbol"
    }
    chosen = {str(value): label for label, value in template.values.items() if isinstance(value, Name)}
    lines = [f"(alike {a} {b})" for a, b in pair_by_size(template)] + [
        f"(like {a} {b})" for a, b in pair_by_size(template, heads=True)
    ]
    lines += [f"(one {name})" for name, term in template.instance(template.values).items() if term.out.heads == 1]
    for fact, *about in (guard.strip("()").split() for guard in statement.guards):
        if all(name in named for name in about):
            lines.append(f"({fact} {' '.join(named[name] for name in about)})")
        elif fact in (*FLAGS, *FITTING) and about[0] in chosen:
            lines += [f"({flag} {quoted(chosen[about[0]])})" for flag in (fact, *IMPLIED.get(fact, ()))]
    lines += [
        f"(single {named[name]})"
        for name, sort in statement.variables.items()
        if sort.name in ("matrix", "operator") and len(sort.sizes) == 2 and name in named
    ]
    lines += list_sums(template.values)
    graph = saturate(
        replace(template, text="\n".join([template.text, *lines])), AXIOMS, shared=prover(), rounds=rounds, budget=300
    )
    return all(graph.named[f"$left{i}"] == graph.named[f"$right{i}"] for i in range(len(before)))


def list_sums(values: dict[str, Any]) -> Iterator[str]:
    """The sums among the attributes of a statement, which lags may be added to in either order."""
    labels = {str(value): quoted(label) for label, value in values.items()}
    for label, value in values.items():
        for names in permutations(list_summands(value)):
            if names and labels.keys() >= {*names}:
                yield f"(set ({LAG_SUM} {' '.join(labels[name] for name in names)}) {quoted(label)})"


def pair_by_size(template: Template, heads: bool = False) -> list[tuple[str, str]]:
    """Terms with as many columns as each other, by name; in as many heads, too."""
    columns: dict[Any, list[str]] = {}
    terms: dict[str, Operator] = template.instance(template.values)
    for name, term in terms.items():
        if not sympify(term.out.cols).has(N):
            columns.setdefault((term.out.cols, term.out.heads if heads else 1), []).append(name)
    return [(a, b) for names in columns.values() for a in names for b in names]
