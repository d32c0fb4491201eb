"""DeBERTa in its later versions, v2 and v3 (He et al. 2021, arXiv:2006.03654, 2111.09543): a BERT whose scores add
products of queries, and of keys, with embeddings of their distance, in buckets that grow with it."""

from functools import cache, reduce
from operator import matmul
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.monoids import softmax
from opmatrix.algebra.operators import ACTIVATIONS, I, at_distances, given, heads, product
from opmatrix.algebra.positions.patterns import sequence
from opmatrix.algebra.shapes import LiveSize, certain
from opmatrix.algebra.term import Operator, Value, formula
from opmatrix.models.config import (
    ArraySource,
    Key,
    Settings,
    TensorNames,
    declares,
    flag,
    never,
    one_of,
    optional,
    real,
    whole,
    wrong,
)
from opmatrix.models.encoders.bert import COMMON, COUNTS, SPELLINGS
from opmatrix.models.encoders.classifiers import first_row
from opmatrix.models.encoders.masked_head import BERT_HEAD
from opmatrix.models.encoders.parts import EncoderParts, head_columns
from opmatrix.models.rope import MAX_TABLE_NUMBERS

BY_QUERIES, BY_KEYS = "c2p", "p2c"  # content to position: queries meet distances; position to content: keys do
SIDES = {BY_QUERIES: "key", BY_KEYS: "query"}  # type -> the product that its embeddings of distances go through
UNBUCKETED = -1


def list_types(said: object) -> list[str]:
    """Return the types of products that a config names, as a list or joined by |; one that is none for another
    value."""
    words = said.lower().split("|") if isinstance(said, str) else said
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        return [repr(said)]
    return [word.strip() for word in words]


def even_number(low: int, meaning: str) -> Key:
    """Return the key of an even number, or -1 with this meaning."""
    allowed = f"an even whole number from {low} to 65536, or -1, {meaning}"
    return Key(allowed, lambda v: type(v) is int and (v == -1 or (low <= v <= 1 << 16 and v % 2 == 0)), -1)


DEBERTA_KEYS = COMMON | dict(
    type_vocab_size=whole(0)._replace(live=True),
    layer_norm_eps=real(1e-20, 1),
    relative_attention=flag(False),
    position_biased_input=flag(True),
    pos_att_type=Key(f"a list of {BY_QUERIES} and {BY_KEYS}", lambda said: {*list_types(said)} <= SIDES.keys(), ()),
    share_att_key=flag(False),
    max_relative_positions=even_number(2, "max_position_embeddings"),
    position_buckets=even_number(4, "a bucket for each distance"),
    norm_rel_ebd=one_of(["none", "layer_norm"], "none"),
    embedding_size=optional(whole()),
    pooler_hidden_size=optional(whole()),
    pooler_hidden_act=one_of(ACTIVATIONS, "gelu"),
    conv_kernel_size=never(0, "convolutions over tokens, which DeBERTa-v2-xlarge has, are not built"),
    attention_head_size=never(None, "the columns of heads are equal shares of hidden_size"),
)


