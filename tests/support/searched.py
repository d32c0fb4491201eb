"""Small models and a machine of round numbers, for tests of the search and of what it finds."""

from functools import cache

import numpy as np
from checkpoints import CONFIG, arrays

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import collect_needs
from opmatrix.algebra.data import Data
from opmatrix.models import build
from rewrites.laws import EXACT_LAWS
from rewrites.search.search import search

RAGGED = Batch([[3, 4, 5, 6, 7], [8], list(range(9, 24))], [[0, 0, 1, 1, 0], [1], [0] * 15])
KINDS = {"imported": ((), False), "fused": ((), True), "exact": (EXACT_LAWS, True)}  # laws, and whether kernels fuse


class Round:
    """A machine: so many products a second, so many numbers in memory, and two microseconds for a pass of its own."""

    def seconds(self, kernel, **size):
        T, n, p, h, d, pairs = (size.get(name, 1) for name in ("T", "n", "p", "h", "d", "S2"))
        match kernel.partition("."):
            case "linear", _, _:
                return 1e-6 + T * n * p / 2e10
            case "pointwise", _, _:
                return 2e-6 + T * p / 1e9
            case "attention", _, _:
                return pairs * h * (2 * d + 4) / 1e10
            case "scores" | "values", _, _:
                return 1e-6 + pairs * h * d / 1e10
            case "softmax", _, _:
                return 1e-6 + pairs * h / 5e8
            case "rotate", _, _:
                return 2e-6 + T * p / 1e9
            case "headwise", _, _:
                return 1e-6 + T * h * n * p / 1e10
        return T * p / 1e10


def model(seed=0, **changed):
    """A BERT of random numbers."""
    config = CONFIG | changed
    numbers = arrays(config, seed)
    return build(config, lambda name, *shape: Data(numbers[name], name))


def structure(operator, laws=EXACT_LAWS, fusion=True, batch=RAGGED, **options):
    return search(operator, laws, Round(), batch.extents(*collect_needs(operator)), fusion=fusion, **options)


@cache
def found():
    """The model, and by kind its structure, its program, and where the program's constants come from."""
    operator = model()
    made = {kind: structure(operator, laws, fusion) for kind, (laws, fusion) in KINDS.items()}
    return operator, {kind: (each, *each.program({"model": kind})) for kind, each in made.items()}


def relative(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
