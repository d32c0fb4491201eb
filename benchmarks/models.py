"""Whole models: beside other engines, and one of every family as imported, exact and approximate."""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import matmul
from pathlib import Path
from statistics import median
from typing import NamedTuple

from lib import command, model_tables, workloads
from lib.command import (
    TESTS,
    Figure,
    Parser,
    concluded,
    cores,
    count,
    listed,
    named,
    pinned,
    say,
    spread,
    tabled,
    tablefile,
    takes,
    within,
)
from lib.peers import ENGINES as ALL
from lib.peers import SETTLE, Absent, Job, Process, made, replaced, version_of

import numpy as np
from scipy.sparse import csr_array

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoids import mean
from opmatrix.algebra.operators import given, product, relation, relu, weight
from opmatrix.algebra.operators import row as row_of
from opmatrix.algebra.term import Operator, formula
from opmatrix.display.tables import table
from opmatrix.files.checkpoint import open_model
from opmatrix.runtime.measure import rotate_order, undisturbed
from rewrites.report.points import Point
from rewrites.report.results import Result
from rewrites.run import optimize

# ---- models

MODELS_COLUMNS = "engine", "version", "number_type", "workload", "median_s", "min_s", "first_s", "resident_mb", "error"
TYPES, SHAPES = ("float32", "bf16", "int8"), ("1x16", "1x128", "8x128", "32x128")
TURN = 0.1  # seconds of a turn, or one call
BARS = {("smollm2", "float32", "1x512"): 0.9}  # of the fastest peer's time; 1 elsewhere


@dataclass
class Row:
    """An engine on a workload: seconds of each round, the least of any call, and what else the CSV has."""

    model: str
    engine: str
    version: str
    number_type: str
    workload: str
    first_s: float
    rounds: list = field(default_factory=list)
    min_s: float = float("inf")
    resident_mb: float = 0.0
    error: float | None = None
    spearman: float | None = None
    job: Job | None = None

    @property
    def race(self):
        return self.model, self.number_type, self.workload

    @property
    def median_s(self):
        return median(self.rounds)

    def csv(self):
        name = self.workload if self.model == "minilm" else f"{self.model} {self.workload}"
        return [
            self.engine,
            self.version,
            self.number_type,
            name,
            self.median_s,
            self.min_s,
            self.first_s,
            self.resident_mb,
            "" if self.error is None else self.error,
        ]


def measure_models():
    """Compare opmatrix with torch, torch.compile, ONNX Runtime and OpenVINO: the same weights, the same inputs, equal
    number types.

        python benchmarks/models.py [--models minilm,base,smollm2] [--types float32,bf16,int8] [--engines ...]
                [--threads N] [--rounds 9] [--workloads 1x16,1x128,8x128,32x128,file,padded,sorted]
                [--sentences 512] [--pairs CSV] [--no-spearman] [--peers-tune] [--csv OUT] [--plot PNG]
                [--programs DIR]

    SENTENCESxTOKENS are batches of one length; `fresh` (not by default) are batches of 1 to 8 sentences, each of
    another size and run once, so that what an engine keeps for a size helps nobody. The last three are the sentence
    pairs of a file in batches of 32: `file` as they are, for opmatrix; for peers `padded` in the order of the file,
    and `sorted` by length, padded as well. opmatrix has one program for each model, number type and workload, found
    by `opmatrix optimize`; they are kept in --programs and taken from there.

    Each engine and number type has a process of its own, on the same processors with as many threads. In every
    round each takes a turn, in an order that turns, while the others sleep. Seconds are medians of rounds, of calls
    of a turn; a ratio is the median of the rounds' ratios. `first_s` runs from the start of the process to the
    first result, everything that can be saved or cached being so; resident memory is the most that such a process
    held. The error is that of the hidden states of real tokens against float64, in the Frobenius norm. A figure
    counts only with all four peers in the table; an engine's, ours too, only where its Spearman is within 0.3 of
    float32's."""
    given = options()
    takes(20 * len(given.models) * len(given.types) * len(given.workloads) * len(given.engines))
    pinned(given.threads)
    rows = []
    for name in given.models:
        checkpoint = workloads.model(name)
        found = {w: workloads.made(w, checkpoint, given.pairs, given.sentences, given.rounds) for w in given.workloads}
        for group in groups(given, found):
            rows += raced(group, checkpoint, given)
            tabled(given.csv, [MODELS_COLUMNS, *(row.csv() for row in rows)])
        if given.spearman and name != "base" and checkpoint.config["model_type"] == "bert":
            quality([row for row in rows if row.model == checkpoint.name], checkpoint, given)
        model_tables.show(checkpoint.name, rows, given)
    if given.plot:
        model_tables.plot(rows, given.plot)
    concluded(given, models_figures(rows))


