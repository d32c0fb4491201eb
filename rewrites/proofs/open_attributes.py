"""Monoids and patterns of which flags alone are known, in place of the variables of a law: what is proved of them holds
for every monoid and pattern with these flags."""

from collections.abc import Mapping
from functools import cache
from typing import NoReturn

from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.algebra.term import Operator
from rewrites.laws.law import Sort, is_variable


def compute_unknown(*numbers: object) -> NoReturn:
    """Raise TypeError: proofs evaluate nothing."""
    raise TypeError("a monoid or a pattern of which flags alone are known has no numbers")


@cache
def open_monoid(name: str, flags: tuple[str, ...]) -> type[Monoid]:
    """Return a monoid with these flags and no known body."""
    body = dict.fromkeys(("lift", "merge", "finish"), compute_unknown)
    return type(name, (Monoid,), {"identity": 0, **body, **dict.fromkeys(flags, True)})


@cache
def open_pattern(name: str, flags: tuple[str, ...]) -> Pattern:
    """Return a pattern with an unknown predicate. Of flags only those that proofs read are kept."""
    return Pattern(name, compute_unknown, reflexive="reflexive" in flags, within="within" in flags)


def close_term(term: Operator, sorts: Mapping[str, Sort]) -> Operator:
    """Return a term with a monoid or a pattern in place of each attribute that is a variable of these sorts, so that
    each has the flags of its sort."""
    built: dict[Operator, Operator] = {}
    for node in term.walk():
        if not node.children:
            built[node] = node
            continue
        attributes = [close_attribute(one, sorts) for one in node.attributes]
        built[node] = Operator(node.kind, *(built[child] for child in node.children), *attributes)
    return built[term]


def close_attribute(attribute: object, sorts: Mapping[str, Sort]) -> object:
    """Return the monoid or pattern for a variable; any other attribute as it is."""
    sort = sorts.get(str(attribute)) if is_variable(attribute) else None
    if sort is None or sort.name not in ("over", "where"):
        return attribute
    make = open_monoid if sort.name == "over" else open_pattern
    return make(str(attribute), tuple(map(str, sort.sizes)))
