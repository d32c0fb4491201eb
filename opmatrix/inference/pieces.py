"""Text as its tokens come: a token may end within a character, whose bytes then wait for those that follow."""
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

BEFORE = 8                                                  # tokens of the prompt that tell what stands before
UNFINISHED = "\N{REPLACEMENT CHARACTER}"                        # what decoders make of the bytes of part of a character


class Pieces:
    """The text of tokens, in pieces of whole characters; special tokens are no text. Tokens from `start` on are
    decoded, and of that what is behind the text of those before `read` is new."""

    def __init__(self, tokenizer: "tokenizers.Tokenizer", prompt: Sequence[int]) -> None:
        self.tokenizer, self.ids = tokenizer, [*prompt[-BEFORE:]]
        self.start, self.read = 0, len(self.ids)

    def add(self, token: int) -> str:
        """The text that is whole with another token: none where its last character is not."""
        self.ids.append(token)
        text = self.decoded(None)
        if text.endswith(UNFINISHED): return ""
        piece = text[len(self.decoded(self.read)):]
        self.start, self.read = self.read, len(self.ids)
        return piece

    def rest(self) -> str:
        """What is left where nothing follows: bytes of part of a character are said as such."""
        piece = self.decoded(None)[len(self.decoded(self.read)):]
        self.read = len(self.ids)
        return piece

    def decoded(self, end: int | None) -> str:
        """The text of tokens from `start` up to one."""
        text: str = self.tokenizer.decode(self.ids[self.start:end], skip_special_tokens=True)
        return text
