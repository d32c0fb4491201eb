"""The monoids, each once. To add one, write its four names and the flags that hold: nothing else is required."""

from functools import cache
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy import exp, inf, log, maximum, minimum, where
from numpy.typing import NDArray

from opmatrix.algebra.attributes import STRANGERS, brief, is_term, whole_of
from opmatrix.algebra.monoid import Monoid, Scalars

Visible: TypeAlias = NDArray[np.bool_] | None


class sum(Monoid):
    """The ordinary matrix product."""

    identity, ordinary = 0, True

    def lift(x: Scalars, w: Scalars) -> Scalars:
        return x * w

    def merge(a: Scalars, b: Scalars) -> Scalars:
        return a + b

    @staticmethod
    def distributes(w: float) -> bool:
        """True: scaling distributes over sums."""
        return True

    def closed(x: Scalars, w: Scalars, seen: Visible = None) -> Scalars:
        """Compute the matrix product, with unseen entries of x as zeros."""
        return (x if seen is None else where(seen, x, 0)) @ w


class max(Monoid):
    """The largest."""

    identity, idempotent, homogeneous = -inf, True, True

    def lift(x: Scalars, w: Scalars) -> Scalars:
        return x * w

    def merge(a: Scalars, b: Scalars) -> Scalars:
        return maximum(a, b)

    @staticmethod
    def distributes(w: float) -> bool:
        """True for a positive number, which keeps the order."""
        return w > 0


class min(Monoid):
    """The smallest."""

    identity, idempotent, homogeneous = inf, True, True

    def lift(x: Scalars, w: Scalars) -> Scalars:
        return x * w

    def merge(a: Scalars, b: Scalars) -> Scalars:
        return minimum(a, b)

    @staticmethod
    def distributes(w: float) -> bool:
        """True for a positive number, which keeps the order."""
        return w > 0


class rectify(Monoid):
    """Relu is x times the identity, where plus means max and starts from 0."""

    identity, idempotent, homogeneous = 0, True, True

    def lift(x: Scalars, w: Scalars) -> Scalars:
        return maximum(x * w, 0)

    def merge(a: Scalars, b: Scalars) -> Scalars:
        return maximum(a, b)


class mean(Monoid):
    """The average: a count beside a total."""

    identity, linear = (0, 0), True

    def lift(x: Scalars, w: Scalars) -> Scalars:
        return 1, x * w

    def merge(a: Scalars, b: Scalars) -> Scalars:
        return a[0] + b[0], a[1] + b[1]

    def finish(count: Scalars, total: Scalars) -> Scalars:
        return total / where(count == 0, 1, count)

    def scale(n: Scalars) -> Scalars:
        """Return 1 / n, the factor between a sum of n terms and their mean."""
        return 1 / n

    def closed(x: Scalars, w: Scalars, seen: Visible = None) -> Scalars:
        """Divide the matrix product by the count of seen entries of each row."""
        if seen is None:
            return x @ w / (x.shape[-1] or 1)
        return where(seen, x, 0) @ w / maximum(seen.sum(-1, keepdims=True), 1)


class sumsq(Monoid):
    """The squared length."""

    identity = 0

    def lift(x: Scalars, w: Scalars) -> Scalars:
        return (x * w) * (x * w)

    def merge(a: Scalars, b: Scalars) -> Scalars:
        return a + b


class moments(Monoid):
    """Mean and variance in one pass (Chan, Golub and LeVeque 1983): count, mean, and squares about it."""

    identity = 0, 0, 0

    def lift(x: Scalars, w: Scalars) -> Scalars:
        return 1, x * w, 0

    def merge(a: Scalars, b: Scalars) -> Scalars:
        (n, u, s), (m, v, t) = a, b
        k = where(n + m == 0, 1, n + m)
        return n + m, u + (v - u) * m / k, s + t + (v - u) * (v - u) * n * m / k

    def finish(n: Scalars, u: Scalars, s: Scalars) -> Scalars:
        return s / where(n == 0, 1, n)

    finishes = dict(mean=lambda n, u, s: u, variance=finish)  # noqa: RUF012


def fall(z: Scalars, top: Scalars) -> Scalars:
    """Return e to the power z - top; 1 where both are equal, also where both are infinite."""
    return exp(where(z == top, 0.0, z - top))


class logsumexp(Monoid):
    """A smooth maximum, kept as a running maximum and the mass under it."""

    identity = -inf, 0

    def lift(x: Scalars, w: Scalars) -> Scalars:
        return x * w, 1.0 * (x * w > -inf)

    def merge(a: Scalars, b: Scalars) -> Scalars:
        (y, s), (z, t) = a, b
        top = maximum(y, z)
        return top, fall(y, top) * s + fall(z, top) * t

    def finish(z: Scalars, s: Scalars) -> Scalars:
        with np.errstate(divide="ignore"):
            return where(s == 0, -inf, log(s) + where(s == 0, 0, z))


class softmax(Monoid):
    """Attention's sum (Milakov and Gimelshein 2018): a running maximum, the mass under it, the weighted value.

    A score of -inf is absent; a row without keys gives zeros."""

    identity, right_linear, shift_invariant, normalised = (-inf, 0, 0), True, True, True

    def lift(z: Scalars, v: Scalars) -> Scalars:
        return z, 1.0 * (z > -inf), where(z > -inf, v, 0.0)

    def merge(a: Scalars, b: Scalars) -> Scalars:
        (y, s, u), (z, t, v) = a, b
        top = maximum(y, z)
        c, d = fall(y, top), fall(z, top)
        return top, c * s + d * t, c * u + d * v

    def finish(z: Scalars, s: Scalars, v: Scalars) -> Scalars:
        return v / where(s == 0, 1, s)

    def closed(z: Scalars, v: Scalars, seen: Visible = None) -> Scalars:
        """Compute exp(z - max z) @ v over its row sums; zeros for a row that sees no column."""
        z = z if seen is None else where(seen, z, -inf)
        top = z.max(-1, keepdims=True, initial=-inf)
        p = exp(z - where(top > -inf, top, 0))
        mass = p.sum(-1, keepdims=True)
        return p @ v / where(mass == 0, 1, mass)


