"""Activations: functions of single numbers that products end with, a record each. Operators, the names in checkpoints,
the arguments that laws are checked with, passes of kernels, and tests are derived from these records alone."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]
CLAMPED, GATE_SLOPE = 7.0, 1.702  # bound and slope of clamped gates, as gpt-oss was trained with (OpenAI 2025)
TIMED = "gelu"  # priced for all activations, and compiled first


class Activation(NamedTuple):
    """A function of a number. `function` is its meaning: of float64 arrays, and of single numbers of any kind (of
    intervals, too), so it is plain arithmetic and functions of numpy. `spread` bounds, entry by entry, the error of
    function(y) where y is off by at most `error`. `operations` are those for one number, `properties` those of the
    operator (opmatrix/algebra/properties.py). `vector` names its vector code in formats/kernels/rows/activations.py,
    `rough` vector code that is no more exact than ROUGH_ERROR; without vector code the activation runs in a kernel that
    is made of `function`. `called` are its names in configurations of checkpoints. `everywhere`: it has a value at
    every number, so laws are tried with it. `derivative` is its derivative, of arrays; without one the activation has
    no gradient."""

    function: Callable[[Any], Any]
    spread: Callable[[Reals, Reals], Reals]
    operations: int
    properties: dict[str, bool]
    vector: str = ""
    rough: str = ""
    called: tuple[str, ...] = ()
    everywhere: bool = True
    derivative: Callable[[Any], Any] | None = None

    @property
    def name(self) -> str:
        """The name in programs and epilogues: that of `function`."""
        return self.function.__name__


def steepest(slope: float) -> Callable[[Reals, Reals], Reals]:
    """Return the spread of an error through a function whose derivative lies within ± slope."""
    return lambda y, error: slope * error


def activation(
    slope: float | Callable[[Reals, Reals], Reals],
    operations: int,
    *,
    vector: str = "",
    rough: str = "",
    called: tuple[str, ...] = (),
    everywhere: bool = True,
    derivative: Callable[[Any], Any] | None = None,
    **properties: bool,
) -> Callable[[Callable[[Any], Any]], Activation]:
    """Declare a function as an activation. `slope` is the largest size of its derivative, or the function that spreads
    an error; the other parameters are fields of Activation."""
    spread = slope if callable(slope) else steepest(slope)
    if isinstance(called, str):
        raise TypeError(f"activation called {called!r}: give a tuple of names, ({called!r},)")
    return lambda function: Activation(
        function, spread, operations, properties, vector, rough, called, everywhere, derivative
    )


# Derivatives, of arrays: `opmatrix/autodiff` uses them, and no kernel computes them.


def slope_of_gelu(u: Reals) -> Any:
    """Compute the derivative of gelu: Φ(u) + u φ(u), of the normal distribution and its density."""
    from scipy.special import erf

    return 0.5 * (1 + erf(u / 2**0.5)) + u * np.exp(-u * u / 2) / (2 * np.pi) ** 0.5


def slope_of_gelu_tanh(u: Reals) -> Any:
    """Compute the derivative of gelu's approximation by a tanh."""
    c = (2 / np.pi) ** 0.5
    t = np.tanh(c * (u + 0.044715 * u * u * u))
    return 0.5 * (1 + t) + 0.5 * u * (1 - t * t) * c * (1 + 3 * 0.044715 * u * u)


def logistic(u: Reals) -> Reals:
    """Return σ(u) = 1 / (1 + e^-u), without cancelling far below 0."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-u)))


def slope_of_silu(u: Reals) -> Any:
    """Compute the derivative of u σ(u), which is σ(u) (1 + u (1 - σ(u)))."""
    y = logistic(u)
    return y * (1 + u * (1 - y))


def slope_of_clamped_gate(u: Reals) -> Reals:
    """Compute the derivative of v σ(s v), v = min(u, 7): σ (1 + s v (1 - σ)) up to 7, then 0."""
    v = np.minimum(u, CLAMPED)
    y = logistic(GATE_SLOPE * v)
    return np.asarray(np.where(u < CLAMPED, y * (1 + GATE_SLOPE * v * (1 - y)), 0.0))


def damp(u: Reals, share: Reals) -> Any:
    """Return u times `share`; 0 where u is minus infinity, as in the limit."""
    return np.where(u == -np.inf, 0.0, u) * share


@activation(
    1.13,
    12,
    vector="gelu_of",
    rough="gelu_rough",
    called=("gelu", "gelu_python"),
    maps_zero_to_zero=True,
    derivative=slope_of_gelu,
)
def gelu(u: Reals) -> Any:
    """u times the probability that a normal number is below u (Hendrycks and Gimpel 2016)."""
    from scipy.special import erf

    return damp(u, 0.5 * (1 + erf(u / 2**0.5)))


@activation(
    1.13,
    12,
    vector="gelu_tanh_of",
    called=("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python_tanh", "gelu_accurate"),
    maps_zero_to_zero=True,
    derivative=slope_of_gelu_tanh,
)
def gelu_tanh(u: Reals) -> Any:
    """gelu's approximation by a tanh, which some checkpoints were trained with."""
    return damp(u, 0.5 * (1 + np.tanh((2 / np.pi) ** 0.5 * (u + 0.044715 * u * u * u))))


