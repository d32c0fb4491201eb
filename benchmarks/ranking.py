"""Whether the prices rank programs as the clock does: predicted against measured seconds, and Kendall's tau.

    python benchmarks/ranking.py [--model minilm] [--tokens 128] [--rounds 15] [--apart 1.1] [--csv OUT]

Alternatives are the import, fusion, the optimum, optima without some laws, and approximations over a ladder of errors.
Of these the most are kept whose predicted times differ by a factor of `--apart` from one to the next."""
import argparse
import csv
import os
import sys
from pathlib import Path

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_THREAD_TIMEOUT": "4"}
sys.path[0] = str(Path(__file__).parents[1])                # not this folder: its formats.py is not the package

from scipy.stats import kendalltau  # noqa: E402

from formats.machine import this_machine  # noqa: E402
from formats.quiet import watched  # noqa: E402
from opmatrix.checkpoint import open_model  # noqa: E402
from opmatrix.measure import measure, medians  # noqa: E402
from rewrites.extraction import Infeasible  # noqa: E402
from rewrites.laws import EXACT_LAWS  # noqa: E402
from rewrites.report import Report, table  # noqa: E402
from rewrites.run import Run, without  # noqa: E402
from rewrites.workload import Workload  # noqa: E402

COLUMNS = "program", "predicted_ms", "measured_ms", "measured_over_predicted"
ERRORS = [0.01 * 1.25 ** step for step in range(24)]
LEFT = ["join"], ["join", "stack_columns", "stack_rows"], ["absorb_keys"]        # names of laws that there are


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--apart", type=float, default=1.1)
    parser.add_argument("--csv", type=Path, help="write the table there, too")
    given = parser.parse_args()
    watched()
    checkpoint = open_model(given.model)
    workload = Workload.of(checkpoint, tokens=given.tokens)
    run = Run(checkpoint.operator(), workload, this_machine(), EXACT_LAWS, Report(quiet=True))
    kept = apart(alternatives(run), given.apart)
    taken = medians(measure({name: program for name, _, program in kept}, [run.workload.timed], given.rounds))
    rows = [(name, 1e3 * ahead, 1e3 * taken[name], taken[name] / ahead) for name, ahead, _ in kept]
    print(table([[name, *(f"{figure:.3f}" for figure in figures)] for name, *figures in rows],
                ["", "ms predicted", "ms measured", "measured / predicted"]))
    tau = kendalltau([row[1] for row in rows], [row[2] for row in rows]).statistic
    print(f"\n{len(rows)} alternatives, {given.apart} times apart or more: Kendall's tau {tau:.3f}")
    if given.csv:
        with given.csv.open("w", newline="") as file: csv.writer(file).writerows([COLUMNS, *rows])


def alternatives(run):
    """(name, predicted seconds, program)."""
    run.explore()
    found = [(name, structure.time, run.programs[name]) for name, structure in run.structures.items()]
    for names in LEFT:
        try: structure = run.structure(without(run.laws, names))
        except Infeasible: continue
        found.append((f"without {', '.join(names)}", structure.time, structure.program({})[0]))
    plain = run.structure(run.laws, fusion=False)
    found.append(("laws without fusion", plain.time, plain.program({})[0]))
    run.approximate(max(ERRORS), lambda *_: None)
    for error in ERRORS:
        for weights in ((1, 0, 0), (1e-3, 1e-12, 0)):
            try: choice = run.choices.choose(error, None, weights)
            except Infeasible: continue
            name = f"{'fastest' if weights[0] == 1 else 'smallest'} at {error:.3g}"
            found.append((name, choice.time, run.choices.program(choice, {})))
    return found


def apart(found, factor):
    """As many as possible, each so many times as slow as the one before it: greedily from the fastest."""
    kept = []
    for each in sorted(found, key=lambda one: one[1]):
        if not kept or each[1] >= factor * kept[-1][1]: kept.append(each)
    return kept


if __name__ == "__main__": main()
