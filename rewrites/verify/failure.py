"""The error that is raised where a law, a graph or a program is wrong."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opmatrix.runtime.program import Program


def name(program: "Program") -> str:
    """Return the name of a program in error messages: its model and the first 8 digits of its hash."""
    return f"program {program.meta.get('model', '')} {program.hash[:8]}"


class VerificationError(Exception):
    """A failure of verification at `level` 1 (a law), 2 (a member of a class) or 3 (a program). `where` names the
    failing thing, `values` holds the measured numbers. `reproducer` is Python code that fails by an assert as long as
    the fault exists; empty if no such code was found. `laws` are the laws that may be at fault, `said` is the message
    without the code."""

    def __init__(
        self, level: int, where: str, what: str, reproducer: str = "", laws: Sequence[str] = (), **values: object
    ) -> None:
        self.level, self.where, self.what, self.values = level, where, what, values
        self.reproducer, self.laws = reproducer, tuple(laws)
        numbers = ", ".join(
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
        )
        lines = f"\nTo see it again:\n\n{reproducer}" if reproducer else ""
        self.said = f"level {level}: {where}: {what}" + (f" ({numbers})" if numbers else "")
        super().__init__(self.said + lines)
