"""Sessions: the state of a program, sequence by sequence. A program itself never changes.

Rows of caches are handed out in pages; a page knows the page before it, so sequences share those that they begin with,
and what a fork writes goes to a page of its own."""
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from opmatrix.extents import Extents, collect_needs, pairs
from opmatrix.patterns import Batch, Ids, Pattern
from opmatrix.relations import HELD, SLOTS, Relation, Sparse
from opmatrix.runtime.meanings import held
from opmatrix.runtime.operands import C
from opmatrix.signature import Port

if TYPE_CHECKING:
    from opmatrix.program import Program

NO_PAGE = -1                                                # the page before the first


class Held:
    """A sequence that a session holds: its number, how many rows it has, its last page and how many there are."""

    def __init__(self, session: "Pages", number: int, length: int = 0, page: int = NO_PAGE, pages: int = 0):
        self.session, self.number, self.length, self.page, self.pages = session, number, length, page, pages

    def __len__(self) -> int: return self.length
    def __repr__(self) -> str: return f"<sequence {self.number}, {self.length} rows>"


class New(Batch):
    """New rows of sequences: as a batch of them alone, but for their positions, and where their keys and values lie. In
    terms it gives the caches as they were, without the new rows, and two relations: which row of them takes in which
    new one (`slots`), and which of them a new row sees (`held`)."""

    def __init__(self, sentences: Iterable[Ids], lengths: Sequence[int], slots: NDArray[np.int64],
                 session: "Pages") -> None:
        super().__init__(sentences)
        self.positions = self.positions + np.repeat(lengths, np.diff(self.starts))
        self.slots, self.before, self.caches, self.capacity = slots, session.before, session.caches, session.capacity

    @property
    def alone(self) -> bool: return True

    def arrays(self) -> Iterator[NDArray[Any]]:
        yield from (*super().arrays(), self.slots, self.before, *self.caches.values())

    def extents(self, patterns: Iterable[Pattern] = (), ports: Iterable[Port] = (),
                relations: Iterable[Relation] = ()) -> Extents:
        """Its rows, rows of caches, and scores: those of each new row with all that its sequence has up to there."""
        seen = int((self.positions + 1).sum())
        asked, plain = [*patterns], [port for port in ports if port.space != str(C)]
        found = super().extents([each for each in asked if not each.cached], plain, relations)
        return Extents.made({**found, C: self.capacity, **{pairs[each]: seen for each in asked if each.cached}})

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

    def input(self, port: Port) -> NDArray[Any]:
        if port.space != str(C): return super().input(port)
        if port.name not in self.caches:
            raise ValueError(f"input {port}: the session holds no cache of this name: {', '.join(self.caches)}")
        before = self.caches[port.name].copy()
        before[self.slots] = 0
        return before if port.heads > 1 else before[:, 0]


