"""The inputs that a rank gets from a batch of sequences of one length: rows of tokens, positions and kinds, inputs,
relations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch_sizes import ROLES, Dims, Role
from opmatrix.algebra.batch.relations import GIVEN, Relation, Sparse, of_sentences
from opmatrix.algebra.data import Numeric


class OneHot(NamedTuple):
    """One-hot rows as ids, sequences x rows, of columns `lo` to `hi` of all columns that can be selected."""

    ids: NDArray[np.int64]
    lo: int
    hi: int

    @property
    def rows(self) -> Numeric:
        """The rows as a matrix, with zeros for rows that select a column of another rank."""
        matrix: Numeric = (self.ids[:, None, :, None] == np.arange(self.lo, self.hi)).astype(np.float64)
        return matrix


@dataclass(frozen=True)
class Feed:
    """The inputs of a batch. A relation is a scipy matrix, or an array whose zeros are absent entries. With `even`
    routing each expert gets equally many rows, and the output is that of no model."""

    x: Numeric  # sequences x rows x columns, or sequences x rows of ids
    fields: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)  # ids by field; default positions 0, 1, ...
    inputs: Mapping[str, Numeric] = field(default_factory=dict)  # heads x rows x columns by name
    relations: Mapping[str, object] = field(default_factory=dict)  # matrices by name
    even: bool = False  # route rows to experts in turn, whatever their gates are

    def ids(self, name: str) -> NDArray[np.int64]:
        """Return the ids of a field, sequences x rows."""
        batch, rows = self.x.shape[:2]
        if name in self.fields:
            return self.fields[name]
        if name == "tokens":
            return self.x
        return np.broadcast_to(np.arange(rows) if name == "positions" else np.zeros(rows, np.int64), (batch, rows))

    @cached_property
    def sparse(self) -> dict[str, Sparse]:
        """All relations, by rows. A relation within sequences is stored for one sequence, because sequences are
        alike."""
        usual = {name: of_sentences(name, np.array([0, self.x.shape[1]])) for name in GIVEN}
        return usual | {name: Sparse.of(matrix, f"Feed: relation {name!r}") for name, matrix in self.relations.items()}

    def relation(self, relation: Relation, shape: tuple[int, int]) -> Sparse:
        """Return the entries of a relation. Raises InputError if the feed has no relation of the name, or one of
        another shape."""
        if relation.name not in self.sparse:
            raise InputError(
                f"relation {relation}: the feed has no relation of this name: Feed(.., relations={{name: matrix}})"
            )
        sparse = self.sparse[relation.name]
        if sparse.shape != shape:
            raise InputError(
                f"relation {relation}: the feed's is {sparse.shape[0]} × {sparse.shape[1]}, and the plan "
                f"is for {shape[0]} × {shape[1]}"
            )
        return sparse


def window(dims: Dims, at: Mapping[Role, tuple[int, int]]) -> tuple[slice, ...]:
    """Return the slices of sequences x heads x rows x columns."""
    return tuple(slice(*at.get(role, (0, int(size)))) for role, size in zip(ROLES, dims, strict=True))
