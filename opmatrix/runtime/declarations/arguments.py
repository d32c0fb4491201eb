"""The argument of a kernel's readings: a record made from its signature."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

BESIDE = "batch", "exact", "at", "shapes"  # names that a reading may have beside its signature
Doubles = NDArray[np.float64]
MAX_VALUES = 64  # values, and arrays, of a step that is a term
VALUE_NAMES, ARRAY_NAMES, STATE_NAMES = (tuple(f"{letter}{k}" for k in range(MAX_VALUES)) for letter in "xcs")
TermOperands = tuple[list[Any], list[Any]]


class Arguments:
    """A kernel's operands and attributes by name; for float64 readings also the `batch`, in bounds the same in float64,
    as `exact`, in padded readings the shapes of values, as `shapes`. The record of a kernel is this class with the
    names of its signature, and has no others."""

    kernel = ""
    names: frozenset[str] = frozenset()

    def __init__(self, /, **values: object) -> None:
        if self.kernel and (unknown := [name for name in values if name not in self.names]):
            raise TypeError(f"kernel {self.kernel} has no {', '.join(unknown)}")
        vars(self).update(values)

    def __getattr__(self, name: str) -> Any:
        who = f"kernel {self.kernel}" if self.kernel else "the record of a kernel"
        raise AttributeError(f"{who} has no {name}; there are {', '.join(vars(self))}")


def split_operands(operands: Any) -> TermOperands:
    """Return the values and the arrays of a step that is a term, those that it has, in order."""
    held = operands if isinstance(operands, dict) else vars(operands)
    values, arrays = (
        [held[name] for name in names if held.get(name) is not None] for names in (VALUE_NAMES, ARRAY_NAMES)
    )
    return values, arrays
