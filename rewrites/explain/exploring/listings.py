"""The lists of an exploration: rows that print as a table, fold in a notebook, and have values."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, overload

from opmatrix.display.html import html_table
from opmatrix.display.tables import table

Listed = TypeVar("Listed")
MOST_ROWS = 40  # rows that are printed; values are complete


@dataclass(frozen=True, repr=False)
class Listing(Sequence[Listed], Generic[Listed]):
    """Values with a row of text each. `ask` explains how to see the rows that are left out."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    values: tuple[Listed, ...]
    ask: str = ""

    @overload
    def __getitem__(self, at: int) -> Listed: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Listed, ...]: ...
    def __getitem__(self, at: int | slice) -> Listed | tuple[Listed, ...]:
        return self.values[at]

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Listed]:
        return iter(self.values)

    @property
    def left_out(self) -> str:
        """The number of rows that are not printed, in words."""
        more = len(self.rows) - MOST_ROWS
        return f"{more} more{': ' if self.ask else ''}{self.ask}" if more > 0 else ""

    def __str__(self) -> str:
        lines = [self.title, table(self.rows[:MOST_ROWS], self.header, left=(0, 1))] if self.rows else [self.title]
        return "\n".join([*lines, *filter(None, [self.left_out])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self.header, self.rows[:MOST_ROWS], self.title, self.left_out)
