"""Where a tile says that nothing which is compared is NaN, a minimum is one instruction; what is NaN or infinite is
merged as numpy says all the same."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.kernels.engine.compiled import provide
from formats.kernels.generated.folding.fold_order import ORDERED_KINDS, TILE_KINDS, compared, keeps_order, told_by
from formats.kernels.generated.rowwise.scalar_graphs import exact_graph
from formats.kernels.generated.rowwise.scalars import NumberGraph
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.operators import over, weight
from opmatrix.runtime.interpreted import write_term
from opmatrix.runtime.kernels.fold_term import find_fold
from tests.support.terms_of_folds import minplus
from tests.support.terms_of_rows import value


def declared(lift, merge, identity, **more):
    return type("mine", (Monoid,), dict(identity=identity, lift=lift, merge=merge, **more))


MERGES = {
    "shortest": (minplus, "above or below"),
    "longest": (declared(lambda x, w: x + w, np.maximum, -np.inf), "above or below"),
    "widest": (declared(lambda x, w: np.minimum(x, w), np.maximum, -np.inf), "above or below"),
    "largest product": (declared(lambda x, w: x * w, np.maximum, -np.inf), "above and below"),
    "both ends": (
        declared(
            lambda x, w: (x * w, x * w),
            lambda a, b: (np.minimum(a[0], b[0]), np.maximum(a[1], b[1])),
            (np.inf, -np.inf),
            finish=lambda low, high: high - low,
        ),
        "above and below",
    ),
    "a quotient": (declared(lambda x, w: x / w, np.maximum, -np.inf), None),
    "of a difference": (declared(lambda x, w: x * w - x * w, np.maximum, -np.inf), None),
    "a sum": (declared(lambda x, w: x + w, lambda a, b: a + b, 0.0), None),
}
EDGES = st.sampled_from([float(each) for each in ORDERED_KINDS])
ROWS, KEYS, COLUMNS = 70, 130, 21  # two units of queries, three tiles of keys


def kernel_of(name):
    """The kernel of rows merged with an array, and its plan's step."""
    monoid, _ = MERGES[name]
    term = value(0, KEYS) @ over(weight(np.ones((KEYS, COLUMNS))), monoid)
    text, _ = write_term(term, {value(0, KEYS): 0})
    operands = {"x0": np.zeros((2, KEYS), np.float32), "c0": np.ones((KEYS, COLUMNS), np.float32), "term": text}
    return find_fold(operands).kernel


@pytest.mark.parametrize("name", MERGES)
def test_what_a_tile_has_to_be_is_told_by_the_merge(name):
    step, told = kernel_of(name).written.step, MERGES[name][1]
    assert told_by(step, True) == told and told_by(step, False) is None


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([name for name, (_, told) in MERGES.items() if told]), st.data())
def test_what_is_told_keeps_nan_away(name, data):
    """A merge of carriers that are numbers with what a tile may hold has no NaN in it, whichever numbers these are."""
    step = kernel_of(name).written.step
    for word in [word for word, pair in TILE_KINDS.items() if keeps_order(step, pair, pair)]:
        pair = st.sampled_from([float(each) for each in TILE_KINDS[word]]) | st.floats(
            width=32, allow_nan=False, allow_infinity=False
        )
        carriers = [data.draw(EDGES) for _ in step.carriers]
        given = [*carriers, data.draw(pair), data.draw(pair), 0.0]
        with np.errstate(all="ignore"):
            found = exact_graph(NumberGraph(len(given), tuple(step.merged)), *map(np.float32, given))
        assert not np.isnan(found).any(), (word, given)


@pytest.fixture(scope="module")
def kernels():
    found = {name: kernel_of(name) for name, (_, told) in MERGES.items() if told}
    provide([each.function for each in found.values()])
    return found


SPECIAL = {
    "none": [],
    "an edge that is missing": [np.inf],
    "one that is free": [-np.inf],
    "both": [np.inf, -np.inf],
    "NaN": [np.nan],
    "all": [np.inf, -np.inf, np.nan],
}


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("name", [name for name, (_, told) in MERGES.items() if told])
@pytest.mark.parametrize("where", ["first", "last", "everywhere"])
def test_special_numbers_are_merged_as_numpy_says(kernels, name, special, where):
    rng = np.random.default_rng(3)
    x, W = (rng.standard_normal(size).astype(np.float32) for size in ((ROWS, KEYS), (KEYS, COLUMNS)))
    at = {"first": slice(0, 5), "last": slice(KEYS - 2, KEYS), "everywhere": slice(0, KEYS)}[where]
    for each in SPECIAL[special]:
        for array in (x[:, at], W[at]):
            array[rng.random(array.shape) < 0.1] = each
    monoid, _ = MERGES[name]
    with np.errstate(all="ignore"):
        lifted = monoid.lift(x[:, :, None], W[None])
        parts = lifted if isinstance(lifted, tuple) else (lifted,)
        wanted = [
            np.minimum.reduce(each, 1) if unit > 0 else np.maximum.reduce(each, 1)
            for each, unit in zip(parts, np.atleast_1d(monoid.identity), strict=True)
        ]
        if len(wanted) == 2:
            wanted = [wanted[1] - wanted[0]]
    out = np.zeros((ROWS, COLUMNS), np.float32)
    kernels[name]([x], [W], out)
    np.testing.assert_array_equal(out, *wanted)


def test_a_minimum_is_counted_once_where_order_is_told():
    """Columns are merged as many at a time as a merge waits for: 24 for 21."""
    told, other = kernel_of("shortest"), kernel_of("of a difference")
    assert compared(told.written.step) == 1 and told.counts.simple == 24 * 2 and other.counts.simple == 24 * 4
