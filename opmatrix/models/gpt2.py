"""GPT-2 (Radford et al. 2019): a transformer's decoder with norms before its parts, and one behind all. BLOOM (Scao et
al. 2022) has a bias of scores by distance (Press et al. 2022) in place of a table of positions."""

from collections.abc import Callable
from functools import reduce
from operator import matmul
from typing import TypeAlias

from opmatrix.algebra.monoids import softmax
from opmatrix.algebra.operators import (
    ACTIVATIONS,
    I,
    affine,
    attention,
    cols,
    const,
    diag,
    gelu_tanh,
    given,
    heads,
    layernorm,
    product,
    weight,
)
from opmatrix.algebra.positions.distances import alibi
from opmatrix.algebra.positions.patterns import causal, sequence
from opmatrix.algebra.shapes import LiveSize, certain, divides, quotient
from opmatrix.algebra.term import Operator, Value, formula
from opmatrix.models.config import (
    ALONE,
    NOT_QUANTISED,
    ArraySource,
    Settings,
    TensorNames,
    declares,
    dimension,
    flag,
    layers,
    never,
    one_of,
    optional,
    real,
    wrong,
)

SCORES_SCALED = "scores are always divided by the root of a head's columns"
GPT = TensorNames("transformer.", (), (".attn.bias", ".attn.masked_bias"), "wte.weight", "lm_head.weight")

Perceptron: TypeAlias = Callable[[str], Operator]  # builds a perceptron by its name
GPT2_KEYS = dict(
    vocab_size=dimension(),
    hidden_size=dimension().under("n_embd"),
    max_position_embeddings=dimension().under("n_positions"),
    num_attention_heads=dimension().under("n_head"),
    num_hidden_layers=layers().under("n_layer"),
    intermediate_size=optional(dimension()).under("n_inner"),
    layer_norm_eps=real(1e-20, 1, 1e-5).under("layer_norm_epsilon"),
    hidden_act=one_of(ACTIVATIONS, "gelu_new").under("activation_function"),
    tie_word_embeddings=flag(True),
    scale_attn_weights=never(True, SCORES_SCALED),
    scale_attn_by_inverse_layer_idx=never(False, SCORES_SCALED),
    add_cross_attention=ALONE,
    quantization_config=NOT_QUANTISED,
)


@declares(GPT, **GPT2_KEYS)
def gpt2(config: Settings, at: ArraySource) -> Operator:
    """`at(name, *shape)` gives the arrays of a checkpoint; the operator maps one-hot tokens to features."""
    return stacked_layers(config, at)


def stacked_layers(
    config: Settings, at: ArraySource, unit: Callable[[int, Perceptron], Operator] | None = None
) -> Operator:
    """Build layers of attention and of perceptrons, each behind a norm. `unit` builds the part of layer l that stands
    in place of a perceptron; it is given a function that builds a perceptron by its name."""
    n, h, f, eps = (config[k] for k in ("hidden_size", "num_attention_heads", "intermediate_size", "layer_norm_eps"))
    if not divides(h, n):
        raise wrong("n_head", h, f"a divisor of n_embd, {n}")
    f, act, positions = f or 4 * n, ACTIVATIONS[config["hidden_act"]], config["max_position_embeddings"]

    def linear(name: str, n: LiveSize, p: LiveSize) -> Operator:  # stored as [in, out]
        """Build x @ W + b; files store W as (inputs, outputs)."""
        return affine(at(f"{name}.weight", n, p), at(f"{name}.bias", p))

    def norm(name: str) -> Operator:
        """Build a layer norm with gain and shift."""
        return layernorm(eps) @ diag(at(f"{name}.weight", n)) + const(at(f"{name}.bias", n))

    def perceptron(name: str) -> Operator:
        """Build two products with the activation between."""
        return linear(f"{name}.c_fc", n, f) @ act @ linear(f"{name}.c_proj", f, n)

    def layer(i: int) -> Operator:
        """Build layer i: attention, then a perceptron or the caller's unit, each behind a norm and added to its
        input."""
        l = f"h.{i}"
        QKV = linear(f"{l}.attn.c_attn", n, 3 * n)
        Q, K, V = (QKV @ cols(part * n, (part + 1) * n, 3 * n) for part in range(3))
        F = attention(Q, K, V, h, sequence & causal) @ linear(f"{l}.attn.c_proj", n, n)
        G = unit(i, perceptron) if unit else perceptron(f"{l}.mlp")
        return (I + norm(f"{l}.ln_1") @ F) @ (I + norm(f"{l}.ln_2") @ G)

    def table(name: str, rows: LiveSize) -> Operator:
        """Read a table of embeddings: one-hot rows times it choose its rows."""
        return weight(at(f"{name}.weight", rows, n))

    embed = table("wte", config["vocab_size"]) + given("positions", positions) @ table("wpe", positions)
    return reduce(matmul, [embed, *map(layer, range(config["num_hidden_layers"])), norm("ln_f")])


