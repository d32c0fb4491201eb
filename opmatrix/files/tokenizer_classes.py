"""Tokenizers as transformers builds them, from version 5 on. A plain class takes tokenizer.json as it is and adds
special tokens of other files. Of most families the class takes words, merges and added tokens alone, and makes the rest
by tokenizer_config.json and by defaults of its own: where files differ, tokenizer.json is not what counts."""
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from formats.core.errors import InputError
from formats.disk.files import parse_json, read_json
from opmatrix.files.model_files import ADDED_TOKENS, CONFIG, SPECIAL_TOKENS, TOKENIZER, TOKENIZER_CONFIG
from opmatrix.pipelines.text import unpanicked

if TYPE_CHECKING:
    import tokenizers

Entries: TypeAlias = dict[str, Any]                         # of a JSON object
NAMED = "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"
EXTRA, OLD_EXTRA, DECODER = "extra_special_tokens", "additional_special_tokens", "added_tokens_decoder"


class Setting(NamedTuple):
    """A flag of tokenizer_config.json: its default, and whether null stands for that, is null itself, or is refused."""
    default: bool | None
    null: object = None                                     # "default", "itself", or None: refused


@dataclass(frozen=True)
class TokenizerFiles:
    """What the files of a directory say about its tokenizer, beside the tokenizer.json itself."""
    directory: Path
    config: Entries                                         # of tokenizer_config.json
    special: Entries                                        # of special_tokens_map.json
    added: Entries                                          # of added_tokens.json

    @classmethod
    def read(cls, directory: Path) -> "TokenizerFiles":
        """Raises InputError for a file that is no JSON object. Where tokenizer_config.json lists the added tokens, no
        older file is read."""
        config = read_object(directory / TOKENIZER_CONFIG)
        if DECODER in config: return cls(directory, config, {}, {})
        return cls(directory, config, read_object(directory / SPECIAL_TOKENS), read_object(directory / ADDED_TOKENS))

    def file_of(self, key: str) -> Path:
        """The file that a key is read from."""
        return self.directory / (SPECIAL_TOKENS if key in self.special else TOKENIZER_CONFIG)

    def get(self, key: str, default: object = None) -> Any:
        """The value of a key: special_tokens_map.json goes before tokenizer_config.json."""
        return self.special.get(key, self.config.get(key, default))

    def flag(self, key: str, setting: Setting) -> bool | None:
        """The value of a flag. Raises InputError for what is none."""
        value = self.get(key, setting.default)
        if value is None and setting.null == "default": return setting.default
        if type(value) is bool or (value is None and setting.null == "itself"): return value
        raise InputError(f"{self.file_of(key)}: {key} is {json.dumps(value)}: it must be true or false, or left out")


def read_object(file: Path) -> Entries:
    """The entries of a JSON file, none where it is absent. Raises InputError where it holds no object."""
    if not file.exists(): return {}
    entries = read_json(file, integer=int)                  # "no limit" is written as 10^30
    if not isinstance(entries, dict): raise InputError(f"{file}: {type(entries).__name__}, not a JSON object: mend it")
    return entries


# ---- classes that make more than they read

Part: TypeAlias = Callable[[Mapping[str, Any], Entries], Entries | None]    # of settings and the tokenizer.json


@dataclass(frozen=True)
class TokenizerClass:
    """What a class makes of its settings, in the form of a tokenizer.json. `named` are its special tokens where no file
    names others; `template` gives the tokens around a text, by the key of their names and the id of one without a name;
    without a template the one of tokenizer.json stays."""
    named: Mapping[str, str | None]
    flags: Mapping[str, Setting]
    model: Part
    pre_tokenizer: Part
    decoder: Part
    normalizer: Part = lambda settings, source: None
    template: tuple[tuple[str, int | None], tuple[str, int | None]] | None = None
    extra: tuple[str, ...] = ()                             # special tokens besides, where no file lists any
    again: bool = False                                     # special tokens are added once more, as plain ones


def fixed(part: Entries) -> Part: return lambda settings, source: part


def pieces(settings: Mapping[str, Any], source: Entries) -> Entries:
    """Word pieces (Schuster, Nakajima 2012)."""
    return {"type": "WordPiece", "unk_token": str(settings["unk_token"]), "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": numbered(source["model"]["vocab"])}


def merged(settings: Mapping[str, Any], source: Entries) -> Entries:
    """Byte pairs (Sennrich et al. 2016)."""
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": numbered(source["model"]["vocab"]), "merges": source["model"]["merges"]}


def weighed(settings: Mapping[str, Any], source: Entries, unknown: int) -> Entries:
    """Unigrams (Kudo 2018)."""
    return {"type": "Unigram", "unk_id": unknown, "byte_fallback": False, "vocab": source["model"]["vocab"]}


