"""Pangu-alpha (Zeng et al. 2021): a GPT whose last layer has queries by position. openPangu-Embedded: a LLaMA with
biases. Pangu Pro MoE (Tang et al. 2025): a LLaMA whose tokens are routed to the best expert of each group, and to a
shared expert."""

from functools import reduce
from operator import matmul

from opmatrix.algebra.operators import ACTIVATIONS, I, affine, attention, const, diag, given, layernorm, weight
from opmatrix.algebra.positions.patterns import causal, sequence
from opmatrix.algebra.shapes import LiveSize, divides
from opmatrix.algebra.term import Operator
from opmatrix.models.config import (
    ArraySource,
    Settings,
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
from opmatrix.models.experts import DENSE_LAYERS, EXPERT_KEYS, GATED, Experts, best_of_groups, plain_unit
from opmatrix.models.gpt2 import GPT, SCORES_SCALED
from opmatrix.models.llama import LAYOUT, LLAMA_KEYS, QKV, decoder

SECOND = "the second version of this model differs and is not supported"
SCALED = "shares of the chosen experts are scaled by router_scale alone"


@declares(
    GPT,
    vocab_size=dimension(),
    hidden_size=dimension(),
    max_position_embeddings=dimension(),
    num_attention_heads=dimension().under("num_heads"),
    num_hidden_layers=layers(1).under("num_layers"),
    intermediate_size=optional(dimension()),
    layer_norm_eps=real(1e-20, 1, 1e-5).under("layer_norm_epsilon"),
    hidden_act=one_of(ACTIVATIONS, "gelu").under("activation_function"),
    tie_word_embeddings=never(True, "scores of the vocabulary are by the table of tokens"),
    scale_attn_weights=never(True, SCORES_SCALED),
)
def pangu_alpha(config: Settings, at: ArraySource) -> Operator:
    """`at(name, *shape)` gives the arrays of a checkpoint; the operator maps one-hot tokens to features."""
    n, h, f, eps = (config[k] for k in ("hidden_size", "num_attention_heads", "intermediate_size", "layer_norm_eps"))
    if not divides(h, n):
        raise wrong("num_heads", h, f"a divisor of hidden_size, {n}")
    f, act, positions = f or 4 * n, ACTIVATIONS[config["hidden_act"]], config["max_position_embeddings"]
    last = config["num_hidden_layers"] - 1

    def linear(name: str, n: LiveSize, p: LiveSize) -> Operator:
        """Build x @ W + b; files store W as (outputs, inputs)."""
        return affine(at(f"{name}.weight", p, n).T, at(f"{name}.bias", p))

    def norm(name: str) -> Operator:
        """Build a layer norm with gain and shift."""
        return layernorm(eps) @ diag(at(f"{name}.weight", n)) + const(at(f"{name}.bias", n))

    def by_position(name: str) -> Operator:
        """Read a table of positions: each row's is its value, whatever x is."""
        return given("positions", positions) @ weight(at(name, positions, n))

    def layer(l: str, asking: Operator | None = None) -> Operator:
        """Build a layer. Queries are of `asking` where it is given, else of the normed states; keys and values are of
        the normed states."""
        normed = norm(f"{l}.ln_1")
        Q, K, V = (linear(f"{l}.attn.{part}_proj", n, n) for part in "qkv")
        mixed = attention((asking or normed) @ Q, normed @ K, normed @ V, h, sequence & causal)
        F = mixed @ linear(f"{l}.attn.c_proj", n, n)
        G = linear(f"{l}.mlp.c_fc", n, f) @ act @ linear(f"{l}.mlp.c_proj", f, n)
        return (I + F) @ (I + norm(f"{l}.ln_2") @ G)

    embed = weight(at("wte.weight", config["vocab_size"], n)) + by_position("wpe.weight")
    blocks = [layer(f"h.{l}") for l in range(last)]
    return reduce(matmul, [embed, *blocks, norm("ln_f"), layer(f"h.{last}", by_position("wqe.weight"))])


@declares(LAYOUT, **LLAMA_KEYS, attention_bias=flag(True).under("bias"))
def pangu_embedded(config: Settings, at: ArraySource) -> Operator:
    """A LLaMA with biases on queries, keys, values and the product behind them."""
    return decoder(config, at, (*QKV, "o") * config["attention_bias"])


@declares(
    LAYOUT._replace(stacks=GATED),
    **LLAMA_KEYS | dict(intermediate_size=optional(dimension())),
    **EXPERT_KEYS,
    moe_intermediate_size=dimension(),
    shared_expert_intermediate_size=dimension(),
    mlp_only_layers=DENSE_LAYERS,
    norm_topk_prob=never(False, SCALED),
    routed_scaling_factor=never(1.0, SCALED),
    router_enable_expert_bias=never(False, SECOND),
    sandwich_norm=never(False, SECOND),
    param_sink_number=never(0, SECOND),
)
def pangu_pro(config: Settings, at: ArraySource) -> Operator:
    """One expert of each group, its share of all experts times a learned number, and the shared expert."""
    n, count, groups = (config[key] for key in ("hidden_size", "num_experts", "num_experts_per_tok"))
    act, shared = ACTIVATIONS[config["hidden_act"]], config["shared_expert_intermediate_size"]
    experts = Experts(count, config["moe_intermediate_size"], groups)
    if not divides(groups, count):
        raise wrong(
            "num_experts_per_tok", groups, f"a divisor of num_experts, {count}: one expert of each group is selected"
        )

    def unit(l: int, name: str) -> Operator:
        """Build the unit of layer l: gated in the listed layers, else one expert of each group, and the shared one.
        Raises InputError if a listed layer has no size."""
        if l in config["mlp_only_layers"]:
            if (inner := config["intermediate_size"]) is not None:
                return plain_unit(at, name, n, inner, act)
            raise wrong("intermediate_size", None, "a whole number, as mlp_only_layers require")
        gate = best_of_groups(groups) * const(at(f"{name}.router_scale", 1, count))
        return experts.layer(at, name, n, act, gate) + plain_unit(at, f"{name}.shared_expert", n, shared, act)

    return decoder(config, at, (*QKV, "o"), unit=unit)
