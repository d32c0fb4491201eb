"""All ways in which a subject holds a pattern: a class of a graph, which has many members, or a tree or a term, which
is its only one. From the leaves up: patterns that share a part match it once in each subject."""
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import eq
from typing import Any, Generic, TypeVar

from opmatrix.algebra.term import Operator
from rewrites.laws.law import is_variable

Binding = dict[str, Any]                                    # variable -> what it stands for: a subject, or an attribute
Subject = TypeVar("Subject")                                # what may hold a pattern
COMMUTES = ("add", "mul")


def accept(symbol: Operator, subject: object) -> bool:
    """Whether a symbol may stand for a subject: any may."""
    return True


@dataclass
class Matches(Generic[Subject]):
    """Patterns among subjects. `members` gives what of a kind a subject is made of: children, attributes. `same`
    compares an attribute of a pattern with one of a member, `fits` tells what a symbol may stand for, `variable` how an
    open attribute is called."""

    members: Callable[[Subject, str], Sequence[tuple[Sequence[Subject], Sequence[object]]]]
    same: Callable[[object, Any], bool] = eq
    fits: Callable[[Operator, Subject], bool] = accept
    variable: Callable[[object], str] = str
    known: dict[tuple[Operator, Subject], Sequence[Binding]] = field(default_factory=dict)

    def find(self, pattern: Operator, subject: Subject) -> Sequence[Binding]:
        """Each way, in the order of the members; one may be there twice."""
        if (found := self.known.get((pattern, subject))) is None:
            if pattern.kind.name == "symbol":
                found = [{str(pattern.args[0]): subject}] if self.fits(pattern, subject) else ()
            else:
                members = self.members(subject, pattern.kind.name)
                found = [*self._among_members(pattern, members)] if members else ()
            self.known[pattern, subject] = found
        return found

    def _among_members(self, pattern: Operator,
                       members: Sequence[tuple[Sequence[Subject], Sequence[object]]]) -> Iterator[Binding]:
        for children, attributes in members:
            ways = self._attributes(pattern.attributes, attributes)
            for part, child in zip(pattern.children, children, strict=True):
                if not ways: break
                ways = join_matches(ways, self.find(part, child))
            yield from ways

    def _attributes(self, wanted: Sequence[object], attributes: Sequence[object]) -> Sequence[Binding]:
        binding: Binding = {}
        for want, have in zip(wanted, attributes, strict=True):
            if is_variable(want):
                if binding.setdefault(self.variable(want), have) != have: return ()
            elif not self.same(want, have): return ()
        return [binding]


def join_matches(ours: Sequence[Binding], theirs: Sequence[Binding]) -> list[Binding]:
    """Every two that agree on the variables they share, as one."""
    return [one | other for one in ours for other in theirs
            if not one or all(one[name] == other[name] for name in one.keys() & other.keys())]


def orders(kind: str, children: tuple[Subject, ...]) -> list[tuple[Subject, ...]]:
    """The children, in both orders where that makes no difference to the value and one to the match."""
    turned = kind in COMMUTES and children[0] != children[1]
    return [children, children[::-1]] if turned else [children]
