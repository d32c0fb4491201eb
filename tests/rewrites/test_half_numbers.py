"""Models stored in half numbers are searched as fast as others: layers are shared, and products of weights are not
made."""

import numpy as np
import pytest
from checkpoints import NUMBERS
from searched import structure

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import I, cols, heads, weight
from opmatrix.models import build, tensors
from rewrites.laws.kinds import adjoint, as_array, by_head, joined
from rewrites.lowering import lower
from rewrites.lowering.half_numbers import exactly_half, has_half
from rewrites.search import search

CONFIG = dict(model_type="gpt2", vocab_size=50, n_embd=96, n_layer=4, n_head=3, n_positions=64)
NARROWED = {
    "F32": lambda x: x,
    "F16": lambda x: NUMBERS["F16"](x).astype(np.float32),
    "BF16": lambda x: (NUMBERS["BF16"](x).astype(np.uint32) << 16).view(np.float32),
}


def gpt2(number, seed=0):
    rng = np.random.default_rng(seed)
    numbers = {
        name: NARROWED[number](rng.normal(size=shape).astype(np.float32)) for name, shape in tensors(CONFIG).items()
    }
    return build(CONFIG, lambda name, *shape: Data(numbers[name], name))


@pytest.fixture
def counted(monkeypatch):
    """Count problems that are solved, and matrices that are made, in a search."""
    count = {"solve": 0, "matrix": 0}

    def counting(module, name):
        plain = getattr(module, name)

        def called(*args, **named):
            count[name] += 1
            return plain(*args, **named)

        monkeypatch.setattr(module, name, called)

    counting(search, "solve")
    counting(lower.Lowering, "matrix")
    return count


@pytest.mark.parametrize("number", NARROWED)
def test_layers_of_half_numbers_are_solved_once_and_their_products_not_made(counted, number):
    found = structure(gpt2(number), batch=Batch([[3, 4, 5, 6, 7]]))
    assert counted == {"solve": {"BF16": 4}.get(number, 3), "matrix": 0}
    assert found.cost > 0


rng = np.random.default_rng(7)
HALF = rng.normal(size=(6, 12)).astype(np.float16).astype(np.float32)
WIDE = rng.normal(size=(6, 12)).astype(np.float32)
SQUARE = rng.normal(size=(12, 6)).astype(np.float16).astype(np.float32)
STACK = rng.normal(size=(3, 6, 4)).astype(np.float16).astype(np.float32)
ONE_OFF = np.where(np.arange(12) == 11, WIDE, HALF)
TALL = np.where(np.arange(200)[:, None] == 150, 1 / 3, np.ones((200, 5), np.float32))
ODD = np.float32([[3, 5, 7], [9, 11, 13]])


@pytest.mark.parametrize(
    "term, half",
    [
        (weight(HALF), True),
        (weight(WIDE), False),
        (adjoint(weight(HALF)), True),
        (weight(STACK), True),
        (weight(HALF) @ heads(3), True),
        (weight(WIDE) @ heads(3), False),
        (weight(HALF) @ cols(2, 7, 12), True),
        (cols(4, 16, 20) @ heads(3) @ adjoint(weight(HALF) @ heads(3)), True),
        (by_head(weight(SQUARE), 3), True),
        (joined(weight(HALF), weight(HALF) @ cols(0, 4, 12)), True),
        (joined(weight(HALF), weight(WIDE)), False),
        (weight(ONE_OFF) @ cols(0, 11, 12), True),
        (weight(ONE_OFF), False),
        (weight(TALL), False),
        (weight(HALF) @ weight(SQUARE), False),
        (weight(HALF) @ weight(np.eye(12)), True),
        (weight(ODD) @ weight(np.float32([[1, 2], [4, 8], [3, 1]])), True),
        (weight(HALF) @ (I * 2.0), True),
        (weight(HALF) @ (I * 2.0**-20), False),
        (weight(HALF) + weight(HALF), None),
        (weight(1e6 * ODD), False),
        ((I * np.ones(6)) @ weight(HALF), True),
        ((I * WIDE[:, 0]) @ weight(HALF), False),
    ],
)
def test_half_numbers_are_known_of_a_matrix_that_is_not_made(term, half):
    found = has_half(term)
    assert found is exactly_half(np.asarray(as_array(term), np.float32)) and half in (found, None)
