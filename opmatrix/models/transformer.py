"""Any small transformer: sizes, heads, shared key heads, norms, activations, masks, each a choice of the config.

A config of `model_type` "transformer" says: vocab_size, max_position_embeddings, hidden_size, intermediate_size,
num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim; norm ("layer" or "rms"), norm_eps, pre_norm;
hidden_act (a name of ACTIVATIONS), gated (Shazeer 2020, GLU variants); bias; mask: a pattern within sequences, as text;
positions ("learned", or "rotary" with rope_theta: Su et al. 2021); head ("none"; "tied": scores of the vocabulary by
the table of tokens, Press and Wolf 2017; "own": by a matrix of its own). LLaMA (Touvron et al. 2023) is rms, pre_norm,
silu, gated, no bias, rotary, "sequence & causal"."""

from functools import reduce
from operator import matmul

from opmatrix.algebra.operators import (
    ACTIVATIONS,
    I,
    affine,
    attention,
    const,
    diag,
    given,
    grouped,
    layernorm,
    rmsnorm,
    rotary,
    weight,
)
from opmatrix.algebra.positions.patterns import Pattern, parse
from opmatrix.algebra.shapes import LiveSize, divides
from opmatrix.algebra.term import Operator
from opmatrix.models.config import ArraySource, Key, Settings, declares, dimension, flag, layers, one_of, real, wrong

SIZES = "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"
NORM_KINDS = dict(layer=layernorm, rms=rmsnorm)


@declares(
    **{name: dimension() for name in (*SIZES, "vocab_size", "max_position_embeddings")},
    num_hidden_layers=layers(),
    norm=one_of(NORM_KINDS),
    norm_eps=real(1e-20, 1),
    pre_norm=flag(),
    hidden_act=one_of(ACTIVATIONS, "gelu"),
    gated=flag(),
    bias=flag(),
    mask=Key("a pattern as text", lambda v: type(v) is str),
    positions=one_of(("learned", "rotary"), "learned"),
    rope_theta=real(1, 1e12, 10000.0),
    head=one_of(("none", "tied", "own"), "none"),
)
def transformer(config: Settings, at: ArraySource) -> Operator:
    """`at(name, *shape)` gives the arrays of a checkpoint; the operator maps one-hot tokens to features."""
    n, f, h, g, d = (config[name] for name in SIZES)
    if config["positions"] == "rotary" and not divides(2, d):
        raise wrong("head_dim", d, "even, as pairs of columns are rotated")
    if not divides(g, h):
        raise wrong("num_key_value_heads", g, f"a divisor of num_attention_heads, {h}")
    act, where = ACTIVATIONS[config["hidden_act"]], read_pattern(config)
    unit = NORM_KINDS[config["norm"]](config["norm_eps"])
    turned = (
        rotary(config["max_position_embeddings"], d, config["rope_theta"]) if config["positions"] == "rotary" else None
    )

    def linear(name: str, n: LiveSize, p: LiveSize) -> Operator:
        """Build x @ W, with a bias if the config has them; files store W as (outputs, inputs)."""
        W = at(f"{name}.weight", p, n).T
        return affine(W, at(f"{name}.bias", p)) if config["bias"] else weight(W)

    def norm(name: str) -> Operator:
        """Build the config's norm with a gain, and a shift if it is a layer norm."""
        gained = unit @ diag(at(f"{name}.weight", n))
        return gained + const(at(f"{name}.bias", n)) if config["norm"] == "layer" else gained

    def mixing(l: str) -> Operator:
        """Build attention, grouped if there are fewer heads of keys than of queries."""
        Q, K, V = (linear(f"{l}.{part}", n, d * count) for part, count in (("query", h), ("key", g), ("value", g)))
        mixed = attention(Q, K, V, h, where, turned) if g == h else grouped(Q, K, V, h, g, where, turned)
        return mixed @ linear(f"{l}.output", d * h, n)

    def feeding(l: str) -> Operator:
        """Build the feed-forward unit, gated if the config says so."""
        up = (
            linear(f"{l}.gate", n, f) @ act * linear(f"{l}.up", n, f)
            if config["gated"]
            else linear(f"{l}.up", n, f) @ act
        )
        return up @ linear(f"{l}.down", f, n)

    def layer(l: str) -> Operator:
        """Build a layer: attention, then the unit, each added to its input, with norms before or after."""
        F, G, first, second = mixing(l), feeding(l), norm(f"{l}.norm1"), norm(f"{l}.norm2")
        return (I + first @ F) @ (I + second @ G) if config["pre_norm"] else (I + F) @ first @ (I + G) @ second

    tokens, positions = config["vocab_size"], config["max_position_embeddings"]
    embed = weight(table := at("tokens", tokens, n))
    if turned is None:
        embed = embed + given("positions", positions) @ weight(at("positions", positions, n))
    parts = [embed, *(layer(f"layer.{i}") for i in range(config["num_hidden_layers"]))]
    if config["pre_norm"]:
        parts.append(norm("norm"))
    if config["head"] != "none":
        parts.append(weight((table if config["head"] == "tied" else at("head", tokens, n)).T))
    return reduce(matmul, parts)


def read_pattern(config: Settings) -> Pattern:
    """Read the pattern of a config. Raises InputError for a text that is none, and for a pattern that leaves its
    sequence."""
    try:
        pattern = parse(config["mask"])
    except ValueError as error:
        raise wrong("mask", config["mask"], f"a pattern ({error})") from error
    if pattern.within:
        return pattern
    raise wrong("mask", config["mask"], "a pattern that looks within sequences: begin it with 'sequence & '")
