"""A user's own laws never make a program slower: the programs found without them compete, graph by graph. A law may
lead away from a program: its graph may meet a limit before other laws are done, it may subsume a needed node, or
another term may become the representative of a class."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from opmatrix.display.tables import micro
from rewrites.egraph.layers import states
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS
from rewrites.laws.law import Law
from rewrites.lowering.lower import Lowering

if TYPE_CHECKING:
    from rewrites.search.search import SearchSpace, Structure

SAME_PRICE = 1e-9  # relative difference of equal predicted seconds
Lowerings = dict[tuple[int, str], Lowering]  # part, border state -> lowering
Solve = Callable[["SearchSpace"], "Structure"]
OUR_BODIES = frozenset(law.body for law in EXACT_LAWS)


def list_own(laws: Sequence[Law]) -> list[str]:
    """Return the names of the laws that are not shipped, in any phase."""
    return [law.name for law in laws if law.body not in OUR_BODIES]


@dataclass
class Incumbents:
    """A space with laws of the user's own, and the function that solves a space. `tried` are the lowerings that
    programs may be built from, those of each set of laws."""

    space: "SearchSpace"
    solve: Solve
    tried: list[Lowerings] = field(default_factory=list)

    def settle(self) -> "Structure":
        """Return the cheapest program; the space then has its lowerings. Raises Infeasible if there is none with these
        laws or without."""
        added = self.list_fired()
        if not added:
            return self.solve(self.space)
        every = self.attempt(self.space)
        without = self.attempt(self.space.lacking(added))
        hidden = every is None or self.is_limited(added) or is_dearer(every, without)
        if len(added) > 1 and hidden:
            self.try_each(added, without)
        best = self.swap()
        line = say_kept(every, best, added)
        return replace(best, cut=[*best.cut, line]) if line else best

    def list_fired(self) -> list[str]:
        """Return the laws of the user's own that matched in some graph."""
        added = list_own(self.space.laws)
        if not added:
            return []
        fired = {name for lowering in self.list_lowerings(self.space).values() for name in lowering.graph.fired}
        return [name for name in added if name in fired]

    def list_lowerings(self, space: "SearchSpace") -> Lowerings:
        """Return the lowering of each part behind each border state."""
        return {(number, before): space.lowering(number, before) for number, before, _ in states(space.found)}

    def attempt(self, space: "SearchSpace") -> "Structure | None":
        """Return the optimum of a space, and add its lowerings to `tried`; None where it has no program."""
        try:
            structure = self.solve(space)
        except Infeasible:
            return None
        self.tried.append(self.list_lowerings(space))
        return structure

    def is_limited(self, added: Sequence[str]) -> bool:
        """True if laws together may hide a program that one alone reaches: a graph met a limit, or one subsumes its
        left side."""
        canonical = any(law.canonical for law in self.space.laws if law.name in added)
        return canonical or any(lowering.graph.cut for lowering in self.list_lowerings(self.space).values())

    def try_each(self, added: Sequence[str], best: "Structure | None") -> None:
        """Try laws one after another, each beside those that made the program cheaper than the one without any."""
        taken: list[str] = []
        for name in added:
            structure = self.attempt(self.space.lacking([other for other in added if other not in (*taken, name)]))
            if is_dearer(best, structure):
                best = structure
                taken.append(name)

    def swap(self) -> "Structure":
        """Return the cheapest of the spaces tried as a whole, after exchanging each graph for another where that is
        cheaper."""
        every = self.tried[0] if self.tried else {}
        best, lowerings = self.solve_by(every), every
        for tried in self.tried:
            best, lowerings = self.compare(best, lowerings, tried)
        for text in dict.fromkeys(lowering.template.text for lowering in lowerings.values()):
            for tried in self.tried:
                at = [key for key, lowering in lowerings.items() if lowering.template.text == text]
                exchanged = lowerings | {key: tried[key] for key in at}
                best, lowerings = self.compare(best, lowerings, exchanged)
        self.space.lowerings.update(lowerings)
        return self.solve(self.space)

    def compare(
        self, best: "Structure | None", lowerings: Lowerings, other: Lowerings
    ) -> "tuple[Structure | None, Lowerings]":
        """Return the cheaper of two programs with its lowerings, the first where they cost the same."""
        if all(other[key].graph is lowering.graph for key, lowering in lowerings.items()):
            return best, lowerings
        structure = self.solve_by(other)
        return (structure, other) if is_dearer(best, structure) else (best, lowerings)

    def solve_by(self, lowerings: Lowerings) -> "Structure | None":
        """Return the optimum of the space over these lowerings; None where there is no program."""
        before = dict(self.space.lowerings)
        self.space.lowerings.update(lowerings)
        try:
            return self.solve(self.space)
        except Infeasible:
            return None
        finally:
            self.space.lowerings.update(before)


def is_dearer(one: "Structure | None", other: "Structure | None") -> bool:
    """True if the first program costs more than the second, or only the first is None."""
    if one is None or other is None:
        return other is not None
    return one.cost > other.cost * (1 + SAME_PRICE)


def say_kept(every: "Structure | None", best: "Structure", added: Sequence[str]) -> str | None:
    """Return a line where parts use a program that was found without laws of the user's own; else None."""
    names = ", ".join(added)
    if every is None:
        return f"laws {names}: no program was found with them, and one without"
    if not is_dearer(every, best):
        return None
    return f"laws {names}: with them a program of {micro(every.time)} us, in its place one of {micro(best.time)} us"
