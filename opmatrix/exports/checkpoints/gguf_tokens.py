"""The tokenizer of a program as keys of a GGUF file: byte pairs with the name of their rule for words, or pieces with
scores, in the order in which they merge. Inverts opmatrix/files/directory/merges.py and gguf_words.py."""

import json
from typing import TYPE_CHECKING, NamedTuple

from formats.core.errors import InputError
from opmatrix.files.directory.chat_files import GGUF_KEY, GGUF_NAMES
from opmatrix.files.directory.gguf_words import NORMAL, SPACE, merged_pairs
from opmatrix.files.directory.merges import CONTROL, KEY, OWN, RULES, before
from opmatrix.files.end_tokens import GGUF_KEYS
from opmatrix.inference.chat.chat_templates import DEFAULT, ChatTemplates
from opmatrix.models.config import Settings

if TYPE_CHECKING:
    import tokenizers

UNKNOWN_KIND, UNUSED_KIND, BYTE_KIND = 2, 5, 6  # types of tokens (llama.cpp, llama_token_type)
UNUSED_TOKEN = "[PAD{}]"  # rows of a table that no token of the vocabulary has
UNMERGED = -1e6  # the score of a token that no merge makes
EXAMPLES = (
    "the quick brown fox jumps over 13 lazy dogs, doesn't it?",
    "  two spaces\n\n\tand a tab: x = [1.5, 2e-3];  ",
    "Größe, café, 東京 12345 \U0001f600 'll 's",
)  # texts that a file's tokenizer must read as the program's does


class TokenKeys(NamedTuple):
    """The keys of a tokenizer, and what was left out of it, in words."""

    keys: dict[str, object]
    notes: list[str]


def describe_tokens(meta: Settings, rows: int) -> TokenKeys:
    """Return the keys of a program's tokenizer, for a table of so many rows. Raises InputError for a program without
    one, and for one that no GGUF file describes."""
    import tokenizers

    text = meta.get("tokenizer")
    if not isinstance(text, str):
        raise InputError("the program has no tokenizer, and a GGUF file holds its tokens: give --hf")
    described = json.loads(text)
    tokenizer = tokenizers.Tokenizer.from_str(text)
    tokens, kinds = list_tokens(described, rows)
    keys: dict[str, object] = {f"{KEY}tokens": tokens, f"{KEY}token_type": kinds}
    notes = list[str]()
    if described["model"]["type"] != "BPE":
        raise InputError(f"its tokenizer is of {described['model']['type']}, not of merges: give --hf")
    if described["model"].get("byte_fallback"):
        keys |= describe_pieces(described, tokens, kinds)
    else:
        keys |= describe_pairs(described)
        notes += note_normalizer(described.get("normalizer"))
    keys |= special_keys(tokenizer, meta, described["model"].get("unk_token"))
    return TokenKeys(keys | chat_keys(meta), notes)


def list_tokens(described: Settings, rows: int) -> tuple[list[str], list[int]]:
    """Return the text and the type of each row of a table. Raises InputError for tokens beyond its rows."""
    model = described["model"]
    named = {at: (word, NORMAL) for word, at in model["vocab"].items()}
    if model.get("byte_fallback"):
        named |= {at: (word, BYTE_KIND) for at, (word, _) in named.items() if is_byte(word)}
    named |= {
        entry["id"]: (entry["content"], CONTROL if entry["special"] else OWN) for entry in described["added_tokens"]
    }
    if model.get("byte_fallback") and (unknown := model.get("unk_token")) in model["vocab"]:
        named[model["vocab"][unknown]] = unknown, UNKNOWN_KIND
    if max(named) >= rows:
        raise InputError(f"token {max(named)} of its tokenizer is beyond the {rows} rows of its table of tokens")
    filled = [named.get(at, (UNUSED_TOKEN.format(at), UNUSED_KIND)) for at in range(rows)]
    return [word for word, _ in filled], [kind for _, kind in filled]


def is_byte(word: str) -> bool:
    """True for the token of a byte, such as <0x0A>."""
    return len(word) == 6 and word.startswith("<0x") and word.endswith(">")


def describe_pairs(described: Settings) -> dict[str, object]:
    """Return the keys of byte pairs. Raises InputError for a rule for words that has no name in GGUF files."""
    words, whole = without_offsets(described.get("pre_tokenizer")), bool(described["model"].get("ignore_merges"))
    for name, rule in RULES.items():
        if rule.whole == whole and without_offsets(json.loads(before(rule.split).__getstate__())) == words:
            pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in described["model"]["merges"]]
            return {f"{KEY}model": "gpt2", f"{KEY}pre": name, f"{KEY}merges": pairs}
    kind = words.get("type") if isinstance(words, dict) else words
    raise InputError(f"the rule by which its tokenizer splits words ({kind}) has no name in GGUF files: give --hf")


def without_offsets(entry: object) -> object:
    """Return a description of a pre-tokenizer without what changes no token: offsets, and defaults."""
    if isinstance(entry, list):
        return [without_offsets(item) for item in entry]
    if not isinstance(entry, dict):
        return entry
    return {name: without_offsets(value) for name, value in entry.items() if name not in ("trim_offsets", "invert")}


