"""What a program is made cheapest for, and the rows that calibrate and verify it."""
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from formats.files import open_regular
from opmatrix.checkpoint import Checkpoint
from opmatrix.embed import batches, line, read
from opmatrix.errors import InputError
from opmatrix.patterns import Batch
from opmatrix.runtime.values import sizes
from opmatrix.term import Operator
from opmatrix.text import Reading, Tokenizer, calibration, read_lines, sentences, verification

PROBE = 16                                                  # sentences


def apart(lines: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The lines that approximations are measured on, and those that they are fitted to; one line alone is both."""
    count = min(PROBE, max(1, len(lines) // 2))
    return lines[:count], lines[count:] or lines


def typical(tokenizer: Tokenizer, file: Path) -> tuple[Batch, str]:
    """Of the batches that `embed` makes of a file of texts, the one of median rows; and what it is called. The file is read
    twice, so that no more than a batch is kept of it."""
    def made() -> Iterator[Batch]:
        return batches(tokenizer, read(file, open_regular), reading=Reading(partial(line, file)))
    rows = [batch.rows for batch in made()]
    middle = int(np.argsort(rows, kind="stable")[len(rows) // 2])
    [timed] = islice(made(), middle, middle + 1)
    which = f", batch {middle + 1} of {len(rows)}" if len(rows) > 1 else ""
    return timed, f"{len(timed)} texts, {timed.rows} tokens of {file}{which}"


def known(checkpoint: Checkpoint, *batches: Batch) -> None:
    """Raises InputError for a token that the model has no row for."""
    vocabulary = int(checkpoint.config["vocab_size"])
    if (highest := max(batch.tokens.max() for batch in batches)) >= vocabulary:
        raise InputError(f"{checkpoint.directory / 'tokenizer.json'}: it gives token {highest}, but the model has "
                         f"{vocabulary} (vocab_size): take the tokenizer that belongs to the weights")


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
    file: str | None = None

    @property
    def rows(self) -> int:
        return sizes(self.timed)[0]

    @property
    def pairs(self) -> int:
        return sizes(self.timed)[1]

    @classmethod
    def of(cls, checkpoint: Checkpoint, text: str | None = None, tokens: int | None = None,
           file: str | None = None) -> "Workload":
        """Rows come from the lines of `text`, or the sentences that ship. Timed is a batch as `embed` makes of the texts of
        `file`, or one sentence of `tokens` tokens; without either the whole text, or 128 tokens. Raises InputError for a length
        that the model has no positions for."""
        if file is not None and tokens is not None:
            raise InputError(f"--tokens {tokens} --workload {file}: give one of them, both say what is timed")
        limit = int(checkpoint.config["max_position_embeddings"])
        length = min(128, limit) if tokens is None else tokens
        if not 1 <= length <= limit:
            raise InputError(f"--tokens {length}: {checkpoint.name} takes 1 to {limit} tokens")
        lines = read_lines(text) if text else sentences()
        tokenizer = checkpoint.tokenizer()
        even, odd = tokenizer.encode(calibration(lines)), tokenizer.encode(verification(lines))
        probe, fit = (tokenizer.encode(some) for some in apart(calibration(lines)))
        timed, said = Batch([np.resize(even.tokens, length)]), f"one sentence of {length} tokens"
        if file is not None: timed, said = typical(tokenizer, Path(file))
        elif text and tokens is None: timed, said = tokenizer.encode(lines), f"{len(lines)} lines of {text}"
        known(checkpoint, even, odd, timed)
        return cls(timed, even, odd, fit, probe, said, text, tokens, file)

    @classmethod
    def drawn(cls, model: Operator, timed: Batch, seed: int = 0, sentences: int = 48) -> "Workload":
        """For an operator without text: random tokens, in sentences as long as those of the batch whose seconds and bytes
        count, calibrate and verify it."""
        rng, lengths = np.random.default_rng(seed), np.diff(timed.starts)

        def some(count: int) -> Batch:
            return Batch([rng.integers(0, int(model.into.cols), length) for length in rng.choice(lengths, count)])
        half = some(sentences // 2)
        return cls(timed, half, some(sentences), some(sentences), half, f"{len(lengths)} sequences of random tokens")
