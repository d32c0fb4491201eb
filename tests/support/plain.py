"""Families of transformers in plain numpy, one sentence at a time, as their papers write them: `w` gives arrays by
name."""

import numpy as np
from scipy.special import erf

GELU = lambda u: u * (1 + erf(u / np.sqrt(2))) / 2
GELU_NEW = lambda u: u * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u**3))) / 2
SILU = lambda u: u / (1 + np.exp(-u))


def layernorm(x, w, name, eps):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"] + w[f"{name}.bias"]


def rmsnorm(x, w, name, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"]


def linear(x, w, name):
    found = x @ w[f"{name}.weight"].T
    return found + w[f"{name}.bias"] if f"{name}.bias" in w else found


def attend(q, k, v, seen, bias=0.0, sinks=None):
    """(rows, heads, columns) each; a head of keys serves as many heads of queries as there are to one. `sinks`: a score
    more of each head, which no value follows."""
    shared = q.shape[1] // k.shape[1]
    s = np.einsum("ihd,jhd->hij", q, k.repeat(shared, 1)) / np.sqrt(q.shape[2]) + bias
    s = np.where(seen, s, -np.inf)
    if sinks is not None:
        s = np.concatenate([s, np.broadcast_to(sinks[:, None, None], (*s.shape[:2], 1))], -1)
    p = np.exp(s - s.max(-1, keepdims=True))
    p = (p / p.sum(-1, keepdims=True))[..., : len(k)]
    mixed = np.einsum("hij,jhd->ihd", p, v.repeat(shared, 1))
    return mixed.reshape(len(q), -1)


def turned(x, frequencies, scale=1.0):
    """By halves, the columns behind them as they are."""
    k = len(frequencies)
    angles = np.outer(np.arange(len(x)), frequencies)[:, None]
    cos, sin, a, b = scale * np.cos(angles), scale * np.sin(angles), x[..., :k], x[..., k : 2 * k]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos, x[..., 2 * k :]], -1)


def roberta(c, w, tokens, first=2):
    """Devlin et al. 2018, section 3; positions begin at row `first` of their table (Liu et al. 2019)."""
    n, h, eps = len(tokens), c["num_attention_heads"], c["layer_norm_eps"]
    table = "embeddings.{}_embeddings.weight".format
    x = w[table("word")][tokens] + w[table("position")][first : first + n] + w[table("token_type")][0]
    x = layernorm(x, w, "embeddings.LayerNorm", eps)
    for l in (f"encoder.layer.{i}" for i in range(c["num_hidden_layers"])):
        q, k, v = (linear(x, w, f"{l}.attention.self.{part}").reshape(n, h, -1) for part in ("query", "key", "value"))
        x = x + linear(attend(q, k, v, True), w, f"{l}.attention.output.dense")
        x = layernorm(x, w, f"{l}.attention.output.LayerNorm", eps)
        x = x + linear(GELU(linear(x, w, f"{l}.intermediate.dense")), w, f"{l}.output.dense")
        x = layernorm(x, w, f"{l}.output.LayerNorm", eps)
    return x


def distilbert(c, w, tokens):
    """Sanh et al. 2019: the same, but for kinds of tokens."""
    n, h = len(tokens), c["n_heads"]
    x = w["embeddings.word_embeddings.weight"][tokens] + w["embeddings.position_embeddings.weight"][:n]
    x = layernorm(x, w, "embeddings.LayerNorm", 1e-12)
    for l in (f"transformer.layer.{i}" for i in range(c["n_layers"])):
        q, k, v = (linear(x, w, f"{l}.attention.{part}_lin").reshape(n, h, -1) for part in "qkv")
        x = layernorm(x + linear(attend(q, k, v, True), w, f"{l}.attention.out_lin"), w, f"{l}.sa_layer_norm", 1e-12)
        x = layernorm(
            x + linear(GELU(linear(x, w, f"{l}.ffn.lin1")), w, f"{l}.ffn.lin2"), w, f"{l}.output_layer_norm", 1e-12
        )
    return x


