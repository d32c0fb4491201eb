"""Random operators through the whole of `optimize`, and whether what comes out is right.

    python benchmarks/drawn.py [--count 2000] [--seed 0] [--processes 2] [--csv OUT]
    python benchmarks/drawn.py --degenerate [--count 3000] [--doors explore,search,saved,optimize] [--seed 0]

The operators are those of tests/support/random_operators.py: all kinds, monoids, relations and patterns, with
weights of zeros, arrays that are equal or have one name, sentences of one token, several outputs. Each is made
cheapest for its batch, by turns exactly and with what `optimize` allows by itself, with nothing left out but rounds
of measuring, and that laws alone, which are the same for all, are verified once a process. `right`: every program of
the front gives what the model gives in float64, for inputs that it has not seen: an exact one as nearly as the model
read in float32 (or to 1e-5), others as nearly as is stated. `beyond`: an approximate program was off by up to twice
what is stated, which is a statistic. `refused`: an InputError, listed by what it says. What must not be: `wrong`
(any other number), `fault` (any other exception).

`--degenerate` draws identities, constants, aliases, one column, outputs that are inputs or one another. `--doors`
says what they go through: `explore` and `search` on a machine of random prices, on which any program may be the
cheapest; `saved`, the searched program once more, saved and loaded; `optimize`. Memory is poisoned before each run."""

import re
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from lib import command
from lib.command import Figure, Parser, concluded, count, followed, listed, named, tabled, takes, whole

import numpy as np
from poisoned import poison
from random_operators import Drawn, degenerate_operator, random_operator
from random_programs import Anything

from formats.core.errors import InputError
from opmatrix.algebra.batch.extents import collect_needs
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.routes import noted
from opmatrix.runtime.program import Program
from rewrites.egraph.layers import outputs
from rewrites.explain.exploring.exploration import explore
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS
from rewrites.run import optimize
from rewrites.search.search import search
from rewrites.verify.routed import Reference

FRESH = 48  # sentences of a batch that no program has seen
NEAR, ROUGH = 1e-5, 30.0  # relative; times what the model itself rounds in float32
BAD = "wrong", "fault"
OUTCOMES = "right", "beyond", "refused", *BAD
COLUMNS = ("seed", "error", "door", "outcome", "seconds", "programs", "said")


class Outcome(NamedTuple):
    """Outcome of the operator of a seed, within an error, through a door, and how many programs that gave."""

    seed: int
    error: float | None
    door: str
    outcome: str
    seconds: float
    programs: int
    said: str

    @property
    def case(self) -> str:
        return f"seed {self.seed}, {self.door}, error {self.error}"


class Exact(NamedTuple):
    """A program that is no point of a front: nothing is approximated."""

    name: str
    program: Program
    methods: tuple = ()
    stated_error: float = 0.0


@cache
def machine():
    """As `optimize` prices for, once a process."""
    from opmatrix.runtime.pricing import this_machine

    return this_machine(lambda *done: None)


def know_laws() -> None:
    """From here on the laws alone, which no operator changes, are verified once."""
    from rewrites import verify

    found = cache(verify.verify_laws)
    verify.verify_laws = lambda laws, **told: dict(found(tuple(laws)))


def through_explore(drawn: Drawn, error: float | None) -> list[Exact]:
    """The best program, where prices are random."""
    return [Exact("best", explore(drawn.model, drawn.batch(0), machine=random_machine(drawn)).best)]


def through_search(drawn: Drawn, error: float | None) -> list[Exact]:
    """The searched program, where prices are random."""
    extents = drawn.batch(0).extents(*collect_needs(*outputs(drawn.model).values()))
    return [Exact("searched", search(drawn.model, EXACT_LAWS, random_machine(drawn), extents).program({})[0])]


def through_files(drawn: Drawn, error: float | None) -> list[Exact]:
    """The searched program, saved and loaded."""
    [searched] = through_search(drawn, error)
    with tempfile.TemporaryDirectory() as folder:
        searched.program.save(Path(folder) / "program")
        return [Exact("saved", Program.load(Path(folder) / "program", copy=True))]


def through_optimize(drawn: Drawn, error: float | None) -> list:
    """All programs of the front."""
    result = optimize(drawn.model, workload=drawn.batch(0), error=error, machine=machine(), rounds=1)
    return [*result.points]


def random_machine(drawn: Drawn) -> Anything:
    """A machine of random prices, the same for an operator each time."""
    return Anything(np.random.default_rng([drawn.seed, 3]))


DOORS: dict[str, Callable[[Drawn, float | None], list]] = {
    "explore": through_explore,
    "search": through_search,
    "saved": through_files,
    "optimize": through_optimize,
}


