"""How layers are cut into stages of unequal numbers, and what each stage computes again: the slowest stage is as quick
as it can be, and each fits its memory. A dynamic program over the first layers, a row for each stage."""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


def cut_layers(costs: Sequence[float], stages: int, first: float = 0, last: float = 0,
               sizes: Sequence[float] | None = None, room: Sequence[float] | None = None) -> tuple[int, ...] | None:
    """Layers of each stage, one at least. `costs`: what each layer takes; `first` and `last`: what stands before and
    behind them, on the first and the last stage. `sizes`: bytes of each layer; `room`: bytes that each stage has for
    them. None where nothing fits.

        >>> cut_layers([1] * 8, 2, last=2), cut_layers([1] * 4, 2, room=[1, 3], sizes=[1] * 4)
        ((5, 3), (1, 3))"""
    way = LayerWays(costs, sizes if sizes is not None else [0.0] * len(costs))
    found = cut_stages([[way]] * stages, room or [np.inf] * stages, first, last)
    return None if found is None else found[0]


class LayerWays(NamedTuple):
    """One way to run layers on a stage: what each takes, and its bytes."""
    costs: Sequence[float]
    sizes: Sequence[float]


def cut_stages(ways: Sequence[Sequence[LayerWays]], room: Sequence[float], first: float = 0,
               last: float = 0) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Layers of each stage, and which of the ways that it has runs them: the quickest that fits its room. None where
    nothing fits.

        >>> fast, slow = LayerWays([1] * 4, [2] * 4), LayerWays([1.5] * 4, [1] * 4)
        >>> cut_stages([[fast, slow]] * 2, [3, 8])
        ((1, 3), (0, 0))"""
    stages, count = len(ways), len(ways[0][0].costs)
    if stages > count: return None
    inside = np.arange(count + 1)[:, None] > np.arange(count + 1)[None]     # a stage of layers [from, to), to by row
    best, froms, chosen = np.full(count + 1, np.inf), [], []
    best[0] = 0.0
    for stage, own in enumerate(ways):
        more = first * (stage == 0) + last * (stage == stages - 1)
        took = np.stack([np.where(inside & (sums_between(way.sizes) <= room[stage]), sums_between(way.costs), np.inf)
                         for way in own])
        ends = np.maximum(best[None], took.min(0) + more)
        froms.append(nearest_even(ends, stage, stages, count))
        chosen.append(took.argmin(0))
        best = ends.min(1)
    if np.isinf(best[count]): return None
    cut = followed_back(froms, count)
    end = np.cumsum(cut)
    return cut, tuple(int(own[to, to - n]) for own, to, n in zip(chosen, end, cut, strict=True))


def sums_between(each: Sequence[float]) -> NDArray[np.float64]:
    """The sum of those from one on, by column, up to another, by row."""
    total = sums_to(each)
    found: NDArray[np.float64] = total[:, None] - total[None]
    return found


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
