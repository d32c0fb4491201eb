"""A tokenizer that a thread parses while its process still imports what runs a program: of 50,000 words that takes a
fifth of a second, for which nobody else need wait. This module imports next to nothing."""
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from formats.disk.files import read_text

if TYPE_CHECKING:
    import tokenizers


class ParsedAhead(Thread):
    """What a file describes, if it can be read; begun at once. What is wrong with a file is for others to say."""
    def __init__(self, file: Path) -> None:
        super().__init__(daemon=True)
        self.file, self.text = file, ""
        self.found: tokenizers.Tokenizer | None = None
        self.start()

    def run(self) -> None:
        with suppress(BaseException):                       # a panic of compiled code among them
            text = read_text(self.file)
            import tokenizers
            self.found, self.text = tokenizers.Tokenizer.from_str(text), text

    def parsed(self, text: str) -> "tokenizers.Tokenizer | None":
        """The tokenizer that this text describes, once it is there; None for any other text than the file's."""
        self.join()
        return self.found if self.text == text else None
