"""Families of encoders in plain numpy, one sentence at a time, as their papers write them: `w` gives arrays by name."""

import numpy as np
from plain import GELU, GELU_NEW, attend, layernorm, linear, turned

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


def deberta(c, w, tokens):
    """He et al. 2021, eq. 1 to 4: content to content, content to position, position to content, each over √(3 d), or
    √(2 d) of two; one bucket a distance, or those of version 3."""
    n, h, eps, table = len(tokens), c["num_attention_heads"], c["layer_norm_eps"], "embeddings.{}_embeddings.weight"
    types, most = [*c["pos_att_type"]], c["max_position_embeddings"]
    buckets = c.get("position_buckets", -1)
    span = buckets if buckets > 0 else most

    def bucket(apart):
        """One a distance up to half of the buckets, then ever wider ones."""
        mid, away = buckets // 2, abs(apart)
        if buckets > 0 and away > mid:
            apart = np.sign(apart) * (mid + int(np.ceil(np.log(away / mid) / np.log((most - 1) / mid) * (mid - 1))))
        return min(max(apart + span, 0), 2 * span - 1)

    at = np.array([[bucket(i - j) for j in range(n)] for i in range(n)])
    x = w[table.format("word")][tokens]
    for name, rows in (("position", np.arange(n)), ("token_type", 0)):
        if table.format(name) in w:
            x = x + w[table.format(name)][rows]
    x = x @ w["embeddings.embed_proj.weight"].T if "embeddings.embed_proj.weight" in w else x
    x = layernorm(x, w, "embeddings.LayerNorm", eps)
    places = w["encoder.rel_embeddings.weight"]
    if c.get("norm_rel_ebd") == "layer_norm":
        places = layernorm(places, w, "encoder.LayerNorm", eps)
    for i in range(c["num_hidden_layers"]):
        name = f"encoder.layer.{i}"
        of = lambda rows, part, name=name: linear(rows, w, f"{name}.attention.self.{part}_proj").reshape(
            len(rows), h, -1
        )
        q, k, v = (of(x, part) for part in ("query", "key", "value"))
        key, query = ("key", "query") if c.get("share_att_key") else ("pos_key", "pos_query")
        scores = np.einsum("ihd,jhd->hij", q, k)
        if "c2p" in types:
            scores += np.einsum("ihd,ijhd->hij", q, of(places, key)[at])
        if "p2c" in types:
            scores += np.einsum("jhd,ijhd->hij", k, of(places, query)[at])
        shares = np.exp(scores / np.sqrt(q.shape[2] * (1 + len(types))))
        mixed = np.einsum("hij,jhd->ihd", shares / shares.sum(-1, keepdims=True), v).reshape(n, -1)
        mixed = linear(mixed, w, f"{name}.attention.output.dense")
        x = layernorm(x + mixed, w, f"{name}.attention.output.LayerNorm", eps)
        inner = GELU(linear(x, w, f"{name}.intermediate.dense"))
        x = layernorm(x + linear(inner, w, f"{name}.output.dense"), w, f"{name}.output.LayerNorm", eps)
    return x


# ---- rotations, ALiBi and gated units


def norm(x, w, name, eps):
    """Ba et al. 2016, with a shift where there is one."""
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"]
    return x + w.get(f"{name}.bias", 0.0)


def frequencies(base, d):
    return float(base) ** (-np.arange(0, d, 2) / d)


def near(n, far):
    at = np.arange(n)
    return abs(at - at[:, None]) <= far


