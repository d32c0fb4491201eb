"""Random models on random meshes: whether formulas of partitions are what virtual ranks count.

    python benchmarks/partitions.py [--backward] [--count 1000] [--seed 0] [--processes 2] [--csv OUT]

Models of BERT, GPT-2, LLaMA and `transformer` of random sizes, heads, norms, gates, masks; meshes of one to three
axes of any strategies that go together, 2 to 8 ranks, in any order; batches that nothing divides
(tests/support/partitioned.py). `right`: operations, payload, wire, messages, stored numbers and peak of every rank
are what the formulas say, exactly, and the output is one rank's to 1e-12. `advised`: meshes that were refused first,
and then changed as the refusal says. What must not be: `wrong`, `fault` (an exception, or a refusal that advises
nothing). Seconds are those of one model: its formulas, one rank's output and all virtual ranks.

`--backward`: forward and backward under a random policy, a third with dropout (tests/support/trained_ranks.py).
`right`: the counts are what the formulas say, sums of gradients and the peak of both ways, too, and gradients are
one rank's to 1e-12. Where an axis cuts weights, every fourth runs again without the sums of the cotangents that
matrices of cut rows give: the control. It must differ, or it is `unnoticed`."""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

from lib import command
from lib.command import Figure, Parser, concluded, count, followed, tabled, takes, whole

import numpy as np
from partitioned import compared, random_arrays, random_case
from trained_ranks import noticed, random_training_case, trained

from opmatrix.models import build

BAD = "wrong", "fault", "unnoticed"
CONTROLS = 4  # of so many cases one is a control, too
COLUMNS = ("seed", "strategies", "ranks", "outcome", "error", "advised", "seconds", "said")


class Outcome(NamedTuple):
    """What became of the case of a seed: relative error of the output, refusals that were followed."""

    seed: int
    strategies: str
    ranks: int
    outcome: str
    error: float
    advised: int
    seconds: float
    said: str

    @property
    def case(self) -> str:
        return f"seed {self.seed}"


def judge(seed: int, backward: bool = False) -> Outcome:
    """The case of a seed, run."""
    start = time.perf_counter()
    try:
        case, advised, found, outcome = (run_backward if backward else run_forward)(seed)
    except Exception as fault:
        return Outcome(seed, "", 0, "fault", np.nan, 0, time.perf_counter() - start, f"{type(fault).__name__}: {fault}")
    names = " ".join(f"{axis.strategy.name}:{axis.ranks}" for axis in case.mesh)
    said = "" if outcome == "right" else f"{case}: {found.differences[:2]}"
    return Outcome(seed, names, int(case.mesh.ranks), outcome, found.error, advised, time.perf_counter() - start, said)


def run_forward(seed):
    """A case forward, how often its mesh was changed, how it compares, what became of it."""
    case = random_case(seed)
    found = compared(build(case.config, random_arrays()), case.mesh, case.sequences, case.tokens)
    return case, len(case.advised), found, "right" if found.agrees else "wrong"


def run_backward(seed):
    """A case forward and backward, and every few the control."""
    case = random_training_case(seed)
    found = trained(case)
    if not found.agrees:
        return case, case.changed, found, "wrong"
    cut = any(axis.strategy.weights for axis in case.mesh)
    return case, case.changed, found, "unnoticed" if cut and seed % CONTROLS == 0 and not noticed(case) else "right"


def judged(many: int, seed: int, processes: int, backward: bool = False) -> Iterator[Outcome]:
    """The outcomes of so many cases."""
    seeds, one = range(seed, seed + many), partial(judge, backward=backward)
    if processes == 1:
        yield from map(one, seeds)
    else:
        with ProcessPoolExecutor(processes) as pool:
            yield from pool.map(one, seeds, chunksize=8)


def table(found: list[Outcome]) -> list[str]:
    """A line a strategy: in how many cases it had several ranks, right ones, and the largest error."""
    lines = [f"{'strategy':<22}{'cases':>6}{'right':>6}  largest error"]
    held: dict[str, list[Outcome]] = {}
    for each in found:
        for axis in each.strategies.split():
            if not axis.endswith(":1"):
                held.setdefault(axis.partition(":")[0], []).append(each)
    for name, cases in sorted(held.items()):
        right = sum(each.outcome == "right" for each in cases)
        lines.append(f"{name:<22}{len(cases):>6}{right:>6}  {max(each.error for each in cases):.1e}")
    axes = Counter(sum(not axis.endswith(":1") for axis in each.strategies.split()) for each in found)
    return [*lines, "", ", ".join(f"{axes[n]} of {n} axes" for n in sorted(axes) if n)]


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--count", type=count, default=1000, help="models, each on a mesh")
    parser.add_argument("--seed", type=whole, default=0, help="of the first; the others follow")
    parser.add_argument("--processes", type=count, default=2)
    parser.add_argument("--backward", action="store_true", help="forward and backward, gradients and what is kept")
    options = parser.parse_args()
    takes(5 + (1.6 if options.backward else 0.4) * options.count / options.processes)
    found = followed(judged(options.count, options.seed, options.processes, options.backward), "models", BAD)
    for line in table(found):
        print(line)
    tabled(options.csv, [COLUMNS, *found])
    counts = Counter(each.outcome for each in found)
    figures = [Figure(f"{kind} of {len(found)} partitions", counts[kind], most=0) for kind in BAD]
    figures += [
        Figure(
            "largest error of " + ("gradients" if options.backward else "an output"),
            float(np.nanmax([each.error for each in found])),
            most=1e-12,
        ),
        Figure("meshes changed as a refusal says", sum(bool(each.advised) for each in found)),
        Figure("seconds of one, at the median", float(np.median([each.seconds for each in found])), "s"),
    ]
    concluded(options, figures)
    return int(any(counts[kind] for kind in BAD))


if __name__ == "__main__":
    command.run(main)
