"""Products by expert: rows that lie together, in any format, each with its own epilogue."""
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats import BF16, CSR, Dense, Epilogue, Packed
from formats.experts import by_expert, multiply_grouped

FORMS = Dense, Packed, CSR, BF16


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 2 ** 32 - 1))
def test_rows_meet_the_weight_of_their_expert(choice, seed):
    rng = np.random.default_rng(seed)
    weights = [F.approximate(rng.standard_normal((12, 20), np.float32)) for F in FORMS]
    x, residual = rng.standard_normal((len(choice), 12), np.float32), rng.standard_normal((len(choice), 20), np.float32)
    order, starts = by_expert(choice, len(FORMS))
    epilogues = [Epilogue(bias=rng.standard_normal(20, np.float32), residual=residual[order]) for _ in FORMS]
    found = np.empty_like(residual)
    found[order] = multiply_grouped(x[order], starts, weights, epilogues=epilogues)
    for row, expert in enumerate(choice):
        exact = np.matmul(*weights[expert].operands(x[row:row + 1]))[0] + epilogues[expert].bias + residual[row]
        assert (abs(found[row] - exact) <= weights[expert].bound(x[row:row + 1])[0] + 1e-5).all()


def test_what_does_not_fit_is_named():
    W = Dense.pack(np.ones((4, 3), np.float32))
    with pytest.raises(ValueError, match="do not divide 5 rows among 2 experts"):
        multiply_grouped(np.ones((5, 4)), [0, 2, 4], [W, W])
    with pytest.raises(ValueError, match="weights of one shape"):
        multiply_grouped(np.ones((5, 4)), [0, 2, 5], [W, Dense.pack(np.ones((4, 2)))])
    with pytest.raises(ValueError, match="row 1 chooses 7; there are 2"): by_expert([0, 7], 2)