MAX_SLOPES = (1 << 26) - 1  # most positions times heads
BLOOM = TensorNames("transformer.", table="word_embeddings.weight", head="lm_head.weight")
# published configs have older names for some
BLOOM_KEYS = dict(
    vocab_size=dimension(),
    hidden_size=dimension().once("n_embed"),
    num_attention_heads=dimension().under("n_head").once("num_attention_heads"),
    num_hidden_layers=layers().under("n_layer").once("num_hidden_layers"),
    intermediate_size=optional(dimension()).under("n_inner"),
    max_position_embeddings=dimension(2048).under("seq_length"),
    layer_norm_eps=real(1e-20, 1, 1e-5).under("layer_norm_epsilon"),
    tie_word_embeddings=flag(True),
    apply_residual_connection_post_layernorm=never(False, "the residual is always the value before its norm"),
    quantization_config=NOT_QUANTISED,
)


@declares(BLOOM, **BLOOM_KEYS)
def bloom(config: Settings, at: ArraySource) -> Operator:
    """Embeddings have a norm of their own; in every head a score loses its slope times the distance."""
    n, h, f, eps = (config[k] for k in ("hidden_size", "num_attention_heads", "intermediate_size", "layer_norm_eps"))
    if not divides(h, n):
        raise wrong("n_head", h, f"a divisor of hidden_size, {n}")
    positions = config["max_position_embeddings"]
    if certain(positions * h > MAX_SLOPES):
        raise wrong("seq_length", positions, f"at most {MAX_SLOPES // h:,} for {h} heads, each with a table")
    f, d, near = f or 4 * n, quotient(n, h), alibi(h, positions)

    def linear(name: str, n: LiveSize, p: LiveSize) -> Operator:
        """Build x @ W + b; files store W as (outputs, inputs)."""
        return affine(at(f"{name}.weight", p, n).T, at(f"{name}.bias", p))

    def norm(name: str) -> Operator:
        """Build a layer norm with gain and shift."""
        return layernorm(eps) @ diag(at(f"{name}.weight", n)) + const(at(f"{name}.bias", n))

    def mixing(name: str) -> Operator:
        """Build attention; queries, keys and values of one head lie side by side in one matrix."""

        def mixed(x: Value) -> Value:
            """Attend causally with the bias by distance, from one product for queries, keys and values."""
            projected = x @ linear(f"{name}.query_key_value", n, 3 * n) @ heads(h)
            q, k, v = (projected @ cols(part * d, (part + 1) * d, 3 * d) for part in range(3))
            attended: Value = product(q @ k.T * d**-0.5 + near, v, over=softmax, where=sequence & causal) @ heads(h).T
            return attended

        return formula(mixed) @ linear(f"{name}.dense", n, n)

    def layer(i: int) -> Operator:
        """Build layer i: attention and a perceptron, each behind a norm and added to its input."""
        l = f"h.{i}"
        G = linear(f"{l}.mlp.dense_h_to_4h", n, f) @ gelu_tanh @ linear(f"{l}.mlp.dense_4h_to_h", f, n)
        F = mixing(f"{l}.self_attention")
        return (I + norm(f"{l}.input_layernorm") @ F) @ (I + norm(f"{l}.post_attention_layernorm") @ G)

    embed = weight(at("word_embeddings.weight", config["vocab_size"], n)) @ norm("word_embeddings_layernorm")
    return reduce(matmul, [embed, *map(layer, range(config["num_hidden_layers"])), norm("ln_f")])
