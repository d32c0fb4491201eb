"""New rows of sequences that a session holds, as a batch of them alone."""
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.data import ids
from opmatrix.batch import Batch, Ids
from opmatrix.extents import Extents, pairs
from opmatrix.patterns import Pattern
from opmatrix.relations import HELD, SLOTS, Relation, Sparse
from opmatrix.runtime.by_sequence import held
from opmatrix.runtime.operands import C
from opmatrix.signature import GivenMatrix, Port, widened

if TYPE_CHECKING:
    from opmatrix.pipelines.session import Pages


class New(Batch):
    """New rows of sequences: as a batch of them alone, but for their positions, and where their keys and values lie. In
    terms it gives the caches as they were, without the new rows, and two relations: which row of them takes in which
    new one (`slots`), and which of them a new row sees (`held`).

    `pads`: of each sequence rows in front of its own, which are nobody's: they lie in a page that no sequence has."""

    def __init__(self, sentences: Iterable[Ids], lengths: Sequence[int], slots: Sequence[int],
                 session: "Pages", pads: Sequence[int] = ()) -> None:
        super().__init__(sentences)
        counts = np.diff(self.starts)
        self.asked = (counts - pads).tolist() if pads else counts.tolist()
        self.real: slice | NDArray[np.int64] = slice(None)
        self.within, self.positions = self.positions, self.positions.copy()     # of the rows that are a sequence's own
        self.slots: NDArray[np.int64] = session.spare + self.within
        self.padded = any(pads)
        if self.padded:
            self.within = self.within - np.repeat(pads, counts)
            self.real = np.flatnonzero(self.within >= 0)
        self.before, self.caches = session.chain, session.caches
        self.capacity = len(self.before) * session.side
        self.fill(lengths, slots)

    def fill(self, lengths: Sequence[int], slots: Sequence[int]) -> None:
        """Where the rows of its sequences belong, in place: they have so many rows already, and these slots."""
        self.positions[self.real] = (self.within + np.array(lengths)[self.sequence])[self.real]
        self.slots[self.real] = slots

    def tell(self, tokens: Iterable[Ids]) -> None:
        """Other tokens of as many rows, in place."""
        self.tokens[self.real] = np.concatenate([ids(each, f"step: sequence {k}") for k, each in enumerate(tokens)])

    @property
    def alone(self) -> bool: return True

    def arrays(self) -> Iterator[NDArray[np.generic]]:
        yield from (*super().arrays(), self.slots, self.before, *self.caches.values())

    def extents(self, patterns: Iterable[Pattern] = (), ports: Iterable[Port] = (),
                relations: Iterable[Relation] = ()) -> Extents:
        """Its rows, rows of caches, and scores: those of each new row with all that its sequence has up to there."""
        asked, plain = [*patterns], [port for port in ports if port.space != str(C)]
        cached = [each for each in asked if each.cached]
        found = super().extents([each for each in asked if not each.cached], plain, relations)
        seen = int((self.positions + 1).sum()) if cached else 0
        return Extents.made({**found, C: self.capacity, **{pairs[each]: seen for each in cached}})

    def relation(self, relation: Relation) -> Sparse:
        rows = self.capacity
        if relation == SLOTS:
            order = np.argsort(self.slots)
            starts = np.searchsorted(self.slots[order], np.arange(rows + 1))
            return Sparse(starts, order, np.ones(len(order)), (rows, self.rows), relation)
        if relation == HELD:
            seen = [np.sort(held(slot, self.before)) for slot in self.slots]
            return Sparse(np.cumsum([0, *map(len, seen)]), np.concatenate(seen), np.ones(sum(map(len, seen))),
                          (self.rows, rows), relation)
        return super().relation(relation)

    def input(self, port: Port) -> GivenMatrix:
        if port.space != str(C): return super().input(port)
        if port.name not in self.caches:
            raise ValueError(f"input {port}: the session holds no cache of this name: {', '.join(self.caches)}")
        before = widened(self.caches[port.name]).copy()
        before[self.slots] = 0
        return before if port.heads > 1 else before[:, 0]
