"""The partition of layers into stages of unequal numbers, with a way to run each stage (such as what it recomputes):
the slowest stage is as fast as possible, and each fits its memory. A dynamic program over the first layers, a row for
each stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


def cut_layers(
    costs: Sequence[float],
    stages: int,
    first: float = 0,
    last: float = 0,
    sizes: Sequence[float] | None = None,
    room: Sequence[float] | None = None,
) -> tuple[int, ...] | None:
    """Return the layers of each stage, at least one each. `costs`: cost of each layer; `first` and `last`: cost of the
    operations before all layers, on the first stage, and behind them, on the last. `sizes`: bytes of each layer;
    `room`: bytes that each stage has for them. None if no partition fits.

        >>> cut_layers([1] * 8, 2, last=2), cut_layers([1] * 4, 2, room=[1, 3], sizes=[1] * 4)
        ((5, 3), (1, 3))"""
    way = LayerWays(costs, sizes if sizes is not None else [0.0] * len(costs))
    partition = cut_stages([[way]] * stages, room or [np.inf] * stages, first, last)
    return None if partition is None else partition[0]


class StageCosts(NamedTuple):
    """The costs of stages of layers from an index (by column) up to another (by row), infinite where they do not fit,
    and how many of the first layers run in the slower way."""

    took: NDArray[np.float64]
    counts: NDArray[np.intp]


class LayerWays(NamedTuple):
    """One way to run layers on a stage."""

    costs: Sequence[float]  # cost of each layer
    sizes: Sequence[float]  # bytes of each layer

    def fitting(self, room: float) -> StageCosts:
        """Return the costs of stages that fit a room."""
        took = np.where(sums_between(self.sizes) <= room, sums_between(self.costs), np.inf)
        places = np.arange(len(self.costs) + 1)
        return StageCosts(took, places[:, None] - places[None])


class MixedWays(NamedTuple):
    """Two ways to run layers on a stage: the first layers in the slow one, which is smaller, as many as it takes to
    fit; the others in the fast one."""

    fast: LayerWays
    slow: LayerWays

    @property
    def costs(self) -> Sequence[float]:
        """The cost of each layer in the fast way."""
        return self.fast.costs

    def fitting(self, room: float) -> StageCosts:
        """Return the costs of stages that fit a room."""
        saved = np.maximum.accumulate(sums_to(np.subtract(self.fast.sizes, self.slow.sizes)))
        more = sums_to(np.subtract(self.slow.costs, self.fast.costs))
        places = np.arange(len(saved))
        over = sums_between(self.fast.sizes) - room
        ends = np.maximum(np.searchsorted(saved, saved[None] + over), places[None])
        fits = ends <= places[:, None]
        ends = np.where(fits, ends, 0)
        took = np.where(fits, sums_between(self.costs) + more[ends] - more[None], np.inf)
        return StageCosts(took, ends - places[None])


class StagePartition(NamedTuple):
    """A partition of layers into stages."""

    layers: tuple[int, ...]  # layers of each stage
    ways: tuple[int, ...]  # index of the way that runs them
    counts: tuple[int, ...]  # layers of each stage in the slower of two ways


def cut_stages(
    ways: Sequence[Sequence[LayerWays | MixedWays]], room: Sequence[float], first: float = 0, last: float = 0
) -> StagePartition | None:
    """Return the layers of each stage, and the index of the way that runs them: the fastest that fits its room. None if
    no partition fits.

        >>> fast, slow = LayerWays([1] * 4, [2] * 4), LayerWays([1.5] * 4, [1] * 4)
        >>> cut_stages([[fast, slow]] * 2, [3, 8])[:2]
        ((2, 2), (1, 0))
        >>> cut_stages([[MixedWays(fast, slow)]] * 2, [3, 8])
        StagePartition(layers=(2, 2), ways=(0, 0), counts=(1, 0))"""
    stages, count = len(ways), len(ways[0][0].costs)
    if stages > count:
        return None
    inside = np.arange(count + 1)[:, None] > np.arange(count + 1)[None]  # stages of layers [from, to); row: `to`
    best, froms, chosen, slower = np.full(count + 1, np.inf), [], [], []
    best[0] = 0.0
    for stage, options in enumerate(ways):
        more = first * (stage == 0) + last * (stage == stages - 1)
        fitting = [way.fitting(room[stage]) for way in options]
        took = np.stack([np.where(inside, costs.took, np.inf) for costs in fitting])
        ends = np.maximum(best[None], took.min(0) + more)
        froms.append(nearest_even(ends, stage, stages, count))
        chosen.append(took.argmin(0))
        slower.append(np.stack([costs.counts for costs in fitting]))
        best = ends.min(1)
    if np.isinf(best[count]):
        return None
    cut = followed_back(froms, count)
    end = np.cumsum(cut)
    taken = [int(choices[to, to - n]) for choices, to, n in zip(chosen, end, cut, strict=True)]
    counts = [int(number[option, to, to - n]) for number, option, to, n in zip(slower, taken, end, cut, strict=True)]
    return StagePartition(cut, tuple(taken), tuple(counts))


def sums_between(each: Sequence[float]) -> NDArray[np.float64]:
    """Return the sums of consecutive numbers, from an index (by column) up to another (by row)."""
    total = sums_to(each)
    sums: NDArray[np.float64] = total[:, None] - total[None]
    return sums


def sums_to(each: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sums of the first 0, 1, 2, … numbers."""
    return np.concatenate([[0.0], np.cumsum(np.asarray(each, np.float64))])


def nearest_even(ends: NDArray[np.float64], stage: int, stages: int, count: int) -> NDArray[np.intp]:
    """Return for each end the start of its stage that is fastest; of equally fast starts the nearest to an even
    partition."""
    far = np.abs(np.arange(count + 1) - count * stage / stages)
    tied = ends <= ends.min(1, keepdims=True) * (1 + 1e-12)
    starts: NDArray[np.intp] = np.where(tied, far[None], np.inf).argmin(1)
    return starts


def followed_back(froms: Sequence[NDArray[np.intp]], count: int) -> tuple[int, ...]:
    """Return the layers of each stage, from the best start of each stage for each end."""
    layers, end = list[int](), count
    for starts in reversed(froms):
        layers.append(end - int(starts[end]))
        end = int(starts[end])
    return tuple(reversed(layers))
