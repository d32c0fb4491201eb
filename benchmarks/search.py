"""How long the search takes on a BERT: for the exact program, by layers and by laws, and for an approximate one where each
weight may be stored in eight ways.

    python benchmarks/search.py [--layers 1 2 6 12 24 48] [--tokens 128] [--rounds 3] [--width 768] [--csv OUT]

Only sizes count, so weights are promised, not made. Imports are done
before the clock starts; figures are medians of rounds, without the garbage collector, as timeit has it."""
import argparse
import csv
import os
import sys
import time
from functools import reduce
from operator import matmul
from pathlib import Path
from statistics import median
from zlib import crc32

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_THREAD_TIMEOUT": "4"}
sys.path[0] = str(Path(__file__).parents[1])                # not this folder: its formats.py is not the package

import egglog.bindings  # noqa: E402, F401
import scipy.optimize  # noqa: E402, F401

from formats.machine import this_machine  # noqa: E402
from formats.quiet import watched  # noqa: E402
from opmatrix.data import Promised  # noqa: E402
from opmatrix.measure import undisturbed  # noqa: E402
from opmatrix.models import build  # noqa: E402
from rewrites.budgets import within  # noqa: E402
from rewrites.flat import factors  # noqa: E402
from rewrites.laws import EXACT_LAWS  # noqa: E402
from rewrites.lower import EXACT, Method  # noqa: E402
from rewrites.report import table  # noqa: E402
from rewrites.search import Space, search  # noqa: E402

COLUMNS = "layers", "laws", "phase", "seconds", "nodes", "classes", "time_s", "bound_s", "greedy_s"
HEADER = "seconds", "of processor", "nodes", "classes", "ms predicted", "bound", "greedy", "gap", "by phase"
OFFERED = [(Method(), 0.0), (Method("half"), 1e-4), (Method("csr", (("density", 0.3),)), 0.02),
           (Method("csr", (("density", 0.15),)), 0.06), (Method("nm", (("n", 2), ("m", 4))), 0.01),
           (Method("block", (("density", 0.3), ("tile", (16, 16)))), 0.04), (Method("lowrank", (("rank", 64),)), 0.05),
           (Method("lowrank", (("rank", 192),)), 0.012)]    # methods, and the size of the errors that are drawn for them
PUBLISHED = {"Tensat": 1.4, "TASO": 13.6}                   # seconds on BERT (Yang et al. 2021, MLSys, table 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2, 6, 12, 24, 48])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--csv", type=Path, help="write the table there, too")
    given = parser.parse_args()
    watched()
    machine, rows, whole = this_machine(), [], {}
    measured(bert(1, given.width), EXACT_LAWS, machine, given.tokens, 1)            # what is imported late, and caches
    print("layers\n", flush=True)
    lines = []
    for layers in given.layers:
        found = measured(bert(layers, given.width), EXACT_LAWS, machine, given.tokens, given.rounds)
        whole[layers] = found.pop("in all")
        rows += written(layers, len(EXACT_LAWS), whole[layers], found)
        lines.append(row(layers, whole[layers], found))
    print(table(lines, ["layers", *HEADER]))
    if 12 in whole:
        ours = whole[12][0]
        print(f"\n12 layers {ours:.2f} s; published for BERT: " + ", ".join(f"{n} {s} s" for n, s in PUBLISHED.items()))
        if 48 in whole: print(f"48 layers take {whole[48][0] / ours:.2f} times as long as 12")
    print("\nlayers of different widths, no two alike\n")
    lines = []
    for layers in (12, 48):
        found = measured(different(layers, given.width), EXACT_LAWS, machine, given.tokens, given.rounds)
        whole[layers] = found.pop("in all")
        rows += written(f"{layers} different", len(EXACT_LAWS), whole[layers], found)
        lines.append(row(layers, whole[layers], found))
    print(table(lines, ["layers", *HEADER]))
    print(f"\n48 layers take {whole[48][0] / whole[12][0]:.2f} times as long as 12")
    print("\napproximate, 8 methods a weight\n")
    lines = []
    for layers in sorted({12, *given.layers} & {12, 24, 48}):
        for error in (0.02, 0.1):
            lines.append(approximate(bert(layers, given.width), layers, error, machine, given.tokens))
            rows += [(layers, len(EXACT_LAWS), f"within {error}", lines[-1][2], "", "", *lines[-1][3:5], "")]
    print(table(lines, ["layers", "error", "seconds", "ms predicted", "bound", "gap", "MB"]))
    print("\nlaws, at 12 layers\n")
    lines = []
    for count in range(0, len(EXACT_LAWS) + 1, 4):
        found = measured(bert(12, given.width), EXACT_LAWS[:count], machine, given.tokens, given.rounds)
        if found is None: continue
        total = found.pop("in all")
        rows += written(12, count, total, found)
        lines.append(row(count, total, found))
    print(table(lines, ["laws", *HEADER]))
    if given.csv:
        with given.csv.open("w", newline="") as file: csv.writer(file).writerows([COLUMNS, *rows])


