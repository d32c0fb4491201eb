"""What a machine's closed form leaves out, as a factor: boosted trees trained beforehand on generated patterns
(predictor.json, made by benchmarks/train_selection.py), as far as they hold here, and what this machine's own calibration
measured near by.

Trees: Friedman 2001, Annals of Statistics 29 (gradient boosting). Near by: kriging, that is regression by a Gaussian
process (Rasmussen and Williams 2006, chapter 2), its settings chosen by leaving one out (eqs. 5.10 to 5.12)."""
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.features import described, labels, place, quantile

FILE = Path(__file__).with_name("predictor.json")
VERSION = 1
AGAIN = "train it anew with benchmarks/train_selection.py"
ROWS, SIDES, NOISE, TRUST = (0.7, 1.5, 3.0), (1.0, 2.5, 6.0), (0.02, 0.05, 0.12), (1.0, 0.5, 0.0)
LEAST = 0.02                                                 # nothing is predicted nearer than this
SHARE = 0.9                                                  # of cases left out, for an interval of 80 %: others lie farther off
Floats = NDArray[np.float64]


class PredictorError(ValueError):
    """A file of trees that is none: names the file, the kernel, and what is wrong."""


@dataclass(frozen=True)
class Trees:
    """A sum of regression trees. A node is [feature, threshold, node if at most, node if above], a leaf [value]."""
    trees: tuple[tuple[tuple[float, ...], ...], ...]

    def __call__(self, x: Sequence[float]) -> float:
        total = 0.0
        for nodes in self.trees:
            node = nodes[0]
            while len(node) == 4: node = nodes[int(node[2] if x[int(node[0])] <= node[1] else node[3])]
            total += node[0]
        return total


def parse(kernel: str, given: Any, file: object = FILE) -> Trees:
    """Trees from a file, which is not trusted: PredictorError unless every path ends, downwards, in a finite leaf."""
    def wrong(what: str) -> PredictorError: return PredictorError(f"{file}: {kernel}: {what}; {AGAIN}")
    width = len(given["features"]) if isinstance(given, dict) and isinstance(given.get("features"), list) else 0
    if not isinstance(given, dict) or not isinstance(given.get("trees"), list): raise wrong("it has no trees")
    for tree in given["trees"]:
        if not (isinstance(tree, list) and tree): raise wrong("a tree has no nodes")
        for at, node in enumerate(tree):
            if not (isinstance(node, list) and all(type(value) in (int, float) and np.isfinite(value) for value in node)):
                raise wrong(f"node {at} is {node!r}")
            match node:
                case [_]: pass
                case [int(feature), _, int(low), int(high)] if feature in range(width) and below(at, low, high, len(tree)): pass
                case _: raise wrong(f"node {at} is {node!r}")
    return Trees(tuple(tuple(map(tuple, tree)) for tree in given["trees"]))


def below(at: int, low: int, high: int, count: int) -> bool:
    """Whether a path goes on, and downwards."""
    return at < min(low, high) and max(low, high) < count


def load(file: Path = FILE) -> dict[str, Trees]:
    """The trees of every kernel in a file that `benchmarks/train_selection.py` wrote, but for formats that were declared
    otherwise when it did; PredictorError says what is wrong with it."""
    try: found = json.loads(file.read_text())
    except (OSError, ValueError) as error: raise PredictorError(f"{file}: {error}; {AGAIN}") from None
    if not isinstance(found, dict) or found.get("version") != VERSION or not isinstance(found.get("kernels"), dict):
        raise PredictorError(f"{file}: not a predictor of version {VERSION}; {AGAIN}")
    from formats.machine import FEATURES
    parsed = {kernel: parse(kernel, given, file) for kernel, given in found["kernels"].items() if kernel in FEATURES}
    return {kernel: trees for kernel, trees in parsed.items() if found["kernels"][kernel].get("features") == labels(kernel)}


@cache
def trained() -> dict[str, Trees]:
    """The trees that come with the package; none where the file was left out."""
    return load() if FILE.exists() else {}


def guess(kernel: str, sizes: Mapping[str, float]) -> float:
    """The trees' logarithm of measured over closed form; 0 for what was not trained."""
    trees = trained().get(kernel) if kernel.startswith("linear.") else None
    return 0.0 if trees is None else trees(described(kernel, sizes))


