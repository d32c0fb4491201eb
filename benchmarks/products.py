"""Products on one core: Gflop/s of float32, bf16, int8, int4, Q4_1 and Q8_0, beside a generator of kernels that the
project does not hold, nor one for blocks of files.

    python benchmarks/products.py [--trial FILE] [--rows 1,4,16,61,128] [--shapes 384x1536,1536x384,768x3072] [--types
    ...]
        [--rounds 15] [--csv OUT]

Calls are those of a recorded program: a kernel and its arguments, without Python's part of a step, on rows that begin
lines of memory; all add a bias. Ours round rows of x on the way, the trial is given rounded ones. All take turns;
figures are medians, `share` is ours over the trial's. FILE is a module, which is run, with `make_gemm(kind, epilogue)`,
`pack`, `bf16` and `keep`. One processor is used, the last that is allowed."""

import argparse
import os
import time
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import median
from types import SimpleNamespace

from lib import command
from lib.command import Figure, InputError, Parser, concluded, count, listed, named, shape, tabled, takes

import numpy as np

from formats import FORMATS
from formats.core.arrays import aligned, room
from formats.core.epilogue import Epilogue
from formats.host.threads import limit
from formats.kernels.engine.launch import RECORDING, address

TYPES = {"float32": "packed", "bf16": "bf16", "int8": "int8", "int4": "int4", "q4_1": "q4_1", "q8_0": "q8_0"}
COLUMNS = "type", "inputs", "outputs", "rows", "microseconds", "Gflop/s", "trial Gflop/s", "share"
F4 = np.dtype(np.float32)
WIDTH = 48  # columns of the trial's panels
MOST = 1 << 14  # rows, inputs, outputs
LEAST = 2e-4  # seconds of a timing, which repeats shorter calls


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--trial", type=Path)
    parser.add_argument("--rows", type=listed, default=["1", "4", "16", "61", "128"])
    parser.add_argument("--shapes", type=listed, default=["384x1536", "1536x384", "768x3072"])
    parser.add_argument("--types", type=listed, default=[*TYPES])
    parser.add_argument("--rounds", type=count, default=15)
    given = parser.parse_args()
    sizes, shapes, trial = checked(given)
    takes(4 + 0.004 * given.rounds * len(sizes) * len(shapes) * len(given.types))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    table: list[tuple] = []
    print(" ".join(f"{name:>13}" for name in COLUMNS))
    with limit(1):
        for kind in given.types:
            for each in shapes:
                rows = raced(kind, each, sizes, trial, given.rounds)
                for row in rows:
                    print(" ".join(f"{cell:>13.4g}" if isinstance(cell, float) else f"{cell!s:>13}" for cell in row))
                table += rows
    tabled(given.csv, [COLUMNS, *table])
    concluded(given, figures(given.types, table))


def figures(types, table):
    """The highest rate of each number type, and its least share of the trial; int4 is held against no int4."""
    for kind in types:
        mine = [row for row in table if row[0] == kind]
        yield Figure(f"{kind}: highest rate", max(row[5] for row in mine), "Gflop/s")
        yield Figure(
            f"{kind}: least share of the trial",
            min((row[7] for row in mine if row[7]), default=None),
            least=0.9 if kind in ("bf16", "int8") else None,
            why="there is no --trial",
        )


def checked(given):
    """(rows, (inputs, outputs), the trial's module or None). Raises InputError."""
    named("types", given.types, TYPES)
    try:
        sizes, shapes = [int(count(word)) for word in given.rows], [shape(word) for word in given.shapes]
    except argparse.ArgumentTypeError as error:
        raise InputError(f"--rows, --shapes: {error}") from None
    if max(*sizes, *map(max, shapes)) > MOST:
        raise InputError(f"--rows, --shapes: {MOST} at most")
    for n, p in shapes if given.trial else ():
        if n % 32 or p % WIDTH:
            raise InputError(f"--shapes {n}x{p}: the trial takes inputs by 32 and outputs by {WIDTH}")
    return sizes, shapes, imported(given.trial) if given.trial else None


def imported(file):
    """The module in a file. Raises InputError where there is none with what is needed."""
    spec = spec_from_file_location("trial", file)
    if not file.is_file() or spec is None:
        raise InputError(f"--trial {file}: it is to be a file of Python")
    spec.loader.exec_module(module := module_from_spec(spec))
    if lacking := [each for each in ("make_gemm", "pack", "bf16", "keep") if not hasattr(module, each)]:
        raise InputError(f"--trial {file}: it has no {', '.join(lacking)}")
    return module


