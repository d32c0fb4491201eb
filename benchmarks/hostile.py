"""Mutated files of every kind that is read, and what becomes of them.

    python benchmarks/hostile.py [--files 100000] [--processes 2] [--seed 0] [--csv OUT]

Each child process reads a share of them, as tests/support/hostile.py says: structured mutations first (entries dropped,
doubled, of another type, huge, negative, nested, renamed, exchanged; code wherever a number or a name stands), and
damage that knows of nothing. A program whose hash no longer fits is given the hash that it has and read again.
`refused`: in one line that names the file. `same`: read, with the same result. `other`: read with other numbers, where
no hash spoke against it or a fitting one was made. What must not be: `changed` (other numbers though the hash did not
fit), `error` (anything but such a line), `memory` (3 GB), `crash`, `hang` (two minutes), `code` (run, compiled,
imported, started, or a file written elsewhere)."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from lib import command
from lib.command import SUPPORT, Figure, Parser, concluded, count, say, tabled, takes, whole

sys.path.insert(0, str(SUPPORT))  # its hostile.py, not this one

from hostile import BAD, OUTCOMES, Outcome, judged, table

SHARE = 2000  # files that one child reads
COLUMNS = ("kind", "files", *OUTCOMES)


def measure(files: int, processes: int, seed: int) -> list[Outcome]:
    """The outcomes of so many files; those that must not be are printed as they come."""

    def share(first: int) -> list[Outcome]:
        found = []
        for each in judged(seed, first, min(first + SHARE, files)):
            found.append(each)
            if each.outcome in BAD:
                print(f"{each.outcome}: file {each.at}, {each.kind}: {each.said}", flush=True)
        say(f"{min(first + SHARE, files)} files")
        return found

    with ThreadPoolExecutor(processes) as pool:
        return [each for found in pool.map(share, range(0, files, SHARE)) for each in found]


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--files", type=count, default=100_000)
    parser.add_argument("--processes", type=count, default=2)
    parser.add_argument("--seed", type=whole, default=0)
    options = parser.parse_args()
    takes(5 + 0.012 * options.files * 2 / options.processes)
    start = time.perf_counter()
    rows = table(measure(options.files, options.processes, options.seed))
    for kind, *counts in (COLUMNS, *rows):
        print(f"{kind:<44}" + "".join(f"{count:>9}" for count in counts))
    print(f"{time.perf_counter() - start:.0f} s")
    tabled(options.csv, [COLUMNS, *rows])
    wrong = sum(rows[-1][2 + OUTCOMES.index(bad)] for bad in BAD)
    concluded(options, [Figure(f"files of {rows[-1][1]} that did what must not be", wrong, most=0)])
    return int(bool(wrong))


if __name__ == "__main__":
    command.run(main)
