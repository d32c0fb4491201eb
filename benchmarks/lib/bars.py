"""What the times of a race say: ratios to dense products, the density at which a format starts to win, bars, a plot."""

from collections import defaultdict
from math import exp, inf, log
from statistics import median

BLOCKS = "block tile=16x16"
LINES = 24  # of a legend, beside one row of panels
FEW = 16  # rows from which products are judged by arithmetic


def paired(slow, fast):
    """How many times faster: the median over rounds of what both took in the same one."""
    return median(a / b for a, b in zip(slow["rounds"], fast["rounds"], strict=False))


class Table:
    """The rows of a race: dicts with the columns of the table and the seconds of every round."""

    def __init__(self, rows):
        self.rows = rows

    def where(self, **wanted):
        """Rows with these values; a tuple is any of its entries."""

        def fits(row, name, value):
            return row[name] in value if isinstance(value, tuple) else row[name] == value

        return [row for row in self.rows if all(fits(row, *item) for item in wanted.items())]

    def best(self, **wanted):
        return min(self.where(**wanted), key=lambda row: row["median_s"], default=None)

    def reference(self, row, kind="float32", provider=None):
        """The fastest dense product of the same race: numpy's in float32, anybody's in bf16."""
        same = {name: row[name] for name in ("shape", "rows", "structure", "density", "threads")}
        if provider:
            return self.best(**same, provider=provider, format="dense")
        return (
            self.best(**same, provider="numpy", format="dense")
            if kind == "float32"
            else self.best(**same, format="bf16")
        )

    def ratio(self, row, kind="float32", provider=None):
        reference = row and self.reference(row, kind, provider)
        return paired(reference, row) if reference else None

    def curves(self, kind="float32"):
        """{(shape, structure, rows, threads, format, provider): [(density, times faster than dense)]}, densities
        ascending."""
        found = defaultdict(list)
        for row in self.rows:
            if (ratio := self.ratio(row, kind)) is not None:
                key = row["shape"], row["structure"], row["rows"], row["threads"], row["format"], row["provider"]
                found[key].append((row["density"], ratio))
        return {key: sorted(points) for key, points in found.items()}


def crossover(points):
    """The density up to which the format wins, between two measured ones by the logarithm of the ratio; 0: it never
    does, inf: everywhere."""
    wins = [at for at, (_, ratio) in enumerate(points) if ratio >= 1]
    if not wins:
        return 0.0
    if wins[-1] == len(points) - 1:
        return inf
    (low, above), (high, below) = points[wins[-1] : wins[-1] + 2]
    return exp(log(low) + log(above) / (log(above) - log(below)) * (log(high) - log(low)))


def density(value, points):
    """A crossover in words."""
    if value == 0:
        return f"<{points[0][0]:g}"
    return f">{points[-1][0]:g}" if value == inf else f"{value:.2f}"


def crossovers(table, threads=1):
    """A line for each shape, structure, rows, format and provider: crossover against float32, and against bf16."""
    against = table.curves("bf16")
    for key, points in sorted(table.curves().items()):
        shape, structure, rows, count, form, provider = key
        if count != threads or len(points) < 2 or form.startswith(("dense", "bf16")):
            continue
        other = density(crossover(against[key]), against[key]) if key in against else "no bf16 here"
        yield [f"{shape} {structure}", str(rows), form, provider, density(crossover(points), points), other]


def sparse_bars(table, threads):
    """(what, bar, value, beside) for one number of threads: each at the rows where it is worst."""
    many = tuple(sorted({row["rows"] for row in table.rows if row["rows"] >= FEW}))
    mine = dict(provider="ours", threads=threads)
    reached = []
    for key, points in table.curves().items():
        if key[1:2] == ("random",) and key[2] in many and key[3:] == (threads, "csr", "ours") and len(points) > 2:
            reached.append((crossover(points), density(crossover(points), points), f"{key[0]}, {key[2]} rows"))
    if reached:
        yield "CSR: density up to which it beats dense float32", 0.38, *min(reached)
    speeds = [
        ("CSR at 0.1 against dense", 3.9, "random", 0.1, None, "csr"),
        ("16x16 blocks at 0.1 against dense", 8.8, "blocks", 0.1, None, BLOCKS),
        ("16x16 blocks at 0.5, 1536x384", 2.0, "blocks", 0.5, ("1536x384", many), BLOCKS),
        ("16x16 blocks at 0.5, 4096x4096, 128 rows", 1.6, "blocks", 0.5, ("4096x4096", (128,)), BLOCKS),
    ]
    for what, bar, structure, at, place, form in speeds:
        shape, rows = place or (tuple({row["shape"] for row in table.rows}), many)
        found = table.where(structure=structure, density=at, shape=shape, rows=rows, format=form, **mine)
        if found:
            yield what, bar, *worst(table, found)
    if found := table.where(structure="random", density=0.1, rows=many, format="csr", **mine):
        value, said, beside = least([(row, against_libraries(table, row)) for row in found])
        turned = least([(row, against_libraries(table, row, "csr turned")) for row in found])[1]
        beside += f"; where tokens are contiguous for it {turned}"
        yield "CSR at 0.1 against the best library's CSR", 2.0, value, said, beside


