"""Families of encoders in plain numpy, one sentence at a time, as their papers write them: `w` gives arrays by name."""

import numpy as np
from plain import GELU, GELU_NEW, attend, layernorm, linear

ACTS = dict(gelu=GELU, gelu_new=GELU_NEW, relu=lambda u: np.maximum(u, 0))
BERT = dict(
    layer="encoder.layer.{}",
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    output="attention.output.dense",
    norm1="attention.output.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    norm2="output.LayerNorm",
)
ALBERT = BERT | dict(
    query="attention.query",
    key="attention.key",
    value="attention.value",
    output="attention.dense",
    norm1="attention.LayerNorm",
    up="ffn",
    down="ffn_output",
    norm2="full_layer_layer_norm",
)
MPNET = BERT | dict(
    query="attention.attn.q",
    key="attention.attn.k",
    value="attention.attn.v",
    output="attention.attn.o",
    norm1="attention.LayerNorm",
)


def embedded(c, w, tokens, projection=None, first=0):
    """Tables that may be narrower than the model: Clark et al. 2020, section 3.2."""
    table = "embeddings.{}_embeddings.weight".format
    x = w[table("word")][tokens] + w[table("position")][first : first + len(tokens)]
    if table("token_type") in w:
        x = x + w[table("token_type")][0]
    x = layernorm(x, w, "embeddings.LayerNorm", c["layer_norm_eps"])
    return linear(x, w, projection) if projection else x


def block(c, w, x, names, name, act, bias=0.0):
    """Devlin et al. 2018: attention and a perceptron, normed behind each."""
    n, h, eps = len(x), c["num_attention_heads"], c["layer_norm_eps"]
    part = {key: f"{name}.{value}" for key, value in names.items()}
    q, k, v = (linear(x, w, part[of]).reshape(n, h, -1) for of in ("query", "key", "value"))
    x = layernorm(x + linear(attend(q, k, v, True, bias), w, part["output"]), w, part["norm1"], eps)
    return layernorm(x + linear(act(linear(x, w, part["up"])), w, part["down"]), w, part["norm2"], eps)


def bert(c, w, tokens, projection=None, names=BERT, first=0, bias=0.0):
    x = embedded(c, w, tokens, projection, first)
    for i in range(c["num_hidden_layers"]):
        x = block(c, w, x, names, names["layer"].format(i), ACTS[c.get("hidden_act", "gelu")], bias)
    return x


def albert(c, w, tokens):
    """Lan et al. 2020, section 3.1: layers of a group share all parameters; groups are as large as one another."""
    x = embedded(c, w, tokens, "encoder.embedding_hidden_mapping_in")
    count, groups = c["num_hidden_layers"], c["num_hidden_groups"]
    for i in range(count):
        for inner in range(c["inner_group_num"]):
            name = f"encoder.albert_layer_groups.{i * groups // count}.albert_layers.{inner}"
            x = block(c, w, x, ALBERT, name, GELU_NEW)
    return x


def mpnet(c, w, tokens):
    """Song et al. 2020: BERT with T5's buckets of 32, up to 128 tokens away."""
    n, table = len(tokens), w["encoder.relative_attention_bias.weight"]

    def bucket(apart):
        """Half of the buckets for keys behind the query; of these half for one distance each."""
        away = abs(apart)
        wide = 8 + int(np.log(max(away, 1) / 8) / np.log(16) * 8)
        return 16 * (apart > 0) + (away if away < 8 else min(wide, 15))

    bias = np.array([[table[bucket(j - i)] for j in range(n)] for i in range(n)]).transpose(2, 0, 1)
    return bert(c, w, tokens, names=MPNET, first=2, bias=bias)
