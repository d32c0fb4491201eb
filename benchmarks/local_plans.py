"""Six plans for four ranks of this machine, run by `launch`: whether the plan's first is among the two fastest.

    python benchmarks/local_plans.py [--width 256] [--layers 4] [--tokens 64] [--batch 8] [--plans 6] [--rounds 5]
        [--steps 3] [--infer] [--csv OUT]

A GPT-2 of drawn weights is planned as `opmatrix plan --machine local` does it: rates of ranks are measured, then every
strategy that `launch` runs is foreseen; the fastest of each way to factor four ranks are taken. Each is run by four
processes over gloo, one BLAS thread each, in rounds that take turns; a round's seconds are the median of its steps
behind the first, a plan's the median of its rounds. The bar is of the plan's first; the orders are printed."""

from statistics import median

from lib import command
from lib.command import Figure, Parser, concluded, cores, count, spread, tabled, takes, within

import numpy as np

from formats.core.errors import InputError
from opmatrix.parallel.launch.launcher import Ranks
from opmatrix.parallel.launch.local_ranks import launch_job, launch_line, local_plan
from opmatrix.parallel.launch.rank_rates import rank_rates

RANKS, WORDS = 4, 64
COLUMNS = "plan", "foreseen_seconds", "measured_seconds", "spread", "line"


def configuration(options) -> dict[str, object]:
    return dict(
        model_type="gpt2",
        vocab_size=WORDS,
        n_embd=options.width,
        n_positions=options.tokens,
        n_head=4,
        n_layer=options.layers,
    )


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--width", type=count, default=256, help="a multiple of four")
    parser.add_argument("--layers", type=count, default=4)
    parser.add_argument("--tokens", type=count, default=64, help="of each sequence")
    parser.add_argument("--batch", type=count, default=8, help="sequences")
    parser.add_argument("--plans", type=count, default=6, help="the best, of as many ways to factor the ranks")
    parser.add_argument("--rounds", type=count, default=5, help="of all plans, one after another")
    parser.add_argument("--steps", type=count, default=3, help="of a plan in a round, behind the first")
    parser.add_argument("--infer", action="store_true", help="a forward pass in place of a step of training")
    options = parser.parse_args()
    if options.width % 4:
        parser.error(f"--width {options.width}: a multiple of 4")
    within("rounds", options.rounds, 100)
    within("steps", options.steps, 100)
    within("plans", options.plans, 10, 2)
    takes(20 + 4 * options.plans * options.rounds)
    rates = rank_rates(RANKS)
    found = local_plan(
        configuration(options),
        RANKS,
        rates,
        batch=options.batch,
        seq=options.tokens,
        infer=options.infer,
        keep=options.plans,
        name="gpt2",
    )
    if len(found.best) < options.plans:
        raise InputError(f"--plans {options.plans}: there are {len(found.best)} ways to factor {RANKS} ranks")
    ids = np.random.default_rng(0).integers(0, WORDS, (options.batch, options.tokens + (not options.infer))).tolist()
    jobs, seconds = [launch_job(found, each, ids, 1 + options.steps) for each in found.best], [[] for _ in found.best]
    with Ranks(RANKS, deadline=120) as ranks:
        for _ in range(options.rounds):
            for job, own in zip(jobs, seconds, strict=True):
                own.append(ranks.run(job).later)
    rows = [
        (str(each), each.seconds, median(own), spread(own), launch_line(found, each, "gpt2.json"))
        for each, own in zip(found.best, seconds, strict=True)
    ]
    print(f"{'foreseen':>10}{'measured':>12}")
    for name, foreseen, measured, _, _ in rows:
        print(f"{foreseen:>8.3f} s{measured:>10.3f} s  {name}")
    tabled(options.csv, [COLUMNS, *rows])
    place = sorted(range(len(rows)), key=lambda at: rows[at][2]).index(0)
    print(
        f"\na rank alone: {rates.product / 1e9:.1f} Gflop/s, {rates.passed / 1e9:.2f} GB/s of what is no product, "
        f"{1e6 * rates.issued:.0f} us an operation; ranks meet in {1e3 * rates.met:.2f} ms, hand over "
        f"{rates.wire / 1e9:.2f} GB/s each, and get {rates.processors:.2f} times as much done as one"
    )
    concluded(
        options,
        [
            Figure("place of the plan's first among those measured", place + 1, most=2),
            Figure("its seconds over the fastest's", rows[0][2] / min(row[2] for row in rows)),
            Figure("processors of four ranks", cores()),
        ],
    )
    return int(place > 1)


if __name__ == "__main__":
    command.run(main)
