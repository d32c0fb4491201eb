"""Epilogues: operations on the rows of a product before they are stored. One declaration, read by every kernel and by
both checks."""

from dataclasses import dataclass, field, make_dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from formats.core.activation import COMPILED
from formats.core.arrays import by_rows, separate
from formats.core.choices import OneOf
from formats.core.stage import CHOICES, DEFAULTS, ROW_FIELDS, VECTORS, bound, reference, stages_of
from formats.core.stage import EPS as EPS
from formats.core.stage import HUGE as HUGE
from formats.core.stage import NORMS as NORMS
from formats.core.stage import ROUGH_ERROR as ROUGH_ERROR
from formats.core.stage import TINY as TINY
from formats.core.stage import UNIT as UNIT
from formats.core.stage import gamma as gamma

Operands: Any = make_dataclass(
    "Operands",
    [(name, Any, field(default=value)) for name, value in DEFAULTS.items()],
    frozen=True,
    eq=False,
    kw_only=True,
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Epilogue(Operands):  # type: ignore[misc]
    """The operands of stages (formats/core/stage.py), which run in this order where their operands are given: y + bias,
    activation, * times, + residual, normalised along the row, * gain, + shift.

    `bias`, `gain` and `shift` are (p,), `times` and `residual` are (T, p), all float32 (others are cast). `activation`
    is a name of COMPILED. `eps`, from 2^-126 to 2^100, switches on normalisation without gain and shift: `norm` is
    "layer" or "rms". Raises ValueError, which names the field, for another activation or norm, an eps outside these
    limits, a wrong number of axes."""

    ACTIVATIONS: ClassVar[tuple[str, ...]] = ("", *COMPILED)

    def __post_init__(self) -> None:
        for name, choice in CHOICES.items():
            value = getattr(self, name)
            if isinstance(choice, OneOf):
                if choice.holds(value):
                    continue
                raise ValueError(f"epilogue: {name} {value!r} is unknown; choose from {choice.words}")
            if value is not None and not choice.low <= value <= choice.high:
                raise ValueError(
                    f"epilogue: {name} = {value} is not from {choice.low:.3g} to {choice.high:.3g}"
                    + f", {choice.why}" * bool(choice.why)
                )
        for name in (*VECTORS, *ROW_FIELDS):
            if (value := getattr(self, name)) is None:
                continue
            axes = 2 if name in ROW_FIELDS else 1
            value = by_rows(value, name)
            if value.ndim != axes:
                raise ValueError(f"epilogue: {name} has shape {value.shape}; it needs {axes} axes")
            object.__setattr__(self, name, value)

    @property
    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """The arrays that the epilogue reads, by name."""
        return {name: value for name in (*VECTORS, *ROW_FIELDS) if (value := getattr(self, name)) is not None}

    def __bool__(self) -> bool:
        """True if the epilogue does anything."""
        return any(stages_of(self))

    def check(self, rows: int, columns: int, before: object = "y", out: np.ndarray | None = None) -> None:
        """Raise ValueError, which names the preceding product, unless every array fits an output of (rows, columns) and
        shares no memory with `out`, to which the result is written."""
        for name, value in self.arrays.items():
            if name in VECTORS and len(value) != columns:
                raise ValueError(f"after {before}: {name} has {len(value)} entries, the output has {columns} columns")
            if name in ROW_FIELDS and value.shape != (rows, columns):
                raise ValueError(f"after {before}: {name} is {value.shape}, the output is {(rows, columns)}")
        if out is not None:
            separate(out, **dict[str, Any](self.arrays))

    def reference(self, y: np.ndarray) -> np.ndarray:
        """Evaluate the epilogue on y (T, p) in plain float64 numpy: the oracle that every kernel is compared with."""
        return reference(np.asarray(y, np.float64), self)

    def bound(self, y: np.ndarray, error: np.ndarray, rough: bool = False) -> np.ndarray:
        """Return the entrywise bound on |a float32 evaluation - reference(y)| where y is known to within `error`; see
        formats.core.stage.bound."""
        return bound(y, error, self, rough)


NOTHING = Epilogue()
