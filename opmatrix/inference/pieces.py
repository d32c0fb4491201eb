"""Text from its tokens, one by one: a token may end within a character, whose bytes then wait for the next tokens."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

BEFORE = 8  # last tokens of the prompt, decoded as context
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # decoders return it for the bytes of part of a character


class Pieces:
    """The text of tokens, in pieces of whole characters; special tokens are no text. Tokens from `start` on are
    decoded, and the text behind that of the tokens before `read` is new."""

    def __init__(self, tokenizer: "tokenizers.Tokenizer", prompt: Sequence[int]) -> None:
        self.tokenizer, self.ids = tokenizer, [*prompt[-BEFORE:]]
        self.start, self.read = 0, len(self.ids)
        self.shown: dict[int, str] = {}

    def show(self, texts: Collection[str]) -> None:
        """Let special tokens of these texts be text."""
        added = self.tokenizer.get_added_tokens_decoder().items()
        self.shown = {number: token.content for number, token in added if token.special and token.content in texts}

    def add(self, token: int) -> str:
        """Add a token; return the text that it completes, empty if its last character is incomplete."""
        self.ids.append(token)
        if token in self.shown:
            return self.rest() + self.shown[token]
        text = self.decoded(None)
        if text.endswith(UNFINISHED):
            return ""
        piece = text[len(self.decoded(self.read)) :]
        self.start, self.read = self.read, len(self.ids)
        return piece

    def rest(self) -> str:
        """Return the remaining text when no token follows: bytes of an incomplete character appear as replacement
        characters."""
        piece = self.decoded(None)[len(self.decoded(self.read)) :]
        self.read = len(self.ids)
        return piece

    def decoded(self, end: int | None) -> str:
        """Return the text of the tokens from `start` up to `end`."""
        text: str = self.tokenizer.decode(self.ids[self.start : end], skip_special_tokens=True)
        return text
