"""NomicBert (Nussbaum et al. 2024): a BERT with rotations in place of a table of positions, gated units (Shazeer 2020),
and no rows added by products. transformers saves its configs by other names than the published ones."""

from functools import reduce
from operator import matmul

from opmatrix.algebra.operators import ACTIVATIONS, I, attention
from opmatrix.algebra.positions.patterns import sequence
from opmatrix.algebra.term import Operator
from opmatrix.models import rope
from opmatrix.models.config import (
    NOT_QUANTISED,
    ArraySource,
    Settings,
    TensorNames,
    declares,
    dimension,
    layers,
    never,
    one_of,
    optional,
    real,
)
from opmatrix.models.encoders.parts import EncoderParts, head_columns, packed_products, words_and_kinds

GATED_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu", "glu": "sigmoid"}  # unit -> the activation of its gates
UNBIASED = "products add no rows here"
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
    qkv_proj_bias=never(False, UNBIASED),
    mlp_fc1_bias=never(False, UNBIASED),
    mlp_fc2_bias=never(False, UNBIASED),
    prenorm=never(False, "norms stand behind the parts of layers"),
    parallel_block=never(False, "attention and unit follow one another"),
    use_rms_norm=never(False, "norms are layer norms"),
    causal=never(False, "a token sees both sides"),
    moe_every_n_layers=never(0, "mixtures of experts are not built for this family"),
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
}


@declares(
    TensorNames(
        "nomic_bert.", buffers=("inv_freq",), trained=("pooler", "cls"), positions=rope.held_positions, gguf=NOMIC_GGUF
    ),
    **NOMIC_KEYS,
)
def nomic_bert(config: Settings, at: ArraySource) -> Operator:
    """The second one of the unit's products, fc12, is the gate."""
    n, f, h = (config[size] for size in ("hidden_size", "intermediate_size", "num_attention_heads"))
    parts, d = EncoderParts(at, config["layer_norm_eps"]), head_columns(config)
    unit: str = config["hidden_act"]
    act = ACTIVATIONS[GATED_ACTIVATIONS.get(unit, unit)]
    turned = rope.rope(config, d)

    def layer(l: int) -> Operator:
        """Build layer l: attention and the unit, each added to its input and normed after that."""
        name = f"encoder.layers.{l}"
        Q, K, V = packed_products(parts.matrix(f"{name}.attn.Wqkv", n, 3 * h * d), 3, h * d)
        F = attention(Q, K, V, h, sequence, turned) @ parts.matrix(f"{name}.attn.out_proj", h * d, n)
        up, gate = (parts.matrix(f"{name}.mlp.{part}", n, f) for part in ("fc11", "fc12"))
        G = (gate @ act * up) @ parts.matrix(f"{name}.mlp.fc2", f, n)
        return (I + F) @ parts.norm(f"{name}.norm1", n) @ (I + G) @ parts.norm(f"{name}.norm2", n)

    embed = words_and_kinds(config, parts, "emb_ln")
    return reduce(matmul, [embed, *map(layer, range(config["num_hidden_layers"]))])
