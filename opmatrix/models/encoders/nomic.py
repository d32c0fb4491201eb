"""NomicBert (Nussbaum et al. 2024): a BERT with rotations in place of a table of positions, and gated units (Shazeer
2020), or a mixture of experts. transformers saves its configs by other names than the published ones."""

from functools import reduce
from operator import matmul

from opmatrix.algebra.operators import ACTIVATIONS, I, attention, const, weight
from opmatrix.algebra.positions.patterns import sequence
from opmatrix.algebra.term import Operator
from opmatrix.models import rope
from opmatrix.models.config import (
    NOT_QUANTISED,
    ArraySource,
    Settings,
    StackNames,
    TensorNames,
    declares,
    dimension,
    flag,
    layers,
    never,
    one_of,
    optional,
    real,
    spelt,
    whole,
    wrong,
)
from opmatrix.models.encoders.masked_head import BERT_HEAD, MaskedHead
from opmatrix.models.encoders.parts import EncoderParts, head_columns, packed_products, words_and_kinds
from opmatrix.models.experts import best_shares, mixture, renormalised

GATED_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu", "glu": "sigmoid"}  # unit -> the activation of its gates
NOMIC_KEYS = dict(
    vocab_size=dimension(),
    hidden_size=dimension().once("n_embd"),
    intermediate_size=dimension().once("n_inner"),
    num_attention_heads=dimension().once("n_head"),
    head_dim=optional(dimension()),
    num_hidden_layers=layers().once("n_layer"),
    max_position_embeddings=dimension().once("n_positions"),
    type_vocab_size=dimension(),
    layer_norm_eps=real(1e-20, 1).once("layer_norm_epsilon"),
    hidden_act=one_of([*ACTIVATIONS, *GATED_ACTIVATIONS], "silu").once("activation_function"),
    **rope.ROPE_KEYS
    | dict(
        rope_theta=real(1, 1e12, 1000.0).once("rotary_emb_base"),
        partial_rotary_factor=real(0, 1, 1.0).once("rotary_emb_fraction"),
    ),
    rotary_emb_interleaved=never(False, "the halves of a head rotate, not neighbours"),
    rotary_emb_scale_base=never(None, "rotations have one scale"),
    rotary_scaling_factor=never(None, "rotations are those of training"),
    qkv_proj_bias=flag(False),
    mlp_fc1_bias=flag(False),
    mlp_fc2_bias=flag(False),
    prenorm=never(False, "norms stand behind the parts of layers"),
    parallel_block=never(False, "attention and unit follow one another"),
    use_rms_norm=never(False, "norms are layer norms"),
    causal=never(False, "a token sees both sides"),
    activation_function=optional(one_of([*ACTIVATIONS, *GATED_ACTIVATIONS])),
    moe_every_n_layers=whole(0, default=0),
    num_experts=optional(whole(0)),
    moe_top_k=optional(whole()),
    moe_normalize_expert_weights=flag(False),
    expert_choice_router=never(False, "rows choose experts, not experts rows"),
    experts_by_outputs=flag(False),
    num_shared_experts=never(0, "a row goes through the experts that it chooses alone"),
    tie_word_embeddings=flag(True),
    quantization_config=NOT_QUANTISED,
)

NOMIC_GGUF = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "emb_ln",
    "blk.#.attn_qkv": "encoder.layers.#.attn.Wqkv",
    "blk.#.attn_output": "encoder.layers.#.attn.out_proj",
    "blk.#.attn_output_norm": "encoder.layers.#.norm1",
    "blk.#.ffn_up": "encoder.layers.#.mlp.fc11",
    "blk.#.ffn_gate": "encoder.layers.#.mlp.fc12",
    "blk.#.ffn_down": "encoder.layers.#.mlp.fc2",
    "blk.#.layer_output_norm": "encoder.layers.#.norm2",
    "blk.#.ffn_gate_inp": "encoder.layers.#.mlp.router.layer",
    "blk.#.ffn_up_exps": "encoder.layers.#.mlp.experts.mlp.w1",
    "blk.#.ffn_down_exps": "encoder.layers.#.mlp.experts.mlp.w2",
}
# GGUF files call products of units without gates as they call those of units with gates
UNGATED = tuple((f".fc1.{end}", f".fc11.{end}") for end in ("weight", "bias"))

NOMIC_PARTS = dict(
    layer="encoder.layers",
    qkv="attn.Wqkv",
    output="attn.out_proj",
    norm1="norm1",
    gate="mlp.fc12",
    up="mlp.fc11",
    down="mlp.fc2",
    norm2="norm2",
)  # parts of a layer that is no mixture, in published files
HEAD_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu", "glu": "gelu"}  # unit -> the activation of the head


