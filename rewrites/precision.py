"""Whether float32 carries a model: numbers beyond its range, or so far apart that the smaller ones are lost, leave
nothing that a program could agree with."""
from collections.abc import Iterator

import numpy as np

from opmatrix.data import Data
from opmatrix.errors import InputError
from opmatrix.oracles import dense
from opmatrix.patterns import Batch
from opmatrix.program import Program
from opmatrix.term import Operator

LOST = 0.01                                                 # relative; ordinary models round by a millionth


def check_precision(model: Operator, imported: Program, batch: Batch) -> None:
    """Compare the imported program with the float64 oracle on a batch. Raises InputError, which names the tensor that
    holds the largest number, where the output is no number or changes by more than a hundredth."""
    with np.errstate(all="ignore"):                         # what overflows is what is looked for
        wanted, found = dense(model, batch), imported.run(batch)
        change = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    if np.isfinite(wanted).all() and (change <= LOST or not wanted.any()): return
    size, name = max((largest(data), data.label if data.name is None else data.name) for data in tensors(model))
    what = f"changes by {100 * change:.3g} % when it is computed" if np.isfinite(change) else "is not finite"
    raise InputError(f"tensor {name!r} holds {size:.3g}, the largest number of the model, whose output {what} in float32: "
                     "scale its weights, or train it again")


def tensors(model: Operator) -> Iterator[Data]:
    """Every array that the model is made of, as its file has it."""
    for term in model.walk():
        yield from (value.base or value for value in term.attributes if isinstance(value, Data))


def largest(data: Data) -> float:
    """The largest magnitude of its numbers; infinite where one is none."""
    return float(np.nan_to_num(abs(np.asarray(data.array, np.float64)), nan=np.inf).max())
