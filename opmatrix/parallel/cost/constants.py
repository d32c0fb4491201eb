"""What data sheets do not state: eight constants, each a fraction of a number of a data sheet, or a latency. They were
fitted once (`python benchmarks/planner.py FILE --fit`) and hold for every machine."""
from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

CONSTANTS_FILE = Path(__file__).with_suffix(".json")


class Constants(NamedTuple):
    """`matrix`: of the rate of products; `idle`: of all cores, the share that a product leaves idle for as long as one
    of its tiles takes, a half where the last round is as likely full as empty; `memory`: of the bandwidth of memory;
    `near`, `far`: of the bandwidth of the nearest links, and of those between nodes; `superstep`: seconds that two
    ranks wait for the later one where they meet; `gap`: seconds of the host for an operation; `hidden`: of sums of
    gradients that can run beside backward, the share that does."""
    matrix: float
    idle: float
    memory: float
    near: float
    far: float
    superstep: float
    gap: float
    hidden: float


@cache
def load_constants() -> Constants:
    """The constants that come along."""
    return Constants(**json.loads(CONSTANTS_FILE.read_text("utf-8"))["constants"])
