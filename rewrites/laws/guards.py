"""Conditions of laws as they are written, (fact variable ..), and the one that speaks of sizes."""
import re
from typing import NamedTuple

SAME_SIZE = "same_size"                                     # of two values: as many heads, columns, rows of one space
CONDITION = re.compile(r"\((\w+)((?: \w+)+)\)", re.ASCII)


class Guard(NamedTuple):
    """A fact, and the variables of a law of which it is asked."""

    fact: str
    variables: tuple[str, ...]


def read_guard(condition: str) -> Guard | None:
    """The fact and the variables of a condition; None for text that is none."""
    parts = CONDITION.fullmatch(condition)
    return Guard(parts[1], tuple(parts[2].split())) if parts else None
