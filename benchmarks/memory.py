"""Resident memory: of saved programs, and of planning a configuration."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from lib import command
from lib.command import Figure, Parser, cell, concluded, count, say, tabled, takes

import numpy as np
from random_models import random_weights

from opmatrix.algebra.batch.batch import Batch
from opmatrix.display.tables import table
from opmatrix.models.transformer import transformer
from opmatrix.runtime.pricing import this_machine
from opmatrix.runtime.program import Program
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.lower import EXACT, Method
from rewrites.search.search import search

# ---- memory

MEMORY_COLUMNS = "width", "layers", "format", "rows", "stored_mb", "planned_mb", "predicted_mb", "grown_mb", "off"
FORMS = {
    "dense": Method(),
    "half": Method("half"),
    "csr": Method("csr", (("density", 0.25),)),
    "lowrank": Method("lowrank", (("rank", 32),)),
}
SHARE = {"dense": 4, "half": 2, "csr": 1.5, "lowrank": 0.27}  # bytes of a number


def measure_memory() -> None:
    """Measure resident memory of saved programs: what a fresh process grows by when it loads and runs one, against
    what was predicted.

        python benchmarks/memory.py [--megabytes 64 128 256] [--rows 512] [--csv OUT]

    The process has its kernels from the cache and has run a tiny program; then the high-water mark is reset (Linux:
    /proc/self/clear_refs), the program is loaded and run. Predicted are stored bytes plus the planned peak."""
    parser = Parser(measure_memory)
    parser.add_argument("--megabytes", type=count, nargs="+", default=[80, 160], help="stored, about")
    parser.add_argument("--rows", type=count, default=512)
    given = parser.parse_args()
    takes(5 + 0.12 * len(FORMS) * sum(given.megabytes))
    machine, rows = this_machine(), []
    with tempfile.TemporaryDirectory() as room:
        for size in given.megabytes:
            for form, method in FORMS.items():
                layers = max(1, round(size * 1e6 / (SHARE[form] * 12 * 768**2)))
                program, batch = made(768, layers, given.rows, method, machine)
                program.save(place := Path(room) / f"{form}{size}")
                made(64, 1, 16, method, machine)[0].save(tiny := Path(room) / f"tiny {form}")
                stored, planned = program.stored_bytes, program.peak_bytes(batch)
                del program
                grew = child(tiny, place, batch)
                rows.append(
                    [
                        768,
                        layers,
                        form,
                        batch.rows,
                        stored / 1e6,
                        planned / 1e6,
                        (stored + planned) / 1e6,
                        grew / 1e6,
                        grew / (stored + planned) - 1,
                    ]
                )
                shutil.rmtree(place)
                say(f"{form}, {size} MB")
    print(
        table(
            [
                [str(c) if not isinstance(c, float) else f"{c:.1f}" for c in row[:-1]] + [f"{100 * row[-1]:+.1f} %"]
                for row in rows
            ],
            list(MEMORY_COLUMNS),
        )
    )
    tabled(given.csv, [MEMORY_COLUMNS, *rows])
    ratios = [1 + row[-1] for row in rows]
    concluded(
        given,
        [
            Figure("resident memory over what was predicted, at most", max(ratios), "x"),
            Figure("at least", min(ratios), "x"),
        ],
    )


def made(width, layers, rows, method, machine):
    """A program of random weights, every weight in one format, and a batch for it."""
    rng = np.random.default_rng(0)
    config = dict(
        vocab_size=100,
        max_position_embeddings=128,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=width // 8,
        norm="layer",
        norm_eps=1e-6,
        pre_norm=False,
        hidden_act="gelu",
        gated=False,
        bias=True,
        mask="sequence",
    )
    model = transformer(config, random_weights(config, rng))
    batch = Batch([rng.integers(0, 100, min(64, rows - at)) for at in range(0, rows, 64)])
    found = search(model, EXACT_LAWS, machine, batch.extents(), methods=lambda *_: EXACT)

    def decide(number, use, stored):
        gathered = use.x in found.lowerings[number].graph.facts["given"]
        return stored if gathered or use.layout == "stack" else method

    return found.program({"model": f"random {width}x{layers}"}, decide)[0], batch


def child(tiny, place, batch):
    """Bytes that a fresh process grows by at most, loading and running a program."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.path.insert(0, sys.argv[2]); import memory; "
        "memory.grown(*sys.argv[3:])"
    )
    batches = json.dumps([sentence.tolist() for sentence in np.split(batch.tokens, batch.starts[1:-1])])
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            script,
            str(Path(__file__).parent),
            str(Path(__file__).parents[1]),
            str(tiny),
            str(place),
        ],
        input=batches,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def grown(tiny, place):
    """Prints how many bytes this process grows by; the batch is read from the standard input."""
    import gc

    batch = Batch([np.array(sentence) for sentence in json.load(sys.stdin)])
    small = Program.load(Path(tiny))
    small.run(Batch([batch.tokens[:4], batch.tokens[4:9]]))
    del small
    gc.collect()
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    Program.load(Path(place)).run(batch)
    print(status("VmHWM") - before)


