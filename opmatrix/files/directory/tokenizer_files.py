"""The tokenizer of a directory: tokenizer.json together with the files beside it, as transformers reads them."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from formats.core.errors import InputError
from formats.disk.files import parse_json, read_json
from opmatrix.files.directory.model_files import ADDED_TOKENS, CONFIG, SPECIAL_TOKENS, TOKENIZER, TOKENIZER_CONFIG
from opmatrix.files.directory.tokenizer_classes import (
    DEFAULT,
    ITSELF,
    MISNAMED,
    PLAIN_CLASS,
    REGISTERED,
    TOKENIZER_CLASSES,
    WITH_KINDS,
    JsonObject,
    TokenizerClass,
    TokenizerFlag,
)
from opmatrix.inference.text import unpanicked

if TYPE_CHECKING:
    import tokenizers

USUAL_NAMES = "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"
EXTRA, OLD_EXTRA, DECODER = "extra_special_tokens", "additional_special_tokens", "added_tokens_decoder"


@dataclass(frozen=True)
class TokenizerFiles:
    """The entries of the files about the tokenizer, beside tokenizer.json itself."""

    directory: Path
    config: JsonObject  # the entries of tokenizer_config.json
    special: JsonObject  # the entries of special_tokens_map.json
    added: JsonObject  # the entries of added_tokens.json

    @classmethod
    def read(cls, directory: Path) -> "TokenizerFiles":
        """Read the files. Raises InputError for a file that is no JSON object. If tokenizer_config.json lists the added
        tokens, no older file is read."""
        config = read_absent(directory / TOKENIZER_CONFIG)
        if DECODER in config:
            return cls(directory, config, {}, {})
        return cls(directory, config, read_absent(directory / SPECIAL_TOKENS), read_absent(directory / ADDED_TOKENS))

    def file_of(self, key: str) -> Path:
        """Return the file that a key is read from."""
        return self.directory / (SPECIAL_TOKENS if key in self.special else TOKENIZER_CONFIG)

    def get(self, key: str, default: object = None) -> Any:
        """Return the value of a key: special_tokens_map.json goes before tokenizer_config.json."""
        return self.special.get(key, self.config.get(key, default))

    def flag(self, key: str, setting: TokenizerFlag) -> bool | None:
        """Return the value of a flag. Raises InputError for any other value."""
        value = self.get(key, setting.default)
        if value is None and setting.null == DEFAULT:
            return setting.default
        if type(value) is bool or (value is None and setting.null == ITSELF):
            return value
        raise InputError(f"{self.file_of(key)}: {key} is {json.dumps(value)}: it must be true or false, or left out")


def read_absent(file: Path) -> JsonObject:
    """Read the entries of a JSON file; none if the file is absent. Raises InputError if it holds no object."""
    if not file.exists():
        return {}
    entries = read_json(file, integer=int)  # "no limit" is written as 10^30
    if not isinstance(entries, dict):
        raise InputError(f"{file}: {type(entries).__name__}, not a JSON object: mend it")
    return entries


def class_name(model: JsonObject, files: TokenizerFiles) -> str | None:
    """Return the class that a model's files name. Raises InputError if the name is no text."""
    where, name = files.directory / TOKENIZER_CONFIG, files.config.get("tokenizer_class")
    if not name:
        where, name = files.directory / CONFIG, model.get("tokenizer_class")
    if not name or isinstance(name, str):
        return name or None
    raise InputError(f"{where}: tokenizer_class is {name!r:.60}: it must be a name, or left out")


def class_of(model: JsonObject, files: TokenizerFiles) -> TokenizerClass | None:
    """Return the class that a model's files name, or else that of its family; None for the plain class, and for an
    unknown one. Raises InputError if the name is no text."""
    name = class_name(model, files)
    registered = REGISTERED.get(str(model.get("model_type")), PLAIN_CLASS)
    if not name or str(model.get("model_type")) in MISNAMED:
        return TOKENIZER_CLASSES.get(registered)
    return None if registered == PLAIN_CLASS else TOKENIZER_CLASSES.get(name.removesuffix("Fast"))


def gives_kinds(directory: Path, model: Mapping[str, object]) -> bool:
    """True if the tokenizer of a directory, whose config.json is `model`, gives the kinds of tokens to the model: the
    second text of a pair is then of another kind. Raises InputError if a name in the files is no text."""
    files = TokenizerFiles.read(directory)
    inputs = files.config.get("model_input_names")
    if isinstance(inputs, list):
        return "token_type_ids" in inputs
    registered = REGISTERED.get(str(model.get("model_type")), PLAIN_CLASS)
    return (class_name(dict(model), files) or registered).removesuffix("Fast") in WITH_KINDS


# ---- tokens that files add


