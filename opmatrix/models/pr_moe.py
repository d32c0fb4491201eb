"""PR-MoE (Rajbhandari et al. 2022, section 4.1): a GPT-2 some of whose perceptrons have experts beside them, of which a
token is routed to one; the weight of either is learned, and later layers may have more experts."""

from opmatrix.algebra.operators import ACTIVATIONS, affine, cols, share, weight
from opmatrix.algebra.term import Operator
from opmatrix.models.config import ArraySource, Key, Settings, StackNames, declares, whole, wrong
from opmatrix.models.experts import best_shares, mixture
from opmatrix.models.gpt2 import GPT, GPT2_KEYS, Perceptron, stacked_layers

EXPERT_COUNTS = Key(
    "a list of whole numbers from 1 on",
    lambda said: isinstance(said, list) and all(type(count) is int and count > 0 for count in said),
)
EXPERTS = "deepspeed_moe.experts.deepspeed_experts"  # DeepSpeed's layer of experts, by its own names
PARTS = [f"{EXPERTS}.{{}}{part}.{kind}" for part in ("c_fc", "c_proj") for kind in ("weight", "bias")]
PR_MOE = GPT._replace(stacks={part.format(""): StackNames((part.format("#."),), part.format("")) for part in PARTS})


@declares(PR_MOE, **GPT2_KEYS, num_experts=EXPERT_COUNTS, expert_interval=whole(default=2))
def pr_moe(config: Settings, at: ArraySource) -> Operator:
    """Every `expert_interval`th layer has experts; their numbers are the list `num_experts`, in order."""
    n, every, counts = (config[key] for key in ("hidden_size", "expert_interval", "num_experts"))
    if len(counts) != (wanted := config["num_hidden_layers"] // every):
        raise wrong("num_experts", counts, f"as long as there are layers with experts, {wanted}")
    f, act = config["intermediate_size"] or 4 * n, ACTIVATIONS[config["hidden_act"]]

    def chosen(name: str, count: int) -> Operator:
        """Build one expert of each row, times its share; the biases behind the experts are the gate times the matrix of
        their rows."""
        gate = weight(at(f"{name}.deepspeed_moe.gate.wg.weight", count, n).T) @ best_shares(1)
        up = affine(at(f"{name}.{EXPERTS}.c_fc.weight", count, n, f), at(f"{name}.{EXPERTS}.c_fc.bias", count, 1, f))
        down = weight(at(f"{name}.{EXPERTS}.c_proj.weight", count, f, n))
        return mixture(gate, up @ act @ down, count) + gate @ weight(at(f"{name}.{EXPERTS}.c_proj.bias", count, n))

    def unit(l: int, perceptron: Perceptron) -> Operator:
        """Build a perceptron, or in every `expert_interval`th layer one beside experts, weighted by two learned
        shares."""
        name = f"h.{l}.mlp"
        if (l + 1) % every:
            return perceptron(name)
        expert = chosen(name, counts[l // every])
        both = affine(at(f"{name}.coefficient.weight", 2, n).T, at(f"{name}.coefficient.bias", 2)) @ share
        mixed: Operator = expert * (both @ cols(0, 1, 2)) + perceptron(f"{name}.mlp") * (both @ cols(1, 2, 2))
        return mixed

    return stacked_layers(config, at, unit)
