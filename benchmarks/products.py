"""Products x @ W: on one core by number type, structures of int8, and every format beside other libraries."""

import argparse
import os
import time
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from itertools import product
from math import isinf
from pathlib import Path
from statistics import median
from types import SimpleNamespace

from lib import command
from lib.bars import Table, crossovers, plot, sparse_bars
from lib.command import (
    Figure,
    InputError,
    Parser,
    cell,
    concluded,
    count,
    listed,
    named,
    number,
    positive,
    say,
    shape,
    share,
    shown,
    spread,
    tabled,
    tablefile,
    takes,
)
from lib.matrices import STRUCTURES
from lib.race import Rider, race

import numpy as np

from formats import FORMATS
from formats.core.arrays import aligned, room
from formats.core.epilogue import Epilogue
from formats.host import blas
from formats.host.host import MEMORY_CACHES, caches
from formats.host.threads import limit
from formats.kernels.engine.launch import RECORDING, address
from formats.machine import peaks
from opmatrix.display.tables import table as tabulated

# ---- products

TYPES = {"float32": "packed", "bf16": "bf16", "int8": "int8", "int4": "int4", "q4_1": "q4_1", "q8_0": "q8_0"}
PRODUCTS_COLUMNS = "type", "inputs", "outputs", "rows", "microseconds", "Gflop/s", "trial Gflop/s", "share"
F4 = np.dtype(np.float32)
WIDTH = 48  # columns of the trial's panels
MOST = 1 << 14  # rows, inputs, outputs
LEAST = 2e-4  # seconds of a timing, which repeats shorter calls


def measure_products() -> None:
    """Measure Gflop/s of products on one core: float32, bf16, int8, int4, Q4_1 and Q8_0, beside a generator of kernels
    that the project does not hold, nor one for blocks of files.

        python benchmarks/products.py [--trial FILE] [--rows 1,4,16,61,128] [--shapes 384x1536,1536x384,768x3072]
                [--types ...] [--rounds 15] [--csv OUT]

    Calls are those of a recorded program: a kernel and its arguments, without Python's part of a step, on rows that
    begin lines of memory; all add a bias. Ours round rows of x on the way, the trial is given rounded ones. All
    take turns; figures are medians, `share` is ours over the trial's. FILE is a module, which is run, with
    `make_gemm(kind, epilogue)`, `pack`, `bf16` and `keep`. One processor is used, the last that is allowed."""
    parser = Parser(measure_products)
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
    print(" ".join(f"{name:>13}" for name in PRODUCTS_COLUMNS))
    with limit(1):
        for kind in given.types:
            for each in shapes:
                rows = products_raced(kind, each, sizes, trial, given.rounds)
                for row in rows:
                    print(" ".join(f"{cell:>13.4g}" if isinstance(cell, float) else f"{cell!s:>13}" for cell in row))
                table += rows
    tabled(given.csv, [PRODUCTS_COLUMNS, *table])
    concluded(given, products_figures(given.types, table))


def products_figures(types, table):
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


def products_raced(kind, shape, sizes, trial, rounds):
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
    kept = SimpleNamespace(stages=[], records=[], temporaries=[], rooms=[], addressed={})

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


# ---- structured

DENSE = "int8"
STRUCTURED_COLUMNS = "form", "inputs", "outputs", "rows", "microseconds", "share", "spread", "megabytes"
STRUCTURED_BARS = {"blocks 0.5": 0.6, "blocks 0.25": 0.35, "low rank": 0.65, "2:4": 1 / 1.4}  # of dense int8's time
STRUCTURED_JUDGED, STEP = 128, 1024  # rows of all but 2:4; columns that a large matrix repeats


def measure_structured() -> None:
    """Measure structures of int8 beside dense int8: the seconds of a product, as a share.

        python benchmarks/products.py structured [--shapes 384x1536,768x3072] [--rows 1,16,128] [--caches 2]
                [--rounds 25] [--csv OUT]

    Calls are those of a recorded program (see products.py) on one processor, the last that is allowed; candidates
    take turns, shares are medians of the shares within a round. N of M is judged at one row, on a square matrix of
    so many last caches."""
    parser = Parser(measure_structured)
    parser.add_argument("--shapes", type=listed, default=["384x1536", "768x3072"])
    parser.add_argument("--rows", type=listed, default=["1", "16", "128"])
    parser.add_argument("--caches", type=number(float, 0, 100, "from 0 to 100"), default=2.0)
    parser.add_argument("--rounds", type=count, default=25)
    given = parser.parse_args()
    shapes, rows = [shape(word) for word in given.shapes], [int(count(word)) for word in given.rows]
    takes(10 + 0.02 * given.rounds * len(shapes) * len(rows))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    table = []
    with limit(1):
        for n, p in shapes:
            table += structured_raced(
                stored(np.random.default_rng(0).standard_normal((n, p), np.float32)), rows, given.rounds
            )
        if given.caches:
            table += structured_raced(large(given.caches), [1], given.rounds)
    for line in (STRUCTURED_COLUMNS, *table):
        print(" ".join(cell(each, 12) for each in line))
    tabled(given.csv, [STRUCTURED_COLUMNS, *table])
    concluded(given, structured_figures(table))


