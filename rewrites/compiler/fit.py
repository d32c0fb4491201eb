"""Storing a weight by a method. What many methods of one weight share, the directions of low rank, is found once."""
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from formats import FORMATS
from formats.core.arrays import storable
from formats.core.errors import InputError
from opmatrix.spectra.gram import Seen, whitened
from opmatrix.spectra.propose import Candidate
from rewrites.compiler.approximation import Approximation
from rewrites.lower.lower import DIAGONAL, FITTED, Method

WeightKey = tuple[int, int, str]                            # part, class and layout of a weight


@dataclass
class Fitter:
    """`seen` is what each weight multiplies, where a method is fitted to it; `own` the approximations that a user
    declared, by name. Fitters of one model may share `directions`, by weight and what it multiplies."""

    seen: dict[WeightKey, Seen] = field(default_factory=dict)
    own: dict[str, Approximation] = field(default_factory=dict)
    directions: dict[tuple[WeightKey, int], np.ndarray] = field(default_factory=dict)

    def store(self, numbers: np.ndarray, method: Method, key: WeightKey) -> Any:
        """The weight (in x out, float64) in its representation; storing it as it is only rounds it. Raises InputError
        for a number that float32 lacks."""
        check_stored(numbers)
        options: dict[str, Any] = dict(method.parameters)
        seen = self.seen.get(key)
        if (declared := self.own.get(method.fit.partition("(")[0])) is not None:
            return declared.store(numbers, method)
        form: Any = FORMATS[method.format]
        if form.plain:
            return form.approximate(numbers.astype(np.float32))
        if form.projected:
            if (at := (key, id(self if seen is None else seen))) not in self.directions:
                self.directions[at] = whitened(numbers, None if seen is None else seen.gram)[1]
            return form.projection(numbers, self.directions[at], **options)
        metric = (None if seen is None or method.fit not in FITTED else seen.diagonal if method.fit == DIAGONAL
                  else seen.gram)
        numbers = storable(numbers)                         # wide ones are let go: formats round these
        return Candidate(method.format, options, method.fit).approximate(numbers, metric)


def check_stored(numbers: np.ndarray) -> None:
    """Raises InputError for the first number of a weight that float32 lacks."""
    if not (held := np.isfinite(storable(numbers))).all():
        at = [int(found[0]) for found in np.nonzero(~held)]
        size = " × ".join(map(str, numbers.shape))
        raise InputError(f"a weight of {size}: it has {numbers[tuple(at)]:g} at {at}, as given or multiplied "
                         "out, and is stored in float32, which has numbers to 3.4e38: scale it")
