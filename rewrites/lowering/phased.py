"""A workload of generated text: a request is prompts and the tokens that follow them. Its seconds are the sum of one
step for the prompts, and of a step of one row, at the mean context, for each token of the answer.

    optimize(model, workload="generate:512+128x8")

Every step of a program but attention computes a row from that row alone, so one program serves both. It is priced as
sessions run it, with attention over caches. A program that no session can run recomputes its whole text for every
token, and is priced so."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from opmatrix.algebra.batch.extents import Extents, S, T, counted, pairs
from opmatrix.algebra.batch.relations import HELD
from opmatrix.algebra.positions.patterns import Pattern, among

EXAMPLE = "generate:512+128, or generate:512+128x8"
PREFIX = "generate:"
WRITTEN = re.compile(r"generate:(\d{1,9})\+(\d{1,9})(?:x(\d{1,6}))?", re.ASCII)
NEW_SCORES = pairs[among(HELD)]  # scores of new rows with all that their sequences hold
MOST_ROWS = 1 << 20  # most tokens of all prompts and answers of a request


class Phase(NamedTuple):
    """Equal steps of a request: their count, the extents of one, the first row of each sequence, and whether earlier
    rows are in caches."""

    times: int
    extents: Extents
    starts: NDArray[np.int64]
    cached: bool


@dataclass(frozen=True)
class Generation:
    """A request: tokens of a prompt, tokens of its answer, and the number of such sequences that are generated at
    once."""

    prompt: int
    answer: int
    sequences: int = 1

    def __str__(self) -> str:
        return f"{PREFIX}{self.prompt}+{self.answer}" + f"x{self.sequences}" * (self.sequences > 1)

    @property
    def said(self) -> str:
        """The request in words."""
        at_once = f", {self.sequences} sequences at once" if self.sequences > 1 else ""
        return f"a prompt of {self.prompt} tokens, {self.answer} generated{at_once}"

    @property
    def length(self) -> int:
        """Tokens of a sequence at the end."""
        return self.prompt + self.answer

    @property
    def context(self) -> int:
        """Mean number of rows that a row of the answer sees, itself included."""
        return self.prompt + (self.answer + 1) // 2

    @property
    def prompts(self) -> list[int]:
        """The lengths of the prompts of one request."""
        return [self.prompt] * self.sequences

    def phases(self, patterns: Iterable[Pattern], cached: bool = True) -> tuple[Phase, ...]:
        """Return the step of the prompts, then the steps of the answer. Without caches a step is a run of the whole
        text."""
        seen = [*patterns]
        if cached:
            return (
                prefill(self.prompt, self.sequences, seen),
                later_step(self.context, self.sequences, seen)._replace(times=self.answer),
            )
        runs = (1, self.prompts), (self.answer, [self.context] * self.sequences)
        return tuple(Phase(times, counted(rows, seen), begin(rows), False) for times, rows in runs)


Phases = tuple[Phase, ...]


def is_phases(found: object) -> TypeGuard[Phases]:
    """True if these are the phases of a request, and no shares."""
    return isinstance(found, tuple) and bool(found) and all(isinstance(phase, Phase) for phase in found)


def prefill(length: int, sequences: int, patterns: Iterable[Pattern] = ()) -> Phase:
    """Return the step of `sequences` prompts of `length` tokens."""
    return over_caches([length] * sequences, length, sequences * length * (length + 1) // 2, patterns)


def later_step(context: int, sequences: int, patterns: Iterable[Pattern] = ()) -> Phase:
    """Return the step of one row a sequence, each of which sees `context` rows."""
    return over_caches([1] * sequences, context, sequences * context, patterns)


def over_caches(rows: Sequence[int], length: int, scores: int, patterns: Iterable[Pattern]) -> Phase:
    """Return a step with `rows` new rows of each sequence, which see `scores` rows in all. Attention that no cache
    serves would compute the scores of whole texts, of this length."""
    whole = counted([length] * len(rows), patterns)
    return Phase(1, Extents.made({**whole.numbers, T: sum(rows), S: len(rows), NEW_SCORES: scores}), begin(rows), True)


def begin(rows: Sequence[int]) -> NDArray[np.int64]:
    """Return the first row of each sequence, for sequences of these numbers of rows, and the end of the last."""
    return np.cumsum([0, *rows], dtype=np.int64)


def parse_generation(text: str, where: str = "workload") -> Generation | None:
    """Parse `generate:512+128x8`; None for any other text. Raises InputError for invalid numbers."""
    if not text.startswith(PREFIX):
        return None
    if not (match := WRITTEN.fullmatch(text.strip())):
        raise InputError(
            f"{where} {text:.60}: it is not a workload of generated text: write generate:PROMPT+ANSWER in "
            f"tokens, such as {EXAMPLE}"
        )
    generation = Generation(int(match[1]), int(match[2]), int(match[3] or 1))
    for what, count in (
        ("prompt", generation.prompt),
        ("answer", generation.answer),
        ("sequences", generation.sequences),
    ):
        if not count:
            raise InputError(f"{where} {text}: {what} 0: give 1 or more, such as {EXAMPLE}")
    if (rows := generation.length * generation.sequences) > MOST_ROWS:
        raise InputError(f"{where} {text}: {rows:,} tokens in all; a workload may have {MOST_ROWS:,}")
    return generation
