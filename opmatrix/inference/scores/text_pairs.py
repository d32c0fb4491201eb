"""Texts and pairs of texts as rows of tokens, each with the kinds of its tokens, and the scores that a program gives
them."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

from formats.core.arrays import Floats
from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.inference.embed import BATCH_ROWS, OnProgress, chunks, fill, followed, reading
from opmatrix.inference.scores.pair_template import PairTemplate
from opmatrix.inference.scores.scoring import Scoring
from opmatrix.inference.text import LineReading, Tokenizer, fault, unpanicked

if TYPE_CHECKING:
    from opmatrix.runtime.program import Program

TextPair: TypeAlias = tuple[str, str]
Scored: TypeAlias = str | TextPair  # a text, or a pair of texts
TokenRow: TypeAlias = tuple[list[int], list[int]]  # tokens, and a kind for each; both empty for a pair that is skipped


def score_pairs(
    program: "Program",
    pairs: Iterable[Scored],
    rows: int = BATCH_ROWS,
    progress: OnProgress | bool = True,
    truncate: bool | None = None,
    skip_bad: bool = False,
) -> Floats:
    """Return (S, labels): the scores that the head of a program gives to texts or pairs of texts, before the
    activation. Raises InputError for a program without such a head, and for a text that cannot be read."""
    scoring = check_scoring(program)
    pairs = [as_scored(pair, at) for at, pair in enumerate(each_pair(pairs))]
    blocks = score_blocks(program, pairs, rows, reading(None, truncate, skip_bad), scoring)
    none = np.zeros((0, len(scoring.labels)), np.float32)
    return np.concatenate([none, *followed(blocks, len(pairs), progress)])


def check_scoring(program: "Program") -> Scoring:
    """Return the scoring of a program. Raises InputError if it has none, or if its head is not part of it."""
    name, scoring = program.meta.get("model", "this program"), program.scoring
    if scoring is None:
        raise InputError(f"{name}: it embeds texts and has no head that scores them: program.embed(texts)")
    if not program.pooled:
        raise InputError(f"{name}: it has a row for each token, and not the head that scores texts: --output pooled")
    return scoring


def each_pair(pairs: Iterable[Scored]) -> Iterable[Scored]:
    """Return the texts and pairs one by one. Raises TypeError for a single text, and for what is no iterable."""
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        raise TypeError(f"pairs: {pairs!r:.60}: give an iterable of texts, or of pairs of texts")
    return pairs


def as_scored(pair: object, at: int) -> Scored:
    """Return a text as it is, and two texts as a pair. Raises InputError for anything else."""
    if isinstance(pair, str):
        return pair
    two = isinstance(pair, Sequence) and not isinstance(pair, bytes) and len(pair) == 2
    if not two or not all(isinstance(text, str) for text in cast("Sequence[object]", pair)):
        raise InputError(f"pair {at} is {pair!r:.60}: give two texts, (query, document), or one text")
    first, second = cast("Sequence[str]", pair)
    return first, second


def score_blocks(
    program: "Program", pairs: Iterable[Scored], rows: int, reading: LineReading, scoring: Scoring
) -> Iterator[Floats]:
    """Yield the scores of a batch of texts or pairs after another, before the activation; NaN for one that is
    skipped."""
    if rows < 1:
        raise InputError(f"rows {rows}: a batch has at least 1")
    for batch, skipped in pair_batches(program.tokenizer, pairs, rows, reading, scoring):
        block = program.run(batch)
        block[skipped] = np.nan
        yield block


def pair_batches(
    tokenizer: Tokenizer, pairs: Iterable[Scored], rows: int, reading: LineReading, scoring: Scoring
) -> Iterator[tuple[Batch, list[int]]]:
    """Yield batches in the order of the pairs, as many pairs at a time as fit into `rows` rows, at least one; each with
    the places in it of those that are skipped, which have one token."""
    tokens = (row for chunk in chunks(pairs) for row in pair_rows(tokenizer, chunk, reading, scoring.template))
    for batch in fill(tokens, lambda row: max(1, len(row[0])), rows):
        yield made_batch(batch, scoring.kinds)


def made_batch(rows: Sequence[TokenRow], kinds: bool) -> tuple[Batch, list[int]]:
    """Return rows as a batch, and the places of the empty ones."""
    tokens = [row or [0] for row, _ in rows]
    of_kind = [row or [0] for _, row in rows] if kinds else None
    return Batch(tokens, of_kind), [at for at, (row, _) in enumerate(rows) if not row]


# ---- reading pairs


@unpanicked()
def pair_rows(
    tokenizer: Tokenizer, pairs: Sequence[Scored], reading: LineReading, template: PairTemplate | None = None
) -> list[TokenRow]:
    """Return the tokens of each text or pair, with the kinds of tokens; the prompt is put before its first text, or
    into the `template` as its instruction. Empty for one that is skipped. Raises InputError for one that cannot be
    read."""
    if template is not None:
        return templated_rows(tokenizer, pairs, reading, template)
    faults = [pair_fault(pair) for pair in pairs]
    prompt = tokenizer.prompt(reading)
    whole = ["" if why else prompted(pair, prompt) for pair, why in zip(pairs, faults, strict=True)]
    rows = list[TokenRow]()
    for pair, encoded, why in zip(whole, tokenizer.tokenizer.encode_batch(whole), faults, strict=True):
        shown, cut = " | ".join(texts_of(pair)), reading.truncated
        ids = tokenizer.row(shown, encoded.ids, why, reading, partial(cut_tokens, tokenizer, pair))
        kinds = cut_pair(tokenizer, pair, len(ids))[1] if reading.truncated > cut else encoded.type_ids
        rows.append((ids, kinds if ids else []))
    return rows


def templated_rows(
    tokenizer: Tokenizer, pairs: Sequence[Scored], reading: LineReading, template: PairTemplate
) -> list[TokenRow]:
    """Return the tokens of each pair in a template, all of the first kind. One that is too long is truncated, and ends
    with the tokens that every pair ends with. Raises InputError for a text that is no pair."""
    faults, instruction = [pair_fault(pair) for pair in pairs], tokenizer.prompt(reading)
    if single := [pair for pair in pairs if isinstance(pair, str)]:
        raise InputError(f"text {single[0]!r:.60}: this model reads pairs: give two texts, (query, document)")
    end = template.last_tokens(tokenizer.tokenizer, instruction)
    rows = list[TokenRow]()
    for pair, why in zip(pairs, faults, strict=True):
        text = "" if why else template.render(instruction, pair[0], pair[1])
        encoded: list[int] = tokenizer.tokenizer.encode(text, add_special_tokens=False).ids
        ids = tokenizer.row(" | ".join(pair), encoded, why, reading, partial(cut_before_end, encoded, end))
        rows.append((ids, [0] * len(ids)))
    return rows


def cut_before_end(row: Sequence[int], end: Sequence[int], most: int) -> list[int]:
    """Return the first tokens of a row and the tokens of its end, `most` in all.

    >>> cut_before_end([1, 2, 3, 4, 5, 8, 9], [8, 9], 5)
    [1, 2, 3, 8, 9]"""
    if most <= len(end):
        raise InputError(f"max_seq_length {most} leaves no room for a pair: its text ends with {len(end)} tokens")
    return [*row[: most - len(end)], *end]


def texts_of(pair: Scored) -> Sequence[str]:
    """Return the texts of a pair, or the only text."""
    return (pair,) if isinstance(pair, str) else pair


def prompted(pair: Scored, prompt: str) -> Scored:
    """Put the prompt before the first text."""
    return prompt + pair if isinstance(pair, str) else (prompt + pair[0], pair[1])


def pair_fault(pair: Scored) -> str | None:
    """Return the reason why one of the texts is none, as the end of a sentence; None if both can be read."""
    return next(filter(None, map(fault, texts_of(pair))), None)


def cut_tokens(tokenizer: Tokenizer, pair: Scored, most: int) -> list[int]:
    """Return the tokens of `cut_pair`."""
    return cut_pair(tokenizer, pair, most)[0]


def cut_pair(tokenizer: Tokenizer, pair: Scored, most: int) -> TokenRow:
    """Return the first tokens of the texts, and all special ones, `most` in all: the longer text is truncated first, as
    transformers does it by default."""
    encode, texts = tokenizer.tokenizer.encode, texts_of(pair)
    parts = [encode(text, add_special_tokens=False) for text in texts]
    special = tokenizer.tokenizer.num_special_tokens_to_add(len(texts) == 2)
    if (room := most - special) < 0:
        raise InputError(f"max_seq_length {most} leaves no room for a pair: {special} tokens are special")
    for part, length in zip(parts, divide_room([len(part.ids) for part in parts], room), strict=True):
        part.truncate(length)
    first, *second = parts
    row = tokenizer.tokenizer.post_process(first, second[0] if second else None)
    return row.ids, row.type_ids


def divide_room(lengths: Sequence[int], room: int) -> list[int]:
    """Return the tokens that texts keep of `room`: of two, the shorter one keeps all of its tokens if they fill no more
    than half of it, else both keep half.

    >>> divide_room([3, 9], 8), divide_room([6, 9], 9), divide_room([5], 3)
    ([3, 5], [4, 5], [3])"""
    if len(lengths) == 1 or sum(lengths) <= room:
        return [min(length, room) for length in lengths]
    half, swapped = room // 2, lengths[0] > lengths[1]
    short = min(min(lengths), half)
    kept = [short, room - short]
    return kept[::-1] if swapped else kept
