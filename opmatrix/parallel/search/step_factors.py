"""Measured steps of one's own: factors by which predictions are scaled, and the interval that is left."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import NamedTuple

from formats.core.errors import InputError
from formats.machine.datasheets import Datasheet
from opmatrix.parallel.cost.constants import Constants, load_constants
from opmatrix.parallel.cost.intervals import INTERVAL_SHARE, PRIOR, UNKNOWN_STACK, StepInterval, kind_of, row_scatter
from opmatrix.parallel.cost.prediction import predict
from opmatrix.parallel.cost.strategies import Strategy
from opmatrix.parallel.search.step_rows import StepRow, read_step_row
from opmatrix.parallel.search.strategy_search import PlanQuestion

SAME_SECONDS = 0.02  # seconds of one strategy that differ by more contradict each other
LARGEST_FACTOR = 20.0


class StepFactors(NamedTuple):
    """StepFactors of the seconds of what is computed and of what crosses links."""

    computed: float
    crossed: float


class Calibration(NamedTuple):
    """A question with the factors of measured steps."""

    question: PlanQuestion
    factors: StepFactors
    rows: int
    strategies: int  # distinct ones among the rows
    contradictory: tuple[str, ...]  # repeats that differ
    interval: StepInterval

    def __str__(self) -> str:
        low, high = self.interval.low, self.interval.high
        numbers = "one factor" if self.strategies == 1 else "two factors"
        lines = [
            f"calibrated by {self.rows} rows of {self.strategies} strategies, {numbers}: what is computed takes "
            f"{self.factors.computed:.3g} and what crosses links {self.factors.crossed:.3g} times as long; "
            f"{100 * INTERVAL_SHARE:.0f} % of steps are {low:.3g} to {high:.3g} times the prediction",
            *(f"contradictory: {each}" for each in self.contradictory),
        ]
        return "\n".join(lines)


def calibrate_question(question: PlanQuestion, file: Path) -> Calibration:
    """Return a question whose predictions are scaled to measured steps: by one factor for rows of one strategy, else by
    one for what is computed and one for what crosses links. Raises InputError for rows of another machine, without
    seconds, or that no factor explains."""
    rows = read_own_rows(question, file)
    distinct = {row.strategy: None for row in rows}
    measured = [seconds_of(row, file) for row in rows]
    factors = fit_factors(question, rows, measured, len(distinct))
    if not all(1 / LARGEST_FACTOR < factor < LARGEST_FACTOR for factor in factors):
        raise InputError(
            f"--calibrate {file}: its steps take {factors.computed:.3g} times what is predicted: look at the seconds, "
            "the batch and the machine"
        )
    scaled = scale_question(question, factors)
    off = [log(seconds / seconds_by(row, scaled)) for row, seconds in zip(rows, measured, strict=True)]
    interval = interval_left(question, rows[0], off, min(len(distinct), 2))
    told = tuple(contradictory_rows(rows))
    return Calibration(replace(scaled, interval=interval), factors, len(rows), len(distinct), told, interval)


def read_own_rows(question: PlanQuestion, file: Path) -> list[StepRow]:
    """Read measured steps: of the columns of published tables, or of `plan --csv`, whose model, machine and batch are
    those of the question."""
    try:
        with file.open(encoding="utf-8") as lines:
            table = list(csv.DictReader(lines))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--calibrate {file}: {error}") from None
    if not table:
        raise InputError(f"--calibrate {file}: it has no rows: give measured steps")
    usual = {
        "config": "",
        "machine": question.machine.name,
        "devices": str(question.devices),
        "global_batch": str(question.batch),
        "seq": str(question.seq),
        "precision": question.precision,
    }
    rows = []
    for at, row in enumerate(table, 1):
        filled = {**usual, **{name: text for name, text in row.items() if name and text}}
        place = f"--calibrate {file}, row {at}"
        if filled["machine"].lower() != question.machine.name.lower():
            raise InputError(f"{place}: it is of {filled['machine']}, and the plan of {question.machine.name}")
        step = read_step_row(filled, {"": question.config}, place, {filled["machine"]: question.machine})
        rows.append(step._replace(strategy=own_strategy(question, step)))
    return rows


def own_strategy(question: PlanQuestion, step: StepRow) -> Strategy:
    """Return the strategy of a row with the habits of the question's stack, or without any."""
    if question.stack is not None:
        return question.stack.habits(step.plain)
    return replace(step.plain, flash=question.flash)


