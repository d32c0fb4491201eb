"""How long x @ W takes: shape x structure x density x rows x format x provider, and what that says.

    python benchmarks/formats.py [--quick | --bars] [--shapes 384x1536 …] [--structures random …] [--densities 0.1 …]
                                 [--rows 1 16 …] [--formats csr …] [--threads 1 2] [--rounds 9] [--csv OUT] [--plot OUT.png]

Providers: ours; numpy with the fastest kernels that its BLAS has here; scipy.sparse; MKL by sparse-dot-mkl; torch. Each runs in
a process of its own and they take turns (benchmarks/race.py); times are medians over rounds, ratios medians of the ratios
within a round. Then: the density up to which each format beats dense float32, and dense bf16; and the bars. The whole grid
takes about half an hour, --bars four minutes. A figure against peers counts only where torch, scipy and MKL are in the table."""
import argparse
import csv
import sys
from itertools import product
from pathlib import Path
from statistics import median, quantiles

sys.path[0] = str(Path(__file__).parents[1])                # not this folder: its formats.py is not the package
sys.path.append(str(Path(__file__).parent))

from bars import Table, crossovers, plot, sparse_bars  # noqa: E402
from matrices import STRUCTURES  # noqa: E402
from race import Rider, race  # noqa: E402

from formats import FORMATS, blas, peaks  # noqa: E402
from formats.quiet import watched  # noqa: E402
from rewrites.report import table as aligned  # noqa: E402

PROVIDERS = ("ours", "numpy", "scipy", "mkl", "torch")
PEERS = ("scipy", "mkl", "torch")
COLUMNS = ("shape", "rows", "structure", "density", "format", "provider", "threads", "median_s", "min_s", "bytes", "error")
SHAPES, ROWS = ("384x1536", "1024x1024"), (1, 16, 128, 512)
DENSITIES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7)
BARS = [(shape, "random", d, (16, 128, 512)) for shape in ("384x1536", "1536x384") for d in (0.1, 0.3, 0.38, 0.45, 0.55)]
BARS += [(shape, "blocks", d, (16, 128, 512)) for shape in ("384x1536", "1536x384") for d in (0.1, 0.5)]
BARS += [("4096x4096", "blocks", 0.5, (128,))]
JUDGED = ("dense", "packed", "bf16", "csr", "block")
DECODED, SHARE = ("csr", "block", "int8", "int4"), 0.7


def main():
    watched()
    given = arguments()
    riders, told = started(given.threads, given.providers)
    print("\n".join(told))
    rows = []
    try:
        for (shape, structure, density, many), only, counts in tasks(given):
            case = dict(shape=[*map(int, shape.split("x"))], structure=structure, density=density, only=only)
            for threads in counts:
                field = [rider for rider in riders if rider.threads == threads]
                for count, found in race(field, case, many, given.rounds, given.seconds):
                    rows += (new := [*lines(shape, count, structure, density, field, found)])
                    show(new)
        found = Table(rows)
        report(found, given.threads)
        decoded(riders, given)
    finally:
        for rider in riders: rider.close()
    if given.csv:
        with given.csv.open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *([row[name] for name in COLUMNS] for row in rows)])
    if given.plot: plot(found, given.plot)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--structures", nargs="+", choices=[*STRUCTURES], default=[*STRUCTURES])
    parser.add_argument("--densities", type=float, nargs="+", default=DENSITIES)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--formats", nargs="+", default=[], help="ours, by the beginning of their names; all by default")
    parser.add_argument("--providers", nargs="+", choices=PROVIDERS, default=PROVIDERS)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.004, help="of one candidate's turn")
    parser.add_argument("--csv", type=Path, help="write the table there")
    parser.add_argument("--plot", type=Path, help="draw the curves there (PNG; needs matplotlib)")
    parser.add_argument("--bars", action="store_true", help="only what the bars need")
    parser.add_argument("--quick", action="store_true", help="one shape, few densities")
    parser.add_argument("--decode", type=float, default=peaks.BEYOND, metavar="N",
                        help="one-row products on matrices of N last caches; 0: leave out")
    return parser.parse_args()


def tasks(given):
    """((shape, structure, density, rows), formats, threads): the grid, on the first number of threads, then what the bars
    still need, on all."""
    if given.bars: return [(task, JUDGED, given.threads) for task in BARS]
    if given.quick: given.shapes, given.densities, given.rows = ["384x1536"], [0.1, 0.3, 0.5], [1, 128]
    grid = [(shape, structure, d, tuple(given.rows))
            for shape, structure, d in product(given.shapes, given.structures, given.densities)]
    bars = [] if given.quick or (given.shapes, given.structures) != (SHAPES, [*STRUCTURES]) else BARS
    return [(task, tuple(given.formats), given.threads[:1] if bars else given.threads) for task in grid] + [
        (task, JUDGED, given.threads if task[:3] not in {each[:3] for each in grid} else given.threads[1:]) for task in bars]


