"""Late interaction (Khattab and Zaharia 2020, section 3.3): the score of a query and a document is the sum, over the
rows of the query, of each one's greatest product with a row of the document."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from formats.core.arrays import Floats
from formats.core.errors import InputError

EMPTY_SCORE = -1e9  # of a document without rows, which is below every other
PRODUCTS_HELD = 1 << 24  # products of rows that are held at a time
TextRows = Sequence[NDArray[np.float64]]


def as_texts(rows: object, what: str) -> TextRows:
    """Return the rows of texts (T, n), each in float64: of a list of them, an array of equally long texts (S, T, n), or
    one text alone. Raises InputError for anything else."""
    if hasattr(rows, "__array__") and np.asarray(rows).ndim == 2:
        return [np.asarray(rows, np.float64)]
    if not hasattr(rows, "__iter__"):
        raise InputError(f"{what} is {rows!r:.60}: give a list of the rows of texts, (tokens, columns) each")
    texts = [np.asarray(text, np.float64) for text in rows]
    if any(text.ndim != 2 for text in texts):
        raise InputError(f"{what} holds no rows of tokens: give a list of the rows of texts, (tokens, columns) each")
    return texts


def check_widths(queries: TextRows, documents: TextRows) -> None:
    """Raise InputError for rows of different lengths."""
    widths = {text.shape[1] for text in (*queries, *documents)}
    if len(widths) > 1:
        raise InputError(f"similarity: rows of {' and of '.join(map(str, sorted(widths)))} columns: give equal ones")


def late_scores(queries: TextRows, documents: TextRows, mean: bool = False) -> Floats:
    """Return (Q, D) in float32: the score of each query with each document, with `mean` over the query's rows. A
    document without rows scores EMPTY_SCORE. Raises InputError for rows of different lengths."""
    check_widths(queries, documents)
    scores = np.full((len(queries), len(documents)), EMPTY_SCORE)
    there = [at for at, document in enumerate(documents) if len(document)]
    longest = max(map(len, queries), default=1) or 1
    for part in portions_of(documents, there, PRODUCTS_HELD // longest):
        whole = np.concatenate([documents[at] for at in part])
        starts = [*accumulate((len(documents[at]) for at in part), initial=0)][:-1]
        for row, query in zip(scores, queries, strict=True):
            row[part] = np.maximum.reduceat(query @ whole.T, starts, axis=1).sum(0)
    if mean:
        scores /= np.maximum([[len(query)] for query in queries], 1).reshape(-1, 1)
    return scores.astype(np.float32)


def portions_of(documents: TextRows, places: Sequence[int], rows: int) -> list[list[int]]:
    """Return the places in lists whose documents have about so many rows together."""
    parts, held = list[list[int]](), 0
    for at in places:
        if not parts or held + len(documents[at]) > rows:
            parts.append([])
            held = 0
        parts[-1].append(at)
        held += len(documents[at])
    return parts


def pairwise_late_scores(queries: TextRows, documents: TextRows, mean: bool = False) -> Floats:
    """Return (Q) in float32: the score of each query with the document at its place, as `late_scores` gives it. Raises
    InputError for different numbers of them."""
    if len(queries) != len(documents):
        raise InputError(f"similarity_pairwise: {len(queries)} queries and {len(documents)} documents: give as many")
    check_widths(queries, documents)
    scores = [late_scores([query], [document], mean)[0, 0] for query, document in zip(queries, documents, strict=True)]
    return np.array(scores, np.float32)
