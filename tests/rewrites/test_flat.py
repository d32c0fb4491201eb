"""Models written out: tables behind matrices without numbers are looked up, rows of heads scale heads."""

import numpy as np
import pytest
from checkpoints import CONFIG
from searched import structure

from opmatrix import formula
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import I, cols, const, diag, given, heads, place, silu, weight
from opmatrix.models import build, tensors
from rewrites.laws import EXACT_LAWS

BATCH = Batch([[3, 4, 5, 6, 7], [8] * 9])
rng = np.random.default_rng(0)


def drawn(*shape):
    return rng.normal(size=shape).astype(np.float32)


TOKENS = weight(drawn(41, 24))


def right(model, laws):
    """The kernels of its program, whose rows are the model's."""
    program, _ = structure(model, laws, batch=BATCH).program({})
    found, wanted = program.run(BATCH), np.asarray(model(BATCH))
    wanted = wanted.swapaxes(0, 1) if wanted.ndim == 3 else wanted
    assert np.allclose(found.reshape(BATCH.rows, -1), wanted.reshape(BATCH.rows, -1), atol=1e-5)
    return {step.kernel for step in program.steps}


@pytest.mark.parametrize("laws", [(), EXACT_LAWS])
@pytest.mark.parametrize(
    "behind",
    [
        place(2, 66) @ weight(drawn(66, 24)),
        place(0, 64) @ weight(drawn(64, 24)),
        place(2, 66) @ weight(drawn(66, 1)),
        place(2, 66) @ place(3, 70) @ weight(drawn(70, 24)),
        cols(2, 30) @ weight(drawn(28, 24)),
        place(2, 66) @ weight(drawn(66, 24)) @ weight(drawn(24, 24)),
        place(2, 66) @ weight(drawn(66, 24)) @ diag(drawn(24)),
    ],
)
def test_a_table_behind_matrices_without_numbers_is_looked_up(behind, laws):
    assert "interpret" not in right(TOKENS + given("positions", 64) @ behind, laws)


@pytest.mark.parametrize("pad", [0, 1, 5])
def test_a_roberta_has_no_interpreted_step(pad):
    config = CONFIG | dict(model_type="roberta", max_position_embeddings=40, pad_token_id=pad)
    numbers = {name: drawn(*shape) for name, shape in tensors(config).items()}
    model = build(config, lambda name, *shape: Data(numbers[name], name))
    assert "interpret" not in right(model, EXACT_LAWS)


ROW = const(drawn(24)) @ heads(4)
HEADS = {
    "value * row": lambda x: x * ROW,
    "row * value": lambda x: ROW * x,
    "value + row": lambda x: x + ROW,
    "scaled twice": lambda x: x * ROW * ROW,
    "value - row": lambda x: x - ROW,
    "ones": lambda x: x * (const(np.ones(24)) @ heads(4)),
    "one number": lambda x: x * (const(drawn(4)) @ heads(4)),
    "entrywise": lambda x: (x * ROW) @ silu,
    "row of two": lambda x: x * (ROW + ROW),
}


@pytest.mark.parametrize("laws", [(), EXACT_LAWS])
@pytest.mark.parametrize("name", HEADS)
def test_heads_are_scaled_by_a_row_that_is_cut_into_heads(name, laws):
    right(TOKENS @ formula(lambda x: HEADS[name](x @ heads(4)) @ heads(4).T), laws)
    right(TOKENS @ formula(lambda x: HEADS[name](x @ heads(4))), laws)


def test_a_table_behind_numbers_stays_as_it_is():
    assert right(given("positions", 64) @ (I * 2.0) @ weight(drawn(64, 3)), EXACT_LAWS)