def models_figures(rows):
    """What opmatrix takes of what the fastest peer of equal quality takes, by model, number type and workload."""
    for ours in (row for row in rows if row.engine == "opmatrix"):
        same = [row for row in rows if row.race == ours.race]
        peers, what = (
            [row for row in same if row.engine != "opmatrix" and model_tables.equal(row, rows)],
            " ".join(ours.race),
        )
        yield Figure(f"{what}: opmatrix", 1e3 * ours.median_s, "ms", spread(ours.rounds))
        if ours.workload in workloads.TEXTS:
            continue  # peers have others: benchmarks/lib/model_tables.py
        found = model_tables.compared(ours, peers, model_tables.paired, model_tables.seconds)
        ratio, who = found or (None, "none")
        yield Figure(
            f"{what}: of the fastest peer's ({who})",
            ratio,
            "x",
            most=BARS.get(ours.race, 1),
            why="no peer of equal quality is here",
        )


def options():
    parser = Parser(measure_models)
    parser.add_argument(
        "--models",
        type=listed,
        default=["minilm", "base"],
        help="minilm, base, smollm2 without its head, or directories of checkpoints",
    )
    parser.add_argument("--types", type=listed, default=[*TYPES])
    parser.add_argument("--workloads", type=listed, default=[*SHAPES, *workloads.TEXTS])
    parser.add_argument("--engines", type=listed, default=[*ALL])
    parser.add_argument("--threads", type=int, default=cores(), help="and so many processors")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sentences", type=int, default=512, help="of the pairs, for timing")
    parser.add_argument("--pairs", type=Path, default=workloads.PAIRS, help="CSV of sentence, sentence, score")
    parser.add_argument("--no-spearman", dest="spearman", action="store_false", help="of the pairs: half of the time")
    parser.add_argument("--peers-tune", action="store_true", help="say what each peer was tuned to")
    parser.add_argument("--plot", type=Path, help="draw them there (needs matplotlib)")
    parser.add_argument(
        "--programs", type=Path, help="where opmatrix's programs are kept; the cache directory by default"
    )
    given = parser.parse_args()
    for option, known in (("types", TYPES), ("engines", ALL)):
        named(option, getattr(given, option), known)
    for option, most in (("threads", cores()), ("rounds", 10**6), ("sentences", 10**6)):
        within(option, getattr(given, option), most)
    tablefile("plot", given.plot)
    return given


def groups(given, found):
    """What races together: all number types of one shape; of the texts one number type, however the peers get them."""
    for workload in found.values():
        if not workload.ragged:
            yield [(engine, number, workload) for number in given.types for engine in given.engines]
    texts = [workload for workload in found.values() if workload.ragged]
    for number in given.types if texts else ():
        yield [
            (engine, number, workload)
            for workload in texts
            for engine in given.engines
            if (engine == "opmatrix") == (workload.name == "file")
        ]


def raced(group, checkpoint, given):
    """The rows of what races together."""
    entered = [
        (row, process) for entry in group if (one := entrant(*entry, checkpoint, given)) for row, process in [one]
    ]
    say(f"{checkpoint.name}: {given.rounds} rounds of {len(entered)}")
    with undisturbed():
        for turn in range(given.rounds):
            for one in rotate_order(entered, turn) if entered else ():
                if not timed(*one):
                    entered.remove(one)
    for row, process in entered:
        row.resident_mb = process.ask("resident") / 1e6
    for workload in {id(entry[2]): entry[2] for entry in group}.values():
        judged([(row, process) for row, process in entered if row.workload == workload.name], workload, checkpoint)
    for _, process in entered:
        process.close()
    return [row for row, _ in entered]


def timed(row, process):
    """One turn; whether the process did it."""
    try:
        taken = process.ask("turn", seconds=TURN)
    except Absent as error:
        return say(f"absent  {row.engine} {row.number_type} {row.workload}: {error}")
    row.rounds.append(median(taken))
    row.min_s = min(row.min_s, *taken)
    time.sleep(SETTLE)
    return True


