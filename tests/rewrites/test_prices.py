"""Prices: what a search is told that kernels cost is what the program that it finds is said to cost."""

import numpy as np
import pytest
from random_models import random_config, random_weights
from searched import KINDS, RAGGED
from standin import machine

from opmatrix.algebra.batch.extents import patterns
from opmatrix.algebra.operators import pick
from opmatrix.inference.pooling import Pooling
from opmatrix.models.transformer import transformer
from rewrites.search.search import search

ENDS = {
    "every row": lambda rows: rows,
    "pooled": lambda rows: rows @ Pooling().operator(),
    "last": lambda rows: rows @ pick("last"),
}


@pytest.mark.deep(every=36)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("seed", range(4))
def test_a_program_costs_what_its_search_was_told(kind, end, seed):
    rng, (laws, fusion) = np.random.default_rng(seed), KINDS[kind]
    config = random_config(rng)
    operator = ENDS[end](transformer(config, random_weights(config, rng)))
    found = search(operator, laws, machine(), RAGGED.extents(patterns(operator)), fusion=fusion)
    program, _ = found.program({})
    seconds = sum(machine().seconds(kernel, **sizes) for kernel, sizes in program.cost(RAGGED))
    assert found.time == pytest.approx(seconds, rel=1e-12)
