"""Texts: a tokenizer without padding or cutting, the sentences that calibrate and verify, and sentence embeddings."""
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.files import read_bytes, read_text
from opmatrix.errors import InputError
from opmatrix.patterns import Batch


class Tokenizer:
    """A tokenizer.json, whatever padding and cutting it asks for switched off: a batch is ragged, and nothing is lost
    silently. `limit` is the number of tokens that the model has positions for, None where any number will do."""

    def __init__(self, tokenizer: Any, limit: int | None = None):
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self.tokenizer, self.limit = tokenizer, limit

    @classmethod
    def from_file(cls, path: str | Path, limit: int | None = None) -> "Tokenizer":
        """Raises InputError where the file is missing or no tokenizer."""
        try: text = read_text(path)
        except InputError as error: raise InputError(f"{error}: texts need a tokenizer") from error
        return cls.from_text(text, str(path), limit)

    @classmethod
    def from_text(cls, text: str, where: str, limit: int | None = None) -> "Tokenizer":
        """The tokenizer that the text of a tokenizer.json describes. InputError, which says where it is from, for another."""
        import tokenizers
        try: return cls(tokenizers.Tokenizer.from_str(text), limit)
        except Exception as error: raise InputError(f"{where}: no tokenizer ({error}): get it again") from error

    def encode(self, texts: str | Iterable[str]) -> Batch:
        """The ragged batch of the texts' tokens, special tokens included (an empty text has nothing but these). Raises
        InputError where there is no text, or where one is no string, has no tokens, or more than the model can take."""
        texts = [texts] if isinstance(texts, str) else list(texts)
        if not texts: raise InputError("no text: give at least one")
        return Batch(self.rows(texts))

    def rows(self, texts: Sequence[str], name: Callable[[int], str] = "text {}".format) -> list[list[int]]:
        """The tokens of each text; what errors call a text is said by `name` of its place."""
        for at, text in enumerate(texts):
            if not isinstance(text, str): raise InputError(f"{name(at)} is {text!r}, no string: give strings")
            if not encodable(text): raise InputError(f"{name(at)}, {shortened(text)}, is no valid Unicode: mend it")
        rows: list[list[int]] = [found.ids for found in self.tokenizer.encode_batch(texts)]
        for at, row in enumerate(rows):
            named = f"{name(at)}, {shortened(texts[at])},"
            if not len(row): raise InputError(f"{named} has no tokens: leave it out")
            if self.limit and len(row) > self.limit:
                raise InputError(f"{named} has {len(row)} tokens, and the model has positions for {self.limit} "
                                 "(max_position_embeddings): shorten or split it")
        return rows

    def save(self, path: str | Path) -> None:
        """Writes tokenizer.json, padding and cutting switched off."""
        self.tokenizer.save(str(path))


def sentences() -> list[str]:
    """The 128 short sentences that come with the package."""
    from importlib.resources import files
    return (files("opmatrix") / "sentences.txt").read_text("utf-8").splitlines()


def calibration(lines: Sequence[str]) -> Sequence[str]:
    """The even ones, counted from 0: what errors are predicted on."""
    return lines[0::2]


def verification(lines: Sequence[str]) -> Sequence[str]:
    """The odd ones: held out, what errors are measured on."""
    return lines[1::2]


def read_lines(path: str | Path) -> list[str]:
    """The lines of a text file that are not blank. Raises InputError where it is missing, is not UTF-8, or holds fewer
    than the two that calibration and verification need."""
    try: lines = [line.strip() for line in read_bytes(path).decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8: save the file as UTF-8") from error
    if len(lines := [line for line in lines if line]) < 2:
        raise InputError(f"{path}: too few lines with text ({len(lines)}): give 2 or more, to calibrate and to verify")
    return lines


def pool(hidden: NDArray[np.floating[Any]], starts: NDArray[np.integer[Any]]) -> NDArray[np.floating[Any]]:
    """One embedding a sentence, of length one: the mean of its rows, normalised (Reimers and Gurevych 2019, section 3).
    `hidden` is (T, n), `starts` the S + 1 row offsets of the sentences; the result is (S, n)."""
    lengths = np.diff(starts)
    if (lengths < 1).any(): raise ValueError(f"pool: every sentence needs a row, lengths are {lengths.tolist()}")
    means = np.empty((len(lengths), hidden.shape[1]))
    for mean, (low, high) in zip(means, pairwise(starts.tolist()), strict=True):             # a tenth of what reduceat takes
        np.add.reduce(hidden[low:high], 0, dtype=np.float64, out=mean)
    means /= lengths[:, None]
    norms = np.linalg.norm(means, axis=1, keepdims=True)
    pooled: NDArray[np.floating[Any]] = means / np.maximum(norms, np.finfo(np.float64).tiny)
    return pooled.astype(hidden.dtype)


def encodable(text: str) -> bool:
    """Whether it can be written as UTF-8: an argument of the command line may hold stray bytes."""
    try: text.encode()
    except UnicodeEncodeError: return False
    return True


def shortened(text: str) -> str: return repr(text if len(text) <= 40 else text[:39] + "…")
