"""Tokenizers that GGUF files hold: byte pairs that merge (Sennrich et al. 2016), by the rules of the pre-tokenizer that
is named."""
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from formats.core.errors import InputError
from opmatrix.pipelines.text import unpanicked

KEY = "tokenizer.ggml."
CONTROL, OWN = 3, 4                                         # types of tokens that no merge makes: special ones, others
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
         r"|\s*[\r\n]+|"
         r"\s+(?!\S)|\s+")
RULES = {                                                   # by name: a pattern, or GPT-2's, with or without each digit
                                                            # apart
    "gpt-2": None, "default": None, "smollm": "digits", "llama-bpe": SPLIT.format("{1,3}"), "qwen2": SPLIT.format("")}


@unpanicked()
def tokenizer(said: Mapping[str, Any], rows: int, file: Path) -> str:
    """The text of a tokenizer.json that does what the keys of a GGUF file say, for a model with so many rows of tokens.
    Raises InputError for another kind, and for a vocabulary that does not fit."""
    import tokenizers
    from tokenizers import models, processors
    tokens, merges, kinds = (listed(said, name, file) for name in ("tokens", "merges", "token_type"))
    for name, known in (("model", ["gpt2"]), ("pre", [*RULES])):
        if (found := said.get(KEY + name, "default" if name == "pre" else None)) not in known:
            raise InputError(f"{file}: {KEY}{name} is {found!r:.40}: what is read is {', '.join(known)}")
    if len(tokens) != rows:
        raise InputError(f"{file}: {len(tokens)} tokens, but the model has {rows}: take another file")
    if len(kinds) != rows: raise InputError(f"{file}: {len(kinds)} types of {rows} tokens: take another file")
    vocabulary = {token: at for at, token in enumerate(tokens)}
    if len(vocabulary) != rows: raise InputError(f"{file}: a token is in the vocabulary twice: take another file")
    rule = said.get(f"{KEY}pre", "default")
    try:
        pairs = [tuple(merge.split(" ", 1)) for merge in merges]
        made = tokenizers.Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=rule == "llama-bpe"))
        made.pre_tokenizer, made.decoder = before(RULES[rule]), tokenizers.decoders.ByteLevel()
        for wanted in (CONTROL, OWN):
            added = [tokenizers.AddedToken(token, special=wanted == CONTROL, normalized=False)
                     for token, kind in zip(tokens, kinds, strict=True) if kind == wanted]
            (made.add_special_tokens if wanted == CONTROL else made.add_tokens)(added)
        if said.get(f"{KEY}add_bos_token", False):
            first = tokens[said[f"{KEY}bos_token_id"]]
            made.post_processor = processors.TemplateProcessing(single=f"{first} $A",
                                                                special_tokens=[(first, vocabulary[first])])
    except Exception as error:
        raise InputError(f"{file}: its vocabulary is no tokenizer ({error!s:.200}): get it again") from error
    return str(made.to_str())


def listed(said: Mapping[str, Any], name: str, file: Path) -> list[Any]:
    """A list of texts, or of numbers."""
    found, kind = said.get(KEY + name), int if name == "token_type" else str
    if isinstance(found, list) and all(type(each) is kind for each in found): return found
    raise InputError(f"{file}: {KEY}{name} is {found!r:.40}: a list is needed")


def before(rule: str | None) -> Any:
    """What cuts a text into words before bytes merge."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split
    if rule is None: return ByteLevel(add_prefix_space=False)
    if rule == "digits": return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    return Sequence([Split(Regex(rule), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])
