"""The files that sentence-transformers lays beside a checkpoint: what they say about texts and rows becomes a Pooling,
and what they say beyond that is refused. No class that a file names is imported."""
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from formats.core.errors import InputError
from formats.disk.files import read_json
from opmatrix.files.directory.model_files import CONFIG, MODULES, PROMPTS, TOKENIZER_CONFIG, TRANSFORMER
from opmatrix.inference.pooling import Pooling, check_count, check_text, expect, modes, truth

KNOWN = "Transformer", "Pooling", "Normalize"               # what it may name, in this order; the last may be absent
FLAGS = {                                                   # older names of modes, in the order of their results
    "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken"}
WIDTHS = "embedding_dimension", "word_embedding_dimension"   # the model says so itself
USUAL = {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings",
         "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}}
IGNORED_KEYS = "unpad_inputs", "query_length", "document_length"        # they change no embedding of a plain text


def embeds(directory: Path) -> bool:
    """Whether files beside a checkpoint say how rows become embeddings."""
    return (directory / MODULES).exists()


def read_pooling(directory: Path, positions: int) -> Pooling:
    """What the files beside a checkpoint say that has so many positions; where there is no modules.json, the mean of
    length one. Raises InputError that names the file, and what of it is not supported."""
    if not embeds(directory): return Pooling()
    check_task(directory)
    folders = modules(directory)
    prompt, (longest, lower) = prompted(directory / PROMPTS), transformer(directory)
    which = read_modes(folders["Pooling"] / CONFIG, prompt)
    if normal := folders.get("Normalize"): check_normalize(normal / CONFIG)
    return Pooling(which, normal is not None, positions if longest is None else min(longest, positions), prompt, lower)


@dataclass(frozen=True)
class DeclaredEntries:
    """The object of a JSON file, and how an entry of it is called."""
    file: Path
    said: dict[str, object]

    def at(self, key: str) -> str: return f"{self.file}: {key}"

    def flag(self, key: str, default: bool = False) -> bool:
        """An entry that is true or false; null is neither true nor the default. Raises InputError for another."""
        value = self.said.get(key, default)
        return value is not None and truth(value, self.at(key))

    def only(self, known: Collection[str], empty: bool = False) -> None:
        """Raises InputError for an entry that is not known; where `empty` says so, for one that holds something."""
        for key, value in self.said.items():
            if key not in known and not (empty and value in (None, False, [], {}, "")):
                raise InputError(f"{self.at(key)} is {value!r:.60}: it is not supported")

    def usual(self, key: str, wanted: object) -> None:
        """Raises InputError for an entry that is there with another value."""
        found = self.said.get(key, wanted)
        expect(found == wanted, self.at(key), found, f"{wanted!r}: nothing else is supported")


def read_entries(file: Path, absent: bool = False) -> DeclaredEntries:
    """The entries of a JSON file, none where it may be absent and is."""
    if absent and not file.exists(): return DeclaredEntries(file, {})
    found = read_json(file, integer=int)                    # "no limit" is written as 10^30
    expect(isinstance(found, dict), str(file), found, "a JSON object")
    return DeclaredEntries(file, found)


def modules(directory: Path) -> dict[str, Path]:
    """The folder of each module that modules.json names."""
    file, found = directory / MODULES, dict[str, Path]()
    listed = read_json(file)
    whole = isinstance(listed, list) and all(isinstance(each, dict) for each in listed)
    expect(whole, str(file), listed, "a list of modules")
    for module in listed:
        kind, path = module.get("type"), module.get("path")
        name = str(kind).rpartition(".")[2]
        if not str(kind).startswith("sentence_transformers.") or name not in KNOWN:
            raise InputError(f"{file}: a module of type {kind!r:.80} is not supported: only {', '.join(KNOWN)} are")
        beside = isinstance(path, str) and re.fullmatch(r"[\w-]{0,100}", path) is not None
        expect(beside, f"{file}: path", path, "a folder beside it")
        if KNOWN.index(name) != len(found):
            raise InputError(f"{file}: {name} is out of place: supported is {', '.join(KNOWN)}")
        found[name] = directory / path
    if "Pooling" not in found:
        raise InputError(f"{file}: it names no Pooling, so how rows become one is not said: add the model's own, or "
                         "take a row a token from a copy without modules.json: --output rows")
    if found["Transformer"] != directory:
        raise InputError(f"{file}: its Transformer lies in {found['Transformer']}: move its files beside {MODULES}")
    return found


def read_modes(file: Path, prompt: str) -> tuple[str, ...]:
    """The modes that the config of a Pooling names."""
    found = read_entries(file)
    found.only({*FLAGS, *WIDTHS, "pooling_mode", "include_prompt"})
    if not found.flag("include_prompt", True) and prompt:
        raise InputError(f"{found.at('include_prompt')} is false, but the prompt {prompt!r:.60} is always pooled here")
    flags = [mode for key, mode in FLAGS.items() if found.flag(key)]
    return modes(found.said.get("pooling_mode", flags or "mean"), found.at("pooling_mode"))


def check_task(directory: Path) -> None:
    """Raises InputError for a model that scores pairs of texts, which its files say before anything of an embedding."""
    found = read_entries(directory / PROMPTS, absent=True)
    if found.said.get("model_type") == "CrossEncoder":
        raise InputError(f"{found.at('model_type')} is 'CrossEncoder': it scores pairs of texts by a head, and embeds "
                         "none: take a model that embeds, or a row a token from a copy without modules.json: "
                         "--output rows")


def check_normalize(file: Path) -> None:
    """Raises InputError where a Normalize is of something else than the embedding."""
    found = read_entries(file, absent=True)
    found.only({"module_input_name", "module_output_name"})
    for key, value in found.said.items():
        if value is not None: found.usual(key, "sentence_embedding")


def prompted(file: Path) -> str:
    """What stands before every text."""
    found = read_entries(file, absent=True)
    found.usual("model_type", "SentenceTransformer")
    found.usual("truncate_dim", None)
    prompts, name = found.said.get("prompts"), found.said.get("default_prompt_name")
    if name is None: return ""
    if not isinstance(prompts, dict): prompts = {}
    expect(isinstance(name, str) and name in prompts, found.at("default_prompt_name"), name, "one of its prompts")
    return check_text(prompts[name] or "", found.at(f"prompts: {name}"))


def transformer(directory: Path) -> tuple[int | None, bool]:
    """Tokens that a text is cut at, and whether it becomes lower case."""
    files = [file for name in TRANSFORMER if (file := directory / name).exists()] or [directory / TRANSFORMER[0]]
    found, tokens = read_entries(files[0], absent=True), read_entries(directory / TOKENIZER_CONFIG, absent=True)
    found.only({"max_seq_length", "do_lower_case", *USUAL, *IGNORED_KEYS}, empty=True)
    for key, wanted in USUAL.items(): found.usual(key, wanted)
    tokens.usual("truncation_side", "right")
    longest = check_count(found.said.get("max_seq_length"), found.at("max_seq_length"))
    if longest is None: longest = check_count(tokens.said.get("model_max_length"), tokens.at("model_max_length"))
    return longest, found.flag("do_lower_case")