def numbered(words: object) -> object:
    """Words with their ids, from an object or from a list."""
    if not isinstance(words, list): return words
    return {word[0] if isinstance(word, list) else word: place for place, word in enumerate(words)}


def bert_text(settings: Mapping[str, Any], source: Entries) -> Entries:
    return {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": settings["tokenize_chinese_chars"],
            "strip_accents": settings["strip_accents"], "lowercase": settings["do_lower_case"]}


def bytes_of(settings: Mapping[str, Any], source: Entries, regex: bool = True) -> Entries:
    return {"type": "ByteLevel", "add_prefix_space": settings["add_prefix_space"], "trim_offsets": True,
            "use_regex": regex}


def qwen_words(settings: Mapping[str, Any], source: Entries) -> Entries:
    words = {"type": "Split", "pattern": {"Regex": QWEN_WORDS}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [words, bytes_of(settings, source, regex=False)]}


def spaced(settings: Mapping[str, Any], source: Entries) -> Entries:
    """The mark of a space, as a part of its own or as a decoder."""
    scheme = "always" if settings.get("add_prefix_space", True) else "never"
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": True}


def spaced_words(settings: Mapping[str, Any], source: Entries) -> Entries:
    return {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, spaced(settings, source)]}


def charsmap(settings: Mapping[str, Any], source: Entries) -> Entries | None:
    """The first table of characters among the normalizers of a tokenizer.json; the rest is left out."""
    normalizer = source.get("normalizer") or {}
    steps = normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]
    return next((step for step in steps if step.get("type") == "Precompiled"), None)


QWEN_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
              r"\s+(?!\S)|\s+")
