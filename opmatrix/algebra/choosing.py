"""Which entries of a row are among its largest: the choice that `keep_top` makes."""
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Mask: TypeAlias = NDArray[np.bool_]


def largest(by: NDArray[Any], k: int) -> Mask:
    """Where the k largest of each row are; of equal ones the first are taken. A NaN is none of them unless there are
    fewer numbers than k."""
    order = np.argsort(-by, axis=-1, kind="stable")[..., :k]
    found = np.zeros(by.shape, bool)
    np.put_along_axis(found, order, True, -1)
    return found

def keep(s: NDArray[Any], by: NDArray[Any], chosen: Mask) -> NDArray[Any]:
    """s where it is chosen, 0 elsewhere; a row with a NaN in `by` has no largest, and is NaN."""
    found = np.where(chosen, s, s.dtype.type(0))
    lost = np.isnan(by).any(-1)
    if lost.any(): found[lost] = np.nan
    return found
