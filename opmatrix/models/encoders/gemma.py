"""The text model of Gemma 3 (Gemma Team 2025), and EmbeddingGemma (Schechter Vera et al. 2025), which is one that looks
both ways. A layer has four norms, whose gains are stored less one; most layers see a window, with a base of rotations
of their own. Rows of tokens are scaled by √n, a number of the files' number type. Gemma 2 has the same layers
(`decoders/gemma2.py`)."""

from collections.abc import Callable
from functools import reduce
from operator import matmul

import numpy as np

from formats.storage.bf16 import nearest, widen_bits
from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.operators import ACTIVATIONS, I, attention_capped, diag, grouped, heads, repeat, rmsnorm, weight
from opmatrix.algebra.positions.patterns import Pattern, sequence, window
from opmatrix.algebra.shapes import LiveSize, certain, divides
from opmatrix.algebra.term import Operator
from opmatrix.models import rope
from opmatrix.models.config import (
    FULL_ATTENTION,
    LAYER_TYPES,
    MODEL_SIZES,
    NOT_QUANTISED,
    SLIDING_ATTENTION,
    ArraySource,
    Settings,
    TensorNames,
    declares,
    dimension,
    flag,
    kinds_of_layers,
    layers,
    never,
    one_of,
    optional,
    real,
    whole,
    wrong,
)
from opmatrix.models.encoders.parts import EncoderParts
from opmatrix.models.llama import GGUF as LLAMA_NAMES
from opmatrix.models.llama import seen_within


def bfloat16_of(number: float) -> float:
    """Round a number to bfloat16."""
    return float(widen_bits(nearest(np.asarray([number], np.float32)))[0])  # type: ignore[no-untyped-call]


UNCAPPED = "scores of attention are not capped in Gemma 3"
CAP = optional(real(1e-3, 1e6))
ROUND_TO: dict[str, Callable[[float], float]] = {
    "float32": float,
    "float16": lambda number: float(np.float16(number)),
    "bfloat16": bfloat16_of,
}  # number types of files -> a number rounded to them
GEMMA_KEYS = dict(
    **MODEL_SIZES,
    num_key_value_heads=dimension(),
    head_dim=dimension(256),
    num_hidden_layers=layers(),
    rms_norm_eps=real(1e-20, 1, 1e-6),
    hidden_act=one_of(ACTIVATIONS, "gelu_pytorch_tanh").under("hidden_activation"),
    tie_word_embeddings=flag(True),
    query_pre_attn_scalar=real(1e-6, 1e6, 256),
    attention_bias=flag(False),
    sliding_window=optional(whole()),
    layer_types=LAYER_TYPES,
    use_bidirectional_attention=flag(False),
    rope_scaling=rope.OBJECT,
    rope_parameters=rope.OBJECT,
    final_logit_softcapping=CAP,
    gains_stored_whole=flag(False),
    dtype=optional(one_of(ROUND_TO)).once("torch_dtype"),
    quantization_config=NOT_QUANTISED,
)


GEMMA = TensorNames(
    "model.",
    table="embed_tokens.weight",
    head="lm_head.weight",
    positions=rope.held_positions,
    gguf={
        **LLAMA_NAMES,
        "blk.#.post_attention_norm": "layers.#.post_attention_layernorm",
        "blk.#.ffn_norm": "layers.#.pre_feedforward_layernorm",
        "blk.#.post_ffw_norm": "layers.#.post_feedforward_layernorm",
    },
    capped="final_logit_softcapping",
)


@declares(
    GEMMA,
    **GEMMA_KEYS,
    sliding_window_pattern=whole(1, default=6).once("_sliding_window_pattern"),
    rope_theta=real(1, 1e12, 1e6),
    rope_local_base_freq=real(1, 1e12, 1e4),
    attn_logit_softcapping=never(None, UNCAPPED),
)
def gemma3_text(config: Settings, at: ArraySource) -> Operator:
    """Queries and keys are normed in every head, then rotated."""
    return gemma_layers(config, at, rotation, normed=True)


