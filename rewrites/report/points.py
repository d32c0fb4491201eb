"""What a search found: programs with their figures, and the answer among them."""
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opmatrix.display.tables import megabytes, ms, percent
from opmatrix.program import Program
from rewrites.compiler.search import Structure
from rewrites.derivations.gains import Gain
from rewrites.evaluate.goals import Goal
from rewrites.law import Law
from rewrites.pareto.proposals import Choices
from rewrites.phases import Report
from rewrites.pruning.variants import Variant
from rewrites.verify.lengths import Lengths
from rewrites.workload.stated import Stated
from rewrites.workload.workload import Workload


@dataclass(repr=False)
class Point:
    """One program of the front: what was predicted, what was measured."""

    name: str
    program: Program
    predicted_s: float
    predicted_bytes: float
    predicted_error: float
    gap: float | None = 0.0                                 # None: nothing was proved
    measured_s: float | None = None
    measured_bytes: float | None = None
    measured_error: float | None = None
    rounds_s: tuple[float, ...] = ()                        # what `measured_s` is the median of
    stated_error: float = 0.0                               # on rows that nothing was fitted to or chosen by
    stated: Stated | None = None                            # the same, of single sentences and cosines too
    verified: bool = False
    laws: tuple[str, ...] = ()
    methods: dict[str, int] = field(default_factory=dict)
    structure: Structure | None = None                      # what it was derived as
    variant: Variant | None = field(default=None, repr=False)       # the model that it is a program of, where that is
                                                                    # smaller
    judged: Mapping[str, float] = field(default_factory=dict)       # figures by measure, of goals beside the error
    checks: dict[str, Any] = field(default_factory=dict)    # what was verified, for the certificate
    lengths: Lengths = ()                                   # of the batches that it was verified on, beside sentences

    def __repr__(self) -> str:
        measured = self.measured_s is not None
        seconds, size, error = ((self.measured_s, self.measured_bytes, self.measured_error) if measured else
                                (self.predicted_s, self.predicted_bytes, self.predicted_error))
        return (f"<Point {self.name}: {'measured' if measured else 'predicted'} {ms(seconds)} ms, {megabytes(size)} "
                f"MB, error {percent(error)}>")


@dataclass(repr=False)
class Result:
    """Everything that a run found out; `points[chosen]` is the answer. It prints as the report."""

    model: str
    machine: Any
    workload: Workload
    structures: dict[str, Structure]
    points: list[Point]
    imported: Point
    chosen: int
    saved: list[tuple[tuple[str, ...], float]]
    report: Report
    fused: Point
    steps: list[Gain]
    goals: tuple[Goal, ...]                                 # that were asked for; the first is the error
    memory: float | None = None                             # bytes, where a budget was given
    bound: float | None = None                              # predicted seconds that no program within it is below
    choices: Choices | None = None
    left_out: tuple[str, ...] = ()
    laws: tuple[Law, ...] = ()
    dropped: list[Point] = field(default_factory=list)
    number_type: str = "int8"
    busy: str = ""                                          # what was seen of others while programs were timed
    terms: dict[str, Any] | None = None                     # of the answer, steps that evaluate terms (uncompiled.py)

    @property
    def error(self) -> float: return self.goals[0].threshold

    @property
    def best(self) -> Point:
        return self.points[self.chosen]

    def __repr__(self) -> str:
        return (f"<Result {self.model}: the best of {len(self.points)} programs is {self.best!r}; print it for the "
                "report>")

    def __str__(self) -> str:
        from rewrites.report.results import as_json, printed
        return printed(as_json(self, [Path()] * len(self.points)))