@dataclass
class SpecialTokens:
    """Tokens that are never split: `named` by name, `extra` without a name, and `listed` by id as the files list
    them."""

    files: TokenizerFiles
    listed: dict[int, "tokenizers.AddedToken"] = field(default_factory=dict)
    named: dict[str, Any] = field(default_factory=dict)
    extra: list[Any] = field(default_factory=list)

    @classmethod
    def read(cls, files: TokenizerFiles, source: JsonObject, kind: TokenizerClass | None) -> "SpecialTokens":
        """Read the special tokens. Raises InputError for an entry that is no token."""
        tokens = cls(files)
        tokens.named = dict.fromkeys(USUAL_NAMES) | tokens.read_named(kind.named if kind else padding_token(source))
        tokens.extra = tokens.read_extra(list(kind.extra) if kind else [])
        tokens.listed = tokens.read_listed(source)
        by_content = {str(token): token for token in tokens.listed.values()}
        for name in USUAL_NAMES:
            if (token := tokens.named[name]) is not None:
                tokens.named[name] = by_content.get(str(token), token)
        return tokens

    def read_named(self, defaults: Mapping[str, str | None]) -> JsonObject:
        """Return the tokens that have a name: a usual one, or any that ends in _token."""
        files, named = self.files, dict[str, Any](defaults)
        for key, value in (files.config | files.special).items():
            if key in USUAL_NAMES or (key.endswith("_token") and isinstance(value, str | dict)):
                named[key] = None if value is None else self.token(key, value, key in files.special)
        extra = files.special.get(EXTRA, files.config.get(EXTRA))
        if not isinstance(extra, dict):
            return named
        return named | {key: self.token(EXTRA, value) for key, value in extra.items()}

    def read_extra(self, defaults: list[str]) -> list[Any]:
        """Return the tokens without a name."""
        config, special = self.files.config, self.files.special
        key = OLD_EXTRA if OLD_EXTRA in config and not config.get(EXTRA) else EXTRA
        listed = config.get(key)
        if isinstance(special.get(EXTRA), list):
            listed = [*(listed or []), *special[EXTRA]]
        elif OLD_EXTRA in special and key not in config:
            listed = special[OLD_EXTRA]
        elif key not in config:
            return list(defaults)
        if listed is None or isinstance(listed, dict):
            return []
        if not isinstance(listed, list):
            raise InputError(f"{self.files.file_of(key)}: {key} is {listed!r:.60}: it must be a list of tokens")
        return [self.token(key, value, EXTRA in special) for value in listed]

    def read_listed(self, source: JsonObject) -> dict[int, "tokenizers.AddedToken"]:
        """Return tokens by their ids, from tokenizer_config.json, or else from added_tokens.json and tokenizer.json."""
        import tokenizers

        files = self.files
        if DECODER in files.config:
            return {int(place): self.token(DECODER, value) for place, value in files.config[DECODER].items()}
        special = {str(token) for token in (*self.named.values(), *self.extra) if token is not None}
        listed = {
            place: tokenizers.AddedToken(word, normalized=word not in special, special=word in special)
            for word, place in files.added.items()
        }
        for entry in source.get("added_tokens") or []:
            listed[entry["id"]] = tokenizers.AddedToken(**{key: entry[key] for key in entry if key != "id"})
        return listed

    def token(self, key: str, value: object, special: bool = False) -> Any:
        """Return a token from its text, or from an object with its flags."""
        import tokenizers

        if isinstance(value, str):
            return value
        if isinstance(value, dict) and "content" in value:
            flags = {flag: value[flag] for flag in value if flag != "__type"} | ({"special": True} if special else {})
            with suppress(TypeError):
                return tokenizers.AddedToken(**flags)
        raise InputError(
            f"{self.files.file_of(key)}: {key} is {value!r:.60}: it must be a token, as text or as an "
            "object with its content and flags"
        )

    def add_to(self, tokenizer: "tokenizers.Tokenizer") -> None:
        """Add the tokens that a tokenizer lacks; flags of tokens that it has may change."""
        import tokenizers

        added = [self.listed[place] for place in sorted(self.listed)]
        present = {token.content for token in tokenizer.get_added_tokens_decoder().values()} | {*map(str, added)}
        names = [str(token) for token in self.named.values() if token]
        for token in (*self.named.values(), *self.extra):
            if token is not None and str(token) not in present:
                present.add(str(token))
                added.append(tokenizers.AddedToken(token, special=True) if isinstance(token, str) else token)
        for token in added:
            token.special = token.special or str(token) in names
        tokenizer.add_tokens(added)

    def add_again(self, tokenizer: "tokenizers.Tokenizer") -> None:
        """Add all special tokens once more, with plain flags."""
        import tokenizers

        words = dict.fromkeys(str(token) for token in (*self.named.values(), *self.extra) if token is not None)
        tokenizer.add_tokens([tokenizers.AddedToken(word, special=True) for word in words])


def padding_token(source: JsonObject) -> dict[str, str | None]:
    """Return the token that a tokenizer.json pads with, which a plain class takes as its padding token."""
    padding = source.get("padding")
    return {"pad_token": padding["pad_token"]} if padding else {}


