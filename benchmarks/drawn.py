"""Random operators through the whole of `optimize`, and whether what comes out is right.

    python benchmarks/drawn.py [--count 2000] [--seed 0] [--processes 2] [--csv OUT]

The operators are those of tests/random_operators.py: all kinds, monoids, relations and patterns, with weights of zeros,
arrays that are equal or have one name, sentences of one token, several outputs. Each is made cheapest for its batch, by
turns exactly and with what `optimize` allows by itself, with nothing left out but rounds of measuring, and that laws
alone, which are the same for all, are verified once a process. `right`: every program of the front gives what the model
gives in float64, for inputs that it has not seen: an exact one as nearly as the model read in float32 (or to 1e-5),
others as nearly as is stated. `beyond`: an approximate program was off by up to twice what is stated, which is a
statistic. `refused`: an InputError, listed by what it says. What must not be: `wrong` (any other number), `fault` (any
other exception)."""
import re
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from typing import NamedTuple

from lib import command
from lib.command import Figure, Parser, concluded, count, followed, tabled, takes, whole

import numpy as np
from random_operators import Drawn, random_operator

from formats.core.errors import InputError
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.routes import noted
from rewrites.extraction import Infeasible
from rewrites.graph.layers import outputs
from rewrites.run import optimize
from rewrites.verify.routed import Reference

FRESH = 48                                                  # sentences of a batch that no program has seen
NEAR, ROUGH = 1e-5, 30.0                                    # relative; times what the model itself rounds in float32
BAD = "wrong", "fault"
OUTCOMES = "right", "beyond", "refused", *BAD
COLUMNS = ("seed", "error", "outcome", "seconds", "programs", "said")


class Outcome(NamedTuple):
    """What became of the operator of a seed, within an error, and how many programs its front had."""
    seed: int
    error: float | None
    outcome: str
    seconds: float
    programs: int
    said: str

    @property
    def case(self) -> str: return f"seed {self.seed}, error {self.error}"


@cache
def machine():
    """As `optimize` prices for, once a process."""
    from opmatrix.pricing import this_machine
    return this_machine(lambda *done: None)


def know_laws() -> None:
    """From here on the laws alone, which no operator changes, are verified once."""
    from rewrites import verify
    found = cache(verify.verify_laws)
    verify.verify_laws = lambda laws, **told: dict(found(tuple(laws)))


def judge(seed: int, error: float | None) -> Outcome:
    """The operator of a seed through `optimize`."""
    start, programs = time.perf_counter(), 0
    drawn = random_operator(seed)
    with np.errstate(all="ignore"):
        try:
            result = optimize(drawn.model, workload=drawn.batch(0), error=error, machine=machine(), rounds=1)
            programs = len(result.points)
            outcome, said = max((compared(drawn, point) for point in result.points),
                                key=lambda found: OUTCOMES.index(found[0]))
        except (InputError, Infeasible) as refused: outcome, said = "refused", str(refused)
        except Exception as fault:
            place = traceback.extract_tb(fault.__traceback__)[-1]
            outcome = "fault"
            said = f"{type(fault).__name__}: {fault} ({place.filename.rpartition('/')[2]}:{place.lineno} {place.name})"
    return Outcome(seed, error, outcome, time.perf_counter() - start, programs, " ".join(said.split()))


def compared(drawn: Drawn, point) -> tuple[str, str]:
    """A program of the front on inputs that it has not seen: those of a batch of which nothing is stated for others are
    its own, where it is no exact one."""
    own = drawn.batch(0)
    batch = own if own.alone and point.methods else drawn.batch(1, None if own.alone else FRESH)
    (given, taken), found = noted(partial(point.program.run_all, batch)), ("right", "")
    for name, term in outputs(drawn.model).items():
        wanted, _, _ = Reference(partial(dense, term, batch)).beside(taken)         # where rows go as they went there
        sure = np.isfinite(wanted)                          # of what is no number nothing is right or wrong
        size, off = (np.linalg.norm(each[sure]) for each in (wanted, given[name].reshape(wanted.shape) - wanted))
        if point.methods:
            most, worst = point.stated_error * size, 2 * point.stated_error * size
        else:
            rough = np.linalg.norm((dense(term, batch, dtype=np.float32) - wanted)[sure])
            most = worst = max(NEAR * size, ROUGH * rough)
        if not off <= most:
            kind = "beyond" if off <= worst else "wrong"
            found = max(found, (kind, f"{point.name}: {name} is off by {off:.3g}, at most {most:.3g} of {size:.3g}"),
                        key=lambda each: OUTCOMES.index(each[0]))
    return found


def one(at: int, seed: int) -> Outcome:
    """By turns exact and not."""
    return judge(seed + at, None if at % 2 else 0.0)


def judged(many: int, seed: int, processes: int) -> Iterator[Outcome]:
    """The outcomes of so many operators."""
    if processes == 1:
        know_laws()
        yield from (one(at, seed) for at in range(many))
    else:
        with ProcessPoolExecutor(processes, initializer=know_laws) as pool:
            yield from pool.map(partial(one, seed=seed), range(many), chunksize=4)


def table(found: Iterable[Outcome]) -> list[str]:
    """Lines: how many there were of each outcome, refusals and what must not be by what they say."""
    found = [*found]
    counts = Counter(each.outcome for each in found)
    lines = ["".join(f"{counts[outcome]:>6} {outcome}" for outcome in OUTCOMES)]
    said = Counter((each.outcome, re.sub(r"\d[\d.e+-]*", "#", each.said)[:110])
                   for each in found if each.outcome != "right")
    return lines + [f"{count:>6} {outcome}: {words}" for (outcome, words), count in sorted(said.items())]


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--count", type=count, default=2000, help="operators")
    parser.add_argument("--seed", type=whole, default=0, help="of the first; the others follow")
    parser.add_argument("--processes", type=count, default=2)
    options = parser.parse_args()
    takes(10 + 4 * options.count / options.processes)
    found = followed(judged(options.count, options.seed, options.processes), "operators", BAD)
    for line in table(found): print(line)
    tabled(options.csv, [COLUMNS, *found])
    counts = Counter(each.outcome for each in found)
    figures = [Figure(f"{kind} of {len(found)} operators", counts[kind], most=0) for kind in BAD]
    figures += [Figure("seconds of one, at the median", float(np.median([each.seconds for each in found])), "s")]
    concluded(options, figures)
    return int(any(counts[kind] for kind in BAD))


if __name__ == "__main__": command.run(main)
