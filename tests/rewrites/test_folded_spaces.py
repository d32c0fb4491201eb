"""Products over a monoid of what a relation names: rows of any space, some of which it names nobody for."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.relations import relation
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.operators import given, product
from opmatrix.algebra.oracles import dense
from opmatrix.runtime.pricing import datasheet
from rewrites.explain.derivations.schedules import schedule

COUNT, WIDE = dict(V=7, U=4), 6


class farthest(Monoid):
    """The longest way."""

    identity, idempotent = -np.inf, True

    def lift(e, x):
        return e + x

    def merge(a, b):
        return np.maximum(a, b)


@pytest.mark.parametrize("over", [farthest, monoids.max, monoids.topk(2)], ids=str)
@pytest.mark.parametrize("spaces", ["VV", "UV", "VU"])
def test_an_operator_over_rows_of_any_space_runs_and_is_verified(over, spaces):
    """One row names nobody, one everybody: a maximum over nothing is -inf, which is no difference from itself."""
    rng, (rows, cols) = np.random.default_rng(0), spaces
    kept = rng.random((COUNT[rows], COUNT[cols])) < 0.3
    kept[:2] = [[False], [True]]
    near = kept * rng.uniform(0.5, 2, kept.shape)
    batch = Batch(relations={"near": csr_array(near)}, inputs={"x": rng.normal(size=(COUNT[cols], WIDE))})
    model = product(given(relation("near", rows, cols)), given("x", WIDE, cols), over=over)
    program = schedule(model, batch, machine=datasheet("A100"))
    np.testing.assert_allclose(program.run(batch), dense(model, batch), rtol=1e-6, atol=1e-6)
    assert program.verify()["program"]["float64"]["relative"] == 0
