"""Errors that are stated, on texts that nobody has seen, and planned memory beside measured."""

import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from lib import command
from lib.command import (
    TESTS,
    Figure,
    Parser,
    concluded,
    count,
    listed,
    named,
    number,
    say,
    tabled,
    takes,
    whole,
    within,
)

import numpy as np
from random_models import random_config, random_sentences, random_weights

from formats.core.errors import InputError
from formats.disk.files import read_json
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.term import Operator
from opmatrix.display.tables import table
from opmatrix.files.checkpoint import open_model
from opmatrix.files.loading import FRONT
from opmatrix.files.saving import REPORT
from opmatrix.inference.embed import batches
from opmatrix.inference.text import LineReading, Parts, sentences
from opmatrix.models import build
from opmatrix.models.transformer import transformer
from opmatrix.runtime.measure import peak
from opmatrix.runtime.pricing import this_machine
from opmatrix.runtime.program import Program
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS
from rewrites.metrics.goals import goals
from rewrites.opened import Opened, search_exact
from rewrites.report.choice import allowed
from rewrites.report.results import Result
from rewrites.run import RUNS, find_front, optimize, propose_approximations, verify_front
from rewrites.verify.differences import Change, difference
from rewrites.workload.phases import silence_stdout
from rewrites.workload.samples import TEXT_KINDS, make_lines
from rewrites.workload.stated import MIN_SENTENCES, Stated, change_cosines, uncovered
from rewrites.workload.workload import Workload

# ---- stated

STATED_COLUMNS = (
    "kind",
    "tokens",
    "seen",
    "largest seen",
    "stated of all",
    "found of all",
    "stated worst",
    "fresh above",
    "largest ratio",
    "cosine, mean",
    "cosine, most",
    "shipped: above",
    "largest ratio",
    "covered",
    "own",
)
STATED_ALLOWED, STATED_MOST = 0.01, 1.5  # share of fresh lines above what is stated, times by which
# one may be


def measure_stated() -> int:
    """Hold stated errors against texts that nobody has seen: of eight kinds, each the workload in turn.

        python benchmarks/stated.py [minilm.opmatrix] [--point N] [--workload 100] [--fresh 200] [--seed 0]
                [--csv OUT]

    Takes a saved program with many int8 weights from the front of what `optimize minilm` saved, or point N of it,
    and the exact one beside it. Of each kind of text lines are drawn; those of the workload are parted as
    `optimize` parts them, and a third part states the worst sentence. Counted is how many fresh lines exceed it,
    and by how much at most. The last columns hold the same lines against what the shipped sentences state, and say
    whether they count as covered by those, and by their own workload."""
    parser = Parser(measure_stated)
    parser.add_argument("program", type=Path, nargs="?", default=Path("minilm.opmatrix"))
    parser.add_argument("--point", type=count, help="of the front; by itself the one with most int8 weights")
    parser.add_argument("--workload", type=count, default=100, help="lines")
    parser.add_argument("--fresh", type=count, default=200, help="lines")
    parser.add_argument("--seed", type=whole, default=0)
    given = parser.parse_args()
    within("workload", given.workload, 100_000, 2 * MIN_SENTENCES)
    within("fresh", given.fresh, 100_000)
    name, program, exact = taken(given.program, given.point)
    takes(3 + 0.025 * len(TEXT_KINDS) * (given.workload / 2 + given.fresh))
    shipped, fitted = Parts.of(sentences()), rows(program, [*Parts.of(sentences()).fit, *Parts.of(sentences()).choose])
    said = statement(program, exact, shipped.state)
    lacking = uncovered(program.tokenizer, fitted, rows(program, shipped.state))
    found = []
    for kind in TEXT_KINDS:
        found.append(judged(kind, given, program, exact, said, lacking))
        say(kind)
    print(
        f"{given.program}, {name}: stated of the shipped sentences {said.error:.3g}, worst sentence "
        f"{said.sentence:.3g}, cosines change by {said.cosine_mean:.2g} on average, {said.cosine_most:.2g} at most "
        f"of {said.pairs} pairs"
    )
    print(table([[shown(cell) for cell in row] for row in found], [*STATED_COLUMNS]))
    tabled(given.csv, [STATED_COLUMNS, *found])
    broken = [
        row[0]
        for row in found
        if row[STATED_COLUMNS.index("fresh above")] > STATED_ALLOWED
        or row[STATED_COLUMNS.index("largest ratio")] > STATED_MOST
    ]
    print(
        f"more than {100 * STATED_ALLOWED:g} % above, or one by more than {STATED_MOST:g} x: "
        f"{', '.join(broken) or 'none'}"
    )
    above, times = (max(row[STATED_COLUMNS.index(name)] for row in found) for name in ("fresh above", "largest ratio"))
    what = f"fresh lines above the stated worst, of {given.fresh}, in the worst kind"
    concluded(
        given,
        [
            Figure(what, 100 * above, "%", most=100 * STATED_ALLOWED),
            Figure("the farthest, over what is stated", times, "x", most=STATED_MOST),
        ],
    )
    return bool(broken)


