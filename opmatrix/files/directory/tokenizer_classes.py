"""Classes of tokenizers as transformers has them, from version 5 on. A plain class takes tokenizer.json as it is. The
other classes take its words and merges, and make the rest from tokenizer_config.json and from their own defaults: if
the files differ, tokenizer.json does not count."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

JsonObject: TypeAlias = dict[str, Any]


class TokenizerFlag(NamedTuple):
    """A flag of tokenizer_config.json: its default, and the meaning of null: the default, null itself, or an error."""

    default: bool | None
    null: str = ""  # DEFAULT, ITSELF, or refused


DEFAULT, ITSELF = "default", "itself"
TokenizerPart: TypeAlias = Callable[[JsonObject, JsonObject], JsonObject | None]  # (settings, tokenizer.json) -> part


@dataclass(frozen=True)
class TokenizerClass:
    """The parts of a tokenizer.json that a class makes from its settings. `named`: its special tokens unless a file
    names others. `template`: the tokens around a text, each as the key of its name and its id if it has no name;
    without a template that of tokenizer.json stays. `pair`: the number of last tokens between the texts of a pair, and
    the kind of the second text."""

    named: Mapping[str, str | None]
    flags: Mapping[str, TokenizerFlag]
    model: TokenizerPart
    pre_tokenizer: TokenizerPart
    decoder: TokenizerPart
    normalizer: TokenizerPart = lambda settings, source: None
    template: tuple[tuple[str, int | None], tuple[str, int | None]] | None = None
    pair: tuple[int, int] = (1, 0)
    extra: tuple[str, ...] = ()  # more special tokens, if no file lists any
    again: bool = False  # True: special tokens are added once more, as plain ones


def constant_part(part: JsonObject) -> TokenizerPart:
    """Return a part that no setting changes."""
    return lambda settings, source: part


def word_pieces(settings: JsonObject, source: JsonObject) -> JsonObject:
    """Return word pieces (Schuster, Nakajima 2012)."""
    return {
        "type": "WordPiece",
        "unk_token": str(settings["unk_token"]),
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": words_by_id(source["model"]["vocab"]),
    }


def byte_pairs(settings: JsonObject, source: JsonObject) -> JsonObject:
    """Return byte pairs (Sennrich et al. 2016)."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": words_by_id(source["model"]["vocab"]),
        "merges": source["model"]["merges"],
    }


def unigrams(settings: JsonObject, source: JsonObject, unknown: int) -> JsonObject:
    """Return unigrams (Kudo 2018)."""
    return {"type": "Unigram", "unk_id": unknown, "byte_fallback": False, "vocab": source["model"]["vocab"]}


def words_by_id(words: object) -> object:
    """Return words with their ids, from an object or from a list."""
    if not isinstance(words, list):
        return words
    return {word[0] if isinstance(word, list) else word: place for place, word in enumerate(words)}


def bert_text(settings: JsonObject, source: JsonObject) -> JsonObject:
    """Return the normalizer of BERT: lower case, accents and Chinese letters as the settings say."""
    return {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": settings["tokenize_chinese_chars"],
        "strip_accents": settings["strip_accents"],
        "lowercase": settings["do_lower_case"],
    }


def byte_letters(settings: JsonObject, source: JsonObject, regex: bool = True) -> JsonObject:
    """Return the pre-tokenizer with a letter for each byte; it splits words by GPT-2's rule if `regex`."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": settings["add_prefix_space"],
        "trim_offsets": True,
        "use_regex": regex,
    }


def qwen_words(settings: JsonObject, source: JsonObject) -> JsonObject:
    """Return the pre-tokenizer that splits words by Qwen's rule, with a letter for each byte."""
    words = {"type": "Split", "pattern": {"Regex": QWEN_WORDS}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [words, byte_letters(settings, source, regex=False)]}


def space_mark(settings: JsonObject, source: JsonObject) -> JsonObject:
    """Return the mark of a space, a part that can be a pre-tokenizer or a decoder."""
    scheme = "always" if settings.get("add_prefix_space", True) else "never"
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": True}


def marked_words(settings: JsonObject, source: JsonObject) -> JsonObject:
    """Return the pre-tokenizer that splits words at spaces, each behind the mark of a space."""
    return {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, space_mark(settings, source)]}


