"""A tokenizer that a thread parses while its process still imports the modules that run a program. For 50,000 words
that takes a fifth of a second, in which no other work has to wait. This module imports almost nothing."""

from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from formats.disk.files import read_text

if TYPE_CHECKING:
    import tokenizers


class ParsedAhead(Thread):
    """The tokenizer that a file describes, if the file can be read; parsing begins at once. Errors of the file are
    reported by the code that reads it later."""

    def __init__(self, file: Path) -> None:
        super().__init__(daemon=True)
        self.file, self.text = file, ""
        self.found: tokenizers.Tokenizer | None = None
        self.start()

    def run(self) -> None:
        """Read and parse the file in the thread; any error is left to the later reading."""
        with suppress(BaseException):  # a panic of compiled code among them
            text = read_text(self.file)
            import tokenizers

            self.found, self.text = tokenizers.Tokenizer.from_str(text), text

    def parsed(self, text: str) -> "tokenizers.Tokenizer | None":
        """Return the tokenizer that this text describes, once it is parsed; None for any other text than the file's."""
        self.join()
        return self.found if self.text == text else None
