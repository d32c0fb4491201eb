"""The tokens that end a text, as the files of a checkpoint say: any that one of them calls so."""
from collections.abc import Iterator
from pathlib import Path

from formats.disk.files import read_json
from opmatrix.files.checkpoint import Checkpoint
from opmatrix.files.directory.model_files import GENERATION, TOKENIZER_CONFIG

KEY = "eos_token_id"
GGUF_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))


def end_tokens(checkpoint: Checkpoint) -> list[int]:
    """Ids in ascending order: of config.json, generation_config.json and tokenizer_config.json, or of a GGUF file's
    keys; none where nothing is said, or what is said names no token of the vocabulary."""
    words = checkpoint.said["vocab_size"]
    return sorted({each for said in mentioned(checkpoint) for each in ids(said) if 0 <= each < words})


def mentioned(checkpoint: Checkpoint) -> Iterator[object]:
    """What the files say: an id, or a list of them."""
    if checkpoint.keys is not None:
        yield from (checkpoint.keys.get(name) for name in GGUF_KEYS)
        return
    yield checkpoint.config.get(KEY)
    yield read_object(checkpoint.directory / GENERATION).get(KEY)
    said = read_object(checkpoint.directory / TOKENIZER_CONFIG).get("eos_token")
    word = said.get("content") if isinstance(said, dict) else said
    if isinstance(word, str) and checkpoint.vocabulary.exists():
        yield checkpoint.tokenizer().tokenizer.token_to_id(word)


def read_object(file: Path) -> dict[str, object]:
    """The entries of a JSON file that may be absent. Raises InputError where it is there and is no JSON."""
    found = read_json(file, integer=int) if file.exists() else {}       # "no limit" is written as 10^30
    return found if isinstance(found, dict) else {}


def ids(said: object) -> list[int]:
    """The ids of an entry that is one, or a list of them."""
    return [each for each in (said if isinstance(said, list) else [said]) if type(each) is int]
