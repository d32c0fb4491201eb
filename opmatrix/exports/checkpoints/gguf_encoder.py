"""BERT as a GGUF file (llama.cpp, build_bert): its keys, its pooling, and its word pieces, in which what begins a word
is marked in place of what continues one. Inverts the reader's `encoder_config` and `word_pieces`."""

import json
from typing import TYPE_CHECKING

import numpy as np

from formats.core.errors import InputError
from opmatrix.exports.checkpoints.gguf_tokens import TokenKeys, list_tokens
from opmatrix.exports.checkpoints.plain_class import LayerSizes, PlainModel, StoredNumbers, no_place
from opmatrix.files.directory.gguf_words import INNER_MARK, SPACE, unmarked
from opmatrix.files.directory.merges import KEY
from opmatrix.files.gguf import LAYER_NORM, POOLING, POOLING_MODES
from opmatrix.inference.pooling import Pooling
from opmatrix.models.config import Settings

if TYPE_CHECKING:
    import tokenizers

ENCODERS = {"bert": "bert"}  # family -> general.architecture
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
    """Return the keys of an encoder, without the name of its architecture. Raises InputError for a pooling or an
    activation that such a file cannot declare."""
    if (activation := config.get("hidden_act", "gelu")) != "gelu":
        raise no_place(f"the activation {activation}", "is not gelu")
    numbers = {mode: number for number, mode in POOLING_MODES.items()}
    if len(pooling.modes) != 1 or pooling.modes[0] not in numbers:
        raise InputError(f"pooling by {', '.join(pooling.modes)}: GGUF files know {', '.join(numbers)}: give --hf")
    if not pooling.normalise:
        raise InputError("its embeddings are not of length 1, as those of GGUF files are: give --hf")
    positions, width = model.tensors[POSITION_TABLE].numbers.shape
    return {
        "context_length": positions,
        "embedding_length": width,
        "block_count": len(model.layers),
        "feed_forward_length": sizes.units,
        "attention.head_count": sizes.heads,
        LAYER_NORM: float(config["layer_norm_eps"]),
        "attention.causal": False,
        POOLING: numbers[pooling.modes[0]],
    }


def widen_tables(model: PlainModel) -> None:
    """Store tables of positions and of kinds in float32, as other readers expect them; a program without kinds gets a
    row of zeros."""
    _, width = model.tensors[POSITION_TABLE].numbers.shape
    kinds = model.tensors.get(KIND_TABLE)
    model.tensors[KIND_TABLE] = StoredNumbers(np.zeros((1, width), np.float32) if kinds is None else kinds.numbers)
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