def taken(directory: Path, point: int | None) -> tuple[str, Program, Program]:
    """The name of a point, its program, and the exact one of the same front."""
    front = read_json(directory / REPORT)["front"]
    counts = [sum(count for method, count in each["methods"].items() if method == "int8") for each in front]
    if point is None:
        point = int(
            np.argmax([count - (each["measured_error"] or 0) for count, each in zip(counts, front, strict=True)])
        )
    if not 0 < point < len(front):
        raise InputError(f"--point {point}: {directory} has approximate programs 1 to {len(front) - 1}")
    return front[point]["name"], *(Program.load(directory / FRONT / str(number)) for number in (point, 0))


def rows(program, texts):
    """The texts as one batch, cut where the model has no more positions."""
    return next(batches(program.tokenizer, texts, sys.maxsize, LineReading(truncate=True)))


def stated_outputs(program, exact, texts):
    """What both make of the texts, some thousand rows at a time, and where each text's rows begin."""
    made = [*batches(program.tokenizer, texts, reading=LineReading(truncate=True))]
    found, wanted = (
        np.concatenate([np.asarray(each.run(batch), np.float64) for batch in made]) for each in (program, exact)
    )
    return found, wanted, np.cumsum([0, *(length for batch in made for length in np.diff(program.starts(batch)))])


def statement(program, exact, texts):
    return stated(program, *stated_outputs(program, exact, texts))


def stated(program, found, wanted, starts):
    """What is stated of outputs."""
    vectors = (program.pooling(rows, starts) for rows in (wanted, found))
    return Stated.of(Change.of(found, wanted, starts), change_cosines(*vectors))


def judged(kind, given, program, exact, shipped, lacking):
    """A row of the table."""
    drawn = make_lines(kind, given.workload + given.fresh, given.seed)
    (fit, choose, state), fresh = Parts.of(drawn[: given.workload]), drawn[given.workload :]
    seen, new = stated_outputs(program, exact, state), stated_outputs(program, exact, fresh)
    said, errors = stated(program, *seen), Change.of(*new).each
    together = float(np.linalg.norm(new[0] - new[1]) / np.linalg.norm(new[1]))
    lengths, own = (
        np.diff(rows(program, fresh).starts),
        uncovered(program.tokenizer, rows(program, [*fit, *choose]), rows(program, state)),
    )
    covered = ["no" if kind in lists else "yes" for lists in (lacking, own)]
    return [
        kind,
        f"{lengths.min()} to {lengths.max()}",
        len(state),
        Change.of(*seen).each.max(),
        said.error,
        together,
        said.sentence,
        float(np.mean(errors > said.sentence)),
        errors.max() / said.sentence,
        said.cosine_mean,
        said.cosine_most,
        float(np.mean(errors > shipped.sentence)),
        errors.max() / shipped.sentence,
        *covered,
    ]


