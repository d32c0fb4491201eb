"""Stages of epilogues, a record each: operations on the rows of a product before they are stored. The meaning of
kernels, their error bounds, their prices and their laws are folds over STAGES."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from formats.core.activation import COMPILED, TIMED, Reals
from formats.core.choices import Choice, OneOf, Range

UNIT = 2.0**-24  # unit roundoff of float32 (Higham 2002, section 2.1)
GELU_ERROR, ROUGH_ERROR = 1e-6, 1.8e-4  # error of a kernel's activation, per max(1, |y|)
PER_COLUMN, PER_ROW = "columns", "rows"  # shapes of a stage's arrays: (p,) or (T, p)
TINY = 2.0**-126  # the least positive normal number of float32
EPS = TINY, 2.0**100  # with less, rows of equal numbers have no norm; with more, squares overflow
HUGE = float(np.finfo(np.float32).max)  # the largest number of float32
SMALLEST = 2.0**-149  # the least positive float32: less becomes 0
NORMS = "layer", "rms"
Operand = str | Choice
Cotangents = dict[str, Reals]


def gamma(k: int) -> float:
    """Higham's constant: k float32 roundings in a row cost at most this factor (Higham 2002, lemma 3.1)."""
    return k * UNIT / (1 - k * UNIT)


class NoPullback(ValueError):
    """A step whose operands have no cotangents: a kernel, stage or activation without a derivative, or cotangents that
    are not finite."""


class Stage:
    """A part of an epilogue: a class with its operands, each an array, (p,) or (T, p), or a choice. `means` maps the
    rows y in float64; its second argument has the operands as fields. `bound` limits, entry by entry, the distance of
    a float32 evaluation from `value`, the result for y, where y is known to within `error`; `rough` is true behind a
    product that rounds x. A stage costs `operations` for each number of y, and reads `reads` numbers for each. Machines
    price it as `price`, by default its own name. `pullback` maps a cotangent of `value`, (K, T, p) for K directions, to
    that of y and those of its (T, p) operands; a stage without one has no gradient. Raises TypeError where a part is
    missing."""

    operands: ClassVar[dict[str, Operand]]
    operations: ClassVar[int]
    reads: ClassVar[int] = 0
    price: ClassVar[str]
    means: ClassVar[Callable[[Reals, Any], Reals]]
    bound: ClassVar[Callable[[Reals, Reals, Reals, Any, bool], Reals]]
    pullback: ClassVar[Callable[[Reals, Reals, Any, Reals], tuple[Reals, Cotangents]] | None] = None

    def __init_subclass__(cls, **operands: Operand) -> None:
        missing = [part for part in ("operations", "means", "bound") if part not in vars(cls)]
        if missing or not operands:
            raise TypeError(
                f"stage {cls.__name__}: it does not declare {(*missing, 'operands')[0]}: see the stages in "
                "formats/core/stage.py"
            )
        cls.operands, cls.price = operands, vars(cls).get("price", cls.__name__)

    @classmethod
    def asked(cls, epilogue: object) -> bool:
        """True if the epilogue (any object with these fields) sets an operand of this stage that has no default."""
        return any(
            is_given(getattr(epilogue, name, None))
            for name, kind in cls.operands.items()
            if not is_given(default(kind))
        )


def default(operand: Operand) -> float | str | None:
    """Return the default of an operand; None for an array."""
    return None if isinstance(operand, str) else operand.default


def is_given(value: object) -> bool:
    """True unless a value is None or an empty text, the two defaults of operands."""
    return not (value is None or (isinstance(value, str) and not value))


class bias(Stage, bias=PER_COLUMN):
    """y + bias."""

    operations = 1

    def means(y, e):
        """Add a number of each column to y (T, p)."""
        return y + e.bias

    def bound(y, error, value, e, rough):
        """Add the rounding of the sum to the error of y."""
        return error + UNIT * (abs(value) + error)

    def pullback(y, value, e, g):
        """Return g, as the sum has slope one."""
        return g, {}


