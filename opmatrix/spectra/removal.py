"""Removing inputs of a weight for good, one group after another, the rest corrected for it: optimal brain surgeon in
closed form (Hassibi and Stork 1993, equations 5 and 8; groups: Kurtic et al. 2023, ZipLM).

The metric decides the method: with the whole Gram of the inputs it is exact OBS; with its diagonal nothing can be
corrected, and the order is Wanda's (Sun et al. 2023); without one the order is that of magnitudes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from formats.core.errors import InputError
from opmatrix.spectra.gram import Gram, metric, output_energy
from opmatrix.spectra.measures import RealArray, check_matrix

DAMPING = 0.01  # share of the mean diagonal that is added to a full
# Gram: it may be singular
DELAY = 64  # inputs whose corrections wait, to be made by one product


@dataclass(frozen=True, eq=False)
class Removal:
    """A smaller weight: the inputs of W (n, p) that are left, rising (k,), W corrected (k, p), and ‖X(W - Ŵ)‖_F / ‖X
    W‖_F in the metric."""

    left: NDArray[np.intp]
    weight: RealArray
    error: float

    def whole(self, n: int) -> RealArray:
        """Return the corrected weight (n, p), with rows of zeros for removed inputs."""
        full = np.zeros((n, self.weight.shape[1]))
        full[self.left] = self.weight
        return full


def remove(weight: ArrayLike, count: int, gram: ArrayLike | Gram | None = None, group: int = 1) -> Removal:
    """Return W (n, p) without `count` of its n / `group` groups of neighbouring inputs. Always the group goes that
    costs least, tr((H⁻¹)_GG⁻¹ W_G W_Gᵀ); all that is left is corrected, W -= H⁻¹_:G (H⁻¹)_GG⁻¹ W_G, and H⁻¹ loses the
    group's rows and columns. O(n³ + n² p) in all: corrections of up to 64 inputs are made together. Raises InputError
    where sizes do not fit."""
    return next(removals(weight, [count], gram, group))


def removals(
    weight: ArrayLike, counts: Sequence[int], gram: ArrayLike | Gram | None = None, group: int = 1
) -> Iterator[Removal]:
    """Yield the results of `remove` for several counts, rising, by one sweep: inputs removed for one count are removed
    for all later ones."""
    w, g = check_matrix(weight, "weight"), metric(gram, len(weight))  # type: ignore[arg-type]
    if group < 1 or len(w) % group:
        raise InputError(f"remove: {len(w)} inputs in groups of {group}: give a divisor")
    for count in counts:
        if not 0 <= count < len(w) // group:
            raise InputError(f"remove: {count} of {len(w) // group} groups of inputs: at least one must be left")
    state, energy, done = Surgery.of(w, inverse(g), group), output_energy(w, g), 0
    for count in counts:
        for _ in range(count - done):
            if state.waiting.shape[1] >= DELAY:
                state.settle()
            state.remove()
        state.settle()
        done, removal = count, Removal(state.left, state.weight, 0.0)
        lost = output_energy(w - removal.whole(len(w)), g)
        yield replace(removal, error=float(np.sqrt(lost / energy)) if energy else 0.0)


def inverse(gram: RealArray) -> RealArray:
    """Return H⁻¹ (n, n) of a full Gram, damped, or of a diagonal one; inputs that are always 0 count as next to
    nothing."""
    if gram.ndim == 1:
        return np.diag(1 / np.maximum(gram, np.finfo(float).tiny ** 0.5))
    mean = float(np.trace(gram)) / len(gram) or 1.0
    inverted = np.linalg.inv(gram + DAMPING * mean * np.eye(len(gram)))
    return np.asarray((inverted + inverted.T) / 2, np.float64)


@dataclass
class Surgery:
    """W (n, p) and H⁻¹ (n, n) of the inputs that were `left` (n,) when corrections were last made. Since then H⁻¹ -=
    U Uᵀ and W -= U Z are `waiting`, U (n, r), and `shifts`, Z (r, p). For each of the m groups, as they are now:
    `own`, its block of H⁻¹, and `energy`, W_G W_Gᵀ, both (m, group, group); groups that are gone cost infinitely
    much."""

    weight: RealArray
    inverse: RealArray
    left: NDArray[np.intp]
    group: int

    @classmethod
    def of(cls, weight: RealArray, inverse: RealArray, group: int) -> "Surgery":
        """Begin with all inputs left and no correction waiting."""
        surgery = cls(weight, inverse, np.arange(len(weight)), group)
        surgery.begin()
        return surgery

    def begin(self) -> None:
        """Start with no correction waiting."""
        n, p = self.weight.shape
        self.products = self.weight @ self.weight.T
        self.waiting, self.shifts, self.meets = np.zeros((n, 0)), np.zeros((0, p)), np.zeros((n, 0))  # U, Z, W Zᵀ
        self.own, self.energy = (self.blocks(matrix) for matrix in (self.inverse, self.products))
        self.gone = np.zeros(n // self.group, bool)

    def blocks(self, matrix: RealArray) -> RealArray:
        """Return the blocks on the diagonal of a matrix."""
        m = len(matrix) // self.group
        return np.array(matrix.reshape(m, self.group, m, self.group)[np.arange(m), :, np.arange(m)])

    def settle(self) -> None:
        """Make the corrections that wait, and drop the inputs that are gone."""
        remaining = np.repeat(~self.gone, self.group)
        waiting = self.waiting[remaining]
        self.weight = self.weight[remaining] - waiting @ self.shifts
        self.inverse = self.inverse[np.ix_(remaining, remaining)] - waiting @ waiting.T
        self.left = self.left[remaining]
        self.begin()

    def remove(self) -> None:
        """Remove the cheapest group."""
        costs = np.linalg.solve(self.own, self.energy).trace(axis1=1, axis2=2)
        at = int(np.where(self.gone, np.inf, costs).argmin())
        rows = slice(at * self.group, (at + 1) * self.group)
        columns = self.inverse[:, rows] - self.waiting @ self.waiting[rows].T
        root = np.linalg.inv(np.linalg.cholesky(columns[rows])).T  # (H⁻¹)_GG⁻¹ = root rootᵀ
        u, z = columns @ root, root.T @ (self.weight[rows] - self.waiting[rows] @ self.shifts)
        meets = (self.products[:, rows] - self.meets @ self.waiting[rows].T) @ root  # W zᵀ
        now, shape = meets - self.waiting @ (self.shifts @ z.T), (-1, self.group, self.group)  # W zᵀ of W as it is now
        now, by = now.reshape(shape), u.reshape(shape)
        cross = now @ by.swapaxes(1, 2)
        self.energy += by @ (z @ z.T) @ by.swapaxes(1, 2) - cross - cross.swapaxes(1, 2)
        self.own -= by @ by.swapaxes(1, 2)
        self.gone[at], self.own[at], self.energy[at] = True, np.eye(self.group), 0.0
        self.waiting, self.shifts = np.hstack([self.waiting, u]), np.vstack([self.shifts, z])
        self.meets = np.hstack([self.meets, meets])