@dataclass(frozen=True)
class Correction:
    """Of one kernel on one machine: how far the trees are trusted, and what is left at the places that were measured.

    `scale` are the lengths, along each axis of a place, over which calls are alike; `noise` and `amplitude` are of logarithms
    of seconds; `spread` widens the deviation until the interval holds 90 % of cases that were left out, and `alone` is how far
    off these were at most."""
    trust: float = 0.0
    scale: list[float] = field(default_factory=list)
    noise: float = 0.05
    amplitude: float = 0.0
    spread: float = 1.3
    alone: float = 0.3
    places: list[list[float]] = field(default_factory=list)
    left: list[float] = field(default_factory=list)

    def __call__(self, kernel: str, sizes: Mapping[str, float]) -> float:
        """The logarithm of the factor."""
        near = float(self.alike(place(kernel, sizes)) @ self.solved[1]) if self.places else 0.0
        return near + (self.trust * guess(kernel, sizes) if self.trust else 0.0)

    def deviation(self, kernel: str, sizes: Mapping[str, float]) -> float:
        """Half the width of the interval, as a logarithm: wide where nothing near was measured."""
        if not self.places: return max(self.spread * self.noise, LEAST)
        near = self.alike(place(kernel, sizes))
        known = min(float(near @ self.solved[0] @ near), self.amplitude ** 2)
        return max(self.spread * float(np.sqrt(self.amplitude ** 2 + self.noise ** 2 - known)), LEAST)

    @cached_property
    def anchors(self) -> Floats: return np.array(self.places) / self.scale

    def alike(self, where: Sequence[float]) -> Floats:
        away = self.anchors - np.array(where) / self.scale
        return np.asarray(self.amplitude ** 2 * np.exp(-0.5 * (away * away).sum(1)))

    @cached_property
    def solved(self) -> tuple[Floats, Floats]:
        """The inverse of the covariance of what was measured, and that times what was left."""
        away = self.anchors[:, None] - self.anchors[None]
        covariance = self.amplitude ** 2 * np.exp(-0.5 * (away * away).sum(2))
        inverse = np.linalg.inv(covariance + self.noise ** 2 * np.eye(len(covariance)))
        return inverse, inverse @ np.array(self.left)


def fitted(kernel: str, calls: Sequence[Mapping[str, float]], residuals: Sequence[float]) -> Correction:
    """The correction that predicts best what is left out, one call at a time: residuals are logarithms of measured over
    closed form. Trees that do not hold on this machine are not trusted."""
    places, y = np.array([place(kernel, sizes) for sizes in calls]), np.array(residuals)
    shift = np.array([guess(kernel, sizes) for sizes in calls])
    squared = np.square(places[:, None] - places[None])
    best: tuple[float, Correction] | None = None
    for trust in (TRUST if shift.any() else (0.0,)):
        left = y - trust * shift
        amplitude = float(np.sqrt(np.mean(np.square(left)))) + 1e-6
        for rows, sides, share in product(ROWS, SIDES, NOISE):
            scale = axes(kernel, places.shape[1], rows, sides)
            covariance = amplitude ** 2 * np.exp(-0.5 * (squared / np.square(scale)).sum(2))
            score, off, error = left_out(covariance, share, left)
            if best is None or score < best[0]:
                spread, alone = (quantile(abs(each), SHARE) for each in (off, error))
                best = score, Correction(trust, scale, share, amplitude, float(np.clip(spread, 0.8, 4.0)), float(alone),
                                         places.round(4).tolist(), left.round(5).tolist())
    assert best is not None
    return best[1]


def axes(kernel: str, width: int, rows: float, sides: float) -> list[float]:
    """Lengths: a product of one row is unlike one of two; a number's bytes count double."""
    if not kernel.startswith("linear."): return [sides] * width
    return [rows, 0.5, sides, sides, sides / 2, *[sides] * (width - 5)]


def left_out(covariance: Floats, noise: float, y: Floats) -> tuple[float, Floats, Floats]:
    """How surprising each of y is to all others (mean negative logarithm of its likelihood), how many deviations it is off,
    and how far."""
    inverse = np.linalg.inv(covariance + noise ** 2 * np.eye(len(y)))
    deviation = 1 / np.sqrt(np.diag(inverse))
    off = (inverse @ y) * deviation
    return float(np.mean(np.log(deviation) + 0.5 * np.minimum(np.square(off), 16))), off, off * deviation