def stored(W):
    """The forms of a weight; low rank has half the products of dense."""
    (n, p), forms = W.shape, FORMATS
    rank = max(8, n * p // (2 * (n + p)) // 8 * 8)
    return {
        DENSE: forms["int8"].approximate(W),
        "blocks 0.5": forms["blockint8"].approximate(W, density=0.5),
        "blocks 0.25": forms["blockint8"].approximate(W, density=0.25),
        "2:4": forms["nmint8"].approximate(W),
        "low rank": forms["lowrankint8"].pack_factors(W[:, :rank], W[:rank]),
    }


def large(times):
    """Dense and 2:4, dense of so many last caches."""
    side = -(-int((times * caches()[-1]) ** 0.5) // STEP) * STEP
    W = np.tile(np.random.default_rng(0).standard_normal((side, STEP), np.float32), (1, side // STEP))
    return {DENSE: FORMATS["int8"].approximate(W), "2:4": FORMATS["nmint8"].approximate(W)}


def structured_raced(forms, sizes, rounds):
    """The rows of the table for one weight."""
    alive, found, (n, p) = [], [], forms[DENSE].shape
    rng = np.random.default_rng(1)
    for rows in sizes:
        x = aligned(rng.standard_normal((rows, n), np.float32), F4, "x")
        bias = Epilogue(bias=rng.standard_normal(p, np.float32))
        taken = rounds_of(
            {name: ours(each, x, room((rows, p), F4), bias, alive) for name, each in forms.items()}, rounds
        )
        for name, each in forms.items():
            shares = [mine / dense for mine, dense in zip(taken[name], taken[DENSE], strict=True)]
            found.append(
                (name, n, p, rows, 1e6 * median(taken[name]), median(shares), spread(shares) or 0.0, each.nbytes / 1e6)
            )
    return found


def structured_figures(table):
    """Shares, those of the declared rows with their bars."""
    widest = max((row[1] for row in table if row[0] == "2:4" and row[3] == 1), default=0)
    for form, n, p, rows, _, part, apart, _ in table:
        if form == DENSE:
            continue
        judged = (rows, n) == (1, widest) if form == "2:4" else rows == STRUCTURED_JUDGED
        if judged:
            yield Figure(f"{form}: {n}x{p}, {rows} rows", part, "x int8", apart, most=STRUCTURED_BARS[form])


# ---- crossovers

PROVIDERS = ("ours", "numpy", "scipy", "mkl", "torch")
PEERS = ("scipy", "mkl", "torch")
CROSSOVERS_COLUMNS = (
    "shape",
    "rows",
    "structure",
    "density",
    "format",
    "provider",
    "threads",
    "median_s",
    "min_s",
    "bytes",
    "error",
    "spread",
)
GRID = {
    "shapes": (["384x1536"], ["384x1536", "1024x1024"]),
    "structures": (["random"], [*STRUCTURES]),
    "densities": ([0.1, 0.3, 0.38, 0.5], [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7]),
    "rows": ([1, 128], [1, 16, 128, 512]),
    "decode": (0.0, float(MEMORY_CACHES)),
}  # quick, and all
CROSSOVERS_BARS = [
    (shape, "random", d, (16, 128, 512)) for shape in ("384x1536", "1536x384") for d in (0.1, 0.3, 0.38, 0.45, 0.55)
]
CROSSOVERS_BARS += [(shape, "blocks", d, (16, 128, 512)) for shape in ("384x1536", "1536x384") for d in (0.1, 0.5)]
CROSSOVERS_BARS += [("4096x4096", "blocks", 0.5, (128,))]
CROSSOVERS_JUDGED = ("dense", "packed", "bf16", "csr", "block")
DECODED, SHARE = ("csr", "block", "int8", "int4"), 0.7


def measure_crossovers():
    """Time x @ W by shape, structure, density, rows, format and provider, and say where formats cross.

        python benchmarks/products.py crossovers [--quick | --bars] [--shapes 384x1536 …] [--structures random …]
                [--densities 0.1 …] [--rows 1 16 …] [--formats csr …] [--threads 1 2] [--rounds 9] [--csv OUT]
                [--plot OUT.png]

    Providers: ours; numpy with the fastest kernels that its BLAS has here; scipy.sparse; MKL by sparse-dot-mkl;
    torch. Each runs in a process of its own and they take turns (benchmarks/lib/race.py); times are medians over
    rounds, ratios medians of the ratios within a round. Then: the density up to which each format beats dense
    float32, and dense bf16; and the bars. The whole grid takes about half an hour, --bars four minutes. A figure
    against peers counts only where torch, scipy and MKL are in the table."""
    given = arguments()
    work = tasks(given)
    takes(expected(work, given))
    riders, told = started(given.threads, given.providers)
    print("\n".join(told))
    rows = []
    try:
        for done, ((shape, structure, density, many), only, counts) in enumerate(work, 1):
            case = dict(shape=[*map(int, shape.split("x"))], structure=structure, density=density, only=only)
            for threads in counts:
                field = [rider for rider in riders if rider.threads == threads]
                for height, found in race(field, case, many, given.rounds, given.seconds):
                    rows += (new := [*lines(shape, height, structure, density, field, found)])
                    show(new)
            say(f"{done} of {len(work)} matrices")
        found = Table(rows)
        figures = [*report(found, given.threads), *decoded(riders, given)]
    finally:
        for rider in riders:
            rider.close()
    tabled(given.csv, [CROSSOVERS_COLUMNS, *([row[name] for name in CROSSOVERS_COLUMNS] for row in rows)])
    if given.plot:
        plot(found, given.plot)
    concluded(given, figures)


def expected(work, given):
    """Seconds, about: of every race, and of the one-row products."""
    kinds = len(given.formats) or (len(CROSSOVERS_JUDGED) if given.bars else 2 * len(FORMATS))
    races = sum(len(many) * len(counts) for (*_, many), _, counts in work)
    decoding = 30 * len(given.threads) if given.decode else 0
    return 12 + races * (kinds + 8) * given.rounds * 1.5 * given.seconds + decoding


def arguments():
    parser = Parser(measure_crossovers)
    parser.add_argument("--shapes", type=sized, nargs="+")
    parser.add_argument("--structures", nargs="+", choices=[*STRUCTURES])
    parser.add_argument("--densities", type=share, nargs="+")
    parser.add_argument("--rows", type=command.count, nargs="+")
    parser.add_argument(
        "--formats", nargs="+", default=[], help="ours, by the beginning of their names; all by default"
    )
    parser.add_argument("--providers", nargs="+", choices=PROVIDERS, default=PROVIDERS)
    parser.add_argument("--threads", type=command.count, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=command.count, default=9)
    parser.add_argument("--seconds", type=positive, default=0.004, help="of one candidate's turn")
    parser.add_argument("--plot", type=Path, help="draw the curves there (PNG; needs matplotlib)")
    parser.add_argument("--bars", action="store_true", help="only what the bars need")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="where nothing else is given: a shape, a structure, few densities and rows, no one-row products",
    )
    parser.add_argument(
        "--decode",
        type=number(float, 0, 100, "from 0 to 100"),
        metavar="N",
        help=f"one-row products on matrices of N last caches, by itself {MEMORY_CACHES}; 0: leave out",
    )
    given = parser.parse_args()
    named("formats", given.formats, FORMATS)
    tablefile("plot", given.plot)
    given.whole = not (given.shapes or given.structures or given.quick)
    for option, (few, all_) in GRID.items():
        if getattr(given, option) is None:
            setattr(given, option, few if given.quick else all_)
    return given


def sized(text):
    """The type of an option: inputs and outputs of a matrix, as they were given."""
    return "x".join(map(str, command.shape(text)))


def tasks(given):
    """((shape, structure, density, rows), formats, threads): the grid, on the first number of threads, then what the
    bars still need, on all."""
    if given.bars:
        return [(task, CROSSOVERS_JUDGED, given.threads) for task in CROSSOVERS_BARS]
    grid = [
        (shape, structure, d, tuple(given.rows))
        for shape, structure, d in product(given.shapes, given.structures, given.densities)
    ]
    bars = CROSSOVERS_BARS if given.whole else []
    return [(task, tuple(given.formats), given.threads[:1] if bars else given.threads) for task in grid] + [
        (task, CROSSOVERS_JUDGED, given.threads if task[:3] not in {each[:3] for each in grid} else given.threads[1:])
        for task in bars
    ]


def started(threads, providers):
    """A process for each provider that is here and each number of threads, and lines that say which, and which are
    not."""
    setting = blas.fastest()
    said = ", ".join(f"{core or 'its own choice'} {rate / 1e9:.0f}" for core, rate in setting.rates.items())
    told, riders = [f"numpy's BLAS: fastest with {setting.core or 'its own choice'} (Gflop/s: {said})"], []
    for provider, many in product(providers, threads):
        rider = Rider(provider, many, setting.environment if provider == "numpy" else {})
        try:
            version = rider.ask("versions")
        except RuntimeError as error:
            if many == threads[0]:
                told.append(f"{provider}: absent ({error})")
            continue
        riders.append(rider)
        if many == threads[0]:
            told.append(f"{provider}: {version}")
    if missing := [name for name in PEERS if name not in {rider.provider for rider in riders}]:
        told.append(
            f"WITHOUT {', '.join(missing)}: a figure against peers counts only with torch, scipy and MKL in the table"
        )
    return riders, told


def lines(shape, count, structure, density, riders, found):
    """The rows of the table for one race."""
    for (i, _), ((form, size, error), medians, minima) in found.items():
        yield dict(
            shape=shape,
            rows=count,
            structure=structure,
            density=density,
            format=form,
            provider=riders[i].provider,
            threads=riders[i].threads,
            median_s=median(medians),
            min_s=min(minima),
            bytes=size,
            error=error,
            rounds=medians,
            spread=spread(medians),
        )


def show(rows):
    """One race, the fastest first."""
    first, here = rows[0], Table(rows)
    print(
        f"\n{first['shape']} {first['structure']} {first['density']:g}, {first['rows']} rows, {first['threads']} "
        "thread(s)"
    )

    def line(row):
        ratio = here.ratio(row)
        return [
            f"{row['provider']} {row['format']}",
            f"{1e6 * row['median_s']:.1f}",
            shown(row["spread"]),
            f"{1e6 * row['min_s']:.1f}",
            "" if ratio is None else f"{ratio:.2f}",
            f"{row['bytes']:,}",
            f"{row['error']:.1g}",
        ]

    ordered = sorted(rows, key=lambda row: row["median_s"])
    print(tabulated([*map(line, ordered)], ["", "µs", "spread", "least", "x dense", "bytes", "error"]), flush=True)


def report(found, threads):
    """Prints crossovers, and bars by number of threads. Returns the figures of the first of these numbers."""
    if crossed := [*crossovers(found, threads[0])]:
        print("\ndensity up to which a format wins, one thread")
        print(tabulated(crossed, ["matrix", "rows", "format", "provider", "over float32", "over bf16"]))
    densest, first = max(row["density"] for row in found.rows), []
    for many in threads:
        if not (judged := [*sparse_bars(found, many)]):
            continue
        wide = typical(found, many)
        figures = [
            Figure(
                what,
                densest if value is not None and isinf(value) else value,
                spread=wide,
                least=bar,
                why="no such row",
            )
            for what, bar, value, *_ in judged
        ]
        first = first or figures
        print(f"\nbars on {many} thread(s)" + ("" if many == 1 else ", beside"))
        lines = [
            [what, f"{bar:g}", said, figure.verdict, beside]
            for (what, bar, _, said, beside), figure in zip(judged, figures, strict=True)
        ]
        print(tabulated(lines, ["", "bar", "here", "", "where"]))
    return first or [Figure("races", len(found.rows), spread=typical(found, threads[0]))]


def typical(found, threads):
    """The median spread of the rows of so many threads; None where too few rounds say any."""
    wide = [row["spread"] for row in found.where(threads=threads) if row["spread"] is not None]
    return median(wide) if wide else None


def decoded(riders, given):
    """One row times matrices that no cache holds, as a share of the bandwidth that reading them has: figures."""
    if not given.decode:
        return
    last = caches()[-1]
    size = int(min(given.decode * last, peaks.free_memory() // 6))
    small = (
        ""
        if size >= 2 * last
        else f"{peaks.format_bytes(size)} are less than twice the last cache of {peaks.format_bytes(last)}"
    )
    print(f"\none row, packed bytes {peaks.format_bytes(size)}, last cache {peaks.format_bytes(last)}")
    table = []
    for rider in (rider for rider in riders if rider.provider == "ours"):
        for name in DECODED:
            stored, speed, reading, shares = rider.ask("decode", name=name, size=size)
            figure = Figure(
                f"{name}, one row: share of the bandwidth",
                None if small else median(shares),
                spread=spread(shares),
                least=SHARE,
                ceiling=1,
                why=small,
            )
            table.append(
                [
                    name,
                    str(rider.threads),
                    f"{stored / 1e6:.0f} MB",
                    f"{speed / 1e9:.1f} of {reading / 1e9:.1f} GB/s",
                    f"{median(shares):.2f}",
                    figure.verdict,
                ]
            )
            if rider.threads == given.threads[0]:
                yield figure
    print(tabulated(table, ["format", "threads", "stored", "reached", "share", f"bar {SHARE:g}"]))


if __name__ == "__main__":
    command.run_parts(measure_products, measure_structured, measure_crossovers)