def gpt2(c, w, tokens, unit=None):
    """Radford et al. 2019, section 2.3. Weights are [in, out]. `unit` is in place of the perceptrons."""
    n, h, eps = len(tokens), c["n_head"], c["layer_norm_epsilon"]
    seen = np.tri(n, dtype=bool)
    onward = lambda x, name: x @ w[f"{name}.weight"] + w[f"{name}.bias"]
    x = w["wte.weight"][tokens] + w["wpe.weight"][:n]
    if unit is None:
        unit = lambda x, i, name: onward(GELU_NEW(onward(x, f"{name}.c_fc")), f"{name}.c_proj")
    for i, l in enumerate(f"h.{i}" for i in range(c["n_layer"])):
        q, k, v = np.split(onward(layernorm(x, w, f"{l}.ln_1", eps), f"{l}.attn.c_attn"), 3, axis=1)
        mixed = attend(q.reshape(n, h, -1), k.reshape(n, h, -1), v.reshape(n, h, -1), seen)
        x = x + onward(mixed, f"{l}.attn.c_proj")
        x = x + unit(layernorm(x, w, f"{l}.ln_2", eps), i, f"{l}.mlp")
    return layernorm(x, w, "ln_f", eps)


def bloom(c, w, tokens):
    """Scao et al. 2022, section 3.2; slopes of ALiBi for a power of two of heads (Press et al. 2022). A head's queries,
    keys and values lie side by side."""
    n, h, eps = len(tokens), c["n_head"], c["layer_norm_epsilon"]
    at, seen = np.arange(n), np.tri(n, dtype=bool)
    bias = (2.0 ** (-8 / h)) ** np.arange(1, h + 1)[:, None, None] * (at - at[:, None])
    x = layernorm(w["word_embeddings.weight"][tokens], w, "word_embeddings_layernorm", eps)
    for l in (f"h.{i}" for i in range(c["n_layer"])):
        own = linear(layernorm(x, w, f"{l}.input_layernorm", eps), w, f"{l}.self_attention.query_key_value")
        q, k, v = np.moveaxis(own.reshape(n, h, 3, -1), 2, 0)
        x = x + linear(attend(q, k, v, seen, bias), w, f"{l}.self_attention.dense")
        up = GELU_NEW(linear(layernorm(x, w, f"{l}.post_attention_layernorm", eps), w, f"{l}.mlp.dense_h_to_4h"))
        x = x + linear(up, w, f"{l}.mlp.dense_4h_to_h")
    return layernorm(x, w, "ln_f", eps)


def bucket(apart, count=8, farthest=16):
    """Raffel et al. 2020, section 2.1: half of the buckets for keys behind the query; half of these for one distance
    each, the others ever wider."""
    half, single = count // 2, count // 4
    wide = single + int(np.log(max(abs(apart), 1) / single) / np.log(farthest / single) * (half - single))
    return half * (apart > 0) + (abs(apart) if abs(apart) < single else min(wide, half - 1))


