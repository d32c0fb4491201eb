"""What a relation gives each rank, as numbers in formulas: its entries, the rows that they name, the rows that are sent
for them. They are sizes with names until a relation says how many they are."""
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

Slicing: TypeAlias = tuple[str, LiveSize, LiveSize]          # of rows or cols, between so many ranks, at a coordinate
HALO_ROWS, COLS = "rows", "cols"


class FromRelation(sympy.Function):                          # type: ignore[misc]
    """A number that a relation gives a rank: the relation's name, and how it is cut, the outermost cut first."""
    is_integer, is_nonnegative = True, True
    word: ClassVar[str]

    @classmethod
    def at(cls, relation: Relation, *slicings: Slicing) -> sympy.Expr:
        return cls(sympy.Symbol(relation.name), *(sympy.Tuple(sympy.Symbol(role), n, r) for role, n, r in slicings))

    @property
    def relation(self) -> str: return str(self.args[0])
    @property
    def slicings(self) -> list[Slicing]: return [(str(role), n, r) for role, n, r in self.args[1:]]
    @property
    def placed(self) -> bool:
        """Whether it is of one rank, not of any."""
        return all(isinstance(each, sympy.Integer) for _, n, r in self.slicings for each in (n, r))

    @abstractmethod
    def count(self, whole: Sparse) -> int:
        """How many it is. Each kind of number says so."""

    @property
    def name(self) -> str:
        """Its name where it is of the busiest rank: the word, the relation, the axes that cut it."""
        return "_".join([self.word, self.relation, *(str(r).removeprefix("r_") for _, _, r in self.slicings)])

    def _sympystr(self, printer: object) -> str:
        places = ", ".join(str(r) for _, _, r in self.slicings)
        return f"{self.word}_{self.relation}" + f"({places})" * bool(places)
    def _latex(self, printer: object, **_: object) -> str:
        places = ", ".join(sympy.latex(r) for _, _, r in self.slicings)
        return rf"\mathrm{{{self.word}}}_{{\mathrm{{{self.relation}}}}}" + f"({places})" * bool(places)


class HeldEntries(FromRelation):
    """The entries of a relation that a rank has."""
    word = "entries"
    def count(self, whole: Sparse) -> int: return len(part_of_relation(whole, *windows(whole, self.slicings)).at)


class NamedRows(FromRelation):
    """The rows that the entries of a rank name, each once, its own ones too."""
    word = "named"
    def count(self, whole: Sparse) -> int:
        [(_, n, r)] = self.slicings
        return len(named_rows(whole, int(n), int(r)))


class SentRows(FromRelation):
    """The rows of a rank that the entries of others name, once for each rank that they go to."""
    word = "halo"
    def count(self, whole: Sparse) -> int: return sum(map(len, self.sent(whole)))

    def sent(self, whole: Sparse) -> list[NDArray[np.int64]]:
        """The rows that go to each other rank."""
        [(_, n, r)] = self.slicings
        return [own_rows(whole, int(n), q, int(r)) for q in range(int(n)) if q != r]


class Receivers(SentRows):
    """The ranks to which a rank sends any row."""
    word = "neighbours"
    def count(self, whole: Sparse) -> int: return sum(len(each) > 0 for each in self.sent(whole))


def windows(whole: Sparse, slicings: Sequence[Slicing]) -> tuple[Bounds, Bounds]:
    """From which row to which, and from which column to which, a rank has of a relation."""
    found = {HALO_ROWS: (0, whole.shape[0]), COLS: (0, whole.shape[1])}
    for role, n, r in slicings:
        lo, hi = found[role]
        first, last = bounds(hi - lo, int(n), int(r))
        found[role] = lo + first, lo + last
    return found[HALO_ROWS], found[COLS]


def part_of_relation(whole: Sparse, rows: Bounds, cols: Bounds) -> Sparse:
    """Some rows of a relation, and of their entries those within some columns, which keep their numbers."""
    counts = np.diff(whole.starts)[slice(*rows)]
    lo, hi = whole.starts[rows[0]], whole.starts[rows[1]]
    inside = (whole.at[lo:hi] >= cols[0]) & (whole.at[lo:hi] < cols[1])
    own = np.repeat(np.arange(len(counts)), counts)[inside]
    starts = np.searchsorted(own, np.arange(len(counts) + 1)).astype(np.int64)
    return Sparse(starts, whole.at[lo:hi][inside], whole.numbers[lo:hi][inside], (len(counts), whole.shape[1]))


def named_rows(whole: Sparse, n: int, r: int) -> NDArray[np.int64]:
    """The columns that have an entry in the rows of rank r of n, ascending."""
    lo, hi = bounds(whole.shape[0], n, r)
    return np.unique(whole.at[whole.starts[lo]:whole.starts[hi]])


def own_rows(whole: Sparse, n: int, q: int, r: int) -> NDArray[np.int64]:
    """Rows that the entries of rank q name and rank r holds."""
    lo, hi = bounds(whole.shape[1], n, r)
    wanted = named_rows(whole, n, q)
    return wanted[(wanted >= lo) & (wanted < hi)]


def nameless(e: sympy.Expr) -> sympy.Expr:
    """With a plain symbol for each number that a relation gives: that of its busiest rank."""
    return e.xreplace({each: sympy.Symbol(each.name, integer=True, nonnegative=True) for each in e.atoms(FromRelation)})