def status(name):
    """Bytes, as the kernel counts them."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


# ---- planned

SIZES = dict(
    model_type="transformer",
    vocab_size=32000,
    max_position_embeddings=4096,
    hidden_size=8192,
    intermediate_size=28672,
    num_attention_heads=64,
    num_key_value_heads=8,
    head_dim=128,
    norm="rms",
    norm_eps=1e-5,
    pre_norm=True,
    hidden_act="silu",
    gated=True,
    bias=False,
    mask="sequence & causal",
    positions="rotary",
    head="own",
)
CODE = """
import json, resource, sys, time
from opmatrix.runtime.pricing import datasheet
from rewrites.search.planned import planned
config, machine, tokens = json.loads(sys.argv[1]), datasheet(sys.argv[2]), int(sys.argv[3])
start = time.perf_counter()
plan = planned(config, machine, [tokens])
said = len(str(plan))
resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(time.perf_counter() - start, resident, plan.time, plan.stored, plan.peak)
"""
PLANNED_COLUMNS = "layers", "seconds", "resident_MB", "predicted_ms", "stored_GB", "buffers_MB"


def measure_planned() -> None:
    """Search, price and plan a configuration of shapes alone: seconds and resident memory, in a process of its own.

        python benchmarks/memory.py planned [--layers 80] [--machine H100] [--tokens 512] [--csv OUT]

    Sizes are those of LLaMA-2 70B (Touvron et al. 2023): 8,192 wide, 64 heads, 8 of keys and values, 28,672 in
    between, 32,000 words. No weight is loaded or allocated. Seconds are of everything behind the imports: building
    the model, saturation, extraction, planning, printing."""
    parser = Parser(measure_planned)
    parser.add_argument("--layers", type=count, default=80)
    parser.add_argument("--machine", default="H100")
    parser.add_argument("--tokens", type=count, default=512)
    given = parser.parse_args()
    takes(5 + 0.1 * given.layers)
    config = json.dumps(SIZES | dict(num_hidden_layers=given.layers))
    arguments = [sys.executable, "-c", CODE, config, given.machine, str(given.tokens)]
    said = subprocess.run(arguments, capture_output=True, text=True, check=True)
    seconds, resident, predicted, stored, peak = map(float, said.stdout.split())
    row = given.layers, seconds, resident, 1e3 * predicted, stored / 1e9, peak / 1e6
    for line in (PLANNED_COLUMNS, row):
        print(" ".join(cell(each, 13) for each in line))
    tabled(given.csv, [PLANNED_COLUMNS, row])
    concluded(
        given,
        [
            Figure("until it is planned and printed", seconds, "s", most=10.0),
            Figure("resident memory", resident, "MB", most=1000.0),
        ],
    )


if __name__ == "__main__":
    command.run_parts(measure_memory, measure_planned)