def t5(c, w, tokens):
    """Raffel et al. 2020: the encoder, gated (Shazeer 2020) where it has two matrices upwards; scores are not
    scaled."""
    n, h, d, eps = len(tokens), c["num_heads"], c["d_kv"], c["layer_norm_epsilon"]
    table = w["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    bias = np.array([[table[bucket(j - i)] for j in range(n)] for i in range(n)]).transpose(2, 0, 1)
    x = w["shared.weight"][tokens]
    for l in (f"encoder.block.{i}.layer" for i in range(c["num_layers"])):
        normed = rmsnorm(x, w, f"{l}.0.layer_norm", eps)
        q, k, v = (linear(normed, w, f"{l}.0.SelfAttention.{part}").reshape(n, h, d) for part in "qkv")
        x = x + linear(attend(q * np.sqrt(d), k, v, True, bias), w, f"{l}.0.SelfAttention.o")
        normed, unit = rmsnorm(x, w, f"{l}.1.layer_norm", eps), f"{l}.1.DenseReluDense"
        if f"{unit}.wi.weight" in w:
            up = np.maximum(linear(normed, w, f"{unit}.wi"), 0)
        else:
            up = GELU_NEW(linear(normed, w, f"{unit}.wi_0")) * linear(normed, w, f"{unit}.wi_1")
        x = x + linear(up, w, f"{unit}.wo")
    return rmsnorm(x, w, "encoder.final_layer_norm", eps)


def mamba(c, w, tokens):
    """Gu and Dao 2023, section 3.4: a convolution over the rows before, then a selective scan, row after row."""
    eps, s, k = c["layer_norm_epsilon"], c["state_size"], c.get("conv_kernel", 4)
    x = w["embeddings.weight"][tokens]
    for l in (f"layers.{i}.mixer" for i in range(c["num_hidden_layers"])):
        both = linear(rmsnorm(x, w, l.replace("mixer", "norm"), eps), w, f"{l}.in_proj")
        inner, gate = np.split(both, 2, axis=1)
        wide = np.concatenate([np.zeros((k - 1, inner.shape[1])), inner])
        taps = w[f"{l}.conv1d.weight"][:, 0]
        inner = SILU(sum(wide[i : i + len(x)] * taps[:, i] for i in range(k)) + w.get(f"{l}.conv1d.bias", 0))
        told = linear(inner, w, f"{l}.x_proj")
        rank = told.shape[1] - 2 * s
        step = np.log1p(np.exp(linear(told[:, :rank], w, f"{l}.dt_proj")))
        left, right = told[:, rank : rank + s], told[:, rank + s :]
        state, rates, rows = np.zeros((inner.shape[1], s)), -np.exp(w[f"{l}.A_log"]), []
        for u, dt, b, r in zip(inner, step, left, right, strict=True):
            state = np.exp(dt[:, None] * rates) * state + (dt * u)[:, None] * b
            rows.append(state @ r)
        x = x + linear((np.array(rows) + inner * w[f"{l}.D"]) * SILU(gate), w, f"{l}.out_proj")
    return rmsnorm(x, w, "norm_f", eps)


def mamba2(c, w, tokens):
    """Dao and Gu 2024, section 6: as Mamba, with a state of each head whose steps are numbers of the row; the result is
    gated, and normed in groups."""
    eps, s, k, h, g = c["layer_norm_epsilon"], c["state_size"], c.get("conv_kernel", 4), c["num_heads"], c["n_groups"]
    x, d = w["embeddings.weight"][tokens], h * c["head_dim"]
    for l in (f"layers.{i}.mixer" for i in range(c["num_hidden_layers"])):
        both = linear(rmsnorm(x, w, l.replace("mixer", "norm"), eps), w, f"{l}.in_proj")
        gate, inner, step = np.split(both, [d, both.shape[1] - h], axis=1)
        wide = np.concatenate([np.zeros((k - 1, inner.shape[1])), inner])
        taps = w[f"{l}.conv1d.weight"][:, 0]
        inner = SILU(sum(wide[i : i + len(x)] * taps[:, i] for i in range(k)) + w.get(f"{l}.conv1d.bias", 0))
        step = np.log1p(np.exp(step + w[f"{l}.dt_bias"]))
        kept, state, rows = np.exp(-step * np.exp(w[f"{l}.A_log"])), np.zeros((h, s, d // h)), []
        for row, dt, decay in zip(inner, step, kept, strict=True):
            u, key, query = row[:d].reshape(h, -1), *row[d:].reshape(2, g, s).repeat(h // g, 1)
            state = decay[:, None, None] * state + key[:, :, None] * (dt[:, None] * u)[:, None]
            rows.append((np.einsum("hs,hse->he", query, state) + w[f"{l}.D"][:, None] * u).reshape(-1))
        grouped = (np.array(rows) * SILU(gate)).reshape(len(x), g, -1)
        normed = (grouped / np.sqrt((grouped**2).mean(-1, keepdims=True) + eps)).reshape(len(x), d)
        x = x + linear(normed * w[f"{l}.norm.weight"], w, f"{l}.out_proj")
    return rmsnorm(x, w, "norm_f", eps)


def pangu_alpha(c, w, tokens):
    """Zeng et al. 2021, section 3: the last layer's queries are a learned row for each position."""
    n, h, eps, last = len(tokens), c["num_heads"], c["layer_norm_epsilon"], c["num_layers"] - 1
    seen = np.tri(n, dtype=bool)
    x = w["wte.weight"][tokens] + w["wpe.weight"][:n]
    for i in range(c["num_layers"]):
        if i == last:
            x = layernorm(x, w, "ln_f", eps)
        normed = layernorm(x, w, f"h.{i}.ln_1", eps)
        asking = w["wqe.weight"][:n] if i == last else normed
        parts = zip("qkv", (asking, normed, normed), strict=True)
        q, k, v = (linear(y, w, f"h.{i}.attn.{part}_proj").reshape(n, h, -1) for part, y in parts)
        x = x + linear(attend(q, k, v, seen), w, f"h.{i}.attn.c_proj")
        up = GELU(linear(layernorm(x, w, f"h.{i}.ln_2", eps), w, f"h.{i}.mlp.c_fc"))
        x = x + linear(up, w, f"h.{i}.mlp.c_proj")
    return x


def llama(c, w, tokens, windows=None, frequencies=None, scale=1.0, unit=None, causal=True, rotates=None):
    """Touvron et al. 2023, section 2.2, with biases and query-key norms where there are some; layer l sees `windows[l]`
    tokens, and is turned unless `rotates[l]` is 0. `unit` is in place of the gated units. Factors of Granite, where the
    config has them."""
    n, h, g, eps = len(tokens), c["num_attention_heads"], c["num_key_value_heads"], c["rms_norm_eps"]
    d = c.get("head_dim") or c["hidden_size"] // h
    at = np.arange(n)
    if frequencies is None:
        frequencies = c["rope_theta"] ** (-np.arange(0, d, 2) / d)
    x, more = w["embed_tokens.weight"][tokens] * c.get("embedding_multiplier", 1), c.get("residual_multiplier", 1)
    scale *= (c.get("attention_multiplier", d**-0.5) * d**0.5) ** 0.5
    for i in range(c["num_hidden_layers"]):
        l, far = f"layers.{i}", windows[i] if windows else n
        normed = rmsnorm(x, w, f"{l}.input_layernorm", eps)
        q, k, v = (linear(normed, w, f"{l}.self_attn.{part}_proj").reshape(n, -1, d) for part in "qkv")
        assert q.shape[1] == h and k.shape[1] == g
        if f"{l}.self_attn.q_norm.weight" in w:
            q, k = rmsnorm(q, w, f"{l}.self_attn.q_norm", eps), rmsnorm(k, w, f"{l}.self_attn.k_norm", eps)
        if rotates is None or rotates[i]:
            q, k = turned(q, frequencies, scale), turned(k, frequencies, scale)
        seen = (at <= at[:, None]) & (at > at[:, None] - far) if causal else abs(at - at[:, None]) <= far
        mixed = attend(q, k, v, seen, sinks=w.get(f"{l}.self_attn.sinks"))
        x = x + more * linear(mixed, w, f"{l}.self_attn.o_proj")
        normed = rmsnorm(x, w, f"{l}.post_attention_layernorm", eps)
        if unit is None:
            up = SILU(linear(normed, w, f"{l}.mlp.gate_proj")) * linear(normed, w, f"{l}.mlp.up_proj")
            x = x + more * linear(up, w, f"{l}.mlp.down_proj")
        else:
            x = x + unit(normed, i, f"{l}.mlp")
    return rmsnorm(x, w, "norm", eps)


def olmo2(c, w, tokens):
    """OLMo Team 2025, section 3.2: norms behind; queries and keys are normed before they are heads."""
    n, h, eps = len(tokens), c["num_attention_heads"], c["rms_norm_eps"]
    d = c.get("head_dim") or c["hidden_size"] // h
    frequencies, causal = c["rope_theta"] ** (-np.arange(0, d, 2) / d), np.tri(n, dtype=bool)
    x = w["embed_tokens.weight"][tokens]
    for l in (f"layers.{i}" for i in range(c["num_hidden_layers"])):
        q, k, v = (linear(x, w, f"{l}.self_attn.{part}_proj") for part in "qkv")
        q, k = rmsnorm(q, w, f"{l}.self_attn.q_norm", eps), rmsnorm(k, w, f"{l}.self_attn.k_norm", eps)
        q, k, v = (each.reshape(n, -1, d) for each in (q, k, v))
        mixed = linear(attend(turned(q, frequencies), turned(k, frequencies), v, causal), w, f"{l}.self_attn.o_proj")
        x = x + rmsnorm(mixed, w, f"{l}.post_attention_layernorm", eps)
        up = SILU(linear(x, w, f"{l}.mlp.gate_proj")) * linear(x, w, f"{l}.mlp.up_proj")
        x = x + rmsnorm(linear(up, w, f"{l}.mlp.down_proj"), w, f"{l}.post_feedforward_layernorm", eps)
    return rmsnorm(x, w, "norm", eps)


def phi3(c, w, tokens, **how):
    """Abdin et al. 2024: a LLaMA whose packed matrices are cut into those of `llama`."""
    h, g = c["num_attention_heads"], c["num_key_value_heads"]
    d, apart = c.get("head_dim") or c["hidden_size"] // h, dict(w)
    for i in range(c["num_hidden_layers"]):
        cuts = {"self_attn.qkv_proj": "qkv", "mlp.gate_up_proj": ("gate", "up")}
        for name, parts in cuts.items():
            whole, room = w[f"layers.{i}.{name}.weight"], name.partition(".")[0]
            ends = [h * d, (h + g) * d] if parts == "qkv" else 2
            for part, rows in zip(parts, np.split(whole, ends), strict=True):
                apart[f"layers.{i}.{room}.{part}_proj.weight"] = rows
    return llama(c, apart, tokens, **how)
