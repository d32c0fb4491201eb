"""Storing a weight by a method. Low-rank directions, which many methods of one weight share, are computed once."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from formats import FORMATS, Dense, Format, Stacked
from formats.core.arrays import Floats, storable
from formats.core.errors import InputError
from opmatrix.spectra.gram import Seen, whitened
from opmatrix.spectra.measures import RealArray
from opmatrix.spectra.propose import Candidate
from rewrites.lowering.lower import DIAGONAL, FITTED, Method
from rewrites.search.approximation import Approximation

WeightKey = tuple[int, int, str]  # part, class and layout of a weight


@dataclass
class Fitter:
    """Stores weights by methods. `seen` are the inputs of each weight, where a method is fitted to them; `own` the
    approximations that a user declared, by name. Fitters of one model may share `directions`, by weight and its
    inputs."""

    seen: dict[WeightKey, Seen] = field(default_factory=dict)
    own: dict[str, Approximation] = field(default_factory=dict)
    directions: dict[tuple[WeightKey, int], np.ndarray] = field(default_factory=dict)

    def store(self, numbers: np.ndarray, method: Method, key: WeightKey) -> Any:
        """Return the weight (in x out, float64) in its representation; a plain one only rounds it. Raises InputError
        for a number outside the range of float32."""
        check_stored(numbers)
        options: dict[str, Any] = dict(method.parameters)
        seen = self.seen.get(key)
        if (declared := self.own.get(method.fit.partition("(")[0])) is not None:
            return declared.store(numbers, method)
        form: Any = FORMATS[method.format]
        if numbers.ndim == 3:
            return store_stack(form, numbers, method, seen)
        if form.plain:
            return form.approximate(numbers.astype(np.float32))
        if form.projected:
            if (at := (key, id(self if seen is None else seen))) not in self.directions:
                self.directions[at] = whitened(numbers, None if seen is None else seen.gram)[1]
            return form.projection(numbers, self.directions[at], **options)
        metric = (
            None if seen is None or method.fit not in FITTED else seen.diagonal if method.fit == DIAGONAL else seen.gram
        )
        numbers = storable(numbers)  # frees the float64 ones: formats round these
        return Candidate(method.format, options, method.fit).approximate(numbers, metric)


def store_stack(form: type[Format], numbers: np.ndarray, method: Method, seen: Seen | None) -> Stacked | Floats:
    """Return the matrices of heads (heads x in x out) by one method: an array for plain dense storage, else a stack of
    the format, each matrix fitted to its own inputs."""
    if form is Dense:
        return storable(numbers)
    squares = head_squares(seen, numbers) if method.fit in FITTED else None
    fit = "plain" if squares is None else method.fit
    candidate = Candidate(method.format, dict[str, Any](method.parameters), fit)
    return Stacked.made(
        form,
        numbers.shape,
        lambda e: candidate.approximate(storable(numbers[e]), None if squares is None else squares[e]),
    )


def head_squares(seen: Seen | None, numbers: np.ndarray) -> RealArray | None:
    """Return squared norms of the inputs of each head (heads, in): all share those of one value, or each has its own.
    None where they were not recorded, as they are inside a kernel."""
    if seen is None:
        return None
    squares, (heads, n, _) = seen.diagonal, numbers.shape
    if squares.size == n:
        return np.broadcast_to(squares, (heads, n))
    return squares.reshape(heads, n) if squares.size == heads * n else None


def check_stored(numbers: np.ndarray) -> None:
    """Raise InputError for the first number of a weight that is outside the range of float32."""
    if not (held := np.isfinite(storable(numbers))).all():
        at = [int(indices[0]) for indices in np.nonzero(~held)]
        size = " × ".join(map(str, numbers.shape))
        raise InputError(
            f"a weight of {size}: it has {numbers[tuple(at)]:g} at {at}, as given or multiplied "
            "out, beyond the largest float32, 3.4e38: scale it"
        )
