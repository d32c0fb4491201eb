"""Eight constants that data sheets do not state, each a fraction of a number of a data sheet, or a latency. They were
fitted once (`python benchmarks/planner.py FILE --fit`) and hold for every machine."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

CONSTANTS_FILE = Path(__file__).with_suffix(".json")


class Constants(NamedTuple):
    """Fractions of the rates of a data sheet, and latencies in seconds."""

    matrix: float  # fraction of the data sheet's rate of products
    idle: float  # share of all cores that a product leaves idle while
    # one of its tiles takes; a half: the last round is
    # as likely full as empty
    memory: float  # fraction of the bandwidth of memory
    near: float  # fraction of the bandwidth of the nearest links
    far: float  # fraction of the bandwidth of the links between nodes
    superstep: float  # seconds that two ranks wait for the later one
    gap: float  # seconds of the host to launch an operation
    hidden: float  # share that does run beside backward, of the gradient
    # sums that can


@cache
def load_constants() -> Constants:
    """Return the fitted constants that the package ships."""
    return Constants(**json.loads(CONSTANTS_FILE.read_text("utf-8"))["constants"])
