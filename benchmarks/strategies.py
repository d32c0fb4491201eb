"""How fast strategies are predicted, and whether columns of them are what each is alone.

    python benchmarks/strategies.py [--rounds 5] [--csv OUT]

A strategy counts where it is legal and both its seconds and its peak are predicted. `whole` is a search from a question
on, the reading of the model and the writing of its tape included; `columns` what runs again where sizes are others. A
thousand strategies that are drawn are predicted alone, in Python's numbers. One core; seconds are of this
process, not of a clock on the wall, and the least of some rounds."""

import resource
import time

from lib import command
from lib.command import Figure, Parser, concluded, number, say, tabled, takes

import numpy as np

COLUMNS = "model", "devices", "strategies", "whole_s", "columns_s", "a second"
ASKED = (
    ("gpt3-175b", 1024, "A100", 1536, 2048),
    ("llama3-405b", 16384, "H100", 16384, 8192),
    ("gpt3-175b", 10000, "A100", 10000, 2048),
    ("gpt3-175b", 10080, "A100", 20160, 2048),
)
DRAWN = 1000


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--rounds", type=number(int, 1, 100, "a whole number from 1 to 100"), default=5)
    given = parser.parse_args()
    takes(60)
    rows = [timed(*each, given.rounds) for each in ASKED]
    say("drawn strategies, each alone")
    first, large = rows[0], max(row[3] for row in rows if row[1] >= 10000)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    tabled(given.csv, [COLUMNS, *rows])
    concluded(
        given,
        [
            Figure("strategies a second, columns", first[5], least=1e6),
            Figure("GPT-3 on 1,024 devices, whole", first[3], "s", most=2),
            Figure("10,000 devices and more, whole", large, "s", most=30),
            Figure("furthest of 1,000 strategies from each alone", furthest(), most=1e-12),
            Figure("memory of the process", peak, "GB", most=1),
        ],
    )


def question(model, devices, machine, batch, seq):
    from opmatrix.models import known
    from opmatrix.parallel.search.strategy_search import PlanQuestion
    from opmatrix.runtime.pricing import datasheet

    return PlanQuestion(known.configuration(model), datasheet(machine), devices, batch, seq, 80e9)


def timed(model, devices, machine, batch, seq, rounds):
    """A row: seconds of a search from the question on, and of columns alone."""
    from opmatrix.parallel.cost.layer_work import read_model
    from opmatrix.parallel.search.strategy_search import compile_forms, predict_columns, search_strategies

    whole, columns = [], []
    for _ in range(rounds):
        read_model.cache_clear()
        asked, begin = question(model, devices, machine, batch, seq), time.process_time()
        found = search_strategies(asked)
        whole.append(time.process_time() - begin)
        programs = compile_forms(asked, asked.forms)
        begin = time.process_time()
        predict_columns(asked, programs)
        columns.append(time.process_time() - begin)
    rate = found.count / min(columns)
    say(f"{model} on {devices}: {found.count:,} strategies, {min(whole):.2f} s, {rate:,.0f} a second")
    return model, devices, found.count, min(whole), min(columns), rate


def furthest():
    """The largest relative difference of a thousand strategies' seconds and bytes from each alone."""
    from opmatrix.parallel.search.forms import FormMasks
    from opmatrix.parallel.search.strategy_search import SIZE_NAMES, compile_forms

    asked = question(*ASKED[0])
    sizes, programs = asked.sizes, compile_forms(asked, asked.forms)
    values = np.empty((len(programs.program.results), len(sizes)))
    programs.program({name: getattr(sizes, name).astype(float) for name in SIZE_NAMES}, values)
    legal, far = np.argwhere(FormMasks(asked.forms, asked.limits, asked.seq)(sizes)), 0.0
    for form, row in np.random.default_rng(0).permutation(legal)[:DRAWN]:
        alone = asked.predicted(asked.forms[form], sizes.row(row))
        for found, wanted in (
            (values[programs.times[form], row], alone.step_seconds),
            (values[programs.peaks[form], row], alone.driver),
        ):
            far = max(far, abs(found - wanted) / wanted)
    return far


if __name__ == "__main__":
    command.run(main)
