"""A script of calls of a session, and the results: prompts, steps of one row and of several on both sides of every
border, forks that write to shared pages, rewinds, sequences that leave while others go on."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.positions.patterns import FAR
from opmatrix.inference.cached import rows_behind
from opmatrix.inference.pages import NO_PAGE
from opmatrix.inference.session import HeldSequence, Session
from opmatrix.runtime.program import Program
from rewrites.verify.sessions.miniature import EVEN_SHARES, Miniature, page_side

EVERY_PAGE_UP_TO = 640  # rows up to which every page is watched
BORDER_MULTIPLES = 8  # multiples of a border, at most
ROW_BY_ROW = 300  # rows that are appended one by one
FORKS_A_STEP, PARTING_FORKS = 16, 5  # forks that step at once; one in 5 parts
DRAWN_ROWS, LAST_ROWS = 24, 4  # drawn rows beside borders; last rows
PARTING_AT = 5, 21, 32  # lengths at which sequences part, in a page and at its end
TextTokens = NDArray[np.int64]
StepRows = NDArray[np.float32]


class GivenRows(NamedTuple):
    """The rows that a step returned: their text and first position. A program of last rows returns the last one."""

    text: int
    first: int
    rows: StepRows


class CachedRows(NamedTuple):
    """The rows of a cache for a sequence: the last rows of the first `length` of a text."""

    text: int
    length: int
    cache: str
    rows: NDArray[np.generic]


class SessionScript:
    """A session of a miniature whose caches hold one number type, and everything observed of it. Sequences go on along
    texts that are known in advance: two sequences that share a beginning and then part have such texts."""

    def __init__(self, miniature: Miniature, number: str, borders: Sequence[int]) -> None:
        self.miniature, self.borders = miniature, sorted(borders)
        self.program: Program = miniature.program.decode_with(number)
        self.rng = np.random.default_rng(miniature.length)
        self.texts: list[TextTokens] = []
        self.observed: list[GivenRows] = []
        self.kept: list[CachedRows] = []
        self.along: dict[HeldSequence, int] = {}
        self.rows: dict[HeldSequence, int] = {}  # the rows that a sequence should have
        self.session: Session

    # ---- the calls

    def start(self, capacity: int, rewinds: int) -> None:
        """Start another session, without sequences."""
        self.session, self.along, self.rows = self.program.start(capacity, rewinds=rewinds), {}, {}

    def new_text(self, begun: TextTokens | None = None) -> int:
        """Add a text that begins with these tokens; returns its number."""
        text = self.miniature.text(self.rng)
        if begun is not None:
            text[: len(begun)] = begun
        self.texts.append(text)
        return len(self.texts) - 1

    def join(self, text: int) -> HeldSequence:
        """Add a sequence that goes along a text."""
        sequence = self.session.join()
        self.along[sequence], self.rows[sequence] = text, 0
        return sequence

    def fork(self, of: HeldSequence, length: int | None = None, part: bool = False) -> HeldSequence:
        """Fork a sequence; the fork may be rewound, and may part from the text of the other."""
        fork = self.session.fork(of)
        self.along[fork], self.rows[fork] = self.along[of], self.rows[of]
        if length is not None:
            self.rewind(fork, length)
        if part:
            self.part(fork)
        return fork

    def rewind(self, sequence: HeldSequence, length: int) -> None:
        """Rewind a sequence of the session, and its expected length."""
        self.session.rewind(sequence, length)
        self.rows[sequence] = length

    def part(self, sequence: HeldSequence) -> None:
        """Go on along another text."""
        self.along[sequence] = self.new_text(self.texts[self.along[sequence]][: self.rows[sequence]])

    def leave(self, sequences: Sequence[HeldSequence]) -> None:
        """Let sequences leave the session, and forget them."""
        for sequence in sequences:
            self.session.leave(sequence)
            del self.along[sequence], self.rows[sequence]

    def step(self, counts: dict[HeldSequence, int]) -> None:
        """Append `counts` rows to each sequence, as far as its text goes, and record the results."""
        counts = {
            sequence: min(count, self.miniature.length - self.rows[sequence]) for sequence, count in counts.items()
        }
        counts = {sequence: count for sequence, count in counts.items() if count > 0}
        if not counts:
            return
        firsts = {sequence: self.rows[sequence] for sequence in counts}
        new = {
            sequence: self.texts[self.along[sequence]][first : first + counts[sequence]]
            for sequence, first in firsts.items()
        }
        rows = self.session.step(new)
        at = 0
        for sequence, count in counts.items():
            returned = 1 if self.program.pooled else count
            self.observed.append(
                GivenRows(
                    self.along[sequence],
                    firsts[sequence] + count - returned,
                    np.array(rows[at : at + returned], np.float32),
                )
            )
            self.rows[sequence] += count
            if sequence.length != self.rows[sequence]:
                raise ValueError(f"{sequence!r} has taken {self.rows[sequence]} rows")
            at += returned
        self.check_pages()

    def check_pages(self) -> None:
        """Raise ValueError if a page of a sequence is free, or pages lead in a circle: the next step may overwrite
        rows that are still read, or never end."""
        free, before = {*self.session.usage.free}, self.session.before
        for sequence in self.along:
            page, pages = self.session.state.sequences[sequence].page, 0
            while page != NO_PAGE:
                if page in free:
                    raise ValueError(f"page {page} of {sequence!r} is free")
                page, pages = int(before[page]), pages + 1
                if pages > len(before):
                    raise ValueError(f"the pages of {sequence!r} form a cycle")

    def keep(self) -> None:
        """Record the rows that the caches hold of each sequence."""
        from opmatrix.runtime.declarations.by_sequence import held

        session = self.session
        for sequence, text in self.along.items():
            length, page = self.rows[sequence], session.state.sequences[sequence].page
            if not length:
                continue
            at = held(page * session.side + (length - 1) % session.side, session.before)[-length:]
            self.kept += [CachedRows(text, length, name, cache[at].copy()) for name, cache in session.caches.items()]

    # ---- the script

    def run(self) -> None:
        """Run the script: at every page and border, where a lost key shows, and with sequences that part."""
        if self.miniature.shares == EVEN_SHARES:
            self.scan(self.watched())
            self.grow()
        else:
            self.scan(self.near(self.borders))
            self.diverge()

    def watched(self) -> Iterator[int]:
        """Yield positions on both sides of every page and border; of many only some."""
        length, side = self.miniature.length, page_side()
        borders = {side * at for at in range(1, 1 + min(EVERY_PAGE_UP_TO, length) // side)}
        for border in self.borders:
            times = np.unique(np.linspace(1, max(1, length // border), BORDER_MULTIPLES).astype(int))
            borders |= {border * int(n) for n in times}
        yield from self.near(borders)

    def near(self, borders: Iterable[int]) -> list[int]:
        """Return positions on both sides of borders, the last ones, and drawn ones."""
        length, rng = self.miniature.length, np.random.default_rng(0)
        near = {border + more for border in borders for more in (-1, 0, 1)}
        near |= {*range(length - LAST_ROWS, length), *rng.integers(0, length, DRAWN_ROWS).tolist()}
        return sorted(at for at in near if 0 <= at < length)

    def scan(self, watched: Iterable[int]) -> None:
        """Append a prompt of full length, and fork it. Each fork is rewound to a watched position and takes one row,
        some of them of another text; others take as many rows as a border, from a drawn position."""
        length = self.miniature.length
        self.start(length + 2 * FORKS_A_STEP * page_side() + max(self.borders, default=0), rewinds=length)
        prompt = self.join(self.new_text())
        self.step({prompt: length})
        watched = [*watched]
        for at in range(0, len(watched), FORKS_A_STEP):
            forks = [
                self.fork(prompt, position, part=number % PARTING_FORKS == 0)
                for number, position in enumerate(watched[at : at + FORKS_A_STEP])
            ]
            self.step(dict.fromkeys(forks, 1))
            self.leave(forks)
        for border in self.borders:
            for count in (border - 1, border, border + 1):
                if not 1 < count < length:
                    continue
                fork = self.fork(prompt, int(self.rng.integers(0, length - count + 1)))
                self.step({fork: count})
                self.leave([fork])
        self.keep()

    def grow(self) -> None:
        """Append rows to several sequences in turn, row by row or some rows at a time, so that their pages are
        interleaved. With windows the caches have room only for the rows in the window, and earlier rows are freed."""
        behind, length, side = rows_behind(self.program), min(ROW_BY_ROW, self.miniature.length), page_side()
        counts = (1, 3, side + 1)
        room = min(length, behind + max(counts) + 2 * side) if behind < FAR else length
        self.start(len(counts) * (room + side), rewinds=0)
        sequences = {self.join(self.new_text()): count for count in counts}
        for _ in range(length):
            going = {one: count for one, count in sequences.items() if self.rows[one] < length}
            self.step(going)
        self.keep()

    def diverge(self) -> None:
        """Fork sequences that part from their shared rows: both write to one page in one step, or one after the other.
        Rewind some and go on with other tokens; reuse the pages of a sequence that left."""
        side, length = page_side(), self.miniature.length
        self.start(len(PARTING_AT) * 40 * side, rewinds=length)
        for begun in PARTING_AT:
            if begun + 2 >= length:
                continue
            first = self.join(self.new_text())
            self.step({first: begun})
            second, third = self.fork(first, part=True), self.fork(first, part=True)
            self.step({first: 1, second: 1})
            self.step({third: 3})
            fourth = self.fork(second, part=True)
            self.step({second: 2})
            self.step({fourth: side + 1, first: 2})
            for sequence, gone in ((fourth, side), (second, 1)):
                self.rewind(sequence, max(1, self.rows[sequence] - gone))
                self.part(sequence)
            self.step({fourth: 2, second: 2, third: 1})
            self.leave([third])
            last = self.join(self.new_text())
            self.step({last: side + 2, first: side})
            self.step({sequence: 1 for sequence in self.along})
        self.keep()
