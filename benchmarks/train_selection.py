"""Trains the predictor that corrects closed forms of products (formats/predictor.json): boosted regression trees.

    python benchmarks/train_selection.py [--matrices 90] [--keep DATA.json] [--data DATA.json] [--out formats/predictor.json]

Products are measured in every format on generated patterns, even ones and such whose columns differ in size, of shapes,
densities and rows spread evenly. The target is the logarithm of measured seconds over the closed form that
fits them, so that what is learned does not depend on how fast a machine is. Trees are added while they improve matrices
left out, a fifth at a time. The file says what it was made from."""
import datetime
import json
import os
import platform
from pathlib import Path

import command
from command import ROOT, Figure, InputError, Parser, concluded, count, readable, tablefile, takes

from formats.files import read_json

RATE, DEPTH, LEAF, MOST, BINS, FOLDS = 0.2, 3, 10, 50, 32, 5


def main() -> None:
    parser = Parser(__doc__, table=False)
    parser.add_argument("--matrices", type=count, default=90, help="of each format")
    parser.add_argument("--threads", type=count, default=1)
    parser.add_argument("--keep", type=Path, help="keep what was measured there")
    parser.add_argument("--data", type=readable, help="use what was measured before")
    parser.add_argument("--out", type=Path, default=ROOT / "formats" / "predictor.json")
    given = parser.parse_args()
    os.environ |= dict.fromkeys(("NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(given.threads))
    for option in ("keep", "out"): tablefile(option, getattr(given, option))
    takes(30 + (0 if given.data else 10 * given.matrices))
    data = read_json(given.data) if given.data else gathered(given.matrices)
    if not (isinstance(data, dict) and {"rows", "record"} <= set(data)):
        raise InputError(f"--data {given.data}: it holds no rows and record: give what --keep wrote")
    if given.keep: given.keep.write_text(json.dumps(data))
    kernels, scores = {}, {}
    for kernel, rows in data["rows"].items():
        kernels[kernel], scores[kernel] = trained(kernel, left_by_closed_form(kernel, rows))
        print(f"{kernel:24s} {scores[kernel]}", flush=True)
    given.out.write_text(written(kernels, {**data["record"], "trees": f"rate {RATE}, depth {DEPTH}, at least {LEAF} calls a leaf",
                                           "scores of matrices left out": scores}))
    concluded(given, [Figure(f"{kernel}, 90 % of errors with trees", 100 * score["90 %, with trees"], "%")
                      for kernel, score in scores.items()])


def left_by_closed_form(kernel, rows):
    """(sizes, logarithm of seconds over the closed form that fits them all, number of the matrix)."""
    from formats.calibrate import closed, residuals
    found = [(kernel, sizes, seconds) for sizes, seconds, _ in rows]
    off = residuals(closed({kernel: found}), found)
    return [(sizes, each, matrix) for (sizes, _, matrix), each in zip(rows, off, strict=True)]


def gathered(count):
    """{rows: kernel to [sizes, seconds, number of the matrix], record}."""
    from importlib.metadata import version

    from formats import FORMATS, calibrate, kernels
    from formats.machine import cpu
    from formats.threads import threads
    kernels.warm()
    numbers = calibrate.Numbers()
    rows = {}
    for name in FORMATS:
        for skew, share in ((0.0, 0.6), (0.5, 0.2), (1.0, 0.2)):
            plan = calibrate.Plan(round(count * share), 6, 4096, 1024, 5e8, 20 * share, 1e9)
            cases = [*calibrate.products([name], plan, numbers, start=20000 + int(1000 * skew), skew=skew)]
            found = calibrate.measured(cases, most=1e9)
            matrix, before = -1, None
            for kernel, sizes, seconds in found:
                here = {each: value for each, value in sizes.items() if each != "T"}
                matrix, before = matrix + (here != before), here
                rows.setdefault(kernel, []).append([sizes, seconds, matrix + 1000 * int(10 * skew)])
        print(f"measured {name}", flush=True)
    record = {"date": datetime.date.today().isoformat(), "machine": cpu(), "threads": threads(),
              "python": platform.python_version(), "versions": {each: version(each) for each in ("numpy", "numba", "llvmlite")},
              "data": f"{count} generated matrices a format, 64 to 4096 a side, density 0.02 to 0.75, columns even or of sizes "
                      "exp(0.5 or 1 normal), one row and up to 1024",
              "target": "logarithm of measured seconds (lower quartile of three rounds) over the closed form that fits "
                        "them"}
    return {"rows": rows, "record": record}


def trained(kernel, rows):
    """(what the file holds of a kernel, its scores): as many trees as are best for matrices left out."""
    import numpy as np

    from formats.features import described, labels
    x, y = np.array([described(kernel, sizes) for sizes, *_ in rows]), np.clip([row[1] for row in rows], -1.5, 1.5)
    fold = np.array([hash_of(row[2]) % FOLDS for row in rows])
    curves, left = [], np.zeros((MOST + 1, len(y)))
    for each in range(FOLDS):
        inside = fold != each
        left[:, ~inside] = staged(boosted(x[inside], y[inside]), x[~inside])
    curves = np.median(abs(left - y), 1) + np.quantile(abs(left - y), 0.9, axis=1) / 3
    best = int(curves.argmin())
    trees = boosted(x, y)[:best]
    errors = {"closed form": -y, "with trees": left[best] - y}
    score = {f"{what}, {name}": round(float(np.quantile(abs(np.expm1(off)), share)), 4)
             for what, share in (("median", 0.5), ("90 %", 0.9)) for name, off in errors.items()}
    short = [[[round(v, 5) if isinstance(v, float) else v for v in node] for node in tree] for tree in trees]
    return {"features": labels(kernel), "trees": short}, {"calls": len(y), "trees": best, **score}


def hash_of(number): return number * 2654435761 % 2 ** 32 >> 7


def boosted(x, y):
    """MOST trees, each of what those before it leave; errors beyond the ninth tenth count like it (Huber's loss: Friedman
    2001, section 4.4)."""
    import numpy as np
    edges = [np.unique(np.quantile(column, np.linspace(0, 1, BINS + 1)[1:-1])) for column in x.T]
    codes = np.stack([np.searchsorted(edge, column) for edge, column in zip(edges, x.T, strict=True)], 1)
    found, predicted = [], np.zeros(len(y))
    for _ in range(MOST):
        left = y - predicted
        most = np.quantile(abs(left), 0.9)
        tree = []
        grow(tree, codes, edges, np.clip(left, -most, most), np.arange(len(y)), DEPTH)
        predicted += np.array([value(tree, row) for row in x])
        found.append(tree)
    return found


def grow(tree, codes, edges, y, here, depth):
    """Appends the node for these rows, and those below it; its place."""
    import numpy as np
    at = len(tree)
    tree.append([float(RATE * y[here].mean())])
    best = (1e-9, None, None)
    if depth and len(here) >= 2 * LEAF:
        for feature, edge in enumerate(edges):
            if not len(edge): continue
            low, few = (np.bincount(codes[here, feature], weight, len(edge) + 1)[:-1].cumsum() for weight in (y[here], None))
            high, many = y[here].sum() - low, len(here) - few
            gain = low ** 2 / np.maximum(few, 1) + high ** 2 / np.maximum(many, 1) - (low + high) ** 2 / len(here)
            gain[np.minimum(few, many) < LEAF] = 0
            if gain.max() > best[0]: best = float(gain.max()), feature, int(gain.argmax())
    if best[1] is not None:
        low = codes[here, best[1]] <= best[2]
        tree[at] = [best[1], float(edges[best[1]][best[2]]), grow(tree, codes, edges, y, here[low], depth - 1),
                    grow(tree, codes, edges, y, here[~low], depth - 1)]
    return at


def value(tree, row):
    """What a tree says of a row."""
    node = tree[0]
    while len(node) == 4: node = tree[node[2] if row[node[0]] <= node[1] else node[3]]
    return node[0]


def staged(trees, x):
    """Predictions of the first 0, 1, 2, … trees."""
    import numpy as np
    each = np.array([[value(tree, row) for row in x] for tree in trees])
    return np.concatenate([np.zeros((1, len(x))), each.cumsum(0)])


def written(kernels, record):
    """The file: a line for each tree."""
    def lines(found): return ",\n  ".join(json.dumps(tree, separators=(",", ":")) for tree in found["trees"])
    inside = ",\n".join(f' {json.dumps(kernel)}: {{"features": {json.dumps(found["features"])}, "trees": [\n  {lines(found)}]}}'
                        for kernel, found in kernels.items())
    return f'{{"version": 1,\n"record": {json.dumps(record, indent=1)},\n"kernels": {{\n{inside}}}}}\n'


if __name__ == "__main__": command.run(main)
