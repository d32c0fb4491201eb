"""Jina embeddings v2 (Günther et al. 2023): a BERT with ALiBi on both sides (Press et al. 2022) in place of a table of
positions, and gated units (Shazeer 2020). Its files call it bert."""

from functools import reduce
from operator import matmul

from opmatrix.algebra.operators import ACTIVATIONS, I
from opmatrix.algebra.positions.distances import alibi
from opmatrix.algebra.shapes import certain
from opmatrix.algebra.term import Operator
from opmatrix.models.config import ALONE, ArraySource, Settings, TensorNames, declares, flag, never, one_of, wrong
from opmatrix.models.encoders.bert import ENCODER_KEYS
from opmatrix.models.encoders.masked_head import BERT_HEAD
from opmatrix.models.encoders.parts import (
    EncoderParts,
    attention_nearby,
    head_columns,
    packed_products,
    words_and_kinds,
)
from opmatrix.models.gpt2 import MAX_SLOPES

GATES = {"geglu": "gelu", "reglu": "relu"}  # feed_forward_type -> the activation of gates
JINA_KEYS = ENCODER_KEYS | dict(
    position_embedding_type=one_of(["alibi"]),
    feed_forward_type=one_of(GATES, "geglu"),
    gates_apart=flag(False),
    is_decoder=never(False, "a token sees both sides"),
    add_cross_attention=ALONE,
)
GATE, UP = "gated_layers_w", "gated_layers_v"  # products of a unit that GGUF files have in two
JINA_GGUF = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "blk.#.attn_q": "encoder.layer.#.attention.self.query",
    "blk.#.attn_k": "encoder.layer.#.attention.self.key",
    "blk.#.attn_v": "encoder.layer.#.attention.self.value",
    "blk.#.attn_output": "encoder.layer.#.attention.output.dense",
    "blk.#.attn_output_norm": "encoder.layer.#.attention.output.LayerNorm",
    "blk.#.ffn_gate": f"encoder.layer.#.mlp.{GATE}",
    "blk.#.ffn_up": f"encoder.layer.#.mlp.{UP}",
    "blk.#.ffn_down": "encoder.layer.#.mlp.wo",
    "blk.#.layer_output_norm": "encoder.layer.#.mlp.layernorm",
}
NORMED_GGUF = JINA_GGUF | {
    "blk.#.attn_q_norm": "encoder.layer.#.attention.self.layer_norm_q",
    "blk.#.attn_k_norm": "encoder.layer.#.attention.self.layer_norm_k",
    "blk.#.attn_norm_2": "encoder.layer.#.layer_norm_1",
    "blk.#.ffn_down": "encoder.layer.#.mlp.down_layer",
    "blk.#.layer_output_norm": "encoder.layer.#.layer_norm_2",
}
JINA = TensorNames(
    "bert.",
    ((".gated_layers.weight", f".{UP}.weight"),),  # GGUF files call the packed product by its second half
    trained=("pooler", "cls"),
    gguf=JINA_GGUF,
    copies=BERT_HEAD.copies,
    masked=BERT_HEAD,
)


@declares(JINA, **JINA_KEYS)
def jina_bert(config: Settings, at: ArraySource) -> Operator:
    """Norms stand behind attention's product and in the unit; of packed products the first one is the gate.
    `gates_apart`: files hold two products, as older GGUF files do."""
    n, f, h = (config[size] for size in ("hidden_size", "intermediate_size", "num_attention_heads"))
    parts, near = EncoderParts(at, config["layer_norm_eps"]), both_sides(config)
    act = ACTIVATIONS[GATES[config["feed_forward_type"]]]

    def layer(l: int) -> Operator:
        """Build layer l: attention and the unit, each added to its input and normed after that."""
        name = f"encoder.layer.{l}"
        Q, K, V = (parts.linear(f"{name}.attention.self.{part}", n, n) for part in ("query", "key", "value"))
        F = attention_nearby(Q, K, V, h, near) @ parts.linear(f"{name}.attention.output.dense", n, n)
        gate, up = gate_apart(config, parts, f"{name}.mlp") or packed_products(
            parts.matrix(f"{name}.mlp.gated_layers", n, 2 * f), 2, f
        )
        G = (gate @ act * up) @ parts.linear(f"{name}.mlp.wo", f, n)
        first, second = f"{name}.attention.output.LayerNorm", f"{name}.mlp.layernorm"
        return (I + F) @ parts.norm(first, n) @ (I + G) @ parts.norm(second, n)

    embed = words_and_kinds(config, parts, "embeddings.LayerNorm")
    return reduce(matmul, [embed, *map(layer, range(config["num_hidden_layers"]))])


@declares(JINA._replace(spellings=(), gguf=NORMED_GGUF), **JINA_KEYS)
def jina_bert_normed(config: Settings, at: ArraySource) -> Operator:
    """The later models for code and for two languages: queries and keys are normed over all heads; attention is added
    to its input and normed twice; of packed products the second one is the gate."""
    n, f, h = (config[size] for size in ("hidden_size", "intermediate_size", "num_attention_heads"))
    parts, near = EncoderParts(at, config["layer_norm_eps"]), both_sides(config)
    act = ACTIVATIONS[GATES[config["feed_forward_type"]]]

    def layer(l: int) -> Operator:
        """Build layer l: attention and the unit, each added to its input and normed after that."""
        name = f"encoder.layer.{l}"
        Q, K, V = (parts.linear(f"{name}.attention.self.{part}", n, n) for part in ("query", "key", "value"))
        by_q, by_k = (parts.norm(f"{name}.attention.self.layer_norm_{part}", n) for part in "qk")
        F = attention_nearby(Q @ by_q, K @ by_k, V, h, near) @ parts.linear(f"{name}.attention.output.dense", n, n)
        inner = (I + F) @ parts.norm(f"{name}.attention.output.LayerNorm", n)
        gate, up = (
            gate_apart(config, parts, f"{name}.mlp")
            or packed_products(parts.matrix(f"{name}.mlp.up_gated_layer", n, 2 * f), 2, f)[::-1]
        )
        G = (gate @ act * up) @ parts.linear(f"{name}.mlp.down_layer", f, n)
        first, second = (parts.norm(f"{name}.layer_norm_{number}", n) for number in (1, 2))
        return (I + inner) @ first @ (I + G) @ second

    embed = words_and_kinds(config, parts, "embeddings.LayerNorm")
    return reduce(matmul, [embed, *map(layer, range(config["num_hidden_layers"]))])


def gate_apart(config: Settings, parts: EncoderParts, name: str) -> list[Operator] | None:
    """Return the gate of a unit and its other product, where files hold two; None where they hold one."""
    n, f = config["hidden_size"], config["intermediate_size"]
    return [parts.matrix(f"{name}.{part}", n, f) for part in (GATE, UP)] if config["gates_apart"] else None


def both_sides(config: Settings) -> Operator:
    """Build the bias by distance, as far as the model has positions. Raises InputError for a table that is too
    large."""
    h, rows = config["num_attention_heads"], config["max_position_embeddings"]
    head_columns(config)  # raises where heads do not divide the model's columns
    if certain(rows * h > MAX_SLOPES):
        raise wrong("max_position_embeddings", rows, f"at most {MAX_SLOPES // h:,} for {h} heads, each with a table")
    return alibi(h, rows)
