"""Storing a weight by a method: fitted to its inputs, and to the worth of its outputs where their cotangents are known.
Low-rank directions, which many methods of one weight share, are computed once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats import FORMATS, Dense, Format, Stacked
from formats.core.arrays import Floats, storable
from formats.core.errors import InputError
from opmatrix.spectra.gram import Seen, Symmetric, gram_diagonal, whitened
from opmatrix.spectra.measures import RealArray
from opmatrix.spectra.propose import Candidate
from opmatrix.spectra.two_sided import REFIT_STEPS, Factors, damped, refitted, two_sided
from rewrites.lowering.lower import DIAGONAL, FITTED, Method
from rewrites.search.approximation import Approximation

WeightKey = tuple[int, int, str]  # part, class and layout of a weight
OutputGram = NDArray[np.floating] | Symmetric  # S of a product's cotangents, or its diagonal
Directions = RealArray | Factors  # of low rank: by inputs alone, or by both sides
REFIT_WORK = 5e9  # most multiplications of refitting a weight by one method
INPUT_STEPS = 4  # of a refit by inputs alone: more fit their rows, not others


@dataclass
class Fitter:
    """Stores weights by methods. `seen` are the inputs of each weight, where a method is fitted to them; `own` the
    approximations that a user declared, by name; `cotangents` S of each weight's product, (p, p) or the diagonal, where
    it is known: then low rank and what is pruned are fitted in the metric of both sides. Fitters of one model may share
    `directions`, by weight and its inputs."""

    seen: dict[WeightKey, Seen] = field(default_factory=dict)
    own: dict[str, Approximation] = field(default_factory=dict)
    directions: dict[tuple[WeightKey, int], Directions] = field(default_factory=dict)
    cotangents: dict[WeightKey, OutputGram] = field(default_factory=dict)

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
            directions = self.directions_of(numbers, key)
            if isinstance(directions, Factors):
                return form.pack_factors(*directions.rank(options["rank"]))
            return form.projection(numbers, directions, **options)
        if form.prunes and method.fit == DIAGONAL and seen is not None and seen.whole and key in self.cotangents:
            return form.approximate(prune_by_both_sides(form, numbers, seen, self.cotangents[key], options), **options)
        metric = (
            None if seen is None or method.fit not in FITTED else seen.diagonal if method.fit == DIAGONAL else seen.gram
        )
        numbers = storable(numbers)  # frees the float64 ones: formats round these
        return Candidate(method.format, options, method.fit).approximate(numbers, metric)

    def directions_of(self, numbers: np.ndarray, key: WeightKey) -> Directions:
        """Return the directions of low rank of a weight, computed once for all ranks."""
        seen, cotangents = self.seen.get(key), self.cotangents.get(key)
        if (at := (key, id(self if seen is None else seen))) not in self.directions:
            gram = None if seen is None else seen.gram
            both = None if cotangents is None else two_sided(numbers, gram, damped(cotangents))
            self.directions[at] = whitened(numbers, gram)[1] if both is None else both
        return self.directions[at]


def prune_by_both_sides(
    form: type[Format], numbers: np.ndarray, seen: Seen, cotangents: OutputGram, options: Mapping[str, object]
) -> Floats:
    """Return a weight (n, p) with zeros where a format leaves entries out, those that both sides weigh least, and the
    rest refitted for them: by both sides, or by inputs alone where that takes more than REFIT_WORK."""
    n, p = numbers.shape
    s = damped(cotangents)
    weighed = numbers * np.sqrt(gram_diagonal(s) / gram_diagonal(s).mean())
    kept = form.fit(storable(weighed), scale=np.sqrt(seen.diagonal), **options) != 0
    whole = REFIT_STEPS * n * p * (n + p) <= REFIT_WORK
    steps = REFIT_STEPS if whole else min(INPUT_STEPS, int(REFIT_WORK / (n * n * p)))
    return storable(refitted(numbers, kept, seen.gram, s if whole else None, steps, np.float32))


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
