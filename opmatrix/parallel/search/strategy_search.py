"""All strategies of a model on so many devices: every form is predicted for all sizes at once. The very formulas of one
strategy are read over columns, and what forms have in common is computed once."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from formats.machine.datasheets import BYTES, Datasheet
from opmatrix.display.progress import unheard
from opmatrix.models.config import Settings
from opmatrix.parallel.cost.constants import Constants, load_constants
from opmatrix.parallel.cost.layer_work import ModelWork, model_work
from opmatrix.parallel.cost.prediction import Prediction, predict_step
from opmatrix.parallel.cost.step_parts import PartSeconds, Setting
from opmatrix.parallel.cost.strategies import Strategy
from opmatrix.parallel.schedules.named import RUN_BY_RANKS, USUAL_SCHEDULE
from opmatrix.parallel.search.forms import ORDERS, STRATEGY_FORMS, FormMasks, StrategyForm
from opmatrix.parallel.search.inference import predict_forward
from opmatrix.parallel.search.legal_sizes import ModelLimits, SizeColumns, legal_sizes, limits_of
from opmatrix.parallel.search.tapes import TAPE_ROWS, CompiledTape, Tape, TracedColumn

SIZE_NAMES = tuple(each.name for each in fields(SizeColumns))


@dataclass(frozen=True)
class PlanQuestion:
    """What is asked: a model, a machine, how many devices, sequences of a step and their tokens, bytes of a device.
    `flash`: scores of attention stay where they are computed. `infer`: a forward pass alone."""
    config: Settings
    machine: Datasheet
    devices: int
    batch: int
    seq: int
    room: float
    flash: bool = True
    precision: str = "bf16"
    constants: Constants | None = None
    infer: bool = False

    @property
    def local(self) -> bool:
        """Whether devices are processes of one machine: then strategies are those that `opmatrix launch` runs."""
        return self.machine.processors < inf

    @cached_property
    def limits(self) -> ModelLimits: return limits_of(self.config)

    @cached_property
    def sizes(self) -> SizeColumns:
        found = legal_sizes(self.limits, self.devices, self.batch, self.seq)
        if self.infer: found = found[found.virtual == 1]
        return found[found.micro_batch * found.dp == self.batch] if self.infer and self.local else found

    @property
    def forms(self) -> Sequence[StrategyForm]:
        """All that there are; a forward pass keeps nothing and has no state to store. Ranks of one machine are all as
        near, and none puts gradients of weights off."""
        if self.infer: return [form for form in STRATEGY_FORMS if form[:3] == ("none", 0, USUAL_SCHEDULE.name)]
        if not self.local: return STRATEGY_FORMS
        return [form for form in STRATEGY_FORMS if form.schedule in RUN_BY_RANKS and form.order == ORDERS[0]]

    def work(self, form: StrategyForm) -> ModelWork:
        """What the model computes, by a form."""
        return model_work(self.config, form.context, form.sequence)

    def strategy(self, form: StrategyForm, sizes: Mapping[str, object]) -> Strategy:
        """A form at sizes, which may be columns."""
        return Strategy(**sizes, zero=form.zero, sequence=form.sequence, recompute=form.recompute,  # type: ignore[arg-type]
                        context=form.context, schedule=form.schedule, order=form.order, flash=self.flash,
                        precision=self.precision, gradient_bytes=BYTES[self.precision])

    def predicted(self, form: StrategyForm, sizes: Mapping[str, object],
                  passes: dict[tuple[object, ...], PartSeconds] | None = None) -> Prediction:
        """Time and memory of a form at sizes, which may be columns. `passes`: those that forms of the same columns
        have in common."""
        return self.predicted_on(self.machine, form, sizes, self.batch, self.seq, self.constants, passes)

    def predicted_on(self, machine: Datasheet, form: StrategyForm, sizes: Mapping[str, object], batch: Any, seq: Any,
                     constants: Constants | None,
                     passes: dict[tuple[object, ...], PartSeconds] | None = None) -> Prediction:
        """A prediction of what was asked, with other numbers of the machine, the batch or the constants."""
        own = Setting(self.work(form), machine, self.strategy(form, sizes), batch, seq, constants or load_constants(),
                      passes)
        return predict_forward(own, self.limits.head) if self.infer else predict_step(own)


@dataclass(frozen=True)
class FormPrograms:
    """Times and peaks of all forms as one program: what forms share is one result, and each says which it has."""
    forms: Sequence[StrategyForm]
    program: CompiledTape
    times: NDArray[np.intp]
    peaks: NDArray[np.intp]


def compile_forms(question: PlanQuestion, forms: Sequence[StrategyForm]) -> FormPrograms:
    """Traces the formulas of each form once."""
    tape, results, values = Tape(*SIZE_NAMES), dict[tuple[bool, float], int](), list[object]()

    def place(value: Any) -> int:
        """Where a result stands among those that differ."""
        key = (True, value.at) if isinstance(value, TracedColumn) else (False, float(value))
        if key not in results:
            results[key] = len(values)
            values.append(value)
        return results[key]
    times, peaks, passes = [], [], dict[tuple[object, ...], PartSeconds]()
    for form in forms:
        found = question.predicted(form, tape.columns, passes)
        times.append(place(found.step_seconds))
        peaks.append(place(found.reserved))
    return FormPrograms(forms, CompiledTape(tape, values), np.array(times), np.array(peaks))


@dataclass(frozen=True)
class FoundStrategies:
    """For each row of sizes the fastest form that fits, its seconds and bytes; `count` strategies were predicted, of
    which `fit` fit. `least`: the form, row and bytes of what needs the least memory."""
    question: PlanQuestion
    sizes: SizeColumns
    forms: NDArray[np.intp]
    seconds: NDArray[np.float64]
    peaks: NDArray[np.float64]
    count: int
    fit: int
    least: tuple[StrategyForm, int, float]

    def best_rows(self, keep: int) -> list[int]:
        """The fastest rows, one for each way to factor devices over axes."""
        found: dict[tuple[int, ...], int] = {}
        for row in np.argsort(self.seconds, kind="stable"):
            if not np.isfinite(self.seconds[row]) or len(found) == keep: break
            at = self.sizes.row(int(row))
            found.setdefault((at["dp"], at["tp"], at["pp"], at["cp"], at["ep"]), int(row))
        return [*found.values()]


def search_strategies(question: PlanQuestion, heard: Callable[..., None] = unheard,
                      forms: Sequence[StrategyForm] | None = None) -> FoundStrategies:
    """Predicts every strategy. `heard`: told how many rows of sizes are done, of how many. Raises InputError where no
    sizes are legal."""
    forms = question.forms if forms is None else forms
    if not len(question.sizes):                             # what no sizes are for is refused before anything is read
        raise InputError(f"--devices {question.devices}: no strategy of them runs a batch of {question.batch} at once")
    found = predict_columns(question, compile_forms(question, forms), heard)
    if not found.count:
        raise InputError(f"--devices {question.devices}: no form of strategies is for any of their sizes")
    return found


def predict_columns(question: PlanQuestion, programs: FormPrograms,
                    heard: Callable[..., None] = unheard) -> FoundStrategies:
    """Predicts every form for all sizes, block by block, and keeps the fastest form that fits of each row."""
    sizes, forms = question.sizes, programs.forms
    masks = FormMasks(forms, question.limits, question.seq, question.local)
    best, seconds, peaks = np.zeros(len(sizes), np.intp), np.full(len(sizes), np.inf), np.full(len(sizes), np.inf)
    count = fit = done = 0
    least = (forms[0], 0, np.inf)
    for block in sizes.blocks(TAPE_ROWS):
        rows = slice(done, done + len(block))
        values = np.empty((len(programs.program.results), len(block)))
        programs.program({name: getattr(block, name).astype(np.float64) for name in SIZE_NAMES}, values)
        legal = masks(block)
        held = np.where(legal, values[programs.peaks], np.inf)
        fits = held <= question.room
        took = np.where(fits, values[programs.times], np.inf)
        best[rows] = took.argmin(0)
        across = np.arange(len(block))
        seconds[rows], peaks[rows] = took[best[rows], across], held[best[rows], across]
        count, fit, done = count + int(legal.sum()), fit + int(fits.sum()), done + len(block)
        if (low := held.min()) < least[2]:
            form, at = divmod(int(held.argmin()), len(block))
            least = forms[form], rows.start + at, float(low)
        heard(done, len(sizes))
    return FoundStrategies(question, sizes, best, seconds, peaks, count, fit, least)
