"""Decoders in plain numpy, one sentence at a time, as their papers and files write them: `w` gives arrays by name."""

import numpy as np
from plain import GELU_NEW, SILU, linear, rmsnorm, turned


def logistic(x):
    return 1 / (1 + np.exp(-x))


def shares(q, k, seen, cap=None):
    """softmax of scores (heads, rows, keys), capped if there is a cap; heads of keys serve groups."""
    s = np.einsum("ihd,jhd->hij", q, k.repeat(q.shape[1] // k.shape[1], 1))
    s = s if cap is None else cap * np.tanh(s / cap)
    s = np.where(seen, s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def mixed(p, v):
    return np.einsum("hij,jhd->ihd", p, v.repeat(p.shape[0] // v.shape[1], 1)).reshape(p.shape[1], -1)


def looking_back(n, far=None):
    at = np.arange(n)
    return (at <= at[:, None]) & (at > at[:, None] - (far or n))


def centred(x, gain, eps):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain


def turned_in_pairs(x, frequencies):
    """Neighbouring columns, turned."""
    angles = np.outer(np.arange(len(x)), frequencies)[:, None]
    cos, sin, a, b = np.cos(angles), np.sin(angles), x[..., ::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)


def cohere(c, w, tokens, windows=None):
    """Attention and the gated unit read one norm. With `windows`, layers that have none are not turned."""
    n, h, eps = len(tokens), c["num_attention_heads"], c["layer_norm_eps"]
    d = c["hidden_size"] // h
    frequencies = c["rope_theta"] ** (-np.arange(0, d, 2) / d)
    x = w["embed_tokens.weight"][tokens]
    for i in range(c["num_hidden_layers"]):
        l = f"layers.{i}"
        y = centred(x, w[f"{l}.input_layernorm.weight"], eps)
        q, k, v = (linear(y, w, f"{l}.self_attn.{part}_proj").reshape(n, -1, d) for part in "qkv")
        if c.get("use_qk_norm"):
            q, k = (centred(z, w[f"{l}.self_attn.{part}_norm.weight"], eps) for z, part in ((q, "q"), (k, "k")))
        if windows is None or windows[i]:
            q, k = turned_in_pairs(q, frequencies), turned_in_pairs(k, frequencies)
        p = shares(q * d**-0.5, k, looking_back(n, windows and windows[i]))
        up = SILU(linear(y, w, f"{l}.mlp.gate_proj")) * linear(y, w, f"{l}.mlp.up_proj")
        x = x + linear(mixed(p, v), w, f"{l}.self_attn.o_proj") + linear(up, w, f"{l}.mlp.down_proj")
    return centred(x, w["norm.weight"], eps)


def gemma2(c, w, tokens, windows):
    """Gemma Team 2024: gains less one, four norms a layer, capped scores."""
    n, d, eps = len(tokens), c["head_dim"], c["rms_norm_eps"]
    frequencies = c["rope_theta"] ** (-np.arange(0, d, 2) / d)
    gain = lambda name: np.float32(1) + w[f"{name}.weight"].astype(np.float32)  # as files store it, plus one
    norm = lambda x, name: x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain(name)
    x = w["embed_tokens.weight"][tokens] * c["hidden_size"] ** 0.5
    for i, far in enumerate(windows):
        l = f"layers.{i}"
        y = norm(x, f"{l}.input_layernorm")
        q, k, v = (linear(y, w, f"{l}.self_attn.{part}_proj").reshape(n, -1, d) for part in "qkv")
        q, k = turned(q, frequencies) / np.sqrt(c["query_pre_attn_scalar"]), turned(k, frequencies)
        p = shares(q, k, looking_back(n, far), c["attn_logit_softcapping"])
        x = x + norm(linear(mixed(p, v), w, f"{l}.self_attn.o_proj"), f"{l}.post_attention_layernorm")
        y = norm(x, f"{l}.pre_feedforward_layernorm")
        up = GELU_NEW(linear(y, w, f"{l}.mlp.gate_proj")) * linear(y, w, f"{l}.mlp.up_proj")
        x = x + norm(linear(up, w, f"{l}.mlp.down_proj"), f"{l}.post_feedforward_layernorm")
    return norm(x, "norm")


def gated_attention(c, w, l, x):
    """Queries of a head have a gate beside them; a share of the columns of a head turns."""
    n, h, d, eps = len(x), c["num_attention_heads"], c["head_dim"], c["rms_norm_eps"]
    turning = int(d * c.get("partial_rotary_factor", 0.25))
    frequencies = c["rope_theta"] ** (-np.arange(0, turning, 2) / turning)
    asked = linear(x, w, f"{l}.q_proj").reshape(n, h, 2, d)
    k, v = (linear(x, w, f"{l}.{part}_proj").reshape(n, -1, d) for part in "kv")
    q, k = rmsnorm(asked[:, :, 0], w, f"{l}.q_norm", eps), rmsnorm(k, w, f"{l}.k_norm", eps)
    p = shares(turned(q, frequencies) * d**-0.5, turned(k, frequencies), looking_back(n))
    return linear(mixed(p, v) * logistic(asked[:, :, 1].reshape(n, -1)), w, f"{l}.o_proj")


def delta_parts(c, w, l, x):
    """Queries, keys and values beside each other, gates, betas and steps: packed by heads of keys, or apart."""
    if f"{l}.in_proj_z.weight" in w:
        return [linear(x, w, f"{l}.in_proj_{part}") for part in ("qkv", "z", "b", "a")]
    n, g, d, e = len(x), *(c[f"linear_{part}"] for part in ("num_key_heads", "key_head_dim", "value_head_dim"))
    shared = c["linear_num_value_heads"] // g
    packed = linear(x, w, f"{l}.in_proj_qkvz").reshape(n, g, -1)
    q, k, v, z = (part.reshape(n, -1) for part in np.split(packed, [d, 2 * d, 2 * d + shared * e], 2))
    b, a = (part.reshape(n, -1) for part in np.split(linear(x, w, f"{l}.in_proj_ba").reshape(n, g, -1), 2, 2))
    return np.concatenate([q, k, v], 1), z, b, a


def gated_delta_net(c, w, l, x):
    """Yang et al. 2025, eq. 10, row after row: the state decays, and a value replaces a share beta of its key's."""
    n, h, g, d = len(x), *(c[f"linear_{part}"] for part in ("num_value_heads", "num_key_heads", "key_head_dim"))
    rows, z, b, a = delta_parts(c, w, l, x)
    taps = w[f"{l}.conv1d.weight"][:, 0]
    wide = np.concatenate([np.zeros((taps.shape[1] - 1, rows.shape[1])), rows])
    rows = SILU(sum(wide[i : i + n] * tap for i, tap in enumerate(taps.T)))
    q, k = (y.reshape(n, g, d).repeat(h // g, 1) for y in np.split(rows[:, : 2 * g * d], 2, 1))
    q, k = (y / np.sqrt((y * y).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
    v = rows[:, 2 * g * d :].reshape(n, h, -1)
    betas, decays = logistic(b), np.exp(-np.exp(w[f"{l}.A_log"]) * np.log1p(np.exp(a + w[f"{l}.dt_bias"])))
    state, read = np.zeros((h, d, v.shape[2])), np.zeros_like(v)
    for t in range(n):
        state = decays[t, :, None, None] * state
        change = betas[t, :, None] * (v[t] - np.einsum("hd,hde->he", k[t], state))
        state = state + np.einsum("hd,he->hde", k[t], change)
        read[t] = np.einsum("hd,hde->he", q[t], state) * d**-0.5
    return linear(rmsnorm(read, w, f"{l}.norm", c["rms_norm_eps"]).reshape(n, -1) * SILU(z), w, f"{l}.out_proj")


def qwen3_next(c, w, tokens, unit=None):
    """Qwen3-Next and Qwen3.5: gains are stored less one, but for those of gated delta nets; `unit` is in place of gated
    units."""
    less = [name for name in w if "norm" in name and ".linear_attn." not in name]
    w = w | {
        name: (w[name].astype(np.float32) + np.float32(1)).astype(np.float64) for name in less
    }  # as files are read
    x, eps = w["embed_tokens.weight"][tokens], c["rms_norm_eps"]
    for i in range(c["num_hidden_layers"]):
        l = f"layers.{i}"
        mixing, name = gated_attention, f"{l}.self_attn"
        if f"{name}.q_proj.weight" not in w:
            mixing, name = gated_delta_net, f"{l}.linear_attn"
        x = x + mixing(c, w, name, rmsnorm(x, w, f"{l}.input_layernorm", eps))
        normed = rmsnorm(x, w, f"{l}.post_attention_layernorm", eps)
        if unit is None:
            up = SILU(linear(normed, w, f"{l}.mlp.gate_proj")) * linear(normed, w, f"{l}.mlp.up_proj")
            x = x + linear(up, w, f"{l}.mlp.down_proj")
        else:
            x = x + unit(normed, i, f"{l}.mlp")
    return rmsnorm(x, w, "norm", eps)