def bert(layers, width, inner=None, prefix=""):
    """A BERT of so many layers: BERT-base at width 768 (Devlin et al. 2018)."""
    config = dict(model_type="bert", hidden_size=width, intermediate_size=inner or 4 * width, layer_norm_eps=1e-12,
                  num_attention_heads=width // 64, num_hidden_layers=layers, max_position_embeddings=512,
                  type_vocab_size=2, vocab_size=30522, hidden_act="gelu")
    return build(config, lambda name, *shape: Promised(prefix + name, shape))


def different(layers, width):
    """The layers of as many models, each with an inner width of its own, behind one embedding."""
    models = [bert(1, width, 4 * width + 16 * number, f"{number}.") for number in range(layers)]
    return reduce(matmul, [next(factors(models[0])), *(factor for model in models for factor in [*factors(model)][1:])])


def offered(lowering, use):
    """Eight methods for a weight, each with an error that is drawn for its leaf and the method."""
    if use.layout == "stack" or use.x in lowering.graph.facts["given"]: return EXACT
    leaves = [t.args[0].label for t in lowering.terms[use.weight].walk() if t.kind.name == "weight"]
    return [method._replace(error=sum((size * (0.3 + crc32(f"{leaf}{method}".encode()) % 1000 / 500)) ** 2 for leaf in leaves))
            for method, size in OFFERED]


def approximate(model, layers, error, machine, tokens):
    """A line of the table of searches within an error."""
    begun = time.perf_counter()
    found = within(Space(model, EXACT_LAWS, machine, tokens, tokens ** 2), offered, error=error ** 2)
    return [str(layers), f"{100 * error:g} %", f"{time.perf_counter() - begun:.2f}", f"{1e3 * found.time:.3f}", f"{1e3 * found.bound:.3f}",
            f"{100 * found.gap:.2f} %", f"{found.memory / 1e6:.1f}"]


def measured(model, laws, machine, tokens, rounds):
    """Seconds by phase and in all, medians of rounds; none where these laws lead to no program."""
    from rewrites.extraction import Infeasible
    phases, totals, processor = [], [], []
    for _ in range(rounds):
        with undisturbed():
            begun, own = time.perf_counter(), time.process_time()
            try: found = search(model, laws, machine, tokens, tokens ** 2)
            except Infeasible: return None
            totals.append(time.perf_counter() - begun)
            processor.append(time.process_time() - own)
        phases.append(found.seconds)
    seconds = {name: median(each.get(name, 0.0) for each in phases) for name in phases[0]}
    seconds["other"] = max(0.0, median(totals) - sum(seconds.values()))
    return seconds | {"in all": (median(totals), found, median(processor))}


def written(layers, laws, total, seconds):
    """The rows of the file."""
    found = total[1]
    figures = found.nodes, found.classes, found.time, found.bound, found.greedy
    return [(layers, laws, name, taken, *figures) for name, taken in {**seconds, "in all": total[0]}.items()]


def row(label, total, seconds):
    """A line of the table."""
    taken, found, processor = total
    phases = sorted(((second, name) for name, second in seconds.items() if second > 5e-4), reverse=True)
    return [str(label), f"{taken:.3f}", f"{processor:.3f}", str(found.nodes), str(found.classes),
            *(f"{1e3 * figure:.3f}" for figure in (found.time, found.bound, found.greedy)), f"{100 * found.gap:.2g} %",
            "  ".join(f"{name} {second:.3f}" for second, name in phases)]


if __name__ == "__main__": main()
