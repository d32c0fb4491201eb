"""The files that sentence-transformers writes beside a checkpoint. Their entries about texts and rows become a Pooling;
any other entry is refused. No class that a file names is imported."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from formats.core.errors import InputError
from formats.disk.files import read_json
from opmatrix.files.directory.model_files import CONFIG, MODULES, PROMPTS, TOKENIZER_CONFIG, TRANSFORMER
from opmatrix.inference.pooling import (
    SIMILARITIES,
    Pooling,
    check_count,
    check_prompts,
    check_text,
    expect,
    modes,
    truth,
)

KNOWN = {  # modules that it may name, in order, each with those that it may come behind
    "Transformer": ("",),
    "Pooling": ("Transformer",),
    "Dense": ("Pooling", "Dense"),
    "Normalize": ("Pooling", "Dense"),
}
FLAGS = {  # older names of modes, in the order of their results
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
WIDTHS = "embedding_dimension", "word_embedding_dimension"  # the model says so itself
USUAL = {
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
}
SCORES = "CrossEncoder"  # the model_type of a model that scores texts
PROMPTS_KEYS = "__version__", "model_type", "prompts", "default_prompt_name", "similarity_fn_name"
IGNORED_KEYS = "unpad_inputs", "query_length", "document_length"  # they change no embedding of a plain text


def embeds(directory: Path) -> bool:
    """True if files beside a checkpoint declare how rows become embeddings."""
    return (directory / MODULES).exists() and not declares_scores(directory)


def declares_scores(directory: Path) -> bool:
    """True if files beside a checkpoint declare that it scores texts, or pairs of them."""
    return read_entries(directory / PROMPTS, absent=True).said.get("model_type") == SCORES


def read_pooling(directory: Path, positions: int) -> Pooling:
    """Read the pooling that the files beside a checkpoint declare. `positions`: the number of positions of the model.
    Without a modules.json the pooling is the mean, normalised to length one. Raises InputError that names the file and
    the unsupported entry."""
    if not (directory / MODULES).exists():
        return Pooling()
    check_task(directory)
    folders, beside = list_modules(directory, KNOWN, "Pooling"), read_entries(directory / PROMPTS, absent=True)
    beside.usual("model_type", "SentenceTransformer")
    longest, lower = text_limits(directory, USUAL, IGNORED_KEYS)
    which, include_prompt = read_modes(folders["Pooling"][0] / CONFIG)
    for normal in folders["Normalize"]:
        check_normalize(normal / CONFIG)
    similarity = beside.said.get("similarity_fn_name")
    return Pooling(
        which,
        bool(folders["Normalize"]),
        positions if longest is None else min(longest, positions),
        default_prompt(beside),
        lower,
        read_prompts(beside),
        include_prompt,
        tuple(dense.name for dense in folders["Dense"]),
        check_count(beside.said.get("truncate_dim"), beside.at("truncate_dim")),
        similarity if similarity in SIMILARITIES else None,
    )


def read_plain(directory: Path, positions: int) -> Pooling:
    """Read the treatment of texts and rows by a checkpoint without a modules.json, as sentence-transformers takes it:
    the mean of rows as it is."""
    longest, lower = text_limits(directory, USUAL, IGNORED_KEYS)
    return Pooling(("mean",), False, positions if longest is None else min(longest, positions), "", lower)


@dataclass(frozen=True)
class DeclaredEntries:
    """The object of a JSON file, with the names of its entries for error texts."""

    file: Path
    said: dict[str, object]

    def at(self, key: str) -> str:
        """Return the place of an entry for error texts: its file and its key."""
        return f"{self.file}: {key}"

    def flag(self, key: str, default: bool = False) -> bool:
        """Return an entry that is true or false; null is neither true nor the default. Raises InputError for another
        value."""
        value = self.said.get(key, default)
        return value is not None and truth(value, self.at(key))

    def only(self, known: Collection[str], empty: bool = False) -> None:
        """Raise InputError for an entry that is not known; with `empty`, only if its value is not empty."""
        for key, value in self.said.items():
            if key not in known and not (empty and value in (None, False, [], {}, "")):
                raise InputError(f"{self.at(key)} is {value!r:.60}: it is not supported")

    def usual(self, key: str, wanted: object) -> None:
        """Raise InputError for an entry that is present with another value than `wanted`."""
        value = self.said.get(key, wanted)
        expect(value == wanted, self.at(key), value, f"{wanted!r}: nothing else is supported")


def read_entries(file: Path, absent: bool = False) -> DeclaredEntries:
    """Read the entries of a JSON file; no entries if the file may be absent and is."""
    if absent and not file.exists():
        return DeclaredEntries(file, {})
    content = read_json(file, integer=int)  # "no limit" is written as 10^30
    expect(isinstance(content, dict), str(file), content, "a JSON object")
    return DeclaredEntries(file, content)


def list_modules(directory: Path, known: Mapping[str, Collection[str]], needed: str) -> dict[str, list[Path]]:
    """Return the folders of each kind of module that modules.json names, in their order. `known`: the kinds that it may
    name, in order, each with those that it may come behind; `needed`: the one that it must name. Raises InputError for
    any other."""
    file, last = directory / MODULES, ""
    folders: dict[str, list[Path]] = {name: [] for name in known}
    listed = read_json(file)
    whole = isinstance(listed, list) and all(isinstance(entry, dict) for entry in listed)
    expect(whole, str(file), listed, "a list of modules")
    for module in listed:
        kind, path = module.get("type"), module.get("path")
        name = str(kind).rpartition(".")[2]
        if not str(kind).startswith("sentence_transformers.") or name not in known:
            raise InputError(f"{file}: a module of type {kind!r:.80} is not supported: only {', '.join(known)} are")
        beside = isinstance(path, str) and re.fullmatch(r"[\w-]{0,100}", path) is not None
        expect(beside, f"{file}: path", path, "a folder beside it")
        if last not in known[name]:
            raise InputError(f"{file}: {name} is out of order: supported is the order {', '.join(known)}")
        folders[name].append(directory / path)
        last = name
    if not folders[needed]:
        raise InputError(
            f"{file}: it names no {needed}, so no pooling of rows is declared: add the model's {needed}, or "
            "take a row a token from a copy without modules.json: --output rows"
        )
    transformers = [folder for name, before in known.items() if "" in before for folder in folders[name]]
    if transformers != [directory]:
        places = ", ".join(map(str, transformers)) or "no folder"
        raise InputError(f"{file}: its Transformer is in {places}: move its files beside {MODULES}")
    return folders


def read_modes(file: Path) -> tuple[tuple[str, ...], bool]:
    """Return the modes that the config of a Pooling names, and false if prompts are not pooled."""
    entries = read_entries(file)
    entries.only({*FLAGS, *WIDTHS, "pooling_mode", "include_prompt"})
    flags = [mode for key, mode in FLAGS.items() if entries.flag(key)]
    named = modes(entries.said.get("pooling_mode", flags or "mean"), entries.at("pooling_mode"))
    return named, entries.flag("include_prompt", True)


def check_task(directory: Path) -> None:
    """Raise InputError for a model that its files declare to score pairs of texts. This is checked before any entry
    about embeddings."""
    entries = read_entries(directory / PROMPTS, absent=True)
    if entries.said.get("model_type") == SCORES:
        raise InputError(
            f"{entries.at('model_type')} is {SCORES!r}: it scores pairs of texts and has no "
            "embedding: take a model that embeds, or a row a token from a copy without modules.json: --output rows"
        )


def check_normalize(file: Path, wanted: str = "sentence_embedding") -> None:
    """Raise InputError where a Normalize applies to another value than the one of this name."""
    entries = read_entries(file, absent=True)
    entries.only({"module_input_name", "module_output_name"})
    for key, value in entries.said.items():
        if value is not None:
            entries.usual(key, wanted)


def read_prompts(entries: DeclaredEntries) -> dict[str, str]:
    """Return the prompts that the file declares, by name; none if the entry is no object, as the peer reads it."""
    prompts = entries.said.get("prompts")
    return check_prompts(prompts, entries.at("prompts")) if isinstance(prompts, dict) else {}


def default_prompt(entries: DeclaredEntries) -> str:
    """Return the prompt that is put before every text; empty if no default is named."""
    prompts, name = entries.said.get("prompts"), entries.said.get("default_prompt_name")
    if name is None:
        return ""
    if not isinstance(prompts, dict):
        prompts = {}
    expect(isinstance(name, str) and name in prompts, entries.at("default_prompt_name"), name, "one of its prompts")
    return check_text(prompts[name] or "", entries.at(f"prompts: {name}"))


def text_limits(directory: Path, usual: Mapping[str, object], ignored: Collection[str] = ()) -> tuple[int | None, bool]:
    """Return the number of tokens that a text is truncated to (None: no limit), and True if it becomes lower case.
    `usual`: the entries about the task, each with its one value; `ignored`: keys that change nothing here."""
    files = [file for name in TRANSFORMER if (file := directory / name).exists()] or [directory / TRANSFORMER[0]]
    entries, tokens = read_entries(files[0], absent=True), read_entries(directory / TOKENIZER_CONFIG, absent=True)
    entries.only({"max_seq_length", "do_lower_case", *usual, *ignored}, empty=True)
    for key, wanted in usual.items():
        entries.usual(key, wanted)
    tokens.usual("truncation_side", "right")
    longest = check_count(entries.said.get("max_seq_length"), entries.at("max_seq_length"))
    if longest is None:
        longest = check_count(tokens.said.get("model_max_length"), tokens.at("model_max_length"))
    return longest, entries.flag("do_lower_case")
