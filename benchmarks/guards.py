"""Arrays of every step, alignment, overlap and flag before pages that nobody may touch, at the door of every format and
kernel.

    python benchmarks/guards.py [--share 1.0] [--doors int8 attention] [--workers 2] [--csv OUT]

Each result is right to the bit of plain arrays, which are near float64, or refused in words; anything else is printed,
and ends with status 1."""

import os
import random
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from lib import command
from lib.command import ROOT, SUPPORT, Figure, Parser, concluded, count, named, say, share, tabled, takes

sys.path.insert(0, str(SUPPORT))

import guarded

RESULTS = "right", "refused", "wrong", "crashed"
PIECE = 2000  # cases of a child


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--share", type=share, default=1.0, help="of all cases, drawn at random")
    parser.add_argument("--doors", nargs="*", help="formats and kernels; default: all")
    parser.add_argument("--workers", type=count, default=os.cpu_count())
    given = parser.parse_args()
    every = [*guarded.cases()]
    named("doors", given.doors or (), sorted({case[0].split()[0] for case in every}))
    chosen = [case for case in every if not given.doors or case[0].split()[0] in given.doors]
    chosen = random.Random(0).sample(chosen, max(1, int(given.share * len(chosen))))
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}
    takes(3 + 0.012 * len(chosen))
    started, found, done = time.perf_counter(), Counter(), 0
    with ThreadPoolExecutor(given.workers) as pool:
        for counts in pool.map(lambda piece: guarded.run_all(piece, environment), pieces(chosen)):
            found.update(counts)
            done += sum(counts.values())
            say(f"{done} of {len(chosen)} cases")
    said = [words for words, result in found if result in ("wrong", "crashed")]
    for words in said:
        print(words)
    print(f"{'door':<22}{'cases':>9}" + "".join(f"{result:>9}" for result in RESULTS))
    for door, counts in (rows := sorted(table(found).items())):
        print(f"{door:<22}{sum(counts.values()):>9}" + "".join(f"{counts[result]:>9}" for result in RESULTS))
    print(f"{time.perf_counter() - started:.0f} s")
    tabled(given.csv, [("door", *RESULTS), *((door, *(counts[result] for result in RESULTS)) for door, counts in rows)])
    concluded(given, [Figure(f"results of {len(chosen)} that are wrong, or crashes", len(said), most=0)])
    return int(bool(said))


def pieces(cases: list[guarded.Case]) -> list[list[guarded.Case]]:
    return [cases[at : at + PIECE] for at in range(0, len(cases), PIECE)]


def table(found: Counter) -> dict[str, Counter]:
    """Results by format or kernel, and of all."""
    rows: dict[str, Counter] = {"all": Counter()}
    for (words, result), cases in found.items():
        door = words.lstrip("('").split()[0].rstrip("',")
        for name in ("all", door):
            rows.setdefault(name, Counter())[result] += cases
    return rows


if __name__ == "__main__":
    command.run(main)