BYTES = fixed({"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True})
ROBERTA_TOKENS = dict(bos_token="<s>", eos_token="</s>", sep_token="</s>", cls_token="<s>", unk_token="<unk>",
                      pad_token="<pad>", mask_token="<mask>")
END, SPACE = "<|endoftext|>", Setting(False)

BERT = TokenizerClass(
    dict(unk_token="[UNK]", sep_token="[SEP]", pad_token="[PAD]", cls_token="[CLS]", mask_token="[MASK]"),
    dict(do_lower_case=Setting(True), tokenize_chinese_chars=Setting(True), strip_accents=Setting(None, "itself")),
    pieces, fixed({"type": "BertPreTokenizer"}), fixed({"type": "WordPiece", "prefix": "##", "cleanup": True}),
    bert_text, (("cls_token", 2), ("sep_token", 3)))
ROBERTA = TokenizerClass(
    ROBERTA_TOKENS, dict(add_prefix_space=SPACE, trim_offsets=Setting(True)), merged, bytes_of, BYTES,
    template=(("cls_token", None), ("sep_token", None)))
GPT2 = TokenizerClass(
    dict(unk_token=END, bos_token=END, eos_token=END, pad_token=None), dict(add_prefix_space=SPACE), merged, bytes_of,
    BYTES)
QWEN2 = TokenizerClass(
    dict(unk_token=END, bos_token=None, eos_token=END, pad_token=END),
    dict(add_prefix_space=Setting(False, "default")), merged, qwen_words, BYTES, fixed({"type": "NFC"}), again=True)
XLM_ROBERTA = TokenizerClass(
    ROBERTA_TOKENS, dict(add_prefix_space=Setting(True, "itself")), partial(weighed, unknown=3), spaced_words, spaced,
    charsmap, (("bos_token", None), ("eos_token", None)))
T5 = TokenizerClass(
    dict(eos_token="</s>", unk_token="<unk>", pad_token="<pad>"), {}, partial(weighed, unknown=2), spaced_words, spaced,
    charsmap, (("", None), ("eos_token", None)), tuple(f"<extra_id_{place}>" for place in range(100)))

CLASSES = {"BertTokenizer": BERT, "DistilBertTokenizer": BERT, "RobertaTokenizer": ROBERTA, "GPT2Tokenizer": GPT2,
           "Qwen2Tokenizer": QWEN2, "XLMRobertaTokenizer": XLM_ROBERTA, "T5Tokenizer": T5}
PLAIN = "TokenizersBackend"
REGISTERED = {"bert": "BertTokenizer", "distilbert": "BertTokenizer", "roberta": "RobertaTokenizer",
              "gpt2": "GPT2Tokenizer", "t5": "T5Tokenizer",
              **dict.fromkeys(("qwen2", "qwen3", "qwen2_moe", "qwen3_moe"), "Qwen2Tokenizer")}      # by model_type
MISNAMED = "qwen2",                                         # families whose files are not asked for a class


def class_of(model: Mapping[str, Any], files: TokenizerFiles) -> TokenizerClass | None:
    """The class that a model's files name, or else that of its family; None for the plain one, and for any class that
    is not known here. Raises InputError where the name is no text."""
    where, name = files.directory / TOKENIZER_CONFIG, files.config.get("tokenizer_class")
    if not name: where, name = files.directory / CONFIG, model.get("tokenizer_class")
    if name and not isinstance(name, str):
        raise InputError(f"{where}: tokenizer_class is {name!r:.60}: it must be a name, or left out")
    registered = REGISTERED.get(str(model.get("model_type")), PLAIN)
    if not name or str(model.get("model_type")) in MISNAMED: return CLASSES.get(registered)
    return None if registered == PLAIN else CLASSES.get(str(name).removesuffix("Fast"))


# ---- tokens that files add

@dataclass
class SpecialTokens:
    """Tokens that are never taken apart: by name, without a name, and all that files list by id."""
    files: TokenizerFiles
    listed: dict[int, "tokenizers.AddedToken"] = field(default_factory=dict)
    named: dict[str, Any] = field(default_factory=dict)
    extra: list[Any] = field(default_factory=list)

    @classmethod
    def read(cls, files: TokenizerFiles, source: Entries, kind: TokenizerClass | None) -> "SpecialTokens":
        """Raises InputError for an entry that is no token."""
        tokens = cls(files)
        tokens.named = dict.fromkeys(NAMED) | tokens.read_named(kind.named if kind else padding_token(source))
        tokens.extra = tokens.read_extra(list(kind.extra) if kind else [])
        tokens.listed = tokens.read_listed(source)
        by_content = {str(token): token for token in tokens.listed.values()}
        for name in NAMED: tokens.named[name] = by_content.get(str(tokens.named[name]), tokens.named[name])
        return tokens

    def read_named(self, defaults: Mapping[str, str | None]) -> Entries:
        """The tokens that have a name: a usual one, or any that ends in _token."""
        files, named = self.files, dict[str, Any](defaults)
        for key, value in (files.config | files.special).items():
            if key in NAMED or (key.endswith("_token") and isinstance(value, str | dict)):
                named[key] = None if value is None else self.token(key, value, key in files.special)
        extra = files.special.get(EXTRA, files.config.get(EXTRA))
        if not isinstance(extra, dict): return named
        return named | {key: self.token(EXTRA, value) for key, value in extra.items()}

    def read_extra(self, defaults: list[str]) -> list[Any]:
        """The tokens that have none."""
        config, special = self.files.config, self.files.special
        key = OLD_EXTRA if OLD_EXTRA in config and not config.get(EXTRA) else EXTRA
        listed = config.get(key)
        if isinstance(special.get(EXTRA), list): listed = [*(listed or []), *special[EXTRA]]
        elif OLD_EXTRA in special and key not in config: listed = special[OLD_EXTRA]
        elif key not in config: return list(defaults)
        if listed is None or isinstance(listed, dict): return []
        if not isinstance(listed, list):
            raise InputError(f"{self.files.file_of(key)}: {key} is {listed!r:.60}: it must be a list of tokens")
        return [self.token(key, value, EXTRA in special) for value in listed]

    def read_listed(self, source: Entries) -> dict[int, "tokenizers.AddedToken"]:
        """Tokens by their ids, of tokenizer_config.json, or else of added_tokens.json and of tokenizer.json."""
        import tokenizers
        files = self.files
        if DECODER in files.config: return {int(place): self.token(DECODER, value)
                                            for place, value in files.config[DECODER].items()}
        special = {str(token) for token in (*self.named.values(), *self.extra) if token is not None}
        listed = {place: tokenizers.AddedToken(word, normalized=word not in special, special=word in special)
                  for word, place in files.added.items()}
        for entry in source.get("added_tokens") or []:
            listed[entry["id"]] = tokenizers.AddedToken(**{key: entry[key] for key in entry if key != "id"})
        return listed

    def token(self, key: str, value: object, special: bool = False) -> Any:
        """A token from its text, or from an object with its flags."""
        import tokenizers
        if isinstance(value, str): return value
        if isinstance(value, dict) and "content" in value:
            flags = {flag: value[flag] for flag in value if flag != "__type"} | ({"special": True} if special else {})
            with suppress(TypeError): return tokenizers.AddedToken(**flags)
        raise InputError(f"{self.files.file_of(key)}: {key} is {value!r:.60}: it must be a token, as text or as an "
                         "object with its content and flags")

    def add_to(self, tokenizer: "tokenizers.Tokenizer") -> None:
        """Adds to a tokenizer all tokens that it lacks; of tokens that it has, flags may change."""
        import tokenizers
        added = [self.listed[place] for place in sorted(self.listed)]
        present = {token.content for token in tokenizer.get_added_tokens_decoder().values()} | {*map(str, added)}
        names = [str(token) for token in self.named.values() if token]
        for token in (*self.named.values(), *self.extra):
            if token is not None and str(token) not in present:
                present.add(str(token))
                added.append(tokenizers.AddedToken(token, special=True) if isinstance(token, str) else token)
        for token in added: token.special = token.special or str(token) in names
        tokenizer.add_tokens(added)

    def add_again(self, tokenizer: "tokenizers.Tokenizer") -> None:
        """Adds all special tokens once more, with plain flags."""
        import tokenizers
        words = dict.fromkeys(str(token) for token in (*self.named.values(), *self.extra) if token is not None)
        tokenizer.add_tokens([tokenizers.AddedToken(word, special=True) for word in words])


def padding_token(source: Entries) -> dict[str, str | None]:
    """The token that a tokenizer.json pads with, which a plain class takes for its own."""
    padding = source.get("padding")
    return {"pad_token": padding["pad_token"]} if padding else {}


# ---- the whole

@unpanicked()
def effective_text(text: str, directory: Path, model: Mapping[str, Any]) -> str:
    """The tokenizer.json that says what transformers makes of all files of a directory, whose config.json is `model`.
    A text that is no JSON object stays, to be refused where it is read. Raises InputError, which names file and key,
    for what no tokenizer is made of."""
    try: source = parse_json(text, TOKENIZER, integer=int)
    except InputError: return text
    if not isinstance(source, dict): return text
    files = TokenizerFiles.read(directory)
    kind = class_of(model, files)
    if files.flag("split_special_tokens", Setting(False)):
        raise InputError(f"{files.file_of('split_special_tokens')}: split_special_tokens is true: special tokens are "
                         "never taken apart here: set it to false")
    settings = {} if kind is None else {key: files.flag(key, setting) for key, setting in kind.flags.items()}
    try:
        return build_text(text, source, SpecialTokens.read(files, source, kind), kind, settings)
    except InputError: raise
    except Exception as error:
        words = source.get("model") or {}
        called = words.get("type") if isinstance(words, dict) else None
        raise InputError(f"{directory / TOKENIZER}: no tokenizer: its model is {called!r:.40}, of which the "
                         f"tokenizer_class of {TOKENIZER_CONFIG}, or of the family, makes none ({error!r:.100}): get "
                         "both files again, or set tokenizer_class to 'TokenizersBackend' there, which reads it as it "
                         "is") from error


def build_text(text: str, source: Entries, tokens: SpecialTokens, kind: TokenizerClass | None,
               settings: Mapping[str, Any]) -> str:
    """The text of a tokenizer of a class, or of the plain one, which is changed only where tokens are added."""
    import tokenizers
    if kind is None:
        plain = tokenizers.Tokenizer.from_str(text)
        before = repr(plain.get_added_tokens_decoder())
        tokens.add_to(plain)
        return text if repr(plain.get_added_tokens_decoder()) == before else str(plain.to_str())
    settings = settings | {name: token for name, token in tokens.named.items() if name in kind.named}
    parts = {"model": kind.model, "normalizer": kind.normalizer, "pre_tokenizer": kind.pre_tokenizer,
             "decoder": kind.decoder}
    made = {name: part(settings, source) for name, part in parts.items()}
    processor = None if kind.template else source.get("post_processor") or None
    rest = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "post_processor": processor}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(rest | made))
    tokens.add_to(tokenizer)
    if kind.again: tokens.add_again(tokenizer)
    if kind.template: tokenizer.post_processor = template(tokenizer, tokens.named, *kind.template)
    return str(tokenizer.to_str())


def template(tokenizer: "tokenizers.Tokenizer", named: Mapping[str, Any], *around: tuple[str, int | None]) -> Any:
    """A text between two tokens, of which an empty name stands for none."""
    from tokenizers.processors import TemplateProcessing
    around_ids = {}
    for name, default in around:
        token = named.get(name)
        number = default if token is None else tokenizer.token_to_id(str(token))
        if name and number is None:
            raise InputError(f"{TOKENIZER_CONFIG}: {name} is {token!r:.40}, and every text has that token: name one "
                             f"that {TOKENIZER} holds")
        if name: around_ids[name] = (str(token), number)
    first, last = (([around_ids[name][0]] if name else []) for name, _ in around)
    return TemplateProcessing(single=[*first, "$A", *last], special_tokens=list(dict.fromkeys(around_ids.values())))
