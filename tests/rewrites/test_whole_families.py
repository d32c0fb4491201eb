"""A layer of each family from its operator to a program, with all that a run verifies: laws, graphs, programs."""

import pytest
import standin
from searched import Round, relative
from test_families import CASES, RAGGED, made

from opmatrix.algebra.oracles import dense
from opmatrix.models import build
from rewrites.laws import EXACT_LAWS
from rewrites.run import optimize

LAYERS = "num_hidden_layers", "n_layer", "n_layers"  # as configs call them
EACH = {CASES[case][0]: case for case in reversed(CASES)}  # the first case of each family


SAVINGS = "distilbert", "qwen3"  # of an encoder's kind of layer, and of a gated one


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("family", EACH)
def test_a_layer_is_optimised_with_all_that_is_verified(family, monkeypatch):
    """What each law saves, a dozen searches, is asked of two families: of none is it what the program is."""
    if family not in SAVINGS:
        standin.know_savings(monkeypatch)
    config = CASES[EACH[family]][1] | dict(model_type=family)
    config |= {name: 1 for name in LAYERS if name in config}
    operator = build(config, made(config))
    found = optimize(operator, workload=RAGGED, error=0, number_type="float32", rounds=3, machine=Round())
    assert found.best.verified and found.best.checks["laws"]["laws"] == len(EXACT_LAWS)
    assert relative(found.best.program.run(RAGGED), dense(operator, RAGGED)) < 1e-5
    assert bool(found.saved) == (family in SAVINGS)
