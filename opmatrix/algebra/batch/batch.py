"""Batches: all rows of sentences one after another, with the relations and matrices that come with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from formats.core.sizes import size
from opmatrix.algebra.batch.extents import Extents, counted, entries, pairs
from opmatrix.algebra.batch.relations import GIVEN, Relation, Sparse, of_sentences
from opmatrix.algebra.batch.signature import GivenMatrix, Port
from opmatrix.algebra.data import ids
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.algebra.shapes import ShapeError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["Batch"]

Ids: TypeAlias = Sequence[int] | NDArray[np.integer]
Places: TypeAlias = int | NDArray[np.int64]  # one row, or many
FEW_IDS = 16  # up to so many numbers Python tests one by one
FIELDS = "tokens", "positions", "kinds", "sequence"  # the fields of a batch, a number a row


class Token:
    """Rows as patterns see them: .position, .sequence and .row, one number or many."""

    def __init__(self, rows: Fields, at: Places) -> None:
        self.whole, self.rows, self.at = rows.whole, rows, at

    @property
    def position(self) -> NDArray[np.int64]:
        """The place of each token in its sequence."""
        return self.rows.positions[self.at]

    @property
    def sequence(self) -> NDArray[np.int64]:
        """The number of each token's sequence."""
        return self.rows.sequence[self.at]

    @property
    def row(self) -> NDArray[np.int64]:
        """The row of each token, among those of the whole space."""
        return self.rows.numbers[self.at]


class NoField(ShapeError, ValueError):
    """An error: a field is read of rows that were pooled, and have no tokens, positions or kinds."""


