"""DeepSeek-V2 (DeepSeek-AI 2024) and DeepSeek-V3 (Liu et al. 2024): latent attention; experts, in groups of which a
token is routed to the best few, and shared experts that all tokens go through. A DeepSeek-V3 whose config has no
`kv_lora_rank` has grouped attention, as in LLaMA."""

from collections.abc import Callable

from opmatrix.algebra.operators import (
    ACTIVATIONS,
    const,
    heads,
    keep_top,
    maximum,
    ones,
    over,
    relu,
    repeat,
    share,
    sigmoid,
)
from opmatrix.algebra.shapes import LiveSize, divides
from opmatrix.algebra.term import Operator, Value, operator
from opmatrix.models import rope
from opmatrix.models.config import (
    ArraySource,
    Settings,
    declares,
    dimension,
    flag,
    never,
    one_of,
    optional,
    real,
    whole,
    wrong,
)
from opmatrix.models.decoders.latent import LATENT_KEYS, LatentAttention, latent_positions
from opmatrix.models.experts import EXPERT_KEYS, GATED, Experts, best_shares, plain_unit, renormalised
from opmatrix.models.llama import LAYOUT, LLAMA_KEYS, MLP, QKV, DecoderForm, decoder, seen_within

BELOW_ALL = -1e9  # a number below any score of an expert
GREEDY, LIMITED = "greedy", "group_limited_greedy"  # ways to choose experts by their shares
UNSCALED = "shares that sum to one are not scaled, and no published model has them"
GGUF_PARTS = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
    "exp_probs_b": "mlp.gate.e_score_correction",
    **{f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj" for part in MLP},
}
NAMES = LAYOUT._replace(
    stacks=GATED,
    positions=latent_positions,
    spellings=(("e_score_correction_bias", "e_score_correction.bias"),),
    gguf={**LAYOUT.gguf} | {f"blk.#.{theirs}": f"layers.#.{ours}" for theirs, ours in GGUF_PARTS.items()},
)
SHARED_KEYS = (
    LLAMA_KEYS
    | EXPERT_KEYS
    | dict(
        num_experts=dimension().under("n_routed_experts"),
        moe_intermediate_size=dimension(),
        n_shared_experts=whole(),
        first_k_dense_replace=whole(0),
        routed_scaling_factor=real(1e-6, 1e6, 1.0),
        attention_bias=flag(False),
    )
)
V2_KEYS = (
    SHARED_KEYS
    | LATENT_KEYS
    | dict(
        rope_interleave=never(True, "its queries and keys rotate by pairs"),
        topk_method=one_of((GREEDY, LIMITED), GREEDY),
        n_group=optional(whole()),
        topk_group=optional(whole()),
        norm_topk_prob=never(False, UNSCALED),
        mlp_bias=never(False, "its units have no biases"),
    )
)
OPTIONAL_LATENT = {
    name: optional(LATENT_KEYS[name]) for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
}
V3_KEYS = (
    SHARED_KEYS
    | LATENT_KEYS
    | OPTIONAL_LATENT
    | dict(n_group=whole(), topk_group=whole(), norm_topk_prob=flag(True), num_nextn_predict_layers=whole(0, default=0))
)


@operator
def best_of_best_groups(x: Value, bias: Operator, count: LiveSize, groups: int, reached: int, k: int) -> Value:
    """The k largest of `count` logistic scores of a row within the `reached` best of its groups of neighbours, those
    whose two best scores sum highest. A bias, by which experts are kept equally busy, decides which experts are chosen
    and not how much they count."""
    scores = x @ sigmoid
    biased = scores + bias
    grouped = biased @ heads(groups)
    best = keep_top(grouped, grouped, 2) @ ones @ heads(groups).T
    return keep_top(scores, biased + hidden_groups(best, groups, reached) @ over_groups(groups, count), k)