def note_normalizer(normalizer: object) -> list[str]:
    """Return a note of a normalizer that the file has not. Raises InputError for one that changes more than the form
    of letters."""
    if normalizer is None:
        return []
    if isinstance(normalizer, dict) and normalizer.get("type") == "NFC":
        return ["texts are not brought to the form NFC, which GGUF files cannot ask for"]
    kind = normalizer.get("type") if isinstance(normalizer, dict) else normalizer
    raise InputError(f"its tokenizer changes texts ({kind}) before words, which GGUF files cannot ask for: give --hf")


def describe_pieces(described: Settings, tokens: list[str], kinds: list[int]) -> dict[str, object]:
    """Return the keys of pieces, whose scores give the order of merges. Raises InputError for merges that follow no
    scores."""
    merges = [tuple(pair if isinstance(pair, list) else pair.split(" ", 1)) for pair in described["model"]["merges"]]
    order = {left + right: None for left, right in merges}
    ranks = {piece: -float(rank) for rank, piece in enumerate(order)}
    scores = [ranks.get(word, UNMERGED) for word in tokens]
    mergeable = {word: score for word, score, kind in zip(tokens, scores, kinds, strict=True) if kind in (NORMAL, OWN)}
    if merged_pairs(described["model"]["vocab"], mergeable) != merges:
        raise InputError("the merges of its tokenizer follow no scores of pieces: give --hf")
    keys = {f"{KEY}model": "llama", f"{KEY}pre": "default", f"{KEY}scores": scores}
    return keys | {f"{KEY}add_space_prefix": begins_with_space(described)}


def begins_with_space(described: Settings) -> bool:
    """True for a tokenizer that puts a space before each text."""
    steps = json.dumps([described.get("normalizer"), described.get("pre_tokenizer")], ensure_ascii=False)
    return f'"prepend": "{SPACE}"' in steps or '"prepend_scheme": "first"' in steps or '"always"' in steps


def special_keys(tokenizer: "tokenizers.Tokenizer", meta: Settings, unknown: str | None) -> dict[str, object]:
    """Return the ids of tokens with a role, and whether texts begin and end with such. Raises InputError for more
    tokens that end texts than GGUF files have keys for."""
    plain, whole = (tokenizer.encode("a", add_special_tokens=more).ids for more in (False, True))
    at = next(at for at in range(len(whole)) if whole[at : at + len(plain)] == plain)
    before_text, behind = whole[:at], whole[at + len(plain) :]
    if len(before_text) > 1 or len(behind) > 1:
        raise InputError(f"its tokenizer puts {len(before_text)} and {len(behind)} tokens around a text: give --hf")
    config = meta.get("config") or {}
    ends = order_ends(tokenizer, meta, behind)
    if len(ends) > len(GGUF_KEYS):
        raise InputError(f"{len(ends)} tokens end its texts, and a GGUF file has keys for {len(GGUF_KEYS)}: give --hf")
    begin = before_text[0] if before_text else config.get("bos_token_id")
    keys = dict(zip(GGUF_KEYS, ends, strict=False)) | {
        f"{KEY}bos_token_id": begin,
        f"{KEY}padding_token_id": config.get("pad_token_id"),
        f"{KEY}unknown_token_id": None if unknown is None else tokenizer.token_to_id(unknown),
    }
    flags: dict[str, object] = {f"{KEY}add_bos_token": bool(before_text), f"{KEY}add_eos_token": bool(behind)}
    return flags | {name: value for name, value in keys.items() if type(value) is int and value >= 0}


def order_ends(tokenizer: "tokenizers.Tokenizer", meta: Settings, behind: list[int]) -> list[int]:
    """Return the tokens that end a text, the one that files call its end first."""
    config, chat = meta.get("config") or {}, meta.get("chat") or {}
    named = [*behind, config.get("eos_token_id"), tokenizer.token_to_id(str(chat.get("tokens", {}).get("eos_token")))]
    ends = list(meta.get("ends") or ())
    first = [at for at in named if at in ends or (at is not None and at in behind)]
    return [*dict.fromkeys([*first, *ends])]


def chat_keys(meta: Settings) -> dict[str, object]:
    """Return the keys of chat templates; none for a program without any."""
    if "chat" not in meta:
        return {}
    texts = ChatTemplates.parsed(meta["chat"], "the program").texts
    others = [name for name in texts if name != DEFAULT]
    keys: dict[str, object] = {f"{GGUF_KEY}.{name}": texts[name] for name in others}
    if DEFAULT in texts:
        keys[GGUF_KEY] = texts[DEFAULT]
    return keys | ({GGUF_NAMES: others} if others else {})


def check_read_alike(wanted: str, written: str) -> None:
    """Raise InputError for a text that a written tokenizer reads as other tokens than the program's."""
    import tokenizers

    ours, theirs = (tokenizers.Tokenizer.from_str(text) for text in (wanted, written))
    for text in EXAMPLES:
        if (first := ours.encode(text).ids) != (second := theirs.encode(text).ids):
            at = next((at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), "its end")
            raise InputError(f"a GGUF file would read {text[:30]!r} as other tokens, from token {at} on: give --hf")
