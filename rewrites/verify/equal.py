"""Statements shown to be equal: both sides in one class of a graph of axioms. What mutation leaves standing is either
caught by no check, or is proved here."""
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from sympy import sympify

from formats.shapes import N
from opmatrix.term import Operator
from rewrites.egraph import engine, rules, saturate
from rewrites.law import FLAGS, RESTRUCTURE, Law, normalised, right_linear
from rewrites.laws.axioms import LAWS as AXIOMS
from rewrites.template import Template

IMPLIED = {normalised: (right_linear,)}                     # flags of a monoid

# (alike a b): as many columns. Levels and widths of what is made on the way.
FACTS = """
(rule ((= e (K_add a b)) (level a) (level b)) ((level e)) :ruleset facts)
(rule ((= e (K_mul a s)) (level a) (constant s) (column s)) ((level e)) :ruleset facts)
(rule ((= e (K_add a b)) (alike a c) (alike b c)) ((alike e c) (alike c e)) :ruleset facts)
(rule ((= e (K_mul a s)) (column s) (alike a c)) ((alike e c) (alike c e)) :ruleset facts)
(rule ((= e (K_compose x a)) (alike a c)) ((alike e c) (alike c e)) :ruleset facts)
"""


@cache
def prover(laws: tuple[Law, ...]) -> tuple[Any, tuple[Law, ...]]:
    """An engine that knows the axioms, and the laws without the guards that only keep rules from running."""
    own = [*map(unstored, laws), *AXIOMS]
    made = engine(())
    for text in ("(relation alike (Op Op))", FACTS, *(rule for each in own for rule in rules(each))):
        made.run_program(*made.parse_program(text))
    return made, tuple(own)


def unstored(law: Law) -> Law:
    """The law of values that may be stored too: `act` is never what makes a law true."""
    def body(**variables: Any) -> Any:
        return law.body(**variables)
    body.__name__, body.__doc__ = law.name, law.doc
    body.__annotations__ = {name: replace(sort, facts=tuple(fact for fact in sort.facts if fact != "act"))
                            for name, sort in law.variables.items()}
    return replace(law, body=body, phase=RESTRUCTURE, canonical=False)


def proved(statement: Law, laws: Sequence[Law] = ()) -> bool:
    """Whether both sides are one class by the axioms and these laws, over variables of which the statement's own guards
    hold."""
    before, after = statement.sides()
    roots = {f"{name}{i}": term for name, side in (("left", before), ("right", after)) for i, term in enumerate(side)}
    template = Template.of(roots)
    named = {str(term.args[0]): name for name, term in template.instance(template.values).items()
             if term.kind.name == "symbol"}
    lines = [f"(alike {a} {b})" for a, b in alike(template)]
    for fact, *about in (guard.strip("()").split() for guard in statement.guards):
        if all(name in named for name in about):
            lines.append(f"({fact} {' '.join(named[name] for name in about)})")
        elif fact in FLAGS:
            lines += [f'({flag} "{about[0]}")' for flag in (fact, *IMPLIED.get(fact, ()))]
    shared, own = prover(tuple(laws))
    graph = saturate(replace(template, text="\n".join([template.text, *lines])), own, shared=shared, rounds=4, budget=300)
    return all(graph.named[f"$left{i}"] == graph.named[f"$right{i}"] for i in range(len(before)))


def alike(template: Template) -> list[tuple[str, str]]:
    """Terms with as many columns as each other, by name."""
    columns: dict[Any, list[str]] = {}
    terms: dict[str, Operator] = template.instance(template.values)
    for name, term in terms.items():
        if not sympify(term.out.cols).has(N):
            columns.setdefault(term.out.cols, []).append(name)
    return [(a, b) for names in columns.values() for a in names for b in names]
