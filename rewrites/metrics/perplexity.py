"""How well a language model foresees a text: its perplexity, in windows that see nothing of one another, and nats a
byte."""
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import exp
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from formats.disk.files import read_text
from opmatrix.algebra.batch.batch import Batch
from opmatrix.inference.generation import speaks
from opmatrix.runtime.program import Program

WINDOW = 512                                                # tokens, the first of which is not foreseen
SCORED_ROWS = 32                                            # rows of scores that memory holds at once
SHOWN_TOKENS = 5                                            # tokens that may follow a text

ScoreRows = Callable[[Batch], Iterator[NDArray[np.float32]]]   # of a batch, so many rows at a time


@dataclass(frozen=True)
class Foreseen:
    """`nats` is the mean of -log p of the tokens that were foreseen, `count` of them; a token of the text has so many
    bytes."""

    name: str
    nats: float
    count: int
    bytes_a_token: float
    seconds: float

    @property
    def perplexity(self) -> float: return exp(self.nats)
    @property
    def nats_a_byte(self) -> float: return self.nats / self.bytes_a_token
    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.count / self.seconds


def score_text(name: str, program: Program, file: Path, tokens: int | None = None,
               progress: Callable[..., None] = lambda *_: None) -> Foreseen:
    """The text of a file, as `of_text`."""
    return of_text(name, program, read_text(file), str(file), tokens, progress)


def of_text(name: str, program: Program, text: str, where: str, tokens: int | None = None,
            progress: Callable[..., None] = lambda *_: None) -> Foreseen:
    """A text, or its first tokens, without special ones. Raises InputError for a program that scores no vocabulary, and
    for a text of less than two tokens, by where it comes from."""
    scores = score_rows(name, program)
    whole = program.tokenizer.tokenizer.encode(text, add_special_tokens=False)
    ids = np.array(whole.ids[:tokens], np.int64)
    if len(ids) < 2: raise InputError(f"{where}: {len(ids)} tokens: give a text of 2 or more")
    size = len(text[:whole.offsets[len(ids) - 1][1]].encode())
    side = min(filter(None, [WINDOW, program.tokenizer.limit]))
    if side < 2: raise InputError(f"{name}: it has positions for {side} token: nothing is foreseen")
    starts = [*range(0, len(ids), side), len(ids)]
    nats, count, began = 0.0, 0, time.perf_counter()
    for lo, hi in pairwise(starts):
        progress(lo, len(ids))
        if hi - lo < 2: continue
        nats, count = nats + float(foreseen(scores, ids[lo:hi])), count + hi - lo - 1
    return Foreseen(name, nats / count, count, size / len(ids), time.perf_counter() - began)


def foreseen(scores: ScoreRows, ids: NDArray[np.int64]) -> np.float64:
    """The sum of -log p of every token of a window but the first."""
    total, at = np.float64(0), 0
    for rows in scores(Batch([ids])):
        wanted = ids[at + 1:at + 1 + len(rows)]             # one less than there are rows where the window ends
        wide = rows[:len(wanted)].astype(np.float64)
        top = wide.max(1, initial=-np.inf)
        total += (top + np.log(np.exp(wide - top[:, None]).sum(1)) - wide[np.arange(len(wanted)), wanted]).sum()
        at += len(rows)
    return total


def find_likeliest(program: Program, scores: NDArray[np.float32]) -> list[tuple[str, float]]:
    """What follows a text, by the scores of its last token: the likeliest tokens, and how likely each is."""
    p = np.exp(scores.astype(np.float64) - scores.max())
    best = np.argsort(-p, kind="stable")[:SHOWN_TOKENS]
    return [(program.tokenizer.tokenizer.decode([int(token)], skip_special_tokens=False), float(p[token] / p.sum()))
            for token in best]


def score_rows(name: str, program: Program) -> ScoreRows:
    """The rows of a program that scores the vocabulary for every token. Where its last step computes each row from one
    row, as the product with the vocabulary does, it is done for some rows at a time: memory never holds tokens ×
    vocabulary."""
    if program.pooled and speaks(program):
        raise InputError(f"{name}: it scores what follows a whole text: for all tokens, make it with --output rows")
    if not speaks(program): raise InputError(f"{name}: its rows are no scores of a vocabulary: give a language model")
    steps, calls, words = program.steps, program.schedule.calls, int(program.meta["config"]["vocab_size"])
    last = calls[-1]
    if not (last.kernel.by_rows and last.values.keys() == {"x"} and program.schedule.result == len(calls) - 1):
        return lambda batch: iter([program.run(batch)])
    used = {operand for step in steps[:-1] for operand in step.operands.values()}
    body = Program(steps[:-1], {n: c for n, c in program.constants.items() if n in used}, steps[-1].operands["x"],
                   program.meta)

    def rows(batch: Batch) -> Iterator[NDArray[np.float32]]:
        hidden = body.run(batch)
        for at in range(0, len(hidden), SCORED_ROWS):
            x = hidden[at:at + SCORED_ROWS]
            out = np.empty((len(x), words), np.float32)
            last.kernel.function(out, **(vars(last.bound) | {"x": x}))
            yield out
    return rows
