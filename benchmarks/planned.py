"""A configuration of shapes alone, searched, priced and planned: seconds and resident memory, in a process of its own.

    python benchmarks/planned.py [--layers 80] [--machine H100] [--tokens 512] [--csv OUT]

Sizes are those of LLaMA-2 70B (Touvron et al. 2023): 8,192 wide, 64 heads, 8 of keys and values, 28,672 in between,
32,000 words. No weight is loaded or allocated. Seconds are of everything behind the imports: building the model,
saturation, extraction, planning, printing."""

import json
import subprocess
import sys

from lib import command
from lib.command import Figure, Parser, cell, concluded, count, tabled, takes

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
COLUMNS = "layers", "seconds", "resident_MB", "predicted_ms", "stored_GB", "buffers_MB"


def main() -> None:
    parser = Parser(__doc__)
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
    for line in (COLUMNS, row):
        print(" ".join(cell(each, 13) for each in line))
    tabled(given.csv, [COLUMNS, row])
    concluded(
        given,
        [
            Figure("until it is planned and printed", seconds, "s", most=10.0),
            Figure("resident memory", resident, "MB", most=1000.0),
        ],
    )


if __name__ == "__main__":
    command.run(main)
