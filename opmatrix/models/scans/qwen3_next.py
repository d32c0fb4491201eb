"""Qwen3-Next (Qwen Team 2025) and the text models of Qwen3.5: gated delta nets (Yang, Kautz and Hatamizadeh 2025), and
behind every third of them a layer of gated attention. Gains of norms are stored less one; a quarter of each head turns
by its position. Units are experts beside one that all tokens go through, as in Qwen2-MoE; Qwen3.5 has gated ones, too.
"""

from collections.abc import Callable
from functools import reduce
from itertools import accumulate
from operator import matmul
from typing import NamedTuple

from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import (
    ACTIVATIONS,
    I,
    affine,
    cols,
    const,
    conv,
    diag,
    exp,
    gated_delta_rule,
    grouped,
    heads,
    repeat,
    rmsnorm,
    sigmoid,
    softplus,
    unit_length,
    weight,
)
from opmatrix.algebra.positions.lags import LARGEST_LAG
from opmatrix.algebra.shapes import LiveSize, divides
from opmatrix.algebra.term import Operator, Value, formula
from opmatrix.models import rope
from opmatrix.models.config import (
    FULL_ATTENTION,
    ArraySource,
    Settings,
    declares,
    dimension,
    flag,
    kinds_of_layers,
    layer_kinds,
    never,
    real,
    whole,
    wrong,
)
from opmatrix.models.decoders.latent import CutRows
from opmatrix.models.encoders.gemma import one_more
from opmatrix.models.experts import EXPERT_KEYS, SPARSE_KEYS, plain_unit
from opmatrix.models.llama import LAYOUT, LLAMA_KEYS, grouped_sizes, seen_within
from opmatrix.models.qwen_moe import QWEN_MOE, shared_unit
from opmatrix.models.scans.mamba import taps_by_lag
from opmatrix.models.scans.mamba2 import negative_rates

LINEAR_ATTENTION = "linear_attention"
LEAST_SQUARE = 1e-6  # is added to squared lengths of queries and keys
TRAINED = ("mtp",)  # layers of files that guess the token after the next one
HYBRID_KEYS = LLAMA_KEYS | dict(
    head_dim=dimension(256),
    partial_rotary_factor=real(0, 1, 0.25),
    attention_bias=flag(False),
    is_causal=never(True, "a gated delta net passes rows in order"),
    attn_output_gate=never(True, "what attention gives is multiplied by a gate"),
    layer_types=layer_kinds(FULL_ATTENTION, LINEAR_ATTENTION),
    full_attention_interval=whole(default=4),
    linear_conv_kernel_dim=whole(1, LARGEST_LAG + 1, 4),
    linear_key_head_dim=whole(default=128),
    linear_value_head_dim=whole(default=128),
    linear_num_key_heads=whole(default=16),
    linear_num_value_heads=whole(default=32),
)
SHARED_EXPERT = EXPERT_KEYS | dict(moe_intermediate_size=dimension(), shared_expert_intermediate_size=dimension())
EVERY_LAYER = dict(
    norm_topk_prob=never(True, "shares of experts sum to one"),
    decoder_sparse_step=never(1, "every layer has experts"),
    mlp_only_layers=never([], "every layer has experts"),
)


class DeltaSizes(NamedTuple):
    """Sizes of a gated delta net: columns of its input, heads of keys and of values, and columns of a head of each."""

    inputs: LiveSize
    key_heads: int
    value_heads: int
    key: int
    value: int

    @property
    def shared(self) -> int:
        """Heads of values for each of keys."""
        return self.value_heads // self.key_heads

    @property
    def parts(self) -> dict[str, int]:
        """Columns of queries, keys and values, of all heads."""
        keys = self.key_heads * self.key
        return dict(queries=keys, keys=keys, values=self.value_heads * self.value)


Projections = Callable[[ArraySource, str, DeltaSizes], list[Data]]  # of queries, keys, values, gates, betas, steps


