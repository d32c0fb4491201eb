"""DeepSeek-V3 (Liu et al. 2024, section 2.1.2): experts in groups, where a token is routed to the best experts of the
best few groups, and shared experts that all tokens go through. Its latent attention is not built yet: attention is
grouped, as in LLaMA, with as many heads; the parameters that this adds are listed where the model is known by name."""

from opmatrix.algebra.operators import ACTIVATIONS, const, heads, keep_top, ones, sigmoid
from opmatrix.algebra.shapes import divides
from opmatrix.algebra.term import Operator, Value, operator
from opmatrix.models.config import ArraySource, Settings, declares, dimension, flag, never, real, whole, wrong
from opmatrix.models.experts import EXPERT_KEYS, GATED, Experts, plain_unit, renormalised
from opmatrix.models.llama import LAYOUT, LLAMA_KEYS, decoder

LATENT = "latent attention is not implemented, only grouped attention"
BELOW_ALL = -1e9  # a number below any score of an expert
DEEPSEEK_KEYS = (
    LLAMA_KEYS
    | EXPERT_KEYS
    | dict(
        num_experts=dimension().under("n_routed_experts"),
        moe_intermediate_size=dimension(),
        n_shared_experts=whole(),
        n_group=whole(),
        topk_group=whole(),
        first_k_dense_replace=whole(0),
        norm_topk_prob=flag(True),
        routed_scaling_factor=real(1e-6, 1e6, 1.0),
        attention_bias=flag(False),
        q_lora_rank=never(None, LATENT),
        kv_lora_rank=never(None, LATENT),
    )
)


@operator
def best_of_best_groups(x: Value, bias: Operator, groups: int, reached: int, k: int) -> Value:
    """The k largest logistic scores of a row within the `reached` best of its groups of neighbours, those whose two
    best scores sum highest. A bias, by which experts are kept equally busy, decides which experts are chosen and not
    how much they count."""
    scores = x @ sigmoid
    grouped = (scores + bias) @ heads(groups)
    best = keep_top(grouped, grouped, 2) @ ones @ heads(groups).T
    others = (keep_top(const(1.0), best, reached) + const(-1.0)) * const(-BELOW_ALL)
    return keep_top(scores, (grouped + others @ heads(groups)) @ heads(groups).T, k)


@declares(LAYOUT._replace(stacks=GATED), **DEEPSEEK_KEYS)
def deepseek_v3(config: Settings, at: ArraySource) -> Operator:
    """The first layers have a gated unit, the others experts behind the router, and the shared ones as one."""
    n, count, groups = config["hidden_size"], config["num_experts"], config["n_group"]
    act, f = ACTIVATIONS[config["hidden_act"]], config["moe_intermediate_size"]
    experts = Experts(count, f, config["num_experts_per_tok"], "n_routed_experts")
    if not divides(groups, count):
        raise wrong("n_group", groups, f"a divisor of n_routed_experts, {count}")
    if config["topk_group"] > groups:
        raise wrong("topk_group", config["topk_group"], f"at most n_group, {groups}")

    def unit(l: int, name: str) -> Operator:
        """Build the unit of layer l: gated in the first layers, else routed experts and the shared ones."""
        if l < config["first_k_dense_replace"]:
            return plain_unit(at, name, n, config["intermediate_size"], act)
        bias = const(at(f"{name}.gate.e_score_correction_bias", count))
        gate = best_of_best_groups(bias, groups, config["topk_group"], experts.asked)
        if config["norm_topk_prob"]:
            gate = gate @ renormalised()
        gate = gate * const(float(config["routed_scaling_factor"]))
        shared = plain_unit(at, f"{name}.shared_experts", n, f * config["n_shared_experts"], act)
        return experts.layer(at, name, n, act, gate) + shared

    return decoder(config, at, ("q", "k", "v", "o") * config["attention_bias"], unit=unit)
