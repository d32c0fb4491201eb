"""Lines as rows of tokens: each line alone, or, for a model that scores pairs of texts, each with the next one."""

from collections.abc import Iterable, Iterator

from opmatrix.algebra.batch.batch import Batch
from opmatrix.inference.embed import BATCH_ROWS, batches
from opmatrix.inference.scores.scoring import Scoring
from opmatrix.inference.scores.text_pairs import TextPair, TokenRow, pair_batches, pair_rows
from opmatrix.inference.text import LineReading, Tokenizer


def pair_lines(lines: Iterable[str]) -> Iterator[TextPair]:
    """Yield each line with the next one, and the last one with the first.

    >>> [*pair_lines(["a", "b", "c"])]
    [('a', 'b'), ('b', 'c'), ('c', 'a')]"""
    left = iter(lines)
    for first in left:
        before = first
        for line in left:
            yield before, line
            before = line
        yield before, first


def read_rows(
    tokenizer: Tokenizer, lines: Iterable[str], reading: LineReading, scoring: Scoring | None
) -> list[TokenRow]:
    """Return lines, or pairs of them for a model that scores, as rows of tokens with their kinds; empty for one that is
    skipped."""
    if scoring is None:
        return [(row, [0] * len(row)) for row in tokenizer.rows([*lines], reading)]
    rows = pair_rows(tokenizer, [*pair_lines(lines)], reading, scoring.template)
    return [(row, kinds if scoring.kinds else [0] * len(row)) for row, kinds in rows]


def batch_of_rows(rows: Iterable[TokenRow]) -> Batch:
    """Return rows of tokens with their kinds as a batch."""
    tokens, kinds = zip(*rows, strict=True)
    return Batch(tokens, kinds)


def line_batches(
    tokenizer: Tokenizer, lines: Iterable[str], reading: LineReading, scoring: Scoring | None
) -> Iterator[Batch]:
    """Yield the batches that `embed` builds of lines, or those that `score` builds of pairs of them."""
    if scoring is None:
        yield from batches(tokenizer, lines, reading=reading)
        return
    for batch, _ in pair_batches(tokenizer, pair_lines(lines), BATCH_ROWS, reading, scoring):
        yield batch
