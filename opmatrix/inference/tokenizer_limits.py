"""Bounds of a tokenizer.json, beyond which texts would keep native code busy that no Ctrl-C ends: regular expressions
with nested brackets, whose search gives up after ten million steps that each take longer the deeper they are, and
normalizers that write ever longer texts. The check reads the parts as the library has parsed them, not the file."""

import json
import re
from collections.abc import Iterator
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

from formats.core.errors import InputError

if TYPE_CHECKING:
    import tokenizers

TOKENIZER_PARTS = "normalizer", "pre_tokenizer", "post_processor", "decoder"
MOST_LETTERS, MOST_DEPTH = 4000, 50  # bounds of a regular expression: published ones have 400, 5
MOST_GROWTH = 10_000  # letters that normalizers may make of one
WRITES = {"Replace": "content", "Prepend": "prepend"}  # normalizers of that type write this text
ESCAPED = re.compile(r"\\.", re.DOTALL)


def check_limits(tokenizer: "tokenizers.Tokenizer", where: str) -> None:
    """Raise InputError, which names the part, for a part beyond the bounds."""
    for name in TOKENIZER_PARTS:
        part = getattr(tokenizer, name)
        if part is None:
            continue
        documents = [*walk(json.loads(part.__getstate__()))]
        for document in documents:
            check_expression(document.get("Regex"), f"{where}: {name}")
        growth = prod(
            len(document[WRITES[document["type"]]]) or 1 for document in documents if document.get("type") in WRITES
        )
        if name == "normalizer" and growth > MOST_GROWTH:
            raise InputError(
                f"{where}: normalizer: a letter may become {growth:,} letters, more than {MOST_GROWTH:,}: "
                "get the file again"
            )


def check_expression(pattern: object, where: str) -> None:
    """Raise InputError for a regular expression that is too long or too deep."""
    if not isinstance(pattern, str):
        return
    deepest = max(accumulate((letter == "(") - (letter == ")") for letter in ESCAPED.sub("", pattern)), default=0)
    if len(pattern) > MOST_LETTERS or deepest > MOST_DEPTH:
        raise InputError(
            f"{where}: the regular expression {pattern[:20]!r}… has {len(pattern):,} letters, and "
            f"brackets {deepest:,} deep: at most {MOST_LETTERS:,}, and {MOST_DEPTH} deep: get the file "
            "again"
        )


def walk(document: Any) -> Iterator[dict[str, Any]]:
    """Yield every object within a JSON document."""
    if isinstance(document, dict):
        yield document
    for value in document.values() if isinstance(document, dict) else document if isinstance(document, list) else ():
        yield from walk(value)
