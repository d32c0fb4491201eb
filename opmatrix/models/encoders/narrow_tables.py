"""Encoders whose tables are narrower than the model, with a product behind them: ELECTRA (Clark et al. 2020), and
ALBERT (Lan et al. 2020), which applies the weights of one layer again and again."""

from functools import reduce
from operator import matmul

from opmatrix.algebra.operators import ACTIVATIONS
from opmatrix.algebra.term import Operator
from opmatrix.models.config import ArraySource, Settings, TensorNames, declares, dimension, layers, one_of, wrong
from opmatrix.models.encoders.bert import (
    BERT_KEYS,
    COUNTS,
    ENCODER_KEYS,
    LAYER_NAMES,
    SPELLINGS,
    embedding,
    encoder,
    normed_behind,
)
from opmatrix.models.encoders.classifiers import first_row
from opmatrix.models.encoders.masked_head import ALBERT_HEAD, ELECTRA_HEAD
from opmatrix.models.encoders.parts import EncoderParts, head_columns

REPLACED = "discriminator_predictions", "generator_predictions", "generator_lm_head"  # which tokens were replaced


SCORING = first_row("classifier.dense", "gelu", "classifier.out_proj")


@declares(
    TensorNames("electra.", SPELLINGS, COUNTS, trained=REPLACED, classifier=SCORING, masked=ELECTRA_HEAD),
    **BERT_KEYS,
    embedding_size=dimension(),
)
def electra(config: Settings, at: ArraySource) -> Operator:
    """A BERT; the product behind its tables is stored only where they are narrower."""
    wide = config["embedding_size"] == config["hidden_size"]
    return encoder(config, at, LAYER_NAMES if wide else LAYER_NAMES | dict(projection="embeddings_project"))


ALBERT_NAMES = dict(
    query="attention.query",
    key="attention.key",
    value="attention.value",
    output="attention.dense",
    norm1="attention.LayerNorm",
    up="ffn",
    down="ffn_output",
    norm2="full_layer_layer_norm",
)


@declares(
    TensorNames(
        "albert.",
        SPELLINGS,
        COUNTS,
        trained=("pooler", "predictions", "sop_classifier"),
        copies=ALBERT_HEAD.copies,
        classifier=first_row("pooler", "tanh", "classifier"),
        masked=ALBERT_HEAD,
    ),
    **ENCODER_KEYS | dict(hidden_act=one_of(ACTIVATIONS, "gelu_new")),
    embedding_size=dimension(),
    num_hidden_groups=layers(1),
    inner_group_num=layers(1),
)
def albert(config: Settings, at: ArraySource) -> Operator:
    """Groups of layers, one group in all published models: layers of a group are the same operator, so their weights
    are stored once."""
    count, groups = config["num_hidden_layers"], config["num_hidden_groups"]
    if groups > max(count, 1):
        raise wrong("num_hidden_groups", groups, f"at most num_hidden_layers, {count}")
    parts = EncoderParts(at, config["layer_norm_eps"])
    head_columns(config)  # raises where heads do not divide the model's columns

    def layer(group: int, inner: int) -> Operator:
        """Build a layer of a group."""
        name = f"encoder.albert_layer_groups.{group}.albert_layers.{inner}"
        return normed_behind(config, parts, {part: f"{name}.{called}" for part, called in ALBERT_NAMES.items()})

    embed = embedding(config, parts, "encoder.embedding_hidden_mapping_in")
    grouped = [
        reduce(matmul, [layer(group, inner) for inner in range(config["inner_group_num"])]) for group in range(groups)
    ]
    return reduce(matmul, [embed, *(grouped[int(l / (count / groups))] for l in range(count))])
