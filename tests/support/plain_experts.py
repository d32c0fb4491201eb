"""Mixtures of experts in plain numpy, row by row and expert by expert, as their papers write them: `w` gives arrays by
name, those of experts with three axes."""

import numpy as np
import plain
import plain_decoders
from plain import SILU, linear


def softmax(x):
    p = np.exp(x - x.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def best(scores, k):
    """The k largest of a row; of equal ones the first."""
    return np.argsort(-scores, kind="stable")[:k]


def gated(x, w, name, e=None):
    """A gated unit, or expert e of those that are called so."""
    gate, up, down = (
        w[f"{name}.{part}_proj.weight"] if e is None else w[f"{name}.{part}_proj"][e] for part in ("gate", "up", "down")
    )
    return (SILU(x @ gate.T) * (x @ up.T)) @ down.T


def asked(x, w, name, gates, expert):
    """Of each row what its experts say, times their gates; `gates` gives a row's, by number."""
    out = np.zeros_like(x)
    for r, (row, shares) in enumerate(zip(x, softmax(x @ w[name].T), strict=True)):
        for e, gate in gates(shares).items():
            out[r] += gate * expert(row, e)
    return out


def best_gates(k, normalised):
    def gates(shares):
        chosen = {e: shares[e] for e in best(shares, k)}
        return {e: gate / sum(chosen.values()) for e, gate in chosen.items()} if normalised else chosen

    return gates


def experts(x, w, name, gates):
    return asked(x, w, f"{name}.gate.weight", gates, lambda row, e: gated(row, w, f"{name}.experts", e))


def mixtral(c, w, tokens):
    """Jiang et al. 2024, section 2.1."""
    gates = best_gates(c["num_experts_per_tok"], True)
    return decoder(c, w, tokens, lambda x, i, name: experts(x, w, name, gates))


def qwen(c, w, tokens, layers=None):
    """Yang et al. 2024, section 2.2.2, with a shared expert where there is one, and dense layers; `layers` computes a
    text by its units, by default as LLaMA."""
    gates = best_gates(c["num_experts_per_tok"], c.get("norm_topk_prob", False))

    def unit(x, i, name):
        if (i + 1) % c.get("decoder_sparse_step", 1) or i in c.get("mlp_only_layers", ()):
            return gated(x, w, name)
        found = experts(x, w, name, gates)
        if f"{name}.shared_expert_gate.weight" not in w:
            return found
        share = 1 / (1 + np.exp(-linear(x, w, f"{name}.shared_expert_gate")))
        return found + share * gated(x, w, f"{name}.shared_expert")

    return (layers or decoder)(c, w, tokens, unit)


def qwen3_next(c, w, tokens):
    """Qwen3-Next: shares of the chosen experts sum to one."""
    return qwen({"norm_topk_prob": True} | c, w, tokens, plain_decoders.qwen3_next)


def pangu(c, w, tokens):
    """Tang et al. 2025, eq. 5 to 7, with the learned scale of each expert."""
    groups = c["num_experts_per_tok"]
    each = c["num_experts"] // groups

    def unit(x, i, name):
        if i in c.get("mlp_only_layers", ()):
            return gated(x, w, name)

        def gates(shares):
            chosen = [g * each + int(np.argmax(shares[g * each : (g + 1) * each])) for g in range(groups)]
            return {e: shares[e] * w[f"{name}.router_scale"][0, e] for e in chosen}

        return experts(x, w, name, gates) + gated(x, w, f"{name}.shared_expert")

    return decoder(c, w, tokens, unit)


def decoder(c, w, tokens, unit):
    """plain.llama, with another unit in its layers."""
    return plain.llama(c, w, tokens, unit=unit)


def gpt_oss(c, w, tokens):
    """OpenAI 2025: softmax over the chosen scores; sides of gates and factors take turns; windows in every second
    layer."""

    def unit(x, i, name):
        out = np.zeros_like(x)
        for r, scores in enumerate(linear(x, w, f"{name}.router")):
            chosen = best(scores, c["num_experts_per_tok"])
            for e, share in zip(chosen, softmax(scores[chosen]), strict=True):
                gate, up = (w[f"{name}.experts.{side}_proj"][e] @ x[r] for side in ("gate", "up"))
                biases = w[f"{name}.experts.gate_up_proj_bias"][e]
                gate, up = np.minimum(gate + biases[::2], 7), np.clip(up + biases[1::2], -7, 7)
                hidden = (up + 1) * gate / (1 + np.exp(-1.702 * gate))
                said = w[f"{name}.experts.down_proj"][e] @ hidden + w[f"{name}.experts.down_proj_bias"][e]
                out[r] += share * said
        return out

    far = len(tokens)
    windows = [far if i % 2 else c["sliding_window"] for i in range(c["num_hidden_layers"])]
    return plain.llama(c, w, tokens, windows=windows, unit=unit)


def pr_moe(c, w, tokens):
    """Rajbhandari et al. 2022, section 4.1."""

    def mlp(x, name, e=...):
        up = x @ w[f"{name}.c_fc.weight"][e] + w[f"{name}.c_fc.bias"][e]
        return plain.GELU_NEW(up) @ w[f"{name}.c_proj.weight"][e] + w[f"{name}.c_proj.bias"][e]

    def unit(x, i, name):
        if (i + 1) % c["expert_interval"]:
            return mlp(x, name)
        inner = f"{name}.deepspeed_moe"
        expert = asked(
            x,
            w,
            f"{inner}.gate.wg.weight",
            best_gates(1, False),
            lambda row, e: mlp(row, f"{inner}.experts.deepspeed_experts", e).reshape(-1),
        )
        both = softmax(linear(x, w, f"{name}.coefficient"))
        return expert * both[:, :1] + mlp(x, f"{name}.mlp") * both[:, 1:]

    return plain.gpt2(c, w, tokens, unit=unit)


def fused(shapes, turned=False):
    """The shapes of tensors by name, with gates and ups of experts in one, as transformers holds them; `turned`: inputs
    before outputs, as it holds those of gpt-oss."""
    found = dict(shapes)
    for name in [name for name in found if name.endswith("experts.gate_proj")]:
        count, f, n = found.pop(name)
        assert found.pop(name.replace("gate_proj", "up_proj")) == (count, f, n)
        found[name.replace("gate_proj", "gate_up_proj")] = (count, n, 2 * f) if turned else (count, 2 * f, n)
    return found
