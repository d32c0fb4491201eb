"""What each part of extraction is worth: the same graphs with one part of the search left out at a time.

    python benchmarks/ablation.py DIR [--time-limit S] [--generated] [--csv OUT]

Graphs are those of a folder of egraph-serialize JSON files, generated ones, and those that the exact search of
BERT-base asks for. `cost` is the geometric mean of costs over those with nothing left out, at equal time limits;
`proved` says how many answers are proved optimal within it.
"""

from contextlib import ExitStack
from math import exp, log
from typing import Any
from unittest.mock import patch

from lib import command
from lib.command import Figure, concluded, say, tabled, takes

import scipy.optimize  # noqa: F401  (its import is not extraction's time)
from extraction import asking, problems
from search import bert

from opmatrix.algebra.batch.extents import counted
from opmatrix.display.tables import table
from opmatrix.runtime.pricing import this_machine
from rewrites.extraction import cuts, extract, verify
from rewrites.extraction.bounding import Search
from rewrites.laws import EXACT_LAWS
from rewrites.search import search as compiler

NEVER = dict(autospec=True, return_value=False)
PARTS: dict[str, list[tuple[Any, str, dict[str, Any]]]] = {  # what is patched, and by what
    "nothing": [],
    "annealing": [(Search, "walked", NEVER)],
    "neighbourhoods": [(Search, "neighbours", NEVER)],
    "programs at noisy prices": [(Search, "scatter", NEVER)],
    "landmark cuts": [(Search, "cheap", NEVER)],
    "cuts of the relaxation": [(cuts, "thresholds", dict(return_value=())), (cuts, "flows", dict(return_value=()))],
    "the relaxation": [(Search, "relaxed", NEVER)],
    "0/1 programs": [(Search, "integral", NEVER)],
}


def main() -> None:
    given = asking(__doc__, 2.0).parse_args()
    graphs = [*problems(given.folder, given.generated), *asked()]
    takes(0.4 * len(PARTS) * given.time_limit * len(graphs))
    found = {part: solved(part, graphs, given.time_limit) for part in PARTS}
    lines = [compared(part, answers, found["nothing"]) for part, answers in found.items()]
    print(table(lines, ["left out", "cost", "worst", "better", "worse", "proved", "seconds"]))
    tabled(
        given.csv,
        [
            ["part", "graph", "cost", "bound", "seconds"],
            *(
                [part, name, each.cost, each.bound, each.seconds]
                for part, answers in found.items()
                for name, each in answers.items()
            ),
        ],
    )
    left = [answers for part, answers in found.items() if PARTS[part]]
    concluded(
        given,
        [
            Figure(
                f"parts of {len(left)} without which an answer is dearer, unproved, or all take a tenth longer",
                float(sum(pays(answers, found["nothing"]) for answers in left)),
            )
        ],
    )


def asked():
    """The problems that the exact search of BERT-base extracts."""
    taken = []

    def kept(problem, **options):
        taken.append((f"model {len(taken)}", problem))
        return extract(problem, **options)

    with patch.object(compiler, "extract", kept):
        compiler.search(bert(12, 768), EXACT_LAWS, this_machine(), counted([128]))
    return taken


def solved(part, graphs, seconds):
    """The answers with a part left out, each checked against the definition."""
    found = {}
    with ExitStack() as stack:
        for owner, name, options in PARTS[part]:
            stack.enter_context(patch.object(owner, name, **options))
        for name, problem in graphs:
            found[name] = extract(problem, time_limit=seconds)
            verify(problem, found[name])
    say(f"without {part}")
    return found


def compared(part, answers, whole):
    ratios = [(each.cost + 1e-30) / (whole[name].cost + 1e-30) for name, each in answers.items()]
    return [
        part,
        *map(
            str,
            (
                f"{exp(sum(map(log, ratios)) / len(ratios)):.5f}",
                f"{max(ratios):.4f}",
                sum(each < 1 - 1e-9 for each in ratios),
                sum(each > 1 + 1e-9 for each in ratios),
                sum(each.optimal for each in answers.values()),
                f"{sum(each.seconds for each in answers.values()):.1f}",
            ),
        ),
    ]


def pays(answers, whole):
    """Whether answers are dearer, fewer are proved, or they take a tenth and a second longer."""
    taken, before = (sum(each.seconds for each in found.values()) for found in (answers, whole))
    return (
        any(each.cost > whole[name].cost * (1 + 1e-9) for name, each in answers.items())
        or sum(each.optimal for each in answers.values()) < sum(each.optimal for each in whole.values())
        or taken > 1.1 * before + 1
    )


if __name__ == "__main__":
    command.run(main)
