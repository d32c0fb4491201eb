"""A layer of each family from its operator to a program, with all that a run verifies: laws, graphs, programs."""
from functools import cache

import pytest
from searched import Round, relative
from test_families import CASES, RAGGED, made

from opmatrix.algebra.oracles import dense
from opmatrix.models import build
from rewrites.laws import EXACT_LAWS
from rewrites.run import optimize
from rewrites.verify import verify_laws

LAYERS = "num_hidden_layers", "n_layer", "n_layers"          # as configs call them
EACH = {CASES[case][0]: case for case in reversed(CASES)}    # the first case of each family


@pytest.fixture
def laws_once(monkeypatch):
    """All laws alone are verified for the first of these tests: they are the same for every model."""
    monkeypatch.setattr("rewrites.verify.verify_laws", lambda laws, announce: verified(tuple(laws)))


@cache
def verified(laws): return verify_laws(laws)


@pytest.mark.parametrize("family", EACH)
def test_a_layer_is_optimised_with_all_that_is_verified(family, laws_once):
    config = CASES[EACH[family]][1] | dict(model_type=family)
    config |= {name: 1 for name in LAYERS if name in config}
    operator = build(config, made(config))
    found = optimize(operator, workload=RAGGED, error=0, number_type="float32", rounds=3, machine=Round())
    assert found.best.verified and found.best.checks["laws"]["laws"] == len(EXACT_LAWS)
    assert relative(found.best.program.run(RAGGED), dense(operator, RAGGED)) < 1e-5
