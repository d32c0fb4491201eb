"""BERT and NomicBert as GGUF files (llama.cpp, build_bert): keys, pooling, and word pieces, in which what begins a
word is marked in place of what continues one. Inverts the reader's `encoder_config` and `word_pieces`."""

import json
from typing import TYPE_CHECKING

import numpy as np

from formats.core.errors import InputError
from opmatrix.exports.checkpoints.gguf_tokens import TokenKeys, list_tokens
from opmatrix.exports.checkpoints.plain_class import CLASSES, LayerSizes, PlainModel, no_place
from opmatrix.exports.checkpoints.stored_numbers import StoredNumbers
from opmatrix.files.directory.gguf_words import INNER_MARK, SPACE, unmarked
from opmatrix.files.directory.merges import KEY
from opmatrix.files.gguf import ENCODER_FILES, LAYER_NORM, POOLING, POOLING_MODES, ROTATION_KEYS
from opmatrix.inference.pooling import Pooling
from opmatrix.models.config import Settings
from opmatrix.models.encoders.masked_head import TOKEN_TABLE
from opmatrix.models.encoders.nomic import GATED_ACTIVATIONS
from opmatrix.models.rope import rotation_settings

if TYPE_CHECKING:
    import tokenizers

ENCODERS = {
    encoder.family: name for name, encoder in reversed(ENCODER_FILES.items()) if encoder.family in CLASSES
}  # family with a plain class -> the first general.architecture that it has
POSITION_TABLE, KIND_TABLE = "embeddings.position_embeddings.weight", "embeddings.token_type_embeddings.weight"
LONGEST_WORD = 100  # letters of a word that readers of these files divide into pieces
TOKEN_ROLES = {
    "unknown": "[UNK]",
    "padding": "[PAD]",
    "cls": "[CLS]",
    "bos": "[CLS]",
    "seperator": "[SEP]",
    "eos": "[SEP]",
    "mask": "[MASK]",
}  # keys of tokens, as they are spelt there, with the texts that BERT has


def describe_encoder(
    config: Settings, model: PlainModel, sizes: LayerSizes, pooling: Pooling
) -> dict[str, int | float | bool]:
    """Return the keys of an encoder, without the name of its architecture. Raises InputError for a pooling, an
    activation, heads or a rotation that such a file cannot declare."""
    usual = ENCODER_FILES[ENCODERS[config["model_type"]]].settings["hidden_act"]
    activation = config.get("hidden_act", usual)
    if GATED_ACTIVATIONS.get(activation, activation) != usual:
        raise no_place(f"the activation {activation}", f"is not {usual}")
    numbers = {mode: number for number, mode in POOLING_MODES.items()}
    if len(pooling.modes) != 1 or pooling.modes[0] not in numbers:
        raise InputError(f"pooling by {', '.join(pooling.modes)}: GGUF files know {', '.join(numbers)}: give --hf")
    if not pooling.normalise:
        raise InputError("its embeddings are not of length 1, as those of GGUF files are: give --hf")
    width = model.tensors[TOKEN_TABLE].numbers.shape[1]
    if sizes.heads * sizes.columns != width:
        raise no_place(f"{sizes.heads} heads of {sizes.columns}", f"are not the {width} columns of the model")
    return describe_rotation(config) | {
        "context_length": count_positions(config, model),
        "embedding_length": width,
        "block_count": len(model.layers),
        "feed_forward_length": sizes.units,
        "attention.head_count": sizes.heads,
        LAYER_NORM: float(config["layer_norm_eps"]),
        "attention.causal": False,
        POOLING: numbers[pooling.modes[0]],
    }


def count_positions(config: Settings, model: PlainModel) -> int:
    """Return the positions of a model: the rows of its table of them, else those that its configuration declares."""
    table = model.tensors.get(POSITION_TABLE)
    return int(config["max_position_embeddings"]) if table is None else len(table.numbers)