class NomicHead(MaskedHead):
    """The head that scores masked tokens, whose activation is named by the units'."""

    def build(self, config: Settings, at: ArraySource, stored: bool) -> Operator:
        """Build the head; `stored`: files hold its matrix."""
        unit = config["hidden_act"]
        return super().build({**config} | dict(hidden_act=HEAD_ACTIVATIONS.get(unit, unit)), at, stored)


NOMIC_HEAD = NomicHead(*BERT_HEAD._replace(norm="cls.predictions.transform.layer_norm"))
EXPERT_STACKS = {
    f"experts.mlp.{part}": StackNames(
        (f"experts.mlp.{part}",), f"experts.mlp.{part}", alone=f"experts.mlp.{part}.weight"
    )
    for part in ("w1", "w2")
}


@declares(
    TensorNames(
        "nomic_bert.",
        UNGATED,
        buffers=("inv_freq",),
        trained=("pooler", "cls"),
        positions=rope.held_positions,
        gguf=NOMIC_GGUF,
        copies=NOMIC_HEAD.copies,
        masked=NOMIC_HEAD,
        stacks=EXPERT_STACKS,
    ),
    **NOMIC_KEYS,
)
def nomic_bert(config: Settings, at: ArraySource) -> Operator:
    """Version 2 has plain units, and experts in every second layer (Nussbaum, Duderstadt 2025)."""
    n, h = config["hidden_size"], config["num_attention_heads"]
    parts, d = EncoderParts(at, config["layer_norm_eps"]), head_columns(config)
    turned, biased, every = rope.rope(config, d), config["qkv_proj_bias"], config["moe_every_n_layers"]

    def layer(l: int) -> Operator:
        """Build layer l: attention and the unit, each added to its input and normed after that."""
        name = f"encoder.layers.{l}"
        Q, K, V = packed_products(parts.linear_if(biased, f"{name}.attn.Wqkv", n, 3 * h * d), 3, h * d)
        F = attention(Q, K, V, h, sequence, turned) @ parts.linear_if(biased, f"{name}.attn.out_proj", h * d, n)
        routed = every > 0 and l % every == 1
        G = (routed_unit if routed else plain_unit)(config, parts, f"{name}.mlp")
        return (I + F) @ parts.norm(f"{name}.norm1", n) @ (I + G) @ parts.norm(f"{name}.norm2", n)

    embed = words_and_kinds(config, parts, "emb_ln")
    return reduce(matmul, [embed, *map(layer, range(config["num_hidden_layers"]))])


def unit_activation(config: Settings) -> Operator:
    """Return the activation of units, or of their gates."""
    unit: str = config["hidden_act"]
    return ACTIVATIONS[GATED_ACTIVATIONS.get(unit, unit)]


def plain_unit(config: Settings, parts: EncoderParts, name: str) -> Operator:
    """Build a unit: gated by its second product, fc12, unless a published config names an activation without gates."""
    n, f, act = config["hidden_size"], config["intermediate_size"], unit_activation(config)
    into, out = config["mlp_fc1_bias"], parts.linear_if(config["mlp_fc2_bias"], f"{name}.fc2", f, n)
    if config["activation_function"] in ACTIVATIONS:
        return parts.linear_if(into, f"{name}.fc1", n, f) @ act @ out
    up, gate = (parts.linear_if(into, f"{name}.{part}", n, f) for part in ("fc11", "fc12"))
    return (gate @ act * up) @ out


def routed_unit(config: Settings, parts: EncoderParts, name: str) -> Operator:
    """Build experts, of which a row goes through the best ones by its shares of all; one row is added for all of them,
    which GGUF files leave out, whose second products are stored by outputs. Raises InputError for a number of experts
    that is missing, or too small."""
    n, f, count, few = (config[key] for key in ("hidden_size", "intermediate_size", "num_experts", "moe_top_k"))
    if count is None or few is None or not few <= count:
        raise wrong("moe_top_k", few, f"at most num_experts, {spelt(count)}, where moe_every_n_layers is not 0")
    best = parts.matrix(f"{name}.router.layer", n, count) @ best_shares(few)
    gate = best @ renormalised() if config["moe_normalize_expert_weights"] else best
    up = weight(parts.at(f"{name}.experts.mlp.w1", count, f, n).T) @ unit_activation(config)
    down = f"{name}.experts.mlp.w2"
    if config["experts_by_outputs"]:
        return mixture(gate, up @ weight(parts.at(down, count, n, f).T), count)
    answers = up @ weight(parts.at(down, count, f, n))
    return mixture(gate, answers, count) + const(parts.at(f"{name}.experts.bias", n))
