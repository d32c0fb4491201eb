"""Matrices to multiply by: normal numbers where a pattern has entries, zeros elsewhere, the same on every run."""

import numpy as np

TILE, GROUP, SHARED = 16, 16, 64


def random(rng, n, p, density):
    return exactly(rng.random((n, p)), density)


def uneven(rng, n, p, density):
    """Outputs between a few and many entries (lognormal), as magnitude pruning of a whole matrix leaves them."""
    return exactly(rng.random((n, p)) * rng.lognormal(0, 1, p), density)


def blocks(rng, n, p, density):
    """Tiles of 16 by 16, each whole or empty."""
    grid = exactly(rng.random((-(-n // TILE), -(-p // TILE))), density)
    return np.kron(grid, np.ones((TILE, TILE), bool))[:n, :p]


def nm(rng, n, p, density):
    """So many of every 16 inputs, a choice for each output."""
    kept = max(1, round(density * GROUP))
    return (rng.random((-(-n // GROUP), GROUP, p)).argsort(1) < kept).reshape(-1, p)[:n]


def shared(rng, n, p, density):
    """64 outputs share which inputs they take."""
    return np.repeat(exactly(rng.random((n, -(-p // SHARED))), density), SHARED, 1)[:, :p]


def exactly(score, density):
    """True at the highest scores, so many that the density is met."""
    count = max(1, round(density * score.size))
    mask = np.zeros(score.size, bool)
    mask[np.argpartition(score, score.size - count, axis=None)[score.size - count :]] = True
    return mask.reshape(score.shape)


STRUCTURES = {"random": random, "uneven": uneven, "blocks": blocks, "nm": nm, "shared": shared}


def matrix(n, p, structure, density, seed=0):
    """(n, p) float32."""
    rng = np.random.default_rng([seed, n, p, round(1e6 * density), sorted(STRUCTURES).index(structure)])
    W = rng.standard_normal((n, p), np.float32) / np.float32((n * density) ** 0.5)
    return W * STRUCTURES[structure](rng, n, p, density) if density < 1 else W