@declares(
    QWEN_MOE._replace(trained=TRAINED), **HYBRID_KEYS | SHARED_EXPERT | SPARSE_KEYS | dict(norm_topk_prob=flag(True))
)
def qwen3_next(config: Settings, at: ArraySource) -> Operator:
    """`at(name, *shape)` gives the arrays of a checkpoint; the operator maps one-hot tokens to features. Files
    pack what a gated delta net reads by heads of keys."""
    return hybrid(config, at, packed_by_heads, shared_unit(config, at))


@declares(LAYOUT._replace(trained=TRAINED), **HYBRID_KEYS)
def qwen3_5_text(config: Settings, at: ArraySource) -> Operator:
    """Gated units in every layer; gates, betas and steps have matrices of their own in files."""
    n, f, act = config["hidden_size"], config["intermediate_size"], ACTIVATIONS[config["hidden_act"]]
    return hybrid(config, at, stored_apart, lambda l, name: plain_unit(at, name, n, f, act))


@declares(
    QWEN_MOE._replace(trained=TRAINED),
    **{name: key for name, key in HYBRID_KEYS.items() if name != "intermediate_size"} | SHARED_EXPERT | EVERY_LAYER,
)
def qwen3_5_moe_text(config: Settings, at: ArraySource) -> Operator:
    """Experts in every layer."""
    return hybrid(config, at, stored_apart, shared_unit(config, at))


def hybrid(
    config: Settings, at: ArraySource, projections: Projections, unit: Callable[[int, str], Operator]
) -> Operator:
    """Build layers of gated delta nets and of gated attention, each with the `unit` of its number and name behind it.
    `projections` gives the matrices that a gated delta net reads, by its name."""
    n, every = config["hidden_size"], config["full_attention_interval"]
    kinds = kinds_of_layers(config, lambda l: LINEAR_ATTENTION if (l + 1) % every else FULL_ATTENTION)
    rotation, sizes = rope.rope(config, grouped_sizes(config)[-1]), delta_sizes(config)

    def norm(name: str) -> Operator:
        """Build a norm of roots with the gain 1 + w."""
        return rmsnorm(config["rms_norm_eps"]) @ diag(one_more(at(f"{name}.weight", n)))

    def mixing(l: int) -> Operator:
        """Build the part of layer l that reads other rows."""
        if kinds[l] == FULL_ATTENTION:
            return gated_attention(config, at, f"layers.{l}.self_attn", rotation)
        name = f"layers.{l}.linear_attn"
        return gated_delta_net(config, at, name, sizes, projections(at, name, sizes))

    def layer(l: int) -> Operator:
        """Build layer l: what mixes rows, then the unit, each behind a norm and added to its input."""
        first, second = (norm(f"layers.{l}.{part}_layernorm") for part in ("input", "post_attention"))
        return (I + first @ mixing(l)) @ (I + second @ unit(l, f"layers.{l}.mlp"))

    embed = weight(at("embed_tokens.weight", config["vocab_size"], n))
    return reduce(matmul, [embed, *map(layer, range(config["num_hidden_layers"])), norm("norm")])


def gated_attention(config: Settings, at: ArraySource, name: str, rotation: Operator) -> Operator:
    """Build grouped attention times the logistic function of a gate, which files hold beside the queries of each head
    (Qiu et al. 2025, section 2.2). Queries and keys are normed in every head, then turned by the rotation."""
    n = config["hidden_size"]
    h, g, d = grouped_sizes(config)

    def linear(part: str, n: LiveSize, p: LiveSize) -> Operator:
        """Build x @ W, with a row to add where the config has one; files store W as (outputs, inputs)."""
        W = at(f"{name}.{part}_proj.weight", p, n).T
        return affine(W, at(f"{name}.{part}_proj.bias", p)) if config["attention_bias"] else weight(W)

    def turned(part: str) -> Operator:
        """Build the norm of a head of queries or keys, and its rotation."""
        gain = diag(one_more(at(f"{name}.{part}_norm.weight", d)))
        return rmsnorm(config["rms_norm_eps"]) @ gain @ rotation

    asked, K, V = linear("q", n, 2 * d * h), linear("k", n, d * g), linear("v", n, d * g)
    queries, gates = (cols(i * d, (i + 1) * d, 2 * d) for i in range(2))
    mixed = grouped(asked, K, V, h, g, seen_within(None), queries @ turned("q"), turned("k"))
    return mixed * (asked @ heads(h) @ gates @ sigmoid @ heads(h).T) @ linear("o", d * h, n)


