"""Monoids that have one flag and no other that does not follow from it. Of those that models use, each that is shift
invariant is right-linear and normalised too, so they cannot show which flag makes an equation true."""

from numpy import where

from opmatrix.algebra import monoids
from opmatrix.algebra.monoid import Monoid, Scalars
from rewrites.laws.law import Sort, choices


class squared_share(monoids.softmax):
    """The square of softmax's result: shift invariant alone."""

    closed = None  # type: ignore[assignment]
    right_linear, normalised = False, False

    def finish(top: Scalars, weights: Scalars, total: Scalars) -> Scalars:
        """Square the weighted mean."""
        return monoids.softmax.finish(top, weights, total) ** 2


class relative_weights(monoids.softmax):
    """The sum of rows weighted by exp(score - largest score): shift invariant and right-linear, and the weights add to
    a number that depends on the scores."""

    closed = None  # type: ignore[assignment]
    normalised = False

    def finish(top: Scalars, weights: Scalars, total: Scalars) -> Scalars:
        """Return the weighted sum, not divided by the weights."""
        return total


class squared_weights(Monoid):
    """The mean of rows weighted by squared scores: normalised, and not shift invariant."""

    identity, normalised = (0, 0), True

    def lift(z: Scalars, v: Scalars) -> Scalars:
        """Lift to the weight, and the weighted row."""
        return z * z, z * z * v

    def merge(a: Scalars, b: Scalars) -> Scalars:
        """Add weights and rows."""
        return a[0] + b[0], a[1] + b[1]

    def finish(weights: Scalars, total: Scalars) -> Scalars:
        """Divide by the weights; zero where no row was seen."""
        return total / where(weights == 0, 1, weights)


WITNESSES = squared_share, relative_weights, squared_weights


def list_monoids(sort: Sort) -> list[object]:
    """Return the witnesses and the monoids of checks that have the flags of a sort."""
    flags = [str(flag) for flag in sort.sizes]
    return [*(one for one in WITNESSES if all(getattr(one, flag) for flag in flags)), *choices(sort)]