def gemma_layers(
    config: Settings, at: ArraySource, rotation: Callable[[Settings, str], Operator], normed: bool
) -> Operator:
    """Build layers each part of which stands between two norms. `rotation`: of layers of a kind; `normed`: queries and
    keys are normed in every head."""
    n, f, h, g, d = (
        config[size]
        for size in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    )
    if not divides(g, h):
        raise wrong("num_key_value_heads", g, f"a divisor of num_attention_heads, {h}")
    parts, act = EncoderParts(at, config["rms_norm_eps"]), ACTIVATIONS[config["hidden_act"]]
    every, scalar = config["sliding_window_pattern"], config["query_pre_attn_scalar"]
    cap = config["attn_logit_softcapping"]
    kinds = kinds_of_layers(config, lambda l: SLIDING_ATTENTION if (l + 1) % every else FULL_ATTENTION)
    seen = {kind: seen_by(config, kind) for kind in sorted(set(kinds))}
    turned = {kind: rotation(config, kind) for kind in seen}

    def norm(name: str, n: LiveSize) -> Operator:
        """Build a norm by the root mean square, with the gain 1 + w, or w where files hold that sum."""
        gain = at(f"{name}.weight", n)
        return rmsnorm(parts.eps) @ diag(gain if config["gains_stored_whole"] else one_more(gain))

    def linear(name: str, n: LiveSize, p: LiveSize) -> Operator:
        """Build a product of attention, with a row added if the config says so."""
        return parts.linear_if(config["attention_bias"], name, n, p)

    def attending(name: str, kind: str) -> Operator:
        """Build grouped attention of a layer of a kind; scores are divided by the root of `query_pre_attn_scalar`."""
        Q, K, V = (linear(f"{name}.{part}_proj", n, d * count) for part, count in (("q", h), ("k", g), ("v", g)))
        by_q, by_k = (norm(f"{name}.{part}_norm", d) @ turned[kind] if normed else turned[kind] for part in "qk")
        if not certain(d == scalar):
            by_q = by_q * (d / scalar) ** 0.5
        if cap is None:
            mixed = grouped(Q, K, V, h, g, seen[kind], by_q, by_k)
        else:
            q, k, v = Q @ heads(h) @ by_q, K @ heads(g) @ by_k @ repeat(h), V @ heads(g) @ repeat(h)
            mixed = attention_capped(q, k, v, seen[kind], cap) @ heads(h).T
        return mixed @ linear(f"{name}.o_proj", d * h, n)

    def feeding(name: str) -> Operator:
        """Build the gated unit."""
        gate, up = (parts.matrix(f"{name}.{part}_proj", n, f) for part in ("gate", "up"))
        return (gate @ act * up) @ parts.matrix(f"{name}.down_proj", f, n)

    def layer(l: int) -> Operator:
        """Build layer l: attention, then the unit, each between two norms and added to its input."""
        name = f"layers.{l}"
        before, behind, second, last = (
            norm(f"{name}.{part}_layernorm", n)
            for part in ("input", "post_attention", "pre_feedforward", "post_feedforward")
        )
        mixed = I + before @ attending(f"{name}.self_attn", kinds[l]) @ behind
        return mixed @ (I + second @ feeding(f"{name}.mlp") @ last)

    embed = weight(at("embed_tokens.weight", config["vocab_size"], n)) * root_of_width(n, config["dtype"] or "float32")
    return reduce(matmul, [embed, *map(layer, range(config["num_hidden_layers"])), norm("norm", n)])


def seen_by(config: Settings, kind: str) -> Pattern:
    """Return the pattern of layers of a kind: tokens up to each one, the last `sliding_window` of them with a window;
    or, both ways, those less than sliding_window // 2 + 1 away. Raises InputError for a window without its size."""
    seen = config["sliding_window"] if kind == SLIDING_ATTENTION else None
    if kind == SLIDING_ATTENTION and seen is None:
        raise wrong("sliding_window", seen, "a whole number, as layer_types require")
    if not config["use_bidirectional_attention"]:
        return seen_within(seen)
    return sequence if seen is None else sequence & window(seen // 2)


def rotation(config: Settings, kind: str) -> Operator:
    """Build the rotation of layers of a kind. `rope_scaling`, in older configs, is that of layers without a window."""
    whole = kind == FULL_ATTENTION
    base = config["rope_theta"] if whole else config["rope_local_base_freq"]
    older = {kind: config["rope_scaling"]} if whole and config["rope_scaling"] else config["rope_parameters"]
    return rope.rope_of({**config} | dict(rope_parameters=older), config["head_dim"], kind, base)


def one_more(gain: Data) -> Data:
    """Return a stored gain plus one."""
    name = f"{gain.name} + 1"
    return Promised(name, gain.shape) if isinstance(gain, Promised) else Data(gain.array + np.float32(1), name)


def root_of_width(n: LiveSize, number_type: str) -> LiveSize | float:
    """Return √n, as a number of this type where n has a number."""
    return ROUND_TO[number_type](n**0.5) if isinstance(n, int) else n**0.5