class Distances(NamedTuple):
    """The buckets of distances: `span` of them on each side, each its own distance unless `bucketed`; the farthest one
    begins at `most`, and texts hold distances up to `reach`."""

    span: int
    most: int
    reach: LiveSize
    bucketed: bool

    @classmethod
    def of(cls, config: Settings) -> "Distances":
        """Read the buckets of a config. Raises InputError where they do not fit, or their tables would be too large."""
        positions, most, count = (
            config[key] for key in ("max_position_embeddings", "max_relative_positions", "position_buckets")
        )
        most = positions if most == UNBUCKETED else most
        if count != UNBUCKETED and certain(most <= count // 2 + 1):
            raise wrong("position_buckets", count, f"less than twice max_relative_positions - 1, {most - 1}")
        reach = max(1, min(positions - 1, 2 * most)) if isinstance(positions, int) else positions - 1
        if certain((2 * reach + 1) * config["hidden_size"] > MAX_TABLE_NUMBERS):
            raise wrong("max_position_embeddings", positions, f"fewer: a table has at most {MAX_TABLE_NUMBERS} numbers")
        return cls(most if count == UNBUCKETED else count, most, reach, count != UNBUCKETED)

    def numbers(self) -> NDArray[np.int64]:
        """Return the bucket of each distance from -reach to reach. Computed in float32, as files were trained."""
        away = np.arange(-int(self.reach), int(self.reach) + 1)
        if self.bucketed:
            near = self.span // 2
            size = np.log(np.maximum(abs(away), near).astype(np.float32) / np.float32(near))
            whole_range = np.log(np.float32((self.most - 1) / near))
            grown = np.ceil(size / whole_range * np.float32(near - 1)).astype(np.int64) + near
            away = np.where(abs(away) <= near, away, grown * np.sign(away))
        return np.asarray(np.clip(away + self.span, 0, 2 * self.span - 1))


class NearParts(NamedTuple):
    """The embeddings of distances of a model (2 span, n), from which tables of layers are made."""

    config: Settings
    at: ArraySource
    distances: Distances
    embeddings: Data

    @classmethod
    def of(cls, config: Settings, at: ArraySource) -> "NearParts":
        """Read the embeddings, normed if the config says so."""
        n, distances = config["hidden_size"], Distances.of(config)
        rows = at("encoder.rel_embeddings.weight", 2 * distances.span, n)
        if config["norm_rel_ebd"] == "none":
            return cls(config, at, distances, rows)
        gain, shift = (at(f"encoder.LayerNorm.{end}", n) for end in ("weight", "bias"))
        if any(isinstance(data, Promised) for data in (rows, gain, shift)):
            return cls(config, at, distances, Promised("distances", rows.shape))
        numbers = rows.array.astype(np.float64)
        centred = numbers - numbers.mean(1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + config["layer_norm_eps"])
        return cls(config, at, distances, Data(scaled * gain.array + shift.array))

    def table(self, layer: str, kind: str) -> Data:
        """Return the columns by distance, (h, d, 2 reach + 1), that queries or keys of a layer are multiplied by; those
        of keys with 1/√(d · products) in them."""
        n, h, d = self.config["hidden_size"], self.config["num_attention_heads"], head_columns(self.config)
        shared = self.config["share_att_key"]
        name = f"{layer}.{SIDES[kind]}_proj" if shared else f"{layer}.pos_{SIDES[kind]}_proj"
        W, b = self.at(f"{name}.weight", n, n), self.at(f"{name}.bias", n)
        called = f"{layer} {kind} by distance"
        if any(isinstance(data, Promised) for data in (self.embeddings, W, b)):
            return Promised(called, (h, d, 2 * self.distances.reach + 1))
        rows = (self.embeddings.array.astype(np.float64) @ W.array.T + b.array).reshape(-1, h, d)
        numbers = self.distances.numbers()  # by query - key
        chosen = rows[numbers[::-1]] if kind == BY_QUERIES else rows[numbers] * score_scale(self.config)
        return Data(np.ascontiguousarray(chosen.transpose(1, 2, 0)), called)


def score_scale(config: Settings) -> LiveSize:
    """Return 1/√(d · products): scores are sums of as many products of d columns."""
    factor: LiveSize = (head_columns(config) * (1 + len(list_types(config["pos_att_type"])))) ** -0.5
    return factor


def attention_apart(Q: Operator, K: Operator, V: Operator, config: Settings, tables: dict[str, Data]) -> Operator:
    """Build attention within sequences whose scores add products with tables by distance: He et al. 2021, eq. 4."""

    def mixed(x: Value) -> Value:
        """Attend: queries, keys and values by heads, then heads side by side."""
        q, k, v = (x @ W @ heads(config["num_attention_heads"]) for W in (Q, K, V))
        q = q * score_scale(config)
        scores = q @ k.T
        if BY_QUERIES in tables:
            scores = scores + q @ at_distances(tables[BY_QUERIES])
        if BY_KEYS in tables:
            scores = scores + (k @ at_distances(tables[BY_KEYS])).T
        attended: Value = product(scores, v, over=softmax, where=sequence) @ heads(config["num_attention_heads"]).T
        return attended

    return formula(mixed)


@declares(
    TensorNames(
        "deberta.",
        SPELLINGS,
        COUNTS,
        trained=("pooler", "cls", "lm_predictions", "mask_predictions"),
        copies=BERT_HEAD.copies,
        classifier=first_row("pooler.dense", "", "classifier"),
        masked=BERT_HEAD,
    ),
    **DEBERTA_KEYS,
)
def deberta_v2(config: Settings, at: ArraySource) -> Operator:
    """All layers share embeddings of distances, which go through products of each, its own or those of queries and
    keys."""
    n, f = config["hidden_size"], config["intermediate_size"]
    at = cache(at)  # embeddings of distances may go through products of layers
    parts, act = EncoderParts(at, config["layer_norm_eps"]), ACTIVATIONS[config["hidden_act"]]
    if config["pooler_hidden_size"] not in (None, n):
        raise wrong("pooler_hidden_size", config["pooler_hidden_size"], f"hidden_size, {n}")
    near = NearParts.of(config, at) if config["relative_attention"] else None

    def layer(l: int) -> Operator:
        """Build layer l: attention and a perceptron, each added to its input and normed after that."""
        name = f"encoder.layer.{l}"
        inner = f"{name}.attention.self"
        Q, K, V = (parts.linear(f"{inner}.{part}_proj", n, n) for part in ("query", "key", "value"))
        tables = {kind: near.table(inner, kind) for kind in list_types(config["pos_att_type"])} if near else {}
        F = attention_apart(Q, K, V, config, tables) @ parts.linear(f"{name}.attention.output.dense", n, n)
        G = parts.linear(f"{name}.intermediate.dense", n, f) @ act @ parts.linear(f"{name}.output.dense", f, n)
        first, second = (parts.norm(f"{name}.{part}.LayerNorm", n) for part in ("attention.output", "output"))
        return (I + F) @ first @ (I + G) @ second

    return reduce(matmul, [embedding(config, parts), *map(layer, range(config["num_hidden_layers"]))])


def embedding(config: Settings, parts: EncoderParts) -> Operator:
    """Build embeddings of tokens, and of positions and kinds if there are any, behind a product where tables are
    narrower than the model, and the norm."""
    n, m = config["hidden_size"], config["embedding_size"] or config["hidden_size"]
    embed = parts.plain("embeddings.word_embeddings", config["vocab_size"], m)
    positions = config["max_position_embeddings"] if config["position_biased_input"] else 0
    for field, rows, name in (("positions", positions, "position"), ("kinds", config["type_vocab_size"], "token_type")):
        if rows:
            embed = embed + given(field, rows) @ parts.plain(f"embeddings.{name}_embeddings", rows, m)
    wide = embed if m == n else embed @ parts.matrix("embeddings.embed_proj", m, n)
    return wide @ parts.norm("embeddings.LayerNorm", n)
