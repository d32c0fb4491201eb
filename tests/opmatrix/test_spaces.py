"""Spaces and relations: rows that a batch picks and pools, in every reading; what does not fit is said with spaces,
relation and sizes."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.relations import Sparse
from opmatrix.algebra.monoids import max as largest
from opmatrix.algebra.monoids import mean, softmax
from opmatrix.algebra.operators import (
    I,
    const,
    gelu,
    given,
    heads,
    layernorm,
    pick,
    product,
    relation,
    rotary,
    row,
    symbol,
    weight,
)
from opmatrix.algebra.oracles import dense, entrywise
from opmatrix.algebra.positions.patterns import causal, sequence
from opmatrix.algebra.shapes import S, Shape, ShapeError, T, space
from opmatrix.algebra.term import formula
from opmatrix.display.show import latex, names
from rewrites.egraph.egraph import saturate
from rewrites.egraph.template import Template
from rewrites.laws import EXACT_LAWS
from rewrites.laws.flat import flat
from rewrites.verify.graphs import disagreements

EDGES, NODES = relation("edges", "V", "V"), relation("nodes", "V", "T")
LINKS = np.array([[0, 2.0, 0], [1, 0, -3], [0, 0, 0]])  # node 2 has no neighbour
RELATIONS = dict(edges=LINKS, nodes=np.eye(6)[[0, 2, 5]])
BATCH = Batch([[1, 2, 3], [4], [5, 6]], relations=RELATIONS)
RNG = np.random.default_rng(0)
X, W, Q = RNG.normal(size=(6, 4)), weight(RNG.normal(size=(4, 3))), weight(RNG.normal(size=(4, 4)))


def pooled(over):
    return formula(lambda x: product(given("members"), x, over=over))


def neighbours(over):
    return pick(NODES) @ formula(lambda x: row(x, product(given(EDGES), x, over=over)))


def queries(x):
    """Attention of the last tokens alone."""
    return product(x @ pick("last") @ Q @ x.T, x @ W + 1.0, over=softmax, where=sequence & causal)


TERMS = [
    I @ pick("last"),
    pick("first") @ W @ gelu,
    W @ pick("last") @ layernorm(1e-5),
    pick("last") @ heads(2) @ heads(2).T,
    rotary(8, 4) @ pick("last"),
    pick("last") @ rotary(8, 4),
    formula(queries),
    pooled(mean) + 1.0,
    pooled(largest) @ (W + const([1.0, 2, 3])),
    formula(lambda x: row(x @ pick("last"), product(given("members"), x))),
    neighbours(mean),
    neighbours(largest),
    neighbours(softmax),
    formula(lambda x: product(given("members_by_root"), x)),
    formula(lambda x: product(given("members_by_place"), x)),
]


@pytest.mark.parametrize("term", TERMS, ids=str)
def test_both_oracles_agree_and_text_is_the_term(term):
    found, wanted = dense(term, X, BATCH), entrywise(term, X, BATCH)[0].astype(float)
    assert found.shape == wanted.shape == ({S: 3, space("V"): 3}[term.out.rows], term(Shape(1, T, 4)).cols)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    assert eval(str(term), names(term)) is term
    assert "given" not in latex(term)


def test_what_they_mean():
    """By numpy, from nothing that the oracles use."""
    last, parts = X[[2, 3, 5]], np.split(X, [3, 4])
    np.testing.assert_array_equal(dense(pick("last"), X, BATCH), last)
    np.testing.assert_allclose(dense(pooled(mean), X, BATCH), [p.mean(0) for p in parts])
    np.testing.assert_allclose(dense(pooled(largest), X, BATCH), [p.max(0) for p in parts])
    nodes = X[[0, 2, 5]]
    means = np.array([2 * nodes[1], (nodes[0] - 3 * nodes[2]) / 2, 0 * nodes[0]])
    np.testing.assert_allclose(dense(neighbours(mean), X, BATCH), np.hstack([nodes, means]))
    highest = np.array([2 * nodes[1], np.maximum(nodes[0], -3 * nodes[2]), np.full(4, -np.inf)])
    np.testing.assert_allclose(dense(neighbours(largest), X, BATCH), np.hstack([nodes, highest]))


def test_rows_that_are_picked_keep_their_positions():
    turned = dense(rotary(8, 4), X, BATCH)
    np.testing.assert_allclose(dense(pick("last") @ rotary(8, 4), X, BATCH), turned[[2, 3, 5]])
    places = given("positions", 4) @ weight(np.arange(4.0)[:, None])
    assert dense(pick("last") @ places, X, BATCH)[:, 0].tolist() == [2, 0, 1]


def test_pooling_is_exact_in_fractions():
    x = np.arange(24).reshape(6, 4)
    found = entrywise(pooled(mean), x, BATCH, Fraction)[0]
    assert found[0, 1] == Fraction(1 + 5 + 9, 3) and found[2, 3] == Fraction(19 + 23, 2)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: formula(lambda x: x + x @ pick("last")), r"\+: .*rows T ≠ S"),
        (lambda: pick("last") @ pick("first"), r"@ pick: .* against first: S × T: rows against columns S ≠ T"),
        (lambda: pick("last") @ formula(lambda x: product(given("members"), x)), "columns against rows T ≠ S"),
        (lambda: pick("last") @ pick(EDGES), "edges: V × V: rows against columns S ≠ V"),
        (lambda: pick("tokens"), "pick: 'tokens' is no relation: first, last, members"),
        (lambda: given("tokens"), "'tokens' is no relation"),
        (
            lambda: relation("last", "V", "T"),
            "relation last: V × T: this name is reserved: every batch has last: S × T",
        ),
        (lambda: dense(pick(EDGES), X, BATCH), r"its rows are T, the tokens of a batch, but the term takes rows of V"),
        (
            lambda: dense(pick(NODES), X, Batch([range(6)])),
            "relation nodes: V × T: the batch has no relation of this name: first, last",
        ),
        (
            lambda: dense(pick(NODES) @ pick(EDGES), X, BATCH),
            "edges: V × V: row 1 of 3 in space V has 2 entries: a pick takes",
        ),
        (
            lambda: dense(pick(relation("far", "V", "T")), X, Batch([range(6)], relations=dict(far=np.eye(6, 7)))),
            "relation far: V × T: it is 6 × 7, but space T has 6 rows",
        ),
        (
            lambda: dense(neighbours(mean), X, Batch([range(6)], relations=RELATIONS | dict(edges=np.eye(4)))),
            "relation edges: V × V: it is 4 × 4 in this batch, but the value has 3 rows of space V",
        ),
        (
            lambda: dense(pooled(mean) @ rotary(8, 4), X, BATCH),
            "positions: these 3 rows have no positions, as they were pooled, not picked",
        ),
        (lambda: flat(pooled(mean) @ given("positions", 4), I), "were pooled, not picked, and have no positions"),
        (lambda: Batch([[1]], relations=dict(last=np.eye(1))), "relation 'last': this name is reserved"),
        (lambda: Batch([[1]], relations=dict(r=np.ones(3))), r"relation 'r' has shape \(3,\)"),
        (lambda: Batch([[1]], relations=dict(r=[[np.inf]])), "not a finite number"),
    ],
)
def test_what_does_not_fit_is_said(make, words):
    with pytest.raises((ShapeError, ValueError, TypeError), match=words):
        make()


def test_a_position_of_pooled_rows_is_an_error_of_shape_and_of_value():
    for kind in (ShapeError, ValueError):
        with pytest.raises(kind, match="these 3 rows have no positions, as they were pooled, not picked"):
            dense(pooled(mean) @ rotary(8, 4), X, BATCH)


# ---- laws


def graph_of(term, width=4):
    x = symbol("border", Shape(1, T, width), Shape(1, T, width))
    template = Template.of({"seed": flat(term, x)}, [x])
    return saturate(template, EXACT_LAWS, trace=True), template


@pytest.mark.parametrize(
    "term",
    [
        *TERMS[:8],
        W @ const([1.0, 2, 3]) @ pick("last"),
        neighbours(mean),
        given("positions", 4) @ weight(np.ones((4, 4))) @ pick("last"),
    ],
    ids=str,
)
def test_graphs_of_picked_rows_hold(term):
    """Every member of every class has its value, where rows are moved between spaces too."""
    graph, template = graph_of(term)
    assert not disagreements(graph, template, np.random.default_rng(1))


def layer(x):
    mixed = (
        product(x @ Q @ heads(2) @ (x @ Q @ heads(2)).T, x @ Q @ heads(2), over=softmax, where=sequence & causal)
        @ heads(2).T
    )
    y = (mixed @ Q + x) @ layernorm(1e-5) * np.array([1.0, 2, 3, 4]) + np.array([1.0, 0, 0, 1])
    return (y @ W @ gelu @ W.T + y) @ pick("last")


def test_what_is_behind_attention_is_found_in_the_rows_that_are_read():
    """In the class of the picked rows stands a term in which only keys and values have all rows."""
    graph, template = graph_of(formula(layer))
    assert not disagreements(graph, template, np.random.default_rng(1))
    terms = graph.terms(template)
    seen = {node.kind for node in graph.members[graph.named["$seed"]]}
    assert "add" in seen
    products = [
        cls
        for cls, members in graph.members.items()
        if any(n.kind == "product" and n.attributes[0] == "softmax" for n in members)
    ]
    assert {terms[cls].out.rows for cls in products} == {T, S}


def beyond(kind):
    """A 4 × 4 matrix of scipy, one entry of which lies beyond it: scipy does not look."""
    made = sparse.random_array((4, 4), density=0.5, format=kind, rng=np.random.default_rng(0))
    match kind:
        case "coo":
            made.coords[0][0] = 7
        case "lil":
            made.rows[3], made.data[3] = [9], [1.0]
        case _:
            made.indices[-1] = 9
    return made


@pytest.mark.parametrize(
    "kind, words",
    [
        ("csr", "entries beyond that: indices must be < 4"),
        ("csc", "entries beyond that: indices must be < 4"),
        ("bsr", "entries beyond that: column index values must be < 4"),
        ("coo", "an entry in row 7"),
        ("lil", "an entry in row 3, column 9"),
    ],
)
def test_entries_beyond_a_relation_s_shape_are_said(kind, words):
    with pytest.raises(ValueError, match=f"relation 'edges' is 4 × 4, but has {words}"):
        Batch([range(4)], relations={"edges": beyond(kind)})
    made = Sparse(np.array([0, 1, 1]), np.array([-1]), np.ones(1), (2, 2))
    with pytest.raises(ValueError, match="relation 'edges' is 2 × 2, but has an entry in row 0, column -1"):
        Batch([range(2)], relations={"edges": made})
    with pytest.raises(ValueError, match=r"relation 'edges' is 2 × 2, but its rows begin at \[0, 3, 1\] of 1 entries"):
        Batch([range(2)], relations={"edges": made._replace(starts=np.array([0, 3, 1]), at=np.array([1]))})


@pytest.mark.parametrize("made", [np.array, sparse.csr_array, sparse.coo_array])
def test_a_relation_of_numbers_that_are_not_real_is_said(made):
    """An imaginary part would be lost without a word."""
    with pytest.raises(ValueError, match="relation 'edges' holds complex128: give real numbers"):
        Batch([[1, 2]], relations={"edges": made(np.array([[1 + 2j, 0], [0, 1]]))})
