"""How layers are cut into stages of unequal numbers: the slowest stage is as quick as it can be, and each fits its
memory. A dynamic program over the first layers, a row for each stage."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def cut_layers(costs: Sequence[float], stages: int, first: float = 0, last: float = 0,
               sizes: Sequence[float] | None = None, room: Sequence[float] | None = None) -> tuple[int, ...] | None:
    """Layers of each stage, one at least. `costs`: what each layer takes; `first` and `last`: what stands before and
    behind them, on the first and the last stage. `sizes`: bytes of each layer; `room`: bytes that each stage has for
    them. None where nothing fits.

        >>> cut_layers([1] * 8, 2, last=2), cut_layers([1] * 4, 2, room=[1, 3], sizes=[1] * 4)
        ((5, 3), (1, 3))"""
    count = len(costs)
    if stages > count: return None
    total, bytes_to = sums_to(costs), sums_to(sizes if sizes is not None else [0.0] * count)
    inside = np.arange(count + 1)[:, None] > np.arange(count + 1)[None]     # a stage of layers [from, to), to by row
    took, held = total[:, None] - total[None], bytes_to[:, None] - bytes_to[None]
    best, froms = np.full(count + 1, np.inf), []
    best[0] = 0.0
    for stage in range(stages):
        more = first * (stage == 0) + last * (stage == stages - 1)
        fits = inside if room is None else inside & (held <= room[stage])
        ends = np.where(fits, np.maximum(best[None], took + more), np.inf)
        froms.append(nearest_even(ends, stage, stages, count))
        best = ends.min(1)
    return None if np.isinf(best[count]) else followed_back(froms, count)


def sums_to(each: Sequence[float]) -> NDArray[np.float64]:
    """How much the first 0, 1, 2, … are together."""
    return np.concatenate([[0.0], np.cumsum(np.asarray(each, np.float64))])


def nearest_even(ends: NDArray[np.float64], stage: int, stages: int, count: int) -> NDArray[np.intp]:
    """For each end the start of its stage that is as quick as any; of equal ones the nearest to an even cut."""
    far = np.abs(np.arange(count + 1) - count * stage / stages)
    tied = ends <= ends.min(1, keepdims=True) * (1 + 1e-12)
    found: NDArray[np.intp] = np.where(tied, far[None], np.inf).argmin(1)
    return found


def followed_back(froms: Sequence[NDArray[np.intp]], count: int) -> tuple[int, ...]:
    """Layers of each stage, from where each begins."""
    found, end = list[int](), count
    for each in reversed(froms):
        found.append(end - int(each[end]))
        end = int(each[end])
    return tuple(reversed(found))