def started(threads, providers):
    """A process for each provider that is here and each number of threads, and lines that say which, and which are not."""
    setting = blas.fastest()
    said = ", ".join(f"{core or 'its own choice'} {rate / 1e9:.0f}" for core, rate in setting.rates.items())
    told, riders = [f"numpy's BLAS: fastest with {setting.core or 'its own choice'} (Gflop/s: {said})"], []
    for provider, count in product(providers, threads):
        rider = Rider(provider, count, setting.environment if provider == "numpy" else {})
        try: version = rider.ask("versions")
        except RuntimeError as error:
            if count == threads[0]: told.append(f"{provider}: absent ({error})")
            continue
        riders.append(rider)
        if count == threads[0]: told.append(f"{provider}: {version}")
    if missing := [name for name in PEERS if name not in {rider.provider for rider in riders}]:
        told.append(f"WITHOUT {', '.join(missing)}: a figure against peers counts only with torch, scipy and MKL in the table")
    return riders, told


def lines(shape, count, structure, density, riders, found):
    """The rows of the table for one race."""
    for (i, _), ((form, size, error), medians, minima) in found.items():
        yield dict(shape=shape, rows=count, structure=structure, density=density, format=form, provider=riders[i].provider,
                   threads=riders[i].threads, median_s=median(medians), min_s=min(minima), bytes=size, error=error,
                   rounds=medians)


def show(rows):
    """One race, the fastest first, with its spread: the quartiles' distance over the median."""
    first, here = rows[0], Table(rows)
    print(f"\n{first['shape']} {first['structure']} {first['density']:g}, {first['rows']} rows, {first['threads']} thread(s)")
    def line(row):
        low, _, high = quantiles(row["rounds"], n=4) if len(row["rounds"]) > 1 else row["rounds"] * 3
        ratio = here.ratio(row)
        return [f"{row['provider']} {row['format']}", f"{1e6 * row['median_s']:.1f}",
                f"{100 * (high - low) / row['median_s']:.0f} %", f"{1e6 * row['min_s']:.1f}",
                "" if ratio is None else f"{ratio:.2f}", f"{row['bytes']:,}", f"{row['error']:.1g}"]
    ordered = sorted(rows, key=lambda row: row["median_s"])
    print(aligned([*map(line, ordered)], ["", "µs", "spread", "least", "x dense", "bytes", "error"]), flush=True)


def report(found, threads):
    """Crossovers, and the bars with one thread; with more beside."""
    if crossed := [*crossovers(found, threads[0])]:
        print("\ndensity up to which a format wins, one thread")
        print(aligned(crossed, ["matrix", "rows", "format", "provider", "over float32", "over bf16"]))
    for count in threads:
        if not (judged := [*sparse_bars(found, count)]): continue
        print(f"\nbars on {count} thread(s)" + ("" if count == 1 else ", beside"))
        print(aligned([[what, f"{bar:g}", said, verdict(value, bar), beside] for what, bar, value, said, beside in judged],
                      ["", "bar", "here", "", "where"]))


def verdict(value, bar): return "not measured" if value is None else "met" if value >= bar else "MISSED"


def decoded(riders, given):
    """One row times matrices that no cache holds, as a share of the bandwidth that reading them has."""
    if not given.decode: return
    last = peaks.caches()[-1]
    size = int(min(given.decode * last, peaks.free_memory() // 6))
    print(f"\none row, packed bytes {peaks.sized(size)}, last cache {peaks.sized(last)}"
          + ("" if size >= 2 * last else ": TOO SMALL for the bar, which asks for more than twice that"))
    table = []
    for rider in riders:
        if rider.provider != "ours": continue
        for name in DECODED:
            if name not in FORMATS: table.append([name, "", "no such format", "", ""]); continue
            stored, speed, reading = rider.ask("decode", name=name, size=size)
            table.append([name, str(rider.threads), f"{stored / 1e6:.0f} MB", f"{speed / 1e9:.1f} of {reading / 1e9:.1f} GB/s",
                          f"{speed / reading:.2f} {verdict(speed / reading, SHARE)}"])
    print(aligned(table, ["format", "threads", "stored", "reached", f"share (bar {SHARE:g})"]))


if __name__ == "__main__": main()
