"""New rows of the sequences of a session, as a batch of these rows alone."""

from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.batch.batch import Batch, Ids
from opmatrix.algebra.batch.extents import Extents, pairs
from opmatrix.algebra.batch.relations import HELD, SLOTS, Relation, Sparse
from opmatrix.algebra.batch.signature import GivenMatrix, Port, widened
from opmatrix.algebra.data import ids
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.runtime.buffers.slots import take_in
from opmatrix.runtime.declarations.by_sequence import held
from opmatrix.runtime.declarations.operands import C, Z

if TYPE_CHECKING:
    from opmatrix.inference.pages import Snapshot
    from opmatrix.inference.session import Pages


class PassedStates(NamedTuple):
    """The state of a sequence before new rows, and those that new rows leave, by the rows that it has then."""

    source: int
    targets: Sequence["Snapshot"]


class New(Batch):
    """New rows of sequences: a batch of these rows alone, except for their positions, and the places of their keys and
    values. In terms it gives the caches without the new rows, and two relations: which row of the caches takes in which
    new one (`slots`), and which of them a new row sees (`held`).

    `pads`: for each sequence the number of padding rows in front of its own; they are stored in a page that no sequence
    has."""

    def __init__(
        self,
        sentences: Collection[Ids],
        lengths: Iterable[int],
        slots: Sequence[int],
        session: "Pages",
        pads: Sequence[int] = (),
    ) -> None:
        self.asked, self.padded = [*map(len, sentences)], any(pads)
        rows = [count + pad for count, pad in zip(self.asked, pads or [0] * len(sentences), strict=True)]
        super().__init__(np.zeros(count, np.int64) for count in rows)
        self.fresh = [slice(end - count, end) for count, end in zip(self.asked, self.starts[1:].tolist(), strict=True)]
        self.slots: NDArray[np.int64] = session.spare + self.positions
        self.ages, self.sources, self.targets = np.zeros((3, self.rows), np.int64)
        self.words = take_in(self)
        self.changing = [column.data.cast("B").cast("q") for column in (self.tokens, self.positions, self.slots)]
        self.before, self.kept_states = session.chain, session.pool.arrays
        self.caches = {**session.caches, **self.kept_states}
        self.states = len(session.pool)
        self.capacity = len(self.before) * session.side
        self.fill(sentences, lengths, slots)

    def fill(self, sentences: Iterable[Ids], lengths: Iterable[int], slots: Sequence[int]) -> None:
        """Replace the rows by as many other rows of each sequence, in place: their tokens, the number of rows that
        their sequences have already, and their slots. Words are written as Python integers: for a few of them numpy
        takes longer."""
        (tokens, positions, places), at = self.changing, 0
        for k, (part, sentence, length) in enumerate(zip(self.fresh, sentences, lengths, strict=True)):
            count = part.stop - part.start
            tokens[part] = token_words(sentence, f"step: sequence {k}")
            positions[part] = array("q", range(length, length + count))
            places[part] = array("q", slots[at : at + count])
            at += count

    def carry(self, states: Iterable["PassedStates"]) -> None:
        """Set the states of sequences, if they have any: the one before these rows, and those after some of them."""
        for part, (source, targets) in zip(self.fresh, states, strict=False):
            self.ages[part] = np.arange(part.stop - part.start)
            self.sources[part], self.targets[part] = source, 0
            before = int(self.positions[part.start])
            for length, state in targets:
                self.targets[part.start + length - before - 1] = state

    @property
    def real(self) -> NDArray[np.int64]:
        """The rows that are no padding."""
        return np.concatenate([np.arange(part.start, part.stop) for part in self.fresh])

    @property
    def alone(self) -> bool:
        """True: its rows share slots and caches, so it cannot be split."""
        return True

    def arrays(self) -> Iterator[NDArray[np.generic]]:
        """Yield the arrays of the batch, with the slots of its rows and the session's caches."""
        places = self.slots, self.ages, self.sources, self.targets
        yield from (*super().arrays(), *places, self.before, *self.caches.values())

    def extents(
        self, patterns: Iterable[Pattern] = (), ports: Iterable[Port] = (), relations: Iterable[Relation] = ()
    ) -> Extents:
        """Return its rows, the rows of caches, and its scores: those of each new row with all rows of its sequence up
        to itself."""
        asked, plain = [*patterns], [port for port in ports if port.space not in (str(C), str(Z))]
        cached = [pattern for pattern in asked if pattern.cached]
        sizes = super().extents([pattern for pattern in asked if not pattern.cached], plain, relations)
        seen = int((self.positions + 1).sum()) if cached else 0
        return Extents.made({**sizes, C: self.capacity, Z: self.states, **{pairs[pattern]: seen for pattern in cached}})

    def relation(self, relation: Relation) -> Sparse:
        """Return `slots`, which row of the caches takes in each new row, or `held`, which rows of them each sees; else
        a relation of the batch."""
        rows = self.capacity
        if relation == SLOTS:
            order = np.argsort(self.slots)
            starts = np.searchsorted(self.slots[order], np.arange(rows + 1))
            return Sparse(starts, order, np.ones(len(order)), (rows, self.rows), relation)
        if relation == HELD:
            seen = [np.sort(held(slot, self.before)) for slot in self.slots]
            return Sparse(
                np.cumsum([0, *map(len, seen)]),
                np.concatenate(seen),
                np.ones(sum(map(len, seen))),
                (self.rows, rows),
                relation,
            )
        return super().relation(relation)

    def input(self, port: Port) -> GivenMatrix:
        """Return a cache without the new rows, in float32, or states; else an input of the batch. Raises ValueError for
        a cache that the session lacks."""
        if port.name in self.kept_states:
            return self.kept_states[port.name]
        if port.space != str(C):
            return super().input(port)
        if port.name not in self.caches:
            raise ValueError(f"input {port}: the session holds no cache of this name: {', '.join(self.caches)}")
        before = widened(self.caches[port.name]).copy()
        before[self.slots] = 0
        return before if port.heads > 1 else before[:, 0]


def token_words(sentence: Ids, where: str) -> "array[int]":
    """Return token ids as words. Raises as `ids` does."""
    if type(sentence) is list and {*map(type, sentence)} == {int}:
        with suppress(OverflowError):
            return array("q", sentence)
    return array("q", ids(sentence, where).tobytes())
