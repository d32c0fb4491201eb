"""How long the search takes on a BERT: for the exact program, by layers and by laws, and for an approximate one where
each weight may be stored in eight ways.

    python benchmarks/search.py [--layers 1 2 6 12 24 48] [--tokens 128] [--rounds 3] [--width 768] [--brief]
                                [--models smollm2] [--found FOUND.py] [--csv OUT]

With `--found` the laws of a file that `opmatrix discover --out` wrote are searched with, in place of all of ours.
Only sizes count, so weights are promised, not made. Imports are done
before the clock starts; figures are medians of rounds, without the garbage collector, as timeit has it."""

import time
from dataclasses import dataclass
from functools import reduce
from operator import matmul
from statistics import median
from zlib import crc32

from lib import command
from lib.command import Figure, Parser, concluded, count, readable, say, shown, spread, tabled, takes

import egglog.bindings  # noqa: F401
import scipy.optimize  # noqa: F401

from opmatrix.algebra.batch.extents import counted, patterns
from opmatrix.algebra.data import Promised
from opmatrix.display.tables import table
from opmatrix.files.checkpoint import open_model
from opmatrix.models import build
from opmatrix.runtime.measure import undisturbed
from opmatrix.runtime.pricing import this_machine
from rewrites.approximate.budgets import within
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS
from rewrites.laws.flat import factors
from rewrites.lowering.lower import EXACT, Method
from rewrites.search.search import SearchSpace, search
from rewrites.verify.user_laws import load_laws

COLUMNS = "layers", "laws", "phase", "seconds", "nodes", "classes", "time_s", "bound_s", "greedy_s", "spread"
HEADER = "seconds", "spread", "of processor", "nodes", "classes", "ms predicted", "bound", "greedy", "gap", "by phase"
OFFERED = [
    (Method(), 0.0),
    (Method("half"), 1e-4),
    (Method("csr", (("density", 0.3),)), 0.02),
    (Method("csr", (("density", 0.15),)), 0.06),
    (Method("nm", (("n", 2), ("m", 4))), 0.01),
    (Method("block", (("density", 0.3), ("tile", (16, 16)))), 0.04),
    (Method("lowrank", (("rank", 64),)), 0.05),
    (Method("lowrank", (("rank", 192),)), 0.012),
]  # methods, and the size of the errors that are drawn for
# them
PUBLISHED = {"Tensat": 1.4, "TASO": 13.6}  # seconds on BERT (Yang et al. 2021, MLSys, table 2)
BARS = {"smollm2": 1.5}  # seconds of a model's search


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--layers", type=count, nargs="+", default=[1, 2, 6, 12, 24, 48])
    parser.add_argument("--tokens", type=count, default=128)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--width", type=count, default=768)
    parser.add_argument("--brief", action="store_true", help="the layers alone: no other widths, methods or laws")
    parser.add_argument("--models", nargs="+", default=[], help="names or directories of checkpoints")
    parser.add_argument("--found", type=readable, metavar="FOUND.py", help="found laws, in place of ours")
    given = parser.parse_args()
    takes(4 + 0.06 * given.rounds * sum(given.layers) + (not given.brief) * (20 + 12 * given.rounds))
    rounds, rows = Rounds(this_machine(), given), []
    rounds.of(bert(1, given.width), EXACT_LAWS, 1)  # what is imported late, and caches
    print("layers\n", flush=True)
    whole, lines = {}, []
    for layers in given.layers:
        whole[layers] = rounds.of(bert(layers, given.width), EXACT_LAWS)
        rows += written(layers, len(EXACT_LAWS), whole[layers])
        lines.append(row(layers, whole[layers]))
        say(f"{layers} layers")
    print(table(lines, ["layers", *HEADER]))
    if not given.brief:
        for part in (others, methods, laws):
            rows += part(rounds, given)
    named = {name: rounds.of(open_model(name).operator(), EXACT_LAWS) for name in given.models}
    if named:
        print("\nmodels\n\n" + table([row(*each) for each in named.items()], ["", *HEADER]))
    tabled(
        given.csv,
        [COLUMNS, *rows, *(line for name, found in named.items() for line in written(name, len(EXACT_LAWS), found))],
    )
    concluded(
        given,
        [
            *figures(whole),
            *(figures_of_found(rounds, given) if given.found else ()),
            *(
                Figure(f"search of {name}", median(found.totals), "s", spread(found.totals), most=BARS.get(name))
                for name, found in named.items()
            ),
        ],
    )


