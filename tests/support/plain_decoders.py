"""Decoders in plain numpy, one sentence at a time, as their papers and files write them: `w` gives arrays by name."""

import numpy as np
from plain import GELU_NEW, SILU, linear, turned


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
