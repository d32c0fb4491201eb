"""Mamba 2 (Dao and Gu 2024): layers of a convolution and linear attention whose state decays, by a number of each head
and row; its result is gated, and normed in groups."""

from functools import reduce
from math import inf
from operator import matmul

import numpy as np

from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.operators import (
    ACTIVATIONS,
    I,
    affine,
    cols,
    const,
    conv,
    diag,
    exp,
    gated_linear_attention,
    heads,
    repeat,
    rmsnorm,
    softplus,
    weight,
)
from opmatrix.algebra.shapes import LiveSize
from opmatrix.algebra.term import Operator, Value, formula
from opmatrix.models.config import ArraySource, Key, Settings, declares, flag, whole, wrong
from opmatrix.models.scans.mamba import BACKBONE, MAMBA_KEYS, taps_by_lag

UNLIMITED = 0.0, inf
INFINITE = inf, "Infinity", {"__float__": "Infinity"}  # an infinity, and how files write it
NOT_CLIPPED = Key(
    "[0, Infinity] or left out: steps are not clipped",
    lambda v: v is None or (isinstance(v, list | tuple) and len(v) == 2 and v[0] == 0 and v[1] in INFINITE),
    UNLIMITED,
)
SAME_KEYS = (
    "vocab_size hidden_size num_hidden_layers expand conv_kernel layer_norm_eps hidden_act use_bias use_conv_bias"
)
MAMBA2_KEYS = {name: MAMBA_KEYS[name] for name in (*SAME_KEYS.split(), "quantization_config")} | dict(
    num_heads=whole(default=128),
    head_dim=whole(default=64),
    state_size=whole(default=128),
    n_groups=whole(default=8),
    tie_word_embeddings=flag(False),
    time_step_limit=NOT_CLIPPED,
)


@declares(BACKBONE, **MAMBA2_KEYS)
def mamba2(config: Settings, at: ArraySource) -> Operator:
    """`at(name, *shape)` gives the arrays of a checkpoint; the operator maps one-hot tokens to features. Raises
    InputError for heads that make no other width than `expand` does, and for groups that do not divide them."""
    n, s, k, act = (config[key] for key in ("hidden_size", "state_size", "conv_kernel", "hidden_act"))
    h, g = config["num_heads"], config["n_groups"]
    d = h * config["head_dim"]
    wide = d + 2 * g * s  # columns of the convolution: values, keys, queries
    both = d + wide + h  # a gate and a step beside them
    if h % g:
        raise wrong("n_groups", g, f"a divisor of num_heads, {h}")
    if isinstance(n, int) and config["expand"] * n != d:
        raise wrong("head_dim", config["head_dim"], f"expand · hidden_size / num_heads, {config['expand'] * n} / {h}")

    def linear(name: str, n: LiveSize, p: LiveSize) -> Operator:
        """Build x @ W, with a row to add where the config has one; files store W as (outputs, inputs)."""
        W = at(f"{name}.weight", p, n).T
        return affine(W, at(f"{name}.bias", p)) if config["use_bias"] else weight(W)

    def convolution(name: str) -> Operator:
        """Build the convolution of values, keys and queries, with its activation."""
        taps = conv(taps_by_lag(at(f"{name}.weight", wide, 1, k)))
        return (taps + const(at(f"{name}.bias", wide)) if config["use_conv_bias"] else taps) @ ACTIVATIONS[act]

    def states(name: str) -> Operator:
        """Build linear attention behind the convolution: section 6, with steps that scale values and set decays."""
        mixed = cols(d, d + wide, both) @ convolution(f"{name}.conv1d")
        steps = cols(d + wide, both, both) @ (I + const(at(f"{name}.dt_bias", h))) @ softplus
        rates = diag(negative_rates(at(f"{name}.A_log", h)))
        values, kept = cols(0, d, wide), diag(by_head(at(f"{name}.D", h), d // h))
        keys, queries = (cols(d + i * g * s, d + (i + 1) * g * s, wide) @ heads(g) @ repeat(h) for i in range(2))

        def stated(x: Value) -> Value:
            """Map a row to what its queries read, and its values times a gain of each head."""
            row, step = x @ mixed, x @ steps
            added, decays = (row @ values @ heads(h)) * (step @ heads(h)), step @ rates @ exp @ heads(h)
            read = gated_linear_attention(row @ queries, row @ keys, added, decays)
            answers: Value = read @ heads(h).T + row @ values @ kept
            return answers

        return formula(stated)

    def mixer(name: str) -> Operator:
        """Build linear attention times a gate, normed in groups of columns."""
        gated = states(name) * (cols(0, d, both) @ ACTIVATIONS["silu"])
        normed = heads(g) @ rmsnorm(config["layer_norm_eps"]) @ heads(g).T @ diag(at(f"{name}.norm.weight", d))
        return linear(f"{name}.in_proj", n, both) @ gated @ normed @ linear(f"{name}.out_proj", d, n)

    def norm(name: str) -> Operator:
        """Build a norm by the root mean square, with a gain."""
        return rmsnorm(config["layer_norm_eps"]) @ diag(at(f"{name}.weight", n))

    blocks = (I + norm(f"layers.{l}.norm") @ mixer(f"layers.{l}.mixer") for l in range(config["num_hidden_layers"]))
    embed = weight(at("embeddings.weight", config["vocab_size"], n))
    return reduce(matmul, [embed, *blocks, norm("norm_f")])


def negative_rates(logarithms: Data) -> Data:
    """Return the rates, all below 0, whose logarithms are stored."""
    name = f"-exp({logarithms.name})"
    if isinstance(logarithms, Promised):
        return Promised(name, logarithms.shape)
    return Data(-np.exp(logarithms.array.astype(np.float64)), name)


def by_head(gains: Data, width: int) -> Data:
    """Return a number of each head for all of its columns."""
    name = f"repeat({gains.name})"
    if isinstance(gains, Promised):
        return Promised(name, (width * gains.shape[0],))
    return Data(gains.array.repeat(width), name)