# ---- the whole tokenizer


@unpanicked()
def effective_text(text: str, directory: Path, model: JsonObject) -> str:
    """Return the tokenizer.json that transformers would make from all files of a directory, whose config.json is
    `model`. A text that is no JSON object is returned unchanged, to be refused where it is read. If no file names a
    class, and transformers could not run that of the family on it, tokenizer.json counts as it is. Raises InputError,
    which names file and key, if no tokenizer can be made."""
    try:
        source = parse_json(text, TOKENIZER, integer=int)
    except InputError:
        return text
    if not isinstance(source, dict):
        return text
    files = TokenizerFiles.read(directory)
    if files.flag("split_special_tokens", TokenizerFlag(False, DEFAULT)):
        raise InputError(
            f"{files.file_of('split_special_tokens')}: split_special_tokens is true: special tokens are "
            "never split here: set it to false"
        )
    kind, named = class_of(model, files), class_name(model, files) is not None
    try:
        return build_text(text, source, files, kind, None if named else model.get("vocab_size"))
    except UnfitClass:
        if named:
            raise
        return build_text(text, source, files, None)


class UnfitClass(InputError):
    """A tokenizer.json from which a class cannot make a tokenizer, or makes one that can read no text."""


def build_text(
    text: str, source: JsonObject, files: TokenizerFiles, kind: TokenizerClass | None, rows: int | None = None
) -> str:
    """Return the text of a tokenizer of a class, or of the plain one, for a model with this many `rows` of tokens.
    Raises InputError, and UnfitClass."""
    settings = {} if kind is None else {key: files.flag(key, setting) for key, setting in kind.flags.items()}
    try:
        tokens = SpecialTokens.read(files, source, kind)
        return plain_text(text, tokens) if kind is None else class_text(source, tokens, kind, settings, rows)
    except InputError:
        raise
    except Exception as error:
        where, words = files.directory / TOKENIZER, source.get("model") or {}
        if kind is None:
            raise UnfitClass(f"{where}: no tokenizer ({error!r:.100}): get the file again") from error
        called = words.get("type") if isinstance(words, dict) else None
        raise UnfitClass(
            f"{where}: no tokenizer: its model is {called!r:.40}, from which the tokenizer_class of "
            f"{TOKENIZER_CONFIG} cannot be built ({error!r:.100}): get both files again, or set "
            "tokenizer_class to 'TokenizersBackend' there, which reads the file as it is"
        ) from error


def plain_text(text: str, tokens: SpecialTokens) -> str:
    """Return the text of a tokenizer that is read as it is; it changes only if tokens are added."""
    import tokenizers

    plain = tokenizers.Tokenizer.from_str(text)
    before = repr(plain.get_added_tokens_decoder())
    tokens.add_to(plain)
    return text if repr(plain.get_added_tokens_decoder()) == before else str(plain.to_str())


def class_text(
    source: JsonObject, tokens: SpecialTokens, kind: TokenizerClass, settings: JsonObject, rows: int | None
) -> str:
    """Return the text of a tokenizer that a class makes from the words and merges of a tokenizer.json. Raises
    UnfitClass."""
    import tokenizers

    settings = settings | {name: token for name, token in tokens.named.items() if name in kind.named}
    parts = {
        "model": kind.model,
        "normalizer": kind.normalizer,
        "pre_tokenizer": kind.pre_tokenizer,
        "decoder": kind.decoder,
    }
    components = {name: part(settings, source) for name, part in parts.items()}
    processor = None if kind.template else source.get("post_processor") or None
    rest: JsonObject = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "post_processor": processor,
    }
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(rest | components))
    tokens.add_to(tokenizer)
    if kind.again:
        tokens.add_again(tokenizer)
    if kind.template:
        tokenizer.post_processor = text_between(tokenizer, tokens.named, rows, kind)
    return str(tokenizer.to_str())


def text_between(
    tokenizer: "tokenizers.Tokenizer", named: JsonObject, rows: int | None, kind: TokenizerClass
) -> "tokenizers.processors.TemplateProcessing":
    """Return the template of a text between two tokens, and of a pair of texts; an empty name means no token. Raises
    UnfitClass for a token without an id below the number of rows."""
    from tokenizers.processors import TemplateProcessing

    around, around_ids = kind.template or (), {}
    for name, default in around:
        token = named.get(name)
        number = default if token is None else tokenizer.token_to_id(str(token))
        if name and (number is None or (rows is not None and number >= rows)):
            raise UnfitClass(
                f"{TOKENIZER_CONFIG}: {name} is {token!r:.40}, and every text has that token: name one "
                f"that {TOKENIZER} holds"
            )
        if name:
            around_ids[name] = (str(token), number)
    first, last = (([around_ids[name][0]] if name else []) for name, _ in around)
    between, second = kind.pair
    return TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last * between, f"$B:{second}", *(f"{token}:{second}" for token in last)],
        special_tokens=list(dict.fromkeys(around_ids.values())),
    )
