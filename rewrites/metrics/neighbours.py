"""The agreement of a program with the exact one over a corpus of a user's own, without labels: the share of the nearest
lines of a query that both find, and Kendall's rank correlation of the scores that both give documents. Programs are
chosen by some queries and lines, and what is stated comes from others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from formats.disk.files import open_regular
from opmatrix.inference.embed import read_lines
from opmatrix.inference.pooling import DOCUMENT_PROMPTS, QUERY_PROMPTS
from opmatrix.inference.scores.similarity import MATRICES, Float64Rows
from opmatrix.runtime.program import Program

NEAREST = 10  # lines that count for a query
SCORED_DOCUMENTS = 20  # documents that are scored for a query
MOST_LINES, MOST_QUERIES = 20_000, 400  # lines and queries that are taken, spread over a file's first SCANNED
SCANNED = 1 << 20
QUERY_EVERY = 10  # without a file of queries one line in QUERY_EVERY is a query
CONFIDENCE = 0.95  # of the lower bounds
BOOTSTRAP_DRAWS = 2000  # samples of a bootstrap

Overlaps = NDArray[np.float64]  # (queries,)
QueryAnswers = Sequence[NDArray[np.number]]  # for each query: its nearest lines, or the scores of its documents


class CorpusFiles(NamedTuple):
    """Files of lines: a corpus, and queries; without these some lines of the corpus are queries. `judgements` is a file
    of the lines that are relevant to each query."""

    corpus: str | Path
    queries: str | Path | None = None
    judgements: str | Path | None = None


class CorpusPart(NamedTuple):
    """Queries, the lines among which their nearest are looked for, and for each query the relevance of the lines that
    were judged, by their places, if any were."""

    queries: tuple[str, ...]
    lines: tuple[str, ...]
    gains: tuple[Mapping[int, float], ...] = ()


@dataclass(frozen=True)
class CorpusGoal:
    """Two parts of a corpus without a line in common: programs are chosen by `choose`, and what is stated comes from
    `state`. `answer` gives a program's answers on a part, and `agree` compares one answer with the exact program's;
    `exact` are the latter, once they are known."""

    choose: CorpusPart
    state: CorpusPart
    answer: Callable[[Program, CorpusPart], QueryAnswers]
    agree: Callable[[NDArray[np.number], NDArray[np.number]], float]
    exact: tuple[QueryAnswers, ...] = field(default=(), repr=False)

    def beside(self, program: Program) -> "CorpusGoal":
        """Return the data with the answers of the exact program."""
        answers = tuple(self.answer(program, part) for part in (self.choose, self.state))
        return CorpusGoal(self.choose, self.state, self.answer, self.agree, answers)

    def agreements(self, program: Program, part: CorpusPart, exact: QueryAnswers) -> Overlaps:
        """Return the agreement on each query of a part, from 0 to 1 for nearest lines, from -1 to 1 for scores."""
        answers = self.answer(program, part)
        return np.array([self.agree(now, then) for now, then in zip(answers, exact, strict=True)])

    def chosen_by(self, program: Program) -> float:
        """Return a lower bound of the mean agreement, from the part that chooses."""
        return lower_bound(self.agreements(program, self.choose, self.exact[0]))

    def stated(self, program: Program) -> dict[str, float]:
        """Return the mean agreement on the part that states, a lower bound of it, and the size of the part; where lines
        were judged the exact program's mean, too."""
        agreements = self.agreements(program, self.state, self.exact[1])
        bound = lower_bound(agreements)
        sizes = dict(queries=float(len(self.state.queries)), lines=float(len(self.state.lines)))
        exact = dict(exact=float(np.mean(self.exact[1]))) if self.state.gains else {}
        return dict(mean=float(agreements.mean()), at_least=bound, confidence=CONFIDENCE) | sizes | exact


def lower_bound(values: Overlaps) -> float:
    """Return a bound that the mean of the values' distribution exceeds with a chance of about CONFIDENCE: a quantile of
    the means of samples drawn from them with replacement (Efron 1979), the same on every call."""
    rng, count = np.random.default_rng(0), len(values)
    means = values[rng.integers(0, count, (BOOTSTRAP_DRAWS, count))].mean(1)
    return float(np.quantile(means, 1 - CONFIDENCE))


# ---- files


def corpus_files(
    corpus: str | Path | None, queries: str | Path | None, judgements: str | Path | None = None
) -> CorpusFiles | None:
    """Return the files of a corpus; None without one. Raises InputError for queries or judgements alone."""
    for option, file in (("queries", queries), ("judgements", judgements)):
        if corpus is None and file is not None:
            raise InputError(f"--{option} {file}: they are asked of a corpus: give --corpus FILE")
    return None if corpus is None else CorpusFiles(corpus, queries, judgements)


