"""BERT is what the paper says: a product of operator matrices equal to plain numpy, for any configuration."""

import numpy as np
import pytest
from random_models import random_config
from scipy.special import erf
from tiny_config import CONFIG

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense, entrywise, factors
from opmatrix.algebra.term import Data
from opmatrix.models import build, tensors

ACTIVATIONS = dict(
    gelu=lambda u: u * (1 + erf(u / np.sqrt(2))) / 2,
    relu=lambda u: np.maximum(u, 0),
    silu=lambda u: u / (1 + np.exp(-u)),
    tanh=np.tanh,
    gelu_new=lambda u: u * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u**3))) / 2,
)


def plain(config, weights, tokens, kinds):
    """One sentence through BERT, written as in Devlin et al. 2018, with arrays alone."""
    w, heads, n = (lambda name: weights[name].array), config["num_attention_heads"], len(tokens)

    def linear(x, name):
        return x @ w(f"{name}.weight").T + w(f"{name}.bias")

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["layer_norm_eps"]) * w(f"{name}.weight") + w(
            f"{name}.bias"
        )

    table = "embeddings.{}_embeddings.weight".format
    x = norm(
        w(table("word"))[tokens] + w(table("position"))[:n] + w(table("token_type"))[kinds], "embeddings.LayerNorm"
    )
    for layer in (f"encoder.layer.{i}" for i in range(config["num_hidden_layers"])):
        q, k, v = (
            linear(x, f"{layer}.attention.self.{part}").reshape(n, heads, -1).swapaxes(0, 1)
            for part in ("query", "key", "value")
        )
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
        if config.get("is_decoder"):
            scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (p / p.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(n, -1)
        x = norm(x + linear(mixed, f"{layer}.attention.output.dense"), f"{layer}.attention.output.LayerNorm")
        up = ACTIVATIONS[config["hidden_act"]](linear(x, f"{layer}.intermediate.dense"))
        x = norm(x + linear(up, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    return x


@pytest.mark.parametrize(
    "change",
    [
        {},
        dict(hidden_act="relu"),
        dict(hidden_act="gelu_new"),
        dict(hidden_act="silu"),
        dict(is_decoder=True),
        dict(num_attention_heads=1, num_hidden_layers=3),
        dict(num_hidden_layers=0),
        dict(layer_norm_eps=0.5),
        dict(hidden_size=8, num_attention_heads=4, intermediate_size=5, type_vocab_size=3),
        dict(position_embedding_type="absolute"),
    ],
    ids=str,
)
def test_bert_is_plain_numpy(change, weights):
    config = CONFIG | change
    batch = Batch([[3, 1, 4, 1], [9, 2, 6]], [[0, 1, 1, 0], [1, 0, 1]])
    model = build(config, weights)
    found = dense(model, batch)
    wanted = np.concatenate([plain(config, weights.made, one.tokens, one.kinds) for one in batch])
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(entrywise(model, batch)[0].astype(float), wanted, rtol=1e-11, atol=1e-12)


def test_the_spine_shows_the_layers(small, weights):
    """Embeddings, their norm, then for each layer a residual attention and a residual feed-forward, with norms."""
    spine = [small]
    while spine[-1].kind.name == "compose":
        spine[-1:] = [spine[-1].args[1], spine[-1].args[0]]
    assert len(spine) == 4 and spine[-1].into.cols == 11  # last layer, first layer, norm, embeddings
    assert spine[2].into.cols == 6 and all(spine[k].into.cols == 6 and "attention" in str(spine[k]) for k in (0, 1))
    assert [f.out.cols for f in factors(small)] == [6] * 10


def test_tensors_are_derived_from_the_model():
    found = tensors(CONFIG)
    assert len(found) == 5 + 2 * 16
    assert found["embeddings.word_embeddings.weight"] == (11, 6) and found["embeddings.LayerNorm.bias"] == (6,)
    assert found["encoder.layer.1.intermediate.dense.weight"] == (10, 6) and found[
        "encoder.layer.1.output.dense.weight"
    ] == (6, 10)


def test_a_large_model_needs_no_weights_to_have_shapes():
    n, f, vocabulary = 1024, 4096, 30522
    large = CONFIG | dict(
        hidden_size=n, intermediate_size=f, num_attention_heads=16, num_hidden_layers=48, vocab_size=vocabulary
    )
    layer = 4 * (n * n + n) + (n * f + f) + (f * n + n) + 4 * n
    assert sum(int(np.prod(shape)) for shape in tensors(large).values()) == (vocabulary + 7 + 2 + 2) * n + 48 * layer


def test_promised_weights_have_no_numbers():
    from opmatrix.algebra.data import Promised

    model = build(CONFIG, lambda name, *shape: Promised(name, shape))
    assert model.out.cols == 6 and model is build(CONFIG, lambda name, *shape: Promised(name, shape))
    with pytest.raises(TypeError, match=r"is not loaded: only its shape \(11, 6\) is known"):
        dense(model, Batch([[1, 2]]))


def test_layers_with_equal_weights_are_one_node():
    rng, made = np.random.default_rng(0), {}

    def shared(name, *shape):
        return made.setdefault(name.replace("layer.1", "layer.0"), Data(rng.normal(size=shape), name))

    first, second = list(factors(build(CONFIG, shared)))[2:6], list(factors(build(CONFIG, shared)))[6:]
    assert all(a is b for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(model_type="gpt9"), "model_type is 'gpt9': it must be one of bert, "),
        (dict(model_type=None), "model_type is null: it must be one of bert, "),
        (dict(hidden_act="swiglu"), "hidden_act is 'swiglu': it must be one of gelu, "),
        (
            dict(position_embedding_type="relative_key"),
            "position_embedding_type is 'relative_key': it must be absolute",
        ),
        (dict(num_attention_heads=4), "num_attention_heads is 4: it must be a divisor of hidden_size, 6"),
    ],
)
def test_what_is_no_bert_is_refused(change, words, weights):
    with pytest.raises((InputError, TypeError), match=words):
        build(CONFIG | change, weights)


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size", "layer_norm_eps"])
def test_a_missing_key_is_named(key, weights):
    with pytest.raises(InputError, match=f"config: '{key}' is missing"):
        build({k: v for k, v in CONFIG.items() if k != key}, weights)


def test_every_family_builds_from_what_it_promises():
    """A family says each name once: what it asks for is what `tensors` lists."""
    for family in ("bert", "transformer"):  # the others: test_families.py
        asked = []

        def at(name, *shape):
            asked.append(name)  # noqa: B023
            return Data(np.ones(shape), name)

        config = (CONFIG if family == "bert" else random_config(np.random.default_rng(0))) | {"model_type": family}
        build(config, at)
        assert list(tensors(config)) == asked and len(set(asked)) == len(asked)


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("act", ["gelu", "relu", "gelu_new"])
def test_bert_is_transformers_bert(act):
    torch = pytest.importorskip("torch", reason="needs peers: torch, transformers")
    transformers = pytest.importorskip("transformers", reason="needs peers: torch, transformers")
    torch.manual_seed(0)
    config = CONFIG | dict(
        hidden_act=act, hidden_size=24, intermediate_size=40, initializer_range=0.5, max_position_embeddings=12
    )
    peer = (
        transformers.BertModel(
            transformers.BertConfig(
                **{k: v for k, v in config.items() if k != "model_type"}, attn_implementation="eager"
            )
        )
        .double()
        .eval()
    )
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.normal_(0, 0.5)  # gains and biases too
    state = {name: tensor.numpy() for name, tensor in peer.state_dict().items()}
    model = build(config, lambda name, *shape: Data(state[name].reshape(shape), name))
    batch = Batch([[3, 1, 4, 1, 5, 9], [2, 6]], [[0, 0, 1, 1, 0, 1], [1, 0]])
    with torch.no_grad():
        wanted = [
            peer(torch.tensor(one.tokens)[None], token_type_ids=torch.tensor(one.kinds)[None]).last_hidden_state[0]
            for one in batch
        ]
    np.testing.assert_allclose(dense(model, batch), np.concatenate(wanted), rtol=1e-10, atol=1e-10)
    assert {name for name in state if not name.startswith("pooler.") and name != "embeddings.position_ids"} == set(
        tensors(config)
    )