def entrant(engine, number, workload, checkpoint, given):
    """A row and its process, second start; None where it is absent, and it is said why."""
    try:
        say(f"{checkpoint.name} {workload.name}: {engine} {number}")
        process = Process(ready := made(job(engine, number, workload, checkpoint, given), given.programs))
        if given.peers_tune and engine != "opmatrix":
            say(f"{engine} {number} {workload.name} was tuned: {ready.tuned}")
        time.sleep(SETTLE)
        return Row(
            checkpoint.name, engine, version_of(engine), number, workload.name, process.first, job=ready
        ), process
    except Absent as error:
        say(f"absent  {engine} {number} {workload.name}: {error}")


def job(engine, number, workload, checkpoint, given):
    """A workload's job; its texts are written only where a program must be found for them."""
    return Job(
        engine,
        number,
        str(checkpoint.directory),
        workload.name,
        workload.sentences,
        workload.batches,
        workload.shape,
        workload.shape is None,
        workload.fresh,
        workloads.calibration(checkpoint),
        workloads.text(workload, checkpoint),
        threads=given.threads,
    )


def judged(entered, workload, checkpoint):
    """Writes the errors of the hidden states into the rows."""
    if not entered:
        return
    count, exact = workloads.reference(checkpoint, workload)
    with tempfile.TemporaryDirectory() as room:
        for row, process in entered:
            process.ask("hidden", file=str(file := Path(room) / "hidden.npy"), upto=count)
            row.error = float(np.linalg.norm(np.load(file) - exact) / np.linalg.norm(exact))


def quality(rows, checkpoint, given):
    """Writes Spearman's correlation into the rows: one an engine and number type for peers, one a program for
    opmatrix."""
    if not given.pairs.is_file():
        return say(f"no Spearman: {given.pairs} is not there")
    scores, kept = workloads.SentencePairs.read(given.pairs).scores, {}
    every = workloads.made("sorted", checkpoint, given.pairs, None)
    for row in rows:
        key = row.engine, row.number_type, row.workload if row.engine == "opmatrix" else None
        if key not in kept:
            kept[key] = correlation(row, every, scores, checkpoint, given)
        row.spearman = kept[key]


def correlation(row, every, scores, checkpoint, given):
    """100 times Spearman's of one engine, from all pairs."""
    try:
        say(f"{row.model}: Spearman of {row.engine} {row.number_type}")
        ready = job(row.engine, row.number_type, every, checkpoint, given)
        ready = replaced(ready, place=row.job.place) if row.engine == "opmatrix" else made(ready, given.programs)
        process = Process(ready)
        with tempfile.TemporaryDirectory() as room:
            process.ask("embedded", file=str(file := Path(room) / "embedded.npy"))
            process.close()
            return workloads.spearman(np.load(file), scores)
    except Absent as error:
        say(f"absent  {row.engine} {row.number_type}, all pairs: {error}")


# ---- families

FAMILIES_COLUMNS = (
    "family",
    "model",
    "weights",
    "program",
    "ms",
    "ms_predicted",
    "mb",
    "peak_mb",
    "mb_predicted",
    "error",
    "error_stated",
)
NODES, NEIGHBOURS, WIDE, DEEP = 2000, 8, 128, 3  # of the graph and of its network


class Subject(NamedTuple):
    """What is optimised: a model by name or directory, or an operator with its batch; where its weights are from."""

    model: str
    weights: str


MODELS = {
    "bert": Subject("minilm", "published"),
    "gpt": Subject(str(TESTS / "data" / "gpt2_bytes"), "trained"),
    "llama": Subject("smollm2", "published"),
    "pangu": Subject(str(TESTS / "data" / "pangu_bytes"), "trained"),
    "experts": Subject(str(TESTS / "data" / "mixtral_bytes"), "trained"),
    "graph": Subject("graph network", "random"),
}


