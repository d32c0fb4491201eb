"""A pruned BERT: the exact search stores its weights sparse, and the program is timed against the same one, dense.

    python benchmarks/sparse.py [--model minilm] [--densities 0.5 0.25 0.1 0.05] [--pattern csr block nm] [--tokens 128]
                                [--rounds 15] [--csv OUT]

Every weight of the layers is pruned by magnitude to the density; what is left is the model, and all programs are exact
for it. That nothing is made dense is shown by the most bytes that a run allocates beyond its planned buffers, against
the bytes of the smallest weight that is stored sparse, were it dense."""

from lib import command
from lib.command import Figure, Parser, concluded, count, say, share, shown, spread, tabled, takes

import numpy as np

from formats import FORMATS
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.oracles import dense
from opmatrix.display.tables import table
from opmatrix.files.checkpoint import open_model
from opmatrix.models import build
from opmatrix.runtime.measure import measure, medians, peak, ratio
from opmatrix.runtime.pricing import this_machine
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.lower import Method, plainly
from rewrites.search.search import search
from rewrites.verify.differences import difference

COLUMNS = (
    "pattern",
    "density",
    "kernels",
    "sparse_ms",
    "same_dense_ms",
    "best_dense_ms",
    "times_same_dense",
    "times_best_dense",
    "stored",
    "stored_dense",
    "allocated",
    "planned",
    "smallest_dense",
    "error",
    "spread",
)
EXACT = 1e-5  # relative, of float32
SPARSE = "csr", "block", "nm"


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--densities", type=share, nargs="+", default=[0.5, 0.25, 0.1, 0.05])
    parser.add_argument("--pattern", nargs="+", choices=SPARSE, default=["csr", "block", "nm"])
    parser.add_argument("--tokens", type=count, default=128)
    parser.add_argument("--rounds", type=count, default=15)
    given = parser.parse_args()
    takes(2 + len(given.pattern) * len(given.densities) * (6 + 0.06 * given.rounds))
    checkpoint, machine, rows = open_model(given.model), this_machine(), []
    for pattern in given.pattern:
        for density in given.densities:
            rows.append(measured(pruned(checkpoint, pattern, density), checkpoint, machine, pattern, density, given))
            show(rows[-1])
            say(f"{pattern} at {density:g}")
    tabled(given.csv, [COLUMNS, *rows])
    found = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    concluded(
        given,
        [
            *(
                Figure(
                    f"{row['pattern']} at density {row['density']:g}: of the best dense program's seconds",
                    row["times_best_dense"],
                    "x",
                    row["spread"],
                    most=1,
                )
                for row in found
            ),
            Figure("largest relative error", max(row["error"] for row in found), most=EXACT),
        ],
    )


def pruned(checkpoint, pattern, density):
    """The model with the weights of its layers pruned."""
    group = max(4, round(1 / density))
    options = {"nm": {"n": round(density * group), "m": group}}.get(pattern, {"density": density})

    def at(name, *shape):
        data = checkpoint.at(name, *shape)
        if len(shape) != 2 or "encoder" not in name:
            return data
        return Data(np.ascontiguousarray(FORMATS[pattern].fit(data.array.T, **options).T), name)  # they lie out by in

    return build(checkpoint.config, at)


def measured(model, checkpoint, machine, pattern, density, given):
    """A row of the table."""
    rng = np.random.default_rng(0)
    batch = Batch([rng.integers(0, checkpoint.config["vocab_size"], given.tokens)])
    sizes = machine, batch.extents()
    chosen, best = search(model, EXACT_LAWS, *sizes), search(model, EXACT_LAWS, *sizes, methods=plainly)
    programs = {
        "sparse": chosen.program({})[0],
        "best dense": best.program({})[0],
        "same dense": chosen.program({}, lambda part, use, method: Method())[0],
    }
    times = measure(programs, [batch], given.rounds)
    middle, program = medians(times), programs["sparse"]
    held = [weight for weight in program.constants.values() if getattr(weight, "name", "") in SPARSE]
    kernels = {name: sum(weight.name == name for weight in held) for name in SPARSE}
    return (
        pattern,
        density,
        " ".join(f"{name}×{count}" for name, count in kernels.items() if count) or "none",
        *(1e3 * middle[name] for name in ("sparse", "same dense", "best dense")),
        ratio(times, "sparse", "same dense"),
        ratio(times, "sparse", "best dense"),
        program.stored_bytes,
        programs["best dense"].stored_bytes,
        peak(program, batch),
        program.peak_bytes(batch),
        min((4 * int(np.prod(w.shape)) for w in held), default=0),
        difference(program.run(batch), dense(model, batch)),
        spread(times["sparse"]),
    )


def show(row):
    """A row as a paragraph."""
    pattern, density, kernels, ours, same, best, by_same, by_best, *sizes, error, wide = row
    stored, plain, allocated, planned, smallest = sizes
    print(
        f"\n{pattern} at density {density:g}: sparse kernels {kernels}; {stored / 1e6:.1f} MB stored, "
        f"dense {plain / 1e6:.1f}; error {error:.1g}; spread {shown(wide)}"
    )
    print(
        table(
            [
                ["chosen", f"{ours:.2f}", ""],
                ["the same, dense", f"{same:.2f}", f"{by_same:.3f}"],
                ["the best dense", f"{best:.2f}", f"{by_best:.3f}"],
            ],
            ["", "ms", "chosen / this (paired)"],
        )
    )
    if smallest:
        print(
            f"a run allocates {(allocated - planned) / 1e3:.0f} kB beyond its planned {planned / 1e3:.0f} kB; "
            f"the smallest of these weights is {smallest / 1e3:.0f} kB dense"
        )


if __name__ == "__main__":
    command.run(main)