def figures(whole):
    """The search of BERT-base beside what is published, how it grows with layers, and the gap of its bound."""
    published, named = min(PUBLISHED.values()), ", ".join(f"{name} {taken}" for name, taken in PUBLISHED.items())
    known = {layers: median(found.totals) for layers, found in whole.items()}
    wide = {layers: spread(found.totals) for layers, found in whole.items()}
    yield Figure(
        f"12 layers of BERT-base; published: {named}",
        known.get(12),
        "s",
        wide.get(12),
        most=published,
        why="--layers 12",
    )
    yield Figure(
        "times as long, 48 layers as 12",
        known[48] / known[12] if {12, 48} <= {*known} else None,
        "x",
        wide.get(48),
        most=4,
        why="--layers 12 48",
    )
    yield Figure("largest gap of the proved bound", max(100 * found.search.gap for found in whole.values()), "%")


def figures_of_found(rounds, given):
    """Figures of the search of 12 layers with found laws in place of ours; prints both."""
    model = bert(12, given.width)
    ours, other = rounds.of(model, EXACT_LAWS), rounds.of(model, load_laws(given.found).laws)
    lines = [row("ours", ours)] + ([row("found", other)] if other else [])
    print("\nfound laws in place of ours, at 12 layers\n\n" + table(lines, ["laws", *HEADER]))
    lasts = median(other.totals) / median(ours.totals) if other else None
    dearer = 100 * (other.search.time / ours.search.time - 1) if other else None
    why = "they lead to no program"
    yield Figure("times as long, found laws in place of ours", lasts, "x", most=1.5, why=why)
    yield Figure("predicted time of their program above ours", dearer, "%", most=0, why=why)


def others(rounds, given):
    """The rows of layers of different widths; prints their table."""
    print("\nlayers of different widths, no two alike\n")
    found = {layers: rounds.of(different(layers, given.width), EXACT_LAWS) for layers in (12, 48)}
    print(table([row(layers, each) for layers, each in found.items()], ["layers", *HEADER]))
    print(f"\n48 layers take {median(found[48].totals) / median(found[12].totals):.2f} times as long as 12")
    say("layers of different widths")
    return [line for layers, each in found.items() for line in written(f"{layers} different", len(EXACT_LAWS), each)]


def methods(rounds, given):
    """The rows of approximate searches; prints their table."""
    print("\napproximate, 8 methods a weight\n")
    lines = [
        approximate(bert(layers, given.width), layers, error, rounds.machine, given.tokens)
        for layers in sorted({12, *given.layers} & {12, 24, 48})
        for error in (0.02, 0.1)
    ]
    print(table(lines, ["layers", "error", "seconds", "ms predicted", "bound", "gap", "MB"]))
    say("approximate")
    return [(line[0], len(EXACT_LAWS), f"within {line[1]}", line[2], "", "", *line[3:5], "", "") for line in lines]


def laws(rounds, given):
    """The rows of searches with some of the laws; too few of them lead to no program. Prints their table."""
    print("\nlaws, at 12 layers\n")
    counts = range(0, len(EXACT_LAWS) + 1, 4)
    found = {count: each for count in counts if (each := rounds.of(bert(12, given.width), EXACT_LAWS[:count]))}
    print(table([row(count, each) for count, each in found.items()], ["laws", *HEADER]))
    return [line for count, each in found.items() for line in written(12, count, each)]


