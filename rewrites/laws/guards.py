"""Conditions of laws in their written form, (fact variable ..), and the one about sizes."""

import re
from typing import NamedTuple

SAME_SIZE = "same_size"  # fact of two values: equal heads, columns, row space
CONDITION = re.compile(r"\((\w+)((?: \w+)+)\)", re.ASCII)


class Guard(NamedTuple):
    """A fact, and the variables of a law that must have it."""

    fact: str
    variables: tuple[str, ...]


def read_guard(condition: str) -> Guard | None:
    """Return the fact and the variables of a condition; None for other text."""
    parts = CONDITION.fullmatch(condition)
    return Guard(parts[1], tuple(parts[2].split())) if parts else None
