"""Whether the prices rank programs as the clock does: predicted against measured seconds, and Kendall's tau.

    python benchmarks/ranking.py [--model minilm] [--tokens 128] [--rounds 15] [--apart 1.1] [--csv OUT]

Alternatives are the import, fusion, the optimum, optima without some laws, and approximations over a ladder of errors.
Of these the most are kept whose predicted times differ by a factor of `--apart` from one to the next."""

from statistics import median

from lib import command
from lib.command import Figure, Parser, concluded, count, number, say, shown, spread, tabled, takes

from scipy.stats import kendalltau

from opmatrix.display.tables import table
from opmatrix.files.checkpoint import open_model
from opmatrix.runtime.measure import measure, medians
from opmatrix.runtime.pricing import this_machine
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS, without
from rewrites.opened import Opened, search_exact
from rewrites.run import propose_approximations
from rewrites.workload.workload import Workload

COLUMNS = "program", "predicted_ms", "measured_ms", "measured_over_predicted", "spread"
ERRORS = [0.01 * 1.25**step for step in range(24)]
LEFT = ["join"], ["join", "stack_columns", "stack_rows"], ["absorb_keys"]  # names of laws that there are


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--tokens", type=count, default=128)
    parser.add_argument("--rounds", type=count, default=15)
    parser.add_argument("--apart", type=number(float, 1, 100, "from 1 to 100"), default=1.1)
    given = parser.parse_args()
    takes(30 + 0.4 * given.rounds)
    checkpoint = open_model(given.model)
    workload = Workload.of(checkpoint, tokens=given.tokens)
    kept = apart(alternatives(Opened(checkpoint.operator(), workload, this_machine(), EXACT_LAWS)), given.apart)
    say(f"{len(kept)} programs, {given.rounds} rounds")
    rounds = measure({name: program for name, _, program in kept}, [workload.timed], given.rounds)
    taken = medians(rounds)
    rows = [
        (name, 1e3 * ahead, 1e3 * taken[name], taken[name] / ahead, spread(rounds[name])) for name, ahead, _ in kept
    ]
    print(
        table(
            [[name, *(f"{figure:.3f}" for figure in figures), shown(wide)] for name, *figures, wide in rows],
            ["", "ms predicted", "ms measured", "measured / predicted", "spread"],
        )
    )
    tau = float(kendalltau([row[1] for row in rows], [row[2] for row in rows]).statistic) if len(rows) > 1 else None
    tabled(given.csv, [COLUMNS, *rows])
    wide = [row[4] for row in rows if row[4] is not None]
    what = f"Kendall's tau of {len(rows)} programs, each {given.apart:g} times as slow as the next"
    off = median(abs(1 - 1 / row[3]) for row in rows)
    concluded(
        given,
        [
            Figure(what, tau, spread=median(wide) if wide else None, ceiling=1, why="one program is no order"),
            Figure("predicted seconds off by, median", 100 * off, "%"),
        ],
    )


def alternatives(opened):
    """(name, predicted seconds, program)."""
    searched = search_exact(opened)
    found = [(name, structure.time, searched.programs[name]) for name, structure in searched.structures.items()]
    for names in LEFT:
        try:
            structure = opened.structure(without(opened.laws, names))
        except Infeasible:
            continue
        found.append((f"without {', '.join(names)}", structure.time, structure.program({})[0]))
    plain = opened.structure(opened.laws, fusion=False)
    found.append(("laws without fusion", plain.time, plain.program({})[0]))
    choices = propose_approximations(searched, max(ERRORS)).choices
    for error in ERRORS:
        for weights in ((1, 0, 0), (1e-3, 1e-12, 0)):
            try:
                choice = choices.choose(error, None, weights)
            except Infeasible:
                continue
            name = f"{'fastest' if weights[0] == 1 else 'smallest'} at {error:.3g}"
            found.append((name, choice.time, choices.program(choice, {})))
    return found


def apart(found, factor):
    """As many as possible, each so many times as slow as the one before it: greedily from the fastest."""
    kept = []
    for each in sorted(found, key=lambda one: one[1]):
        if not kept or each[1] >= factor * kept[-1][1]:
            kept.append(each)
    return kept


if __name__ == "__main__":
    command.run(main)
