"""Qwen2-MoE (Yang et al. 2024, section 2.2.2): a Qwen2 with experts in every `decoder_sparse_step`th layer, and one
more expert that all tokens go through, behind a gate of its own. Qwen3-MoE (Yang et al. 2025): a Qwen3 with experts
alone."""

from collections.abc import Callable

from opmatrix.algebra.operators import ACTIVATIONS, sigmoid, weight
from opmatrix.algebra.term import Operator
from opmatrix.models.config import ArraySource, Settings, declares, dimension, flag, never, optional, whole
from opmatrix.models.experts import (
    EXPERT_KEYS,
    GATED,
    SPARSE_KEYS,
    Experts,
    asks_experts,
    best_shares,
    plain_unit,
    renormalised,
)
from opmatrix.models.llama import LAYOUT, LLAMA_KEYS, QKV, decoder, seen_within

QWEN_MOE = LAYOUT._replace(stacks=GATED)
SHARED_KEYS = LLAMA_KEYS | EXPERT_KEYS | SPARSE_KEYS | dict(moe_intermediate_size=dimension())
# as versions of transformers write it
QWEN3_KEYS = SHARED_KEYS | dict(num_experts=dimension().once("num_local_experts"))


@declares(
    QWEN_MOE,
    **SHARED_KEYS,
    shared_expert_intermediate_size=dimension(),
    qkv_bias=flag(True),
    use_sliding_window=never(False, "versions of the published code differ in which layers have the window"),
)
def qwen2_moe(config: Settings, at: ArraySource) -> Operator:
    """A layer's experts, and the shared one times the logistic function of a score."""
    return decoder(config, at, QKV * config["qkv_bias"], unit=shared_unit(config, at))


@declares(
    QWEN_MOE, **QWEN3_KEYS, attention_bias=flag(False), use_sliding_window=flag(False), sliding_window=optional(whole())
)
def qwen3_moe(config: Settings, at: ArraySource) -> Operator:
    """The experts of a layer alone; a window is that of all layers."""
    seen = config["sliding_window"] if config["use_sliding_window"] else None
    n, f, act = config["hidden_size"], config["intermediate_size"], ACTIVATIONS[config["hidden_act"]]

    def unit(l: int, name: str) -> Operator:
        """Build the unit of layer l: experts, or a gated unit."""
        if asks_experts(config, l):
            return routed_layer(config, at, name, config["num_experts"])
        return plain_unit(at, name, n, f, act)

    return decoder(
        config,
        at,
        (*QKV, "o") * config["attention_bias"],
        normed=True,
        where=lambda l: seen_within(seen, config["is_causal"]),
        unit=unit,
    )


def shared_unit(config: Settings, at: ArraySource) -> Callable[[int, str], Operator]:
    """Return the builder of the unit of layer l by its name: gated, or routed experts and the shared one behind its
    gate."""
    n, shared, act = config["hidden_size"], config["shared_expert_intermediate_size"], ACTIVATIONS[config["hidden_act"]]

    def unit(l: int, name: str) -> Operator:
        """Build the unit of layer l."""
        if not asks_experts(config, l):
            return plain_unit(at, name, n, config["intermediate_size"], act)
        always = plain_unit(at, f"{name}.shared_expert", n, shared, act)
        share = weight(at(f"{name}.shared_expert_gate.weight", 1, n).T) @ sigmoid
        return routed_layer(config, at, name, config["num_experts"]) + always * share

    return unit


def routed_layer(config: Settings, at: ArraySource, name: str, count: int) -> Operator:
    """Build the experts that the router chooses, whose shares are made to sum to one where the config says so."""
    experts = Experts(count, config["moe_intermediate_size"], config["num_experts_per_tok"])
    best = best_shares(experts.asked)
    gate = best @ renormalised() if config["norm_topk_prob"] else best
    return experts.layer(at, name, config["hidden_size"], ACTIVATIONS[config["hidden_act"]], gate)
