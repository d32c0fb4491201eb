"""Sequences that are kept for the beginnings of later prompts, as RadixAttention keeps them (Zheng et al. 2024, section
3): a session shares pages among them, and the least recently used are given back when it is full, or has states of more
than MOST_STATES."""

from collections.abc import Sequence
from itertools import takewhile
from operator import eq
from threading import Lock
from typing import TYPE_CHECKING

from formats.core.errors import InputError
from formats.kernels.attentions.chunks import PAGE
from opmatrix.inference.generation import AT_ONCE, Reply, check_room, pages_needed
from opmatrix.inference.pages import pages_of
from opmatrix.inference.session import HeldSequence

if TYPE_CHECKING:
    from opmatrix.runtime.program import Program

FIRST_ROWS = 4096  # rows of the first session, if the model has positions for as many
MOST_STATES = AT_ONCE  # sequences with states that are kept: their bytes are those of no page


def count_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two rows begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: eq(*pair), zip(one, other, strict=False)))


class HeldPrefixes:
    """The sequences of a program with state and their tokens, the least recently used first. A sequence in use is not
    among them, but among those that replies are written in (`used`), which have room for their full length."""

    def __init__(self, decoder: "Program", positions: int | None, rows: int = FIRST_ROWS):
        self.decoder, self.lock = decoder, Lock()
        self.tokens, self.used = dict[HeldSequence, list[int]](), dict[HeldSequence, Reply]()
        self.session = decoder.start(min(rows, positions or rows))

    def take(self, reply: Reply) -> HeldSequence:
        """Return a sequence for a prompt and its reply. It has the longest beginning of the prompt that is kept, but
        for the last token, whose row gives the first scores; the reply's `entered` and `reused` count its rows. Raises
        InputError if the session cannot have room for it."""
        with self.lock:
            self.grow_for(len(reply.prompt) + reply.most)
            sequence = self.begin(reply.prompt)
            reply.entered = reply.reused = sequence.length
            try:
                self.make_room(sequence, reply)
            except BaseException:
                if sequence.length:
                    self.tokens[sequence] = [*reply.prompt[: sequence.length]]
                else:
                    self.session.leave(sequence)
                raise
            self.used[sequence] = reply
            return sequence

    def begin(self, prompt: Sequence[int]) -> HeldSequence:
        """Return a sequence that has the longest kept beginning of a prompt, or no rows. One that the prompt continues
        is taken itself, of another a fork."""
        common = {held: count_common(ids, prompt[:-1]) for held, ids in self.tokens.items()}
        best = max(common, key=lambda held: common[held], default=None)
        if best is None or not common[best]:
            return self.session.join()
        if common[best] == len(self.tokens[best]):
            del self.tokens[best]
            return best
        self.tokens[best] = self.tokens.pop(best)  # it has been used
        fork = self.session.fork(best)
        try:
            self.session.rewind(fork, common[best])
        except InputError:  # pages behind a window were given back
            self.session.leave(fork)
            return self.session.join()
        return fork

    def make_room(self, sequence: HeldSequence, reply: Reply) -> None:
        """Give back the least recently used sequences until there is room for a reply beside those that are written.
        Raises InputError if there is none then."""
        sequences, replies = [sequence, *self.used], [reply, *self.used.values()]
        while self.tokens and pages_needed(self.session, sequences, replies) > len(self.session.usage.free):
            self.forget()
        check_room(self.session, sequences, replies)

    def forget(self) -> None:
        """Give back the least recently used sequence."""
        oldest = next(iter(self.tokens))
        del self.tokens[oldest]
        self.session.leave(oldest)

    def grow_for(self, rows: int) -> None:
        """Start a larger session, without sequences, if this one cannot have so many rows even when it is empty."""
        if rows > self.session.capacity:
            self.tokens.clear()
            self.used.clear()  # they are written to their ends in the session before
            self.session = self.decoder.start(max(PAGE * pages_of(rows, PAGE), 2 * self.session.capacity))

    def keep(self, sequence: HeldSequence, reply: Reply) -> None:
        """Keep a sequence that has a prompt and a reply, or as much of them as was computed."""
        with self.lock:
            self.used.pop(sequence, None)
            if sequence.session is not self.session:
                return
            ids = [*reply.prompt, *reply.ids][: sequence.length]
            if ids:
                self.tokens[sequence] = ids
            else:
                self.session.leave(sequence)
            while self.session.state_bytes and len(self.tokens) > MOST_STATES:
                self.forget()
