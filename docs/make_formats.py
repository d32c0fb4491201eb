"""Writes docs/formats.json, what the notebook docs/formats.ipynb draws, from what two benchmarks wrote on this machine:

    python benchmarks/products.py crossovers --shapes 384x1536 --structures random blocks nm shared \
        --providers ours numpy --densities 0.05 0.1 0.2 0.3 0.5 0.7 --threads 1 --rounds 5 --decode 0 \
        --csv crossovers.csv
    python benchmarks/selection.py --quick --csv selection.csv
    python docs/make_formats.py crossovers.csv selection.csv [--busy "what they said of a busy machine"]

The first takes four minutes, the second five, on two quiet cores."""

import csv
import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "benchmarks")]

from lib.command import Parser, readable  # noqa: E402

from formats.core.errors import InputError  # noqa: E402
from formats.disk.files import replacing  # noqa: E402
from formats.host.host import cpu  # noqa: E402

FILE = HERE / "formats.json"
TIMES = "rows", "structure", "density", "format", "provider", "median_s", "bytes", "error"
CHOICES = "structure", "rows", "chosen", "best", "chosen_s", "best_s", "constant_s", "threshold_s"
WORDS = "structure", "format", "provider", "chosen", "best"


def main() -> None:
    parser = Parser(__doc__, table=False)
    parser.add_argument("crossovers", type=readable)
    parser.add_argument("selection", type=readable)
    parser.add_argument("--busy", default="", help="what the benchmarks said of a busy machine")
    given = parser.parse_args()
    made = {
        "machine": cpu(),
        "busy": given.busy,
        "versions": {name: version(name) for name in ("numpy", "numba")},
        "times": {"columns": TIMES, "rows": read_columns(Path(given.crossovers), TIMES)},
        "choices": {"columns": CHOICES, "rows": read_columns(Path(given.selection), CHOICES)},
    }
    with replacing(FILE) as raw:
        raw.write((json.dumps(made) + "\n").encode())


def read_columns(file: Path, names: Sequence[str]) -> list[list[str | float]]:
    """Some columns of a table. Raises InputError where it has not all of them."""
    with file.open(newline="", encoding="utf-8") as text:
        rows = [*csv.DictReader(text)]
    if not rows or (missing := {*names} - {*rows[0]}):
        raise InputError(
            f"{file}: it has no column {', '.join(sorted(missing)) if rows else 'at all'}: give what the "
            "benchmark wrote"
        )
    return [[row[name] if name in WORDS else float(f"{float(row[name]):.4g}") for name in names] for row in rows]


if __name__ == "__main__":
    main()
