"""Candidates of a run that may fail alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from traceback import extract_tb

from formats.core.arrays import FormatError
from formats.core.errors import InputError
from opmatrix.algebra.shapes import brief


def describe_failure(error: Exception) -> str:
    """Return an error in one line: its text, and, unless it is an InputError or FormatError, its type and the place in
    the code."""
    text = brief(str(error), 200)
    if isinstance(error, InputError | FormatError):
        return text
    *_, last = extract_tb(error.__traceback__)
    return f"{type(error).__name__} in {Path(last.filename).name}, line {last.lineno}: {text}"


@dataclass
class Attempts:
    """Candidates, each of which may fail alone. `failed` has a line for each failure, with the cause."""

    failed: list[str] = field(default_factory=list)

    @contextmanager
    def leave_out(self, candidate: object) -> Iterator[None]:
        """Continue after an error, without the candidate that caused it."""
        try:
            yield
        except Exception as error:
            self.failed.append(f"{candidate}: it is left out: {describe_failure(error)}")