def gated_delta_net(
    config: Settings, at: ArraySource, name: str, sizes: DeltaSizes, projections: list[Data]
) -> Operator:
    """Build the gated delta rule on queries and keys of length one behind convolutions; what is read is normed in every
    head, and gated: Yang, Kautz and Hatamizadeh 2025, figure 1. A decay is exp(-exp(A) softplus(step + shift))."""
    n, g, h, d, e = sizes
    act, eps, wide = ACTIVATIONS[config["hidden_act"]], config["rms_norm_eps"], sum(sizes.parts.values())
    taps = cut_rows(at(f"{name}.conv1d.weight", wide, 1, config["linear_conv_kernel_dim"]), 1, **sizes.parts)
    Q, K, V, gates, betas, steps = (weight(stored.T) for stored in projections)
    queries, keys, values = (W @ conv(taps_by_lag(part)) @ act for W, part in zip((Q, K, V), taps, strict=True))
    rates = diag(negative_rates(at(f"{name}.A_log", h)))
    passed = steps @ (I + const(at(f"{name}.dt_bias", h))) @ softplus @ rates @ exp
    unit = heads(g) @ unit_length(LEAST_SQUARE) @ repeat(h)
    normed = rmsnorm(eps) @ diag(at(f"{name}.norm.weight", e)) @ heads(h).T

    def mixed(x: Value) -> Value:
        """Map a row to what its queries read of the state, normed and gated."""
        q, k, v = x @ queries @ unit * d**-0.5, x @ keys @ unit, x @ values @ heads(h)
        read = gated_delta_rule(q, k, v, x @ betas @ sigmoid @ heads(h), x @ passed @ heads(h))
        gated: Value = (read @ normed) * (x @ gates @ ACTIVATIONS["silu"])
        return gated

    return formula(mixed) @ weight(at(f"{name}.out_proj.weight", n, h * e).T)


def delta_sizes(config: Settings) -> DeltaSizes:
    """Return the sizes of gated delta nets. Raises InputError for heads of keys that do not divide those of values."""
    g, h = config["linear_num_key_heads"], config["linear_num_value_heads"]
    if not divides(g, h):
        raise wrong("linear_num_key_heads", g, f"a divisor of linear_num_value_heads, {h}")
    return DeltaSizes(config["hidden_size"], g, h, config["linear_key_head_dim"], config["linear_value_head_dim"])


def packed_by_heads(at: ArraySource, name: str, sizes: DeltaSizes) -> list[Data]:
    """Return the matrices that files pack as two, by heads of keys."""
    n, g, h, d, e = sizes
    shared = sizes.shared
    wide, narrow = (
        at(f"{name}.in_proj_qkvz.weight", 2 * g * d + 2 * h * e, n),
        at(f"{name}.in_proj_ba.weight", 2 * h, n),
    )
    outputs = cut_rows(wide, g, queries=d, keys=d, values=shared * e, gates=shared * e)
    return [*outputs, *cut_rows(narrow, g, betas=shared, steps=shared)]


def stored_apart(at: ArraySource, name: str, sizes: DeltaSizes) -> list[Data]:
    """Return the matrices of which files pack queries, keys and values alone."""
    n, h = sizes.inputs, sizes.value_heads
    packed = at(f"{name}.in_proj_qkv.weight", sum(sizes.parts.values()), n)
    gates = at(f"{name}.in_proj_z.weight", h * sizes.value, n)
    return [*cut_rows(packed, 1, **sizes.parts), gates, *(at(f"{name}.in_proj_{part}.weight", h, n) for part in "ba")]


def cut_rows(stored: Data, count: int, **parts: int) -> list[Data]:
    """Return the rows of a stored array part by part: of each of `count` heads as many as a part has, one after
    another."""
    ends = accumulate(parts.values())
    return [
        CutRows(part, end - rows, rows).cut(stored, count)
        for (part, rows), end in zip(parts.items(), ends, strict=True)
    ]