def read_corpus(files: CorpusFiles) -> tuple[CorpusPart, CorpusPart]:
    """Read the lines of a corpus and its queries as two parts, which share no line. Equal lines count once. Raises
    InputError for too few of them."""
    lines = distinct_lines(files.corpus, MOST_LINES)
    if files.queries is None:
        queries = lines[::QUERY_EVERY][:MOST_QUERIES]
        held = {*queries}
        lines = [line for line in lines if line not in held]
    else:
        queries = distinct_lines(files.queries, MOST_QUERIES)
    if len(lines) < 4 * NEAREST or len(queries) < 4:
        raise InputError(
            f"--corpus {files.corpus}: {len(queries)} queries and {len(lines)} other lines: at least 4 and "
            f"{4 * NEAREST} are needed, of which half choose and half state"
        )
    choose, state = (CorpusPart(tuple(queries[at::2]), tuple(lines[at::2])) for at in (0, 1))
    return choose, state


def distinct_lines(file: str | Path, most: int) -> list[str]:
    """Return at most so many different lines of a file that are not blank, spread over it."""
    every = [*dict.fromkeys(line for line in islice(read_lines(Path(file), open_regular), SCANNED) if line.strip())]
    return every[:: max(1, -(-len(every) // most))]


def nearest_goal(files: CorpusFiles) -> CorpusGoal:
    """Read the data of the goal of nearest lines."""
    return CorpusGoal(*read_corpus(files), answer=nearest_lines, agree=overlap)


def scores_goal(files: CorpusFiles) -> CorpusGoal:
    """Read the data of the goal of scores' ranks."""
    return CorpusGoal(*read_corpus(files), answer=document_scores, agree=kendall)


# ---- nearest lines


def overlap(now: NDArray[np.number], then: NDArray[np.number]) -> float:
    """Return the share of the lines `then` that are among those `now`."""
    return len(np.intersect1d(now, then)) / len(then)


def nearest_lines(program: Program, part: CorpusPart) -> QueryAnswers:
    """Return the NEAREST lines of each query by their numbers, by the similarity that the program declares; of equal
    ones the first. Raises InputError for a program that scores pairs."""
    if program.scoring is not None:
        raise InputError("top10, ndcg10: the model scores pairs and has no embedding: --keep tau>=0.95")
    queries, lines = (
        embedded(program, texts, names)
        for texts, names in ((part.queries, QUERY_PROMPTS), (part.lines, DOCUMENT_PROMPTS))
    )
    return [*nearest_rows(queries, lines, program.pooling.similarity or "cosine")]


def nearest_rows(queries: Float64Rows, rows: Float64Rows, similarity: str) -> NDArray[np.intp]:
    """Return for each of (q, n) the places (q, NEAREST) of the most similar of (l, n); of equal ones the first."""
    alike = MATRICES[similarity](queries, rows)
    return np.argsort(-alike, axis=1, kind="stable")[:, :NEAREST]


def embedded(program: Program, texts: Sequence[str], names: Sequence[str]) -> Float64Rows:
    """Return the embeddings of texts in float64, behind the first prompt of these names that the program has."""
    prompt = next((name for name in names if name in program.pooling.prompts), None)
    return program.embed(texts, progress=False, truncate=True, prompt=prompt).astype(np.float64)


# ---- ranks of scores


def document_scores(program: Program, part: CorpusPart) -> QueryAnswers:
    """Return the scores of SCORED_DOCUMENTS lines, spread over the part, for each query. Raises InputError for a
    program that gives a pair no score, or several."""
    if program.scoring is None or len(program.scoring.labels) != 1:
        raise InputError("tau: the model gives a pair no single score: take a reranker, or --keep top10>=0.95")
    documents = part.lines[:: max(1, len(part.lines) // SCORED_DOCUMENTS)][:SCORED_DOCUMENTS]
    pairs = [(query, document) for query in part.queries for document in documents]
    scores = program.score(pairs, progress=False, truncate=True)
    return [*scores[:, 0].reshape(len(part.queries), len(documents))]


def kendall(now: NDArray[np.number], then: NDArray[np.number]) -> float:
    """Return Kendall's τ-b of two rows of scores (Kendall 1945); 1 for two rows that each rank nothing, 0 for one."""
    from scipy.stats import kendalltau

    flat = [bool((scores == scores[0]).all()) for scores in (now, then)]
    return float(all(flat)) if any(flat) else float(kendalltau(now, then).statistic)
