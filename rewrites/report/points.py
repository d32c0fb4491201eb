"""A program of a front, with its figures: one after another the stages of a run fill them in."""
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
    """One program of a front: what was predicted, what was measured."""

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
    stated: Stated | None = None                            # that error, and those of single sentences and cosines
    verified: bool = False
    laws: tuple[str, ...] = ()
    methods: dict[str, int] = field(default_factory=dict)
    structure: Structure | None = None                      # what it was derived as
    variant: Variant | None = field(default=None, repr=False)       # the model that it is a program of, where that is
                                                                    # smaller
    judged: Mapping[str, float] = field(default_factory=dict)       # figures by measure, of goals beside the error
    checks: dict[str, Any] = field(default_factory=dict)    # what was verified, for the certificate
    lengths: Lengths = ()                                   # of the batches that it was verified on, beside sentences

    @classmethod
    def of(cls, searched: Searched, name: str, program: Program, seconds: float, error: float, gap: float | None,
           **known: Any) -> Self:
        """A program with its predicted seconds, its steps' and what a call takes beside them, and its bytes."""
        size, prices = program.stored_bytes + searched.workload.peak_bytes(program), searched.space.prices
        return cls(name, program, seconds + prices.beside(program) - prices.start, size, error, gap, **known)

    def _repr_html_(self) -> str: return point_html(self)

    def __repr__(self) -> str:
        measured = self.measured_s is not None
        seconds, size, error = ((self.measured_s, self.measured_bytes, self.measured_error) if measured else
                                (self.predicted_s, self.predicted_bytes, self.predicted_error))
        return (f"<Point {self.name}: {'measured' if measured else 'predicted'} {ms(seconds)} ms, {megabytes(size)} "
                f"MB, error {percent(error)}>")
