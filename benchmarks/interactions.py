"""What two techniques bring together, in both orders, against what each brings alone.

    python benchmarks/interactions.py [--model minilm] [--pairs CSV] [--only int8,2:4,units] [--workload 8x128]
                                      [--quick] [--csv OUT]

The second technique is fitted to what the first has left, on the activations of that model, to the sentences of every
other pair without its score; the other pairs judge. A number type comes last, as it only says how numbers are stored;
of two number types the first stores the square weights, those of attention, and the second all others. A weight is
stored as the last structure that took it, in bytes where there is such a format. Apart, factors of time and of memory
multiply, and losses of cosine and rank correlation add, and so do squares of errors: what the search supposes."""

import tempfile
from collections.abc import Iterator
from functools import cached_property
from itertools import permutations
from pathlib import Path
from statistics import median
from typing import NamedTuple

from lib import command
from lib.command import Figure, Parser, concluded, listed, named, readable, say, tabled, takes

import numpy as np
from all import DATA
from composition import halves
from quality import FFN_LEFT, TECHNIQUES, compressed, joined, matrices, scored

from formats import FORMATS
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import factors
from opmatrix.algebra.term import Operator
from opmatrix.display.tables import table
from opmatrix.files.checkpoint import open_model
from opmatrix.runtime.pricing import this_machine
from rewrites.approximate.removing import METRICS, Level, remove_groups
from rewrites.approximate.structured import weight_and_bias
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.lower import Method, plainly
from rewrites.lowering.mixed import parse_mix
from rewrites.lowering.narrowing import narrowed
from rewrites.metrics.pairs import SentencePairs
from rewrites.opened import Opened, Searched, search_exact
from rewrites.search.search import SearchSpace, cheapest
from rewrites.workload.phases import silence_stdout
from rewrites.workload.resolve import source
from rewrites.workload.workload import Workload, calibration

NUMBERS = "int8", "bf16", "int4"
FITS = {"low rank": TECHNIQUES["low rank"], "2:4": TECHNIQUES["2:4"], "half": TECHNIQUES["half of the entries"]}
LEVELS = {"units": Level(0.5), "heads": Level(heads=0.25)}
PAIRED = {("nm", "int8"): "nmint8", ("lowrank", "int8"): "lowrankint8"}
NAMES = (*NUMBERS, *FITS, *LEVELS)
QUICK, QUICK_ROWS, QUICK_PAIRS = ("int8", "2:4", "units"), 2048, 100
COLUMNS = (
    "first",
    "second",
    "time",
    "time_apart",
    "memory",
    "memory_apart",
    "error",
    "error_apart",
    "cosine_lost",
    "cosine_lost_apart",
    "spearman_lost",
    "spearman_lost_apart",
)


class State(NamedTuple):
    """A model by some techniques. `stored` says by label which structure a weight has; `numbers` which number type
    square weights have, and all others."""

    model: Operator
    stored: dict[str, Method]
    numbers: tuple[str, str] = ("", "")

    def by(self, name: str, batch: Batch) -> "State":
        """The same by one technique more."""
        if name in NUMBERS:
            first = self.numbers[0]
            return self._replace(numbers=(first or name, name))
        if name in LEVELS:
            less = remove_groups(self.model, LEVELS[name], batch)
            changed = {cut.weight for cut in less.cuts}  # they are dense again
            return self._replace(
                model=less.model,
                stored={label: method for label, method in self.stored.items() if label not in changed},
            )
        model, _ = compressed(self.model, FITS[name], batch, METRICS[0])
        own = {data.label: structure(name, *data.shape) for data in weights(model) if FITS[name].takes(*data.shape)}
        return self._replace(model=model, stored=self.stored | own)

    def methods(self, lowering, use):
        """What a use is stored by."""
        leaves = lowering.arrays(use.weight)
        if use.layout == "stack" or not leaves:
            return plainly(lowering, use)
        one, *others = [self.stored.get(each.label) for each in leaves]
        n, p = leaves[0].shape
        method = narrow(one if all(each == one for each in others) else None, self.numbers[n != p])
        plain = method.plain or (lowering.gathers(use) and not lowering.gatherable(use, method))
        return plainly(lowering, use) if plain else (method,)


