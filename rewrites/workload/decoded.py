"""Requests for generated text as sessions run them: seconds and bytes of programs, measured and planned. A program that
no session can run recomputes its whole text for every token."""

from collections.abc import Mapping
from functools import cached_property, partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import Extents
from opmatrix.inference.cached import decoder_of
from opmatrix.inference.pages import pages_of
from opmatrix.inference.session import HeldSequence, Session
from opmatrix.runtime.declarations.operands import C
from opmatrix.runtime.measure import Seconds, most_held, peak, rotate_order, seconds, undisturbed
from opmatrix.runtime.program import Program
from opmatrix.runtime.scheme import Running
from rewrites.lowering.phased import Generation, Phase, prefill
from rewrites.lowering.price import Prices, TimeModel
from rewrites.workload.phases import Tell

STEPS_A_ROUND = 4  # timed steps of a session in a round
TokenIds = NDArray[np.integer]


class Decoding:
    """A program that answers requests of `sequences` sequences at once: the step of their prompts, and a step at some
    context."""

    def __init__(self, program: Program, sequences: int, tokens: TokenIds, context: int, prompt: int = 0) -> None:
        self.program, self.decoder = program, decoder_of(program)
        self.sequences, self.tokens, self.context = sequences, tokens, context
        self.prompt = prompt or context

    def texts(self, length: int) -> list[TokenIds]:
        """Return as many texts of this length as sequences, with the tokens repeated."""
        return [np.resize(self.tokens, length) for _ in range(self.sequences)]

    @cached_property
    def session(self) -> Session:
        """The session, with pages for the contexts and for the prompts."""
        from formats.kernels.attentions.chunks import PAGE

        assert self.decoder is not None
        return self.decoder.start(PAGE * self.sequences * (pages_of(self.context, PAGE) + pages_of(self.prompt, PAGE)))

    @cached_property
    def held(self) -> list[HeldSequence]:
        """Sequences with one row less than the context."""
        held = [self.session.join() for _ in range(self.sequences)]
        if self.context > 1:
            self.session.step(dict(zip(held, self.texts(self.context - 1), strict=True)))
        return held

    def first(self) -> float:
        """Return the seconds of the prompts in one step, which ends when the first tokens are known."""
        if self.decoder is None:
            return seconds(self.program.run, Batch(self.texts(self.prompt)))
        joined = {self.session.join(): ids for ids in self.texts(self.prompt)}
        taken = seconds(self.session.step, joined)
        for sequence in joined:
            self.session.leave(sequence)
        return taken

    def step(self, count: int = STEPS_A_ROUND) -> float:
        """Return the mean seconds of `count` steps at this context, each of which is undone."""
        if self.decoder is None:
            return seconds(self.program.run, Batch(self.texts(self.context)))
        new, taken = {sequence: self.tokens[:1] for sequence in self.held}, 0.0
        for _ in range(count):
            taken += seconds(self.session.step, new)
            for sequence in new:
                self.session.rewind(sequence, self.context - 1)
        return taken / count


def predict_step(machine: TimeModel, program: Program, phase: Phase) -> float:
    """Return the predicted seconds of a step of a program in a session."""
    prices = Prices(cast(TimeModel, Running.of(machine, phase.starts, program.stored_bytes)), phase.extents, True)
    return prices.beside(program) + prices.spent(program.schedule.cost)


def measure_requests(
    programs: Mapping[str, Program], asked: Generation, tokens: TokenIds, rounds: int, progress: Tell
) -> Seconds:
    """Return the seconds that each program takes for a request, one number a round: its prompts, and for each token of
    the answer a step at the mean context. Programs take turns, and a first round is not counted."""
    runs = {
        name: Decoding(program, asked.sequences, tokens, asked.context, asked.prompt)
        for name, program in programs.items()
    }
    taken: Seconds = {name: [] for name in runs}
    with undisturbed():
        for turn in range(-1, rounds):
            for name in rotate_order([*runs], turn):
                elapsed = runs[name].first() + asked.answer * runs[name].step()
                if turn >= 0:
                    taken[name].append(elapsed)
            progress(max(0, turn + 1), rounds)
    return taken


def capacity_of(asked: Generation) -> int:
    """Return the rows of caches that a request needs."""
    from formats.kernels.attentions.chunks import PAGE

    return PAGE * asked.sequences * pages_of(asked.length, PAGE)


def planned_peak(program: Program, asked: Generation) -> float:
    """Return the bytes of caches for a request, and of the buffers of its prompts' step, at the length of the
    prompts."""
    if (decoder := decoder_of(program)) is None:
        return program.peak_bytes(Batch([[0] * asked.length] * asked.sequences))
    extents = prefill(asked.prompt, asked.sequences).extents
    return decoder.peak_bytes(Extents.made({**extents.numbers, C: capacity_of(asked)}))


def measured_peak(program: Program, asked: Generation, tokens: TokenIds, runs: int) -> float:
    """Return the most bytes, over `runs` runs, that a session holds in the step of the prompts, its caches among
    them."""
    if (decoder := decoder_of(program)) is None:
        return peak(program, Batch([np.resize(tokens, asked.length)] * asked.sequences), runs)
    return most_held(partial(answer, decoder, asked, tokens), decoder.schedule.forget, runs)


def answer(decoder: Program, asked: Generation, tokens: TokenIds) -> tuple[Session, object]:
    """Return a session with room for a request, and the result of the step of its prompts."""
    session = decoder.start(capacity_of(asked))
    return session, session.step({session.join(): np.resize(tokens, length) for length in asked.prompts})
