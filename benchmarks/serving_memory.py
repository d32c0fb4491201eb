"""Memory of a process that embeds text after text, ours beside torch, ONNX Runtime and OpenVINO.

    python benchmarks/serving_memory.py [MODEL] [--texts 10000] [--batch 16] [--type float32] [--engines ...]

Each engine runs in a process of its own, on equally many threads, and gets the same batches: 1 to `--batch` texts of 4
to 256 tokens, of which few have the sizes of an earlier one. Peers get them padded. Resident bytes are read after each
tenth of the texts: `anonymous` is what the process allocated, `file` what is mapped from files and may be shared or
dropped. The mean rows of some texts, each alone and in a batch, are compared: by cosines, and to the bit."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lib import command, workloads
from lib.command import Figure, Parser, concluded, cores, count, listed, named, say, tabled, takes, within
from lib.engines import ENGINES
from lib.peers import Absent, Job, Process, made

import numpy as np

from opmatrix.display.tables import table

SHORTEST, LONGEST = 4, 256  # tokens of a text
TENTHS = 10
COMPARED = 24  # texts that are embedded alone and in a batch
FLAT, SMALLER = 1.02, 0.8  # bars: of the bytes after a tenth of the texts; of the smallest peer's peak
SEED = 1986
COLUMNS = "engine", "texts", "anonymous_mb", "file_mb"
Texts = list[list[int]]


class Reading(NamedTuple):
    """Resident megabytes after so many texts."""

    texts: int
    anonymous: float
    file: float

    @property
    def whole(self) -> float:
        """Both kinds together."""
        return self.anonymous + self.file


class Alone(NamedTuple):
    """Texts alone against the same in a batch: the least cosine of their mean rows, and how many have other bits."""

    cosine: float
    other: int


class Kept(NamedTuple):
    """What an engine held: readings, and the peak in megabytes; and its texts alone against the same in a batch."""

    engine: str
    readings: list[Reading]
    peak: float
    alone: Alone

    @property
    def grown(self) -> float:
        """The last reading over the first."""
        return self.readings[-1].whole / self.readings[0].whole


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("model", nargs="?", default="minilm", help="minilm, base, modernbert, or a checkpoint")
    parser.add_argument("--texts", type=count, default=10_000)
    parser.add_argument("--batch", type=count, default=16, help="most texts of a batch")
    parser.add_argument("--type", default="float32", choices=("float32", "bf16", "int8"))
    parser.add_argument("--engines", type=listed, default=["opmatrix", "torch", "onnxruntime", "openvino"])
    parser.add_argument("--threads", type=int, default=cores())
    given = parser.parse_args()
    named("engines", given.engines, ENGINES)
    within("threads", given.threads, cores())
    within("texts", given.texts, 10**7, TENTHS)
    takes(60 + 0.02 * given.texts * len(given.engines))
    checkpoint = workloads.model(given.model)
    most = min(LONGEST, checkpoint.positions)
    texts = drawn(checkpoint, given.texts, most)
    kept = [held for engine in given.engines if (held := run(engine, checkpoint, texts, given))]
    rows = [(held.engine, *reading) for held in kept for reading in held.readings]
    print(table([[name, str(n), f"{anonymous:.1f}", f"{file:.1f}"] for name, n, anonymous, file in rows], COLUMNS))
    tabled(given.csv, [COLUMNS, *rows])
    concluded(given, figures(kept))


def drawn(checkpoint: Any, texts: int, most: int) -> Texts:
    """Tokens of texts that ship, cut to lengths of which short ones are more frequent."""
    rng = np.random.default_rng(SEED)
    [row] = workloads.cut(checkpoint.tokenizer(), 1, 4 * most)
    lengths = np.exp(rng.uniform(np.log(SHORTEST), np.log(most + 1), texts)).astype(int)
    starts = rng.integers(1, len(row) - most, texts)
    return [[row[0], *row[start : start + length - 2], row[-1]] for start, length in zip(starts, lengths, strict=True)]


def batches(texts: Texts, most: int) -> Iterator[Texts]:
    """The texts in batches of 1 to `most`."""
    rng, at = np.random.default_rng(SEED + 1), 0
    while at < len(texts):
        size = int(rng.integers(1, most + 1))
        yield texts[at : at + size]
        at += size


def run(engine: str, checkpoint: Any, texts: Texts, given: Any) -> Kept | None:
    """What an engine holds over all batches; None where it is absent, and it is said why."""
    say(f"{given.model}: {engine} {given.type}")
    first = texts[: given.batch]
    job = Job(
        engine,
        given.type,
        str(checkpoint.directory),
        "mixed",
        first,
        [[*range(len(first))]],
        masked=True,
        calibration=workloads.calibration(checkpoint),
        text=workloads.text(workloads.Workload("mixed", first, [[*range(len(first))]]), checkpoint),
        threads=given.threads,
    )
    try:
        process = Process(made(job))
        readings = list[Reading](follow(process, texts, given.batch))
        held = Kept(engine, readings, process.ask("resident") / 1e6, compare(process, texts, given.batch))
        process.close()
    except Absent as error:
        say(f"absent  {engine} {given.type}: {error}")
        return None
    return held


def follow(process: Process, texts: Texts, most: int) -> Iterator[Reading]:
    """Run all batches, and read the bytes after each tenth of the texts."""
    done, due = 0, len(texts) / TENTHS
    for batch in batches(texts, most):
        process.ask("once", rows=batch)
        done += len(batch)
        if done >= due:
            sizes = process.ask("resident_by_kind")
            yield Reading(done, sizes["anonymous"] / 1e6, sizes["file"] / 1e6)
            due += len(texts) / TENTHS


def compare(process: Process, texts: Texts, most: int) -> Alone:
    """Compare the mean rows of texts alone and in a batch with others."""
    some, least, other = texts[:COMPARED], 1.0, 0
    for at in range(0, len(some), most):
        together = vectors(process, some[at : at + most])
        for text, vector in zip(some[at : at + most], together, strict=True):
            [alone] = vectors(process, [text])
            least = min(least, float(alone @ vector / np.linalg.norm(alone) / np.linalg.norm(vector)))
            other += not np.array_equal(alone, vector)
    return Alone(least, other)


def vectors(process: Process, rows: Sequence[list[int]]) -> np.ndarray:
    """The mean row of each text, in float64."""
    with tempfile.TemporaryDirectory() as room:
        process.ask("means", rows=rows, file=str(file := Path(room) / "means.npy"))
        return np.load(file).astype(np.float64)


def figures(kept: Sequence[Kept]) -> Iterator[Figure]:
    """Growth, peaks and cosines of each engine, and ours beside the smallest peer's."""
    for held in kept:
        bar = FLAT if held.engine == "opmatrix" else None
        yield Figure(f"{held.engine}: bytes after all texts over those after a tenth", held.grown, "x", most=bar)
        yield Figure(f"{held.engine}: peak", held.peak, "MB")
        yield Figure(f"{held.engine}: 1 - least cosine of a text alone and in a batch", max(0.0, 1 - held.alone.cosine))
        yield Figure(f"{held.engine}: texts of {COMPARED} that have other bits alone", held.alone.other)
    peaks = [held.peak for held in kept if held.engine != "opmatrix"]
    for held in kept:
        if held.engine == "opmatrix":
            ratio = held.peak / min(peaks) if peaks else None
            yield Figure("opmatrix: peak over the smallest peer's", ratio, "x", most=SMALLER, why="no peer is here")


if __name__ == "__main__":
    command.run(main)
