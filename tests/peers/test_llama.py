"""Hidden states of random LLaMAs of transformers: rotary positions, norms of roots, gated silu, grouped queries."""

import numpy as np
import pytest
from searched import Round

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.oracles import dense
from opmatrix.models import build, tensors
from rewrites.run import optimize

torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")

LENGTHS, WORDS, POSITIONS = (1, 7, 33, 60), 90, 64
SHAPES = [
    dict(hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2),
    dict(
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=1,
        rope_theta=5e5,
    ),
    dict(
        hidden_size=96,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=6,
        head_dim=8,
    ),
]
OURS = {
    "self_attn.q_proj": "query",
    "self_attn.k_proj": "key",
    "self_attn.v_proj": "value",
    "self_attn.o_proj": "output",
    "mlp.up_proj": "up",
    "mlp.gate_proj": "gate",
    "mlp.down_proj": "down",
    "input_layernorm": "norm1",
    "post_attention_layernorm": "norm2",
}


def peer(shape, seed):
    """A LLaMA of random weights: three times the size that training starts from, gains about 1."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(vocab_size=WORDS, max_position_embeddings=POSITIONS, rms_norm_eps=1e-5, **shape)
    model = transformers.LlamaModel(config).eval()
    with torch.no_grad():
        for name, each in model.named_parameters():
            if "norm" in name:
                each.copy_(1 + 0.3 * torch.randn_like(each))
            else:
                each.copy_(3 * torch.randn_like(each) * (1 if "embed" in name else each.shape[1] ** -0.5))
    return model


def ours(model):
    """The same as an operator, by the names that opmatrix has."""
    c = model.config
    config = dict(
        model_type="transformer",
        vocab_size=WORDS,
        max_position_embeddings=POSITIONS,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_hidden_layers,
        num_key_value_heads=c.num_key_value_heads,
        num_attention_heads=c.num_attention_heads,
        head_dim=c.head_dim,
        norm="rms",
        norm_eps=c.rms_norm_eps,
        pre_norm=True,
        hidden_act="silu",
        gated=True,
        bias=False,
        mask="sequence & causal",
        positions="rotary",
        rope_theta=getattr(c, "rope_theta", None) or c.rope_parameters["rope_theta"],
    )
    found = {"tokens": "embed_tokens.weight", "norm.weight": "norm.weight"}
    found |= {
        f"layer.{i}.{mine}.weight": f"layers.{i}.{theirs}.weight"
        for i in range(c.num_hidden_layers)
        for theirs, mine in OURS.items()
    }
    state = model.state_dict()
    assert tensors(config).keys() == found.keys() and {*found.values()} == state.keys()
    return build(config, lambda name, *shape: Data(state[found[name]].numpy(), name))


def states(model, batch):
    with torch.no_grad():
        return np.concatenate(
            [
                model(torch.from_numpy(row)[None]).last_hidden_state[0].numpy()
                for row in np.split(batch.tokens, batch.starts[1:-1])
            ]
        )


def relative(found, wanted):
    return np.abs(found - wanted).max() / np.abs(wanted).max()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_hidden_states_are_those_of_transformers(rng, shape, laws_known):
    """In float64, and those of the exact program, none of whose steps is read as a term. transformers takes its angles
    and norms in float32 whatever its weights are: what float64 is closer to than 1e-5 is the numpy of
    tests/rewrites/test_transformer.py."""
    model = peer(shape, 0)
    operator, batch = ours(model), Batch([rng.integers(0, WORDS, length) for length in LENGTHS])
    assert relative(dense(operator, batch), states(model.double(), batch)) < 1e-5
    wanted = states(model.float(), batch)
    exact = (
        optimize(operator, workload=batch, error=0, number_type="float32", rounds=3, machine=Round()).points[0].program
    )
    assert relative(exact.run(batch), wanted) < 1e-5
    assert len(exact.schedule.segments) == 1 and "interpret" not in [step.kernel for step in exact.steps]
