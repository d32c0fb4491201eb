"""Tokenizers of GGUF files: byte pairs that merge (Sennrich et al. 2016), with the rules of the pre-tokenizer that the
file names."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from formats.core.errors import InputError
from opmatrix.inference.text import unpanicked

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

KEY = "tokenizer.ggml."
CONTROL, OWN = 3, 4  # types of tokens that no merge makes: special, user-defined
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)


UNNAMED = (
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
)


class Rule(NamedTuple):
    """The rules of a pre-tokenizer (llama.cpp, llama-vocab). `split`: patterns that split words in turn, or GPT-2's
    rule (None), or that with each digit apart. `whole`: whole words are looked up before merges. `begins`: texts begin
    with a token of their own unless the file says otherwise."""

    split: tuple[str, ...] | str | None = None
    whole: bool = False
    begins: bool = False


UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BEGIN, PUNCTUATED = r"[^\r\n\p{L}\p{N}]?", r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTED = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"


def cased(end: str, digits: str) -> str:
    """Return the pattern of words that end where a capital begins, with what may follow them; and of so many digits."""
    return rf"{BEGIN}{UPPER}*{LOWER}+{end}|{BEGIN}{UPPER}+{LOWER}*{end}|\p{{N}}{digits}|{PUNCTUATED}"


WORDS_RULE, DIGITS_RULE = Rule(), Rule("digits")
QWEN_RULE, LLAMA_RULE = Rule((SPLIT.format(""),)), Rule((SPLIT.format("{1,3}"),), True, True)
WORD_NAMES = "phi-2", "olmo", "mpt", "jais", "gigachat", "a.x-4.0", "mellum", "exaone4", "trillion"
DIGIT_NAMES = "smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"
QWEN_NAMES = "qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan", "grok-2"
LLAMA_NAMES = "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"
RULES = {
    "gpt-2": WORDS_RULE,
    "default": Rule(UNNAMED),
    **dict.fromkeys(WORD_NAMES, WORDS_RULE),
    **dict.fromkeys(DIGIT_NAMES, DIGITS_RULE),
    **dict.fromkeys(QWEN_NAMES, QWEN_RULE),
    **dict.fromkeys(LLAMA_NAMES, LLAMA_RULE),
    **dict.fromkeys(("chatglm-bpe", "glm4"), Rule((SPLIT.format("{1,3}"),))),
    "tekken": Rule((cased("", ""),), True, True),
    **dict.fromkeys(("gpt-4o", "llama4"), Rule((cased(CONTRACTED, "{1,3}"),))),
}  # by name of the pre-tokenizer; a file
# without a name means "default"


@unpanicked()
def tokenizer(said: Mapping[str, object], rows: int, file: Path) -> str:
    """Return the text of a tokenizer.json that is equal to the tokenizer of a GGUF file's keys, for a model with this
    many `rows` of tokens. Raises InputError for another kind of tokenizer, and for a vocabulary that does not fit."""
    import tokenizers
    from tokenizers import models, processors

    tokens, merges, kinds = (listed(said, name, file) for name in ("tokens", "merges", "token_type"))
    for name, known in (("model", ["gpt2"]), ("pre", [*RULES])):
        if (value := said.get(KEY + name, "default" if name == "pre" else None)) not in known:
            raise InputError(f"{file}: {KEY}{name} is {value!r:.40}: supported are {', '.join(known)}")
    if len(tokens) != rows:
        raise InputError(f"{file}: {len(tokens)} tokens, but the model has {rows}: take another file")
    if len(kinds) != rows:
        raise InputError(f"{file}: {len(kinds)} types of {rows} tokens: take another file")
    vocabulary = {token: at for at, token in enumerate(tokens)}
    if len(vocabulary) != rows:
        raise InputError(f"{file}: a token is in the vocabulary twice: take another file")
    rule = RULES[str(said.get(f"{KEY}pre", "default"))]
    first, last = (
        special(said, f"{end}_token", default, tokens, file) for end, default in (("bos", rule.begins), ("eos", False))
    )
    if switch(said, "add_sep_token", False, file):
        raise InputError(f"{file}: {KEY}add_sep_token is True: it would be ignored: take another file")
    try:
        pairs = [tuple(merge.split(" ", 1)) for merge in merges]
        bpe = tokenizers.Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=rule.whole))
        bpe.pre_tokenizer, bpe.decoder = before(rule.split), tokenizers.decoders.ByteLevel()
        for wanted in (CONTROL, OWN):
            added = [
                tokenizers.AddedToken(token, special=wanted == CONTROL, normalized=False)
                for token, kind in zip(tokens, kinds, strict=True)
                if kind == wanted
            ]
            (bpe.add_special_tokens if wanted == CONTROL else bpe.add_tokens)(added)
        if first or last:
            bpe.post_processor = processors.TemplateProcessing(
                single=[*first, "$A", *last],
                special_tokens=[(token, vocabulary[token]) for token in dict.fromkeys(first + last)],
            )
    except Exception as error:
        raise InputError(f"{file}: its vocabulary is no tokenizer ({error!s:.200}): get it again") from error
    return str(bpe.to_str())


def switch(said: Mapping[str, object], name: str, default: bool, file: Path) -> bool:
    """Return a flag of a tokenizer. Raises InputError for any other value than true and false."""
    if type(value := said.get(KEY + name, default)) is bool:
        return value
    raise InputError(f"{file}: {KEY}{name} is {value!r:.40}: it must be true or false")


def special(said: Mapping[str, object], name: str, default: bool, tokens: list[str], file: Path) -> list[str]:
    """Return the token that every text begins or ends with, as a list of one; empty if the file, or its default, has
    none."""
    if not switch(said, f"add_{name}", default, file):
        return []
    if type(at := said.get(f"{KEY}{name}_id")) is int and 0 <= at < len(tokens):
        return [tokens[at]]
    raise InputError(
        f"{file}: {KEY}{name}_id is {at!r:.40}: texts have it, so it must be a whole number below {len(tokens)}"
    )


def listed(said: Mapping[str, object], name: str, file: Path) -> list[Any]:
    """Return a list of texts, or of numbers. Raises InputError for any other value."""
    values, kind = said.get(KEY + name), int if name == "token_type" else str
    if isinstance(values, list) and all(type(value) is kind for value in values):
        return values
    raise InputError(f"{file}: {KEY}{name} is {values!r:.40}: a list is needed")


def before(rule: tuple[str, ...] | str | None) -> "PreTokenizer":
    """Return the pre-tokenizer, which splits a text into words before bytes merge."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    if rule is None:
        return ByteLevel(add_prefix_space=False)
    if rule == "digits":
        return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    return Sequence(
        [*(Split(Regex(pattern), "isolated") for pattern in rule), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
