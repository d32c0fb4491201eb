"""Gradients of random small models of transformers, by torch.autograd in float64, beside those of their terms."""

import numpy as np
import pytest

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import gated_delta_rule, gated_linear_attention, heads, sigmoid, weight
from opmatrix.algebra.term import formula
from opmatrix.autodiff.pullback import pullback
from opmatrix.models import build, normalise_config

torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")

SIZES = dict(vocab_size=40, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=16)
IDS = [[3, 7, 1, 12, 39, 5, 5]]


def peer(family):
    """A random model of a family, in float64, without dropout."""
    torch.manual_seed(0)
    if family == "bert":
        config = transformers.BertConfig(**SIZES, intermediate_size=40)
        model = transformers.BertModel(config, add_pooling_layer=False)
    elif family == "gpt2":
        config = transformers.GPT2Config(vocab_size=40, n_embd=24, n_layer=2, n_head=4, n_positions=16)
        model = transformers.GPT2Model(config)
    else:
        config = transformers.LlamaConfig(**SIZES, intermediate_size=40, num_key_value_heads=2)
        model = in_double(transformers.LlamaModel(config))
    model = model.double().eval()
    with torch.no_grad():
        for each in model.parameters():
            each.add_(0.2 * torch.randn_like(each))
    return model


def in_double(model):
    """A LLaMA whose angles and norms are computed in float64: transformers rounds both to float32, whatever the model's
    number type is."""

    def angles(x, position_ids):
        d = model.config.hidden_size // model.config.num_attention_heads
        inverse = 1e4 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        both = torch.cat([position_ids[..., None] * inverse] * 2, -1)
        return both.cos(), both.sin()

    def norm_of(each):
        return lambda x: each.weight * x * (x.pow(2).mean(-1, keepdim=True) + each.variance_epsilon).rsqrt()

    model.rotary_emb.forward = angles
    for each in model.modules():
        if type(each).__name__ == "LlamaRMSNorm":
            each.forward = norm_of(each)
    return model


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_gradients_equal_autograd(family):
    """Of every parameter, to 1e-10 of its largest; what is kept changes no bit."""
    model = peer(family)
    config = {**model.config.to_dict(), "model_type": family}
    known = {name: value for name, value in config.items() if value is not None}
    normalise_config(known)
    state = {name: each.detach().numpy() for name, each in model.named_parameters()}
    term = build(known, lambda name, *_: Data(state[name], name))
    g = np.random.default_rng(0).normal(size=(len(IDS[0]), 24))
    out = model(torch.tensor(IDS)).last_hidden_state
    (out[0] * torch.from_numpy(g)).sum().backward()
    found = pullback(term, tokens=True).at(Batch(IDS), cotangent=g)
    np.testing.assert_allclose(found.value, out[0].detach().numpy(), atol=1e-10)
    assert found.arrays.keys() == state.keys()
    for name, each in model.named_parameters():
        wanted = each.grad.numpy()
        assert np.abs(found.arrays[name] - wanted).max() <= 1e-10 * max(np.abs(wanted).max(), 1), name
    for keep in ("full", "least"):
        again = pullback(term, tokens=True, keep=keep).at(Batch(IDS), cotangent=g)
        for name in state:
            np.testing.assert_array_equal(again.arrays[name], found.arrays[name])


@pytest.mark.parametrize("corrects", [False, True], ids=["linear attention", "the delta rule"])
def test_gradients_of_gated_states_equal_autograd(corrects):
    """Of two heads, as torch runs the recurrence row by row."""
    torch.manual_seed(0)
    names = dict(q=(6, 8), k=(6, 8), v=(6, 4), g=(6, 2)) | (dict(b=(6, 2)) if corrects else {})
    state = {name: torch.randn(shape, dtype=torch.float64, requires_grad=True) for name, shape in names.items()}
    x = torch.randn(7, 6, dtype=torch.float64, requires_grad=True)
    q, k, v, decays, *betas = ((x @ state[name]).reshape(7, 2, -1) for name in names)
    decays, betas = torch.sigmoid(decays), [torch.sigmoid(beta) for beta in betas]
    rows, kept = [], torch.zeros(2, 4, 2, dtype=torch.float64)
    for t in range(7):
        kept = (0 if t == 5 else decays[t, :, :, None]) * kept
        added = v[t]
        for beta in betas:
            added = beta[t] * (added - torch.einsum("hd,hde->he", k[t], kept))
        kept = kept + k[t, :, :, None] * added[:, None, :]
        rows.append(torch.einsum("hd,hde->he", q[t], kept).reshape(-1))
    g = torch.randn(7, 4, dtype=torch.float64)
    (torch.stack(rows) * g).sum().backward()
    W = {name: weight(Data(each.detach().numpy(), name)) for name, each in state.items()}

    def mixed(x):
        parts = [x @ W[name] @ heads(2) for name in "qkv"]
        passed = [x @ W[name] @ sigmoid @ heads(2) for name in ("bg" if corrects else "g")]
        return (gated_delta_rule if corrects else gated_linear_attention)(*parts, *passed) @ heads(2).T

    found = pullback(formula(mixed), x=6).at(x.detach().numpy(), Batch([[0] * 5, [0] * 2]), g.numpy())
    np.testing.assert_allclose(found.x, x.grad.numpy(), rtol=1e-10, atol=1e-10)
    for name, each in state.items():
        np.testing.assert_allclose(found.arrays[name], each.grad.numpy(), rtol=1e-10, atol=1e-10)
