"""Hidden states of random Mixtrals, Qwen2-MoEs and Qwen3-MoEs of transformers, of the files that it saves and of the
tensors that it holds, which are fused."""

import numpy as np
import pytest
from plain_experts import fused

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import Checkpoint
from opmatrix.models import build, tensors

torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")

LENGTHS, WORDS, POSITIONS = (1, 7, 33, 60), 90, 64
SIZES = dict(
    vocab_size=WORDS,
    max_position_embeddings=POSITIONS,
    rms_norm_eps=1e-5,
    hidden_size=48,
    intermediate_size=40,
    num_attention_heads=4,
    num_key_value_heads=2,
)
QWEN = SIZES | dict(moe_intermediate_size=24, num_experts=6, num_experts_per_tok=3)
PEERS = {
    "mixtral": ("Mixtral", SIZES | dict(num_hidden_layers=2, num_local_experts=5, num_experts_per_tok=2)),
    "mixtral, all": ("Mixtral", SIZES | dict(num_hidden_layers=2, num_local_experts=3, num_experts_per_tok=3)),
    "qwen2": ("Qwen2Moe", QWEN | dict(num_hidden_layers=2, shared_expert_intermediate_size=32)),
    "qwen2, sums to one, some dense": (
        "Qwen2Moe",
        QWEN
        | dict(
            num_hidden_layers=4,
            shared_expert_intermediate_size=32,
            norm_topk_prob=True,
            decoder_sparse_step=2,
            mlp_only_layers=[3],
        ),
    ),
    "qwen3": ("Qwen3Moe", QWEN | dict(num_hidden_layers=2, head_dim=16, norm_topk_prob=True)),
}


@pytest.fixture(scope="module", params=PEERS)
def peer(request):
    """Weights three times the size that training starts from, so that scores of routers are spread; gains about 1."""
    torch.manual_seed(0)
    kind, config = PEERS[request.param]
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**config)).eval()
    with torch.no_grad():
        for name, each in model.named_parameters():
            if "norm" in name:
                each.copy_(1 + 0.3 * torch.randn_like(each))
            else:
                each.copy_(3 * torch.randn_like(each) * (1 if "embed" in name else each.shape[-1] ** -0.5))
    return model


def states(model, batch):
    with torch.no_grad():
        return np.concatenate(
            [
                model.model(torch.from_numpy(row)[None]).last_hidden_state[0].numpy()
                for row in np.split(batch.tokens, batch.starts[1:-1])
            ]
        )


def relative(found, wanted):
    return np.abs(found - wanted).max() / np.abs(wanted).max()


def test_hidden_states_are_theirs(peer, rng, tmp_path):
    """Files have experts one by one; a row whose two best scores float32 tells apart otherwise than float64 would be
    far off, and there is none here."""
    batch = Batch([rng.integers(0, WORDS, length) for length in LENGTHS])
    peer.save_pretrained(tmp_path)
    checkpoint = Checkpoint.open(tmp_path)
    assert any(".experts.1." in name for name in checkpoint.tensors) and checkpoint.speaks
    model = build(checkpoint.config, checkpoint.at)
    assert relative(dense(model, batch), states(peer, batch)) < 1e-4


def test_their_tensors_are_ours(peer):
    """By name and shape, where those of gates and ups are halves of one; and either gives the same operator."""
    config, state = (
        peer.config.to_dict(),
        {name.removeprefix("model."): each for name, each in peer.state_dict().items()},
    )
    theirs = {name: tuple(each.shape) for name, each in state.items() if name != "lm_head.weight"}
    assert fused(tensors(config)) == theirs

    def at(name, *shape):
        for half, part in enumerate(("gate_proj", "up_proj")):
            if name.endswith(f"experts.{part}"):
                return Data(state[name.replace(part, "gate_up_proj")].chunk(2, 1)[half].numpy(), name)
        return Data(state[name].numpy(), name)

    assert build(config, at).out.cols == 48