def shown(cell):
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)


# ---- mixtures

MIXTURES_COLUMNS = (
    "family",
    "program",
    "rows elsewhere",
    "along",
    "stated",
    "fresh, over stated",
    "stated worst",
    "fresh above",
    "largest ratio",
)
SENTENCES, PIECE = 48, 2048  # of a workload; rows that run together
LONGEST, WORDS = 600, 256  # tokens of a text; tokens of random models
MIXTURES_ALLOWED, MIXTURES_MOST = 0.01, 1.0  # share of fresh texts above; all together, over stated
LLAMA = dict(
    vocab_size=WORDS,
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=LONGEST,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
)
QWEN = LLAMA | dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32)
CONFIGS = {
    "mixtral": LLAMA | dict(model_type="mixtral", num_local_experts=8, num_experts_per_tok=2),
    "qwen2": QWEN | dict(model_type="qwen2_moe", shared_expert_intermediate_size=32),
    "qwen3": QWEN | dict(model_type="qwen3_moe", head_dim=12, norm_topk_prob=True),
    "pangu": QWEN | dict(model_type="PanguProMoE", num_experts_per_tok=4, shared_expert_intermediate_size=32),
    "pr-moe": dict(
        model_type="pr_moe",
        vocab_size=WORDS,
        n_embd=48,
        n_layer=4,
        n_head=4,
        n_positions=LONGEST,
        num_experts=[4, 8],
        expert_interval=2,
        layer_norm_epsilon=1e-5,
    ),
}
TRAINED = "mixtral_bytes"


class Made(NamedTuple):
    """A model, and tokens that its texts are drawn from, at most so many for a text."""

    model: Operator
    tokens: np.ndarray
    longest: int


class Judged(NamedTuple):
    """A row of the table."""

    family: str
    program: str
    elsewhere: float
    along: float
    stated: float
    together: float
    worst: float
    above: float
    ratio: float


def measure_mixtures() -> int:
    """Hold stated errors of mixtures of experts against texts that nobody has seen, each program routed by its own
    scores.

        python benchmarks/stated.py mixtures [--families mixtral,qwen2] [--fresh 300] [--error 0.02] [--seed 0]
                [--csv OUT]

    Small random models of five families, and the trained one of tests/data, are optimised for texts of 1 to 600
    tokens, or as many as a model has positions for. Every approximate program of a front then runs on fresh texts
    as long, beside the imported program, as a user compares them. Counted are the fresh texts that exceed what is
    stated of a single one, of which 1 in 100 may; and how far all together are off, over what is stated."""
    parser = Parser(measure_mixtures)
    parser.add_argument("--families", type=listed, default=[*CONFIGS, TRAINED])
    parser.add_argument("--fresh", type=count, default=300, help="texts")
    parser.add_argument("--error", type=number(float, 0, 1, "from 0 to 1"), default=0.02)
    parser.add_argument("--seed", type=whole, default=0)
    asked = parser.parse_args()
    named("families", asked.families, [*CONFIGS, TRAINED])
    takes(100 * len(asked.families))
    judged: list[Judged] = []
    for family in asked.families:
        made = trained() if family == TRAINED else random_model(family, asked.seed)
        draw = partial(texts, np.random.default_rng([asked.seed, 1]), made)
        result = optimize(made.model, workload=Batch(draw(SENTENCES)), error=asked.error, rounds=1)
        judged += judge(family, result, Batch(draw(asked.fresh)))
        say(family)
    print(
        table(
            [[f"{cell:.3g}" if isinstance(cell, float) else cell for cell in row] for row in judged],
            [*MIXTURES_COLUMNS],
        )
    )
    tabled(asked.csv, [MIXTURES_COLUMNS, *judged])
    above, times = max(row.above for row in judged), max(row.together for row in judged)
    concluded(
        asked,
        [
            Figure(
                f"fresh texts above the stated worst, of {asked.fresh}, in the worst program",
                100 * above,
                "%",
                most=100 * MIXTURES_ALLOWED,
            ),
            Figure("all fresh texts together, over what is stated", times, "x", most=MIXTURES_MOST),
        ],
    )
    return int(above > MIXTURES_ALLOWED or times > MIXTURES_MOST)


