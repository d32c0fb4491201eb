"""Bytes whose inputs are balanced: a few large inputs of x no longer leave the others few steps."""
import numpy as np
import pytest

from formats import FORMATS, FormatError
from opmatrix.spectra import Limits, propose
from opmatrix.spectra.gram import Seen

LARGE = [9, 100]


@pytest.fixture(scope="module")
def seen():
    """Rows (T, n) of which two inputs are large, a weight (n, p), and their product."""
    rng = np.random.default_rng(0)
    x, W = rng.standard_normal((90, 130), np.float32), rng.standard_normal((130, 70), np.float32)
    x[:, LARGE] *= 30
    W[5] = x[:, 7] = 0
    return x, W, x.astype(np.float64) @ W


def off(name, group, seen, rows=slice(None), **given):
    x, W, exact = seen
    stored = FORMATS[name].approximate(W, group=group, **given)
    found, bound = stored.matmul(x[rows]), stored.bound(x[rows])
    assert (abs(found - np.matmul(*stored.operands(x[rows]))) <= bound).all()
    return np.linalg.norm(found - exact[rows]) / np.linalg.norm(exact[rows])


@pytest.mark.parametrize("group", [64, 1 << 16])
@pytest.mark.parametrize("rows", [slice(0, 1), slice(None)])
def test_large_inputs_are_taken_to_the_weight(seen, group, rows):
    norms = np.linalg.norm(seen[0], axis=0)
    assert off("balancedint8", group, seen, rows, scale=norms) < 0.4 * off("int8", group, seen, rows)
    assert off("balancedint8", group, seen, rows) == off("int8", group, seen, rows)      # nobody said what is large


def test_it_is_proposed_where_inputs_are_large_and_not_where_none_are(seen):
    def error(x, name):
        found = propose(seen[1], Seen.of(x).diagonal, Limits(error=1.0))
        return min(each.predicted_error for each in (*found.kept,) if each.method == name)
    even = np.random.default_rng(1).standard_normal(seen[0].shape, np.float32)
    assert error(seen[0], "balancedint8") < 0.01
    assert "int8" in {each.method for each in propose(seen[1], Seen.of(even).diagonal, Limits(error=1.0)).kept}


@pytest.mark.parametrize("turn", [0.0, -1.0, 2.0 ** 30, np.nan, np.inf])
def test_a_factor_that_is_none_is_refused(seen, turn):
    stored = FORMATS["balancedint8"].approximate(seen[1])
    arrays = {name: each.copy() for name, each in stored.arrays().items()}
    arrays["turn"][3] = turn
    with pytest.raises(FormatError, match=r"a factor is|not finite"):
        FORMATS["balancedint8"].from_arrays(stored.meta(), arrays)