def bert(layers, width, inner=None, prefix=""):
    """A BERT of so many layers: BERT-base at width 768 (Devlin et al. 2018)."""
    config = dict(
        model_type="bert",
        hidden_size=width,
        intermediate_size=inner or 4 * width,
        layer_norm_eps=1e-12,
        num_attention_heads=width // 64,
        num_hidden_layers=layers,
        max_position_embeddings=512,
        type_vocab_size=2,
        vocab_size=30522,
        hidden_act="gelu",
    )
    return build(config, lambda name, *shape: Promised(prefix + name, shape))


def different(layers, width):
    """The layers of as many models, each with an inner width of its own, behind one embedding."""
    models = [bert(1, width, 4 * width + 16 * number, f"{number}.") for number in range(layers)]
    return reduce(matmul, [next(factors(models[0])), *(factor for model in models for factor in [*factors(model)][1:])])


def offered(lowering, use):
    """Eight methods for a weight, each with an error that is drawn for its leaf and the method."""
    if use.layout == "stack" or use.x in lowering.graph.facts["given"]:
        return EXACT
    leaves = [data.label for data in lowering.arrays(use.weight)]
    return [
        method._replace(
            error=sum((size * (0.3 + crc32(f"{leaf}{method}".encode()) % 1000 / 500)) ** 2 for leaf in leaves)
        )
        for method, size in OFFERED
    ]


def approximate(model, layers, error, machine, tokens):
    """A line of the table of searches within an error."""
    begun = time.perf_counter()
    space = SearchSpace(model, EXACT_LAWS, machine, counted([tokens], patterns(model)))
    found = within(space, offered, error=error**2)
    return [
        str(layers),
        f"{100 * error:g} %",
        f"{time.perf_counter() - begun:.2f}",
        f"{1e3 * found.time:.3f}",
        f"{1e3 * found.bound:.3f}",
        f"{100 * found.gap:.2f} %",
        f"{found.memory / 1e6:.1f}",
    ]


@dataclass
class Timed:
    """A search, again and again: its seconds in all, of the processor, and by phase; what it found."""

    search: object
    totals: list
    processor: list
    phases: list

    @property
    def seconds(self):
        """By phase, medians of rounds."""
        known = {name: median(each.get(name, 0.0) for each in self.phases) for name in self.phases[0]}
        return known | {"other": max(0.0, median(self.totals) - sum(known.values()))}


@dataclass
class Rounds:
    """Searches on a machine with these options."""

    machine: object
    given: object

    def of(self, model, laws, rounds=None):
        """None where these laws lead to no program."""
        tokens, taken = self.given.tokens, Timed(None, [], [], [])
        for _ in range(rounds or self.given.rounds):
            with undisturbed():
                begun, own = time.perf_counter(), time.process_time()
                try:
                    taken.search = search(model, laws, self.machine, counted([tokens], patterns(model)))
                except Infeasible:
                    return None
                taken.totals.append(time.perf_counter() - begun)
                taken.processor.append(time.process_time() - own)
            taken.phases.append(taken.search.seconds)
        return taken


def written(layers, laws, taken):
    """The rows of the file."""
    found = taken.search
    figures = found.nodes, found.classes, found.time, found.bound, found.greedy
    rows = [(layers, laws, name, seconds, *figures, "") for name, seconds in taken.seconds.items()]
    return [*rows, (layers, laws, "in all", median(taken.totals), *figures, spread(taken.totals))]


def row(label, taken):
    """A line of the table."""
    found = taken.search
    phases = sorted(((second, name) for name, second in taken.seconds.items() if second > 5e-4), reverse=True)
    return [
        str(label),
        f"{median(taken.totals):.3f}",
        shown(spread(taken.totals)),
        f"{median(taken.processor):.3f}",
        str(found.nodes),
        str(found.classes),
        *(f"{1e3 * figure:.3f}" for figure in (found.time, found.bound, found.greedy)),
        f"{100 * found.gap:.2g} %",
        "  ".join(f"{name} {second:.3f}" for second, name in phases),
    ]


if __name__ == "__main__":
    command.run(main)
