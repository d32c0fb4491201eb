"""Budgets of memory and error over random small transformers: what was planned and stated against what is measured.

    python benchmarks/budgets.py [--models 200] [--seed 0] [--csv OUT]

For every model an error is drawn between the ends of the front, then a memory between the ends of what keeps this
error, and the best program within both is found, as `optimize` does. Planned peaks are held against tracemalloc's,
stated errors against those on held-out rows that nothing was fitted to or chosen by."""

import time
from statistics import median

from lib import command
from lib.command import Figure, Parser, concluded, count, say, tabled, takes, whole

import numpy as np
from random_models import random_config, random_sentences, random_weights

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.models.transformer import transformer
from opmatrix.runtime.measure import peak
from opmatrix.runtime.pricing import this_machine
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS
from rewrites.metrics.goals import goals
from rewrites.opened import Opened, search_exact
from rewrites.report.choice import allowed
from rewrites.run import RUNS, find_front, propose_approximations, verify_front
from rewrites.verify.differences import difference
from rewrites.workload.phases import silence_stdout
from rewrites.workload.workload import Workload

PLANNED = 0.01  # what a planned peak may be off by
COLUMNS = (
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


def main() -> None:
    parser = Parser(__doc__)
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
    tabled(given.csv, [COLUMNS, *rows])
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
    kept = [dict(zip(COLUMNS, row, strict=True)) for row in rows if row[COLUMNS.index("program")] != "refused"]
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
    command.run(main)