def raced(kind, shape, sizes, trial, rounds):
    """The rows of the table for one weight."""
    rng, (n, p) = np.random.default_rng(0), shape
    w, bias = rng.standard_normal((n, p), np.float32) / np.float32(n**0.5), rng.standard_normal(p, np.float32)
    form = FORMATS[TYPES[kind]]
    weight, peer = form.pack(form.fit(w)) if hasattr(form, "fit") else form.pack(w), theirs(kind, trial, w, bias)
    runs, alive = {}, []
    for rows in sizes:
        x, out = aligned(rng.standard_normal((rows, n), np.float32), F4, "x"), room((rows, p), F4)
        weight.matmul(x, out, Epilogue(bias=bias))
        want, scale = out.copy(), abs(out).max()
        runs[rows, "ours"] = ours(weight, x, out, Epilogue(bias=bias), alive)
        if peer is not None:
            runs[rows, "trial"] = peer(x, found := trial.keep(np.zeros((rows, p), np.float32)))
        for (_, who), run in [item for item in runs.items() if item[0][0] == rows]:
            run()
            if who == "trial" and kind != "int4":
                assert abs(found - want).max() < 2e-3 * scale, (kind, shape, rows)
    took = timed(runs, rounds)
    return [told(kind, shape, rows, took) for rows in sizes]


def told(kind, shape, rows, took):
    """A row of the table."""
    seconds, other = took[rows, "ours"], took.get((rows, "trial"))
    rate = 2e-9 * rows * shape[0] * shape[1]
    beside = (rate / other, other / seconds) if other else ("", "")
    return kind, *shape, rows, 1e6 * seconds, rate / seconds, *beside


def ours(weight, x, out, epilogue, alive):
    """A call of the kernels that a product launches, with the records that it makes."""
    return recorded(lambda: weight.matmul(x, out, epilogue), (x, out, epilogue), alive)


def recorded(launch, given, alive):
    """A call of the kernels that a function launches, on one thread, with the records that it makes."""
    kept = SimpleNamespace(stages=[], records=[], temporaries=[], rooms=[], addressed=[])

    def reserve(size):
        kept.rooms.append(np.empty(size + 64, np.uint8))
        return address(kept.rooms[-1]) + -address(kept.rooms[-1]) % 64, 0

    kept.reserve = reserve
    token = RECORDING.set(kept)
    try:
        launch()
    finally:
        RECORDING.reset(token)
    alive.append((kept, given))
    calls = [(kernel.call, item, address(record)) for kernel, record, items in kept.stages for item in range(items)]

    def run():
        for call, item, record in calls:
            call(item, 0, record)

    return run


def theirs(kind, trial, w, bias):
    """A function of (x, out): a call of the trial's kernel. None where there is no trial; int4 is measured by its
    int8."""
    if trial is None or kind in ("q4_1", "q8_0"):
        return None
    at, (n, p), blocks = address, w.shape, w.shape[1] // WIDTH
    panels = {"float32": lambda: trial.pack(w, WIDTH), "bf16": lambda: layered(trial.bf16(w), 2, trial)}
    if kind in panels:
        gemm, packed, bias = (
            generated(trial, "f32" if kind == "float32" else kind, "bias"),
            panels[kind](),
            trial.keep(bias),
        )
        size, words = (4, n) if kind == "float32" else (2, n // 2)

        def prepared(x, out):
            given = trial.keep(x if kind == "float32" else trial.bf16(x))
            return lambda: gemm(
                at(given), size * n, at(packed), words, at(out), 4 * p, at(bias), 0, 0, 0, len(x), 0, blocks
            )

        return prepared
    gemm, scale = generated(trial, "int8", "none"), abs(w).max(0) / 127
    whole = np.rint(w / scale).astype(np.int8)
    packed, start = layered(whole, 4, trial), (-128 * whole.astype(np.int32).sum(0)).astype(np.int32).view(np.float32)
    ends = trial.keep(np.stack([bias, scale, start]).reshape(3, -1, WIDTH).transpose(1, 0, 2))

    def rounded(x, out):
        factors = trial.keep(abs(x).max(1) / 127)
        given = trial.keep((np.rint(x / factors[:, None]) + 128).astype(np.uint8))
        return lambda: gemm(
            at(given), n, at(packed), n // 4, at(out), 4 * p, at(ends), at(factors), 4, 0, len(x), 0, blocks
        )

    return rounded


@cache
def generated(trial, kind, epilogue):
    """The trial's kernel, compiled once."""
    return trial.make_gemm(kind, epilogue)


def layered(w, words, trial):
    """Panels of the trial whose words hold so many numbers of a column."""
    return trial.keep(w.reshape(len(w) // words, words, -1, WIDTH).transpose(2, 0, 3, 1))


def timed(runs, rounds):
    """The median seconds of each call, in turns."""
    return {name: median(each) for name, each in rounds_of(runs, rounds).items()}


def rounds_of(runs, rounds):
    """The seconds of each call, a number a round: all take turns."""
    counts, times = {}, {name: [] for name in runs}
    for name, run in runs.items():
        begun = time.perf_counter()
        run()
        counts[name] = max(1, round(LEAST / (time.perf_counter() - begun)))
    for _ in range(rounds):
        for name, run in runs.items():
            begun = time.perf_counter()
            for _ in range(counts[name]):
                run()
            times[name].append((time.perf_counter() - begun) / counts[name])
    return times


if __name__ == "__main__":
    command.run(main)
