"""GTE (Zhang et al. 2024), the published family `new` and the one that transformers calls gte: a BERT with rotations in
place of a table of positions, and gated units (Shazeer 2020). Queries, keys and values are packed, gate and up too."""

from functools import reduce
from operator import matmul

from opmatrix.algebra.operators import ACTIVATIONS, DEFAULT_BASE, I, attention
from opmatrix.algebra.positions.patterns import sequence
from opmatrix.algebra.term import Operator
from opmatrix.models import rope
from opmatrix.models.config import ArraySource, Settings, TensorNames, declares, never, one_of, real, whole
from opmatrix.models.encoders.bert import COMMON
from opmatrix.models.encoders.classifiers import BY_POOLER
from opmatrix.models.encoders.masked_head import GTE_HEAD
from opmatrix.models.encoders.parts import EncoderParts, head_columns, packed_products, words_and_kinds

GTE = TensorNames(
    "gte.",
    buffers=("inv_freq",),
    trained=("pooler", "lm_head"),
    positions=rope.held_positions,
    classifier=BY_POOLER,
    masked=GTE_HEAD,
)
GTE_KEYS = (
    COMMON
    | rope.ROPE_KEYS
    | dict(
        rope_theta=real(1, 1e12, 160000.0),
        type_vocab_size=whole(0)._replace(live=True),
        layer_norm_eps=real(1e-20, 1),
        layer_norm_type=one_of(["layer_norm"], "layer_norm"),
        position_embedding_type=one_of(["rope"], "rope"),
        pack_qkv=never(True, "queries, keys and values are read from one product"),
        logn_attention_scale=never(False, "scores are scaled alike in texts of any length"),
    )
)


@declares(GTE, **GTE_KEYS)
def gte(config: Settings, at: ArraySource) -> Operator:
    """As transformers saves it."""
    return rotated_layers(config, at)


@declares(GTE._replace(prefix="new."), **GTE_KEYS | dict(rope_theta=real(1, 1e12, DEFAULT_BASE)))
def gte_published(config: Settings, at: ArraySource) -> Operator:
    """As it was published: another word before names, another base where a config has none."""
    return rotated_layers(config, at)


def rotated_layers(config: Settings, at: ArraySource) -> Operator:
    """Build embeddings and layers. Of the unit's packed products the second one is the gate."""
    n, f, h = (config[size] for size in ("hidden_size", "intermediate_size", "num_attention_heads"))
    parts, act = EncoderParts(at, config["layer_norm_eps"]), ACTIVATIONS[config["hidden_act"]]
    turned = rope.rope(config, head_columns(config), {**rope.ROPE_TYPES, **rope.NTK})

    def layer(l: int) -> Operator:
        """Build layer l: attention and the unit, each added to its input and normed after that."""
        name = f"encoder.layer.{l}"
        Q, K, V = packed_products(parts.linear(f"{name}.attention.qkv_proj", n, 3 * n), 3, n)
        F = attention(Q, K, V, h, sequence, turned) @ parts.linear(f"{name}.attention.o_proj", n, n)
        up, gate = packed_products(parts.matrix(f"{name}.mlp.up_gate_proj", n, 2 * f), 2, f)
        G = (gate @ act * up) @ parts.linear(f"{name}.mlp.down_proj", f, n)
        return (I + F) @ parts.norm(f"{name}.attn_ln", n) @ (I + G) @ parts.norm(f"{name}.mlp_ln", n)

    embed = words_and_kinds(config, parts, "embeddings.LayerNorm")
    return reduce(matmul, [embed, *map(layer, range(config["num_hidden_layers"]))])
