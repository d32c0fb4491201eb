"""The perplexity of a language model on a text, in independent windows, and its nats per byte."""

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

WINDOW = 512  # tokens, the first of which is not predicted
SCORED_ROWS = 32  # rows of scores that memory holds at once
SHOWN_TOKENS = 5  # likeliest next tokens that are shown

ScoreRows = Callable[[Batch], Iterator[NDArray[np.float32]]]  # the scores of a batch, some rows at a time


@dataclass(frozen=True)
class Foreseen:
    """The score of a program on a text. `nats` is the mean of -log p of the predicted tokens, `count` their number;
    `bytes_a_token` is the mean size of a token of the text."""

    name: str
    nats: float
    count: int
    bytes_a_token: float
    seconds: float

    @property
    def perplexity(self) -> float:
        """The perplexity of a token: e to the power of `nats`."""
        return exp(self.nats)

    @property
    def nats_a_byte(self) -> float:
        """The nats of a byte, which programs of other tokenizers can be compared by."""
        return self.nats / self.bytes_a_token

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.count / self.seconds


def score_text(
    name: str, program: Program, file: Path, tokens: int | None = None, progress: Callable[..., None] = lambda *_: None
) -> Foreseen:
    """Score the text of a file, as `of_text` does."""
    return of_text(name, program, read_text(file), str(file), tokens, progress)


def of_text(
    name: str,
    program: Program,
    text: str,
    where: str,
    tokens: int | None = None,
    progress: Callable[..., None] = lambda *_: None,
) -> Foreseen:
    """Score a text, or its first tokens, without special tokens. Raises InputError for a program that does not score a
    vocabulary, and for a text of less than two tokens; `where` names its source."""
    scores = score_rows(name, program)
    whole = program.tokenizer.tokenizer.encode(text, add_special_tokens=False)
    ids = np.array(whole.ids[:tokens], np.int64)
    if len(ids) < 2:
        raise InputError(f"{where}: {len(ids)} tokens: give a text of 2 or more")
    size = len(text[: whole.offsets[len(ids) - 1][1]].encode())
    side = min(filter(None, [WINDOW, program.tokenizer.limit]))
    if side < 2:
        raise InputError(f"{name}: it has positions for {side} token, so it predicts none")
    starts = [*range(0, len(ids), side), len(ids)]
    nats, count, began = 0.0, 0, time.perf_counter()
    for lo, hi in pairwise(starts):
        progress(lo, len(ids))
        if hi - lo < 2:
            continue
        nats, count = nats + float(foreseen(scores, ids[lo:hi])), count + hi - lo - 1
    return Foreseen(name, nats / count, count, size / len(ids), time.perf_counter() - began)


def foreseen(scores: ScoreRows, ids: NDArray[np.int64]) -> np.float64:
    """Return the sum of -log p of every token of a window but the first."""
    total, at = np.float64(0), 0
    for rows in scores(Batch([ids])):
        wanted = ids[at + 1 : at + 1 + len(rows)]  # one less than the rows at the end of the window
        wide = rows[: len(wanted)].astype(np.float64)
        top = wide.max(1, initial=-np.inf)
        total += (top + np.log(np.exp(wide - top[:, None]).sum(1)) - wide[np.arange(len(wanted)), wanted]).sum()
        at += len(rows)
    return total


def find_likeliest(program: Program, scores: NDArray[np.float32]) -> list[tuple[str, float]]:
    """Return the likeliest next tokens of a text by the scores of its last token, with their probabilities."""
    p = np.exp(scores.astype(np.float64) - scores.max())
    best = np.argsort(-p, kind="stable")[:SHOWN_TOKENS]
    return [
        (program.tokenizer.tokenizer.decode([int(token)], skip_special_tokens=False), float(p[token] / p.sum()))
        for token in best
    ]


def score_rows(name: str, program: Program) -> ScoreRows:
    """Return a function that yields a program's scores of the vocabulary for every token. If its last step computes
    each row from one row, as the product with the vocabulary does, it runs for some rows at a time: tokens ×
    vocabulary is never held in memory."""
    if program.pooled and speaks(program):
        raise InputError(f"{name}: it scores only the token after a text: for all tokens, optimize with --output rows")
    if not speaks(program):
        raise InputError(f"{name}: its rows are not scores of a vocabulary: give a language model")
    steps, calls, words = program.steps, program.schedule.calls, int(program.meta["config"]["vocab_size"])
    last = calls[-1]
    if not (last.kernel.by_rows and last.values.keys() == {"x"} and program.schedule.result == len(calls) - 1):
        return lambda batch: iter([program.run(batch)])
    used = {operand for step in steps[:-1] for operand in step.operands.values()}
    body = Program(
        steps[:-1], {n: c for n, c in program.constants.items() if n in used}, steps[-1].operands["x"], program.meta
    )

    def rows(batch: Batch) -> Iterator[NDArray[np.float32]]:
        """Yield scores for some rows at a time: the body runs once, the last step piece by piece."""
        hidden = body.run(batch)
        for at in range(0, len(hidden), SCORED_ROWS):
            x = hidden[at : at + SCORED_ROWS]
            out = np.empty((len(x), words), np.float32)
            last.kernel.function(out, **(vars(last.bound) | {"x": x}))
            yield out

    return rows