class decay(Monoid):
    """A sum that shrinks: h becomes a h + b (Gu and Dao 2023, Mamba, eq. 2), kept beside the product of all a."""

    identity, commutative = (1, 0), False

    def lift(a: Scalars, b: Scalars) -> Scalars:
        return a, b

    def merge(a: Scalars, b: Scalars) -> Scalars:
        return a[0] * b[0], b[0] * a[1] + b[1]

    def finish(a: Scalars, h: Scalars) -> Scalars:
        return h


class concat(Monoid):
    """All numbers, in order: a split may cut it, but a reordering may not."""

    identity, commutative, homogeneous, width = (), False, True, None

    def lift(x: Scalars, w: Scalars) -> Scalars:
        return (x * w,)

    def merge(a: Scalars, b: Scalars) -> Scalars:
        return a + b

    def finish(*all: Scalars) -> Scalars:
        return all


@cache
def topk(k: int) -> Any:
    """The k largest, equal ones by ascending index: values, or `topk(k).indices` (-1 where there is none). Raises
    TypeError or ValueError for a k that is no whole number from 1 on."""
    whole_of(k, "topk: k", 1)

    def finish(*all: Scalars) -> Scalars:
        return all[::2]

    def indices(*all: Scalars) -> Scalars:
        return tuple(where(i == inf, -1, i) for i in all[1::2])

    def merge(a: Scalars, b: Scalars) -> Scalars:
        best = list(zip(a[::2], a[1::2], strict=True))
        for one in zip(b[::2], b[1::2], strict=True):
            for slot, held in enumerate(best):
                wins = (one[0] > held[0]) | ((one[0] == held[0]) & (one[1] < held[1]))
                best[slot] = tuple(where(wins, new, old) for new, old in zip(one, held, strict=True))
                one = tuple(where(wins, old, new) for new, old in zip(one, held, strict=True))
        return tuple(part for pair in best for part in pair)

    def lift(x: Scalars, w: Scalars, i: Scalars) -> Scalars:
        return (x * w, i) + (-inf, inf) * (k - 1)

    return type(
        f"topk({k})",
        (Monoid,),
        dict(
            __doc__=topk.__doc__,
            identity=(-inf, inf) * k,
            width=k,
            indexed=True,
            lift=lift,
            merge=merge,
            finish=finish,
            finishes=dict(values=finish, indices=indices),
        ),
    )


MONOIDS: tuple[type[Monoid], ...] = (
    sum,
    max,
    min,
    rectify,
    mean,
    sumsq,
    moments,
    moments.mean,  # type: ignore[attr-defined]    # one of its finishes
    logsumexp,
    softmax,
    decay,
    concat,
    topk(1),
    topk(3),
    topk(3).indices,
)


@cache
def called(name: str) -> type[Monoid]:
    """Return a monoid by its name, such as `topk(2).indices`. Raises ValueError for any other name."""
    base, _, finish = name.partition(".")
    count = base.removeprefix("topk(").removesuffix(")")
    monoid = (
        topk(int(count))
        if base == f"topk({count})" and count.isdecimal() and 0 < len(count) < 4
        else next((candidate for candidate in MONOIDS if candidate.__name__ == base), None)
    )
    monoid = getattr(monoid, finish, None) if finish and monoid is not None and finish in monoid.finishes else monoid
    if monoid is None or monoid.__name__ != name:
        raise ValueError(f"{name!r:.80} is no monoid")
    return monoid


def is_known(monoid: type[Monoid]) -> bool:
    """True if a monoid is the built-in one of its name: a custom monoid may have any name."""
    try:
        return called(monoid.__name__) is monoid
    except ValueError:
        return False


def monoid_of(given: object, where: str) -> Any:
    """Return a monoid, or the one of that name; a stand-in for one in a law stays. Raises TypeError for anything
    else."""
    if isinstance(given, str):
        try:
            return called(given)
        except ValueError:
            known = ", ".join(sorted(monoid.__name__ for monoid in MONOIDS))
            raise TypeError(f"{where}: there is no monoid {given!r}: {known}, or a subclass of Monoid") from None
    if hasattr(given, "merge") or not (isinstance(given, STRANGERS) or is_term(given)):
        return given
    namesake = getattr(given, "__name__", "")  # the name of Python's own sum and max
    one = (
        f"opmatrix.algebra.monoids.{namesake}"
        if hasattr(globals().get(namesake), "merge")
        else ("one of opmatrix.algebra.monoids, or a subclass of Monoid")
    )
    raise TypeError(f"{where}: {brief(given)} is no monoid: give {one}")


def refuse_constant_sum(over: type[Monoid]) -> NoReturn:
    """Raise TypeError for the sum of a row over a monoid whose weights sum to one: it is 1, whatever the row holds."""
    name = over.__name__
    raise TypeError(
        f"x @ {name}: {name} weighs values by scores, and a row of scores alone sums to 1 whatever it "
        f"holds: give both, product(scores, values, over={name})"
        + f"; each row's own {name} is x @ share"
        * is_known(over)
    )
