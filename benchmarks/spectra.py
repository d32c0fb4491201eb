"""Restarts and products with A: restarted Arnoldi processes of several subspace sizes, each alone and all united.

    python benchmarks/spectra.py [--count 4] [--subspaces 10,15,20] [--seeds 5] [--restarts 300]

A row is the median over the seeds. "right" counts the seeds that converged to the eigenvalues LAPACK finds; a run that
did not converge counts with all its restarts. "in sequence" are the products of the largest process: what is waited
for where the processes run side by side. "kept" is the largest size uniting with nothing but its own last restart:
what it lacks against "united" is what the other processes bring."""

import argparse
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from lib import command
from lib.command import Figure, Parser, concluded, count, listed, say, spread, tabled, takes

import numpy as np

from formats.core.errors import InputError
from opmatrix.spectra import Eigenpairs, restarted_arnoldi, unite_and_conquer

COLUMNS = "matrix", "processes", "restarts", "products", "in_sequence", "right", "spread"
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
    "path Laplacian": (path, True),
    "covariance": (covariance, True),
    "convection": (convection, False),
    "random": (circular, False),
}


def runs(matrix: Any, symmetric: bool, given: argparse.Namespace) -> Iterator[tuple[str, int, list[Eigenpairs]]]:
    """Name, largest subspace, and results of every seed: each size alone, the largest remembering, then all united."""
    options = {"symmetric": symmetric, "restarts": given.restarts}
    for size in given.subspaces:
        yield (
            f"alone {size}",
            size,
            [restarted_arnoldi(matrix, given.count, size, seed=seed, **options) for seed in range(given.seeds)],
        )
    for word, sizes in (("kept", (max(given.subspaces),)), ("united", given.subspaces)):
        yield (
            f"{word} {', '.join(map(str, sizes))}",
            max(sizes),
            [unite_and_conquer(matrix, given.count, sizes, seed=seed, **options) for seed in range(given.seeds)],
        )


def right(found: Eigenpairs, wanted: Any) -> bool:
    """Whether it converged, and to the largest eigenvalues rather than to others."""
    return found.converged and np.allclose(np.sort(abs(found.values)), np.sort(abs(wanted)), rtol=1e-4)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--count", type=count, default=4)
    parser.add_argument(
        "--subspaces", type=lambda text: tuple(int(count(word)) for word in listed(text)), default=(10, 15, 20)
    )
    parser.add_argument("--seeds", type=count, default=5)
    parser.add_argument("--restarts", type=count, default=300)
    given = parser.parse_args()
    if given.count >= min(given.subspaces):
        raise InputError(f"--subspaces {min(given.subspaces)}: more than --count {given.count}")
    takes(1 + 2 * given.seeds * given.restarts / 300)
    rows: list[tuple[Any, ...]] = []
    print(f"{'':<16}{'processes':<22}{'restarts':>9}{'products':>10}{'in sequence':>13}{'right':>8}")
    for name, (make, symmetric) in MATRICES.items():
        matrix = make()
        values = np.linalg.eigvals(matrix)
        wanted = values[np.argsort(-abs(values))][: given.count]
        for label, largest, found in runs(matrix, symmetric, given):
            restarts, products = (median(getattr(each, name) for each in found) for name in ("restarts", "products"))
            met, wide = sum(right(each, wanted) for each in found), spread([each.products for each in found])
            rows.append((name, label, restarts, products, restarts * largest, met, wide))
            print(
                f"{name:<16}{label:<22}{restarts:>9g}{products:>10g}{restarts * largest:>13g}{met:>5}/{given.seeds}",
                flush=True,
            )
        say(name)
    tabled(given.csv, [COLUMNS, *rows])
    concluded(given, [*figures(rows, given.seeds)])


def figures(rows: list[tuple[Any, ...]], seeds: int) -> Iterator[Figure]:
    """By matrix: products in sequence of all sizes united over those of the best size alone, where both are right."""
    for name in MATRICES:
        mine = [row for row in rows if row[0] == name and row[5] == seeds]
        alone, united = ([row for row in mine if row[1].startswith(word)] for word in ("alone", "united"))
        best = min(alone, key=lambda row: row[4], default=None)
        ratio, wide = (united[0][4] / best[4], united[0][6]) if best and united else (None, None)
        yield Figure(
            f"{name}: products in sequence, united over the best alone",
            ratio,
            "x",
            wide,
            why="not every seed found the eigenvalues",
        )


if __name__ == "__main__":
    command.run(main)
