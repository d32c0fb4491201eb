"""Laws of the user's own never make a program dearer: the programs found without them take part, graph by graph. A law
may lead away from a program: its graph may meet a limit before other laws are done, it may subsume what was needed, or
another term may stand for a class."""
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

SAME_PRICE = 1e-9                                           # relative: predicted seconds that are the same sum
Lowerings = dict[tuple[int, str], Lowering]                 # by part and border state
Solve = Callable[["SearchSpace"], "Structure"]
OUR_BODIES = frozenset(law.body for law in EXACT_LAWS)


def list_own(laws: Sequence[Law]) -> list[str]:
    """The names of the laws that are none of ours, whatever their phase."""
    return [law.name for law in laws if law.body not in OUR_BODIES]


@dataclass
class Incumbents:
    """A space with laws of the user's own, and how a space is solved. `tried` are the lowerings that programs may be
    made of, those of each set of laws."""

    space: "SearchSpace"
    solve: Solve
    tried: list[Lowerings] = field(default_factory=list)

    def settle(self) -> "Structure":
        """The cheapest program; the space then has the lowerings that it is of. Raises Infeasible where there is none
        with these laws or without."""
        added = self.list_fired()
        if not added: return self.solve(self.space)
        every = self.attempt(self.space)
        without = self.attempt(self.space.lacking(added))
        hidden = every is None or self.is_limited(added) or is_dearer(every, without)
        if len(added) > 1 and hidden: self.try_each(added, without)
        best = self.swap()
        line = say_kept(every, best, added)
        return replace(best, cut=[*best.cut, line]) if line else best

    def list_fired(self) -> list[str]:
        """The laws of the user's own that matched in some graph."""
        added = list_own(self.space.laws)
        if not added: return []
        fired = {name for lowering in self.list_lowerings(self.space).values() for name in lowering.graph.fired}
        return [name for name in added if name in fired]

    def list_lowerings(self, space: "SearchSpace") -> Lowerings:
        """The lowering of each part behind each border state."""
        return {(number, before): space.lowering(number, before) for number, before, _ in states(space.found)}

    def attempt(self, space: "SearchSpace") -> "Structure | None":
        """The optimum of a space, whose lowerings are tried from here on; None where it has no program."""
        try: structure = self.solve(space)
        except Infeasible: return None
        self.tried.append(self.list_lowerings(space))
        return structure

    def is_limited(self, added: Sequence[str]) -> bool:
        """Tell whether laws together may hide what one alone reaches: a graph met a limit, or one subsumes its left
        side."""
        canonical = any(law.canonical for law in self.space.laws if law.name in added)
        return canonical or any(each.graph.cut for each in self.list_lowerings(self.space).values())

    def try_each(self, added: Sequence[str], best: "Structure | None") -> None:
        """Laws one after another, each beside those that made the program cheaper than the one without any."""
        taken: list[str] = []
        for name in added:
            structure = self.attempt(self.space.lacking([each for each in added if each not in (*taken, name)]))
            if is_dearer(best, structure):
                best = structure
                taken.append(name)

    def swap(self) -> "Structure":
        """The cheapest of what was tried as a whole, then each graph exchanged for another where that is cheaper."""
        every = self.tried[0] if self.tried else {}
        best, lowerings = self.solve_by(every), every
        for tried in self.tried: best, lowerings = self.compare(best, lowerings, tried)
        for text in dict.fromkeys(each.template.text for each in lowerings.values()):
            for tried in self.tried:
                at = [key for key, each in lowerings.items() if each.template.text == text]
                exchanged = lowerings | {key: tried[key] for key in at}
                best, lowerings = self.compare(best, lowerings, exchanged)
        self.space.lowerings.update(lowerings)
        return self.solve(self.space)

    def compare(self, best: "Structure | None", lowerings: Lowerings,
                other: Lowerings) -> "tuple[Structure | None, Lowerings]":
        """The cheaper of two programs, the first where they take the same."""
        if all(other[key].graph is each.graph for key, each in lowerings.items()): return best, lowerings
        structure = self.solve_by(other)
        return (structure, other) if is_dearer(best, structure) else (best, lowerings)

    def solve_by(self, lowerings: Lowerings) -> "Structure | None":
        """The optimum of the space over these lowerings; None where there is no program."""
        before = dict(self.space.lowerings)
        self.space.lowerings.update(lowerings)
        try: return self.solve(self.space)
        except Infeasible: return None
        finally: self.space.lowerings.update(before)


def is_dearer(one: "Structure | None", other: "Structure | None") -> bool:
    """Tell whether the first program takes more than the second, or is none."""
    if one is None or other is None: return other is not None
    return one.cost > other.cost * (1 + SAME_PRICE)


def say_kept(every: "Structure | None", best: "Structure", added: Sequence[str]) -> str | None:
    """A line where parts keep a program that was found without laws of the user's own."""
    names = ", ".join(added)
    if every is None: return f"laws {names}: no program was found with them, and one without"
    if not is_dearer(every, best): return None
    return f"laws {names}: with them a program of {micro(every.time)} us, in its place one of {micro(best.time)} us"
