"""Mistral (Jiang et al. 2023): a LLaMA that looks back no further than a window. Mixtral (Jiang et al. 2024): a Mistral
whose gated units are experts, of which each token is routed to the best few."""

from opmatrix.algebra.operators import ACTIVATIONS
from opmatrix.algebra.term import Operator
from opmatrix.models.config import ArraySource, Settings, declares, dimension, optional, whole
from opmatrix.models.experts import EXPERT_KEYS, GATED, Experts, best_shares, renormalised
from opmatrix.models.llama import LLAMA_KEYS, PAIRED, decoder, seen_within


@declares(PAIRED, **LLAMA_KEYS, sliding_window=optional(whole()))
def mistral(config: Settings, at: ArraySource) -> Operator:
    """A token sees itself and those before it, `sliding_window` in all."""
    return decoder(config, at, where=lambda l: seen_within(config["sliding_window"], config["is_causal"]))


FIRST_NAMES = dict(gate_proj="w1", up_proj="w3", down_proj="w2")  # the names in files since the first release
MIXTRAL = PAIRED._replace(
    spellings=((".mlp.gate.weight", ".block_sparse_moe.gate.weight"),),
    stacks={
        f".mlp.experts.{part}": (found := GATED[f"experts.{part}"])._replace(
            apart=(f".block_sparse_moe.experts.#.{old}.weight", f".mlp.experts.#.{old}.weight"),
            fused=f".mlp.{found.fused}",
            alone=f".mlp.{found.alone}",
        )
        for part, old in FIRST_NAMES.items()
    },
)


@declares(
    MIXTRAL,
    **LLAMA_KEYS,
    **EXPERT_KEYS | dict(num_experts=dimension().under("num_local_experts")),
    sliding_window=optional(whole()),
)
def mixtral(config: Settings, at: ArraySource) -> Operator:
    """Experts in place of gated units; shares of the chosen ones sum to one."""
    experts = Experts(
        config["num_experts"], config["intermediate_size"], config["num_experts_per_tok"], "num_local_experts"
    )
    gate = best_shares(experts.asked) @ renormalised()

    def unit(l: int, name: str) -> Operator:
        """Build the experts of a layer."""
        return experts.layer(at, name, config["hidden_size"], ACTIVATIONS[config["hidden_act"]], gate)

    return decoder(config, at, where=lambda l: seen_within(config["sliding_window"], config["is_causal"]), unit=unit)
