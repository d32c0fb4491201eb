"""Chat templates in the files of a model, with the precedence that transformers gives them: files of templates before
the entry of tokenizer_config.json. GGUF files have keys for them."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from formats.core.errors import InputError
from formats.disk.files import read_text
from opmatrix.files.directory.declared import read_entries
from opmatrix.files.directory.model_files import CHAT_TEMPLATE, CHAT_TEMPLATES, SPECIAL_TOKENS, TOKENIZER_CONFIG
from opmatrix.inference.chat.chat_templates import DEFAULT, ChatTemplates

TEMPLATE_KEY, ENDING = "chat_template", ".jinja"
TOKEN_ROLES = (
    "bos",
    "eos",
    "unk",
    "sep",
    "pad",
    "cls",
    "mask",
)  # special tokens that have a variable, bos_token and so on
GGUF_KEY, GGUF_NAMES = "tokenizer.chat_template", "tokenizer.chat_templates"
GGUF_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding"}


def read_chat(directory: Path) -> ChatTemplates | None:
    """Read the templates of a model's directory; None without any. Raises InputError for an entry that is no text."""
    entries = read_entries(directory / TOKENIZER_CONFIG, absent=True)
    texts = dict(list_files(directory)) or read_entry_texts(entries.said.get(TEMPLATE_KEY), entries.at(TEMPLATE_KEY))
    if not texts:
        return None
    beside = read_entries(directory / SPECIAL_TOKENS, absent=True).said
    return ChatTemplates(texts, special_tokens(beside | entries.said), str(directory))


def list_files(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each template that is a file."""
    if (file := directory / CHAT_TEMPLATE).exists():
        yield DEFAULT, read_text(file)
    for file in sorted(directory.glob(CHAT_TEMPLATES)):
        yield file.name.removesuffix(ENDING), read_text(file)


def read_entry_texts(entry: object, where: str) -> dict[str, str]:
    """Return the templates of an entry: one text, or a list of objects with `name` and `template`. Raises InputError
    for another entry."""
    if isinstance(entry, str):
        return {DEFAULT: entry}
    texts = dict[str, str]()
    for item in entry if isinstance(entry, list) else [] if entry is None else [entry]:
        match item:
            case {"name": str(name), "template": str(text)}:
                texts[name] = text
            case _:
                raise InputError(f"{where}: {item!r:.60}: a template is a text, or an object with name and template")
    return texts


def special_tokens(said: Mapping[str, object]) -> dict[str, str]:
    """Return the special tokens of a configuration by the names of variables. A token is a text, or an object with its
    content."""
    tokens = dict[str, str]()
    for role in TOKEN_ROLES:
        entry = said.get(name := f"{role}_token")
        word = entry.get("content") if isinstance(entry, dict) else entry
        if isinstance(word, str):
            tokens[name] = word
    return tokens


def read_gguf_chat(keys: Mapping[str, object], file: Path) -> ChatTemplates | None:
    """Return the templates of a GGUF file's keys; None without any. Raises InputError for a key that is no text."""
    names = keys.get(GGUF_NAMES)
    places = {name: f"{GGUF_KEY}.{name}" for name in (names if isinstance(names, list) else ())}
    places = {DEFAULT: GGUF_KEY, **places}
    texts = {name: text_of(keys[key], file, key) for name, key in places.items() if key in keys}
    words = keys.get("tokenizer.ggml.tokens")
    tokens = dict[str, str]()
    for role, theirs in GGUF_ROLES.items():
        at = keys.get(f"tokenizer.ggml.{theirs}_token_id")
        if isinstance(words, list) and type(at) is int and 0 <= at < len(words):
            tokens[f"{role}_token"] = str(words[at])
    return ChatTemplates(texts, tokens, str(file)) if texts else None


def text_of(entry: object, file: Path, key: str) -> str:
    """Return an entry that is text. Raises InputError for another."""
    if isinstance(entry, str):
        return entry
    raise InputError(f"{file}: {key} is {entry!r:.60}: a template is a text")
