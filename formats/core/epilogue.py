"""What a product does to its rows before it lets them go: one declaration, read by every kernel and by both checks."""
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .activations import ACTIVATIONS, COMPILED, TIMED
from .arrays import by_rows, separate

UNIT = 2.0 ** -24                                            # unit roundoff of float32 (Higham 2002, section 2.1)
GELU_ERROR, ROUGH_ERROR = 1e-6, 1.8e-4                       # what a kernel's activation may add, per max(1, |y|)
TINY, HUGE = 2.0 ** -126, float(np.finfo(np.float32).max)    # the positive normal numbers of float32
EPS = TINY, 2.0 ** 100                                       # with less, rows of equal numbers have no norm; with more,
                                                             # squares overflow
VECTORS = ("bias", "gain", "shift")
ROW_FIELDS = ("times", "residual")
NORMS = ("layer", "rms")


class EpilogueStage(NamedTuple):
    """A part of an epilogue: the price that it has, the fields of `Epilogue` that ask for it, operations a number of y,
    and how many numbers it reads for each."""
    price: str
    fields: tuple[str, ...]
    operations: int
    reads: int = 0


# in the order in which they run; any activation costs about what TIMED does, a factor what a residual does
STAGES = (EpilogueStage("bias", ("bias",), 1),
          EpilogueStage("activation", ("activation",), ACTIVATIONS[TIMED].operations),
          EpilogueStage("residual", ("times",), 1, 1),
          EpilogueStage("residual", ("residual",), 1, 1), EpilogueStage("norm", ("eps",), 6),
          EpilogueStage("affine", ("gain", "shift"), 2))


def present(fields: Collection[str]) -> list[str]:
    """The prices of the stages that these fields ask for, in their order."""
    return [stage.price for stage in STAGES if any(field in fields for field in stage.fields)]


def gamma(k: int) -> float:
    """Higham's constant: k float32 roundings in a row cost at most this factor (Higham 2002, lemma 3.1)."""
    return k * UNIT / (1 - k * UNIT)


@dataclass(frozen=True, eq=False)
class Epilogue:
    """y + bias, activation, * times, + residual, normalised along the row, * gain, + shift: in this order, each
    optional.

    `bias`, `gain` and `shift` are (p,), `times` and `residual` are (T, p), all float32 (others are cast). `activation`
    is a name of COMPILED. `eps`, from 2^-126 to 2^100, switches on normalisation without gain and shift: `norm` is
    "layer" (Ba et al. 2016, eq. 4: the mean of the row is subtracted and the rest multiplied by 1 / sqrt(mean square +
    eps)) or "rms" (Zhang and Sennrich 2019, eq. 4: the same without the mean). Raises ValueError, which names the
    field, for another activation or norm, an eps that is no such number, a wrong number of axes."""
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

    def __bool__(self) -> bool:
        """Whether it does anything."""
        parts = self.bias, self.times, self.residual, self.eps, self.gain, self.shift
        return bool(self.activation) or any(part is not None for part in parts)

    def check(self, rows: int, columns: int, before: object = "y", out: NDArray[Any] | None = None) -> None:
        """Raise ValueError, which names what comes before, unless every part fits an output of (rows, columns), and
        lies apart from `out`, to which it is written."""
        for name in VECTORS:
            value = getattr(self, name)
            if value is not None and len(value) != columns:
                raise ValueError(f"after {before}: {name} has {len(value)} entries, the output has {columns} columns")
        for name in ROW_FIELDS:
            if (value := getattr(self, name)) is not None and value.shape != (rows, columns):
                raise ValueError(f"after {before}: {name} is {value.shape}, the output is {(rows, columns)}")
        if out is not None:
            separate(out, **{name: value for name in (*VECTORS, *ROW_FIELDS)
                             if (value := getattr(self, name)) is not None})

    def reference(self, y: NDArray[Any]) -> NDArray[Any]:
        """The same in plain float64 numpy: y (T, p) -> (T, p). The oracle that every kernel is compared with."""
        y = np.asarray(y, np.float64)
        if self.bias is not None: y = y + self.bias
        if self.activation: y = COMPILED[self.activation].function(y)
        if self.times is not None: y = y * self.times
        if self.residual is not None: y = y + self.residual
        if self.eps is not None:
            if self.norm == "layer": y = y - y.mean(1, keepdims=True)
            y = y / np.sqrt(np.square(y).mean(1, keepdims=True) + self.eps)
        if self.gain is not None: y = y * self.gain
        if self.shift is not None: y = y + self.shift
        return y

    def bound(self, y: NDArray[Any], error: NDArray[Any], rough: bool = False) -> NDArray[Any]:
        """Entrywise bound on |a float32 evaluation - reference(y)| where y is known to within `error`; rough: after a
        product that rounds x, whose activation need be no more exact.

        A running error analysis (Higham 2002, section 3.3): every operation carries the error of its input through
        its derivative and adds its own rounding."""
        y, error = np.asarray(y, np.float64), np.asarray(error, np.float64)
        if self.bias is not None: y, error = y + self.bias, error + UNIT * (abs(y + self.bias) + error)
        if self.activation:
            declared = COMPILED[self.activation]
            error, y = declared.spread(y, error), declared.function(y)
            error = error + (ROUGH_ERROR if rough else GELU_ERROR) * np.maximum(1, abs(y))
        if self.times is not None: y, error = y * self.times, (error + UNIT * (abs(y) + error)) * abs(self.times)
        if self.residual is not None:
            y, error = y + self.residual, error + UNIT * abs(y + self.residual) + UNIT * error
        if self.eps is not None: y, error = self._normalised(y, error)
        if self.gain is not None: y, error = y * self.gain, (error + gamma(2) * abs(y)) * abs(self.gain)
        if self.shift is not None: y, error = y + self.shift, error + UNIT * (abs(y + self.shift) + error)
        return error

    def _normalised(self, y: NDArray[Any], error: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        # d z_i = (d_i - mean(d) - z_i mean(z d)) / s and |mean(z d)| <= rms(d); the mean and the mean square are sums
        # of p terms, the second of squares, so their own roundings act like a d of gamma(p + 4) (|y| + mean |y|).
        columns = y.shape[1]
        z = y - y.mean(1, keepdims=True) if self.norm == "layer" else y
        deviation = np.sqrt(np.square(z).mean(1, keepdims=True) + self.eps)
        z = z / deviation
        d = error + gamma(columns + 4) * (abs(y) + abs(y).mean(1, keepdims=True))
        first = d + d.mean(1, keepdims=True) + abs(z) * np.sqrt(np.square(d).mean(1, keepdims=True))
        second = 1 + 4 * np.sqrt(np.square(d).mean(1, keepdims=True)) / deviation
        return z, first / deviation * second + gamma(columns + 8) * abs(z)


NOTHING = Epilogue()
