"""Models of an encoder and a decoder whose layers attend to what the encoder gives: T5 (Raffel et al. 2020) and Whisper
(Radford et al. 2022). The encoder is a tower; a layer of the decoder takes its rows beside those of the tower."""

from collections.abc import Callable
from typing import NamedTuple

from opmatrix.algebra.monoids import softmax
from opmatrix.algebra.operators import I, attention, cols, heads, product, weight
from opmatrix.algebra.positions.patterns import Pattern, causal, sequence
from opmatrix.algebra.term import Operator, Value, formula
from opmatrix.models import check, normalise_config
from opmatrix.models.config import Settings, dimension, layers, refuse_names, settings
from opmatrix.models.encoders.t5 import T5Parts
from opmatrix.models.encoders.towers import (
    AUDIO_KEYS,
    TOWER_GELU,
    TOWER_PARTS,
    Tower,
    audio_stem,
    promise_array,
    table_of_positions,
    tower_layer,
)

WHISPER_KEYS = dict(
    **AUDIO_KEYS,
    decoder_layers=layers(1),
    decoder_attention_heads=dimension(),
    decoder_ffn_dim=dimension(),
    vocab_size=dimension(),
    max_target_positions=dimension(),
)


class DecoderHalf(NamedTuple):
    """A decoder as operators, with weights of which only names and shapes are known. Its table of tokens is that of its
    head, or of its encoder, and counts once."""

    first: Operator | None  # what is added to embeddings of tokens; None: nothing
    layer: Operator  # from rows of 2 n columns, a decoder's beside an encoder's, to features (T, n)
    last: Operator  # features to scores of the vocabulary
    layers: int
    heads: int
    width: int  # n
    tied: bool  # its head has the weights of a table of tokens


class EncoderDecoder(NamedTuple):
    """A model of two halves."""

    encoder: Tower
    decoder: DecoderHalf


def beside_source(n: int, mixed: Callable[[Value, Value], Value]) -> Operator:
    """Build an operator of two values that come in beside each other: a decoder's rows, and those of its encoder."""
    return formula(lambda x: mixed(x @ cols(0, n, 2 * n), x @ cols(n, 2 * n, 2 * n)))


def t5_halves(config: Settings) -> EncoderDecoder:
    """Build T5's halves. Tables of biases by distance are left out: a number for each head and each of 32 distances."""
    check(config)
    sizes = normalise_config(config)
    parts, n, h = T5Parts(sizes, promise_array), sizes["hidden_size"], sizes["num_attention_heads"]

    def attend(name: str, x: Value, where: Pattern, source: Value | None = None) -> Value:
        """Attend from normed rows to a source, or to the same rows, and add what comes out."""
        y = x @ parts.norm(f"{name}.norm")
        met = y if source is None else source
        q, k, v = y @ parts.into_heads(f"{name}.q"), *(met @ parts.into_heads(f"{name}.{part}") for part in "kv")
        return x + product(q @ k.T, v, over=softmax, where=where) @ parts.out_of_heads(name)

    unit = I + parts.norm("unit.norm") @ parts.feeding("unit")

    def decoded(y: Value, source: Value) -> Value:
        """Attend to tokens before, then to the source, then put rows through the unit."""
        return attend("cross", attend("self", y, sequence & causal), sequence, source) @ unit

    table = promise_array("table", sizes["vocab_size"], n)
    encoder = Tower(
        weight(table),
        formula(lambda x: attend("encoder", x, sequence)) @ unit,
        parts.norm("post"),
        sizes["num_hidden_layers"],
        h,
        sizes["max_position_embeddings"],
        sizes["max_position_embeddings"],
        ids=True,
    )
    count = sizes["num_decoder_layers"] or sizes["num_hidden_layers"]
    head = weight(promise_array("head", sizes["vocab_size"], n).T)
    decoder = DecoderHalf(
        None, beside_source(n, decoded), parts.norm("last") @ head, count, h, n, sizes["tie_word_embeddings"]
    )
    return EncoderDecoder(encoder, decoder)


def whisper_halves(config: Settings) -> EncoderDecoder:
    """Build Whisper's halves: an encoder of frames, and a decoder of tokens with a table of positions. Keys have no
    bias."""
    refuse_names(config, WHISPER_KEYS)
    sizes = settings(config, WHISPER_KEYS)
    n, h, frames = sizes["hidden_size"], sizes["decoder_attention_heads"], sizes["max_source_positions"]
    f = sizes["decoder_ffn_dim"]

    def into_heads(name: str) -> Operator:
        """Build a product into the columns of heads, and split these."""
        return TOWER_PARTS.linear_if(not name.endswith("k"), name, n, n) @ heads(h)

    Q, K, V = (TOWER_PARTS.linear_if(part != "k", f"self.{part}", n, n) for part in "qkv")
    own = I + TOWER_PARTS.norm("self.norm", n) @ attention(Q, K, V, h, sequence & causal) @ TOWER_PARTS.linear(
        "self.o", n, n
    )
    unit = I + TOWER_PARTS.norm("unit.norm", n) @ TOWER_PARTS.linear("up", n, f) @ TOWER_GELU @ TOWER_PARTS.linear(
        "down", f, n
    )

    def decoded(y: Value, source: Value) -> Value:
        """Attend to tokens before, then to frames, then put rows through the perceptron."""
        y = y @ own
        q = y @ TOWER_PARTS.norm("cross.norm", n) @ into_heads("cross.q")
        k, v = (source @ into_heads(f"cross.{part}") for part in "kv")
        seen = product(q @ k.T * q.cols**-0.5, v, over=softmax, where=sequence) @ heads(h).T
        return (y + seen @ TOWER_PARTS.linear("cross.o", n, n)) @ unit

    encoder = Tower(
        audio_stem(sizes),
        tower_layer(sizes, key_bias=False),
        TOWER_PARTS.norm("post", n),
        sizes["num_hidden_layers"],
        sizes["num_attention_heads"],
        frames,
        frames,
    )
    table = promise_array("table", sizes["vocab_size"], n)
    decoder = DecoderHalf(
        weight(table) + table_of_positions(sizes["max_target_positions"], n),
        beside_source(n, decoded),
        TOWER_PARTS.norm("last", n) @ weight(table.T),
        sizes["decoder_layers"],
        h,
        n,
        tied=True,
    )
    return EncoderDecoder(encoder, decoder)


ENCODER_DECODERS: dict[str, Callable[[Settings], EncoderDecoder]] = {"t5": t5_halves, "whisper": whisper_halves}


def has_halves(config: Settings) -> bool:
    """True if a config is of an encoder and a decoder that attends to it."""
    return config.get("model_type") in ENCODER_DECODERS


def read_halves(config: Settings) -> EncoderDecoder:
    """Build both halves of a config. Raises InputError as `settings` does."""
    return ENCODER_DECODERS[config["model_type"]](config)
