"""gpt-oss (OpenAI 2025): layers of experts alone; every second layer sees a window, and every head of attention has a
sink, a score that no value follows. Gates are clamped, and files hold their columns between those of their factors."""

from typing import NamedTuple

from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.operators import ACTIVATIONS, affine, clamped_factor, clamped_gate, weight
from opmatrix.algebra.shapes import LiveSize, certain
from opmatrix.algebra.term import Operator
from opmatrix.models.config import (
    FULL_ATTENTION,
    LAYER_TYPES,
    SLIDING_ATTENTION,
    ArraySource,
    Settings,
    StackNames,
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
from opmatrix.models.experts import EXPERT_KEYS, best_shares, mixture, renormalised
from opmatrix.models.llama import LAYOUT, LLAMA_KEYS, QKV, DecoderForm, decoder, windowed

GPT_OSS_KEYS = (
    LLAMA_KEYS
    | EXPERT_KEYS
    | dict(
        num_experts=dimension().under("num_local_experts").once("num_experts"),
        head_dim=dimension(64),
        hidden_act=one_of(ACTIVATIONS, "silu"),
        rms_norm_eps=real(1e-20, 1, 1e-5),
        rope_theta=real(1, 1e12, 150000.0),
        attention_bias=flag(True),
        sliding_window=optional(whole()),
        layer_types=LAYER_TYPES,
        swiglu_limit=never(7.0, "gates are clamped there"),
        swiglu_alpha=never(1.702, "gates have that slope"),
        is_causal=never(True, "a token of this family sees none behind it"),
        biases_apart=flag(False),  # GGUF files have the biases of gates apart from those of their factors
    )
)


class GatedSide(NamedTuple):
    """A side of gated units, whose columns and biases files hold from the number `first` on, every second one."""

    name: str
    first: int

    @property
    def stack(self) -> StackNames:
        """The names of its matrices in files."""
        alone = f"experts.{self.name}_proj.weight"
        return StackNames((GATE_UP,), GATE_UP, self.first, 2, alone, turned=True)

    def biases(self, at: ArraySource, name: str, apart: bool, *sizes: LiveSize) -> Data:
        """Return the biases of the experts of this name, (experts, 1, hidden units), or promise them; `apart`: files
        have them by themselves."""
        count, f = sizes
        if apart:
            stored, first, step = at(f"{name}.experts.{self.name}_proj.bias", count, f), 0, 1
        else:
            stored, first, step = at(f"{name}.{GATE_UP}_bias", count, 2 * f), self.first, 2
        called = f"{stored.name}[{self.name}]"
        if isinstance(stored, Promised):
            return Promised(called, (count, 1, f))
        return Data(stored.array[:, None, first::step], called)


GATE_UP, DOWN = "experts.gate_up_proj", "experts.down_proj"
SIDES = GatedSide("gate", 0), GatedSide("up", 1)
NAMED_OTHERWISE = {  # in GGUF files, beside what LLaMA has
    "attn_sinks": "self_attn.sinks",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.router",
}
GPT_OSS = LAYOUT._replace(
    stacks={f"experts.{side.name}_proj": side.stack for side in SIDES}
    | {DOWN: StackNames((DOWN,), DOWN, alone=f"{DOWN}.weight", turned=True)},
    spellings=(("self_attn.sinks", "self_attn.sinks.weight"), (f"{DOWN}_bias", f"{DOWN}.bias")),
    gguf={**LAYOUT.gguf} | {f"blk.#.{theirs}": f"layers.#.{ours}" for theirs, ours in NAMED_OTHERWISE.items()},
)


@declares(GPT_OSS, **GPT_OSS_KEYS)
def gpt_oss(config: Settings, at: ArraySource) -> Operator:
    """A LLaMA of experts, with sinks, and windows in every second layer, from the first on."""
    _, where = windowed(config, config["sliding_window"], lambda l: FULL_ATTENTION if l % 2 else SLIDING_ATTENTION)
    return decoder(
        config,
        at,
        (*QKV, "o") * config["attention_bias"],
        where=where,
        unit=lambda l, name: clamped_experts(config, at, name),
        form=DecoderForm(sinks=True),
    )


def clamped_experts(config: Settings, at: ArraySource, name: str) -> Operator:
    """Build the router, which chooses by biased scores and shares one among the chosen, and the experts. The biases
    behind the experts are one matrix of the gate."""
    n, f, count, k = (
        config[size] for size in ("hidden_size", "intermediate_size", "num_experts", "num_experts_per_tok")
    )
    if certain(k > count):
        raise wrong("num_experts_per_tok", k, f"at most num_local_experts, {count}")
    scores = affine(at(f"{name}.router.weight", count, n).T, at(f"{name}.router.bias", count))
    shares = scores @ best_shares(k) @ renormalised()
    apart = config["biases_apart"]
    gate, up = (
        affine(at(f"{name}.experts.{side.name}_proj", count, f, n).T, side.biases(at, name, apart, count, f))
        for side in SIDES
    )
    answers = (gate @ clamped_gate * (up @ clamped_factor)) @ weight(at(f"{name}.{DOWN}", count, n, f).T)
    return mixture(shares, answers, count) + shares @ weight(at(f"{name}.{DOWN}_bias", count, n))