class Outcome(NamedTuple):
    """Predicted seconds, stored bytes, the relative change of embeddings, what is lost of 1 in mean cosine and of 100
    times the rank correlation."""

    seconds: float
    bytes: float
    error: float
    cosine: float
    spearman: float


class Judge:
    """Programs of one model, beside its exact one."""

    def __init__(self, searched: Searched, pairs: SentencePairs) -> None:
        self.searched, self.pairs = searched, pairs

    @cached_property
    def exact(self):
        return *scored(self.searched.exact, self.pairs), self.searched.optimum.time

    def outcome(self, state: State) -> Outcome:
        own = self.searched.space
        structure = cheapest(SearchSpace(state.model, own.laws, own.machine, own.extents, like=own), state.methods)
        program = narrowed(structure.program(self.searched.opened.meta)[0], own.prices)
        (whole, wanted, _), (correlation, found) = self.exact, scored(program, self.pairs)
        return Outcome(
            structure.time,
            program.stored_bytes,
            float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted)),
            1 - float((found * wanted).sum(1).mean()),
            whole - correlation,
        )

    def factor(self, outcome: Outcome) -> Outcome:
        """Seconds and bytes as shares of the exact program's."""
        return outcome._replace(
            seconds=outcome.seconds / self.exact[2], bytes=outcome.bytes / self.searched.exact.stored_bytes
        )


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--pairs", type=readable, default=DATA / "sts" / "stsb-en-dev.csv")
    parser.add_argument("--only", type=listed, help=", ".join(NAMES))
    parser.add_argument("--workload", default="8x128")
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK)} on fewer rows and pairs")
    given = parser.parse_args()
    names = given.only or (QUICK if given.quick else NAMES)
    named("only", names, NAMES)
    takes(25 * len(names) if given.quick else 25 * len(names) ** 2)
    with tempfile.TemporaryDirectory() as place, silence_stdout():
        alone, rows = measured(given, names, Path(place))
    print(table([[name, *shown(each)] for name, each in alone.items()], ["alone", *TITLES]), "\n")
    print(
        table(
            [
                [first, second, *between(shown(each), shown(apart(alone[first], alone[second])))]
                for (first, second), each in rows.items()
            ],
            ["first", "second", *(f"{t} (apart)" for t in TITLES)],
        )
    )
    tabled(
        given.csv,
        [
            COLUMNS,
            *(
                [
                    *at,
                    *(each for both in zip(found, apart(*(alone[name] for name in at)), strict=True) for each in both),
                ]
                for at, found in rows.items()
            ),
        ],
    )
    concluded(given, figures(alone, rows))


TITLES = "time", "memory", "error", "cosine lost", "Spearman x 100 lost"


def measured(given, names, place: Path) -> tuple[dict[str, Outcome], dict[tuple[str, str], Outcome]]:
    """What each technique comes to alone, and what each pair does, in the orders that matter."""
    text, chooses, judges = halves(Path(given.pairs), place)
    pairs, checkpoint = joined(SentencePairs.read(chooses), judges), open_model(given.model)
    workload = Workload.of(checkpoint, mix=parse_mix(f"1:{given.workload}"))
    searched = search_exact(Opened(checkpoint.operator(True), workload, this_machine(), EXACT_LAWS, source(checkpoint)))
    batch = calibration(text, searched.exact.tokenizer, searched.workload, pairs.texts)
    if given.quick:
        batch, pairs = (
            next(batch.pieces(QUICK_ROWS)),
            SentencePairs(pairs.texts[: 2 * QUICK_PAIRS], pairs.scores[:QUICK_PAIRS]),
        )
    judge, begun = Judge(searched, pairs), State(searched.opened.operator, {})
    say(f"fitted to {batch.rows} tokens, judged by {len(pairs)} pairs")
    alone, rows, states = {}, {}, {}
    for name in names:
        states[name] = begun.by(name, batch)
        alone[name] = judge.factor(judge.outcome(states[name]))
        say(name)
    for first, second in ordered(names):
        rows[first, second] = judge.factor(judge.outcome(states[first].by(second, batch)))
        say(f"{first}, then {second}")
    return alone, rows


