"""Infinity is the identity of (min, +): an input may be it where a monoid says so; NaN may not."""
import numpy as np
import pytest
from searched import structure

from formats.core.errors import InputError
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.operators import given, over, weight
from opmatrix.batch import Batch

DISTANCES = np.array([[0, 3, 9], [3, 0, 4], [9, 4, 0]], np.float32)


class minplus(Monoid):
    """The shortest way."""
    identity = np.inf

    def lift(u, w): return u + w
    def merge(a, b): return np.minimum(a, b)


def reached(start):
    model = given("start", 3, "V") @ over(weight(DISTANCES), minplus)
    batch = Batch(inputs={"start": np.array([start], np.float32)})
    return structure(model, batch=batch).program({})[0].run(batch)


def test_an_input_may_be_the_identity_of_min_plus():
    assert np.array_equal(reached([0, np.inf, np.inf]), DISTANCES[:1])


def test_a_finite_input_of_min_plus_runs(): assert np.array_equal(reached([0, 100, 100]), DISTANCES[:1])


def test_an_input_may_not_be_nan():
    with pytest.raises(InputError, match="nan"): reached([0, np.nan, 1])