def trained() -> Made:
    """The model over bytes, and the text that it did not see."""
    tokens = np.frombuffer((TESTS / "data" / "held_out.txt").read_bytes(), np.uint8)
    return Made(open_model(str(TESTS / "data" / TRAINED)).operator(False), tokens.astype(np.int64), 128)


def random_model(family: str, seed: int) -> Made:
    """Matrices three times the size that training starts from, so that scores of routers are spread; gains 1 ± 0.3."""
    rng = np.random.default_rng([seed, 0])

    def at(name: str, *shape: int) -> Data:
        gain = name.endswith("router_scale") or ("bias" not in name and len(shape) == 1)
        is_table = len(shape) == 2 and name.split(".")[0] in ("embed_tokens", "wte", "wpe")
        scale = 0.3 if gain or "bias" in name else 1.0 if is_table else 3 * max(shape[-2:]) ** -0.5
        return Data((scale * rng.normal(size=shape) + gain).astype(np.float32), name)

    return Made(build(CONFIGS[family], at), rng.integers(0, WORDS, 1 << 18), LONGEST)


def texts(rng: np.random.Generator, made: Made, how_many: int) -> list[np.ndarray]:
    """Pieces of a model's tokens, their lengths spread evenly in octaves."""
    lengths = np.exp(rng.uniform(0, np.log(made.longest + 1), how_many)).astype(int)
    starts = rng.integers(0, len(made.tokens) - made.longest, how_many)
    return [made.tokens[start : start + length] for start, length in zip(starts, lengths, strict=True)]


def judge(family: str, result: Result, fresh: Batch) -> Iterator[Judged]:
    """A row for every approximate program."""
    wanted = mixtures_outputs(result.imported.program, fresh)
    for point in result.points:
        if not point.methods or point.stated is None:
            continue
        change = Change.of(mixtures_outputs(point.program, fresh), wanted, fresh.starts)
        routing, worst = point.checks["error"]["routing"], point.stated.sentence or np.inf
        yield Judged(
            family,
            point.name,
            routing["rows"] / routing["of"],
            routing["along"],
            point.stated.error,
            change.relative / point.stated.error,
            worst,
            float(np.mean(change.each > worst)),
            float(change.each.max()) / worst,
        )


def mixtures_outputs(program: Program, batch: Batch) -> np.ndarray:
    """The rows of a program, some texts at a time."""
    return np.concatenate([program.run(piece) for piece in batch.pieces(PIECE)])


# ---- budgets

PLANNED = 0.01  # what a planned peak may be off by
BUDGETS_COLUMNS = (
    "seed",
    "layers",
    "width",
    "heads",
    "kv_heads",
    "norm",
    "act",
    "mask",
    "rows",
    "error_budget",
    "memory_budget",
    "program",
    "planned_peak",
    "measured_peak",
    "stored",
    "stated_error",
    "held_out_error",
    "original",
    "seconds",
)


