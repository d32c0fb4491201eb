"""Any small transformer: sizes, heads, shared key heads, norms, activations, masks, each a choice of the config.

A config of `model_type` "transformer" says: vocab_size, max_position_embeddings, hidden_size, intermediate_size,
num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim; norm ("layer" or "rms"), norm_eps, pre_norm;
hidden_act (a name of ACTIVATIONS), gated (Shazeer 2020, GLU variants); bias; mask: a pattern within sequences, as text;
positions ("learned", or "rotary" with rope_theta: Su et al. 2021); head ("none"; "tied": scores of the vocabulary by
the table of tokens, Press and Wolf 2017; "own": by a matrix of its own). LLaMA (Touvron et al. 2023) is rms, pre_norm,
silu, gated, no bias, rotary, "sequence & causal"."""
from functools import reduce
from operator import matmul

import numpy as np

from opmatrix.data import Data
from opmatrix.models.config import Key, declares, flag, one_of, real, whole, wrong
from opmatrix.operators import (
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
from opmatrix.patterns import parse

SIZES = "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"
NORMS = dict(layer=layernorm, rms=rmsnorm)


@declares(
    **{name: whole() for name in (*SIZES, "vocab_size", "max_position_embeddings")},
    num_hidden_layers=whole(0, 1000), norm=one_of(NORMS), norm_eps=real(1e-20, 1), pre_norm=flag(),
    hidden_act=one_of(ACTIVATIONS, "gelu"), gated=flag(), bias=flag(),
    mask=Key("a pattern as text", lambda v: type(v) is str), positions=one_of(("learned", "rotary"), "learned"),
    rope_theta=real(1, 1e12, 10000.0), head=one_of(("none", "tied", "own"), "none"))
def transformer(config, at):
    """`at(name, *shape)` gives the arrays of a checkpoint; the operator maps one-hot tokens to features."""
    n, f, h, g, d = (config[name] for name in SIZES)
    if d % 2 and config["positions"] == "rotary": raise wrong("head_dim", d, "even, as pairs of columns are rotated")
    if h % g: raise wrong("num_key_value_heads", g, f"a divisor of num_attention_heads, {h}")
    act, where = ACTIVATIONS[config["hidden_act"]], read_pattern(config)
    unit = NORMS[config["norm"]](config["norm_eps"])
    turned = rotary(config["max_position_embeddings"], d,
                    config["rope_theta"]) if config["positions"] == "rotary" else None

    def linear(name, n, p):
        W = at(f"{name}.weight", p, n).T
        return affine(W, at(f"{name}.bias", p)) if config["bias"] else weight(W)

    def norm(name):
        gained = unit @ diag(at(f"{name}.weight", n))
        return gained + const(at(f"{name}.bias", n)) if config["norm"] == "layer" else gained

    def mixing(l):
        Q, K, V = (linear(f"{l}.{part}", n, d * count) for part, count in (("query", h), ("key", g), ("value", g)))
        mixed = attention(Q, K, V, h, where, turned) if g == h else grouped(Q, K, V, h, g, where, turned)
        return mixed @ linear(f"{l}.output", d * h, n)

    def feeding(l):
        up = linear(f"{l}.gate", n, f) @ act * linear(f"{l}.up", n,
                                                      f) if config["gated"] else linear(f"{l}.up", n, f) @ act
        return up @ linear(f"{l}.down", f, n)

    def layer(l):
        F, G, first, second = mixing(l), feeding(l), norm(f"{l}.norm1"), norm(f"{l}.norm2")
        return (I + first @ F) @ (I + second @ G) if config["pre_norm"] else (I + F) @ first @ (I + G) @ second

    tokens, positions = config["vocab_size"], config["max_position_embeddings"]
    embed = weight(table := at("tokens", tokens, n))
    if turned is None: embed = embed + given("positions", positions) @ weight(at("positions", positions, n))
    layers = [layer(f"layer.{i}") for i in range(config["num_hidden_layers"])]
    heads = {"none": lambda: [], "tied": lambda: [weight(table.T)], "own": lambda: [weight(at("head", tokens, n).T)]}
    return reduce(matmul, [embed, *layers, *([norm("norm")] if config["pre_norm"] else []), *heads[config["head"]]()])


def read_pattern(config):
    """Who sees whom; within sequences."""
    try: found = parse(config["mask"])
    except ValueError as error: raise wrong("mask", config["mask"], f"a pattern ({error})") from error
    if found.within: return found
    raise wrong("mask", config["mask"], "a pattern that looks within sequences: begin it with 'sequence & '")


MASKS = ("sequence", "sequence & causal", "sequence & window({})", "sequence & causal & window({})")


def random_config(rng):
    """A small configuration: 1 to 3 layers, width at most 96."""
    pick = lambda *among: among[rng.integers(len(among))]
    h, d = int(rng.integers(1, 7)), int(pick(2, 4, 5, 8, 12, 16))
    shared = [g for g in range(1, h + 1) if h % g == 0]
    return dict(
        model_type="transformer", vocab_size=int(rng.integers(5, 200)), max_position_embeddings=64,
        hidden_size=int(pick(h * d, rng.integers(8, 97))), intermediate_size=int(rng.integers(8, 193)),
        num_hidden_layers=int(rng.integers(1, 4)), num_attention_heads=h, num_key_value_heads=int(pick(*shared)),
        head_dim=d, norm=pick("layer", "rms"), norm_eps=float(pick(1e-12, 1e-6, 1e-5)), pre_norm=bool(rng.integers(2)),
        hidden_act=pick("gelu", "gelu_new", "relu", "silu", "tanh"), gated=bool(rng.integers(2)),
        bias=bool(rng.integers(2)),
        mask=pick(*MASKS).format(int(rng.integers(0, 9))))


def random_weights(config, rng):
    """`at` for a configuration: random arrays of the size that training starts from, gains about one, kept by name."""
    made = {}

    def at(name, *shape):
        if name not in made:
            scale = shape[-1] ** -0.5 if len(shape) > 1 and "." in name else 0.1 if len(shape) == 1 else 1.0
            numbers = rng.normal(size=shape) * scale + (len(shape) == 1 and name.endswith("weight"))
            made[name] = Data(numbers.astype(np.float32), name)
        return made[name]
    at.made = made
    return at


def random_sentences(config, rng, count=4):
    """Sentences of unequal length, one of a single token, as rows of ids."""
    longest = config["max_position_embeddings"]
    lengths = [1, *rng.integers(1, min(longest, 24) + 1, count - 1)]
    return [rng.integers(0, config["vocab_size"], n) for n in rng.permutation(lengths)]
