"""Twelve constants that data sheets do not state, each a fraction of a number of a data sheet or of what a formula
counts, a latency, or operations a joule. They hold for every machine; constants.json has the source or the fit of
each."""

from __future__ import annotations

import json
from functools import cache
from math import inf
from pathlib import Path
from typing import NamedTuple

CONSTANTS_FILE = Path(__file__).with_suffix(".json")
JOULES = {"n4": "joule", "ascend910": "joule_ascend"}  # constant of the operations a joule, by family of chips


class Constants(NamedTuple):
    """Fractions of the rates of a data sheet, latencies in seconds, and operations a joule."""

    matrix: float  # fraction of the data sheet's rate of products
    idle: float  # share of all cores that a product leaves idle while
    # one of its tiles takes; a half: the last round is
    # as likely full as empty
    memory: float  # fraction of the bandwidth of memory
    links: float  # fraction of the bandwidth of links
    superstep: float  # seconds that two ranks wait for the later one
    gap: float  # seconds of the host to launch an operation
    hidden: float  # share of collectives that runs beside products, where
    # a stack does that: of gradients, and over some axes
    attention: float = 1  # fraction of the rate of products that fused attention reaches
    eight: float = 1  # fraction of the data sheet's rate of products of eight bits
    joule: float = inf  # operations of sixteen bits a joule, chips of 4 and 5 nm
    joule_ascend: float = inf  # operations of sixteen bits a joule, Ascend 910
    fragments: float = 0.1  # bytes between blocks that are allocated, of their bytes;
    # an allocator retains as many free ones while there is room

    def a_joule(self, family: str) -> float | None:
        """Return the operations of sixteen bits a joule of a family of chips; None where no step was measured."""
        joule: float | None = getattr(self, JOULES[family]) if family in JOULES else None
        return joule


@cache
def load_constants() -> Constants:
    """Return the fitted constants that the package ships."""
    return Constants(**json.loads(CONSTANTS_FILE.read_text("utf-8"))["constants"])


@cache
def constants_version() -> int:
    """Return the version of the constants that the package ships."""
    return int(json.loads(CONSTANTS_FILE.read_text("utf-8"))["version"])