def measure_budgets() -> None:
    """Compare planned memory and stated errors with measured ones, over random small transformers.

        python benchmarks/stated.py budgets [--models 200] [--seed 0] [--csv OUT]

    For every model an error is drawn between the ends of the front, then a memory between the ends of what keeps
    this error, and the best program within both is found, as `optimize` does. Planned peaks are held against
    tracemalloc's, stated errors against those on held-out rows that nothing was fitted to or chosen by."""
    parser = Parser(measure_budgets)
    parser.add_argument("--models", type=count, default=200)
    parser.add_argument("--seed", type=whole, default=0, help="of the first model")
    parser.add_argument("--sentences", type=count, default=64)
    given = parser.parse_args()
    takes(4 * given.models)
    machine, rows = this_machine(), []
    for seed in range(given.seed, given.seed + given.models):
        with silence_stdout():
            rows.append(tried(seed, given.sentences, machine))
        if not len(rows) % max(1, given.models // 10):
            say(f"{len(rows)} of {given.models} models")
    tabled(given.csv, [BUDGETS_COLUMNS, *rows])
    concluded(given, figures(rows))


def tried(seed, sentences, machine):
    """One model with budgets between the ends of its front: a row of the table."""
    begun, rng = time.perf_counter(), np.random.default_rng(seed)
    config = random_config(rng)
    model = transformer(config, random_weights(config, rng))
    batch = Batch(random_sentences(config, rng, sentences))
    searched = search_exact(Opened(model, Workload.drawn(model, batch, seed), machine, EXACT_LAWS))
    proposed = propose_approximations(searched, 0.5)
    error = rng.uniform(*ends([p.stated_error for p in find_front(proposed, 0.5, None).points]))
    points = find_front(proposed, error, None).points
    imported, fits = searched.programs["imported"], [p.predicted_bytes for p in points if p.stated_error <= error]
    most = max(*fits, imported.stored_bytes + imported.peak_bytes(batch))
    memory = rng.uniform(min(fits), 1.01 * most)  # as exact as a plan is
    points = verify_front(searched, proposed.choices, find_front(proposed, error, memory), {}).points
    for point in points:
        point.measured_bytes = point.program.stored_bytes + peak(point.program, batch, RUNS)
    try:
        best = min(allowed(points, goals(error=error), memory), key=lambda point: point.predicted_s)
    except Infeasible:
        return [seed, *[""] * 8, error, memory, "refused", *[""] * 6, time.perf_counter() - begun]
    fresh = Batch(random_sentences(config, rng, 48))
    found = best.program.run(batch), best.program.run(fresh)
    return [
        seed,
        config["num_hidden_layers"],
        config["hidden_size"],
        config["num_attention_heads"],
        config["num_key_value_heads"],
        config["norm"],
        config["hidden_act"],
        config["mask"],
        batch.rows,
        error,
        memory,
        best.name,
        best.program.peak_bytes(batch),
        peak(best.program, batch),
        best.program.stored_bytes,
        best.stated_error,
        difference(found[1], dense(model, fresh)),
        best.program.steps == imported.steps and not best.methods,
        time.perf_counter() - begun,
    ]


def ends(numbers):
    return min(numbers), max(numbers)


def figures(rows):
    """What the table comes to. A memory that nothing keeps is refused; nothing else can be said of it."""
    kept = [
        dict(zip(BUDGETS_COLUMNS, row, strict=True))
        for row in rows
        if row[BUDGETS_COLUMNS.index("program")] != "refused"
    ]
    off = [abs(row["measured_peak"] / row["planned_peak"] - 1) for row in kept]
    over = sum(row["measured_peak"] + row["stored"] > row["memory_budget"] for row in kept)
    times = [row["stated_error"] / row["held_out_error"] for row in kept]
    unless = dict(why="every model was refused")
    return [
        Figure("models", len(rows)),
        Figure("refused", len(rows) - len(kept)),
        Figure("planned peak off by, at most", 100 * max(off) if off else None, "%", most=100 * PLANNED, **unless),
        Figure("over the memory budget", over if kept else None, most=0, **unless),
        Figure("held-out error above the stated one", sum(each < 1 for each in times) if kept else None, **unless),
        Figure("stated / held-out error, median", median(times) if times else None, **unless),
        Figure("approximate", sum(" x" in row["program"] for row in kept)),
        Figure("the original", sum(row["original"] for row in kept)),
        Figure("seconds a model, median", median(row["seconds"] for row in kept) if kept else None, "s", **unless),
    ]


if __name__ == "__main__":
    command.run_parts(measure_stated, measure_mixtures, measure_budgets)
