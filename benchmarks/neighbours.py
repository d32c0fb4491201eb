"""The nearest lines that a narrower program shares with the exact one: does the share of one half of a text hold for
the other?

    python benchmarks/neighbours.py [--model minilm] [--text FILE] [--sizes 1000,5000,20000] [--queries 200]
                                    [--programs DIR,..] [--engines opmatrix,openvino] [--types bf16,int8] [--rounds 7]
                                    [--csv OUT]

Clauses of a text are dealt to two corpora that share no line, each with queries of its own. The exact vectors are those
of the exact program in float32. `--programs` are directories that `opmatrix optimize MODEL --keep 'top10>=0.9' --corpus
FILE --out DIR` saved; every engine is timed on the same 512 clauses, in turns, in a process of its own."""

import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from lib import command, workloads
from lib.command import DATA, Figure, Parser, concluded, count, listed, named, pinned, readable, say, tabled, takes
from lib.peers import Absent, Process, made, replaced
from lib.race import SETTLE

import numpy as np
from models import job

from opmatrix.algebra.batch.batch import Batch
from opmatrix.display.tables import table
from opmatrix.runtime.measure import rotate_order
from opmatrix.runtime.program import Program
from rewrites.metrics.neighbours import lower_bound, nearest_rows, overlap

COLUMNS = "program", "lines", "one_half", "at_least", "other_half", "seconds", "megabytes"
EXACT = "opmatrix", "float32"
SHORTEST = 4  # words of a clause
TIMED = 512  # clauses that are timed
WEIGHTS = "*.safetensors", "*.bin"
STORED = {"openvino": ("model.bin",)}  # where a directory holds copies for workloads
APART = 0.02  # the most that the two halves may differ by


@dataclass
class Entrant:
    """A program at work: `embed()` gives vectors (lines, n), `turn()` the seconds of the timed clauses."""

    name: str
    embed: Callable[[], np.ndarray]
    turn: Callable[[], float]
    megabytes: float
    rounds: list[float] = field(default_factory=list)
    vectors: np.ndarray | None = None


def main() -> None:
    given = options()
    takes(60 * (1 + len(given.engines) * len(given.types) + len(given.programs)))
    pinned(given.threads)
    checkpoint = workloads.model(given.model)
    lines = clauses(given.text.read_text("utf-8"))
    say(f"{len(lines)} clauses of {given.text.name}")
    entrants = [*engines(given, checkpoint, lines), *saved(given.programs, checkpoint, lines)]
    for entrant in entrants:
        say(f"embed: {entrant.name}")
        entrant.vectors = entrant.embed()
    for turn in range(given.rounds):
        for entrant in rotate_order(entrants, turn):
            entrant.rounds.append(entrant.turn())
    exact, *others = entrants
    rows = [row for entrant in others for row in transfers(entrant, exact, given)]
    print(table([[row[0], f"{row[1]}", *(f"{value:.4g}" for value in row[2:])] for row in rows], [*COLUMNS]))
    tabled(given.csv, [COLUMNS, *rows])
    concluded(given, figures(rows))