class Fields:
    """The known facts of the rows of a space: their count, and a number of each field for each row. Rows that were
    pooled have no tokens, positions or kinds."""

    rows: int
    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    kinds: NDArray[np.int64]
    sequence: NDArray[np.int64]
    whole: Batch

    def __init__(
        self, whole: Batch, rows: int, numbers: NDArray[np.int64] | None = None, **fields: NDArray[np.int64]
    ) -> None:
        self.whole, self.rows, self.own = whole, rows, numbers
        vars(self).update(fields)

    def __getattr__(self, name: str) -> NoReturn:
        if name in FIELDS:
            raise NoField(f"{name}: these {self.rows} rows have no {name}, as they were pooled, not picked")
        raise AttributeError(f"{type(self).__name__} has no {name}")

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The index of each row in its space."""
        return np.arange(self.rows) if self.own is None else self.own

    def token(self, at: Places) -> Token:
        """Return the tokens at these rows, as patterns see them."""
        return Token(self, at)

    def field(self, name: str, limit: int) -> NDArray[np.int64]:
        """Return the numbers of a field. Raises ValueError unless all of them are in 0..limit-1."""
        numbers: NDArray[np.int64] = getattr(self, name) if name in FIELDS else self.numbers_of(name)
        if beyond(numbers, limit):
            row = int(np.flatnonzero((numbers < 0) | (numbers >= limit))[0])
            where = f"sentence {self.sequence[row]}, token {self.positions[row]} (row {row} of the batch)"
            raise ValueError(f"{name}: id {numbers[row]} of {where} is outside 0..{limit - 1}")
        return numbers

    def numbers_of(self, name: str) -> NDArray[np.int64]:
        """Return the numbers of an input of whole numbers, one a row, such as the targets of a loss. Raises ValueError
        where the batch gives none of this name."""
        if name not in self.whole.inputs:
            raise ValueError(f"a batch has no field {name!r}; there are {', '.join(FIELDS)}")
        numbers = np.asarray(self.whole.inputs[name])
        if numbers.dtype.kind not in "iu" or numbers.size != self.rows:
            raise ValueError(f"{name}: {numbers.dtype}{list(numbers.shape)}: give {self.rows} whole numbers, one a row")
        return numbers.reshape(-1).astype(np.int64)

    def selection(self, field: str, limit: int) -> csr_array:
        """Return a one-hot CSR value: row i has a one in the column that the field names."""
        from scipy.sparse import csr_array

        at = self.field(field, limit)
        return csr_array((np.ones(len(at)), at, np.arange(len(at) + 1)), shape=(len(at), limit))

    def relation(self, relation: Relation) -> Sparse:
        """Return the entries of a relation. Raises ValueError where the batch gives none of this name, or one that does
        not fit its spaces."""
        return self.whole.relation(relation)

    def input(self, port: Port) -> GivenMatrix:
        """Return the matrix of an input. Raises ValueError where the batch gives none of this name, or one of another
        shape."""
        return self.whole.input(port)

    def picked(self, at: NDArray[np.int64]) -> Fields:
        """Return some of these rows, in this order, as they are."""
        return Fields(
            self.whole,
            len(at),
            self.numbers[at],
            **{name: getattr(self, name)[at] for name in FIELDS if name in vars(self)},
        )

    def rows_before(self, k: int) -> NDArray[np.int64]:
        """Return the number of the row k before each row, -1 where its sequence has none; behind it for k below 0."""
        at = np.arange(self.rows) - k
        inside = (at >= 0) & (at < self.rows)
        there = inside & (self.sequence[np.where(inside, at, 0)] == self.sequence)
        return np.where(there, at, -1)

    def space(self, name: str, rows: int) -> Fields:
        """Return all `rows` rows of a space."""
        return self.whole.space(name, rows)


def beyond(numbers: NDArray[np.int64], limit: int) -> bool:
    """True if a number is outside 0..limit-1. For a few numbers plain Python is faster."""
    if len(numbers) <= FEW_IDS:
        return any(not 0 <= number < limit for number in numbers.tolist())
    return bool(np.maximum.reduce(numbers.view(np.uint64)) >= limit)  # read so, a negative one is huge


class Batch(Fields):
    """Sentences of any lengths, all rows one after another. No padding exists.

    tokens, positions, kinds (token types), sequence: one int64 for each row; starts: S + 1 offsets; rows: how many.
    `relations` are matrices by name, of scipy or arrays whose zeros are absent, beside those that every batch gives;
    `inputs` are matrices of other values, rows × columns or rows × heads × columns. With an input a batch may have no
    sentence."""

    own = None

    def __init__(
        self,
        sentences: Iterable[Ids] = (),
        kinds: Iterable[Ids] | None = None,
        relations: Mapping[str, object] | None = None,
        inputs: Mapping[str, object] | None = None,
    ) -> None:
        if isinstance(sentences, str) or not isinstance(sentences, Iterable):
            raise TypeError(
                f"Batch: {sentences!r:.60} is not a list of sentences, each a row of token ids; for texts use "
                "program.embed"
            )
        rows = [ids(s, f"Batch: sentence {k}") for k, s in enumerate(sentences)]
        if not rows and not inputs:
            raise ValueError("Batch: no sentences: give at least one")
        lengths = [len(s) for s in rows]
        if 0 in lengths:
            empty = f"sentence {lengths.index(0)} of {len(lengths)} has 0 tokens"
            raise ValueError(f"Batch: {empty}; each needs at least one")
        types = [np.zeros(n, np.int64) for n in lengths]
        if kinds is not None:
            types = [ids(s, f"Batch: kinds {k}") for k, s in enumerate(kinds)]
        if (kind_lengths := [len(k) for k in types]) != lengths:
            raise ValueError(f"Batch: kinds have lengths {kind_lengths} but the sentences {lengths}")
        none = np.zeros(0, np.int64)
        self.tokens, self.kinds = np.concatenate([*rows, none]), np.concatenate([*types, none])
        self.sequence = np.repeat(np.arange(len(lengths)), lengths)
        self.positions = np.concatenate([*(np.arange(n) for n in lengths), none])
        self.starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        self.rows = int(self.starts[-1])
        if taken := [name for name in relations or {} if name in GIVEN]:
            raise ValueError(f"Batch: relation {taken[0]!r}: this name is reserved: every batch has this relation")
        self.relations = {
            name: Sparse.of(matrix, f"Batch: relation {name!r}") for name, matrix in (relations or {}).items()
        }
        self.inputs, self.known = dict(inputs or {}), dict[Port, GivenMatrix]()

    @property
    def whole(self) -> Batch:  # type: ignore[override]
        """The batch itself. An attribute that holds it would leave freeing it to the garbage collector."""
        return self

    def arrays(self) -> Iterator[NDArray[np.generic]]:
        """Yield all arrays that it is made of, which tell it from other batches."""
        yield from (self.tokens, self.starts, self.kinds, self.positions)
        for _, sparse in sorted(self.relations.items()):
            yield from sparse[:3]
        for _, matrix in sorted(self.inputs.items()):
            yield np.asarray(matrix)

    @property
    def alone(self) -> bool:
        """True if it cannot be split: its relations, and its matrices of other spaces, belong to the whole batch."""
        return bool(self.relations or self.inputs)

    def extents(
        self, patterns: Iterable[Pattern] = (), ports: Iterable[Port] = (), relations: Iterable[Relation] = ()
    ) -> Extents:
        """Return its extents: its rows, the scores that each of these patterns holds in it, the rows of the spaces of
        these inputs and relations, and the entries of the relations. Raises ValueError where two differ about a
        space."""
        patterns = [*patterns]
        extents = counted(np.diff(self.starts), [pattern for pattern in patterns if pattern.relation is None])
        held = [pattern for pattern in patterns if pattern.relation is not None]
        return measure_spaces(extents, self, held, ports, relations) if held or ports or relations else extents

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} sentences, {self.rows} rows>"

    def __iter__(self) -> Iterator[Batch]:
        """Yield every sentence as a batch of its own, with the relations of sentences alone."""
        for lo, hi in pairwise(self.starts):
            yield Batch([self.tokens[lo:hi]], [self.kinds[lo:hi]])

    def pieces(self, rows: int) -> Iterator[Batch]:
        """Yield consecutive sentences as batches of at most so many rows, a longer sentence alone. A batch that has
        relations or matrices of its own is not split: it is one piece."""
        if self.alone:
            yield self
            return
        first = 0
        for last in range(1, len(self) + 1):
            if last == len(self) or self.starts[last + 1] - self.starts[first] > rows:
                yield self.sentences(first, last)
                first = last

    def sentences(self, first: int, last: int) -> Batch:
        """Return the sentences from `first` up to `last`, without `last`. Relations and matrices of the whole batch do
        not come along."""
        low, high = self.starts[first], self.starts[last]
        cuts = self.starts[first + 1 : last] - low
        return Batch(np.split(self.tokens[low:high], cuts), np.split(self.kinds[low:high], cuts))

    def relation(self, relation: Relation) -> Sparse:
        """Return a relation as a sparse matrix, one that every batch has or one that this batch was made with. Raises
        ValueError where it is missing, or has another number of rows or columns than its spaces."""
        if relation.name in GIVEN:
            return of_sentences(relation.name, self.starts)._replace(relation=relation)
        if relation.name not in self.relations:
            there = ", ".join([*GIVEN, *self.relations])
            raise ValueError(
                f"relation {relation}: the batch has no relation of this name: {there}; "
                "give it as Batch(.., relations={name: matrix})"
            )
        sparse = self.relations[relation.name]._replace(relation=relation)
        for space, count in zip((relation.rows, relation.cols), sparse.shape, strict=True):
            if (wanted := {"T": self.rows, "S": len(self)}.get(space, count)) != count:
                raise ValueError(
                    f"relation {relation}: it is {sparse.shape[0]} × {sparse.shape[1]}, but space {space} "
                    f"has {wanted} rows in {self!r}"
                )
        return sparse

    def input(self, port: Port) -> GivenMatrix:
        """Return the numbers of an input, checked once against its port. Raises ValueError where the batch has no such
        input, or it has another number of rows than its space."""
        if port in self.known:
            return self.known[port]
        if port.name not in self.inputs:
            there = ", ".join(self.inputs) or "none at all"
            raise ValueError(
                f"input {port}: the batch has no input of this name: {there}; give it as Batch(.., "
                f"inputs={{name: matrix}})"
            )
        matrix = port.matrix(self.inputs[port.name], "input")
        if (wanted := {"T": self.rows, "S": len(self)}.get(port.space, len(matrix))) != len(matrix):
            raise ValueError(
                f"input {port}: it has {len(matrix)} rows, but space {port.space} has {wanted} in {self!r}"
            )
        self.known[port] = matrix
        return matrix

    def space(self, name: str, rows: int) -> Fields:
        """Return the fields of a space with this many rows: the tokens themselves, a row a sequence, or rows without
        fields."""
        if name == "T":
            return self
        return Fields(self, rows, sequence=np.arange(rows)) if name == "S" else Fields(self, rows)


def measure_spaces(
    found: Extents, batch: Batch, held: Iterable[Pattern], ports: Iterable[Port], relations: Iterable[Relation]
) -> Extents:
    """Return the extents with the rows of other spaces, as inputs and relations of a batch have them, and the entries
    of relations. Raises ValueError where two differ about a space."""
    numbers, known = dict(found), dict[str, tuple[int, object]]()

    def told(space: str, rows: int, what: object) -> None:
        """Note the rows of a space. Raises ValueError where an earlier input or relation has another number."""
        if (there := known.setdefault(space, (rows, what)))[0] != rows:
            raise ValueError(
                f"space {space}: {there[1]} has {there[0]} rows of it in this batch, but {what} has {rows}"
            )
        numbers.setdefault(size(space), rows)

    for port in ports:
        told(port.space, len(batch.input(port)), f"input {port}")
    seen = {pattern: pattern.relation for pattern in held if pattern.relation is not None}
    for relation in dict.fromkeys([*relations, *seen.values()]):
        sparse = batch.relation(relation)
        for space, rows in zip((relation.rows, relation.cols), sparse.shape, strict=True):
            told(space, rows, f"relation {relation}")
        numbers[entries[relation]] = len(sparse.at)
    return Extents.made(numbers | {pairs[pattern]: numbers[entries[relation]] for pattern, relation in seen.items()})