def judge(
    seed: int, error: float | None, draw: Callable[[int], Drawn] = random_operator, door: str = "optimize"
) -> Outcome:
    """The operator of a seed through a door."""
    start, programs = time.perf_counter(), 0
    drawn = draw(seed)
    with np.errstate(all="ignore"):
        try:
            points = DOORS[door](drawn, error)
            programs = len(points)
            outcome, said = max(
                (compared(drawn, point) for point in points), key=lambda found: OUTCOMES.index(found[0])
            )
        except (InputError, Infeasible) as refused:
            outcome, said = "refused", str(refused)
        except Exception as fault:
            place = traceback.extract_tb(fault.__traceback__)[-1]
            outcome = "fault"
            said = f"{type(fault).__name__}: {fault} ({place.filename.rpartition('/')[2]}:{place.lineno} {place.name})"
    return Outcome(seed, error, door, outcome, time.perf_counter() - start, programs, " ".join(said.split()))


def compared(drawn: Drawn, point) -> tuple[str, str]:
    """A program of the front on inputs that it has not seen: those of a batch of which nothing is stated for others are
    its own, where it is no exact one."""
    own = drawn.batch(0)
    batch = own if own.alone and point.methods else drawn.batch(1, None if own.alone else FRESH)
    (given, taken), found = noted(partial(point.program.run_all, batch)), ("right", "")
    for name, term in outputs(drawn.model).items():  # of several heads side by side
        wanted, _, _ = Reference(partial(dense, term, batch)).beside(taken)  # where rows go as they went there
        sure = np.isfinite(wanted)  # of what is no number nothing is right or wrong
        size, off = (np.linalg.norm(each[sure]) for each in (wanted, given[name].reshape(wanted.shape) - wanted))
        if point.methods:
            most, worst = point.stated_error * size, 2 * point.stated_error * size
        else:
            rough = np.linalg.norm((dense(term, batch, dtype=np.float32) - wanted)[sure])
            most = worst = max(NEAR * size, ROUGH * rough)
        if not off <= most:
            kind = "beyond" if off <= worst else "wrong"
            found = max(
                found,
                (kind, f"{point.name}: {name} is off by {off:.3g}, at most {most:.3g} of {size:.3g}"),
                key=lambda each: OUTCOMES.index(each[0]),
            )
    return found


def one(at: int, seed: int) -> Outcome:
    """Through `optimize`, by turns exact and not."""
    return judge(seed + at, None if at % 2 else 0.0)


def through_doors(at: int, seed: int, draw: Callable[[int], Drawn], doors: Iterable[str]) -> list[Outcome]:
    """An operator through each door, by turns exact and not."""
    return [judge(seed + at, None if at % 2 else 0.0, draw, door) for door in doors]


def begin_process() -> None:
    """Verify laws and poison memory, before a process judges operators."""
    know_laws()
    poison(SimpleNamespace(setattr=setattr))


def judged(many: int, judge_one: Callable[[int], list[Outcome]], processes: int) -> Iterator[Outcome]:
    """The outcomes of so many operators."""
    if processes == 1:
        begin_process()
        for at in range(many):
            yield from judge_one(at)
    else:
        with ProcessPoolExecutor(processes, initializer=begin_process) as pool:
            for found in pool.map(judge_one, range(many), chunksize=4):
                yield from found


def table(found: Iterable[Outcome]) -> list[str]:
    """Lines: how many there were of each outcome through each door, refusals and what must not be by what they say."""
    found = [*found]
    counts = Counter((each.door, each.outcome) for each in found)
    doors = dict.fromkeys(each.door for each in found)
    lines = [f"{door:>10}" + "".join(f"{counts[door, outcome]:>6} {outcome}" for outcome in OUTCOMES) for door in doors]
    said = Counter(
        (each.outcome, re.sub(r"\d[\d.e+-]*", "#", each.said)[:110]) for each in found if each.outcome != "right"
    )
    return lines + [f"{count:>6} {outcome}: {words}" for (outcome, words), count in sorted(said.items())]


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--count", type=count, default=2000, help="operators")
    parser.add_argument("--seed", type=whole, default=0, help="of the first; the others follow")
    parser.add_argument("--processes", type=count, default=2)
    parser.add_argument("--degenerate", action="store_true", help="identities, constants, aliases, shared outputs")
    parser.add_argument("--doors", type=listed, default=["optimize"], help=f"of {', '.join(DOORS)}")
    options = parser.parse_args()
    named("doors", options.doors, DOORS)
    takes(10 + 4 * options.count * len(options.doors) / options.processes)
    draw = degenerate_operator if options.degenerate else random_operator
    judge_one = partial(through_doors, seed=options.seed, draw=draw, doors=options.doors)
    found = followed(judged(options.count, judge_one, options.processes), "operators", BAD)
    for line in table(found):
        print(line)
    tabled(options.csv, [COLUMNS, *found])
    counts = Counter(each.outcome for each in found)
    print(f"{counts['wrong']} wrong, {counts['fault']} faults of {options.count} operators")
    figures = [Figure(f"{kind} of {options.count} operators", counts[kind], most=0) for kind in BAD]
    figures += [Figure("seconds of one, at the median", float(np.median([each.seconds for each in found])), "s")]
    concluded(options, figures)
    return int(any(counts[kind] for kind in BAD))


if __name__ == "__main__":
    command.run(main)