def options():
    parser = Parser(__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--text", type=readable, default=DATA / "wikitext" / "wiki.head.raw")
    parser.add_argument("--sizes", type=listed, default=["1000", "5000", "20000"], help="lines of a corpus")
    parser.add_argument("--queries", type=count, default=200)
    parser.add_argument("--programs", type=listed, default=[], help="directories of saved programs")
    parser.add_argument("--engines", type=listed, default=["opmatrix", "openvino"])
    parser.add_argument("--types", type=listed, default=["bf16", "int8"])
    parser.add_argument("--threads", type=count, default=command.cores())
    parser.add_argument("--rounds", type=count, default=7)
    given = parser.parse_args()
    named("types", given.types, ("bf16", "int8"))
    given.sizes = [int(count(size)) for size in given.sizes]
    return given


def clauses(text: str) -> list[str]:
    """Return the different clauses of a text of at least SHORTEST words."""
    parts = (part.strip() for part in re.split(r"[.;:,()=\n]", text))
    return [*dict.fromkeys(part for part in parts if len(part.split()) >= SHORTEST)]


# ---- programs


def engines(given, checkpoint, lines: Sequence[str]) -> list[Entrant]:
    """Return the exact program, then every engine in every number type that is here."""
    rows = workloads.ids(checkpoint.tokenizer().encode(lines))
    whole, timed = (workloads.by_length(some) for some in (rows, rows[:TIMED]))
    entrants = []
    for engine, number in (EXACT, *((engine, number) for number in given.types for engine in given.engines)):
        try:
            say(f"prepare: {engine} {number}")
            ready = made(job(engine, number, timed, checkpoint, given))
            entrants.append(in_processes(ready, replaced(ready, sentences=whole.sentences, batches=whole.batches)))
        except Absent as error:
            say(f"absent  {engine} {number}: {error}")
    return entrants


def in_processes(timed, whole) -> Entrant:
    """Return an engine in a process of its own, and another that embeds all lines and ends."""
    process = Process(timed)

    def embed():
        with tempfile.TemporaryDirectory() as room:
            every = Process(whole)
            every.ask("embedded", file=str(file := Path(room) / "embedded.npy"))
            every.close()
            return np.load(file)

    def turn():
        time.sleep(SETTLE)
        return median(process.ask("turn", seconds=0.1))

    return Entrant(
        f"{timed.engine} {timed.number_type}", embed, turn, megabytes(Path(timed.place), *STORED.get(timed.engine, ()))
    )


def saved(directories: Sequence[str], checkpoint, lines: Sequence[str]) -> list[Entrant]:
    """Return the programs of directories, each in this process: they start no threads that spin."""
    timed = workloads.by_length(workloads.ids(checkpoint.tokenizer().encode(lines[:TIMED])))
    batches = [Batch([timed.sentences[number] for number in numbers]) for numbers in timed.batches]
    return [from_directory(Path(directory), lines, batches) for directory in directories]


def from_directory(directory: Path, lines: Sequence[str], batches: Sequence[Batch]) -> Entrant:
    program = Program.load(directory)

    def turn():
        start = time.perf_counter()
        for batch in batches:
            program.run(batch)
        return time.perf_counter() - start

    return Entrant(directory.name, lambda: program.embed(lines, progress=False), turn, megabytes(directory))


def megabytes(place: Path, *files: str) -> float:
    """Return the size of a model's weights: of these files, or of all in a directory, without those of other programs
    that lie in folders there."""
    return sum(file.stat().st_size for pattern in files or WEIGHTS for file in place.glob(pattern)) / 1e6


# ---- agreement


def transfers(entrant: Entrant, exact: Entrant, given) -> list[tuple]:
    """Return a row for each size of a corpus that the text has lines for."""
    taken = median(entrant.rounds)
    rows = []
    for size in given.sizes:
        if 2 * (size + given.queries) > len(exact.vectors):
            say(f"{size} lines twice, and {given.queries} queries each: the text has {len(exact.vectors)} clauses")
            continue
        one, other = (shares(entrant.vectors, exact.vectors, half, size, given.queries) for half in (0, 1))
        rows.append((entrant.name, size, one.mean(), lower_bound(one), other.mean(), taken, entrant.megabytes))
    return rows


def shares(vectors: np.ndarray, exact: np.ndarray, half: int, size: int, queries: int) -> np.ndarray:
    """Return for each query of a half the share of the exact program's nearest lines that a program finds, too."""
    now, then = (nearest(every[half::2][: queries + size], queries) for every in (vectors, exact))
    return np.array([overlap(*pair) for pair in zip(now, then, strict=True)])


def nearest(vectors: np.ndarray, queries: int) -> np.ndarray:
    """Return the numbers of the lines nearest to each of the first vectors, among the others."""
    return nearest_rows(vectors[:queries].astype(np.float64), vectors[queries:].astype(np.float64), "cosine")


def figures(rows: Sequence[tuple]) -> list[Figure]:
    return [
        Figure(
            f"{name}: two halves of {lines} lines differ by", abs(one - other), most=APART if lines == 5000 else None
        )
        for name, lines, one, _, other, *_ in rows
    ]


if __name__ == "__main__":
    command.run(main)