@operator
def best_shares_of_groups(x: Value, count: LiveSize, groups: int, reached: int, k: int) -> Value:
    """The k largest of `count` shares of a row within the `reached` best of its groups of neighbours, those that have
    the largest ones: DeepSeek-V2, section 2.2.2."""
    shares = x @ share
    best = shares @ heads(groups) @ over(ones, maximum) @ heads(groups).T
    return keep_top(shares, shares + hidden_groups(best, groups, reached) @ over_groups(groups, count), k)


def hidden_groups(best: Value, groups: int, reached: int) -> Value:
    """Return 0 for each of the `reached` groups with the largest numbers in `best`, and a number below any score for
    the others."""
    positive = best @ relu + const(1.0)
    lost: Value = keep_top(positive, best, reached) + positive * const(-1.0)
    return lost * const(-BELOW_ALL)


def over_groups(groups: int, count: LiveSize) -> Operator:
    """Return the operator that gives each of `count` experts the number of its group."""
    spread: Operator = heads(groups) @ repeat(count) @ heads(count).T
    return spread


@declares(NAMES, **V2_KEYS)
def deepseek_v2(config: Settings, at: ArraySource) -> Operator:
    """Shares of all experts by softmax, of which the largest are kept, of all experts or of the best groups."""
    k, groups, reached = (config[key] for key in ("num_experts_per_tok", "n_group", "topk_group"))
    gate = best_shares(k)
    if config["topk_method"] == LIMITED:
        check_groups(config)
        gate = best_shares_of_groups(config["num_experts"], groups, reached, k)
    return with_experts(config, at, lambda name: gate)


@declares(NAMES, **V3_KEYS)
def deepseek_v3(config: Settings, at: ArraySource) -> Operator:
    """Logistic scores, of which the largest are kept, within the best groups by a bias, and made to sum to one."""
    check_groups(config)

    count, groups, reached, k = (config[key] for key in ("num_experts", "n_group", "topk_group", "num_experts_per_tok"))

    def gate(name: str) -> Operator:
        """Build the gate of the experts of this name from the scores of their router."""
        bias = const(at(f"{name}.gate.e_score_correction_bias", count))
        kept: Operator = best_of_best_groups(bias, count, groups, reached, k)
        return kept @ renormalised() if config["norm_topk_prob"] else kept

    return with_experts(config, at, gate)


def check_groups(config: Settings) -> None:
    """Raise InputError for groups of experts that are not equal, or too few of them."""
    groups, count, reached = (config[key] for key in ("n_group", "num_experts", "topk_group"))
    if groups is None or not divides(groups, count):
        raise wrong("n_group", groups, f"a divisor of n_routed_experts, {count}")
    if reached is None or reached > groups:
        raise wrong("topk_group", reached, f"at most n_group, {groups}")


def with_experts(config: Settings, at: ArraySource, gate: Callable[[str], Operator]) -> Operator:
    """Build a decoder whose first layers have a gated unit, the others experts behind a router, and the shared ones as
    one. `gate` builds the gate of experts by their name."""
    n, act, f = config["hidden_size"], ACTIVATIONS[config["hidden_act"]], config["moe_intermediate_size"]
    experts = Experts(config["num_experts"], f, config["num_experts_per_tok"], "n_routed_experts")

    def unit(l: int, name: str) -> Operator:
        """Build the unit of layer l."""
        if l < config["first_k_dense_replace"]:
            return plain_unit(at, name, n, config["intermediate_size"], act)
        scaled = gate(name) * const(float(config["routed_scaling_factor"]))
        shared = plain_unit(at, f"{name}.shared_experts", n, f * config["n_shared_experts"], act)
        return experts.layer(at, name, n, act, scaled) + shared

    if (rank := config["kv_lora_rank"]) is None:
        return decoder(config, at, (*QKV, "o") * config["attention_bias"], unit=unit)
    for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        if config[name] is None:
            raise wrong(name, None, f"given beside kv_lora_rank, {rank}")
    rotation = rope.rope(config, config["qk_rope_head_dim"])
    attention = LatentAttention(config, at, seen_within(None, config["is_causal"]), rotation)
    return decoder(config, at, unit=unit, form=DecoderForm(mixing=attention.build))
