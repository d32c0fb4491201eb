"""What a product does to its rows before it lets them go: one declaration, read by every kernel and by both checks."""
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .activation import COMPILED
from .arrays import by_rows, separate
from .stage import ROUGH_ERROR as ROUGH_ERROR
from .stage import ROW_FIELDS, VECTORS, reference, stages_of
from .stage import UNIT as UNIT
from .stage import gamma as gamma

TINY, HUGE = 2.0 ** -126, float(np.finfo(np.float32).max)    # the positive normal numbers of float32
EPS = TINY, 2.0 ** 100                                       # with less, rows of equal numbers have no norm; with more,
                                                             # squares overflow
NORMS = ("layer", "rms")


@dataclass(frozen=True, eq=False)
class Epilogue:
    """y + bias, activation, * times, + residual, normalised along the row, * gain, + shift: in this order, each
    optional.

    `bias`, `gain` and `shift` are (p,), `times` and `residual` are (T, p), all float32 (others are cast). `activation`
    is a name of COMPILED. `eps`, from 2^-126 to 2^100, switches on normalisation without gain and shift: `norm` is
    "layer" or "rms". Raises ValueError, which names the field, for another activation or norm, an eps that is no such
    number, a wrong number of axes."""
    bias: NDArray[np.float32] | None = None
    activation: str = ""
    residual: NDArray[np.float32] | None = None
    eps: float | None = None
    gain: NDArray[np.float32] | None = None
    shift: NDArray[np.float32] | None = None
    times: NDArray[np.float32] | None = None
    norm: str = "layer"
    ACTIVATIONS: ClassVar[tuple[str, ...]] = ("", *COMPILED)

    def __post_init__(self) -> None:
        if self.activation not in self.ACTIVATIONS:
            raise ValueError(f"epilogue: activation {self.activation!r} is unknown; choose from {self.ACTIVATIONS}")
        if self.norm not in NORMS: raise ValueError(f"epilogue: norm {self.norm!r} is unknown; choose from {NORMS}")
        if self.eps is not None and not EPS[0] <= self.eps <= EPS[1]:
            raise ValueError(f"epilogue: eps = {self.eps} is not from {EPS[0]:.3g} to {EPS[1]:.3g}, so that every row "
                             "has a norm")
        for name in (*VECTORS, *ROW_FIELDS):
            if (value := getattr(self, name)) is None: continue
            axes = 2 if name in ROW_FIELDS else 1
            value = by_rows(value, name)
            if value.ndim != axes:
                raise ValueError(f"epilogue: {name} has shape {value.shape}; it needs {axes} axes")
            object.__setattr__(self, name, value)

    @property
    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """What it reads, by name."""
        return {name: value for name in (*VECTORS, *ROW_FIELDS) if (value := getattr(self, name)) is not None}

    def __bool__(self) -> bool:
        """Whether it does anything."""
        return any(stages_of(self))

    def check(self, rows: int, columns: int, before: object = "y", out: NDArray[Any] | None = None) -> None:
        """Raise ValueError, which names what comes before, unless every part fits an output of (rows, columns), and
        lies apart from `out`, to which it is written."""
        for name, value in self.arrays.items():
            if name in VECTORS and len(value) != columns:
                raise ValueError(f"after {before}: {name} has {len(value)} entries, the output has {columns} columns")
            if name in ROW_FIELDS and value.shape != (rows, columns):
                raise ValueError(f"after {before}: {name} is {value.shape}, the output is {(rows, columns)}")
        if out is not None: separate(out, **dict[str, Any](self.arrays))

    def reference(self, y: NDArray[Any]) -> NDArray[Any]:
        """What it makes of y (T, p), in plain float64 numpy: the oracle that every kernel is compared with."""
        return reference(np.asarray(y, np.float64), self)

    def bound(self, y: NDArray[Any], error: NDArray[Any], rough: bool = False) -> NDArray[Any]:
        """Entrywise bound on |a float32 evaluation - reference(y)| where y is known to within `error`; rough: after a
        product that rounds x, whose activation need be no more exact.

        A running error analysis (Higham 2002, section 3.3): every operation carries the error of its input through
        its derivative and adds its own rounding."""
        y, error = np.asarray(y, np.float64), np.asarray(error, np.float64)
        for stage in stages_of(self): y, error = stage.means(y, self), stage.bound(y, error, self, rough)
        return error


NOTHING = Epilogue()