def describe_rotation(config: Settings) -> dict[str, int | float | bool]:
    """Return the key of a rotation; none for a family that rotates nothing. Raises InputError for a rotation of some
    columns, or a scaled one, which have no keys."""
    if not ENCODER_FILES[ENCODERS[config["model_type"]]].names:
        return {}
    rotation: Settings = rotation_settings(config)
    if (share := rotation.get("partial_rotary_factor") or 1.0) != 1:
        raise no_place(f"a rotation of {share:g} of a head", "has no key")
    if (kind := rotation.get("rope_type") or "default") != "default":
        raise no_place(f"a rotation of type {kind}", "has no key")
    [key] = ROTATION_KEYS
    return {key: float(rotation["rope_theta"])}


def widen_tables(model: PlainModel) -> None:
    """Store tables of positions and of kinds in float32, as other readers expect them; a program without kinds gets a
    row of zeros."""
    _, width = model.tensors[TOKEN_TABLE].numbers.shape
    kinds = model.tensors.get(KIND_TABLE)
    model.tensors[KIND_TABLE] = StoredNumbers(np.zeros((1, width), np.float32) if kinds is None else kinds.numbers)
    if POSITION_TABLE in model.tensors:
        model.tensors[POSITION_TABLE] = StoredNumbers(model.tensors[POSITION_TABLE].numbers)


def note_encoder(pooling: Pooling, positions: int) -> list[str]:
    """Return notes of what a program declares of texts, and no GGUF file can."""
    notes = []
    if pooling.prompt or pooling.prompts:
        notes.append("prompts are not written, which GGUF files have no keys for")
    if (longest := pooling.max_seq_length) and longest < positions:
        notes.append(f"texts are read up to {positions} tokens there, here up to {longest}")
    return notes


def describe_words(meta: Settings, rows: int) -> TokenKeys:
    """Return the keys of a program's word pieces, for a table of so many rows. Raises InputError for a program without
    a tokenizer, and for one of another kind, or with other marks."""
    import tokenizers

    if not isinstance(text := meta.get("tokenizer"), str):
        raise InputError("the program has no tokenizer, and a GGUF file holds its tokens: give --hf")
    described = json.loads(text)
    model = described["model"]
    if model["type"] != "WordPiece":
        raise InputError(f"its tokenizer is of {model['type']}, not of word pieces: give --hf")
    tokens, kinds = list_tokens(described, rows)
    marked = [*map(mark_beginning, tokens)]
    if odd := [token for token, spelt in zip(tokens, marked, strict=True) if unmarked(spelt) != token]:
        raise InputError(f"its piece {odd[0]!r:.40} has no spelling in GGUF files: give --hf")
    if (longest := model.get("max_input_chars_per_word", LONGEST_WORD)) != LONGEST_WORD:
        raise InputError(f"its tokenizer divides words of {longest} letters, GGUF files {LONGEST_WORD}: give --hf")
    keys: dict[str, object] = {f"{KEY}model": "bert", f"{KEY}tokens": marked, f"{KEY}token_type": kinds}
    return TokenKeys(keys | read_normalizer(described) | place_roles(tokenizers.Tokenizer.from_str(text)), [])


def mark_beginning(piece: str) -> str:
    """Return a piece as llama.cpp's converter spells it: what begins a word has a mark, what continues one has none."""
    if piece.startswith("[") and piece.endswith("]"):
        return piece
    return piece.removeprefix(INNER_MARK) if piece.startswith(INNER_MARK) else SPACE + piece


def read_normalizer(described: Settings) -> dict[str, object]:
    """Return flags of the normalizer of BERT. Raises InputError for another one."""
    normalizer = described.get("normalizer") or {}
    if normalizer.get("type") != "BertNormalizer":
        raise InputError(f"its tokenizer changes texts by {normalizer.get('type')}, not as BERT's does: give --hf")
    flags = {"lowercase": normalizer.get("lowercase"), "strip_accents": normalizer.get("strip_accents")}
    return {f"{KEY}normalizer.{name}": flag for name, flag in flags.items() if isinstance(flag, bool)}


def place_roles(tokenizer: "tokenizers.Tokenizer") -> dict[str, object]:
    """Return the ids of tokens with a role, by keys."""
    places = {role: tokenizer.token_to_id(word) for role, word in TOKEN_ROLES.items()}
    return {f"{KEY}{role}_token_id": at for role, at in places.items() if at is not None}
