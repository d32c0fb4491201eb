"""The heads by which encoders score the vocabulary in place of a masked token (Devlin et al. 2018, section 3.1): a
product with an activation, a norm, then the table of tokens, or a matrix of the head's own, with a shift a token."""

from typing import NamedTuple

from opmatrix.algebra.operators import ACTIVATIONS, affine
from opmatrix.algebra.term import Operator
from opmatrix.models.config import ArraySource, Settings
from opmatrix.models.encoders.parts import EncoderParts

TOKEN_TABLE = "embeddings.word_embeddings.weight"


class MaskedHead(NamedTuple):
    """The names in files of a head's product, norm and shift, and of the matrix that it has where it is not tied to the
    table of tokens. `act`: its activation, empty for that of the model; `width`: the setting that gives the columns of
    the table and of the norm."""

    dense: str
    norm: str
    shift: str
    scores: str
    act: str = ""
    width: str = "hidden_size"
    table: str = TOKEN_TABLE

    @property
    def copies(self) -> dict[str, str]:
        """The shift's name, with that beside the matrix of its own, which goes before it."""
        return {self.shift: self.scores.removesuffix("weight") + "bias"}

    def build(self, config: Settings, at: ArraySource, stored: bool) -> Operator:
        """Build the operator from features (T, n) to a score for each token of the vocabulary (T, v). `stored`: files
        hold a matrix for it."""
        n, width, v = (config[size] for size in ("hidden_size", self.width, "vocab_size"))
        parts = EncoderParts(at, config.get("layer_norm_eps", 1e-12))
        inner = parts.linear(self.dense, n, width) @ ACTIVATIONS[self.act or config["hidden_act"]]
        table = at(self.scores if stored else self.table, v, width)
        return inner @ parts.norm(self.norm, width) @ affine(table.T, at(self.shift, v))


BERT_HEAD = MaskedHead(
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.bias",
    "cls.predictions.decoder.weight",
)
ROBERTA_HEAD = MaskedHead("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder.weight", "gelu")
GTE_HEAD = ROBERTA_HEAD._replace(norm="lm_head.norm", shift="lm_head.decoder.bias")
DISTILBERT_HEAD = MaskedHead("vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "vocab_projector.weight")
ELECTRA_HEAD = MaskedHead(
    "generator_predictions.dense",
    "generator_predictions.LayerNorm",
    "generator_lm_head.bias",
    "generator_lm_head.weight",
    "gelu",
    "embedding_size",
)
ALBERT_HEAD = MaskedHead(
    "predictions.dense",
    "predictions.LayerNorm",
    "predictions.bias",
    "predictions.decoder.weight",
    width="embedding_size",
)
