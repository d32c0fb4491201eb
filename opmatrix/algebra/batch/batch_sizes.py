"""The sizes of a batch that has no numbers yet, and the count of numbers of its values, by dimension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.batch.relations import GIVEN as GIVEN_RELATIONS
from opmatrix.algebra.batch.relations import Relation, Sparse, of_sentences
from opmatrix.algebra.shapes import LiveSize, S, Shape, Space, T, size, space

Role: TypeAlias = Literal["batch", "heads", "rows", "cols"]
ROLES: tuple[Role, ...] = ("batch", "heads", "rows", "cols")  # the dimensions of a value, in order
Bounds: TypeAlias = tuple[int, int]


class Dims(NamedTuple):
    """The counts of a value: sequences x heads x rows x columns. A value without rows of a sequence has a batch of
    one."""

    batch: LiveSize = 1
    heads: LiveSize = 1
    rows: LiveSize = 1
    cols: LiveSize = 1

    @property
    def numbers(self) -> LiveSize:
        """The count of all numbers of a value of these dimensions."""
        return self.batch * self.heads * self.rows * self.cols

    def __str__(self) -> str:
        return " × ".join(map(str, self))


class BatchSizes(NamedTuple):
    """The sizes of a batch: `sequences` sequences of `tokens` tokens each, and rows of other spaces. `relations`,
    matrices by name, give the entries of each rank and the rows that it sends; without them these counts are sizes with
    names."""

    sequences: LiveSize = size("b")
    tokens: LiveSize = size("s")
    spaces: Mapping[str, LiveSize] = {}
    relations: Mapping[str, object] = {}

    def rows(self, rows: LiveSize) -> LiveSize:
        """Return the rows of a sequence, or of a space that has no sequences."""
        if rows is T:
            return self.tokens
        if rows is S:
            return 1
        return self.spaces.get(str(rows), rows) if isinstance(rows, Space) else rows

    def entries(self, name: str) -> Sparse | None:
        """Return the entries of a relation, of one sequence where it is within sequences; None where they are not
        known."""
        if name in self.relations:
            return Sparse.of(self.relations[name], f"BatchSizes: relation {name!r}")
        if name not in GIVEN_RELATIONS or not isinstance(self.tokens, int):
            return None
        return of_sentences(name, np.array([0, self.tokens]))

    def check(self, relation: Relation) -> None:
        """Raise InputError for a relation between tokens of several sequences, and for entries of other sizes."""
        if not relation.custom:
            return
        if {"T", "S"} & {relation.rows, relation.cols} and self.sequences != 1:
            raise InputError(
                f"partition: relation {relation} spans all {self.sequences} sequences: give one sequence, "
                "BatchSizes(1, tokens), or declare its rows as another space"
            )
        if (entries := self.entries(relation.name)) is None:
            return
        wanted = [self.rows(space(name)) for name in (relation.rows, relation.cols)]
        if any(isinstance(n, int) and n != count for n, count in zip(wanted, entries.shape, strict=True)):
            raise InputError(
                f"partition: relation {relation} is {entries.shape[0]} × {entries.shape[1]}, and the "
                f"sizes are {wanted[0]} × {wanted[1]}: give the sizes of its batch"
            )

    def dims(self, shape: Shape, level: bool = False) -> Dims:
        """Return the dimensions of a value; with `level`, those of one row that is the same in every place."""
        if level:
            return Dims(1, shape.heads, 1, shape.cols)
        batch = self.sequences if {T, S} & {shape.rows, shape.cols} else 1
        return Dims(batch, shape.heads, self.rows(shape.rows), self.rows(shape.cols))
