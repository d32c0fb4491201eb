"""What a batch of sequences of one length gives to a rank: rows of tokens, positions and kinds, inputs, relations."""
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
    """Rows that select, as numbers: sequences x rows of columns `lo` to `hi` of all that may be selected."""
    ids: NDArray[np.int64]
    lo: int
    hi: int

    @property
    def rows(self) -> Numeric:
        """As a matrix, with a row of zeros for what other ranks select."""
        found: Numeric = (self.ids[:, None, :, None] == np.arange(self.lo, self.hi)).astype(np.float64)
        return found


@dataclass(frozen=True)
class Feed:
    """`x`: what a term is read at, sequences x rows x columns, or sequences x rows of token ids. `fields`: ids by the
    names of fields, positions counted from 0 unless they are there. `inputs`: heads x rows x columns by name.
    `relations`: matrices by name, of scipy or arrays whose zeros are absent. `even`: rows ask experts in turn, whatever
    their gates say, so that every expert is asked as often; what comes out is then no model's."""
    x: Numeric
    fields: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    inputs: Mapping[str, Numeric] = field(default_factory=dict)
    relations: Mapping[str, object] = field(default_factory=dict)
    even: bool = False

    def ids(self, name: str) -> NDArray[np.int64]:
        """Sequences x rows of a field."""
        batch, rows = self.x.shape[:2]
        if name in self.fields: return self.fields[name]
        if name == "tokens": return self.x
        return np.broadcast_to(np.arange(rows) if name == "positions" else np.zeros(rows, np.int64), (batch, rows))

    @cached_property
    def sparse(self) -> dict[str, Sparse]:
        """All relations, by rows; those within sequences are of one sequence, which are alike."""
        own = {name: of_sentences(name, np.array([0, self.x.shape[1]])) for name in GIVEN}
        return own | {name: Sparse.of(each, f"Feed: relation {name!r}") for name, each in self.relations.items()}

    def relation(self, relation: Relation, shape: tuple[int, int]) -> Sparse:
        """The entries of a relation. Raises InputError where there is none of the name, or one of another shape."""
        if relation.name not in self.sparse:
            raise InputError(f"relation {relation}: the feed gives none of this name: Feed(.., relations={{name: "
                             "matrix})")
        found = self.sparse[relation.name]
        if found.shape != shape:
            raise InputError(f"relation {relation}: the feed's is {found.shape[0]} × {found.shape[1]}, and the plan is "
                             f"for {shape[0]} × {shape[1]}")
        return found


def window(dims: Dims, at: Mapping[Role, tuple[int, int]]) -> tuple[slice, ...]:
    """Slices of sequences x heads x rows x columns."""
    return tuple(slice(*at.get(role, (0, int(size)))) for role, size in zip(ROLES, dims, strict=True))
