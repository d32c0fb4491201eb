"""Relations: sparse matrices that a batch gives, from the rows of one space to the rows of another. An entry that is
not stored is absent, not zero: a product over any monoid leaves it out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from formats.core.arrays import find_misfit
from formats.core.errors import InputError
from opmatrix import body

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["Relation", "relation"]


RELATION_WORD = r"[A-Za-z]\w{0,39}"  # a name of a relation or of a space


@dataclass(frozen=True)
class Relation:
    """A name, the space whose rows it has and the space whose rows are its columns. The batch gives its entries."""

    name: str
    rows: str
    cols: str

    def __str__(self) -> str:
        return f"{self.name}: {self.rows} × {self.cols}"

    def _repr_html_(self) -> str:
        return str(body("display.shown.relation_html")(self))

    @property
    def custom(self) -> bool:
        """True if it belongs to its batch alone: neither every batch nor a session has it."""
        return self.name not in GIVEN and self not in (SLOTS, HELD)

    @property
    def picked(self) -> bool:
        """True for the relations that pick one row of each sequence: its first or its last."""
        return self.name in ("first", "last")

    @property
    def pooled(self) -> bool:
        """True for the relations of sentences that join several rows: `members` and its weighted forms, and a
        session's."""
        return not self.custom and not self.picked

    @property
    def square(self) -> bool:
        """True if its rows and its columns are of one space."""
        return self.rows == self.cols


GIVEN = {name: Relation(name, "S", "T") for name in ("first", "last", "members", "members_by_root", "members_by_place")}


# relations of a session: the rows of caches that take in new rows, and the rows of caches that a new row sees
SLOTS, HELD = Relation("slots", "C", "T"), Relation("held", "T", "C")
NAMED = GIVEN | {known.name: known for known in (SLOTS, HELD)}


def relation(name: str, rows: object, cols: object) -> Relation:
    """Declare a relation by its name and its two spaces, of which T are the tokens and S the sequences of a batch.
    Raises ValueError for a name that every batch gives, between other spaces."""
    declared = Relation(str(name), str(rows), str(cols))
    for word in (declared.name, declared.rows, declared.cols):
        if not re.fullmatch(RELATION_WORD, word, re.ASCII):  # programs with others could not be loaded
            raise ValueError(f"relation {declared}: {word!r:.60} is no name of up to 40 letters, digits and _")
    if GIVEN.get(declared.name, declared) != declared:
        raise ValueError(f"relation {declared}: this name is reserved: every batch has {GIVEN[declared.name]}")
    return declared


def parse_relation(text: str) -> Relation:
    """Parse the relation of a text, `name: rows × columns`. Raises ValueError for any other text."""
    name = f"({RELATION_WORD})"
    if parts := re.fullmatch(f"{name}: {name} × {name}", text, re.ASCII):
        return relation(*parts.groups())
    raise ValueError(f"{text!r:.80} is no relation, such as 'edges: T × T'")


def as_relation(given: object, where: str) -> Any:
    """Return a relation, or the one of that name that every batch or session has; a stand-in for one in a law stays.
    Raises TypeError for anything else."""
    if hasattr(given, "rows") and hasattr(given, "cols"):
        return given
    if isinstance(given, str) and given in NAMED:
        return NAMED[given]
    raise TypeError(f"{where}: {given!r:.80} is no relation: {', '.join(NAMED)}, or relation(name, rows, columns)")