def characters(settings: JsonObject, source: JsonObject) -> JsonObject | None:
    """Return the first table of characters among the normalizers of a tokenizer.json; the others are left out."""
    normalizer = source.get("normalizer") or {}
    steps = normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]
    return next((step for step in steps if step.get("type") == "Precompiled"), None)


QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
BYTE_DECODER = constant_part({"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True})
ROBERTA_TOKENS = dict(
    bos_token="<s>",
    eos_token="</s>",
    sep_token="</s>",
    cls_token="<s>",
    unk_token="<unk>",
    pad_token="<pad>",
    mask_token="<mask>",
)
END, PREFIX_SPACE = "<|endoftext|>", TokenizerFlag(False)

BERT_TOKENIZER = TokenizerClass(
    dict(unk_token="[UNK]", sep_token="[SEP]", pad_token="[PAD]", cls_token="[CLS]", mask_token="[MASK]"),
    dict(
        do_lower_case=TokenizerFlag(True),
        tokenize_chinese_chars=TokenizerFlag(True),
        strip_accents=TokenizerFlag(None, ITSELF),
    ),
    word_pieces,
    constant_part({"type": "BertPreTokenizer"}),
    constant_part({"type": "WordPiece", "prefix": "##", "cleanup": True}),
    bert_text,
    (("cls_token", 2), ("sep_token", 3)),
    (1, 1),
)
ROBERTA_TOKENIZER = TokenizerClass(
    ROBERTA_TOKENS,
    dict(add_prefix_space=PREFIX_SPACE, trim_offsets=TokenizerFlag(True)),
    byte_pairs,
    byte_letters,
    BYTE_DECODER,
    template=(("cls_token", None), ("sep_token", None)),
    pair=(2, 0),
)
GPT2_TOKENIZER = TokenizerClass(
    dict(unk_token=END, bos_token=END, eos_token=END, pad_token=None),
    dict(add_prefix_space=PREFIX_SPACE),
    byte_pairs,
    byte_letters,
    BYTE_DECODER,
)
QWEN2_TOKENIZER = TokenizerClass(
    dict(unk_token=END, bos_token=None, eos_token=END, pad_token=END),
    dict(add_prefix_space=TokenizerFlag(False, DEFAULT)),
    byte_pairs,
    qwen_words,
    BYTE_DECODER,
    constant_part({"type": "NFC"}),
    again=True,
)
XLM_ROBERTA_TOKENIZER = TokenizerClass(
    ROBERTA_TOKENS,
    dict(add_prefix_space=TokenizerFlag(True, ITSELF)),
    partial(unigrams, unknown=3),
    marked_words,
    space_mark,
    characters,
    (("bos_token", None), ("eos_token", None)),
    (2, 0),
)
T5_TOKENIZER = TokenizerClass(
    dict(eos_token="</s>", unk_token="<unk>", pad_token="<pad>"),
    {},
    partial(unigrams, unknown=2),
    marked_words,
    space_mark,
    characters,
    (("", None), ("eos_token", None)),
    extra=tuple(f"<extra_id_{place}>" for place in range(100)),
)

TOKENIZER_CLASSES = {
    "BertTokenizer": BERT_TOKENIZER,
    "DistilBertTokenizer": BERT_TOKENIZER,
    "RobertaTokenizer": ROBERTA_TOKENIZER,
    "GPT2Tokenizer": GPT2_TOKENIZER,
    "Qwen2Tokenizer": QWEN2_TOKENIZER,
    "XLMRobertaTokenizer": XLM_ROBERTA_TOKENIZER,
    "T5Tokenizer": T5_TOKENIZER,
}
PLAIN_CLASS = "TokenizersBackend"
REGISTERED = {
    "bert": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "nomic_bert": "BertTokenizer",
    "gte": "XLMRobertaTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "gpt2": "GPT2Tokenizer",
    "t5": "T5Tokenizer",
    **dict.fromkeys(("qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "qwen3_next"), "Qwen2Tokenizer"),
}  # by model_type
WITH_KINDS = ("BertTokenizer",)  # classes that give the kinds of tokens to the model
MISNAMED = ("qwen2",)  # families whose files name a wrong class
