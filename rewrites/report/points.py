"""A program of a front, with its figures, which the stages of a run fill in one after another."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from opmatrix.display.shown import point_html
from opmatrix.display.tables import megabytes, ms, percent
from opmatrix.runtime.program import Program
from rewrites.approximate.variants import Variant
from rewrites.opened import Searched
from rewrites.search.search import Structure
from rewrites.verify.lengths import Lengths
from rewrites.workload.stated import Stated


@dataclass(repr=False)
class Point:
    """One program of a front, with its predicted and measured figures."""

    name: str
    program: Program
    predicted_s: float
    predicted_bytes: float
    predicted_error: float
    gap: float | None = 0.0  # None if no gap was proved
    measured_s: float | None = None
    measured_bytes: float | None = None
    measured_error: float | None = None
    rounds_s: tuple[float, ...] = ()  # seconds by round; `measured_s` is their median
    stated_error: float = 0.0  # error on rows used neither to fit nor to choose
    stated: Stated | None = None  # that error, with those of sentences and cosines
    verified: bool = False
    laws: tuple[str, ...] = ()
    methods: dict[str, int] = field(default_factory=dict)
    structure: Structure | None = None  # the structure that it was emitted from
    variant: Variant | None = field(default=None, repr=False)  # the smaller model that it is a program of, if any
    judged: Mapping[str, float] = field(default_factory=dict)  # figures by measure, for goals beside the error
    checks: dict[str, Any] = field(default_factory=dict)  # results of verification, for the certificate
    lengths: Lengths = ()  # lengths of the further batches that it was verified on

    @classmethod
    def of(
        cls,
        searched: Searched,
        name: str,
        program: Program,
        seconds: float,
        error: float,
        gap: float | None,
        **known: Any,
    ) -> Self:
        """Return a program with its predicted seconds, those of its steps and the overhead of a call, and its bytes."""
        size, prices = program.stored_bytes + searched.workload.peak_bytes(program), searched.space.prices
        return cls(name, program, seconds + prices.beside(program) - prices.start, size, error, gap, **known)

    def _repr_html_(self) -> str:
        return point_html(self)

    def __repr__(self) -> str:
        measured = self.measured_s is not None
        seconds, size, error = (
            (self.measured_s, self.measured_bytes, self.measured_error)
            if measured
            else (self.predicted_s, self.predicted_bytes, self.predicted_error)
        )
        return (
            f"<Point {self.name}: {'measured' if measured else 'predicted'} {ms(seconds)} ms, {megabytes(size)} "
            f"MB, error {percent(error)}>"
        )
