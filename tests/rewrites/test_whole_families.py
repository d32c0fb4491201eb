"""A layer of each family from its operator to a program, with all that a run verifies: laws, graphs, programs."""
import pytest
import standin
from searched import Round, relative
from test_families import CASES, RAGGED, made

from opmatrix.algebra.oracles import dense
from opmatrix.models import build
from rewrites.laws import EXACT_LAWS
from rewrites.run import optimize

LAYERS = "num_hidden_layers", "n_layer", "n_layers"          # as configs call them
EACH = {CASES[case][0]: case for case in reversed(CASES)}    # the first case of each family


SAVINGS = "distilbert",                                      # of one that is soon searched
LONGEST, LONG = 600, "gpt_pangu"                             # tokens: beyond groups of rows; who has the longest, too


@pytest.mark.parametrize("family", EACH)
def test_a_layer_is_optimised_with_all_that_is_verified(family, monkeypatch):
    """What each law saves, a dozen searches, is asked of one family, and thousands of tokens are read of one that has
    no limit of positions: steps are of the same kinds in others, with the same kernels' borders below LONGEST."""
    if family not in SAVINGS: standin.know_savings(monkeypatch)
    if family != LONG: monkeypatch.setattr("rewrites.verify.lengths.MAX_LENGTH", LONGEST)
    config = CASES[EACH[family]][1] | dict(model_type=family)
    config |= {name: 1 for name in LAYERS if name in config}
    operator = build(config, made(config))
    found = optimize(operator, workload=RAGGED, error=0, number_type="float32", rounds=3, machine=Round())
    assert found.best.verified and found.best.checks["laws"]["laws"] == len(EXACT_LAWS)
    assert relative(found.best.program.run(RAGGED), dense(operator, RAGGED)) < 1e-5
    assert bool(found.saved) == (family in SAVINGS)