def against_libraries(table, row, form="csr"):
    """How many times faster than the fastest library's CSR, for the same job; None where there is none."""
    same = {name: row[name] for name in ("shape", "rows", "structure", "density", "threads")}
    rival = table.best(**same, format=form, provider=("scipy", "mkl", "torch"))
    return paired(rival, row) if rival else None


def worst(table, found):
    value, said, beside = least([(row, table.ratio(row)) for row in found])
    torch = [ratio for row in found if (ratio := table.ratio(row, provider="torch")) is not None]
    return value, said, beside + (f"; against torch's dense {min(torch):.2f}" if torch else "")


def least(pairs):
    pairs = [(ratio, row) for row, ratio in pairs if ratio is not None]
    if not pairs:
        return None, "not measured", ""
    ratio, row = min(pairs, key=lambda pair: pair[0])
    best = max(ratio for ratio, _ in pairs)
    return ratio, f"{ratio:.2f}", f"worst of {len(pairs)}: {row['shape']}, {row['rows']} rows; best {best:.2f}"


def plot(table, file, threads=1):
    """Times faster than dense float32 over density, a panel for each structure and number of rows. A circle is where a
    format crosses dense float32, a square where it crosses the fastest bf16. The figure, or None without curves."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    curves = {key: points for key, points in table.curves().items() if key[3] == threads and len(points) > 1}
    if not curves:
        return None
    against = table.curves("bf16")
    shape = max({key[0] for key in curves}, key=lambda s: sum(key[0] == s for key in curves))
    curves = {key: points for key, points in curves.items() if key[0] == shape}
    structures, rows = (sorted({key[at] for key in curves}) for at in (1, 2))
    names = sorted({(key[5], key[4]) for key in curves})
    height, columns = 3.6 * len(structures), -(-len(names) // (LINES * len(structures)))
    figure, axes = plt.subplots(
        len(structures), len(rows), squeeze=False, layout="constrained", figsize=(4.5 * len(rows) + 2 * columns, height)
    )
    colour = {name: plt.colormaps["tab20"](i % 20) for i, name in enumerate(names)}
    for i, structure in enumerate(structures):
        for j, count in enumerate(rows):
            here = {
                key: (points, against.get(key, [])) for key, points in curves.items() if key[1:3] == (structure, count)
            }
            panel(axes[i][j], here, colour)
            axes[i][j].set_title(f"{structure}, {count} rows", fontsize=9)
    lines = [
        plt.Line2D([], [], color=colour[name], ls="-" if name[0] == "ours" else "--", label=" ".join(name))
        for name in names
    ]
    figure.legend(handles=lines, loc="outside right upper", fontsize=6, ncols=columns)
    said = "times faster than numpy's dense float32 (o: crosses it, squares: bf16)"
    figure.suptitle(f"x @ W, {shape}, {threads} thread(s)\n{said}", x=0.01, ha="left", fontsize=8)
    figure.savefig(file, dpi=110)
    return figure


def panel(axis, curves, colour):
    """The curves of one structure and number of rows."""
    for (*_, form, provider), (points, against) in sorted(curves.items()):
        shade = colour[provider, form]
        axis.plot(*zip(*points, strict=True), "-" if provider == "ours" else "--", color=shade, lw=1)
        if 0 < (at := crossover(points)) < inf:
            axis.plot([at], [1], "o", color=shade, ms=4)
        if 0 < (at := crossover(against)) < inf:
            axis.plot([at], [between(at, points)], "s", color=shade, ms=4)
    axis.axhline(1, color="black", lw=0.5)
    axis.set(xscale="log", yscale="log", xlabel="density")


def between(at, points):
    """The ratio at a density between two measured ones."""
    import numpy as np

    return exp(np.interp(log(at), *([log(each) for each in row] for row in zip(*points, strict=True))))
