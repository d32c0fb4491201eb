"""A process that runs one exported file: `python -m opmatrix.exports.timed_process RUNTIME FILE JOB`, JOB in JSON. It
writes a line of JSON when it is ready, and the milliseconds of each shape for each line that it reads."""

import json
import sys
from pathlib import Path
from time import perf_counter, sleep

import numpy as np

from opmatrix.exports.runtimes import RUNTIMES, make_feed

SETTLE = 0.04  # seconds after which threads of another runtime spin no more (ONNX Runtime: 0.025)


def run_file(name: str, file: str, job: str) -> None:
    """Open the file, and time it as often as lines come."""
    asked, runtime = json.loads(job), RUNTIMES[name]
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, asked["words"], shape) for shape in asked["shapes"]]
    feeds = [make_feed(asked["inputs"], each, np.ones_like(each)) for each in ids]
    products = runtime.products(Path(file), asked["threads"], feeds[0])
    run = runtime.open(Path(file), asked["threads"])
    answer_line({"version": runtime.version, "products": products})
    for _ in sys.stdin:
        sleep(SETTLE)
        taken = []
        for feed in feeds:
            run(feed)
            begun = perf_counter()
            run(feed)
            taken.append(1e3 * (perf_counter() - begun))
        answer_line(taken)


def answer_line(answer: object) -> None:
    """Write an answer."""
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    run_file(*sys.argv[1:])
