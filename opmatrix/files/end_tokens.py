"""The tokens that end a text: every token that some file of a checkpoint declares as one."""

from collections.abc import Iterator
from pathlib import Path

from formats.disk.files import read_json
from opmatrix.files.checkpoint import Checkpoint
from opmatrix.files.directory.model_files import GENERATION, TOKENIZER_CONFIG

KEY = "eos_token_id"
GGUF_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))


def end_tokens(checkpoint: Checkpoint) -> list[int]:
    """Return the ids in ascending order, from config.json, generation_config.json and tokenizer_config.json, or from
    the keys of a GGUF file. The list is empty if no file names an end token, or none of them is in the vocabulary."""
    words = checkpoint.said["vocab_size"]
    return sorted({token for entry in mentioned(checkpoint) for token in ids(entry) if 0 <= token < words})


def mentioned(checkpoint: Checkpoint) -> Iterator[object]:
    """Yield the entries of the files: each an id, a list of ids, or None."""
    if checkpoint.keys is not None:
        yield from (checkpoint.keys.get(name) for name in GGUF_KEYS)
        return
    yield checkpoint.config.get(KEY)
    yield read_object(checkpoint.directory / GENERATION).get(KEY)
    entry = read_object(checkpoint.directory / TOKENIZER_CONFIG).get("eos_token")
    word = entry.get("content") if isinstance(entry, dict) else entry
    if isinstance(word, str) and checkpoint.vocabulary.exists():
        yield checkpoint.tokenizer().tokenizer.token_to_id(word)


def read_object(file: Path) -> dict[str, object]:
    """Read the entries of a JSON file that may be absent. Raises InputError for a file that is no JSON."""
    content = read_json(file, integer=int) if file.exists() else {}  # "no limit" is written as 10^30
    return content if isinstance(content, dict) else {}


def ids(said: object) -> list[int]:
    """Return the ids of an entry that is one id, or a list of them."""
    return [token for token in (said if isinstance(said, list) else [said]) if type(token) is int]
