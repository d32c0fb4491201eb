"""Checks of the range of float32: numbers beyond it in a model's weights and in its results."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.term import Operator


def check_finite(what: str, wanted: NDArray[np.floating]) -> None:
    """Raise InputError where the float64 result of a model is not finite: no error can be measured against it."""
    if not (sure := np.isfinite(wanted)).all():
        where = tuple(map(int, np.argwhere(~sure)[0]))
        raise InputError(
            f"{what} is {wanted[where]} at {list(where)} of {list(wanted.shape)}, in float64, too, so no "
            "error can be measured beside it: give numbers that it is finite for (a maximum over no entries "
            "is -inf)"
        )


def check_range(what: str, given: NDArray[np.floating], model: Operator, batch: Batch) -> None:
    """Raise InputError where a program gives numbers that are not finite, and the model read in float32 does too."""
    if np.isfinite(given).all():
        return
    with np.errstate(all="ignore"):
        rough = dense(model, batch, dtype=np.float32)
    if not np.isfinite(rough).all():
        raise InputError(
            f"{what} is not finite in float32, as intermediate numbers are beyond 3.4e+38: scale the "
            "weights or the inputs of the model"
        )


def list_arrays(model: Operator) -> Iterator[Data]:
    """Yield every array that the model is made of, as its file has it."""
    for term in model.walk():
        yield from (value.base or value for value in term.attributes if isinstance(value, Data))


def max_magnitude(data: Data) -> float:
    """Return the largest magnitude of the numbers of an array."""
    return max(float(data.array.max()), -float(data.array.min()))