def seconds_of(row: StepRow, file: Path) -> float:
    """Return the measured seconds. Raises InputError for a row without."""
    if row.seconds is None:
        raise InputError(f"--calibrate {file}: a row has no seconds: give step_s, seconds or tokens_s_device")
    return row.seconds


def seconds_by(row: StepRow, scaled: PlanQuestion) -> float:
    """Return the predicted seconds of a row on the scaled machine."""
    step = predict(row.config, scaled.machine, row.strategy, row.batch, row.seq, constants=scaled.constants)
    return float(step.step_seconds)


def fit_factors(
    question: PlanQuestion, rows: Sequence[StepRow], measured: Sequence[float], strategies: int
) -> StepFactors:
    """Return the factors that make predictions closest to measured seconds by the logarithm of their ratio; two stay
    near the one that fits best."""
    from scipy.optimize import least_squares

    ratios = [seconds / seconds_by(row, question) for row, seconds in zip(rows, measured, strict=True)]
    one = exp(sum(map(log, ratios)) / len(ratios))
    if strategies == 1:
        return StepFactors(one, one)

    def off(moved: Sequence[float]) -> list[float]:
        """Return how far predictions are off, and how far factors are from the one."""
        scaled = scale_question(question, StepFactors(one * exp(moved[0]), one * exp(moved[1])))
        logs = [log(seconds_by(row, scaled) / seconds) for row, seconds in zip(rows, measured, strict=True)]
        return [*logs, *(STAY * by for by in moved)]

    moved = least_squares(off, [0.0, 0.0], bounds=(-log(LARGEST_FACTOR), log(LARGEST_FACTOR))).x
    return StepFactors(one * exp(float(moved[0])), one * exp(float(moved[1])))


def scale_question(question: PlanQuestion, factors: StepFactors) -> PlanQuestion:
    """Return a question whose machine and constants are slower by factors."""
    constants = question.constants or load_constants()
    machine = scale_machine(question.machine, factors)
    return replace(question, machine=machine, constants=scale_constants(constants, factors))


STAY = 0.02  # weight of a factor's distance from the one that fits best


def scale_machine(sheet: Datasheet, factors: StepFactors) -> Datasheet:
    """Return a machine that computes and sends slower by factors. Its watts stay, since constants are scaled, too."""
    computed, crossed = factors
    return replace(
        sheet,
        source=f"{sheet.source}; calibrated by measured steps",
        matrix={kind: rate / computed for kind, rate in sheet.matrix.items()},
        vector={kind: rate / computed for kind, rate in sheet.vector.items()},
        memory=tuple((name, room, rate / computed) for name, room, rate in sheet.memory),
        links=tuple(
            link._replace(bandwidth=link.bandwidth / crossed, latency=link.latency * crossed) for link in sheet.links
        ),
    )


def scale_constants(constants: Constants, factors: StepFactors) -> Constants:
    """Return constants with latencies and operations a joule scaled by factors."""
    return constants._replace(
        gap=constants.gap * factors.computed,
        superstep=constants.superstep * factors.crossed,
        joule=constants.joule / factors.computed,
        joule_ascend=constants.joule_ascend / factors.computed,
    )


def interval_left(question: PlanQuestion, row: StepRow, off: Sequence[float], fitted: int) -> StepInterval:
    """Return the interval of a step that is like the measured ones: from how far these are still off, and from how far
    rows of published sources scatter, which counts as one row more."""
    from scipy.special import stdtrit

    step = predict(row.config, row.machine, row.strategy, row.batch, row.seq, constants=question.constants)
    kind = kind_of(step.setting, question.stack.name if question.stack else UNKNOWN_STACK)
    free = max(len(off) - fitted, 0) + PRIOR
    scatter = (sum(value**2 for value in off) + PRIOR * row_scatter(kind)) / free
    half = float(stdtrit(free + 1, (1 + INTERVAL_SHARE) / 2)) * (scatter * (1 + 1 / len(off))) ** 0.5
    return StepInterval(exp(-half), exp(half), len(off), 1, ("calibration",))


def contradictory_rows(rows: Sequence[StepRow]) -> list[str]:
    """Return strategies that were measured several times with seconds that differ."""
    repeats: dict[object, list[float]] = defaultdict(list)
    for row in rows:
        if row.seconds is not None:
            repeats[row.strategy, row.model, row.batch, row.seq].append(row.seconds)
    return [
        f"one strategy took {min(seconds):g} and {max(seconds):g} s: the interval is wider"
        for seconds in repeats.values()
        if max(seconds) > (1 + SAME_SECONDS) * min(seconds)
    ]