class activation(Stage, activation=OneOf(("", *COMPILED), "", TIMED)):
    """A function of each number (activation.py); any of them is priced as TIMED is."""

    operations = COMPILED[TIMED].operations

    def means(y, e):
        """Apply the chosen activation to each number of y."""
        return COMPILED[e.activation].function(y)

    def bound(y, error, value, e, rough):
        """Bound the error by the activation's spread of that of y, and its evaluation, relative to max(1, |value|)."""
        least = (ROUGH_ERROR if rough else GELU_ERROR) * np.maximum(1, abs(value))
        return COMPILED[e.activation].spread(y, error) + least

    def pullback(y, value, e, g):
        """Return g times the slope of the activation. Raises NoPullback if it declares none."""
        if (slope := COMPILED[e.activation].derivative) is None:
            raise NoPullback(f"activation {e.activation}: its record has no derivative")
        return g * slope(y), {}


class times(Stage, times=PER_ROW):
    """y * times: a gate. It is priced as a residual, which moves as much."""

    operations, reads, price = 1, 1, "residual"

    def means(y, e):
        """Multiply y by an array of its shape, (T, p)."""
        return y * e.times

    def bound(y, error, value, e, rough):
        """Scale the error of y, and the rounding of the product, by |times|."""
        return (error + UNIT * (abs(y) + error)) * abs(e.times)

    def pullback(y, value, e, g):
        """Return g times the factor, and its products with y for the factor."""
        return g * e.times, {"times": g * y}


class residual(Stage, residual=PER_ROW):
    """y + residual."""

    operations, reads = 1, 1

    def means(y, e):
        """Add an array of its shape, (T, p), to y."""
        return y + e.residual

    def bound(y, error, value, e, rough):
        """Add the rounding of the sum to the error of y."""
        return error + UNIT * abs(value) + UNIT * error

    def pullback(y, value, e, g):
        """Return g for both terms of the sum."""
        return g, {"residual": g}


class norm(
    Stage, eps=Range(float, *EPS, usual=1e-6, why="so that every row has a norm"), norm=OneOf(NORMS, "layer", "layer")
):
    """y less its mean where `norm` is "layer" (Ba et al. 2016, eq. 4), or y itself where it is "rms" (Zhang and
    Sennrich 2019, eq. 4), over sqrt(mean square + eps), row by row."""

    operations = 6

    def means(y, e):
        """Normalise each row of y (T, p): by mean and deviation ("layer"), or by its root mean square ("rms")."""
        if e.norm == "layer":
            y = y - y.mean(-1, keepdims=True)
        return y / np.sqrt(np.square(y).mean(-1, keepdims=True) + e.eps)

    def bound(y, error, value, e, rough):
        """Bound the error of a normalised row to second order in that of y, with the roundings of both sums of p
        terms."""
        # d z_i = (d_i - mean(d) - z_i mean(z d)) / s and |mean(z d)| <= rms(d); the mean and the mean square are sums
        # of p terms, the second of squares, so their own roundings act like a d of gamma(p + 4) (|y| + mean |y|).
        columns, size = y.shape[1], abs(value)
        centred = y - y.mean(1, keepdims=True) if e.norm == "layer" else y
        deviation = np.sqrt(np.square(centred).mean(1, keepdims=True) + e.eps)
        # Subnormal numbers are multiples of SMALLEST, so a difference may be off by SMALLEST.
        d = error + gamma(columns + 4) * (abs(y) + abs(y).mean(1, keepdims=True)) + SMALLEST
        first = d + d.mean(1, keepdims=True) + size * np.sqrt(np.square(d).mean(1, keepdims=True))
        second = 1 + 4 * np.sqrt(np.square(d).mean(1, keepdims=True)) / deviation
        return first / deviation * second + gamma(columns + 8) * size

    def pullback(y, value, e, g):
        """Return the part of g across each normalised row, over the row's deviation."""
        # d z = (d y - mean(d y) - z mean(z d y)) / s is symmetric in d y; "rms" lacks the mean.
        centred = y - y.mean(-1, keepdims=True) if e.norm == "layer" else y
        deviation = np.sqrt(np.square(centred).mean(-1, keepdims=True) + e.eps)
        along = g - value * (g * value).mean(-1, keepdims=True)
        return (along - g.mean(-1, keepdims=True) if e.norm == "layer" else along) / deviation, {}


