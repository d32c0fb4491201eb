"""The loss of nDCG@10 against the exact program, on a user's corpus, queries and judgements of relevance: the files of
BEIR (Thakur et al. 2021) and of TREC. Some queries choose programs, and what is stated comes from others."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from formats.core.errors import InputError
from formats.disk.files import open_regular
from opmatrix.inference.embed import read_lines
from opmatrix.runtime.program import Program
from rewrites.metrics.neighbours import (
    MOST_LINES,
    MOST_QUERIES,
    NEAREST,
    SCANNED,
    CorpusFiles,
    CorpusGoal,
    CorpusPart,
    QueryAnswers,
    nearest_lines,
)

HUNDREDTHS = 100.0  # nDCG is stated in hundredths, as BEIR's tables have it
LEAST_QUERIES = 4  # queries with a relevant line, of which half choose

Gains = Mapping[str, Mapping[str, float]]  # for each query the relevance of lines, by their names


def judged_goal(files: CorpusFiles) -> CorpusGoal:
    """Read the data of the goal of nDCG@10."""
    return CorpusGoal(*read_judged(files), answer=ranking_quality, agree=lambda now, then: float(now[0] - then[0]))


def ranking_quality(program: Program, part: CorpusPart) -> QueryAnswers:
    """Return nDCG@10 of each query in hundredths: an array of one number. Raises InputError for a program that scores
    pairs."""
    ranked = zip(nearest_lines(program, part), part.gains, strict=True)
    return [np.array([HUNDREDTHS * ndcg(nearest.tolist(), gains)]) for nearest, gains in ranked]


def ndcg(ranked: Sequence[int], gains: Mapping[int, float]) -> float:
    """Return the discounted gain of the first NEAREST places as a share of the best order's (Järvelin and Kekäläinen
    2002, with the discount of trec_eval: a gain at place i is divided by log2(i + 1))."""
    best = sorted(gains.values(), reverse=True)
    return discounted(gains.get(place, 0.0) for place in ranked) / discounted(best)


def discounted(gains: Iterable[float]) -> float:
    """Return the sum of gains at places 1.. NEAREST, each divided by log2(place + 1)."""
    return math.fsum(gain / math.log2(place + 1) for place, gain in enumerate(islice(gains, NEAREST), 1))


# ---- parts


def read_judged(files: CorpusFiles) -> tuple[CorpusPart, CorpusPart]:
    """Read a corpus, its queries and judgements as two parts, each with half of the queries that have a relevant line.
    A line that is judged is in the parts of its queries, others are dealt in turn. Raises InputError for a file that is
    missing, for names that the judgements have alone, and for too few queries."""
    if files.queries is None or files.judgements is None:
        lacks = "--queries FILE" if files.queries is None else "--judgements TSV"
        raise InputError(f"ndcg10: it needs queries and which lines are relevant to them: give {lacks}")
    lines, queries = read_named_texts(files.corpus), read_named_texts(files.queries)
    gains = read_judgements(files.judgements, queries, lines)
    relevant = [query for query, judged in gains.items() if any(judged.values())]
    if len(relevant) < LEAST_QUERIES or len(lines) < 4 * NEAREST:
        raise InputError(
            f"--judgements {files.judgements}: {len(relevant)} queries with a relevant line, and {len(lines)} lines: "
            f"at least {LEAST_QUERIES} and {4 * NEAREST} are needed, of which half choose and half state"
        )
    chosen = relevant[:: -(-len(relevant) // MOST_QUERIES)]
    judged = {line for query in chosen for line in gains[query]}
    others = [line for line in lines if line not in judged]
    others = others[:: max(1, -(-len(others) // MOST_LINES))]
    first, second = (part_of(chosen[at::2], others[at::2], gains, lines, queries) for at in (0, 1))
    return first, second


def part_of(
    names: Sequence[str], others: Sequence[str], gains: Gains, lines: Mapping[str, str], queries: Mapping[str, str]
) -> CorpusPart:
    """Return the queries of these names with all lines that are judged for them, and others."""
    held = [*dict.fromkeys(line for name in names for line in gains[name]), *others]
    place = {line: at for at, line in enumerate(held)}
    by_place = tuple({place[line]: gain for line, gain in gains[name].items()} for name in names)
    return CorpusPart(tuple(queries[name] for name in names), tuple(lines[line] for line in held), by_place)


# ---- files


def read_named_texts(file: str | Path) -> dict[str, str]:
    """Return the texts of a file by name: of BEIR's JSON lines (`_id`, `title`, `text`) the title and the text by
    `_id`, of any other file its lines by their numbers from 1. Raises InputError for a line that is not so."""
    every = islice(enumerate(read_lines(Path(file), open_regular), 1), SCANNED)
    lines = [(number, line) for number, line in every if line.strip()]
    if Path(file).suffix.lower() != ".jsonl":
        return {str(number): line for number, line in lines}
    entries = [read_entry(f"{file}: line {number}", line) for number, line in lines]
    if (most := Counter(name for name, _ in entries).most_common(1)) and most[0][1] > 1:
        raise InputError(f"{file}: _id {most[0][0]!r:.60} stands {most[0][1]} times: give each text a name of its own")
    return dict(entries)


def read_entry(where: str, line: str) -> tuple[str, str]:
    """Return the name and the text of a JSON line. Raises InputError for another form."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    parts = [entry.get(key, "") for key in ("_id", "title", "text")] if isinstance(entry, dict) else []
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) < 3 or not texts[0]:
        raise InputError(f'{where}: {line!r:.60} is no line such as {{"_id": "7", "title": "", "text": "words"}}')
    name, *words = texts
    return name, " ".join(filter(None, words))


def read_judgements(
    file: str | Path, queries: Mapping[str, str], lines: Mapping[str, str]
) -> dict[str, dict[str, float]]:
    """Return for each query the relevance of lines, at least 0, from a file of query, line and relevance between tabs
    or blanks, a heading first or none; TREC's second column is left out. Raises InputError for a line of another form,
    and for a query or line that is not there."""
    gains: dict[str, dict[str, float]] = {}
    for number, line in enumerate(islice(read_lines(Path(file), open_regular), SCANNED), 1):
        if not line.strip():
            continue
        fields = [field.strip() for field in line.split("\t")] if "\t" in line else line.split()
        where = f"--judgements {file}: line {number}"
        gain = relevance(fields[-1])
        if gain is None and number == 1:
            continue  # a heading
        if gain is None or len(fields) not in (3, 4):
            raise InputError(f"{where}: {line!r:.60}: give a query, a line and a finite relevance, between tabs")
        query, document = fields[0], fields[-2]
        for name, texts, option in ((query, queries, "queries"), (document, lines, "corpus")):
            if name not in texts:
                raise InputError(f"{where}: no text of --{option} is called {name!r:.60}")
        gains.setdefault(query, {})[document] = max(gain, 0.0)
    return gains


def relevance(text: str) -> float | None:
    """Return the number of a text; None for another text, and for a number that is not finite."""
    try:
        gain = float(text)
    except ValueError:
        return None
    return gain if math.isfinite(gain) else None
