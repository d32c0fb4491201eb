"""Replies of a language model to several requests at once: one thread steps a session, by a row of each reply and a
piece of a prompt, so that a long prompt keeps no reply waiting (Agrawal et al. 2024, Sarathi-Serve, section 4.2)."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition, Thread
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from formats.kernels.attentions.chunks import PAGE
from opmatrix.inference.chat.held_prefixes import HeldPrefixes
from opmatrix.inference.generation import AT_ONCE, Reply, decodable, find_ends
from opmatrix.inference.pages import pages_of
from opmatrix.inference.sampling import Sampling
from opmatrix.inference.session import HeldSequence
from opmatrix.runtime.program import Program
from rewrites.serving.refusals import Refused, invalid
from rewrites.serving.serving_counters import ServingCounters
from rewrites.serving.serving_limits import ServingLimits

PROMPT_ROWS = 128  # tokens of prompts in a step
ReplyEvent: TypeAlias = str | Reply | Exception  # a piece of text; the reply at its end; the reason why there is none


@dataclass(eq=False)
class QueuedReply:
    """A reply that is to be written, the choice of its tokens, and the function that is told each piece of text and the
    end, by the thread that writes."""

    reply: Reply
    sampling: Sampling
    tell: Callable[[ReplyEvent], None]

    def next_ids(self, room: int) -> Sequence[int]:
        """Return the tokens that enter next: at most `room` of its prompt, or the last one of the reply."""
        return self.reply.rest[:room] if self.reply.rest else self.reply.ids[-1:]


class Speaker:
    """A queue of replies, and the thread that writes AT_ONCE of them at once, in one session. Prompts and replies are
    kept there, so of a prompt only what is behind its longest kept beginning is computed."""

    def __init__(self, program: Program, limits: ServingLimits, counters: ServingCounters) -> None:
        self.program, self.limits, self.counters = program, limits, counters
        self.ends = find_ends(program)
        self.held = HeldPrefixes(decodable(program), None, limits.context)
        self.queue: deque[QueuedReply] = deque()
        self.live: dict[QueuedReply, HeldSequence] = {}  # replies that are written, and their rows
        self.given_up: set[QueuedReply] = set()
        self.changed = Condition()
        self.closed = False
        self.thread = Thread(target=self.work, name="replies", daemon=True)
        self.thread.start()

    # ---- for other threads

    def submit(self, request: QueuedReply) -> None:
        """Append a reply to the queue. Raises Refused if too many wait, if it can have no room, or if the server
        ends."""
        rows = len(request.reply.prompt) + request.reply.most
        if PAGE * pages_of(rows, PAGE) > self.held.session.capacity:
            raise invalid(
                f"max_tokens: prompt and reply have {rows} tokens, and this server has room for {self.limits.context} "
                "(--context): ask for fewer",
                "max_tokens",
            )
        with self.changed:
            if self.closed:
                raise Refused(503, "the server ends: ask another one", code="server_ends")
            if len(self.queue) >= self.limits.queue:
                raise Refused(429, f"{len(self.queue)} replies wait: ask again later", code="queue_full")
            self.queue.append(request)
            self.changed.notify()

    def give_up(self, request: QueuedReply) -> None:
        """Write no more of a reply that has no reader."""
        with self.changed:
            if request in self.queue:
                self.queue.remove(request)
            else:
                self.given_up.add(request)
                self.changed.notify()

    def close(self) -> None:
        """Take no more requests, write what waits, and end the thread."""
        with self.changed:
            self.closed = True
            self.changed.notify()
        self.thread.join()

    # ---- for the thread of replies

    def work(self) -> None:
        """Write step after step until the server ends."""
        while self.await_requests():
            self.admit()
            try:
                self.step()
            except Exception as error:
                for request in [*self.live]:
                    self.finish(request, error)

    def await_requests(self) -> bool:
        """Wait for a reply to write, and drop those without a reader; return False if the server ends."""
        with self.changed:
            while not self.queue and not self.live and not self.closed:
                self.changed.wait()
            dropped = [request for request in self.live if request in self.given_up]
            self.given_up.clear()
        for request in dropped:
            self.drop(request)
        return bool(self.queue or self.live or not self.closed)

    def admit(self) -> None:
        """Begin replies that wait, in their order, as long as there is room for them."""
        while len(self.live) < AT_ONCE:
            with self.changed:
                if not self.queue:
                    return
                request = self.queue.popleft()
            try:
                self.live[request] = self.held.take(request.reply)
            except InputError as error:
                if not self.live:
                    request.tell(error)
                    continue
                with self.changed:
                    if request not in self.given_up:
                        self.queue.appendleft(request)
                return
            except Exception as error:  # a fault ends this request alone, and not the thread
                request.tell(error)

    def step(self) -> None:
        """Enter a token of each reply and a piece of prompts, and choose the next token of each reply whose prompt is
        in."""
        new: dict[QueuedReply, Sequence[int]] = {}
        room = PROMPT_ROWS
        for request in self.live:
            ids, prompting = request.next_ids(room), bool(request.reply.rest)
            room -= len(ids) * prompting
            if ids:
                new[request] = ids
        if not new:
            return
        for (request, ids), scores in zip(new.items(), self.last_rows(new), strict=True):
            request.reply.entered += len(ids) * bool(request.reply.rest)
            if not request.reply.rest:
                self.extend(request, scores)

    def last_rows(self, new: dict[QueuedReply, Sequence[int]]) -> NDArray[np.floating]:
        """Return the scores behind the last token of each reply, (replies, vocabulary), and count the tokens."""
        began = time.monotonic()
        lengths = [len(ids) for ids in new.values()]
        rows = self.held.session.step({self.live[request]: ids for request, ids in new.items()})
        self.counters.add("busy_seconds_total", time.monotonic() - began)
        self.counters.add("batches_total", 1)
        self.counters.add("tokens_total", sum(lengths))
        return rows if self.program.pooled else rows[np.cumsum(lengths) - 1]

    def extend(self, request: QueuedReply, scores: NDArray[np.floating]) -> None:
        """Choose the next token of a reply, and tell the text that it completes. A reply that cannot go on fails
        alone."""
        reply = request.reply
        try:
            if reply.grammar:
                scores = reply.grammar.allowed(scores, self.program, self.ends)
            piece = reply.take(request.sampling.choose(scores, self.live[request].length), self.ends)
        except InputError as error:
            self.finish(request, error)
            return
        if piece:
            request.tell(piece)
        if reply.ended:
            self.finish(request, reply)

    def finish(self, request: QueuedReply, event: ReplyEvent) -> None:
        """Tell the end of a reply, and keep what it has in the session for later prompts."""
        self.drop(request)
        self.counters.add("texts_total", 1)
        request.tell(event)

    def drop(self, request: QueuedReply) -> None:
        """Take a reply off those that are written."""
        self.held.keep(self.live.pop(request), request.reply)