class gain_shift(Stage, gain=PER_COLUMN, shift=PER_COLUMN):
    """y * gain + shift, or one of both."""

    operations, price = 2, "affine"

    def means(y, e):
        """Scale the columns of y (T, p) by `gain`, where there is one, then add `shift`, where there is one."""
        if is_given(e.gain):
            y = y * e.gain
        return y + e.shift if is_given(e.shift) else y

    def bound(y, error, value, e, rough):
        """Scale the error of y by |gain|, and add the roundings of the product and of the sum."""
        if is_given(e.gain):
            error = (error + gamma(2) * abs(y)) * abs(e.gain)
        return error + UNIT * (abs(value) + error) if is_given(e.shift) else error

    def pullback(y, value, e, g):
        """Return g times the gain."""
        return g * e.gain if is_given(e.gain) else g, {}


STAGES = (bias, activation, times, residual, norm, gain_shift)  # in the order in which they run


def collect_operands(stages: tuple[type[Stage], ...]) -> dict[str, Operand]:
    """Collect the operands of stages, in their order. TypeError if a stage, or an operand of two stages, occurs
    twice."""
    operands: dict[str, Operand] = {}
    for stage in stages:
        if taken := [name for name in stage.operands if name in operands]:
            raise TypeError(
                f"stage {stage.__name__}: an earlier stage declares the operand {taken[0]}, too: rename one"
            )
        operands |= stage.operands
    return operands


OPERANDS = collect_operands(STAGES)
VECTORS, ROW_FIELDS = (tuple(name for name, kind in OPERANDS.items() if kind == axis) for axis in (PER_COLUMN, PER_ROW))
CHOICES = {name: kind for name, kind in OPERANDS.items() if not isinstance(kind, str)}
DEFAULTS = {name: default(kind) for name, kind in OPERANDS.items()}


def stages_of(epilogue: object) -> Iterator[type[Stage]]:
    """Yield the stages that an epilogue (an object with their operands as fields) requests, in their order."""
    yield from (stage for stage in STAGES if stage.asked(epilogue))


def reference(y: Reals, epilogue: object) -> Reals:
    """Apply the stages one after another to the rows y (T, p), in float64."""
    for stage in stages_of(epilogue):
        y = stage.means(y, epilogue)
    return y


def pullback(y: Reals, epilogue: object, g: Reals) -> tuple[Reals, Cotangents]:
    """Return the cotangents of y (T, p) and of the (T, p) operands of an epilogue, each (K, T, p), for the cotangents g
    (K, T, p) of its result: reverse-mode differentiation through the stages. Raises NoPullback for a stage without a
    derivative."""
    steps = list[tuple[type[Stage], Reals, Reals]]()
    for stage in stages_of(epilogue):
        steps.append((stage, y, value := stage.means(y, epilogue)))
        y = value
    cotangents: Cotangents = {}
    for stage, y, value in reversed(steps):
        if stage.pullback is None:
            raise NoPullback(f"stage {stage.__name__}: it declares no pullback")
        g, beside = stage.pullback(y, value, epilogue, g)
        cotangents |= beside
    return g, cotangents


def is_added(name: str) -> bool:
    """True if rows stay as they are where this vector is zero."""
    rows = np.ones((1, 1))
    return bool((reference(rows, SimpleNamespace(**DEFAULTS | {name: np.zeros(1)})) == rows).all())


ADDED = tuple(name for name in VECTORS if is_added(name))


def bound(y: Reals, error: Reals, epilogue: object, rough: bool = False) -> Reals:
    """Return the entrywise bound on |a float32 evaluation - reference(y)| where y is known to within `error`. `rough`:
    behind a product that rounds x, whose activation need be no more exact.

    A running error analysis (Higham 2002, section 3.3): every operation carries the error of its input through its
    derivative and adds its own rounding."""
    y, error = np.asarray(y, np.float64), np.asarray(error, np.float64)
    for stage in stages_of(epilogue):
        value = stage.means(y, epilogue)
        with np.errstate(invalid="ignore"):
            spread = stage.bound(y, error, value, epilogue, rough)
        y, error = value, spread_beyond(value, spread + SMALLEST)  # the rounding of subnormal numbers
    return error


def spread_beyond(y: Reals, error: Reals) -> Reals:
    """Return errors that are infinite where a number may exceed float32, as the result there is undefined."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(np.isnan(error) | may_overflow(y, error), np.inf, error)


def may_overflow(y: Reals, error: Reals) -> NDArray[np.bool_]:
    """True where a number y, known to within an error, may exceed the largest float32."""
    return np.asarray(np.isfinite(y) & (abs(y) + error > HUGE))