def modernbert(c, w, tokens, kinds=None):
    """Warner et al. 2024, section 2.1: every third layer sees the whole text, the others half of `local_attention` on
    each side, with a base of their own."""
    n, h, eps, f = len(tokens), c["num_attention_heads"], c["norm_eps"], c["intermediate_size"]
    d = c["hidden_size"] // h
    x = norm(w["embeddings.tok_embeddings.weight"][tokens], w, "embeddings.norm", eps)
    for i in range(c["num_hidden_layers"]):
        whole, l = i % 3 == 0 if kinds is None else kinds[i] == "full_attention", f"layers.{i}"
        turns = frequencies(c["global_rope_theta"] if whole else c["local_rope_theta"], d)
        seen = True if whole else near(n, c["local_attention"] // 2)
        normed = norm(x, w, f"{l}.attn_norm", eps) if i else x
        q, k, v = np.moveaxis(linear(normed, w, f"{l}.attn.Wqkv").reshape(n, 3, h, d), 1, 0)
        x = x + linear(attend(turned(q, turns), turned(k, turns), v, seen), w, f"{l}.attn.Wo")
        up = linear(norm(x, w, f"{l}.mlp_norm", eps), w, f"{l}.mlp.Wi")
        x = x + linear(GELU(up[:, :f]) * up[:, f:], w, f"{l}.mlp.Wo")
    return norm(x, w, "final_norm", eps)


def words(c, w, tokens, name="embeddings.LayerNorm"):
    """Embeddings without positions."""
    x = w["embeddings.word_embeddings.weight"][tokens]
    if "embeddings.token_type_embeddings.weight" in w:
        x = x + w["embeddings.token_type_embeddings.weight"][0]
    return norm(x, w, name, c.get("layer_norm_eps") or c.get("layer_norm_epsilon"))


SLOPES = {4: [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8], 3: [2.0**-4, 2.0**-8, 2.0**-2]} | {
    12: [2.0**-e for e in (1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5)]
}  # Press et al. 2022, by heads


def jina(c, w, tokens):
    """Günther et al. 2023, section 3: ALiBi on both sides; the first half of packed products is the gate."""
    n, h, eps, f = len(tokens), c["num_attention_heads"], c["layer_norm_eps"], c["intermediate_size"]
    at, act = np.arange(n), GELU if c.get("feed_forward_type", "geglu") == "geglu" else ACTS["relu"]
    bias = -np.array(SLOPES[h])[:, None, None] * abs(at - at[:, None])
    x = words(c, w, tokens)
    for l in (f"encoder.layer.{i}" for i in range(c["num_hidden_layers"])):
        q, k, v = (linear(x, w, f"{l}.attention.self.{part}") for part in ("query", "key", "value"))
        later = f"{l}.mlp.up_gated_layer.weight" in w
        if later:  # norms over all heads, the gate behind, other names
            q, k = (norm(y, w, f"{l}.attention.self.layer_norm_{part}", eps) for part, y in (("q", q), ("k", k)))
        q, k, v = (y.reshape(n, h, -1) for y in (q, k, v))
        y = x + linear(attend(q, k, v, True, bias), w, f"{l}.attention.output.dense")
        y = norm(y, w, f"{l}.attention.output.LayerNorm", eps)
        x = norm(x + y, w, f"{l}.layer_norm_1", eps) if later else y
        first, second = np.split(linear(x, w, f"{l}.mlp.{'up_gated_layer' if later else 'gated_layers'}"), [f], 1)
        unit = first * act(second) if later else act(first) * second
        x = x + linear(unit, w, f"{l}.mlp.{'down_layer' if later else 'wo'}")
        x = norm(x, w, f"{l}.layer_norm_2" if later else f"{l}.mlp.layernorm", eps)
    return x


def nomic(c, w, tokens, h=3, layers=2, base=1000.0, act=lambda u: u / (1 + np.exp(-u))):
    """Nussbaum et al. 2024, section 3.1."""
    n, eps = len(tokens), c.get("layer_norm_eps") or c["layer_norm_epsilon"]
    x = words(c, w, tokens, "emb_ln")
    turns = frequencies(base, x.shape[1] // h)
    for l in (f"encoder.layers.{i}" for i in range(layers)):
        q, k, v = np.moveaxis(linear(x, w, f"{l}.attn.Wqkv").reshape(n, 3, h, -1), 1, 0)
        x = x + linear(attend(turned(q, turns), turned(k, turns), v, True), w, f"{l}.attn.out_proj")
        x = norm(x, w, f"{l}.norm1", eps)
        unit = linear(x, w, f"{l}.mlp.fc11") * act(linear(x, w, f"{l}.mlp.fc12"))
        x = norm(x + linear(unit, w, f"{l}.mlp.fc2"), w, f"{l}.norm2", eps)
    return x


def nomic_experts(c, w, tokens):
    """Nussbaum, Duderstadt 2025, section 3: in every second layer a row goes through the two experts of the largest
    shares, which do not sum to one; one row is added behind them."""
    n, h, eps, f, few = len(tokens), c["n_head"], c["layer_norm_epsilon"], c["n_inner"], c["moe_top_k"]
    x = words(c, w, tokens, "emb_ln")
    for i in range(c["n_layer"]):
        l = f"encoder.layers.{i}"
        q, k, v = np.moveaxis(linear(x, w, f"{l}.attn.Wqkv").reshape(n, 3, h, -1), 1, 0)
        turns = frequencies(c["rotary_emb_base"], q.shape[2])
        mixed = linear(attend(turned(q, turns), turned(k, turns), v, True), w, f"{l}.attn.out_proj")
        x = norm(x + mixed, w, f"{l}.norm1", eps)
        if i % c["moe_every_n_layers"] != 1:
            unit = linear(GELU(linear(x, w, f"{l}.mlp.fc1")), w, f"{l}.mlp.fc2")
        else:
            scores = np.exp(linear(x, w, f"{l}.mlp.router.layer"))
            shares = scores / scores.sum(1, keepdims=True)
            unit = np.tile(w[f"{l}.mlp.experts.bias"], (n, 1))
            first, second = (w[f"{l}.mlp.experts.mlp.{part}"].reshape(-1, f, x.shape[1]) for part in ("w1", "w2"))
            for row, share, y in zip(unit, shares, x, strict=True):
                best = np.argsort(-share)[:few]
                weights = share[best] / (share[best].sum() if c["moe_normalize_expert_weights"] else 1)
                for expert, weight in zip(best, weights, strict=True):
                    row += weight * (GELU(y @ first[expert].T) @ second[expert])
        x = norm(x + unit, w, f"{l}.norm2", eps)
    return x


def gte(c, w, tokens, turns=None):
    """Zhang et al. 2024, section 3: the second half of packed products is the gate."""
    n, h, eps, f = len(tokens), c["num_attention_heads"], c["layer_norm_eps"], c["intermediate_size"]
    x = words(c, w, tokens)
    if turns is None:
        turns = frequencies(160000, c["hidden_size"] // h)
    for l in (f"encoder.layer.{i}" for i in range(c["num_hidden_layers"])):
        q, k, v = np.moveaxis(linear(x, w, f"{l}.attention.qkv_proj").reshape(n, 3, h, -1), 1, 0)
        x = x + linear(attend(turned(q, turns), turned(k, turns), v, True), w, f"{l}.attention.o_proj")
        x = norm(x, w, f"{l}.attn_ln", eps)
        up, gate = np.split(linear(x, w, f"{l}.mlp.up_gate_proj"), [f], 1)
        x = norm(x + linear(up * GELU(gate), w, f"{l}.mlp.down_proj"), w, f"{l}.mlp_ln", eps)
    return x


def gemma(c, w, tokens, kinds, scale):
    """Gemma Team 2025, section 2: norms of 1 + w before and behind each part; rows of tokens are scaled."""
    n, h, g, d = len(tokens), c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    at, both = np.arange(n), c.get("use_bidirectional_attention")

    def rooted(x, name):
        gain = (w[f"{name}.weight"].astype(np.float32) + np.float32(1)).astype(np.float64)  # as files are read
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + c["rms_norm_eps"]) * gain

    x = w["embed_tokens.weight"][tokens] * scale
    for i, kind in enumerate(kinds):
        l, base = f"layers.{i}", c["rope_theta"] if kind == "full" else c["rope_local_base_freq"]
        far = n if kind == "full" else c["sliding_window"] // 2 + 1 if both else c["sliding_window"]
        seen = (abs(at - at[:, None]) < far) & (both or at <= at[:, None])
        normed = rooted(x, f"{l}.input_layernorm")
        q, k, v = (linear(normed, w, f"{l}.self_attn.{part}_proj").reshape(n, -1, d) for part in "qkv")
        assert q.shape[1] == h and v.shape[1] == g
        q, k = (
            turned(rooted(y, f"{l}.self_attn.{part}_norm"), frequencies(base, d)) for part, y in (("q", q), ("k", k))
        )
        mixed = attend(q * np.sqrt(d / c["query_pre_attn_scalar"]), k, v, seen)
        x = x + rooted(linear(mixed, w, f"{l}.self_attn.o_proj"), f"{l}.post_attention_layernorm")
        normed = rooted(x, f"{l}.pre_feedforward_layernorm")
        up = GELU_NEW(linear(normed, w, f"{l}.mlp.gate_proj")) * linear(normed, w, f"{l}.mlp.up_proj")
        x = x + rooted(linear(up, w, f"{l}.mlp.down_proj"), f"{l}.post_feedforward_layernorm")
    return rooted(x, "norm")
