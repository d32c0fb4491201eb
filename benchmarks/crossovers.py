"""How long x @ W takes: shape x structure x density x rows x format x provider, and what that says.

    python benchmarks/crossovers.py [--quick | --bars] [--shapes 384x1536 …] [--structures random …] [--densities 0.1 …]
                                 [--rows 1 16 …] [--formats csr …] [--threads 1 2] [--rounds 9] [--csv OUT] [--plot
                                 OUT.png]

Providers: ours; numpy with the fastest kernels that its BLAS has here; scipy.sparse; MKL by sparse-dot-mkl; torch. Each
runs in a process of its own and they take turns (benchmarks/lib/race.py); times are medians over rounds, ratios medians
of the ratios within a round. Then: the density up to which each format beats dense float32, and dense bf16; and the
bars. The whole grid takes about half an hour, --bars four minutes. A figure against peers counts only where torch,
scipy and MKL are in the table."""

from itertools import product
from math import isinf
from pathlib import Path
from statistics import median

from lib import command
from lib.bars import Table, crossovers, plot, sparse_bars
from lib.command import (
    Figure,
    Parser,
    concluded,
    named,
    number,
    positive,
    say,
    share,
    shown,
    spread,
    tabled,
    tablefile,
    takes,
)
from lib.matrices import STRUCTURES
from lib.race import Rider, race

from formats import FORMATS
from formats.host import blas
from formats.host.host import MEMORY_CACHES, caches
from formats.machine import peaks
from opmatrix.display.tables import table as aligned

PROVIDERS = ("ours", "numpy", "scipy", "mkl", "torch")
PEERS = ("scipy", "mkl", "torch")
COLUMNS = (
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
BARS = [
    (shape, "random", d, (16, 128, 512)) for shape in ("384x1536", "1536x384") for d in (0.1, 0.3, 0.38, 0.45, 0.55)
]
BARS += [(shape, "blocks", d, (16, 128, 512)) for shape in ("384x1536", "1536x384") for d in (0.1, 0.5)]
BARS += [("4096x4096", "blocks", 0.5, (128,))]
JUDGED = ("dense", "packed", "bf16", "csr", "block")
DECODED, SHARE = ("csr", "block", "int8", "int4"), 0.7


def main():
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
                for count, found in race(field, case, many, given.rounds, given.seconds):
                    rows += (new := [*lines(shape, count, structure, density, field, found)])
                    show(new)
            say(f"{done} of {len(work)} matrices")
        found = Table(rows)
        figures = [*report(found, given.threads), *decoded(riders, given)]
    finally:
        for rider in riders:
            rider.close()
    tabled(given.csv, [COLUMNS, *([row[name] for name in COLUMNS] for row in rows)])
    if given.plot:
        plot(found, given.plot)
    concluded(given, figures)


def expected(work, given):
    """Seconds, about: of every race, and of the one-row products."""
    kinds = len(given.formats) or (len(JUDGED) if given.bars else 2 * len(FORMATS))
    races = sum(len(many) * len(counts) for (*_, many), _, counts in work)
    decoding = 30 * len(given.threads) if given.decode else 0
    return 12 + races * (kinds + 8) * given.rounds * 1.5 * given.seconds + decoding


def arguments():
    parser = Parser(__doc__)
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
        return [(task, JUDGED, given.threads) for task in BARS]
    grid = [
        (shape, structure, d, tuple(given.rows))
        for shape, structure, d in product(given.shapes, given.structures, given.densities)
    ]
    bars = BARS if given.whole else []
    return [(task, tuple(given.formats), given.threads[:1] if bars else given.threads) for task in grid] + [
        (task, JUDGED, given.threads if task[:3] not in {each[:3] for each in grid} else given.threads[1:])
        for task in bars
    ]


def started(threads, providers):
    """A process for each provider that is here and each number of threads, and lines that say which, and which are
    not."""
    setting = blas.fastest()
    said = ", ".join(f"{core or 'its own choice'} {rate / 1e9:.0f}" for core, rate in setting.rates.items())
    told, riders = [f"numpy's BLAS: fastest with {setting.core or 'its own choice'} (Gflop/s: {said})"], []
    for provider, count in product(providers, threads):
        rider = Rider(provider, count, setting.environment if provider == "numpy" else {})
        try:
            version = rider.ask("versions")
        except RuntimeError as error:
            if count == threads[0]:
                told.append(f"{provider}: absent ({error})")
            continue
        riders.append(rider)
        if count == threads[0]:
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
    print(aligned([*map(line, ordered)], ["", "µs", "spread", "least", "x dense", "bytes", "error"]), flush=True)


def report(found, threads):
    """Prints crossovers, and bars by number of threads. Returns the figures of the first of these numbers."""
    if crossed := [*crossovers(found, threads[0])]:
        print("\ndensity up to which a format wins, one thread")
        print(aligned(crossed, ["matrix", "rows", "format", "provider", "over float32", "over bf16"]))
    densest, first = max(row["density"] for row in found.rows), []
    for count in threads:
        if not (judged := [*sparse_bars(found, count)]):
            continue
        wide = typical(found, count)
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
        print(f"\nbars on {count} thread(s)" + ("" if count == 1 else ", beside"))
        lines = [
            [what, f"{bar:g}", said, figure.verdict, beside]
            for (what, bar, _, said, beside), figure in zip(judged, figures, strict=True)
        ]
        print(aligned(lines, ["", "bar", "here", "", "where"]))
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
    print(aligned(table, ["format", "threads", "stored", "reached", "share", f"bar {SHARE:g}"]))


if __name__ == "__main__":
    command.run(main)
