"""What two right readings of a model may differ by: how far each row of its output moves when every number that it is
computed from is another one, by a little. A row of a norm far below the numbers that cancelled to it is not known to a
share of that norm, and what is computed by luck without rounding is no measure of what others may round."""
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.oracles import DenseReading, dense, entered
from opmatrix.algebra.routes import Route, noted
from opmatrix.algebra.term import Operator, read

NUDGES = 8                                                  # of which the root mean square counts


@dataclass(frozen=True, eq=False)
class Nudged(DenseReading):
    """Whole arrays that are read as others, each time: every number by a share of itself that is drawn up to `unit`.
    Zeros, and what is chosen rather than computed, stay."""
    unit: float = 0.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    @property
    def array(self) -> NDArray[np.floating]: return self.taken(self.whole())

    def taken(self, array: NDArray[np.floating]) -> NDArray[np.floating]: return self.nudge(array)

    def numbers(self, data: Data) -> NDArray[np.floating]: return self.nudge(data.array.astype(self.dtype))

    def nudge(self, array: NDArray[np.floating]) -> NDArray[np.floating]:
        return array * (1 + self.unit * self.rng.uniform(-1, 1, array.shape))


def nudge_along(term: Operator, batch: Batch, routes: Sequence[Route], unit: float,
                rng: np.random.Generator) -> tuple[NDArray[np.floating], list[Route]]:
    """What a model gives where its numbers differ by up to `unit` of themselves, at each operator anew, and rows go
    where these routes say; and what they would go by."""
    value = entered(term, batch)
    start = Nudged(value.value, value.batch, value.dtype, None, unit, rng)
    return noted(lambda: read(term, start, {}).array, {at: route.taken for at, route in enumerate(routes)})


def moved(term: Operator, batches: Sequence[Batch], unit: float) -> NDArray[np.float64]:
    """How far each row of a model's output moves, in the Euclidean norm, where its numbers differ by up to `unit` of
    themselves, at each operator anew: rows of all batches. They go where they went before."""
    rng = np.random.default_rng(0)

    def off(batch: Batch, wanted: NDArray[np.floating], routes: Sequence[Route]) -> NDArray[np.float64]:
        with np.errstate(all="ignore"):
            found, _ = nudge_along(term, batch, routes, unit, rng)
            apart = np.where(found == wanted, 0.0, found - wanted)
        squared: NDArray[np.float64] = (np.swapaxes(apart, 0, -2).reshape(apart.shape[-2], -1) ** 2).sum(1)
        return squared
    squares = [np.mean([off(batch, *own) for _ in range(NUDGES)], axis=0)
               for batch in batches for own in [noted(partial(dense, term, batch))]]
    norms: NDArray[np.float64] = np.sqrt(np.concatenate(squares))
    return norms


def row_scales(term: Operator, batches: Sequence[Batch], unit: float) -> NDArray[np.float64]:
    """The size of the numbers that each row is computed from, as far as they count for it: what changes of `unit` of
    them move it by, over that."""
    return moved(term, batches, unit) / unit
