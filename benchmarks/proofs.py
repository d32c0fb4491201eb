"""Equations and random pairs of terms, and what `prove` says of them.

    python benchmarks/proofs.py [--stated] [--count 10000] [--processes 2] [--seed 0] [--csv OUT]

The equations of tests/support/stated_equations.py come first, over the whole algebra, true ones and near misses:
each with the verdict, the processor's seconds, and what proved it. With `--stated` they are all, and the table is
theirs.

A pair is a term and what becomes of it by identities of the algebra, or by one change besides, as
tests/support/proof_pairs.py makes them: monoids, patterns, functions, tables and symbols of one name that are not
one thing; numbers that cancel; tokens, positions, relations and inputs that a batch gives. What is proved is
evaluated with 150 digits at a random input, what is refuted at the place that the refutation names: a proof is false
where finite entries differ there, a refutation where they do not, or where the pair was made by identities alone.
What raises is a fault."""

import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from lib import command
from lib.command import Figure, Parser, concluded, count, say, tabled, takes, whole

from proof_pairs import tabulated
from stated_equations import FALSE, TRUE

from rewrites.proofs.equations import prove

SHARE = 100  # pairs that a process judges before it tells
VERDICTS = "proved", "refuted", "not found", "fault"
STATED_COLUMNS = "equation", "true", "verdict", "seconds", "by"
COLUMNS = ("pair", "pairs", *VERDICTS, "false")


def judge_stated() -> list[tuple[str | float, ...]]:
    """A row for each equation: its name, whether it is true, the verdict, seconds, what it was proved or tried by."""
    rows: list[tuple[str | float, ...]] = []
    for true, equations in ((True, TRUE), (False, FALSE)):
        for name, (left, right) in equations.items():
            start = time.process_time()
            proof = prove(left, right)
            ways = proof.tried[-1:] if proof else proof.tried
            rows.append(
                (
                    name,
                    str(true).lower(),
                    proof.verdict,
                    round(time.process_time() - start, 3),
                    ", ".join(each.way for each in ways),
                )
            )
    return rows


def figures_of(rows: list[tuple[str | float, ...]]) -> list[Figure]:
    """Count equations that met the verdict that they should, and those that met a false one."""
    counts = Counter((true, verdict) for _, true, verdict, *_ in rows)
    total = Counter(true for _, true, *_ in rows)
    return [
        Figure(f"true equations proved, of {total['true']}", counts["true", "proved"], least=0.9 * total["true"]),
        Figure(
            f"false equations refuted, of {total['false']}", counts["false", "refuted"], least=0.95 * total["false"]
        ),
        Figure("equations judged falsely", counts["true", "refuted"] + counts["false", "proved"], most=0),
    ]


def show_stated(rows: list[tuple[str | float, ...]]) -> None:
    """A line for each equation."""
    for name, true, verdict, seconds, ways in rows:
        print(f"{name:<44}{true:>6}  {verdict:<10}{seconds:>8}  {ways}")


def measure(pairs: int, processes: int, seed: int) -> tuple[Counter[tuple[str, str]], dict[int, str]]:
    """How many pairs of each kind met each verdict, and by its number what is wrong with a pair; these are printed as
    they come."""
    counts, wrong = Counter[tuple[str, str]](), dict[int, str]()
    shares = [range(low, min(low + SHARE, seed + pairs)) for low in range(seed, seed + pairs, SHARE)]
    with ProcessPoolExecutor(processes) as pool:
        for number, (found, said) in enumerate(pool.map(tabulated, shares), 1):
            counts += found
            wrong |= said
            for at, words in said.items():
                print(f"pair {at}: {words}", flush=True)
            if number % 10 == 0:
                say(f"{number * SHARE} pairs")
    return counts, wrong


def table(counts: Counter[tuple[str, str]], wrong: dict[int, str]) -> list[tuple[str | int, ...]]:
    """A row for each way in which pairs are made, and their sum."""
    false = Counter(words.partition(": ")[0] for words in wrong.values())
    rows: list[tuple[str | int, ...]] = [
        (
            how,
            sum(counts[how, verdict] for verdict in VERDICTS),
            *(counts[how, verdict] for verdict in VERDICTS),
            false[how],
        )
        for how in sorted({how for how, _ in counts})
    ]
    columns = list(zip(*rows, strict=True))[1:]
    return [*rows, ("all", *(sum(map(int, column)) for column in columns))]


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--count", type=count, default=10_000)
    parser.add_argument("--processes", type=count, default=2)
    parser.add_argument("--seed", type=whole, default=0)
    parser.add_argument("--stated", action="store_true", help="the equations alone, no random pairs")
    options = parser.parse_args()
    takes(60)
    stated = judge_stated()
    show_stated(stated)
    if options.stated:
        tabled(options.csv, [STATED_COLUMNS, *stated])
        concluded(options, figures := figures_of(stated))
        return int(any(figure.verdict == "missed" for figure in figures))
    takes(5 + 0.08 * options.count * 2 / options.processes)
    start = time.perf_counter()
    counts, wrong = measure(options.count, options.processes, options.seed)
    rows = table(counts, wrong)
    for how, *cells in (COLUMNS, *rows):
        print(f"{how:<20}" + "".join(f"{cell:>11}" for cell in cells))
    print(f"{time.perf_counter() - start:.0f} s")
    tabled(options.csv, [COLUMNS, *rows])
    said = [words.partition(": ")[2] for words in wrong.values()]
    judged = [
        Figure(f"{what} of {options.count} pairs", sum(each.startswith(begins) for each in said), most=0)
        for what, begins in (("false proofs", "false proof"), ("false refutations", "false refutation"), ("faults", ""))
    ]
    concluded(options, [*figures_of(stated), *judged])
    return int(bool(wrong))


if __name__ == "__main__":
    command.run(main)
