"""What is raised where a law, a graph or a program is not what it should be."""
from typing import Any


class VerificationError(Exception):
    """`level` 1: a law, 2: a member of a class, 3: a program; `where` names it, `values` are the numbers found."""

    def __init__(self, level: int, where: str, what: str, **values: Any) -> None:
        self.level, self.where, self.values = level, where, values
        numbers = ", ".join(f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
                            for name, value in values.items())
        super().__init__(f"level {level}: {where}: {what}" + (f" ({numbers})" if numbers else ""))
