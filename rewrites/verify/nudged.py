"""The difference that two right readings of a model may have: the movement of each row of its output when every number
that it is computed from changes a little. A row with a norm far below the numbers that cancelled to it is not known to
a share of that norm; and a result that has no rounding by luck does not measure the rounding allowed to others."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Self

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.oracles import DenseReading, dense, entered
from opmatrix.algebra.routes import Route, noted
from opmatrix.algebra.term import Operator, read

NUDGES = 8  # draws, whose root mean square is taken


@dataclass(frozen=True, eq=False)
class Nudged(DenseReading):
    """Whole arrays that are read with changed numbers each time: every number changes by a drawn share of itself, up
    to `unit`. Zeros, and chosen rather than computed values, do not change."""

    unit: float = 0.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    @property
    def array(self) -> NDArray[np.floating]:
        """The value as an array, changed anew at every reading."""
        return self.taken(self.whole())

    def taken(self, array: NDArray[np.floating]) -> NDArray[np.floating]:
        """Change numbers wherever they are read."""
        return self.nudge(array)

    def numbers(self, data: Data) -> NDArray[np.floating]:
        """Return a stored array with changed numbers."""
        return self.nudge(data.array.astype(self.dtype))

    def nudge(self, array: NDArray[np.floating]) -> NDArray[np.floating]:
        """Multiply each number by 1 plus a drawn number from -`unit` to `unit`."""
        return array * (1 + self.unit * self.rng.uniform(-1, 1, array.shape))


class NudgedSums(Nudged):
    """Whole arrays that are read as in Nudged; what a linear operator sums over columns changes as the rounding of the
    partial sums would change it, too. Products of attention change in their numbers alone."""

    def act(self, term: Operator) -> Self:
        """Change what enters a sum, then act. A selection, which stays sparse, sums no two numbers."""
        if term.diagonal or not term.linear or not isinstance(self.value, np.ndarray):
            return super().act(term)
        return super(NudgedSums, self.of(self.nudge_sums(self.value))).act(term)

    def nudge_sums(self, array: NDArray[np.floating]) -> NDArray[np.floating]:
        """Multiply each number by 1 plus the changes, up to `unit`, of all partial sums that it is in when columns are
        added in order: s_j = (s_(j-1) + x_j w_j)(1 + d_j) (Higham 2002, section 3.1). Adding 0 rounds nothing."""
        drawn = self.rng.uniform(-1, 1, array.shape) * (array != 0)
        changes: NDArray[np.floating] = drawn[..., ::-1].cumsum(-1)[..., ::-1]
        return array * (1 + self.unit * changes)


def nudge_along(
    term: Operator,
    batch: Batch,
    routes: Sequence[Route],
    unit: float,
    rng: np.random.Generator,
    reading: type[Nudged] = Nudged,
) -> tuple[NDArray[np.floating], list[Route]]:
    """Return the output of a model whose numbers change by up to `unit` of themselves, at each operator anew, along
    these routes; and the routes with their changed scores."""
    value = entered(term, batch)
    start = reading(value.value, value.batch, value.dtype, None, unit, rng)
    return noted(lambda: read(term, start, {}).array, {at: route.taken for at, route in enumerate(routes)})


def moved(term: Operator, batches: Sequence[Batch], unit: float, reading: type[Nudged] = Nudged) -> NDArray[np.float64]:
    """Return the distance that each row of a model's output moves, in the Euclidean norm, when its numbers change by
    up to `unit` of themselves, at each operator anew: rows of all batches. Routes stay as they were."""
    rng = np.random.default_rng(0)

    def off(batch: Batch, wanted: NDArray[np.floating], routes: Sequence[Route]) -> NDArray[np.float64]:
        """Return the squared distance that each row of a batch moves."""
        with np.errstate(all="ignore"):
            output, _ = nudge_along(term, batch, routes, unit, rng, reading)
            apart = np.where(output == wanted, 0.0, output - wanted)
        squared: NDArray[np.float64] = (np.swapaxes(apart, 0, -2).reshape(apart.shape[-2], -1) ** 2).sum(1)
        return squared

    squares = [
        np.mean([off(batch, *unchanged) for _ in range(NUDGES)], axis=0)
        for batch in batches
        for unchanged in [noted(partial(dense, term, batch))]
    ]
    norms: NDArray[np.float64] = np.sqrt(np.concatenate(squares))
    return norms


def row_scales(term: Operator, batches: Sequence[Batch], unit: float) -> NDArray[np.float64]:
    """Return the size of the numbers that each row is computed from, as far as they affect it: the movement of the row
    by relative changes of `unit`, divided by `unit`."""
    return moved(term, batches, unit) / unit
