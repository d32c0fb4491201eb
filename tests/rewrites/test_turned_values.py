"""Values whose rows are of no space, as a state kᵀ v: what goes through rows one by one may follow, and a step reads
them."""

import numpy as np
import pytest

import opmatrix as om
from opmatrix.algebra.operators import I, given, heads, join, ones, reciprocal, relu, share, tanh, weight
from opmatrix.algebra.shapes import ShapeError
from opmatrix.algebra.term import formula
from tests.support import standin

TOKENS = 9
BEHIND = {
    "nothing": lambda e: I,
    "a function": lambda e: tanh,
    "shares": lambda e: share,
    "a matrix": lambda e: weight(np.cos(np.arange(e * 3.0)).reshape(e, 3)),
}


def draw_batch(rng):
    return om.Batch([[*rng.integers(TOKENS, size=length)] for length in (1, *rng.integers(1, 6, 2))])


@pytest.mark.parametrize("behind", BEHIND)
def test_a_state_is_read_within_a_step(behind):
    rng = np.random.default_rng([*BEHIND].index(behind))
    h, d, e = rng.integers(1, 4, 3)
    n, wide = h * d + 2, h * (e + 1)
    table, Q, K, V = (weight(rng.normal(size=size)) for size in ((TOKENS, n), (n, h * d), (n, h * d), (n, wide)))
    model = (
        table
        @ formula(
            lambda x: (
                (x @ Q @ heads(int(h)))
                @ (((x @ K @ heads(int(h))).T @ (x @ V @ heads(int(h)))) @ BEHIND[behind](int(e) + 1))
            )
        )
        @ join(int(h))
    )
    batch = draw_batch(rng)
    program = om.schedule(model, batch, machine=standin.machine())
    for each in (batch, draw_batch(rng)):  # its sizes are those of a run
        np.testing.assert_allclose(program.run(each), om.dense(model, each), rtol=1e-4, atol=1e-4)


def test_linear_attention_as_it_is_written():
    """Without softmax, each row over its sum (Katharopoulos et al. 2020, equation 5)."""
    rng = np.random.default_rng(7)
    table, Q, K, V = (weight(rng.normal(size=size)) for size in ((TOKENS, 6), (6, 4), (6, 4), (6, 5)))

    def attend(x):
        q, k = x @ Q @ relu, x @ K @ relu
        return (q @ (k.T @ (x @ V))) * (q @ (k.T @ ones) @ reciprocal)

    model, batch = table @ formula(attend), draw_batch(rng)
    program = om.schedule(model, batch, machine=standin.machine())
    x = om.dense(table, batch)
    q, k = (np.maximum(each, 0) for each in (x @ Q, x @ K))
    np.testing.assert_allclose(program.run(batch), q @ (k.T @ (x @ V)) / (q @ k.T).sum(1, keepdims=True), rtol=1e-4)


def test_what_reads_the_batch_may_not_follow():
    state = formula(lambda x: x.T @ x)
    with pytest.raises(ShapeError, match=r"whose rows are not tokens: only row-wise operators"):
        state @ given("positions", 4)
