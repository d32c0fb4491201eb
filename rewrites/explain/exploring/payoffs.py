"""Payoffs of laws in the search of a model: the predicted seconds and bytes that each saves alone, beside the seconds
and nodes that it costs the search."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from opmatrix.display.tables import table
from rewrites.explain.exploring.exploration import Exploration
from rewrites.laws.law import Law

PAYOFF_COLUMNS = "law", "time saved", "memory saved", "ms of search", "nodes more"
ALL_TOGETHER = "all together"


class Payoff(NamedTuple):
    """The effect of laws on a model's search: predicted seconds and stored bytes without and with them, seconds that
    the search takes more, nodes that its graphs have more. `cut`: a graph reached its budget."""

    law: str
    seconds: tuple[float, float]
    stored: tuple[float, float]
    search_seconds: float = 0.0
    nodes: int = 0
    cut: bool = False

    @property
    def saved(self) -> float:
        """The share of the predicted time that is saved."""
        return 1 - self.seconds[1] / self.seconds[0] if self.seconds[0] else 0.0

    @property
    def memory_saved(self) -> float:
        """The share of the stored bytes that is saved."""
        return 1 - self.stored[1] / self.stored[0] if self.stored[0] else 0.0

    def row(self) -> tuple[str, ...]:
        """Return the row of a table."""
        return (
            self.law,
            f"{100 * self.saved:.2f} %",
            f"{100 * self.memory_saved:.2f} %",
            f"{1e3 * self.search_seconds:+.0f}",
            f"{self.nodes:+}{', cut' if self.cut else ''}",
        )


def find_payoffs(explored: Exploration, laws: Sequence[Law]) -> Iterator[tuple[Payoff, Exploration]]:
    """Yield what all laws pay together, then each alone, with the exploration that has them. A law that matches nowhere
    beside all others is searched no more: alone it matches no more."""
    all_of_them = explored.with_laws(*laws)
    yield compare_searches(ALL_TOGETHER, explored, all_of_them), all_of_them
    cut = bool(all_of_them.structure.cut)
    for law in laws:
        if law.name in all_of_them.structure.fired or cut:
            other = explored.with_laws(law)
            yield compare_searches(law.name, explored, other), other


def compare_searches(law: str, explored: Exploration, other: Exploration) -> Payoff:
    """Return the difference of another exploration."""
    one, two = explored.structure, other.structure
    return Payoff(
        law,
        (one.time, two.time),
        (one.memory, two.memory),
        sum(two.seconds.values()) - sum(one.seconds.values()),
        two.nodes - one.nodes,
        bool(two.cut) and not one.cut,
    )


def tell_payoffs(payoffs: Sequence[Payoff]) -> str:
    """Return a table of what laws pay, the most first."""
    ranked = sorted(payoffs, key=lambda one: -max(one.saved, one.memory_saved))
    return str(table([one.row() for one in ranked], PAYOFF_COLUMNS, left=(0,)))


def price_laws(explored: Exploration, laws: Sequence[Law]) -> str:
    """Search a model with laws, together and each alone, and return the table of what they pay."""
    priced = [payoff for payoff, _ in find_payoffs(explored, laws)]
    return "\n".join(filter(None, [f"{explored.name}: {explored.cost()}", explored.note, tell_payoffs(priced)]))
