"""A process that runs one exported file: `python -m opmatrix.exports.timed_process RUNTIME FILE JOB`, JOB in JSON. It
writes a line of JSON when it is ready, and the milliseconds of each shape for each line that it reads."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, sleep

import numpy as np

from opmatrix.exports.cached_graph import ExportedCache
from opmatrix.exports.runtimes import RUNTIMES, ExportFeed, make_feed

SETTLE = 0.04  # seconds after which threads of another runtime spin no more (ONNX Runtime: 0.025)


def run_file(name: str, file: str, job: str) -> None:
    """Open the file, and time it as often as lines come."""
    asked, runtime = json.loads(job), RUNTIMES[name]
    caches = [ExportedCache(**cache) for cache in asked["caches"]]
    feeds = [timed_feed(asked["inputs"], asked["words"], shape, caches) for shape in asked["shapes"]]
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


def timed_feed(
    inputs: Sequence[str], words: int, shape: tuple[int, int], caches: Sequence[ExportedCache]
) -> ExportFeed:
    """Return the inputs of a batch of so many sequences and tokens; with caches, of one token behind so many."""
    sequences, past = shape
    ids = np.random.default_rng(0).integers(0, words, (sequences, 1) if caches else tuple(shape))
    mask = np.ones((sequences, past + bool(caches)), np.int64)
    return make_feed(inputs, ids, mask, {cache.past: cache.zeros(sequences, past) for cache in caches})


def answer_line(answer: object) -> None:
    """Write an answer."""
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    run_file(*sys.argv[1:])
