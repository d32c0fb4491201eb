"""Numbers that a relation determines on each rank, as symbols in formulas: its entries, the rows that they name, the
rows that are sent for them. They stay symbols until the relation is known."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, TypeAlias

import numpy as np
import sympy
from numpy.typing import NDArray

from opmatrix.algebra.batch.batch_sizes import Bounds
from opmatrix.algebra.batch.relations import Relation, Sparse
from opmatrix.algebra.shapes import LiveSize
from opmatrix.parallel.sharding.axis_states import bounds

Slicing: TypeAlias = tuple[str, LiveSize, LiveSize]  # rows or cols, number of ranks, coordinate
HALO_ROWS, COLS = "rows", "cols"


class FromRelation(sympy.Function):  # type: ignore[misc]
    """A number that a relation determines on a rank: the relation's name, and how it is sharded, the outermost axis
    first."""

    is_integer, is_nonnegative = True, True
    word: ClassVar[str]

    @classmethod
    def at(cls, relation: Relation, *slicings: Slicing) -> sympy.Expr:
        """Make the symbol of a relation that is sharded in these ways."""
        return cls(sympy.Symbol(relation.name), *(sympy.Tuple(sympy.Symbol(role), n, r) for role, n, r in slicings))

    @property
    def relation(self) -> str:
        """The name of the relation."""
        return str(self.args[0])

    @property
    def slicings(self) -> list[Slicing]:
        """The dimension, number of ranks and coordinate of each axis that shards it."""
        return [(str(role), n, r) for role, n, r in self.args[1:]]

    @property
    def placed(self) -> bool:
        """True if it is the number of one concrete rank."""
        return all(isinstance(number, sympy.Integer) for _, n, r in self.slicings for number in (n, r))

    @abstractmethod
    def count(self, whole: Sparse) -> int:
        """Return the number for a concrete relation. Subclasses implement it."""

    @property
    def name(self) -> str:
        """Its name as a number of the busiest rank: the word, the relation, the axes that shard it."""
        return "_".join([self.word, self.relation, *(str(r).removeprefix("r_") for _, _, r in self.slicings)])

    def _sympystr(self, printer: object) -> str:
        places = ", ".join(str(r) for _, _, r in self.slicings)
        return f"{self.word}_{self.relation}" + f"({places})" * bool(places)

    def _latex(self, printer: object, **_: object) -> str:
        places = ", ".join(sympy.latex(r) for _, _, r in self.slicings)
        return rf"\mathrm{{{self.word}}}_{{\mathrm{{{self.relation}}}}}" + f"({places})" * bool(places)


class HeldEntries(FromRelation):
    """The number of entries of a relation that a rank has."""

    word = "entries"

    def count(self, whole: Sparse) -> int:
        """Count the entries in the rank's window."""
        return len(part_of_relation(whole, *windows(whole, self.slicings)).at)


class NamedRows(FromRelation):
    """The number of distinct rows that the entries of a rank name, including its own rows."""

    word = "named"

    def count(self, whole: Sparse) -> int:
        """Count the distinct rows that the rank's entries name, its own included."""
        [(_, n, r)] = self.slicings
        return len(named_rows(whole, int(n), int(r)))


class SentRows(FromRelation):
    """The number of rows of a rank that the entries of other ranks name, once for each receiving rank."""

    word = "halo"

    def count(self, whole: Sparse) -> int:
        """Count the rows that other ranks need, once for each receiver."""
        return sum(map(len, self.sent(whole)))

    def sent(self, whole: Sparse) -> list[NDArray[np.int64]]:
        """Return the rows that go to each other rank."""
        [(_, n, r)] = self.slicings
        return [own_rows(whole, int(n), q, int(r)) for q in range(int(n)) if q != r]


class Receivers(SentRows):
    """The number of ranks to which a rank sends any row."""

    word = "neighbours"

    def count(self, whole: Sparse) -> int:
        """Count the ranks that need some row."""
        return sum(len(rows) > 0 for rows in self.sent(whole))


def windows(whole: Sparse, slicings: Sequence[Slicing]) -> tuple[Bounds, Bounds]:
    """Return the range of rows and the range of columns that a rank has of a relation."""
    ranges = {HALO_ROWS: (0, whole.shape[0]), COLS: (0, whole.shape[1])}
    for role, n, r in slicings:
        lo, hi = ranges[role]
        first, last = bounds(hi - lo, int(n), int(r))
        ranges[role] = lo + first, lo + last
    return ranges[HALO_ROWS], ranges[COLS]


def part_of_relation(whole: Sparse, rows: Bounds, cols: Bounds) -> Sparse:
    """Return some rows of a relation, with their entries within some columns. Entries keep their column numbers."""
    counts = np.diff(whole.starts)[slice(*rows)]
    lo, hi = whole.starts[rows[0]], whole.starts[rows[1]]
    inside = (whole.at[lo:hi] >= cols[0]) & (whole.at[lo:hi] < cols[1])
    row_of_entry = np.repeat(np.arange(len(counts)), counts)[inside]
    starts = np.searchsorted(row_of_entry, np.arange(len(counts) + 1)).astype(np.int64)
    return Sparse(starts, whole.at[lo:hi][inside], whole.numbers[lo:hi][inside], (len(counts), whole.shape[1]))


def named_rows(whole: Sparse, n: int, r: int) -> NDArray[np.int64]:
    """Return the columns that have an entry in the rows of rank r of n, ascending."""
    lo, hi = bounds(whole.shape[0], n, r)
    return np.unique(whole.at[whole.starts[lo] : whole.starts[hi]])


def own_rows(whole: Sparse, n: int, q: int, r: int) -> NDArray[np.int64]:
    """Return the rows that the entries of rank q name and rank r holds."""
    lo, hi = bounds(whole.shape[1], n, r)
    wanted = named_rows(whole, n, q)
    return wanted[(wanted >= lo) & (wanted < hi)]


def nameless(e: sympy.Expr) -> sympy.Expr:
    """Return the formula with a plain symbol for each number that a relation determines: that of its busiest rank."""
    return e.xreplace({size: sympy.Symbol(size.name, integer=True, nonnegative=True) for size in e.atoms(FromRelation)})
