"""Texts of users that spell control tokens stay text: marks stand around them while a template is rendered, as
transformers' `sanitize_control_tokens` places them, and what is marked is encoded without the added tokens."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from formats.core.errors import InputError

if TYPE_CHECKING:
    import tokenizers

MARK_BEGIN, MARK_END = "\U000f0000", "\U000f0001"  # private characters: no text has a use for them
MARKS = str.maketrans(dict.fromkeys(MARK_BEGIN + MARK_END))  # takes them out of a text
Json = TypeVar("Json")
NEW_LINE = "\n"  # pieces are encoded behind a new line, as some tokenizers put a space before a text


def any_of_tokens(tokens: Iterable[str]) -> str:
    """Return the pattern of any of these tokens, the longer ones first; without tokens it never matches."""
    return "|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)"


def mark_controls(value: Json, controls: Sequence[str]) -> Json:
    """Return a JSON value whose texts have marks around control tokens; names of entries are left as they are. Marks
    that a text has already are taken out."""
    pattern = re.compile(any_of_tokens(controls))

    def marked(value: object) -> object:
        """Mark a value and the values within it."""
        if isinstance(value, str):
            return pattern.sub(f"{MARK_BEGIN}\\g<0>{MARK_END}", value.translate(MARKS))
        if isinstance(value, dict):
            return {name: marked(entry) for name, entry in value.items()}
        return [*map(marked, value)] if isinstance(value, list) else value

    return cast(Json, marked(value))


def encode_marked(tokenizer: "tokenizers.Tokenizer", text: str) -> list[int]:
    """Return the tokens of a rendered text; nothing is put before it, as a template writes its own first token. What is
    marked becomes plain text. A template that splits texts may part two marks: a mark alone is dropped, and no token
    reaches across its place. Raises InputError where the tokenizer makes a control token of plain text."""
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    pieces = re.split(
        f"{MARK_BEGIN}({any_of_tokens(added)}){MARK_END}|[{MARK_BEGIN}{MARK_END}]", text
    )  # text, marked token or None, text, ..
    ids = plainly(tokenizer, pieces[0])
    for number, piece in enumerate(pieces[1:], start=1):
        if not piece:
            continue
        is_marked = number % 2 == 1
        spelt = behind_line(tokenizer, piece, is_marked)
        if is_marked and tokenizer.token_to_id(piece) in spelt:
            raise InputError(
                f"chat: {piece!r:.60} in a message is a control token, and the tokenizer makes that token of text: "
                "leave it out, or let control tokens be (control_tokens=True)"
            )
        ids += spelt
    return ids


def plainly(tokenizer: "tokenizers.Tokenizer", text: str) -> list[int]:
    """Return the tokens of a text, added tokens among them."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def behind_line(tokenizer: "tokenizers.Tokenizer", piece: str, as_text: bool) -> list[int]:
    """Return the tokens of a piece within a text; `as_text`: without added tokens."""
    encode = without_added if as_text else plainly
    line = plainly(tokenizer, NEW_LINE)
    ids = encode(tokenizer, NEW_LINE + piece)
    return ids[len(line) :] if ids[: len(line)] == line else encode(tokenizer, piece)


def without_added(tokenizer: "tokenizers.Tokenizer", text: str) -> list[int]:
    """Return the tokens that a tokenizer's model makes of a text, whatever tokens were added to it."""
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    words = [text]
    if tokenizer.pre_tokenizer is not None:
        words = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    return [token.id for word in words for token in tokenizer.model.tokenize(word)]
