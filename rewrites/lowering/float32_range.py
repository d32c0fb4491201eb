"""What float32 cannot hold: numbers beyond its range, in what models are made of and in what they give."""
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.term import Operator


def check_finite(what: str, wanted: NDArray[np.floating]) -> None:
    """Raises InputError where what a model gives in float64 is no number: no error can be measured beside it."""
    if not (sure := np.isfinite(wanted)).all():
        where = tuple(map(int, np.argwhere(~sure)[0]))
        raise InputError(f"{what} is {wanted[where]} at {list(where)} of {list(wanted.shape)}, in float64, too, so no "
                         "error can be measured beside it: give numbers that it is finite for (a maximum over nothing "
                         "is -inf)")


def check_range(what: str, given: NDArray[np.floating], model: Operator, batch: Batch) -> None:
    """Raises InputError where a program gives no number, and neither does the model where it is read in float32."""
    if np.isfinite(given).all(): return
    with np.errstate(all="ignore"): rough = dense(model, batch, dtype=np.float32)
    if not np.isfinite(rough).all():
        raise InputError(f"{what} is not finite in float32, as numbers on the way are beyond 3.4e+38: scale the "
                         "weights or the inputs of the model")


def list_arrays(model: Operator) -> Iterator[Data]:
    """Every array that the model is made of, as its file has it."""
    for term in model.walk():
        yield from (value.base or value for value in term.attributes if isinstance(value, Data))


def max_magnitude(data: Data) -> float:
    """The largest magnitude of its numbers."""
    return max(float(data.array.max()), -float(data.array.min()))
