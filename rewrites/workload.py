"""What a program is made cheapest for, and the rows that methods are fitted to, programs chosen by, and errors stated of."""
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
from opmatrix.extents import Extents, patterns
from opmatrix.patterns import Batch
from opmatrix.term import Operator
from opmatrix.text import Parts, Reading, Tokenizer, read_lines, sentences
from rewrites.stated import LEAST, uncovered

OUTPUTS = "pooled", "rows"                                  # a row a text, a row a token
PROBE = 16                                                  # sentences
MOST, SCANNED = 1024, 65536                                 # lines that rows are made of, spread over so many of a file
FIT, CHOOSE, VERIFY, STATE = 4096, 1024, 2048, 32768        # rows at most, of whole sentences: VERIFY go through the float64 oracle


def drawn_from(text: str | None, file: str | None) -> tuple[Sequence[str], str]:
    """The lines that rows are made of, and how they are called: of `text`, else of the `file` of texts where it has enough to say how
    single sentences vary, else those that ship."""
    if text: return read_lines(text), f"the lines of {text}"
    if file is None: return sentences(), "the shipped sentences"
    lines = [*islice(read(Path(file), open_regular), SCANNED)]
    if len(lines) >= 2 * LEAST: return lines, f"the lines of {file}"
    return sentences(), f"the shipped sentences: {file} has fewer than {2 * LEAST} lines"


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
    """`timed` is the batch whose seconds and bytes count. Methods are fitted to `fit`, programs are chosen by `choose`, single methods
    by the first of it, `probe`; what an error is stated of, `state`, has no line of these, and the float64 oracle reads the first
    of it, `verify`. `like` says whose lines they are, `lengths` what tokens all of them have, `uncovered` which kinds of text they lack."""

    timed: Batch
    fit: Batch
    choose: Batch
    probe: Batch
    state: Batch
    verify: Batch
    name: str
    like: str
    uncovered: tuple[str, ...] | None = None                # None: there is no tokenizer
    text: str | None = None                                 # what it was made of, so that it can be made again
    tokens: int | None = None
    file: str | None = None

    @property
    def rows(self) -> int:
        return self.timed.rows

    def extents(self, model: Operator) -> Extents:
        """Those of the timed batch, with a model's patterns."""
        return self.timed.extents(patterns(model))

    @property
    def lengths(self) -> tuple[int, int]:
        """Tokens of the shortest and of the longest line that an error is stated of."""
        counts = np.diff(self.state.starts)
        return int(counts.min()), int(counts.max())

    @classmethod
    def of(cls, checkpoint: Checkpoint, text: str | None = None, tokens: int | None = None,
           file: str | None = None) -> "Workload":
        """Rows come from the lines of `text`, or of `file`, or the sentences that ship. Timed is a batch as `embed` makes of the texts of
        `file`, or one sentence of `tokens` tokens; without either the whole text, or 128 tokens. Raises InputError for a length
        that the model has no positions for."""
        if file is not None and tokens is not None:
            raise InputError(f"--tokens {tokens} --workload {file}: give one of them, both say what is timed")
        limit = int(checkpoint.config["max_position_embeddings"])
        length = min(128, limit) if tokens is None else tokens
        if not 1 <= length <= limit:
            raise InputError(f"--tokens {length}: {checkpoint.name} takes 1 to {limit} tokens")
        tokenizer = checkpoint.tokenizer()
        if file is not None: timed, said = typical(tokenizer, Path(file))
        lines, like = drawn_from(text, file)
        parts = Parts.of(lines[::-(-len(lines) // MOST)])
        fit, choose, state = (next(tokenizer.encode(part).pieces(rows)) for part, rows in zip(parts, (FIT, CHOOSE, STATE), strict=True))
        if file is None and text and tokens is None: timed, said = tokenizer.encode(lines), f"{len(lines)} lines of {text}"
        elif file is None: timed, said = Batch([np.resize(fit.tokens, length)]), f"one sentence of {length} tokens"
        known(checkpoint, fit, choose, state, timed)
        return cls(timed, fit, choose, Batch([row.tokens for row in islice(choose, PROBE)]), state, next(state.pieces(VERIFY)), said, like,
                   uncovered(tokenizer, fit, state), text, tokens, file)

    @classmethod
    def drawn(cls, model: Operator, timed: Batch, seed: int = 0, sentences: int = 48) -> "Workload":
        """For an operator without text: random tokens, in sentences as long as those of the batch whose seconds and bytes
        count, calibrate and verify it. Nobody draws relations like its own, so a batch that has some stands for all."""
        if timed.relations:
            return cls(timed, timed, timed, timed, timed, timed, "the batch itself, as it has relations of its own", "the batch itself")
        rng, lengths = np.random.default_rng(seed), np.diff(timed.starts)

        def some(count: int) -> Batch:
            return Batch([rng.integers(0, int(model.into.cols), length) for length in rng.choice(lengths, count)])
        half, judged = some(sentences // 2), some(sentences)
        said = f"{len(lengths)} sequences of random tokens"
        return cls(timed, some(sentences), half, half, judged, judged, said, "random tokens")


def check_output(output: str) -> None:
    """Raises InputError for what no program gives."""
    if output not in OUTPUTS: raise InputError(f"--output {output}: it is one of {', '.join(OUTPUTS)}")


def drawn(workload: Workload | Batch, operator: Operator) -> Workload:
    """A batch with random rows beside it."""
    return workload if isinstance(workload, Workload) else Workload.drawn(operator, workload)