@activation(1.13, 12, vector="silu_of", called=("silu", "swish"), maps_zero_to_zero=True, derivative=slope_of_silu)
def silu(u: Reals) -> Any:
    """u times its logistic function (Elfwing et al. 2018, arXiv:1702.03118)."""
    return damp(u, logistic(u))


@activation(
    1.0,
    1,
    vector="relu_of",
    called=("relu",),
    positively_homogeneous=True,
    maps_zero_to_zero=True,
    derivative=lambda u: np.where(u > 0, 1.0, 0.0),
)
def relu(u: Reals) -> Reals:
    """Negative numbers become zero."""
    return np.maximum(u, 0)


@activation(
    1.0,
    12,
    vector="tanh_of",
    called=("tanh",),
    maps_zero_to_zero=True,
    keeps_order=True,
    derivative=lambda u: 1 - np.tanh(u) ** 2,
)
def tanh(u: Reals) -> Reals:
    """The hyperbolic tangent."""
    return np.tanh(u)


@activation(
    0.25,
    12,
    vector="sigmoid_of",
    called=("sigmoid",),
    keeps_order=True,
    derivative=lambda u: 0.25 * (1 - np.tanh(u / 2) ** 2),
)
def sigmoid(u: Reals) -> Reals:
    """The logistic function, 1 / (1 + e^-u)."""
    return logistic(u)


@activation(
    lambda y, error: (2 * abs(y) + error) * error,
    1,
    vector="square_of",
    maps_zero_to_zero=True,
    derivative=lambda u: 2 * u,
)
def square(u: Reals) -> Reals:
    """u times u."""
    return u * u


def spread_rsqrt(y: Reals, error: Reals) -> Reals:
    """Spread an error through 1 / sqrt, which is steepest at the lower end of the interval around y."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(error / (2 * np.maximum(y - error, 0) ** 1.5))


@activation(spread_rsqrt, 2, vector="rsqrt_of", everywhere=False, derivative=lambda u: -0.5 * u**-1.5)
def rsqrt(u: Reals) -> Reals:
    """One over the square root."""
    return 1 / np.sqrt(u)


@activation(1.0, 14, keeps_order=True, derivative=logistic)
def softplus(u: Reals) -> Reals:
    """The logarithm of 1 + e^u, a smooth relu (Dugas et al. 2001)."""
    return np.logaddexp(0, u)


@activation(
    1.0, 20, called=("elu",), maps_zero_to_zero=True, keeps_order=True, derivative=lambda u: np.exp(np.minimum(u, 0))
)
def elu(u: Reals) -> Any:
    """u, or e^u - 1 where that is negative (Clevert et al. 2015, arXiv:1511.07289)."""
    return np.maximum(u, 0) + np.expm1(np.minimum(u, 0))


@activation(
    lambda y, error: np.exp(y) * (np.expm1(error) + 2.0**-50 * (1 + abs(y))),
    16,
    everywhere=False,
    maps_zero_to_zero=True,
    keeps_order=True,
    derivative=np.exp,
)
def expm1(u: Reals) -> Any:
    """e to the power u, less 1."""
    return np.expm1(u)


@activation(1.0, 17, maps_zero_to_zero=True, derivative=lambda u: np.where(u > 0, 1 / (1 + np.maximum(u, 0)), 0.0))
def log1p_relu(u: Reals) -> Reals:
    """The logarithm of 1 + relu(u) (Formal et al. 2021, arXiv:2107.05720)."""
    return np.log1p(np.maximum(u, 0))


@activation(1.13, 14, vector="clamped_gate_of", maps_zero_to_zero=True, derivative=slope_of_clamped_gate)
def clamped_gate(u: Reals) -> Reals:
    """v σ(1.702 v), where v is u, and 7 above: the gates of gpt-oss (OpenAI 2025, arXiv:2508.10925)."""
    v = np.minimum(u, CLAMPED)
    share: Reals = damp(v, logistic(GATE_SLOPE * v))
    return share


@activation(1.0, 3, vector="clamped_factor_of", derivative=lambda u: np.where(abs(u) < CLAMPED, 1.0, 0.0))
def clamped_factor(u: Reals) -> Reals:
    """1 plus u, which is kept within ± 7: what clamped gates are multiplied by."""
    return np.maximum(-CLAMPED, np.minimum(u, CLAMPED)) + 1


def spread_logarithm(y: Reals, error: Reals) -> Reals:
    """Spread an error through the logarithm, which is steepest at the lower end of the interval around y."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(error < y, -np.log1p(-error / y), np.inf))


@activation(spread_logarithm, 16, everywhere=False, derivative=lambda u: 1 / u)
def log(u: Reals) -> Any:
    """The natural logarithm."""
    return np.log(u)


def names_called(records: Iterable[Activation]) -> dict[str, str]:
    """Map the names that configurations use to names of activations. TypeError where two activations have the same
    one."""
    names: dict[str, str] = {}
    for name, called in ((record.name, called) for record in records for called in record.called):
        if called in names:
            raise TypeError(f"activation {name}: {called} is already what checkpoints call {names[called]}")
        names[called] = name
    return names


ACTIVATIONS = {record.name: record for record in vars().copy().values() if isinstance(record, Activation)}
COMPILED = {name: record for name, record in ACTIVATIONS.items() if record.vector}  # activations that kernels end with
