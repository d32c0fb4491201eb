"""Programs in other processes: pickled as their directory, which the other process reads and checks as it does any
saved program. A pickle contains no step, array or code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from formats.core.errors import InputError

if TYPE_CHECKING:
    from opmatrix.runtime.program import Program


class Reopened:
    """A program that is stored in a directory, once it was saved or loaded. It cannot be changed, so a copy is
    itself."""

    directory: Path | None = None
    laws: str | None = None  # the file that declares its custom functions
    hash: Any

    def lies_in(self, directory: str | Path, laws: str | None = None) -> None:
        """Record the program's directory, and the laws that it was loaded with."""
        self.directory, self.laws = Path(directory).absolute(), laws

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self.directory is None:
            raise TypeError(
                "a program is pickled by its directory, and this one has none: program.save(DIR) "
                "first, into a directory that the other process can read"
            )
        return reopen, (str(self.directory), self.hash, self.laws)


def reopen(directory: str, wanted: str, laws: str | None) -> Program:
    """Load the program of a directory. Raises InputError if it is not the one that was pickled, or cannot be loaded."""
    from opmatrix.files.loading import load

    program = load(directory, laws=laws)
    if program.hash != wanted:
        raise InputError(
            f"{directory}: it holds the program {program.hash}, and {wanted} was pickled: save that one "
            "there, or pickle this one again"
        )
    return program
