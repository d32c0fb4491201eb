"""Requests that are joined into ragged batches: one thread runs the programs, and whatever arrives meanwhile is the
next batch. A text has the same bits in any batch, so nothing but time depends on who else asks."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import NamedTuple, TypeAlias

import numpy as np

from formats.core.arrays import Floats
from opmatrix.inference.scores.text_pairs import TokenRow
from rewrites.serving.refusals import Refused
from rewrites.serving.served_models import ServedEncoder
from rewrites.serving.serving_counters import ServingCounters
from rewrites.serving.serving_limits import ServingLimits

BatchOutcome: TypeAlias = Floats | Exception  # (S, n), a row for each text of a request


class Lane(NamedTuple):
    """Requests that may share a batch: they are for one model, and leave equally many tokens out of pooling."""

    model: ServedEncoder
    left: int = 0


@dataclass(eq=False)
class QueuedRequest:
    """The tokens of a request. `finish` is called once, by the thread that runs programs, unless the request is given
    up before."""

    lane: Lane
    rows: Sequence[TokenRow]
    finish: Callable[[BatchOutcome], None]
    blocks: list[Floats] = field(default_factory=list)
    begun: int = 0  # texts that are computed, or are being computed


class Portion(NamedTuple):
    """The texts of a request that are in one batch."""

    request: QueuedRequest
    first: int
    last: int

    @property
    def rows(self) -> Sequence[TokenRow]:
        """Their tokens."""
        return self.request.rows[self.first : self.last]


class Batcher:
    """A queue of requests, and the thread that answers them. Long requests take turns with others. An idle server runs
    a request at once. One whose last batch answered several requests waits until as many are there again, or enough
    tokens, or `limits.wait` is over."""

    def __init__(self, limits: ServingLimits, counters: ServingCounters) -> None:
        self.limits, self.counters = limits, counters
        self.queue: deque[QueuedRequest] = deque()
        self.changed = Condition()
        self.texts = 0  # that wait or are computed
        self.company = 1  # requests that the last batch answered
        self.closed = False
        self.thread = Thread(target=self.work, name="batches", daemon=True)
        self.thread.start()

    # ---- for other threads

    def submit(self, request: QueuedRequest) -> None:
        """Append a request to the queue. Raises Refused if too many texts wait, or if the server ends."""
        with self.changed:
            if self.closed:
                raise Refused(503, "the server ends: ask another one", code="server_ends")
            if self.texts + len(request.rows) > self.limits.queue:
                raise Refused(429, f"{self.texts} texts wait: ask again later", code="queue_full")
            self.queue.append(request)
            self.count(len(request.rows))
            self.changed.notify()

    def give_up(self, request: QueuedRequest) -> None:
        """Remove a request that nobody waits for; texts that are being computed are computed to the end."""
        with self.changed:
            if request in self.queue:
                self.queue.remove(request)
                self.count(request.begun - len(request.rows))

    def close(self) -> None:
        """Take no more requests, answer those that wait, and end the thread."""
        with self.changed:
            self.closed = True
            self.changed.notify()
        self.thread.join()

    def count(self, texts: int) -> None:
        """Add to the number of texts that wait or are computed."""
        self.texts += texts
        self.counters.set("waiting_texts", self.texts)

    # ---- for the thread of batches

    def work(self) -> None:
        """Answer batch after batch until the server ends."""
        while batch := self.next_batch():
            self.run(batch)

    def next_batch(self) -> list[Portion]:
        """Wait for requests, and return the texts of the next batch; none if the server ends. Requests may be given up
        while others are waited for."""
        batch: list[Portion] = []
        with self.changed:
            while not batch and (self.queue or not self.closed):
                if not self.queue:
                    self.await_first()
                self.await_company()
                batch = self.take() if self.queue else []
            self.company = len(batch)
        return batch

    def await_first(self) -> None:
        """Wait for a request; after `limits.wait` seconds without one the server is idle, and runs the next at once."""
        if not self.changed.wait(self.limits.wait if self.company > 1 else None):
            self.company = 1

    def await_company(self) -> None:
        """Wait until as many requests are there as the last batch answered, or tokens for a batch, or the time is
        over."""
        until = time.monotonic() + self.limits.wait
        while 0 < len(self.queue) < self.company and not self.closed and self.waiting_tokens() < self.limits.rows:
            if (left := until - time.monotonic()) <= 0:
                return
            self.changed.wait(left)

    def waiting_tokens(self) -> int:
        """Return the number of tokens that wait."""
        return sum(len(ids) for request in self.queue for ids, _ in request.rows[request.begun :])

    def take(self) -> list[Portion]:
        """Take the texts of a batch from the queue: those of the first request, and of others of its lane, as many as
        have `limits.rows` tokens together, at least one. A request that is not taken whole goes to the end."""
        lane, room = self.queue[0].lane, self.limits.rows
        batch: list[Portion] = []
        for request in [request for request in self.queue if request.lane == lane]:
            first = request.begun
            while request.begun < len(request.rows):
                length = len(request.rows[request.begun][0])
                if room < length and (batch or request.begun > first):
                    break
                request.begun, room = request.begun + 1, room - length
            if request.begun > first:
                batch.append(Portion(request, first, request.begun))
                self.queue.remove(request)
            if request.begun < len(request.rows):
                if request.begun > first:
                    self.queue.append(request)
                break
        return batch

    def run(self, batch: Sequence[Portion]) -> None:
        """Compute a batch and hand out its rows. If it fails, each request is computed alone: only those that fail
        themselves are told."""
        rows = [row for portion in batch for row in portion.rows]
        try:
            block = self.compute(batch[0].request.lane, rows)
        except Exception as error:
            if len(batch) > 1:
                for portion in batch:
                    self.run([portion])
                return
            self.give_up(batch[0].request)
            self.release(batch[0])
            batch[0].request.finish(error)
            return
        ends = np.cumsum([len(portion.rows) for portion in batch])
        for portion, part in zip(batch, np.split(block, ends[:-1]), strict=True):
            self.hand_out(portion, part)

    def compute(self, lane: Lane, rows: Sequence[TokenRow]) -> Floats:
        """Run the program on the texts of a batch, and count them."""
        began = time.monotonic()
        block = lane.model.compute(rows, lane.left)
        self.counters.add("busy_seconds_total", time.monotonic() - began)
        self.counters.add("batches_total", 1)
        self.counters.add("texts_total", len(rows))
        self.counters.add("tokens_total", sum(len(ids) for ids, _ in rows))
        return block

    def hand_out(self, portion: Portion, part: Floats) -> None:
        """Keep the rows of a request, and finish it if they are its last ones."""
        request = portion.request
        request.blocks.append(part)
        self.release(portion)
        if portion.last == len(request.rows):
            request.finish(np.concatenate(request.blocks))

    def release(self, portion: Portion) -> None:
        """Take the texts of a portion off the number of those that wait."""
        with self.changed:
            self.count(portion.first - portion.last)
