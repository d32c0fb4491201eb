"""The agreement of a program with judged similarity of sentences: the rank correlation of the cosines of embeddings,
or of a cross-encoder's scores, with the scores that people gave to pairs (Agirre et al. 2012; Reimers and Gurevych
2019, section 4.1)."""

import csv
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import chain
from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from formats.disk.files import open_regular, reason
from opmatrix.inference.pooling import normalise_rows
from opmatrix.runtime.program import Program

COLUMNS = "sentence1", "sentence2", "score"
WARMUP_TEXTS = 64  # texts on which a program is warmed up


@dataclass(frozen=True)
class SentencePairs:
    """Pairs of sentences, and a score for each pair."""

    texts: tuple[str, ...]
    scores: NDArray[np.float64]

    @classmethod
    def read(cls, file: str | Path) -> "SentencePairs":
        """Read a CSV file: sentence1, sentence2, score, in the columns that a header names so, else in the first
        three. Raises InputError, with the line, for a missing cell or a score that is no number, and if all scores are
        equal."""
        pairs = [*rows(Path(file))]
        if len(pairs) < 2:
            raise InputError(f"{file}: {len(pairs)} pairs: a correlation needs 2 or more")
        scores = np.array([score for *_, score in pairs])
        if (scores == scores[0]).all():
            raise InputError(f"{file}: every score is {scores[0]:g}: they give no ranking")
        return cls(tuple(chain.from_iterable(pair for *pair, _ in pairs)), scores)

    def __len__(self) -> int:
        return len(self.scores)


def rows(file: Path) -> Iterator[tuple[str, str, float]]:
    """Yield the pairs of a file."""
    try:
        with TextIOWrapper(open_regular(file), "utf-8-sig", newline="") as opened:
            lines = csv.reader(opened, strict=True)
            places: Sequence[int] = range(3)
            for row in filter(None, lines):
                names = [cell.strip().lower() for cell in row]
                if lines.line_num == 1 and set(COLUMNS) <= set(names):
                    places = [names.index(name) for name in COLUMNS]
                else:
                    yield pair(f"{file}: line {lines.line_num}", row, places)
    except OSError as error:
        raise InputError(f"{file}: {reason(error)}: give a CSV file of {', '.join(COLUMNS)}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: byte {error.start} is not UTF-8: save it as UTF-8") from error
    except csv.Error as error:
        raise InputError(f"{file}: line {lines.line_num}: {error}") from error


def pair(where: str, row: Sequence[str], places: Sequence[int]) -> tuple[str, str, float]:
    """Return two sentences and their score."""
    if len(row) <= max(places):
        raise InputError(f"{where}: {len(row)} columns, but {', '.join(COLUMNS)} are needed")
    first, second, cell = (row[place] for place in places)
    try:
        score = float(cell)
    except ValueError:
        score = np.nan
    if not isfinite(score):
        raise InputError(f"{where}: the score {cell!r} is not a number: a header would be named {', '.join(COLUMNS)}")
    return first, second, score


@dataclass(frozen=True)
class Evaluated:
    """Spearman's rank correlation, times 100, of one program, and the seconds that all texts took."""

    name: str
    spearman: float
    seconds: float
    texts: int

    @property
    def rate(self) -> float:
        """Texts per second."""
        return self.texts / self.seconds


def score_pairs(
    name: str,
    program: Program,
    pairs: SentencePairs,
    progress: Callable[..., None] = lambda *_: None,
    truncate: bool | None = None,
) -> Evaluated:
    """Compare all pairs by their cosines, or by the scores of a program that scores them, in the order of the file,
    truncated as by `Program.embed`. Raises InputError for a program that cannot read text, for one that gives all pairs
    the same number, and for one of several labels."""
    from scipy.stats import spearmanr

    compare = find_cosines if program.scoring is None else find_scores
    compare(name, program, pairs.texts[:WARMUP_TEXTS], lambda *_: None, truncate)
    start = time.perf_counter()
    alike = compare(name, program, pairs.texts, progress, truncate)
    seconds = time.perf_counter() - start
    if (alike == alike[0]).all():
        raise InputError(f"{name}: every pair has the number {alike[0]:.3g}: they give no ranking")
    return Evaluated(name, 100 * float(spearmanr(alike, pairs.scores).statistic), seconds, len(pairs.texts))


def find_cosines(
    name: str, program: Program, texts: Sequence[str], progress: Callable[..., None], truncate: bool | None
) -> NDArray[np.float64]:
    """Return the cosine of each pair of texts, first texts at even places."""
    vectors = program.embed(texts, progress=progress, truncate=truncate)
    if not program.pooling.normalise:
        vectors = normalise_rows(vectors)
    cosines: NDArray[np.float64] = (vectors[0::2].astype(np.float64) * vectors[1::2]).sum(1)
    return cosines


def find_scores(
    name: str, program: Program, texts: Sequence[str], progress: Callable[..., None], truncate: bool | None
) -> NDArray[np.float64]:
    """Return the score of each pair of texts, first texts at even places. Raises InputError for several labels."""
    pairs = [*zip(texts[0::2], texts[1::2], strict=True)]
    scores = program.score(pairs, progress=progress, truncate=truncate)
    if scores.shape[1] != 1:
        raise InputError(f"{name}: it gives a pair {scores.shape[1]} scores, and one of them ranks: take a reranker")
    single: NDArray[np.float64] = scores[:, 0].astype(np.float64)
    return single
