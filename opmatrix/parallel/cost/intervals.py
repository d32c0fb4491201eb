"""The interval of a prediction: by how much measured steps of the same kind were off. Rows of residuals.json are the
ratios of measured to predicted numbers that `benchmarks/planner.py FILE .. --residuals` writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeAlias

from formats.machine.datasheets import EIGHT_BITS, Datasheet
from opmatrix.parallel.cost.step_parts import Setting

RESIDUALS_FILE = Path(__file__).with_name("residuals.json")
INTERVAL_SHARE = 0.8  # of measured steps that an interval is to hold
PRIOR = 1  # sources that the scatter of all sources counts as
FEWEST = 3  # sources of a group that an interval is made from
UNKNOWN_STACK = "unknown"


SourceRatios: TypeAlias = tuple[str, Sequence[float]]  # a publication, with ratios of its rows


class StepKind(NamedTuple):
    """The kind of a step: its machine, software, model and number type."""

    family: str  # family of chips
    stack: str  # training stack, or "unknown"
    model: str  # dense or experts
    number: str  # sixteen or eight bits


NEAREST_KINDS = (  # fields that rows share with a step, the nearest first
    ("family", "stack", "model", "number"),
    ("family", "model", "number"),
    ("stack", "model", "number"),
    ("model", "number"),
    ("model",),
    (),
)


class SourceResiduals(NamedTuple):
    """SourceRatios of measured to predicted numbers of rows of one source that are of one kind."""

    source: str
    kind: StepKind
    seconds: tuple[float, ...]
    bytes: tuple[float, ...]

    @property
    def publication(self) -> str:
        """The publication: its tables, which are named after a colon, are of one model and machine."""
        return self.source.partition(":")[0]


class StepInterval(NamedTuple):
    """Factors of a prediction between which the measured number is to lie, and the rows that they are made from."""

    low: float
    high: float
    rows: int
    sources: int
    shared: tuple[str, ...]  # fields of the kind that these rows share with the step

    def around(self, number: float) -> tuple[float, float]:
        """Return the interval of a number."""
        return self.low * number, self.high * number

    @property
    def text(self) -> str:
        """The number of rows, and what they share with the step."""
        shared = ", ".join(self.shared) or "nothing"
        return f"{self.rows} rows of {self.sources} sources that share {shared}"


def family_of(sheet: Datasheet) -> str:
    """Return the family of a machine's chips; chips without a name of one are those of the same rate."""
    return sheet.family or f"{sheet.product_rate('bf16')[0] / 1e12:.0f} TFLOPS"


def kind_of(setting: Setting, stack: str = UNKNOWN_STACK) -> StepKind:
    """Return the kind of a step."""
    model = "experts" if setting.model.asks else "dense"
    number = "eight" if setting.strategy.precision in EIGHT_BITS else "sixteen"
    return StepKind(family_of(setting.machine), stack, model, number)


@cache
def load_residuals() -> tuple[SourceResiduals, ...]:
    """Return the residuals that the package ships."""
    rows = json.loads(RESIDUALS_FILE.read_text("utf-8"))["sources"]
    return tuple(
        SourceResiduals(row["source"], StepKind(*row["kind"]), tuple(row["seconds"]), tuple(row["bytes"]))
        for row in rows
    )


def seconds_of(source: SourceResiduals) -> Sequence[float]:
    """Return the ratios of seconds."""
    return source.seconds


def bytes_of(source: SourceResiduals) -> Sequence[float]:
    """Return the ratios of bytes."""
    return source.bytes


def nearest_rows(
    kind: StepKind, rows: Sequence[SourceResiduals]
) -> Iterator[tuple[tuple[str, ...], list[SourceResiduals]]]:
    """Yield the fields that rows share with a step, and these rows: fewer fields, more rows each time."""
    for shared in NEAREST_KINDS:
        yield shared, [row for row in rows if all(getattr(row.kind, name) == getattr(kind, name) for name in shared)]


def find_interval(
    kind: StepKind,
    ratios: Callable[[SourceResiduals], Sequence[float]] = seconds_of,
    residuals: Iterable[SourceResiduals] | None = None,
) -> StepInterval | None:
    """Return the interval of a step: from the nearest rows of at least three sources. None where there are none."""
    rows = [row for row in (load_residuals() if residuals is None else residuals) if ratios(row)]
    for shared, near in nearest_rows(kind, rows):
        if len({row.publication for row in near}) >= FEWEST:
            nearest = [(row.publication, ratios(row)) for row in near]
            return interval_of(nearest, [(row.publication, ratios(row)) for row in rows], shared)
    return None


def row_scatter(kind: StepKind) -> float:
    """Return the variance of rows about the mean of their source, by logarithm: that of the median source of those
    that are nearest."""
    for _, near in nearest_rows(kind, [row for row in load_residuals() if row.seconds]):
        if near:
            return median(variance([log(ratio) for ratio in row.seconds], 0) for row in near)
    return 0


def interval_of(near: Sequence[SourceRatios], every: Sequence[SourceRatios], shared: tuple[str, ...]) -> StepInterval:
    """Return the interval of a step of a source that is none of these. Sources have means that scatter, and rows that
    scatter about them; each source weighs the same (a random effect of one way: Searle et al. 1992, section 3.5).
    Few sources tell little of how far sources scatter, so the scatter of all of them counts as that of one more (a
    scaled inverse chi-square prior: Gelman et al. 2013, section 3.3)."""
    from scipy.special import stdtrit

    means, within = source_spread(near)
    count, centre = len(means), sum(means) / len(means)
    freedom = count - 1 + PRIOR
    between = (variance(means) * (count - 1) + variance(source_spread(every)[0]) * PRIOR) / freedom
    half = float(stdtrit(freedom, (1 + INTERVAL_SHARE) / 2)) * (between * (1 + 1 / count) + within) ** 0.5
    rows = sum(len(ratios) for _, ratios in near)
    return StepInterval(exp(centre - half), exp(centre + half), rows, count, shared)


def source_spread(groups: Sequence[SourceRatios]) -> tuple[list[float], float]:
    """Return the mean logarithm of each publication, and the mean variance about it."""
    logs: dict[str, list[float]] = {}
    for source, ratios in groups:
        logs.setdefault(source, []).extend(map(log, ratios))
    means = [sum(values) / len(values) for values in logs.values()]
    return means, sum(variance(values, 0) for values in logs.values()) / len(means)


def variance(values: Sequence[float], lost: int = 1) -> float:
    """Return the variance of numbers; `lost`: degrees of freedom that their mean takes."""
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - lost)
