"""All matches of a pattern in a subject: a class of a graph, which has many members, or a tree or a term, which is its
only one. Matching goes from the leaves up: patterns that share a part match it once in each subject."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import eq
from typing import Any, Generic, TypeVar

from opmatrix.algebra.term import Operator
from rewrites.laws.law import is_variable, list_summands
from rewrites.laws.spelling import add_spelled, spelled

Binding = dict[str, Any]  # variable -> a subject, or an attribute
Subject = TypeVar("Subject")  # an object that patterns are matched with
COMMUTES = ("add", "mul")


def accept(symbol: Operator, subject: object) -> bool:
    """True: by default a symbol matches any subject."""
    return True


@dataclass
class Matches(Generic[Subject]):
    """Patterns among subjects. `members` returns the members of a subject of one kind: children, attributes. `same`
    compares an attribute of a pattern with one of a member, `fits` tests if a symbol matches a subject, `variable`
    returns the name of an open attribute."""

    members: Callable[[Subject, str], Sequence[tuple[Sequence[Subject], Sequence[object]]]]
    same: Callable[[object, Any], bool] = eq
    fits: Callable[[Operator, Subject], bool] = accept
    variable: Callable[[object], str] = str
    known: dict[tuple[Operator, Subject], Sequence[Binding]] = field(default_factory=dict)

    def find(self, pattern: Operator, subject: Subject) -> Sequence[Binding]:
        """Return each match, in the order of the members; one may occur twice."""
        if (bindings := self.known.get((pattern, subject))) is None:
            if pattern.kind.name == "symbol":
                bindings = [{str(pattern.args[0]): subject}] if self.fits(pattern, subject) else ()
            else:
                members = self.members(subject, pattern.kind.name)
                bindings = [*self._among_members(pattern, members)] if members else ()
            self.known[pattern, subject] = bindings
        return bindings

    def _among_members(
        self, pattern: Operator, members: Sequence[tuple[Sequence[Subject], Sequence[object]]]
    ) -> Iterator[Binding]:
        for children, attributes in members:
            ways = self._attributes(pattern.attributes, attributes)
            for part, child in zip(pattern.children, children, strict=True):
                if not ways:
                    break
                ways = join_matches(ways, self.find(part, child))
            yield from ways

    def _attributes(self, wanted: Sequence[object], attributes: Sequence[object]) -> Sequence[Binding]:
        binding: Binding = {}
        for want, have in zip(wanted, attributes, strict=True):
            if is_variable(want) or list_summands(want):  # a sum is bound by its text
                if binding.setdefault(self.variable(want), have) != have:
                    return ()
            elif not self.same(want, have):
                return ()
        return [binding]


def join_matches(ours: Sequence[Binding], theirs: Sequence[Binding]) -> list[Binding]:
    """Return every pair that agrees on its common variables, merged."""
    return [
        one | other
        for one in ours
        for other in theirs
        if not one or all(one[name] == other[name] for name in one.keys() & other.keys())
    ]


def name_attribute(want: Hashable, bound: Binding) -> str:
    """Return the name of an attribute of a pattern over what its variables are bound to: of a sum of lags that of the
    sum."""
    if summands := list_summands(want):
        return add_spelled([bound[name] for name in summands])
    return str(bound[str(want)]) if is_variable(want) else spelled(want)


def orders(kind: str, children: tuple[Subject, ...]) -> list[tuple[Subject, ...]]:
    """Return the children, in both orders where the value is the same and the match may differ."""
    turned = kind in COMMUTES and children[0] != children[1]
    return [children, children[::-1]] if turned else [children]
