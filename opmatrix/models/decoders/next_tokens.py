"""Multi-token prediction (DeepSeek-AI 2024, DeepSeek-V3, section 2.2): behind a model stand modules, each of which
predicts a token further. A module joins the rows of the one before it with those of the next token, goes through a
layer of its own, and shares the model's table and head."""

from functools import reduce
from operator import matmul

from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.operators import diag, heads, rmsnorm, weight
from opmatrix.algebra.oracles import factors
from opmatrix.algebra.shapes import LiveSize
from opmatrix.algebra.term import Operator
from opmatrix.models import normalise_config, promised, spelling
from opmatrix.models.config import Settings

NEXT_TOKEN_MODULES = "num_nextn_predict_layers"  # their number in a config
DENSE_FIRST = "first_k_dense_replace"  # layers without experts, of which a module has none


def next_token_module(config: Settings) -> Operator:
    """Return a module of a decoder, with weights of which only names and shapes are known, from rows of 2 n columns,
    features beside the next token's, to features (T, n), without the norm before the head. Its layer is of the kind of
    the model's last. Raises InputError as `promised` does."""
    one = {**config, spelling(config, "num_hidden_layers"): 1, NEXT_TOKEN_MODULES: 0}
    if DENSE_FIRST in one:
        one[DENSE_FIRST] = 0
    sizes = normalise_config(config)
    n = sizes["hidden_size"]

    def at(name: str, *shape: LiveSize) -> Data:
        """Promise an array of the module."""
        return Promised(f"next.{name}", shape)

    normed = heads(2) @ rmsnorm(sizes["rms_norm_eps"]) @ heads(2).T @ diag(at("norms.weight", 2 * n))
    _, *layer, _ = factors(promised(one))  # between the table and the norm
    return reduce(matmul, [normed @ weight(at("eh_proj.weight", n, 2 * n).T), *layer])
