"""MPNet (Song et al. 2020): a BERT whose scores have the bias by distance of T5 (Raffel et al. 2020), one table for all
layers. Positions begin behind the padding's row, as in RoBERTa."""

from opmatrix.algebra.positions.distances import bucketed
from opmatrix.algebra.shapes import certain
from opmatrix.algebra.term import Operator
from opmatrix.models.config import ArraySource, Settings, TensorNames, declares, never, wrong
from opmatrix.models.encoders.bert import COUNTS, ENCODER_KEYS, SPELLINGS, encoder
from opmatrix.models.encoders.classifiers import ON_TOP
from opmatrix.models.encoders.masked_head import ROBERTA_HEAD

BUCKETS, PADDING = 32, 1  # rows of the table by distance; the id of the padding, whatever a tokenizer calls so
FIXED_NUMBER = "the published model computes with this number, whatever its config holds"
MPNET_NAMES = dict(
    layer="encoder.layer",
    query="attention.attn.q",
    key="attention.attn.k",
    value="attention.attn.v",
    output="attention.attn.o",
    norm1="attention.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    norm2="output.LayerNorm",
)


@declares(
    TensorNames(
        "mpnet.",
        SPELLINGS,
        COUNTS,
        trained=("pooler", "lm_head"),
        positions=lambda config: int(config["max_position_embeddings"]) - PADDING - 1,
        unplaced="padding",
        copies=ROBERTA_HEAD.copies,
        classifier=ON_TOP,
        masked=ROBERTA_HEAD,
    ),
    **{name: key for name, key in ENCODER_KEYS.items() if name not in ("type_vocab_size", "position_embedding_type")},
    relative_attention_num_buckets=never(BUCKETS, FIXED_NUMBER),
    padding=never(PADDING, FIXED_NUMBER),  # files have `pad_token_id`, which changes nothing
)
def mpnet(config: Settings, at: ArraySource) -> Operator:
    """No kinds of tokens; far keys share buckets up to 128 tokens away, then are all in one."""
    rows, first = config["max_position_embeddings"], PADDING + 1
    if certain(rows <= first):
        raise wrong("max_position_embeddings", rows, f"more than {first}, as positions begin behind the padding's row")
    near = bucketed(at("encoder.relative_attention_bias.weight", BUCKETS, config["num_attention_heads"]))
    return encoder({**config} | dict(type_vocab_size=0), at, MPNET_NAMES, first, near)
