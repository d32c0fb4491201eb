"""Products that share their input, joined by columns: behind rotations, norms and copies, with unequal numbers of
heads."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from searched import Round, relative

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import T, patterns
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import (
    I,
    const,
    diag,
    heads,
    pick,
    product,
    relu,
    repeat,
    rmsnorm,
    rotary,
    silu,
    softmax,
    weight,
)
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.positions.patterns import causal, sequence
from opmatrix.algebra.term import formula
from rewrites.egraph.layers import parts
from rewrites.laws import EXACT_LAWS, joining, without
from rewrites.search.search import search
from rewrites.verify import verify_steps
from rewrites.verify.graphs import check_graph

RAGGED = Batch([[3, 1, 4, 1, 5], [9], [2, 6]])
APART = without(EXACT_LAWS, [law.name for law in joining.JOINING_LAWS])


class Calls(Round):
    """A machine on which a call of a product takes as long as ten passes: as few products as possible are best."""

    def seconds(self, kernel, **size):
        dear = kernel.startswith("linear.") or kernel == "headwise"
        return 2e-5 * dear + super().seconds(kernel, **size)


def numbers(rng, *shape):
    return Data(rng.normal(size=shape) / shape[0] ** 0.5)


def model(rng, h=4, g=2, d=4, rope=True, norms=True, biases=(), gated=True, wide=10):
    """A layer of attention and one of a gate, behind an embedding."""

    def projection(name, count):
        W = weight(numbers(rng, wide, count * d))
        return (W + const(numbers(rng, count * d)) if name in biases else W) @ heads(count)

    def turned(count, name):
        behind = [rmsnorm(1e-3) @ diag(1 + numbers(rng, d).array)] * norms + [rotary(9, d, 50.0)] * rope
        found = projection(name, count)
        for each in behind:
            found = found @ each
        return found

    Q, K, V = turned(h, "q"), turned(g, "k"), projection("v", g)
    shared = repeat(h) if g != h else I

    def mix(x):
        k, v = x @ K @ shared, x @ V @ shared
        return (
            product((x @ Q) @ k.T * d**-0.5, v, over=softmax, where=sequence & causal)
            @ heads(h).T
            @ weight(numbers(rng, h * d, wide))
        )

    def feed(x):
        G, U = weight(numbers(rng, wide, 12)), weight(numbers(rng, wide, 12))
        if "g" in biases:
            G, U = G + const(numbers(rng, 12)), U + const(numbers(rng, 12))
        return (
            (x @ G @ silu) * (x @ U) @ weight(numbers(rng, 12, wide))
            if gated
            else x @ G @ relu @ weight(numbers(rng, 12, wide))
        )

    return weight(numbers(rng, 10, wide)) @ formula(lambda x: x + mix(x)) @ formula(lambda x: x + feed(x))


def program(operator, laws, machine=None, batch=RAGGED):
    return search(operator, laws, machine or Calls(), batch.extents(patterns(operator))).program({})[0]


def products(made):
    return [made.constants[step.operands["weight"]].shape for step in made.steps if step.kernel == "linear"]


CASES = {
    "LLaMA": dict(norms=False),
    "with norms": {},
    "no rotation": dict(rope=False, norms=False),
    "as many heads": dict(g=4),
    "one head of keys": dict(g=1),
    "biases of queries and keys": dict(biases="qk", norms=False),
    "all biases": dict(biases="qkvg"),
    "a bias of queries": dict(biases="q", norms=False),
}


@pytest.mark.deep(every=5)
@pytest.mark.parametrize("changed", CASES.values(), ids=CASES)
def test_queries_keys_and_values_are_one_product(rng, changed):
    """And a gate with what it multiplies; joined or apart, the program is the model."""
    operator = model(rng, **changed)
    g, wanted = changed.get("g", 2), dense(operator, RAGGED)
    joined, apart = program(operator, EXACT_LAWS), program(operator, APART)
    assert products(joined) == [(10, 4 * (4 + 2 * g)), (16, 10), (10, 24), (12, 10)] and len(products(apart)) >= 6
    assert len(joined.schedule.segments) == 1, "all of it is recorded: no kernel lacks"
    assert relative(joined.run(RAGGED), wanted) < 1e-6 and relative(apart.run(RAGGED), wanted) < 1e-6
    verify_steps(joined, [RAGGED])
    passes = [step for step in joined.steps if step.kernel == "pointwise" and "bias" in step.operands]
    assert len(passes) <= 1, "only a bias of values is added elsewhere, behind attention"


# a norm of a single head ends its product; with as
READ = {name: changed for name, changed in CASES.items() if "g" not in changed}
# many heads of keys as of queries, values are projected
# behind attention


@pytest.mark.deep(every=6)
@pytest.mark.parametrize("relation", ["last", "first"])
@pytest.mark.parametrize("changed", READ.values(), ids=READ)
def test_keys_and_values_are_one_product_where_few_queries_are_read(rng, changed, relation):
    """Queries are of the rows that were picked; keys and values are still of all rows, and joined."""
    operator = model(rng, **changed) @ pick(relation)
    batch = Batch([rng.integers(0, 10, 9) for _ in range(40)])
    made = program(operator, EXACT_LAWS, Round(), batch)
    all_rows = [
        made.constants[step.operands["weight"]].shape
        for step, call in zip(made.steps, made.schedule.calls, strict=True)
        if step.kernel == "linear" and call.shape.space == T
    ]
    assert "attend_once" in [step.kernel for step in made.steps] and all_rows == [(10, 16)]
    assert relative(made.run(batch), dense(operator, batch)) < 1e-6
    verify_steps(made, [batch])


def test_what_calls_are_cheap_for_stays_apart(rng):
    """Joined weights are offered, not forced: a gate that is joined takes a pass more."""
    made = program(model(rng), EXACT_LAWS, Round())
    assert (10, 24) not in products(made) and products(made).count((10, 12)) == 2


@pytest.mark.deep
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from([(4, 2), (3, 3), (6, 1), (2, 1)]),
    st.sampled_from([2, 4, 6]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "q", "qk", "qkv", "kv", "g"]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_every_member_of_a_graph_with_joined_products_agrees(sizes, d, rope, norms, biases, gated, seed):
    rng = np.random.default_rng(seed)
    operator = model(rng, *sizes, d, rope, norms, biases, gated)
    for part in parts(operator):
        for each in part.values():
            assert not check_graph(each.template, EXACT_LAWS)
    assert relative(program(operator, EXACT_LAWS).run(RAGGED), dense(operator, RAGGED)) < 1e-6


def test_bits_are_those_of_products_apart(rng):
    """A column of a joined product is the same sums in the same order."""
    operator = model(rng, wide=64, d=16, norms=False, gated=False)
    joined, apart = program(operator, EXACT_LAWS), program(operator, APART)
    assert len(products(joined)) == 4 and len(products(apart)) == 6
    assert np.array_equal(joined.run(RAGGED), apart.run(RAGGED))
