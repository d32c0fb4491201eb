"""Options beside arrays: one of a few words, a number within a range, or the default."""

from typing import NamedTuple

LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127  # the largest float32; kernels compute in float32


class Range(NamedTuple):
    """Numbers that an attribute may be, as its annotation: integers or real numbers, both ends included."""

    number: type
    low: float
    high: float
    default: float | None = None
    usual: float | None = None  # the value that calibrations time
    why: str = ""  # the reason for the limits

    def holds(self, value: object) -> bool:
        """True for a number of the declared type from `low` to `high`; never for a boolean."""
        if not isinstance(value, int if self.number is int else int | float):
            return False
        return not isinstance(value, bool) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"a {'whole' if self.number is int else 'real'} number from {self.low:.8g} to {self.high:.8g}"


class OneOf(NamedTuple):
    """Words that an attribute may be, and its default."""

    words: tuple[str, ...]
    default: str = ""
    usual: str = ""

    def holds(self, value: object) -> bool:
        """True if the value is one of the words."""
        return value in self.words


Choice = Range | OneOf
