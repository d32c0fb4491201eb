"""The goals of a run as one value, with a test if a program keeps them, and its memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from opmatrix.runtime.program import Program
from rewrites.metrics.goals import Goal


@dataclass(frozen=True)
class JudgedProgram:
    """A program as goals see it (see goals.Judged)."""

    methods: Mapping[str, int]
    stated_error: float
    judged: Mapping[str, float]


@dataclass(frozen=True)
class Quality:
    """Goals, the error first; the figures of the exact program; the most bytes, stored and working."""

    asked: Sequence[Goal]
    exactly: Mapping[str, float] = field(default_factory=dict)
    memory: float | None = None

    @property
    def error(self) -> float | None:
        """The error allowed to a program; None if another goal judges."""
        return None if self.asked[1:] else self.asked[0].threshold

    @property
    def texts(self) -> list[str]:
        """The texts of the pairs that goals are measured on."""
        return [text for goal in self.asked for text in getattr(goal.data, "texts", ())]

    def kept(self, program: Program, error: float, size: float = 0.0) -> bool:
        """True if a program with this error and size in bytes keeps all goals and the memory."""
        if error > self.asked[0].threshold or (self.memory is not None and size > self.memory):
            return False
        figures = {goal.measure.name: goal.figure("a smaller model", program) for goal in self.asked[1:]}
        judged = JudgedProgram({"less": 1}, error, figures)
        return all(goal.kept(judged, JudgedProgram({}, 0.0, self.exactly)) for goal in self.asked)


def loosened(asked: Sequence[Goal], keep: Sequence[str]) -> tuple[Goal, ...]:
    """Return the goals with the loosest limit on the error, if there are others and the user passed none for the
    error: the output of a smaller model is far off while it ranks as before."""
    first, *others = asked
    if not others or any(goal.lstrip().startswith(first.measure.name) for goal in keep):
        return tuple(asked)
    return replace(first, threshold=first.measure.high), *others