class Sparse(NamedTuple):
    """A sparse matrix by rows: row i has the columns `at[starts[i]:starts[i + 1]]`, ascending, and their numbers."""

    starts: NDArray[np.int64]
    at: NDArray[np.int64]
    numbers: NDArray[np.float64]
    shape: tuple[int, int]
    relation: Relation | None = None

    def meets(self, rows: int) -> None:
        """Raise ValueError unless it has as many columns as there are rows."""
        if self.shape[1] != rows:
            what = f"relation {self.relation}" if self.relation else "a relation"
            raise ValueError(
                f"{what}: it is {self.shape[0]} × {self.shape[1]} in this batch, but the value has {rows} "
                "rows" + (f" of space {self.relation.cols}" if self.relation else "")
            )

    @classmethod
    def of(cls, given: object, where: str) -> Sparse:
        """Build it from a scipy matrix or an array, whose zeros are absent. Raises ValueError for a value that is no
        matrix of finite numbers of float32, and for entries beyond its shape, which scipy does not check."""
        if isinstance(given, Sparse):
            sparse = given
        elif hasattr(given, "tocsr"):
            check_bounds(given, where)
            csr = given.tocsr().copy()
            check_real(csr.dtype, where)
            csr.sum_duplicates()
            height, width = map(int, csr.shape)
            sparse = cls(
                np.asarray(csr.indptr, np.int64),
                np.asarray(csr.indices, np.int64),
                np.asarray(csr.data, np.float64),
                (height, width),
            )
        else:
            if (array := np.asarray(given)).ndim != 2:
                raise ValueError(f"{where} has shape {array.shape}: a relation is a matrix")
            check_real(array.dtype, where)
            rows, at = np.nonzero(array)
            starts = np.searchsorted(rows, np.arange(len(array) + 1))
            sparse = cls(
                starts.astype(np.int64), at.astype(np.int64), np.asarray(array[rows, at], np.float64), array.shape
            )
        sparse.check(where)
        if wrong := find_misfit(sparse.numbers):
            (entry,), number = wrong
            row = int(np.searchsorted(sparse.starts, entry, "right")) - 1
            raise InputError(f"{where} has {number} in row {row}, column {sparse.at[entry]}")
        return sparse

    def check(self, where: str) -> None:
        """Raise ValueError, which names the first wrong entry, unless every entry is within the shape."""
        height, width = self.shape
        if (
            self.starts.shape != (height + 1,)
            or self.starts[0] != 0
            or (np.diff(self.starts) < 0).any()
            or not self.starts[-1] == len(self.at) == len(self.numbers)
        ):
            raise ValueError(
                f"{where} is {height} × {width}, but its rows begin at {self.starts.tolist()!s:.60} of "
                f"{len(self.at)} entries"
            )
        if len(wrong := np.flatnonzero((self.at < 0) | (self.at >= width))):
            row = int(np.searchsorted(self.starts, wrong[0], "right")) - 1
            raise ValueError(
                f"{where} is {height} × {width}, but has an entry in row {row}, column {self.at[wrong[0]]}"
            )

    def single(self) -> NDArray[np.int64]:
        """Return the column of each row, where a row has exactly one entry. Raises ValueError that names the first row
        that has not."""
        counts = np.diff(self.starts)
        if len(wrong := np.flatnonzero(counts != 1)):
            space = f" in space {self.relation.rows}" if self.relation else ""
            raise ValueError(
                f"pick of relation {self.relation}: row {wrong[0]} of {self.shape[0]}{space} has "
                f"{counts[wrong[0]]} entries: a pick takes relations with exactly one entry a row"
            )
        return self.at

    def dense(self, dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """Return the numbers, with zeros where there is no entry."""
        array = np.zeros(self.shape, dtype)
        array[np.repeat(np.arange(self.shape[0]), np.diff(self.starts)), self.at] = self.numbers
        return array

    def there(self) -> NDArray[np.bool_]:
        """Return a mask of the entries, zero or not."""
        return self._replace(numbers=np.ones(len(self.at))).dense(bool)

    def layers(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]:
        """Yield the first entry of each row that has one, then the second, and so on: rows, columns, numbers."""
        counts = np.diff(self.starts)
        for k in range(int(counts.max(initial=0))):
            rows = np.flatnonzero(counts > k)
            places = self.starts[rows] + k
            yield rows, self.at[places], self.numbers[places]


def check_real(dtype: np.dtype[Any], where: str) -> None:
    """Raise ValueError for a number type that is not real: complex entries would lose their imaginary parts."""
    if dtype.kind not in "biuf":
        raise ValueError(f"{where} holds {dtype}: give real numbers")


def check_bounds(given: csr_array, where: str) -> None:
    """Raise ValueError where a scipy matrix has entries beyond its shape, by which its conversion would write
    elsewhere."""
    height, width = given.shape
    if hasattr(given, "check_format"):
        try:
            given.check_format()
        except ValueError as error:
            raise ValueError(f"{where} is {height} × {width}, but has entries beyond that: {error}") from None
    for name, size in (("row", height), ("col", width)):
        if isinstance(indices := getattr(given, name, None), np.ndarray) and len(
            wrong := indices[(indices < 0) | (indices >= size)]
        ):
            raise ValueError(
                f"{where} is {height} × {width}, but has an entry in {'row' if name == 'row' else 'column'} {wrong[0]}"
            )


def of_sentences(name: str, starts: NDArray[np.int64]) -> Sparse:
    """Return a relation between the sequences and the tokens of a batch, which every batch gives."""
    lengths, (s, t) = np.diff(starts), (len(starts) - 1, int(starts[-1]))
    if name in ("first", "last"):
        at = starts[:-1] if name == "first" else starts[1:] - 1
        return Sparse(np.arange(s + 1), at, np.ones(s), (s, t))
    counts = np.repeat(lengths, lengths).astype(np.float64)
    places = np.arange(1, t + 1) - np.repeat(starts[:-1], lengths)
    numbers = {
        "members": np.ones(t),
        "members_by_root": counts**-0.5,
        "members_by_place": places * 2 / (counts * (counts + 1)),
    }
    return Sparse(starts, np.arange(t), numbers[name], (s, t))
