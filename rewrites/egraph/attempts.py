"""Pieces of a run that fail alone."""
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from traceback import extract_tb

from formats.core.arrays import FormatError
from formats.core.errors import InputError
from opmatrix.algebra.shapes import brief


def describe_failure(error: Exception) -> str:
    """An error in one line: its text, and of one that nothing foresees its type and the place in the code, too."""
    text = brief(str(error), 200)
    if isinstance(error, InputError | FormatError): return text
    *_, last = extract_tb(error.__traceback__)
    return f"{type(error).__name__} in {Path(last.filename).name}, line {last.lineno}: {text}"


@dataclass
class Attempts:
    """Candidates of which each may fail alone. `failed` has a line for each that did, with the cause."""

    failed: list[str] = field(default_factory=list)

    @contextmanager
    def leave_out(self, candidate: object) -> Iterator[None]:
        """Go on after an error, without the candidate that it is about."""
        try: yield
        except Exception as error: self.failed.append(f"{candidate}: it is left out: {describe_failure(error)}")