def ordered(names) -> Iterator[tuple[str, str]]:
    """SentencePairs of techniques in the orders that matter."""
    return (pair for pair in permutations(names, 2) if pair[0] not in NUMBERS or pair[1] in NUMBERS)


def structure(name: str, n: int, p: int) -> Method:
    """What stores a weight (n, p) by one of FITS."""
    match name:
        case "low rank":
            return Method("lowrank", (("rank", round(FFN_LEFT * n * p / (n + p))),))
        case "2:4":
            return Method("nm", (("n", 2), ("m", 4)))
    return Method("csr", (("density", 0.5),))


def narrow(method: Method | None, numbers: str) -> Method:
    """A structure in a number type: the pair of both where there is one, else the number type alone."""
    if method is None or not numbers:
        return method or Method(*((numbers,) if numbers else ()))
    if (pair := PAIRED.get((method.format, numbers))) is None:
        return Method(numbers)
    return Method(pair, tuple(each for each in method.parameters if each[0] in FORMATS[pair].parameters))


def weights(model: Operator):
    """The arrays of every weight but tables."""
    return [weight_and_bias(node)[0] for factor in [*factors(model)][1:] for node, _ in matrices(factor)]


def apart(one: Outcome, other: Outcome) -> Outcome:
    """What both would come to if neither knew of the other."""
    return Outcome(
        one.seconds * other.seconds,
        one.bytes * other.bytes,
        float(np.hypot(one.error, other.error)),
        one.cosine + other.cosine,
        one.spearman + other.spearman,
    )


def shown(found: Outcome) -> list[str]:
    return [
        f"{found.seconds:.2f}",
        f"{found.bytes:.2f}",
        f"{100 * found.error:.3g} %",
        f"{found.cosine:.4f}",
        f"{found.spearman:.2f}",
    ]


def between(together: list[str], alone: list[str]) -> list[str]:
    return [f"{one} ({other})" for one, other in zip(together, alone, strict=True)]


def figures(alone: dict[str, Outcome], rows: dict[tuple[str, str], Outcome]) -> list[Figure]:
    """How far pairs are from what their techniques come to apart."""
    both = [(found, apart(alone[first], alone[second])) for (first, second), found in rows.items()]
    swapped = [
        (found, rows[second, first])
        for (first, second), found in rows.items()
        if (second, first) in rows and first < second
    ]
    from scipy.stats import spearmanr

    errors = [[each.error for each in column] for column in zip(*both, strict=True)]
    return [
        Figure(
            "time together over the product apart, median",
            median(found.seconds / alone.seconds for found, alone in both),
        ),
        Figure(
            "memory together over the product apart, median", median(found.bytes / alone.bytes for found, alone in both)
        ),
        Figure(
            "error together over the root of the sum of squares apart, median",
            median(found.error / alone.error for found, alone in both),
        ),
        Figure("rank correlation of errors together with those sums", float(spearmanr(*errors).statistic)),
        Figure(
            "share of pairs that lose less cosine than the sum",
            float(np.mean([found.cosine < alone.cosine for found, alone in both])),
        ),
        Figure(
            "cosine lost in one order over the other, at most",
            max((max(a.cosine / b.cosine, b.cosine / a.cosine) for a, b in swapped), default=None),
        ),
    ]


if __name__ == "__main__":
    command.run(main)
