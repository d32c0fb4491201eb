"""Measures of one matrix: rank, energy and heavy tails from its singular values."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from formats.core.errors import InputError

RealArray = NDArray[np.float64]
STEPHENS = 1.094  # 5 % point of the modified distance of an exponential whose mean is fitted (Stephens 1974)
LEVELS = (0.5, 0.2, 0.1, 0.05, 0.01)  # tail energies whose ranks a report names


def check_matrix(matrix: ArrayLike, name: str) -> RealArray:
    """Return the matrix in float64. Raises InputError naming the first entry that is not finite."""
    values = np.asarray(matrix, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise InputError(f"{name}: a matrix of rows and columns is needed, this has shape {values.shape}")
    if not np.isfinite(values).all():
        where = np.argwhere(~np.isfinite(values))
        raise InputError(
            f"{name}: {len(where)} entries are not finite, the first at row {where[0][0]}, "
            f"column {where[0][1]} ({values[tuple(where[0])]}); mend the matrix first"
        )
    return values


@dataclass(frozen=True)
class PowerLaw:
    """A tail with density ∝ x^-exponent above the cutoff, fitted to the `count` values from there to the largest one.
    `error` is one standard error, given the cutoff; `distance` is Kolmogorov and Smirnov's."""

    exponent: float
    error: float
    cutoff: float
    count: int
    distance: float

    def __str__(self) -> str:
        return f"{self.exponent:.2f} ± {self.error:.2f}"

    @property
    def excess(self) -> float:
        """The distance over the one that a true power law exceeds in one of twenty samples of as many values, its
        exponent fitted: logarithms of its values are exponential (Stephens 1974). Above 1 the tail
        is no power law; below 1 it may be one, the more easily as the cutoff was chosen for a small distance."""
        n = self.count
        if n < 2:
            return float("nan")
        return (self.distance - 0.2 / n) * (sqrt(n) + 0.26 + 0.5 / sqrt(n)) / STEPHENS

    @property
    def fits(self) -> bool:
        """True unless the distance rejects the power law at 5 %; False where too few values were fitted."""
        return self.excess <= 1


def hill(tail: ArrayLike, cutoff: float) -> tuple[float, float]:
    """Return exponent and standard error of the values at least `cutoff` (Clauset, Shalizi, Newman 2009, eqs. 3.1,
    3.2)."""
    tail = np.asarray(tail, dtype=np.float64)
    tail = tail[tail >= cutoff]
    total = np.log(tail / cutoff).sum()
    exponent = 1 + len(tail) / total if total > 0 else np.inf
    return float(exponent), float((exponent - 1) / np.sqrt(len(tail)))


def power_law(values: ArrayLike, cutoff: float | None = None, least: int = 10) -> PowerLaw:
    """Fit the power law of the largest values. Without a cutoff, the one whose Kolmogorov-Smirnov distance is smallest
    is taken (Clauset, Shalizi, Newman 2009, section 3.3), among those that leave at least `least` values; the stated
    error does not include that choice. Values that are not positive are left out; too few give an exponent of nan."""
    rising = np.sort(np.asarray(values, dtype=np.float64).ravel())
    rising = rising[rising > 0]
    if cutoff is None:
        first = np.unique(rising[: max(len(rising) - least + 1, 0)], return_index=True)[1]
        cutoff = min(((distance(rising[i:]), rising[i]) for i in first), default=(np.nan, np.inf))[1]
    tail = rising[rising >= cutoff]
    if not len(tail):
        return PowerLaw(np.nan, np.nan, float(cutoff), 0, np.nan)
    return PowerLaw(*hill(tail, cutoff), float(cutoff), len(tail), distance(tail))


def distance(tail: RealArray) -> float:
    """Return the Kolmogorov-Smirnov distance: the largest distance of a rising tail from the power law fitted to all of
    it."""
    exponent, _ = hill(tail, tail[0])
    fitted = 1 - (tail / tail[0]) ** (1 - exponent)
    steps = np.arange(len(tail) + 1) / len(tail)
    return float(np.maximum(abs(fitted - steps[:-1]), abs(fitted - steps[1:])).max())


def elbow(falling: ArrayLike) -> int:
    """Return the index at which a falling convex curve lies farthest below its chord (Satopää et al. 2011, kneedle)."""
    curve = np.asarray(falling, dtype=np.float64)
    chord = np.linspace(curve[0], curve[-1], len(curve))
    return int(np.argmax(chord - curve))


