"""Stages of epilogues, a record each: what a product may do to its rows before it lets them go. What kernels mean, how
far they may round, what they are priced as, and which laws they follow are folds over STAGES."""
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from .activation import COMPILED, TIMED, Reals

UNIT = 2.0 ** -24                                            # unit roundoff of float32 (Higham 2002, section 2.1)
GELU_ERROR, ROUGH_ERROR = 1e-6, 1.8e-4                       # what a kernel's activation may add, per max(1, |y|)
PER_COLUMN, PER_ROW, CHOICE = "columns", "rows", "choice"    # what a stage's operands are: (p,), (T, p), or no array


def gamma(k: int) -> float:
    """Higham's constant: k float32 roundings in a row cost at most this factor (Higham 2002, lemma 3.1)."""
    return k * UNIT / (1 - k * UNIT)


class Stage:
    """A part of an epilogue: a class with its operands, the fields of `Epilogue` that ask for it, each (p,), (T, p) or
    a choice. `means` is what becomes of the rows y, in float64; `bound` how far a float32 evaluation may then be from
    that, entry by entry, where y is known to within `error`, and `rough` where a product that rounds x comes before. It
    costs `operations` a number of y, and reads `reads` numbers for each; machines price it as `price`, by its own name
    where it says none. Raises TypeError where a part is missing."""
    operands: ClassVar[dict[str, str]]
    operations: ClassVar[int]
    reads: ClassVar[int] = 0
    price: ClassVar[str]
    means: ClassVar[Callable[[Reals, Any], Reals]]
    bound: ClassVar[Callable[[Reals, Reals, Any, bool], Reals]]

    def __init_subclass__(cls, **operands: str) -> None:
        missing = [part for part in ("operations", "means", "bound") if part not in vars(cls)]
        if missing or not operands:
            raise TypeError(f"stage {cls.__name__}: it says no {(*missing, 'operands')[0]}: declare it as those in "
                            "formats/core/stage.py")
        cls.operands, cls.price = operands, vars(cls).get("price", cls.__name__)

    @classmethod
    def asked(cls, epilogue: Any) -> bool:
        """Whether what has its fields asks for it, by an operand, or a choice that is made."""
        return any(is_given(getattr(epilogue, name, None)) for name in cls.operands)


def is_given(value: Any) -> bool: return not (value is None or (isinstance(value, str) and not value))


class bias(Stage, bias=PER_COLUMN):
    """y + bias."""
    operations = 1
    def means(y, e): return y + e.bias
    def bound(y, error, e, rough): return error + UNIT * (abs(y + e.bias) + error)


class activation(Stage, activation=CHOICE):
    """A function of each number (activation.py); any of them is priced as TIMED is."""
    operations = COMPILED[TIMED].operations
    def means(y, e): return COMPILED[e.activation].function(y)
    def bound(y, error, e, rough):
        declared = COMPILED[e.activation]
        least = (ROUGH_ERROR if rough else GELU_ERROR) * np.maximum(1, abs(declared.function(y)))
        return declared.spread(y, error) + least


class times(Stage, times=PER_ROW):
    """y * times: a gate. It is priced as a residual, which moves as much."""
    operations, reads, price = 1, 1, "residual"
    def means(y, e): return y * e.times
    def bound(y, error, e, rough): return (error + UNIT * (abs(y) + error)) * abs(e.times)


class residual(Stage, residual=PER_ROW):
    """y + residual."""
    operations, reads = 1, 1
    def means(y, e): return y + e.residual
    def bound(y, error, e, rough): return error + UNIT * abs(y + e.residual) + UNIT * error


class norm(Stage, eps=CHOICE):
    """y less its mean where `norm` is "layer" (Ba et al. 2016, eq. 4), or y itself where it is "rms" (Zhang and
    Sennrich 2019, eq. 4), over sqrt(mean square + eps), row by row."""
    operations = 6
    def means(y, e):
        if e.norm == "layer": y = y - y.mean(1, keepdims=True)
        return y / np.sqrt(np.square(y).mean(1, keepdims=True) + e.eps)

    def bound(y, error, e, rough):
        # d z_i = (d_i - mean(d) - z_i mean(z d)) / s and |mean(z d)| <= rms(d); the mean and the mean square are sums
        # of p terms, the second of squares, so their own roundings act like a d of gamma(p + 4) (|y| + mean |y|).
        columns = y.shape[1]
        z = y - y.mean(1, keepdims=True) if e.norm == "layer" else y
        deviation = np.sqrt(np.square(z).mean(1, keepdims=True) + e.eps)
        z = z / deviation
        d = error + gamma(columns + 4) * (abs(y) + abs(y).mean(1, keepdims=True))
        first = d + d.mean(1, keepdims=True) + abs(z) * np.sqrt(np.square(d).mean(1, keepdims=True))
        second = 1 + 4 * np.sqrt(np.square(d).mean(1, keepdims=True)) / deviation
        return first / deviation * second + gamma(columns + 8) * abs(z)


class gain_shift(Stage, gain=PER_COLUMN, shift=PER_COLUMN):
    """y * gain + shift, or one of both."""
    operations, price = 2, "affine"
    def means(y, e):
        if is_given(e.gain): y = y * e.gain
        return y + e.shift if is_given(e.shift) else y

    def bound(y, error, e, rough):
        if is_given(e.gain): y, error = y * e.gain, (error + gamma(2) * abs(y)) * abs(e.gain)
        return error + UNIT * (abs(y + e.shift) + error) if is_given(e.shift) else error


STAGES = (bias, activation, times, residual, norm, gain_shift)   # in the order in which they run


def operands_that_are(*kinds: str) -> tuple[str, ...]:
    """The operands of all stages that are of these kinds, in the order of stages."""
    return tuple(name for stage in STAGES for name, kind in stage.operands.items() if kind in kinds)


VECTORS, ROW_FIELDS = operands_that_are(PER_COLUMN), operands_that_are(PER_ROW)


def stages_of(epilogue: Any) -> Iterator[type[Stage]]:
    """The stages that what has their fields asks for, in their order."""
    yield from (stage for stage in STAGES if stage.asked(epilogue))


def reference(y: Reals, epilogue: Any) -> Reals:
    """What stages make of the rows y (T, p), one after another, in float64."""
    for stage in stages_of(epilogue): y = stage.means(y, epilogue)
    return y
