"""What is raised where a law, a graph or a program is not what it should be."""
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opmatrix.runtime.program import Program


def name(program: "Program") -> str:
    """What a program is called where it is wrong."""
    return f"program {program.meta.get('model', '')} {program.hash[:8]}"


class VerificationError(Exception):
    """`level` 1: a law, 2: a member of a class, 3: a program; `where` names it, `values` are the numbers found.
    `reproducer` is Python that fails by an assert as long as what is wrong is there, where such lines were found;
    `laws` are those that may be at fault, `said` is the message without the lines."""

    def __init__(self, level: int, where: str, what: str, reproducer: str = "", laws: Sequence[str] = (),
                 **values: object) -> None:
        self.level, self.where, self.what, self.values = level, where, what, values
        self.reproducer, self.laws = reproducer, tuple(laws)
        numbers = ", ".join(f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
                            for name, value in values.items())
        lines = f"\nTo see it again:\n\n{reproducer}" if reproducer else ""
        self.said = f"level {level}: {where}: {what}" + (f" ({numbers})" if numbers else "")
        super().__init__(self.said + lines)
