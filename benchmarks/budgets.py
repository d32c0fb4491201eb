"""Budgets of memory and error over random small transformers: what was planned and stated against what is measured.

    python benchmarks/budgets.py [--models 200] [--seed 0] [--csv OUT]

For every model an error is drawn between the ends of the front, then a memory between the ends of what keeps this error, and
the best program within both is found, as `optimize` does. Planned peaks are held against tracemalloc's, stated errors against those
on held-out rows that nothing was fitted to or chosen by."""
import argparse
import csv
import os
import sys
import time
from pathlib import Path
from statistics import median

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_THREAD_TIMEOUT": "4"}
sys.path[0] = str(Path(__file__).parents[1])                # not this folder: its formats.py is not the package

import numpy as np  # noqa: E402

from formats.machine import this_machine  # noqa: E402
from opmatrix.measure import peak  # noqa: E402
from opmatrix.models.transformer import random_config, random_sentences, random_weights, transformer  # noqa: E402
from opmatrix.oracles import dense  # noqa: E402
from opmatrix.patterns import Batch  # noqa: E402
from rewrites.approximate import difference  # noqa: E402
from rewrites.extraction import Infeasible  # noqa: E402
from rewrites.laws import EXACT_LAWS  # noqa: E402
from rewrites.report import Report, hushed, table  # noqa: E402
from rewrites.run import RUNS, Run  # noqa: E402
from rewrites.workload import Workload  # noqa: E402

COLUMNS = ("seed", "layers", "width", "heads", "kv_heads", "norm", "act", "mask", "rows", "error_budget", "memory_budget", "program",
           "planned_peak", "measured_peak", "stored", "stated_error", "held_out_error", "original", "seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first model")
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--csv", type=Path, help="write the table there, too")
    given = parser.parse_args()
    machine, rows = this_machine(), []
    for seed in range(given.seed, given.seed + given.models):
        with hushed():
            rows.append(tried(seed, given.sentences, machine))
        print(f"\r{len(rows)} of {given.models} ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(table(summary(rows), ["", ""]))
    if given.csv:
        with given.csv.open("w", newline="") as file: csv.writer(file).writerows([COLUMNS, *rows])


def tried(seed, sentences, machine):
    """One model with budgets between the ends of its front: a row of the table."""
    begun, rng = time.perf_counter(), np.random.default_rng(seed)
    config = random_config(rng)
    model = transformer(config, random_weights(config, rng))
    batch = Batch(random_sentences(config, rng, sentences))
    run = Run(model, Workload.drawn(model, batch, seed), machine, EXACT_LAWS, Report(quiet=True))
    run.explore()
    run.approximate(0.5, lambda *_: None)
    run.front(0.5, None)
    error = rng.uniform(*ends([p.stated_error for p in run.points]))
    run.front(error, None)
    imported, fits = run.programs["imported"], [p.predicted_bytes for p in run.points if p.stated_error <= error]
    most = max(*fits, imported.stored_bytes + imported.peak_bytes(batch))
    memory = rng.uniform(min(fits), 1.01 * most)            # as exact as a plan is
    run.front(error, memory)
    run.verify()
    for point in run.points: point.measured_bytes = point.program.stored_bytes + peak(point.program, batch, RUNS)
    try: best = min(run.within(error, memory), key=lambda point: point.predicted_s)
    except Infeasible: return [seed, *[""] * 8, error, memory, "refused", *[""] * 6, time.perf_counter() - begun]
    fresh = Batch(random_sentences(config, rng, 48))
    found = best.program.run(batch), best.program.run(fresh)
    return [seed, config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"],
            config["norm"], config["hidden_act"], config["mask"], batch.rows, error, memory, best.name,
            best.program.peak_bytes(batch), peak(best.program, batch), best.program.stored_bytes, best.stated_error,
            difference(found[1], dense(model, fresh)), best.program.steps == run.programs["imported"].steps and not best.methods,
            time.perf_counter() - begun]


def ends(numbers): return min(numbers), max(numbers)


def summary(rows):
    """What the table comes to."""
    refused = [row for row in rows if row[COLUMNS.index("program")] == "refused"]
    columns = {name: [row[i] for row in rows if row not in refused] for i, name in enumerate(COLUMNS)}
    off = [abs(measured / planned - 1) for planned, measured in zip(columns["planned_peak"], columns["measured_peak"], strict=True)]
    over = sum(p + s > m for p, s, m in zip(columns["measured_peak"], columns["stored"], columns["memory_budget"], strict=True))
    times = [stated / held for stated, held in zip(columns["stated_error"], columns["held_out_error"], strict=True)]
    return [["models", str(len(rows))], ["refused", str(len(refused))], ["planned peak off by, at most", f"{100 * max(off):.2f} %"],
            ["within 1 %", f"{sum(each <= 0.01 for each in off)}"], ["over the memory budget", str(over)],
            ["held-out error above the stated one", str(sum(each < 1 for each in times))],
            ["stated / held-out error, median", f"{median(times):.2f}"],
            ["approximate", str(sum(" x" in name for name in columns["program"]))],
            ["the original", str(sum(columns["original"]))], ["seconds a model, median", f"{median(columns['seconds']):.1f}"]]


if __name__ == "__main__": main()