@dataclass(frozen=True, eq=False, repr=False)
class Spectrum:
    """The singular values of a matrix, falling, with every measure that follows from them; it prints as the report.

    `values` (k,); `shape` (rows, columns); `precision`: the relative size below which a value is rounding; `kind`:
    "weight", "activation" where the values are standard deviations along principal axes, or the operator that they
    belong to. `beyond`: the energy Σσ² of the values that were not computed; 0 where all further values are 0."""

    values: RealArray
    shape: tuple[int, int]
    name: str = "matrix"
    kind: str = "weight"
    precision: float = float(np.finfo(np.float32).eps)
    beyond: float = 0.0

    @classmethod
    def of(cls, matrix: ArrayLike, name: str = "matrix") -> "Spectrum":
        """All singular values of a dense matrix, by LAPACK in float64. Raises InputError where an entry is nan."""
        array = np.asarray(matrix)
        precision = np.finfo(array.dtype).eps if array.dtype.kind == "f" else np.finfo(np.float64).eps
        values = np.asarray(np.linalg.svd(check_matrix(array, name), compute_uv=False), np.float64)
        return cls(values, array.shape, name, "weight", float(precision))

    @cached_property
    def energy(self) -> RealArray:
        """σ², which sums to ‖W‖²_F."""
        return self.values**2

    @cached_property
    def tail(self) -> RealArray:
        """E(r) = Σ_{i>r} σ_i² / Σ σ² for r = 0 … k: the squared relative Frobenius error of the best rank r."""
        sums = np.cumsum(np.append(self.energy, self.beyond)[::-1])[::-1]  # from the small end: no cancellation
        return sums / sums[0] if sums[0] > 0 else sums

    @property
    def stable_rank(self) -> float:
        """‖W‖_F² / ‖W‖₂²."""
        return float((self.energy.sum() + self.beyond) / self.energy[0]) if self.values[0] > 0 else 0.0

    @property
    def whole(self) -> bool:
        """True if all values are known: without all of them there is no effective rank, no knee and no condition."""
        return self.beyond == 0

    @property
    def effective_rank(self) -> float:
        """exp of the entropy of σ / Σσ (Roy and Vetterli 2007, eq. 2); nan where some values are unknown."""
        if not self.whole:
            return float("nan")
        share = self.values[self.values > 0] / max(self.values.sum(), np.finfo(float).tiny)
        return float(np.exp(-(share * np.log(share)).sum())) if len(share) else 0.0

    @property
    def rank(self) -> int:
        """The numerical rank: the number of σ that exceed max(shape) · precision · σ₁."""
        return int((self.values > max(self.shape) * self.precision * self.values[0]).sum())

    @property
    def condition(self) -> float:
        """σ₁ / σ_k, infinite where the smallest is zero, nan where it is unknown."""
        if not self.whole:
            return float("nan")
        return float(self.values[0] / self.values[-1]) if self.values[-1] > 0 else float("inf")

    def rank_at(self, level: float) -> int:
        """Return the smallest r with E(r) ≤ level; k + 1, which is more than all known values, where none is."""
        reached = self.tail <= level
        return int(np.argmax(reached)) if reached.any() else len(self.values) + 1

    def knees(self, levels: Sequence[float] = LEVELS) -> dict[float, int]:
        """Return, for each level of tail energy, the rank at which the tail crosses it."""
        return {level: self.rank_at(level) for level in levels}

    @property
    def knee(self) -> int:
        """The rank at which the tail energy bends most: farthest below the chord (kneedle); of the known values only,
        where some are not."""
        return elbow(self.tail)

    @cached_property
    def power_law(self) -> PowerLaw:
        """The power law of the eigenvalues σ² of WᵀW, from which Martin and Mahoney (2021) read a layer's quality."""
        return power_law(self.energy)

    def rows(self) -> list[tuple[str, str]]:
        """Return the report, a measure and its value at a time."""
        knees = ", ".join(f"{rank} (tail {level:g})" for level, rank in self.knees().items())
        return [
            ("shape", f"{self.shape[0]} x {self.shape[1]}"),
            ("largest σ", f"{self.values[0]:.4g}"),
            ("condition", f"{self.condition:.4g}"),
            ("numerical rank", str(self.rank)),
            ("stable rank", f"{self.stable_rank:.2f}"),
            ("effective rank", f"{self.effective_rank:.1f}"),
            ("ranks at tail energy", knees),
            ("knee", str(self.knee)),
            ("spectral exponent", str(self.power_law)),
        ]

    def __repr__(self) -> str:
        return "\n".join([f"{self.name} ({self.kind})"] + [f"  {key:<21}{value}" for key, value in self.rows()])

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in self.rows())
        return f"<table><caption>{escape(self.name)} ({self.kind})</caption>{rows}</table>"


def leverage(matrix: ArrayLike, rank: int | None = None) -> RealArray:
    """Compute the leverage scores (n,) of the rows of W (n, p): squared row norms of its first `rank` left singular
    vectors (all up to the numerical rank without one). They sum to the rank (Drineas, Mahoney, Muthukrishnan 2008)."""
    values = check_matrix(matrix, "leverage")
    left, sizes, _ = np.linalg.svd(values, full_matrices=False)
    numerical = int((sizes > max(values.shape) * np.finfo(np.float64).eps * sizes[0]).sum())
    if rank is not None and not 0 <= rank <= numerical:
        raise InputError(f"leverage: rank {rank} is not between 0 and the numerical rank {numerical}")
    return np.asarray((left[:, : numerical if rank is None else rank] ** 2).sum(1))
