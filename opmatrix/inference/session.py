"""Sessions: the state of a program, sequence by sequence. A program itself never changes.

Rows of caches are allocated in pages (pages.py). A page knows the page before it, so sequences share a common
beginning, and a fork writes to a page of its own. If no step reads rows further behind than a window, pages behind it
are given back, except those that a rewind may need."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar, copy_context
from functools import wraps
from threading import RLock
from typing import TYPE_CHECKING, TypeVar, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from formats.core.large_pages import zeros_side_by_side
from opmatrix import body
from opmatrix.algebra.batch.batch import Ids
from opmatrix.algebra.batch.extents import collect_needs
from opmatrix.algebra.batch.signature import HELD_NUMBERS, STATE_SPACE, Port
from opmatrix.algebra.positions.patterns import FAR
from opmatrix.algebra.routes import LISTENING
from opmatrix.inference.cached import rows_behind
from opmatrix.inference.new_rows import New, PassedStates, token_words
from opmatrix.inference.pages import (
    EACH_STATE,
    NO_PAGE,
    STATE_GAP,
    Holding,
    Past,
    Snapshot,
    State,
    StatePool,
    Usage,
    count_states,
    kept_lengths,
    pages_of,
)
from opmatrix.runtime.recorded import Repeated

if TYPE_CHECKING:
    from opmatrix.algebra.term import Operator
    from opmatrix.inference.chat.chat_options import ReplyOptions
    from opmatrix.inference.generation import Prompt, Reply
    from opmatrix.runtime.program import Program

F = TypeVar("F", bound=Callable[..., object])
REWINDS = 64  # rows that a sequence with windows may go back by default
STATE_REWINDS = 1  # rows that a sequence with states may go back by default: the first few take a state each
INSIDE: ContextVar[tuple["Pages", ...]] = ContextVar("inside", default=())  # sessions with a running call


class HeldSequence:
    """A sequence that a session holds: its number and its number of rows."""

    def __init__(self, session: "Pages", number: int):
        self.session, self.number = session, number

    @property
    def length(self) -> int:
        """The number of its rows; 0 once it has left."""
        return self.session.state.sequences.get(self, Holding()).length

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"<sequence {self.number}, {self.length} rows>"


def alone(call: F) -> F:
    """Make a method of a session run one call at a time: other callers wait, and a call within another is refused.
    Python itself releases the lock and leaves the context, wherever the call is interrupted."""

    def entered(session: "Pages", *args: object, **named: object) -> object:
        """Call the method with its session marked as inside. Raises InputError if it is inside already."""
        if session in INSIDE.get():
            raise InputError("session: it is called within one of its own calls: wait until that call has returned")
        INSIDE.set((*INSIDE.get(), session))
        return call(session, *args, **named)

    @wraps(call)
    def called(session: "Pages", *args: object, **named: object) -> object:
        """Wait for the session's lock, and call in a copy of the context."""
        with session.lock:
            return copy_context().run(entered, session, *args, **named)

    return cast(F, called)


