"""Restarts and products with A: restarted Arnoldi processes of several subspace sizes, each alone and all united.

    python benchmarks/spectra.py [--count 4] [--subspaces 10,15,20] [--seeds 5] [--restarts 300]

A row is the median over the seeds. "right" counts the seeds that converged to the eigenvalues LAPACK finds; a run that
did not converge counts with all its restarts. "in sequence" are the products of the largest process: what is waited
for where the processes run side by side. "kept" is the largest size uniting with nothing but its own last restart:
what it lacks against "united" is what the other processes bring."""
import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

sys.path[0] = str(Path(__file__).parents[1])                # not this folder: its formats.py is not the package

import numpy as np  # noqa: E402

from opmatrix.spectra import Eigenpairs, restarted_arnoldi, unite_and_conquer  # noqa: E402

N = 400


def path() -> Any:
    """The Laplacian of a path: eigenvalues crowd at the large end."""
    return 2 * np.eye(N) - np.eye(N, k=1) - np.eye(N, k=-1)


def covariance() -> Any:
    """Eigenvalues i^-0.5 in a random frame, as of activations."""
    frame = np.linalg.qr(np.random.default_rng(0).standard_normal((N, N)))[0]
    return frame * (1 + np.arange(N)) ** -0.5 @ frame.T


def convection() -> Any:
    """Convection and diffusion on a 20 by 20 grid: not normal, pairs of equal eigenvalues."""
    line = 2 * np.eye(20) - 1.3 * np.eye(20, k=1) - 0.7 * np.eye(20, k=-1)
    return np.kron(np.eye(20), line) + np.kron(line, np.eye(20))


def circular() -> Any:
    """Independent normal numbers: complex eigenvalues of nearly equal magnitude."""
    return np.random.default_rng(0).standard_normal((N, N))


MATRICES: dict[str, tuple[Callable[[], Any], bool]] = {
    "path Laplacian": (path, True), "covariance": (covariance, True),
    "convection": (convection, False), "random": (circular, False)}


def runs(matrix: Any, symmetric: bool, given: argparse.Namespace) -> Iterator[tuple[str, int, list[Eigenpairs]]]:
    """Name, largest subspace, and results of every seed: each size alone, the largest remembering, then all united."""
    options = {"symmetric": symmetric, "restarts": given.restarts}
    for size in given.subspaces:
        yield f"alone {size}", size, [restarted_arnoldi(matrix, given.count, size, seed=seed, **options)
                                      for seed in range(given.seeds)]
    for word, sizes in (("kept", (max(given.subspaces),)), ("united", given.subspaces)):
        yield f"{word} {', '.join(map(str, sizes))}", max(sizes), [
            unite_and_conquer(matrix, given.count, sizes, seed=seed, **options) for seed in range(given.seeds)]


def right(found: Eigenpairs, wanted: Any) -> bool:
    """Whether it converged, and to the largest eigenvalues rather than to others."""
    return found.converged and np.allclose(np.sort(abs(found.values)), np.sort(abs(wanted)), rtol=1e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--subspaces", type=lambda text: tuple(map(int, text.split(","))), default=(10, 15, 20))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--restarts", type=int, default=300)
    given = parser.parse_args()
    print(f"{'':<16}{'processes':<22}{'restarts':>9}{'products':>10}{'in sequence':>13}{'right':>8}")
    for name, (make, symmetric) in MATRICES.items():
        matrix = make()
        values = np.linalg.eigvals(matrix)
        wanted = values[np.argsort(-abs(values))][:given.count]
        for label, largest, found in runs(matrix, symmetric, given):
            restarts = median(each.restarts for each in found)
            print(f"{name:<16}{label:<22}{restarts:>9g}{median(each.products for each in found):>10g}"
                  f"{restarts * largest:>13g}{sum(right(each, wanted) for each in found):>5}/{given.seeds}", flush=True)


if __name__ == "__main__": main()