def measure_families() -> None:
    """Optimise a model of every family, as imported, exact, and within an error: time, memory and peak, as predicted
    and measured.

        python benchmarks/models.py families [--families bert,gpt] [--tokens 128] [--error 0.02] [--rounds 9]
                [--csv OUT]

    Weights are `published` (MiniLM, SmolLM2), `trained` by tests/support/train_models.py (small models over bytes:
    their sizes are no one's, their numbers are), or `random` (a network over a graph of 2,000 nodes, each with 8
    others). MB are of what is stored, peak those of values beside it while a batch runs. Each is optimised for one
    sentence of so many tokens, or as many as it has positions for; a graph is read whole."""
    parser = Parser(measure_families)
    parser.add_argument("--families", type=listed, default=[*MODELS])
    parser.add_argument("--tokens", type=count, default=128)
    parser.add_argument("--error", type=command.number(float, 0, 1, "from 0 to 1"), default=0.02)
    parser.add_argument("--rounds", type=count, default=9)
    asked = parser.parse_args()
    named("families", asked.families, MODELS)
    takes(60 * len(asked.families) + 300 * ("llama" in asked.families))
    rows = []
    for name in asked.families:
        rows += rows_of(name, optimised(name, asked.tokens, asked.error, asked.rounds))
        say(name)
    print(table([[*row[:4], *map(shown, row[4:])] for row in rows], FAMILIES_COLUMNS, (0, 1, 2, 3)))
    tabled(asked.csv, [FAMILIES_COLUMNS, *rows])
    concluded(asked, families_figures(rows))


def optimised(name: str, tokens: int, error: float, rounds: int) -> Result:
    """What `optimize` finds of a family's model."""
    subject = MODELS[name]
    if name == "graph":
        model, batch = graph_network(np.random.default_rng(0))
        return optimize(model, workload=batch, error=error, rounds=rounds)
    limit = open_model(subject.model).positions
    return optimize(subject.model, tokens=min(tokens, limit), error=error, rounds=rounds, output="rows")


def graph_network(rng: np.random.Generator) -> tuple[Operator, Batch]:
    """Layers of a node beside the mean of its neighbours (Hamilton et al. 2017, GraphSAGE), and a graph."""
    edges = relation("edges", "T", "T")

    def drawn(*shape: int) -> Operator:
        return weight(Data(rng.normal(size=shape) * shape[0] ** -0.5))

    def layer() -> Operator:
        W = drawn(2 * WIDE, WIDE)
        return formula(lambda x: row_of(x, product(given(edges), x, over=mean)) @ W) @ relu

    to = rng.integers(0, NODES, NODES * NEIGHBOURS)
    matrix = csr_array((np.ones(to.size), to, np.arange(0, to.size + 1, NEIGHBOURS)), (NODES, NODES))
    matrix.sum_duplicates()
    model = reduce(matmul, [drawn(NODES, WIDE), *(layer() for _ in range(DEEP)), drawn(WIDE, WIDE)])
    return model, Batch([range(NODES)], relations={"edges": matrix})


def rows_of(name: str, found: Result) -> Iterator[tuple[str | float, ...]]:
    """As imported, exact and chosen, each once: the chosen one may be exact."""
    subject, timed = MODELS[name], found.workload.timed
    exact = next(point for point in found.points if point.name == "exact")
    for what, point in {"imported": found.imported, "exact": exact, "chosen": found.best}.items():
        peak = point.program.peak_bytes(timed)
        yield (
            name,
            subject.model.rsplit("/", 1)[-1],
            subject.weights,
            what if what != "chosen" else f"chosen: {point.name}",
            *milliseconds(point),
            point.program.stored_bytes / 1e6,
            peak / 1e6,
            point.predicted_bytes / 1e6,
            np.nan if point.measured_error is None else point.measured_error,
            point.stated_error,
        )


def milliseconds(point: Point) -> tuple[float, float]:
    return (np.nan if point.measured_s is None else 1e3 * point.measured_s), 1e3 * point.predicted_s


def shown(value: float) -> str:
    return "" if value != value else f"{value:.4g}"


def families_figures(rows: list[tuple[str | float, ...]]) -> Iterator[Figure]:
    """Times of exact and chosen programs over the import's; how far predictions are off."""
    by = {(each[0], str(each[3]).split(":")[0]): each for each in rows}
    for name in dict.fromkeys(name for name, *_ in rows):
        imported = by[name, "imported"]
        for what in ("exact", "chosen"):
            for column, of in ((4, "time"), (6, "MB")):
                ratio = float(by[name, what][column]) / float(imported[column])
                yield Figure(f"{name}: {what}, {of} over the import's", ratio)
    off = [100 * abs(float(each[5]) / float(each[4]) - 1) for each in rows if each[4] == each[4]]
    yield Figure("predicted seconds off, median", float(np.median(off)), "%")


if __name__ == "__main__":
    command.run_parts(measure_models, measure_families)
