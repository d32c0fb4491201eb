"""A pattern that the rows of a product cannot have is refused where the product is written, or where it is searched,
in a line that names it."""

import numpy as np
import pytest
from searched import structure

from formats.core.errors import InputError
from opmatrix import formula
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.relations import relation
from opmatrix.algebra.monoids import softmax
from opmatrix.algebra.operators import given, heads, pick, product, weight
from opmatrix.algebra.positions.patterns import among, causal, coarse, everyone, hubs, mask, scattered, sequence, window
from opmatrix.algebra.shapes import ShapeError
from rewrites.egraph.layers import parts

rng = np.random.default_rng(0)
TOKENS, FEATURES = weight(rng.normal(size=(41, 6))), given("features", 6, "V")
W = weight(rng.normal(size=(6, 4)))
EDGES, MEMBERS = relation("edges", "V", "V"), relation("members", "S", "T")
PATTERNS = [
    sequence,
    causal,
    window(2),
    hubs(1),
    scattered(2),
    coarse(causal, 2),
    mask(np.eye(9)),
    sequence & causal,
    causal | window(1),
    among(EDGES),
    among(MEMBERS),
]
named = pytest.mark.parametrize("where", PATTERNS, ids=str)


def pooled(x):
    return product(given("members"), x, over=monoids.mean)


@named
@pytest.mark.parametrize("many", [1, 2, 3])
@pytest.mark.parametrize(
    "turned",
    [
        lambda x, where: x @ product(x.T, x, where=where),
        lambda x, where: product(x.T @ x, x.T, over=softmax, where=where).T,
    ],
)
def test_columns_see_no_rows(where, many, turned):
    def cut(x):
        return x @ heads(many)

    with pytest.raises(ShapeError, match=r"product where .* is a number of columns|lets rows of"):
        TOKENS @ formula(lambda x: turned(cut(x), where))


UNFIT = {
    "pooled, pooled": lambda x, s, where: product(s @ s.T, s, over=softmax, where=where),
    "pooled, tokens": lambda x, s, where: product(s @ x.T, x, over=softmax, where=where),
    "tokens, pooled": lambda x, s, where: product(x @ s.T, s, over=softmax, where=where),
    "a relation": lambda x, s, where: product(given("members"), x, where=where),
}


@named
@pytest.mark.parametrize("name", UNFIT)
def test_pooled_rows_have_no_position(where, name):
    fits = where.relation is not None and name in ("pooled, tokens", "a relation") and where.relation.rows == "S"
    if fits:
        return
    with pytest.raises((InputError, ShapeError), match="where"):
        parts(TOKENS @ formula(lambda x: UNFIT[name](x, pooled(x), where)))


@named
def test_rows_of_another_space_are_seen_by_a_relation_alone(where):
    def model():
        return FEATURES @ formula(lambda x: product(x @ x.T, x, over=softmax, where=where))

    if where.relation == EDGES:
        assert parts(model())
    else:
        with pytest.raises((InputError, ShapeError), match="where"):
            parts(model())


@pytest.mark.parametrize("where", [each for each in [everyone, *PATTERNS] if each.relation is None], ids=str)
def test_rows_of_tokens_fit_every_pattern_of_positions(where):
    batch = Batch([[3, 4, 5, 6, 7], [8] * 9])
    for mixed in (
        lambda x: product(x @ x.T, x, over=softmax, where=where),
        lambda x: product(x @ pick("last") @ x.T, x, over=softmax, where=where),
    ):
        model = TOKENS @ formula(mixed)
        assert parts(model)
        if where.within or where is everyone:
            program, _ = structure(model, batch=batch).program({})
            assert np.allclose(program.run(batch), model(batch), atol=1e-5)


def test_a_name_is_no_relation():
    with pytest.raises(TypeError, match="among: edges is no relation"):
        among("edges")


def test_a_relation_of_other_rows_is_refused_for_tokens():
    with pytest.raises((InputError, ShapeError), match="edges"):
        parts(TOKENS @ formula(lambda x: product(x @ x.T, x, over=softmax, where=among(EDGES))))
