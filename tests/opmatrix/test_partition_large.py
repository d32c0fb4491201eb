"""A dense model of 61 layers of the widths of DeepSeek-V3: its formulas are small, as alike layers are split once, and
at its sizes they are what its numbers say."""

import tracemalloc

import pytest
import sympy

from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.algebra.shapes import size
from opmatrix.models import promised
from opmatrix.parallel.sharding.axis_states import even
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import partition

LAYERS, WIDTH, INNER, HEADS, TOKENS, POSITIONS = 61, 7168, 18432, 128, 129280, 4096
DEEP = dict(
    model_type="llama",
    vocab_size=TOKENS,
    hidden_size=WIDTH,
    intermediate_size=INNER,
    rms_norm_eps=1e-6,
    num_attention_heads=HEADS,
    num_key_value_heads=HEADS,
    num_hidden_layers=LAYERS,
    max_position_embeddings=POSITIONS,
)
LAYER = 4 * WIDTH**2 + 3 * WIDTH * INNER  # numbers of its weights
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def traced():
    """A plan, all of its formulas, and the bytes that Python held at most for them."""
    tracemalloc.start()
    try:
        plan = partition(promised(DEEP), Mesh.of(d=(8, "zero3"), t=(8, "sequence-vocabulary")))
        formulas = [
            plan.flops(),
            plan.state(),
            *plan.held(),
            *(each for _, found in plan.crossings() for each in (found.payload, found.wire, found.messages)),
        ]
        return plan, formulas, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_formulas_are_small(traced):
    _, formulas, most = traced
    assert most < 200 * MEGABYTE
    assert len(formulas) < 200 and max(each.count_ops() for each in formulas) < 2000


def test_layers_that_are_alike_are_split_once(traced):
    plan, _, _ = traced
    assert len({id(split) for split in plan.splits.values()}) < 10 and len(plan.splits) > 2 * LAYERS
    assert sum(part.count for part in plan.stages[0]) == len(plan.chain)


def test_formulas_are_those_of_its_numbers(traced):
    """A 64th of the operations and of the weights; an 8th of what tensor parallelism copies: norms, tables of
    angles."""
    _, (flops, state, *_), _ = traced
    b, s = size("b"), size("s")
    layers = LAYERS * (2 * b * s * LAYER + 4 * b * s**2 * WIDTH)
    assert sympy.expand(even(flops) - layers / 64) == 0
    cut, copied = LAYERS * LAYER + TOKENS * WIDTH, (2 * LAYERS + 1) * WIDTH + POSITIONS * (WIDTH // HEADS)
    assert 64 * even(state) == 2 * (cut + 8 * copied)


def test_stages_share_what_is_alike():
    """61 layers on 4 stages: 16, 15, 15 and 15; each hands on what one rank holds."""
    plan = partition(promised(DEEP), Mesh.of(p=(4, "pipeline"), t=(8, "tensor")), BatchSizes(1, POSITIONS))
    per_layer = (2 * POSITIONS * LAYER + 4 * POSITIONS**2 * WIDTH) // 8
    assert [even(plan.flops(stage)) / per_layer for stage in range(4)] == [16, 15, 15, 15]
    sends = [[each.payload for _, each in plan.crossings(stage) if each.op == "send"] for stage in range(4)]
    assert sends == [[POSITIONS * WIDTH]] * 3 + [[]]
