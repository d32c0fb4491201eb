"""What a program is made cheapest for, and the rows that calibrate and verify it."""
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from opmatrix.checkpoint import Checkpoint
from opmatrix.errors import InputError
from opmatrix.patterns import Batch
from opmatrix.runtime.values import sizes
from opmatrix.term import Operator
from opmatrix.text import calibration, read_lines, sentences, verification

PROBE = 16                                                  # sentences


def apart(lines: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The lines that approximations are measured on, and those that they are fitted to; one line alone is both."""
    count = min(PROBE, max(1, len(lines) // 2))
    return lines[:count], lines[count:] or lines


@dataclass(frozen=True)
class Workload:
    """`timed` is the batch whose seconds and bytes count; even lines calibrate, odd lines verify; `probe`, the first of
    the even ones, is what single approximations are measured on."""

    timed: Batch
    calibrate: Batch
    verify: Batch
    fit: Batch
    probe: Batch
    name: str
    text: str | None = None                                 # what it was made of, so that it can be made again
    tokens: int | None = None

    @property
    def rows(self) -> int:
        return sizes(self.timed)[0]

    @property
    def pairs(self) -> int:
        return sizes(self.timed)[1]

    @classmethod
    def of(cls, checkpoint: Checkpoint, text: str | None = None, tokens: int | None = None) -> "Workload":
        """From a file of lines, or the sentences that ship. Timed is one sentence of `tokens` tokens, 128 by default,
        or with a file the file itself. Raises InputError for a length that the model has no positions for."""
        limit = int(checkpoint.config["max_position_embeddings"])
        length = min(128, limit) if tokens is None else tokens
        if not 1 <= length <= limit:
            raise InputError(f"--tokens {length}: {checkpoint.name} takes 1 to {limit} tokens")
        lines = read_lines(text) if text else sentences()
        tokenizer = checkpoint.tokenizer()
        even, odd = tokenizer.encode(calibration(lines)), tokenizer.encode(verification(lines))
        probe, fit = (tokenizer.encode(some) for some in apart(calibration(lines)))
        vocabulary = int(checkpoint.config["vocab_size"])
        if (highest := max(even.tokens.max(), odd.tokens.max())) >= vocabulary:
            raise InputError(f"{checkpoint.directory / 'tokenizer.json'}: it gives token {highest}, but the model has "
                             f"{vocabulary} (vocab_size): take the tokenizer that belongs to the weights")
        if text and tokens is None:
            return cls(tokenizer.encode(lines), even, odd, fit, probe, f"{len(lines)} lines of {text}", text)
        return cls(Batch([np.resize(even.tokens, length)]), even, odd, fit, probe, f"one sentence of {length} tokens",
                   text, tokens)

    @classmethod
    def drawn(cls, model: Operator, timed: Batch, seed: int = 0, sentences: int = 48) -> "Workload":
        """For an operator without text: random tokens, in sentences as long as those of the batch whose seconds and bytes
        count, calibrate and verify it."""
        rng, lengths = np.random.default_rng(seed), np.diff(timed.starts)

        def some(count: int) -> Batch:
            return Batch([rng.integers(0, int(model.into.cols), length) for length in rng.choice(lengths, count)])
        half = some(sentences // 2)
        return cls(timed, half, some(sentences), some(sentences), half, f"{len(lengths)} sequences of random tokens")
