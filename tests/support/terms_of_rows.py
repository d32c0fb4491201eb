"""Random terms that go through rows one by one, and random monoids."""

import numpy as np

from opmatrix.algebra import monoids
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.nodes import symbol
from opmatrix.algebra.operators import (
    I,
    const,
    elu,
    exp,
    expm1,
    gelu,
    heads,
    log,
    magnitude,
    ones,
    over,
    relu,
    row,
    rsqrt,
    share,
    silu,
    softplus,
    square,
    tanh,
    total,
    weight,
)
from opmatrix.algebra.operators import cols as columns
from opmatrix.algebra.shapes import Shape, T

ENTRYWISE = (tanh, relu, gelu, silu, softplus, square, magnitude, elu, tanh @ expm1, (magnitude + 0.5) @ log)
MERGED = (
    monoids.max,
    monoids.min,
    monoids.mean,
    monoids.sumsq,
    monoids.logsumexp,
    monoids.moments,
    monoids.topk(2),
    ones,
)


def random_monoid(rng):
    """One of ours, or one of one's own with a number of its own: of one carried number or of two, in order or not."""
    if rng.random() < 0.6:
        return MERGED[rng.integers(len(MERGED))]
    c = float(rng.uniform(0.25, 2.0))
    made = dict(
        peak=dict(identity=0.0, lift=lambda x, w: np.abs(c * x * w), merge=np.maximum),
        harmonic=dict(
            identity=0.0,
            lift=lambda x, w: 1 / (c + np.abs(x * w)),
            merge=lambda a, b: a + b,
            finish=lambda s: np.where(s == 0, 0.0, 1 / np.where(s == 0, 1.0, s)),
        ),
        spread=dict(
            identity=(-np.inf, np.inf),
            lift=lambda x, w: (x * w, c * x * w),
            merge=lambda a, b: (np.maximum(a[0], b[0]), np.minimum(a[1], b[1])),
            finish=lambda u, v: u - v,
        ),
        fading=dict(
            identity=(1.0, 0.0),
            commutative=False,
            lift=lambda x, w: (0.5 / (1 + c * np.abs(x)), x * w),
            merge=lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]),
            finish=lambda a, h: h,
        ),
    )
    name = rng.choice([*made])
    return type(str(name), (Monoid,), made[name])


def value(k, cols, count=1):
    """The k-th value that a term is read over."""
    return symbol(f"x{k}", Shape(), Shape(count, T, cols), ())


def tame(x):
    """A value whose numbers stay within some tens: what grows without end says nothing of errors."""
    return x @ tanh


def random_term(rng, cols):
    """(a term of one or two values of so many columns, these values)."""
    values = [value(k, cols) for k in range(rng.integers(1, 3))]
    term = values[0]
    for _ in range(rng.integers(1, 5)):
        match rng.integers(0, 9):
            case 0:
                term = term @ ENTRYWISE[rng.integers(len(ENTRYWISE))]
            case 1:
                term = term * tame(values[-1])
            case 2:
                term = term + values[-1] @ const(rng.normal(size=cols))
            case 3:
                term = tame(term) * (tame(term) @ square @ monoids.mean @ rsqrt_of_more())
            case 4:
                term = tame(term) @ exp
            case 5:
                term = term @ share
            case 6:
                term = term + values[-1] @ (I * rng.normal())
            case 7:
                term = term * (values[0] @ magnitude @ over(ones, monoids.max))
            case 8:
                term = term + tame(values[0]) @ const(rng.normal(size=cols)) * const(0.5)
    match rng.integers(0, 6):
        case 0 | 5:
            term = term @ over_of(random_monoid(rng))
        case 1:
            term = row(term, values[0] @ tanh)
        case 2 if cols % 3 == 0:
            term = term @ heads(3) @ share * ((tame(values[-1]) @ columns(0, 3, cols)) @ heads(3)) @ total
        case 4 if cols > 3:
            term = tame(term) * (values[0] @ columns(2, 3, cols))
        case 3 if cols <= 48:
            term = tame(term) @ weight(rng.normal(size=(cols, 5)))
    return term, values


def share_of(out, meant, most):
    """How far numbers are from what they mean, in bounds: not at all where both are infinite, or no numbers."""
    with np.errstate(all="ignore"):
        rounded = np.float32(meant)
        alike = (out == meant) | (~np.isfinite(rounded) & (out == rounded)) | (np.isnan(out) & np.isnan(rounded))
        return np.where(alike, 0.0, abs(out - meant) / most)


def rsqrt_of_more():
    return (I + const(1e-3)) @ rsqrt


def over_of(monoid):
    return monoid if monoid is ones else over(ones, monoid)