class Pages:
    """Caches of at least `capacity` rows, in whole pages, and the sequences that share them.

    One caller at a time; others wait. `exact`: caches are float64. `behind`: the most rows behind a new one that it
    sees. Pages that are further behind, by the rows that `rewinds` may give back, are given back. Raises InputError,
    which names space, sequence and sizes, for a sequence that it does not hold, and if the caches are full. A call that
    raises, at any point, has either changed nothing or was complete: it changes only `state`, in one assignment, after
    all its writes."""

    program: "Program | None" = None

    def __init__(
        self, ports: Sequence[Port], capacity: int, exact: bool = False, behind: int = FAR, rewinds: int = REWINDS
    ):
        from formats.kernels.attentions.chunks import PAGE

        if type(capacity) is not int or capacity < 1:
            raise InputError(f"start: capacity is {capacity!r:.40}: it is a number of rows of space C, 1 or more")
        if type(rewinds) is not int or rewinds < 0:
            raise InputError(
                f"start: rewinds is {rewinds!r:.40}: it is a number of rows that a sequence may go back, 0 or more"
            )
        self.behind, self.rewinds = behind, rewinds
        self.pool = StatePool([port for port in ports if port.space == STATE_SPACE], exact)
        ports = [port for port in ports if port.space != STATE_SPACE]
        self.exact, self.side, pages = exact, PAGE, pages_of(capacity, PAGE)
        self.spare = pages * PAGE  # first row of a page that no sequence has
        held = [
            ((self.spare + PAGE, port.heads, port.columns), np.float64 if exact else HELD_NUMBERS[port.number])
            for port in ports
        ]
        self.caches = dict(zip((port.name for port in ports), zeros_side_by_side(held), strict=True))
        self.chain = np.full(pages + 1, NO_PAGE, np.int64)
        self.before = self.chain[:pages]
        self.lock, self.state = RLock(), State[HeldSequence]({})
        self.latest = Usage(self.before, ())

    # ---- sequences

    @alone
    def join(self) -> HeldSequence:
        """Return a new sequence, without rows."""
        self.begin()
        return self.joined(Holding())

    def joined(self, rows: Holding) -> HeldSequence:
        """Return a new sequence that has these rows."""
        held = HeldSequence(self, self.state.made + 1)
        self.commit({**self.state.sequences, held: rows}, held.number)
        return held

    @alone
    def fork(self, sequence: HeldSequence) -> HeldSequence:
        """Return a new sequence with the same rows; both share pages until one of them writes."""
        rows = self.rows(sequence, "fork")
        self.begin().share(rows.page)
        return self.joined(rows)

    def first_held(self, sequence: HeldSequence) -> int:
        """Return the first row of a sequence whose page it still has."""
        length, page, _ = self.state.sequences[sequence]
        at = pages_of(length, self.side)
        while page != NO_PAGE:
            page, at = int(self.before[page]), at - 1
        return at * self.side

    def slots_of(self, sequence: HeldSequence, begin: int, end: int) -> list[int]:
        """Return the slots of rows `begin` to `end` of a sequence, without `end`; their pages are held."""
        length, page, _ = self.state.sequences[sequence]
        pages = dict[int, int]()
        for at in range(pages_of(length, self.side) - 1, begin // self.side - 1, -1):
            pages[at] = page
            page = int(self.before[page])
        return [pages[row // self.side] * self.side + row % self.side for row in range(begin, end)]

    @alone
    def leave(self, sequence: HeldSequence) -> None:
        """Give back all rows of a sequence, which is then no longer held."""
        self.rows(sequence, "leave")
        self.cut(sequence, 0)
        self.commit({held: rows for held, rows in self.state.sequences.items() if held is not sequence})
        self.settle()

    @property
    def sequences(self) -> dict[int, HeldSequence]:
        """The sequences that it holds, by their numbers."""
        return {held.number: held for held in self.state.sequences}

    # ---- new rows

    def batch(self, new: Mapping[HeldSequence, Ids]) -> tuple[New, dict[HeldSequence, Holding]]:
        """Return new rows, in slots of their own, and the rows of their sequences after them, once that is
        committed."""
        slots, has = self.take({sequence: len(rows) for sequence, rows in new.items()})
        states, has = self.carried(new, has)
        batch = New(new.values(), [sequence.length for sequence in new], slots, self)
        batch.carry(states)
        return batch, has

    def carried(
        self, new: Mapping[HeldSequence, Ids], has: Mapping[HeldSequence, Holding]
    ) -> tuple[list[PassedStates], dict[HeldSequence, Holding]]:
        """Return for each sequence the state before its new rows and those after some of them, and its rows with these;
        none without states. `has`: their rows after the step."""
        if not self.pool.arrays:
            return [], {**has}
        after = {
            sequence: kept_lengths(rows.length - len(new[sequence]), rows.length, self.rewinds)
            for sequence, rows in has.items()
        }
        fresh = iter(self.pool.take(self.state.sequences.values(), sum(map(len, after.values()))))
        states, holdings = list[PassedStates](), dict[HeldSequence, Holding]()
        for k, (sequence, rows) in enumerate(has.items()):
            before = rows.past.latest(rows.length)
            carried = PassedStates(before.state, [*map(Snapshot, after[sequence], fresh)])
            tokens = token_words(new[sequence], f"step: sequence {k}") if self.passes_again else ()
            past = rows.past.grown(carried.targets, tokens, rows.length, self.rewinds)
            states.append(carried)
            holdings[sequence] = rows._replace(past=past)
        return states, holdings

    def take(self, counts: Mapping[HeldSequence, int]) -> tuple[list[int], dict[HeldSequence, Holding]]:
        """Return slots for new rows of sequences, `counts` of each, in order, and the rows of the sequences with them.
        Rows on a shared page that is written to are copied to another page before."""
        had = {sequence: self.rows(sequence, "step") for sequence in counts}
        if (slots := self.next_slots(had, counts)) is not None:
            return slots, {
                sequence: rows._replace(length=rows.length + counts[sequence]) for sequence, rows in had.items()
            }
        written: dict[int, list[HeldSequence]] = {}
        for sequence, count in counts.items():
            if count and had[sequence].length % self.side:
                written.setdefault(had[sequence].page, []).append(sequence)
        self.room(had, counts, {page: len(writers) for page, writers in written.items()})
        usage = self.begin()
        stay = {self.staying(usage, writers, had) for writers in written.values()}
        taken = [self.grown(usage, had[sequence], count, sequence in stay) for sequence, count in counts.items()]
        return (
            [slot for slots, _ in taken for slot in slots],
            dict(zip(counts, (rows for _, rows in taken), strict=True)),
        )

    def next_slots(self, had: Mapping[HeldSequence, Holding], counts: Mapping[HeldSequence, int]) -> list[int] | None:
        """Return the slots behind the last rows of sequences, in pages without other users; None if some page is
        shared, or has no room. Most steps change only lengths."""
        self.latest = usage = self.usage
        slots = list[int]()
        for sequence, (length, page, _) in had.items():
            begun = length % self.side
            if not 0 < begun <= self.side - counts[sequence] or usage.users[page] > 1:
                return None
            slots += range(page * self.side + begun, page * self.side + begun + counts[sequence])
        return slots

    def rows(self, sequence: HeldSequence, doing: str) -> Holding:
        """Return the rows of a sequence of this session. Raises InputError for any other sequence."""
        if not isinstance(sequence, HeldSequence):
            raise InputError(f"{doing}: {sequence!r:.40} is no sequence: join() gives one")
        if sequence.session is not self:
            other = "another program" if sequence.session.program is not self.program else "this program"
            raise InputError(
                f"{doing}: sequence {sequence.number} belongs to another session, of {other}: use that session"
            )
        if sequence not in self.state.sequences:
            raise InputError(
                f"{doing}: sequence {sequence.number} has left; space C holds {len(self.state.sequences)} sequences"
            )
        return self.state.sequences[sequence]

    def room(
        self, had: Mapping[HeldSequence, Holding], counts: Mapping[HeldSequence, int], writers: Mapping[int, int]
    ) -> None:
        """Raise InputError if new rows need more pages than are free, given the number of sequences that write to each
        page."""
        usage, side = self.usage, self.side
        need = sum(
            pages_of(rows.length + counts[sequence], side) - pages_of(rows.length, side)
            for sequence, rows in had.items()
        )
        need += sum(min(count, usage.users[page] - 1) for page, count in writers.items())
        if need > len(usage.free):
            demand = f"{sum(counts.values())} new rows of {len(had)} sequences need {need} pages of {side} rows"
            more = self.capacity + side * (need - len(usage.free))
            raise InputError(
                f"step: space C is full: {demand}, and {len(usage.free)} of {len(self.before)} are free: "
                f"start(capacity={more}), or let sequences leave; no sequence was changed"
            )

    # ---- pages

    @property
    def usage(self) -> Usage:
        """The current usage of pages: counted anew if a call was interrupted."""
        state, latest = self.state, self.latest
        if latest.of is state:
            return latest
        usage = Usage(self.before, (rows.page for rows in state.sequences.values()))
        usage.of = state
        return usage

    def begin(self) -> Usage:
        """Return the usage of pages, to be changed: it belongs to no state until the change is committed."""
        self.latest = usage = self.usage
        usage.of = None
        return usage

    def commit(self, sequences: Mapping[HeldSequence, Holding], made: int = 0) -> None:
        """Apply the changes of a call at once: the rows of sequences from here on, and the number of sequences made."""
        self.state = State(sequences, made or self.state.made)
        self.latest.of = self.state

    def settle(self) -> None:
        """Give back the pages that no sequence reads any more, even after going back by `rewinds` rows. This follows
        from the state alone, so it may happen late: the next call does the rest of an interrupted one."""
        if self.behind >= FAR:
            return
        read, firsts = set[int](), set[int]()
        for length, page, _ in self.state.sequences.values():
            first = max(0, length - self.behind - self.kept_behind) // self.side
            for _ in range(first, (length - 1) // self.side):
                if page == NO_PAGE:
                    break
                read.add(page)  # the page before it is read, too
                page = int(self.before[page])
            firsts.add(page)
        gone = [page for page in firsts - read - {NO_PAGE} if self.before[page] != NO_PAGE]
        if not gone:
            return
        usage = self.begin()
        for page in gone:
            usage.forget(page)
        usage.of = self.state

    def staying(
        self, usage: Usage, writers: Sequence[HeldSequence], had: Mapping[HeldSequence, Holding]
    ) -> HeldSequence | None:
        """Return the one sequence, of those that write to a page, that may write to it in place, as no other sees the
        rows behind its own. None if others use the page, too."""
        if len(writers) < usage.users[had[writers[0]].page]:
            return None
        return max(reversed(writers), key=lambda each: had[each].length)

    def grown(self, usage: Usage, rows: Holding, count: int, stays: bool) -> tuple[list[int], Holding]:
        """Return slots of `count` new rows of a sequence, and its rows with them."""
        (length, page, past), side = rows, self.side
        begun, pages = length % side, list[int]()
        if begun and count:
            if not stays:
                page = self.moved(usage, page, begun)
            pages.append(page)
        for _ in range(pages_of(length + count, side) - pages_of(length, side)):
            pages.append(page := usage.add(page))
        slots = [pages[at // side] * side + at % side for at in range(begun, begun + count)]
        return slots, Holding(length + count, page, past)

    def moved(self, usage: Usage, page: int, rows: int) -> int:
        """Return a page of its own for a sequence, with a copy of the first `rows` rows of its last page."""
        fresh = usage.add(usage.drop(page))
        for cache in self.caches.values():
            cache[fresh * self.side :][:rows] = cache[page * self.side :][:rows]
        return fresh

    def cut(self, sequence: HeldSequence, length: int) -> Holding:
        """Return the rows of a sequence that gives back those from `length` on, and the pages behind them."""
        rows, pages = self.state.sequences[sequence], pages_of(length, self.side)
        return rows.first(length, self.begin().cut(rows.page, pages_of(rows.length, self.side) - pages))

    # ---- its size

    @property
    def capacity(self) -> int:
        """The number of rows that sequences may have together."""
        return len(self.before) * self.side

    @property
    def bytes(self) -> int:
        """The bytes of the caches, as `peak_bytes` counts them, including the spare page, and of all states."""
        return sum(array.nbytes for array in (*self.caches.values(), *self.pool.arrays.values()))

    @property
    def state_bytes(self) -> int:
        """The bytes of the states that a sequence keeps at most, whatever its length: those after its last row, after
        each of the few before it that it may go back, and after every 64th further back."""
        return self.pool.each * count_states(self.rewinds)

    @property
    def passes_again(self) -> bool:
        """True if rows between kept states are passed again when a sequence goes back to them."""
        return bool(self.pool.arrays) and self.rewinds > EACH_STATE

    @property
    def kept_behind(self) -> int:
        """The most rows, behind those that the next row sees, that a rewind may need."""
        return self.rewinds + (STATE_GAP if self.passes_again else 0)

    def __repr__(self) -> str:
        taken = len(self.before) - len(self.usage.free)
        pages = f"{taken} of {len(self.before)} pages of {self.side} rows"
        states = f", {self.state_bytes:,} bytes of states a sequence" if self.pool.arrays else ""
        return f"<Session of {len(self.state.sequences)} sequences, {pages}{states}, {self.bytes:,} bytes>"

    def _repr_html_(self) -> str:
        return str(body("display.shown.session_html")(self))


class Session(Pages):
    """The result of `program.start(capacity)`: the caches of a program, and steps of new rows. `exact`: steps are
    float64, too, by the meanings of the kernels: slow, the reference."""

    program: "Program"

    def __init__(self, program: "Program", capacity: int, exact: bool = False, rewinds: int | None = None):
        ports = [port for port in program.inputs if port.name in program.state]
        if not ports:
            raise InputError(
                "start: this program has no state: opmatrix.inference.cached.cached(program) makes a program that has"
            )
        if rewinds is None:
            rewinds = STATE_REWINDS if any(port.space == STATE_SPACE for port in ports) else REWINDS
        super().__init__(ports, capacity, exact, rows_behind(program), rewinds)
        self.program, self.kept = program, list[tuple[New, Repeated]]()  # the batch of the last step, its runs

    @alone
    def step(self, new: Mapping[HeldSequence, Ids]) -> NDArray[np.float32 | np.float64]:
        """Compute the outputs of new rows, (T, n), sequence after sequence, and add the rows to their sequences; (S, n)
        for a program that gives a row a sequence. Each sequence has one token id or more; a prompt is one call."""
        if self.exact or LISTENING.get() is not None:
            batch, has = self.batch(new)
            outputs = self.computed(batch)
        else:
            batch, repeated, has = self.rounded(new)
            outputs = repeated.run()[0]
            if batch.padded and not self.program.pooled:
                outputs = outputs[batch.real]
        self.commit({**self.state.sequences, **has})
        self.settle()
        return outputs

    def computed(self, batch: New) -> NDArray[np.float32 | np.float64]:
        """Compute the outputs of a batch, and write to caches and states."""
        return self.exactly(batch) if self.exact else self.program.schedule.run(batch)[0]

    def rounded(self, new: Mapping[HeldSequence, Ids]) -> tuple[New, Repeated, dict[HeldSequence, Holding]]:
        """Return new rows, as `batch` gives them. Those of a prompt longer than a page come after padding rows, so that
        they fill whole pages: few scripts serve prompts of any length. The batch of the last step and the preparation
        of its run are used again if this one is as large."""
        counts = {sequence: len(rows) for sequence, rows in new.items()}
        slots, has = self.take(counts)
        states, has = self.carried(new, has)
        lengths = [rows.length - count for rows, count in zip(has.values(), counts.values(), strict=True)]
        last = self.kept[0][0] if self.kept else None
        if last and last.asked == [*counts.values()] and last.kept_states is self.pool.arrays:
            last.fill(new.values(), lengths, slots)
        else:
            longest = FAR if self.pool.arrays else self.side  # rows before a sequence's own would enter its states
            pads = [-count % self.side if count > longest else 0 for count in counts.values()]
            batch = New(new.values(), lengths, slots, self, pads)
            self.kept[:] = [(batch, Repeated(self.program.schedule, batch))]
        self.kept[0][0].carry(states)
        return *self.kept[0], has

    @alone
    def rewind(self, sequence: HeldSequence, length: int) -> None:
        """Give back the rows of a sequence from `length` on: to 0, or at most `rewinds` rows before the most that it
        had. Rows between two kept states are passed again, at most 63, which writes the same bits."""
        rows = self.rows(sequence, "rewind")
        if type(length) is not int or not 0 <= length <= rows.length:
            raise InputError(
                f"rewind: sequence {sequence.number} has {rows.length} rows in space C: it cannot go back to "
                f"{length!r:.40}"
            )
        past = rows.past.first(length, rows.length - length) if length else Past()
        begin = past.latest(length) if self.pool.arrays else Snapshot(length)
        self.check_states(sequence, rows, length)
        self.check_pages(sequence, rows.length, length, begin.length)
        if begin.length < length:
            past = self.passed_again(sequence, past, length)
        self.commit({**self.state.sequences, sequence: self.cut(sequence, length)._replace(past=past)})
        self.settle()

    def check_states(self, sequence: HeldSequence, rows: Holding, length: int) -> None:
        """Raise InputError if neither a state after `length` rows is kept, nor a state before and all tokens since."""
        first = min((*(snapshot.length for snapshot in rows.past.states), rows.length - len(rows.past.tokens)))
        if self.pool.arrays and 0 < length < first:
            enough = first + self.rewinds + (STATE_GAP - 1) * self.passes_again - length
            raise InputError(
                f"rewind: sequence {sequence.number} of {rows.length} rows keeps the states of its last "
                f"{rows.length - first + 1}: it cannot go back to {length}: go back to 0, or "
                f"start(capacity, rewinds={enough})"
            )

    def check_pages(self, sequence: HeldSequence, has: int, length: int, begin: int) -> None:
        """Raise InputError if rows are gone that a sequence of `has` rows reads at `length`, or on the way there from
        `begin`."""
        if (needed := max(0, begin - self.behind)) < (first := self.first_held(sequence)) and length:
            back = has - length
            if back <= self.rewinds:  # it went back before: its pages follow from the longest that it was
                back = self.rewinds + first - needed + self.side - 1
            raise InputError(
                f"rewind: sequence {sequence.number} of {has} rows holds rows {first} and later, but at "
                f"{length} it reads rows {needed} and later: go back to 0, or start(capacity, rewinds={back})"
            )

    def passed_again(self, sequence: HeldSequence, past: Past, length: int) -> Past:
        """Return what a sequence of `length` rows keeps, after its rows since the last kept state were computed again.
        Their slots are theirs and take the bits that they have: bits of a row depend on its position alone."""
        begin = past.latest(length)
        lengths = kept_lengths(begin.length, length, self.rewinds)
        fresh = self.pool.take(self.state.sequences.values(), len(lengths))
        carried = PassedStates(begin.state, [*map(Snapshot, lengths, fresh)])
        tokens = past.tokens[begin.length - length :]
        batch = New([tokens], [begin.length], self.slots_of(sequence, begin.length, length), self)
        batch.carry([carried])
        self.computed(batch)
        return Past((*past.states, *carried.targets), past.tokens)

    def generate(self, prompts: Mapping[HeldSequence, "Prompt"], **options: Unpack["ReplyOptions"]) -> "list[Reply]":
        """Generate replies to prompts, text or token ids, behind the rows of each sequence, as Program.generate does,
        with its options but for `cache`. Afterwards a sequence has its prompt and its reply, and can be continued.
        Raises InputError if the caches have no room for both, before any change."""
        from opmatrix.inference.chat.chat_options import ReplyRequest
        from opmatrix.inference.generation import carry_on

        request = ReplyRequest(**options)
        replies, grown = carry_on(self, prompts, request.bounds, request.sampling)
        for _ in grown:
            pass
        return replies

    def stream_text(self, sequence: HeldSequence, prompt: "Prompt", **options: Unpack["ReplyOptions"]) -> Iterator[str]:
        """Yield the reply to a prompt, piece by piece, as `generate` gives it; until the last piece is read, the last
        token has not entered the sequence."""
        from opmatrix.inference.chat.chat_options import ReplyRequest
        from opmatrix.inference.generation import carry_on, spoken

        request = ReplyRequest(**options)
        return spoken(carry_on(self, {sequence: prompt}, request.bounds, request.sampling)[1])

    def exactly(self, batch: New, rounded: bool = True) -> NDArray[np.float64]:
        """Compute a step by the meanings of the kernels. Operands are rounded as the kernels round them unless
        `rounded` is false."""
        schedule = self.program.schedule
        values = schedule.meanings(batch, rounded=rounded)
        for i, behind in schedule.state.items():
            name = schedule.ports[i].name
            (self.caches if name in self.caches else self.pool.arrays)[name] = values[behind]
        return np.asarray(values[schedule.result])


def some(
    outputs: Mapping[str, "Operator"], lengths: Sequence[int], counts: Sequence[int], words: int, seed: int = 0
) -> New:
    """Return `counts` new rows of sequences that have `lengths` rows already, for a model of new rows
    (opmatrix.inference.cached_terms.cached_model) to be searched, priced and verified on: random ids below `words`,
    caches of random numbers."""
    from formats.kernels.attentions.chunks import PAGE

    rng = np.random.default_rng(seed)
    ports = [port for port in collect_needs(*outputs.values())[1] if port.name in outputs]
    ends = [length + count for length, count in zip(lengths, counts, strict=True)]
    pages = Pages(ports, sum(end + PAGE for end in ends))
    for cache in pages.caches.values():
        cache[...] = rng.normal(size=cache.shape)
    sequences = [pages.join() for _ in lengths]
    pages.commit(pages.take(dict(zip(sequences, lengths, strict=True)))[1])
    return pages.batch(
        {sequence: rng.integers(0, words, count) for sequence, count in zip(sequences, counts, strict=True)}
    )[0]
