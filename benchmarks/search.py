"""How long exploring and extracting the exact program of a BERT takes, by layers and by laws.

    python benchmarks/search.py [--layers 1 2 6 12 24 48] [--tokens 128] [--rounds 3] [--width 768] [--csv OUT]

Only sizes count, so weights are promised, not made. Imports are done
before the clock starts; figures are medians of rounds."""
import argparse
import csv
import os
import sys
import time
from pathlib import Path
from statistics import median

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_THREAD_TIMEOUT": "4"}
sys.path[0] = str(Path(__file__).parents[1])                # not this folder: its formats.py is not the package

import egglog.bindings  # noqa: E402, F401
import scipy.optimize  # noqa: E402, F401

from formats.machine import this_machine  # noqa: E402
from opmatrix.data import Promised  # noqa: E402
from opmatrix.models import build  # noqa: E402
from rewrites.laws import EXACT_LAWS  # noqa: E402
from rewrites.report import table  # noqa: E402
from rewrites.search import search  # noqa: E402

COLUMNS = "layers", "laws", "phase", "seconds", "nodes", "classes", "time_s", "bound_s", "greedy_s"
HEADER = "seconds", "of processor", "nodes", "classes", "ms predicted", "bound", "greedy", "gap", "by phase"
PUBLISHED = {"Tensat": 1.4, "TASO": 13.6}                   # seconds on BERT (Yang et al. 2021, MLSys, table 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2, 6, 12, 24, 48])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--csv", type=Path, help="write the table there, too")
    given = parser.parse_args()
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


def bert(layers, width):
    """A BERT of so many layers: BERT-base at width 768 (Devlin et al. 2018)."""
    config = dict(model_type="bert", hidden_size=width, intermediate_size=4 * width, layer_norm_eps=1e-12,
                  num_attention_heads=width // 64, num_hidden_layers=layers, max_position_embeddings=512,
                  type_vocab_size=2, vocab_size=30522, hidden_act="gelu")
    return build(config, lambda name, *shape: Promised(name, shape))


def measured(model, laws, machine, tokens, rounds):
    """Seconds by phase and in all, medians of rounds; none where these laws lead to no program."""
    from rewrites.extraction import Infeasible
    phases, totals, processor = [], [], []
    for _ in range(rounds):
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