class Pages:
    """Caches of so many rows, in whole pages, and the sequences that share them.

    One caller at a time; others wait. `exact`: caches are float64. Raises InputError, which names space, sequence and
    sizes, for a sequence that it does not hold, and where the caches are full: all is then as it was before."""
    program: "Program | None" = None

    def __init__(self, ports: Sequence[Port], capacity: int, exact: bool = False):
        from formats.kernels.mixing.caches import PAGE
        if type(capacity) is not int or capacity < 1:
            raise InputError(f"start: capacity is {capacity!r:.40}: it is a number of rows of space C, 1 or more")
        self.exact, self.side, pages = exact, PAGE, -(-capacity // PAGE)
        number = np.float64 if exact else np.float32
        self.caches = {port.name: np.zeros((pages * PAGE, port.heads, port.columns), number) for port in ports}
        self.before = np.full(pages, NO_PAGE, np.int64)
        self.users = [0] * pages                            # of each page: sequences that end in it, and pages that
                                                            # follow it
        self.free = [*range(pages)][::-1]
        self.sequences: dict[int, Held] = {}
        self.lock, self.busy, self.made = RLock(), False, 0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One call at a time; one that is given up leaves pages as the sequences have them."""
        with self.lock:
            if self.busy:
                raise InputError("session: it is called back within a call of its own: wait until that has ended")
            try:
                self.busy = True
                yield
            except BaseException:
                self.recount()
                raise
            finally: self.busy = False

    # ---- sequences

    def join(self) -> Held:
        """A new sequence, without rows."""
        with self.alone(): return self.joined(0, NO_PAGE, 0)

    def joined(self, length: int, page: int, pages: int) -> Held:
        """A new sequence with so many rows, that ends in this page."""
        self.made += 1
        self.sequences[self.made] = held = Held(self, self.made, length, page, pages)
        return held

    def fork(self, sequence: Held) -> Held:
        """A new sequence with the same rows; pages are shared until one of both writes."""
        with self.alone():
            own = self.known(sequence, "fork")
            if own.pages: self.users[own.page] += 1
            return self.joined(own.length, own.page, own.pages)

    def rewind(self, sequence: Held, length: int) -> None:
        """A sequence gives back the rows from `length` on."""
        with self.alone():
            own = self.known(sequence, "rewind")
            if type(length) is not int or not 0 <= length <= own.length:
                raise InputError(f"rewind: sequence {own.number} has {own.length} rows in space C: it cannot go back "
                                 f"to {length!r:.40}")
            own.length = length
            self.trim(own)

    def leave(self, sequence: Held) -> None:
        """A sequence gives back all of its rows, and is no longer held."""
        with self.alone():
            own = self.known(sequence, "leave")
            own.length = 0
            self.trim(own)
            del self.sequences[own.number]

    # ---- new rows

    def batch(self, new: Mapping[Held, Ids]) -> tuple[New, dict[Held, int]]:
        """New rows, in slots of their own, and how many rows their sequences have with them."""
        sequences = [self.known(each, "step") for each in new]
        counts = [len(ids) for ids in new.values()]
        self.room(sequences, counts)
        slots = [slot for own, count in zip(sequences, counts, strict=True) for slot in self.slots(own, count)]
        made = New(new.values(), [own.length for own in sequences], np.array(slots, np.int64), self)
        return made, {own: own.length + count for own, count in zip(sequences, counts, strict=True)}

    def known(self, sequence: Held, doing: str) -> Held:
        """A sequence of this session. Raises InputError for any other."""
        if not isinstance(sequence, Held):
            raise InputError(f"{doing}: {sequence!r:.40} is no sequence: join() gives one")
        if sequence.session is not self:
            other = "another program" if sequence.session.program is not self.program else "this program"
            raise InputError(f"{doing}: sequence {sequence.number} belongs to another session, of {other}: use that "
                             "session")
        if self.sequences.get(sequence.number) is not sequence:
            raise InputError(f"{doing}: sequence {sequence.number} has left; space C holds {len(self.sequences)} "
                             "sequences")
        return sequence

    # ---- pages

    def room(self, sequences: Sequence[Held], counts: Sequence[int]) -> None:
        """Raises InputError where new rows need more pages than are free."""
        need, shared = 0, dict[int, int]()
        for own, count in zip(sequences, counts, strict=True):
            need += -(-(own.length + count) // self.side) - own.pages
            if own.length % self.side and count: shared[own.page] = shared.get(own.page, 0) + 1
        need += sum(min(writers, self.users[page] - 1) for page, writers in shared.items())
        if need > len(self.free):
            said = f"{sum(counts)} new rows of {len(sequences)} sequences need {need} pages of {self.side} rows"
            raise InputError(f"step: space C is full: {said}, and {len(self.free)} of {len(self.before)} are free: "
                             "let sequences leave, or start with more rows")

    def slots(self, own: Held, count: int) -> list[int]:
        """Rows of caches for so many new rows of a sequence."""
        found = []
        for at in range(own.length, own.length + count):
            row = at % self.side
            if not row: self.add(own)
            elif self.users[own.page] > 1: self.split(own, row)
            found.append(own.page * self.side + row)
        return found

    def add(self, own: Held) -> None:
        """Another page for a sequence: what ended in its last page is now the page that follows."""
        page = self.free.pop()
        self.before[page], self.users[page] = own.page, 1
        own.page, own.pages = page, own.pages + 1

    def split(self, own: Held, rows: int) -> None:
        """A page of its own for a sequence, with a copy of these first rows of its last page."""
        old = own.page
        self.drop(own)
        self.add(own)
        for cache in self.caches.values(): cache[own.page * self.side:][:rows] = cache[old * self.side:][:rows]

    def drop(self, own: Held) -> None:
        """A sequence ends in the page before; a page that nobody needs is free."""
        page = own.page
        own.page, own.pages = int(self.before[page]), own.pages - 1
        self.users[page] -= 1
        if self.users[page]:                                # it still follows the page before, and so does the sequence
            if own.page != NO_PAGE: self.users[own.page] += 1
        else: self.free.append(page)

    def trim(self, own: Held) -> None:
        """Pages behind the last row are given back."""
        while own.pages > -(-own.length // self.side): self.drop(own)

    def recount(self) -> None:
        """Counts pages anew, by what the sequences hold, wherever a call was given up."""
        users, held = [0] * len(self.before), set[int]()
        for own in self.sequences.values():
            chain = [*self.chain(own)]
            chain = chain[len(chain) - -(-own.length // self.side):]
            own.page, own.pages = chain[0] if chain else NO_PAGE, len(chain)
            if chain: users[chain[0]] += 1
            for page in set(chain) - held:
                if (before := int(self.before[page])) != NO_PAGE: users[before] += 1
            held |= {*chain}
        self.users, self.free = users, [page for page in range(len(users)) if page not in held][::-1]

    def chain(self, own: Held) -> Iterator[int]:
        """The pages of a sequence, the last one first."""
        page = own.page
        while page != NO_PAGE:
            yield page
            page = int(self.before[page])

    # ---- what it takes

    @property
    def capacity(self) -> int:
        """Rows of the caches."""
        return len(self.before) * self.side

    @property
    def bytes(self) -> int:
        """Bytes of the caches, as `peak_bytes` counts them."""
        return sum(cache.nbytes for cache in self.caches.values())

    def __repr__(self) -> str:
        taken = len(self.before) - len(self.free)
        pages = f"{taken} of {len(self.before)} pages of {self.side} rows"
        return f"<Session of {len(self.sequences)} sequences, {pages}, {self.bytes:,} bytes>"


class Session(Pages):
    """What `program.start(capacity)` gives: the caches of a program, and steps of new rows. `exact`: steps are float64,
    too, by the meanings of the kernels: slow, the oracle."""
    program: "Program"

    def __init__(self, program: "Program", capacity: int, exact: bool = False):
        ports = [port for port in program.inputs if port.name in program.state]
        if not ports:
            raise InputError("start: this program has no state: opmatrix.pipelines.cached.cached(program) makes a "
                             "program that has")
        super().__init__(ports, capacity, exact)
        self.program = program

    def step(self, new: Mapping[Held, Ids]) -> NDArray[Any]:
        """(T, n): the outputs of new rows, sequence after sequence, which then belong to them; (S, n) of a program that
        gives a row a sequence. Each has one token id or more; a prompt is one call."""
        with self.alone():
            batch, lengths = self.batch(new)
            found = self.exactly(batch) if self.exact else self.program.schedule.run(batch)[0]
            for own, length in lengths.items(): own.length = length
            return found

    def exactly(self, batch: New) -> NDArray[np.float64]:
        """A step by the meanings of the kernels."""
        schedule = self.program.schedule
        found = schedule.meanings(batch)
        for i, behind in schedule.state.items(): self.caches[schedule.ports[i].name] = found[behind]
        return np.asarray(found[schedule.result])


def some(outputs: Mapping[str, Any], lengths: Sequence[int], counts: Sequence[int], words: int, seed: int = 0) -> New:
    """So many new rows of sequences that have so many already, for a model of new rows
    (opmatrix.pipelines.cached.cached_model) to be searched, priced and verified on: random ids below `words`, caches of
    random numbers."""
    from formats.kernels.mixing.caches import PAGE
    rng = np.random.default_rng(seed)
    ports = [port for port in collect_needs(*outputs.values())[1] if port.name in outputs]
    ends = [length + count for length, count in zip(lengths, counts, strict=True)]
    pages = Pages(ports, sum(end + PAGE for end in ends))
    for cache in pages.caches.values(): cache[...] = rng.normal(size=cache.shape)
    sequences = [pages.join() for _ in lengths]
    for own, length in zip(sequences, lengths, strict=True): pages.slots(own, length); own.length = length
    return pages.batch({own: rng.integers(0, words, count) for own, count in zip(sequences, counts, strict=True)})[0]
