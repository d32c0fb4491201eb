"""A monoid: identity, lift, merge, finish. A product over one is right if any split of the sum agrees, which `check`
tries; so tiling the sum, skipping absent entries and spreading it over machines are laws."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from opmatrix.algebra.data import Numeric

__all__ = ["Monoid"]

Scalars: TypeAlias = Any  # a number, an array of them, or a carrier: bodies read any
Carrier: TypeAlias = tuple[Scalars, ...]


class Monoid:
    """Subclass it with four names, as functions of numbers or arrays alike: `identity` (the unit, a number or a tuple),
    `lift(x, w)` into the carrier (with the index of x as third argument where `indexed`), `merge(a, b)`,
    `finish(*carrier)` (the carrier's first number if it is not given), or `finishes`, several by name. `closed(x, w,
    seen)` is an optional whole-array form; `seen` is a mask of x or None. Flags and closed form are promises, and
    `check` tries to break them.

    `width` is how many columns finish gives: a number, or None for one for each number that was merged."""

    identity: ClassVar[Any]
    lift: ClassVar[Callable[..., Any]]
    merge: ClassVar[Callable[..., Any]]
    finish: ClassVar[Callable[..., Any]] = staticmethod(lambda *carrier: carrier[0])
    finishes: ClassVar[dict[str, Callable[..., Any]]] = {}
    closed: ClassVar[Callable[..., Any] | None] = None
    width: ClassVar[int | None] = 1
    single: ClassVar[bool]
    scale: ClassVar[Callable[[int], float] | None] = None  # scale(n) times the matrix product is a product over n

    indexed = False  # lift also takes the index
    commutative = True  # the order of what is merged does not matter
    idempotent = False  # merging a thing with itself gives it back
    ordinary = False  # a product over it is the matrix product
    linear = False  # a product is linear in its left and in its right operand
    right_linear = False  # a product is linear in its right operand: weighted rows
    homogeneous = False  # multiplying the left by c > 0 multiplies the product by c
    shift_invariant = False  # adding one number to a row on the left changes nothing
    normalised = False  # the weights of a row sum to one: rows of b give b

    def __new__(cls, *args: object, **named: object) -> Any:
        """Raise TypeError: the class itself is the monoid, and has no instances."""
        raise TypeError(
            f"{cls.__name__}(..): a monoid is a way of summing, not a function: product(scores, values, "
            f"over={cls.__name__}), or x @ {cls.__name__} for one sum of each row"
        )

    @staticmethod
    def distributes(w: float) -> bool:
        """True if x -> lift(x, w) is a homomorphism: it maps a merge to the merge of the images, and the unit to the
        unit."""
        return False

    def __init_subclass__(cls) -> None:
        if missing := next((name for name in ("identity", "lift", "merge") if not hasattr(cls, name)), None):
            raise TypeError(
                f"monoid {cls.__name__}: no {missing}: a monoid declares identity, lift(x, w), merge(a, b), "
                "and finish if its carrier has several numbers"
            )
        cls.single = not isinstance(cls.identity, tuple)
        if cls.ordinary:
            cls.linear = True
        if cls.linear:
            cls.right_linear = cls.homogeneous = True
        if cls.normalised:
            cls.right_linear = True
        for name in ("lift", "merge", "finish", "closed", "distributes", "scale"):
            if (f := cls.__dict__.get(name)) and not isinstance(f, staticmethod):
                setattr(cls, name, staticmethod(f))
        for name, finish in cls.__dict__.get("finishes", {}).items():
            body = dict(finish=finish, closed=None, __doc__=cls.__doc__)
            setattr(cls, name, type(f"{cls.__name__}.{name}", (cls,), body))

    @classmethod
    def plain(cls) -> bool:
        """True if the carrier is one number and finish does nothing, so products can be continued before finish."""
        return cls.single and cls.finish is Monoid.finish

    @classmethod
    def count(cls, merged: int) -> int:
        """Return how many columns finish gives after `merged` numbers."""
        return merged if cls.width is None else cls.width

    @classmethod
    def carry(cls, carrier: Any) -> Carrier:
        """Return a carrier as a tuple, also where it is a single number."""
        return (carrier,) if cls.single else carrier

    @classmethod
    def unit(cls) -> Carrier:
        """Return the carrier of an empty product."""
        return cls.carry(cls.identity)

    @classmethod
    def lifted(cls, x: object, w: object, at: Scalars = 0) -> Carrier:
        """Lift a pair of numbers into the carrier, with the index `at` where the monoid needs it."""
        return cls.carry(cls.lift(x, w, at) if cls.indexed else cls.lift(x, w))

    @classmethod
    def merged(cls, a: Carrier, b: Carrier) -> Carrier:
        """Merge two carriers, without warnings where infinite numbers meet."""
        with np.errstate(invalid="ignore", over="ignore"):
            return cls.carry(cls.merge(*((a[0], b[0]) if cls.single else (a, b))))

    @classmethod
    def entry(cls, a: Any, at: int = 0) -> Callable[[object], Carrier]:
        """Return an entry as a function into the carrier; a number becomes one through lift. An absent entry counts as
        the unit."""
        if not callable(a):
            return lambda x: cls.lifted(x, a, at)

        def into(x: object) -> Carrier:
            """Apply the entry to x. Raises TypeError if the result is no carrier of the monoid."""
            carrier = cls.carry(a(x))
            if not isinstance(carrier, tuple) or (cls.width and len(carrier) != len(cls.unit())):
                carried = f"{cls.__name__} carries: {len(cls.unit())} numbers"
                raise TypeError(f"an entry {a.__name__} does not return what {carried}")
            return carrier

        return into

    @classmethod
    def fold(cls, carriers: Iterable[Carrier]) -> Any:
        """Merge the carriers from left to right, which is the definition, and finish."""
        total = cls.unit()
        for c in carriers:
            total = cls.merged(total, c)
        return cls.finish(*total)

    @classmethod
    def product(
        cls,
        left: Numeric,
        right: Numeric,
        seen: NDArray[np.bool_] | None = None,
        present: NDArray[np.bool_] | None = None,
        tile: int = 64,
    ) -> Numeric:
        """Compute the generalised product on arrays, tile by tile along the contracted axis.

        left (.., rows, inner), right (.., inner, columns); `seen` masks the left, `present` the right."""
        inner, total = left.shape[-1], cls.unit()
        for lo in range(0, inner, tile):
            part = cls.unit()
            for i in range(lo, min(lo + tile, inner)):
                there = True if seen is None else seen[..., i, None]
                there = there if present is None else there & present[..., i, None, :]
                part = cls.merged(part, cls.masked(cls.lifted(left[..., i, None], right[..., i, None, :], i), there))
            total = cls.merged(total, part)
        shape = (*np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), left.shape[-2], right.shape[-1])
        return cls.finished(total, shape)

    @classmethod
    def product_of_seen(cls, left: Numeric, right: Numeric, seen: NDArray[np.bool_] | None) -> Numeric:
        """Compute the product over the entries of `left` that `seen` masks, by the closed form where it leaves out the
        others: it multiplies by 0, which leaves NaN of a row that is infinite or NaN."""
        closed = cls.closed if seen is None or np.isfinite(right).all() else None
        product: Numeric = (closed or cls.product)(left, right, seen)
        return product

    @classmethod
    def scan(cls, left: Numeric, right: Numeric, whole: bool = False, first: int = 0) -> Numeric:
        """Merge pairs along rows, column by column: row t is that of rows 0 to t, or of all rows where `whole`.

        left, right (.., rows, columns), which broadcast; `first` is the index of the first row."""
        shape = np.broadcast_shapes(left.shape, right.shape)
        x, w = np.broadcast_to(left, shape), np.broadcast_to(right, shape)
        total, rows = cls.unit(), list[Carrier]()
        for i in range(shape[-2]):
            total = cls.merged(total, cls.lifted(x[..., i, :], w[..., i, :], first + i))
            rows.append(total)
        if not rows:
            return cls.finished(total, shape)
        rows = [total] * len(rows) if whole else rows
        numbers = ([np.broadcast_to(c, x[..., 0, :].shape) for c in part] for part in zip(*rows, strict=True))
        return cls.finished(tuple(np.stack(part, -2) for part in numbers), shape)

    @classmethod
    def masked(cls, carrier: Carrier, there: NDArray[np.bool_] | bool) -> Carrier:
        """Return the carrier where `there` is true, the unit elsewhere. Raises TypeError for a monoid that keeps all
        its numbers."""
        if np.all(there):
            return carrier
        if cls.width is None:
            raise TypeError(f"{cls.__name__}: masks are not supported, as rows would keep different numbers of entries")
        return tuple(np.where(there, c, e) for c, e in zip(carrier, cls.unit(), strict=True))

    @classmethod
    def finished(cls, carrier: Carrier, shape: tuple[int, ...]) -> Numeric:
        """Finish a carrier into an array of that shape; each entry takes several columns where the width is more than
        one."""
        values = cls.finish(*carrier)
        if not isinstance(values, tuple):
            return np.broadcast_to(values, shape)
        columns = [np.broadcast_to(f, shape) for f in values]
        return np.stack(columns, -1).reshape(*shape[:-1], -1) if columns else np.zeros((*shape[:-1], 0))

    @classmethod
    def check(cls, rng: np.random.Generator, rows: int = 3, inner: int = 7, cols: int = 2) -> None:
        """Raise AssertionError unless any contiguous split agrees (any order, where commutative), the unit is one,
        absent entries count as the unit, the closed form is the product and the flags are true."""
        x, w = rng.normal(size=(rows, inner)), rng.normal(size=(inner, cols))
        u = cls.lifted(x[0], w[:, 0])
        if cls.width is not None:
            check_numbers_merged(cls, u)
        for side in (cls.merged(cls.unit(), u), cls.merged(u, cls.unit())):
            check_promise(cls, "identity", side, u)
        check_promise(cls, "identity", cls.merged(cls.unit(), cls.unit()), cls.unit())
        if cls.idempotent:
            check_promise(cls, "idempotent", cls.merged(u, u), u)
        every = range(inner)

        def flat(r: int, j: int, at: Iterable[int]) -> list[Carrier]:
            """Lift the pairs at these indices for row r and column j."""
            return [cls.lifted(x[r, i], w[i, j], i) for i in at]

        whole = tabulate(rows, cols, lambda r, j: cls.fold(flat(r, j, every)))
        for tile in range(1, inner + 2):
            check_promise(cls, "a split by tiles", cls.product(x, w, tile=tile), whole)
        for _ in range(8):
            tree = tabulate(rows, cols, lambda r, j: cls.finish(*bracketed(cls, flat(r, j, every), rng)))
            check_promise(cls, "a split of the sum", tree, whole)
            if not cls.commutative:
                continue
            order = rng.permutation(inner)
            check_promise(cls, "commutative", tabulate(rows, cols, lambda r, j: cls.fold(flat(r, j, order))), whole)  # noqa: B023
        for p in (p for p in w.flat if cls.distributes(p)):
            a, b, both = (cls.lifted(u, p) for u in (x[0], x[1], cls.merge(x[0], x[1])))
            check_promise(cls, "distributes", both, cls.merged(a, b))
            check_promise(cls, "distributes", cls.lifted(cls.identity, p), cls.unit())
        check_flags(cls, x, w, rng)
        if cls.width is not None:
            check_absent(cls, x, w, rng)


def check_numbers_merged(cls: type[Monoid], one: Carrier) -> None:
    """Raise AssertionError where a merge gives NaN, or more or fewer numbers than the unit has."""
    for carrier in (one, cls.merged(one, one), cls.merged(cls.unit(), one), cls.merged(one, cls.unit())):
        promise = f"{cls.__name__} breaks its promise: a merge gives {len(cls.unit())} numbers"
        if len(carrier) != len(cls.unit()):
            raise AssertionError(f"{promise}, not {len(carrier)}")
        if any(np.isnan(np.asarray(number, float)).any() for number in carrier):
            raise AssertionError(f"{promise}, not NaN")


def check_absent(cls: type[Monoid], x: Numeric, w: Numeric, rng: np.random.Generator) -> None:
    """Check masked products: a row without entries, tiles without entries, a split of each."""
    seen = rng.random(x.shape) < 0.5
    seen[0], seen[1:, 2:4] = False, False

    def lifts(r: int, j: int) -> Iterable[Carrier]:
        """Lift the pairs of row r and column j that are visible."""
        return (cls.lifted(x[r, i], w[i, j], int(i)) for i in np.flatnonzero(seen[r]))

    some = tabulate(len(x), w.shape[1], lambda r, j: cls.fold(lifts(r, j)))
    for tile in (1, 2, x.shape[1]):
        check_promise(cls, "absent", cls.product(x, w, seen, tile=tile), some)
    check_promise(cls, "nothing at all", cls.product(x[:, :0], w[:0]), cls.product(x, w, seen[:1] & False))
    if cls.closed:
        check_promise(cls, "closed, masked", cls.closed(x, w, seen), some)
        check_promise(cls, "closed", cls.closed(x, w, None), cls.product(x, w))


def check_flags(cls: type[Monoid], x: Numeric, w: Numeric, rng: np.random.Generator) -> None:
    """Check every flag that is set, on random numbers."""
    y, v, c, of = rng.normal(size=x.shape), rng.normal(size=w.shape), 2.5, cls.product
    if cls.ordinary:
        check_promise(cls, "ordinary", of(x, w), x @ w)
    if cls.scale:
        check_promise(cls, "scale", of(x, w), cls.scale(len(w)) * (x @ w))
    if cls.linear:
        check_promise(cls, "linear", of(x + c * y, w), of(x, w) + c * of(y, w))
    if cls.right_linear:
        check_promise(cls, "right_linear", of(x, w + c * v), of(x, w) + c * of(x, v))
    if cls.homogeneous:
        check_promise(cls, "homogeneous", of(c * x, w), c * of(x, w))
    if cls.shift_invariant:
        check_promise(cls, "shift_invariant", of(x + y[:, :1], w), of(x, w))
    if cls.normalised:
        check_promise(cls, "normalised", of(x, np.ones_like(w)), np.ones((len(x), w.shape[1])))


def bracketed(cls: type[Monoid], carriers: list[Carrier], rng: np.random.Generator) -> Carrier:
    """Merge neighbours under random brackets."""
    if len(carriers) == 1:
        return carriers[0]
    inner = sorted(rng.choice(range(1, len(carriers)), rng.integers(1, len(carriers)), replace=False))
    total, cuts = cls.unit(), [0, *inner, len(carriers)]
    for lo, hi in pairwise(cuts):
        total = cls.merged(total, bracketed(cls, carriers[lo:hi], rng))
    return total


def tabulate(rows: int, cols: int, value: Callable[[int, int], ArrayLike]) -> Numeric:
    """Return finished values of every row and column as an array, the values of one column beside each other."""
    lines = ([np.atleast_1d(value(r, j)) for j in range(cols)] for r in range(rows))
    return np.array([np.concatenate(line) for line in lines], dtype=float)


def check_promise(cls: type[Monoid], promise: str, found: Numeric | Carrier, wanted: Numeric | Carrier) -> None:
    """Raise AssertionError that names the broken promise."""
    message = f"{cls.__name__} breaks its promise: {promise}"
    if isinstance(found, tuple):
        for f, w in zip(found, wanted, strict=True):
            np.testing.assert_allclose(f, w, 1e-10, 1e-12, err_msg=message)
    else:
        np.testing.assert_allclose(found, wanted, 1e-10, 1e-12, err_msg=message)
