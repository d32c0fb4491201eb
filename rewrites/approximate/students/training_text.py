"""Unlabelled lines as texts of tokens: those that train a student, those that choose its best state, and those that its
error is stated of. No text is in two parts."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.files.checkpoint import Checkpoint
from opmatrix.inference.scores.text_pairs import TokenRow
from opmatrix.inference.text import LineReading, Tokenizer, read_lines
from rewrites.workload.line_rows import batch_of_rows, read_rows
from rewrites.workload.stated import MIN_SENTENCES
from rewrites.workload.workload import CALIBRATE, STATE, texts

ONE_IN = 8  # one text in ONE_IN chooses, and another one states
LEAST_TEXTS = ONE_IN * 2 * MIN_SENTENCES
CHOOSE_ROWS = 2048  # most tokens of the texts that choose the best state
SORTED_BATCHES = 32  # batches whose texts are sorted by length together


class TrainingText(NamedTuple):
    """Texts that train, choose and state; each is token ids and their types."""

    train: Sequence[TokenRow]
    choose: Sequence[TokenRow]
    state: Sequence[TokenRow]

    @property
    def fit(self) -> Batch:
        """Texts of about CALIBRATE tokens, spread over those that train."""
        tokens = sum(len(row) for row, _ in self.train)
        return batch_of_rows(self.train[:: -(-tokens // CALIBRATE)])

    def batches(self, seed: int, tokens: int) -> Iterator[list[TokenRow]]:
        """Yield batches of about so many tokens, epoch after epoch, each in an order of its own; texts of a batch are
        about as long as one another."""
        for epoch in range(2**31):
            rng = np.random.default_rng((seed, epoch))
            order = [self.train[at] for at in rng.permutation(len(self.train))]
            yield from pooled_batches(order, tokens, rng)


def pooled_batches(rows: Sequence[TokenRow], tokens: int, rng: np.random.Generator) -> Iterator[list[TokenRow]]:
    """Yield batches of about so many tokens, padding included; texts are sorted by length among some batches."""
    mean = sum(len(row) for row, _ in rows) / len(rows)
    pool = max(1, int(SORTED_BATCHES * tokens / mean))
    for at in range(0, len(rows), pool):
        batches = [*group_rows(sorted(rows[at : at + pool], key=lambda row: len(row[0])), tokens)]
        yield from (batches[k] for k in rng.permutation(len(batches)))


def group_rows(rows: Sequence[TokenRow], tokens: int) -> Iterator[list[TokenRow]]:
    """Yield neighbouring texts, as many as have at most so many tokens with their padding, one at least."""
    group, longest = list[TokenRow](), 0
    for row in rows:
        longest = max(longest, len(row[0]))
        if group and longest * (len(group) + 1) > tokens:
            yield group
            group, longest = [], len(row[0])
        group.append(row)
    if group:
        yield group


def read_training_text(checkpoint: Checkpoint, file: str | Path, tokens: int) -> TrainingText:
    """Read the lines of a file, longer ones cut to `tokens`; a language model reads lines joined to texts of that
    length. A text that occurs twice counts once. Raises InputError for a file with too few texts."""
    tokenizer, lines = checkpoint.tokenizer(), read_lines(file)
    rows = joined_rows(tokenizer, lines, tokens) if checkpoint.speaks else single_rows(checkpoint, lines, tokens)
    every = [*{tuple(row[0]): row for row in rows if row[0]}.values()]
    if len(every) < LEAST_TEXTS:
        raise InputError(
            f"--text {file}: {len(every)} different texts of at most {tokens} tokens are too few to train on: give "
            f"{LEAST_TEXTS} or more"
        )
    choose, state = every[ONE_IN // 2 :: ONE_IN], every[ONE_IN - 1 :: ONE_IN]
    train = [row for at, row in enumerate(every) if at % ONE_IN not in (ONE_IN // 2, ONE_IN - 1)]
    return TrainingText(train, first_rows(choose, CHOOSE_ROWS), first_rows(state, STATE))


def joined_rows(tokenizer: Tokenizer, lines: Sequence[str], tokens: int) -> list[TokenRow]:
    """Return consecutive lines joined to texts of `tokens` tokens."""
    return [(row, [0] * len(row)) for row in texts(tokenizer, lines, tokens)]


def single_rows(checkpoint: Checkpoint, lines: Sequence[str], tokens: int) -> list[TokenRow]:
    """Return each line, or each pair of lines of a model that scores, as a text of at most `tokens` tokens; pairs that
    are longer are left out."""
    tokenizer, reading = checkpoint.tokenizer(), LineReading(truncate=True, skip_bad=True)
    rows = read_rows(tokenizer, lines, reading, checkpoint.scoring)
    if checkpoint.scoring is not None:
        return [row for row in rows if len(row[0]) <= tokens]
    prompt = tokenizer.pooling.prompt
    cut = [
        tokenizer.cut(prompt + line, tokens) if len(row) > tokens else row
        for line, (row, _) in zip(lines, rows, strict=True)
    ]
    return [(row, [0] * len(row)) for row in cut]


def first_rows(rows: Sequence[TokenRow], most: int) -> list[TokenRow]:
    """Return the first texts that have at most so many tokens together, or twice MIN_SENTENCES texts."""
    ends = np.cumsum([len(row) for row, _ in rows])
    return [*islice(rows, max(2 * MIN_SENTENCES, int(np.searchsorted(ends, most, side="right"))))]
