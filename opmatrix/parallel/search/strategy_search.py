"""The search over all strategies of a model on a number of devices: every form is predicted for all sizes at once. The
formulas that predict one strategy are evaluated over columns, and common parts of forms are computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from formats.machine.datasheets import BYTES, Datasheet
from opmatrix.display.progress import unheard
from opmatrix.models.config import Settings
from opmatrix.models.decoders.next_tokens import NEXT_TOKEN_MODULES
from opmatrix.parallel.axes.context_axis import CONTEXTS
from opmatrix.parallel.axes.known_axes import ORDERS, PLANNED_AXES
from opmatrix.parallel.axes.parallel_axis import ModelLimits
from opmatrix.parallel.cost.constants import Constants, load_constants
from opmatrix.parallel.cost.intervals import StepInterval
from opmatrix.parallel.cost.layer_work import ModelWork, model_work
from opmatrix.parallel.cost.prediction import Prediction, predict_step
from opmatrix.parallel.cost.stacks import SoftwareStack
from opmatrix.parallel.cost.step_parts import PartSeconds, Setting
from opmatrix.parallel.cost.strategies import BLOCK_AGAIN, Strategy
from opmatrix.parallel.schedules.named import PLANNED, RUN_BY_RANKS, USUAL_SCHEDULE
from opmatrix.parallel.search.forms import (
    STRATEGY_FORMS,
    FormChoices,
    FormMasks,
    StrategyForm,
    balanced_forms,
    choices_of_stack,
    folded_forms,
    forms_in_blocks,
    forms_scheduled,
)
from opmatrix.parallel.search.inference import INFERENCE_PHASES, InferencePhase
from opmatrix.parallel.search.legal_sizes import SizeColumns, check_counts, legal_sizes, limits_of
from opmatrix.parallel.search.length_mix import LengthMix, mix_predictions
from opmatrix.parallel.search.tapes import TAPE_ROWS, CompiledTape, Tape, TracedColumn

SIZE_NAMES = tuple(column.name for column in fields(SizeColumns))
BATCH_COLUMN = "batch"  # sequences of a step, beside the sizes


@dataclass(frozen=True)
class PlanQuestion:
    """The inputs of a plan."""

    config: Settings
    machine: Datasheet
    devices: int  # number of devices
    batch: int  # sequences of a step
    seq: int  # tokens of a sequence, the longest
    room: float  # bytes of a device
    flash: bool = True  # scores of attention are never stored
    precision: str = "bf16"
    constants: Constants | None = None
    infer: bool = False  # a phase of inference, by default a forward pass alone
    stack: SoftwareStack | None = None  # strategies are those that it runs, with its habits
    schedule: str | None = None  # the only pipeline schedule
    max_tp: int | None = None  # tensor ranks, at most
    fixed: tuple[tuple[str, object], ...] = ()  # sizes and choices by name that are stated
    interval: StepInterval | None = None  # of seconds, from steps of one's own
    no_ring: bool = False  # context ranks exchange heads, and no keys round a ring
    load: float = 1  # rows of the busiest expert rank, relative to the mean
    lifted: tuple[str, ...] = ()  # sizes of the model that any ranks are taken to divide
    lengths: LengthMix | None = None  # of sequences, where there are several
    any_form: bool = False  # also choices by name that the stack lacks, with its habits
    phase: InferencePhase = "prefill"  # of inference
    reply: int = 0  # tokens of a sequence that are generated, of all its tokens

    @property
    def local(self) -> bool:
        """True if devices are processes of one machine: then strategies are those that `opmatrix launch` runs."""
        return self.machine.processors < inf

    @cached_property
    def limits(self) -> ModelLimits:
        """The numbers of the model that ranks must divide."""
        return limits_of(self.config)

    @property
    def mix(self) -> LengthMix:
        """The lengths of sequences with their shares of steps."""
        return self.lengths or LengthMix(((self.seq, 1.0),))

    @cached_property
    def sizes(self) -> SizeColumns:
        """All legal sizes of a strategy, as columns; for a forward pass without virtual stages, and on ranks of one
        machine with one micro-batch."""
        check_counts(self.limits, self.devices, self.batch, self.seq)
        sizes = legal_sizes(self.limits, self.devices, self.batch, self.mix.divided, self.lifted)
        if self.lifted:
            sizes = sizes[(sizes.tp <= self.limits.heads) & (sizes.pp * sizes.virtual <= self.limits.layers)]
        if self.max_tp is not None:
            sizes = sizes[sizes.tp <= self.max_tp]
        for name, number in self.fixed:
            if name in SIZE_NAMES:
                sizes = sizes[getattr(sizes, name) == number]
        if self.infer:
            sizes = sizes[sizes.virtual == 1]
        return sizes[sizes.micro_batch * sizes.dp == self.batch] if self.infer and self.local else sizes

    @property
    def forms(self) -> Sequence[StrategyForm]:
        """All forms that apply. A forward pass saves no values and has no state to shard. Ranks of one machine are all
        equally near, and none defers gradients of weights."""
        if self.infer:
            return [form for form in STRATEGY_FORMS if form[:3] == ("none", 0, USUAL_SCHEDULE.name)]
        if self.local:
            return [form for form in STRATEGY_FORMS if form.schedule in RUN_BY_RANKS and form.order == ORDERS[0]]
        counted = [*STRATEGY_FORMS, *forms_scheduled(name for name in self.choices.schedules if name not in PLANNED)]
        if BLOCK_AGAIN in self.choices.recomputes:
            counted += forms_in_blocks(counted)
        if self.limits.experts:
            counted += folded_forms(counted)
        forms = [*counted, *balanced_forms(counted)]
        chosen = [(name, value) for name, value in self.fixed if name in StrategyForm._fields]
        return [
            form
            for form in forms
            if self.choices.offers(form) and all(getattr(form, name) == value for name, value in chosen)
        ]

    @cached_property
    def choices(self) -> FormChoices:
        """The choices by name that forms may have: those of a stack, and a schedule."""
        choices = FormChoices() if self.stack is None or self.any_form else choices_of_stack(self.stack)
        if self.no_ring:
            choices = choices._replace(contexts=without_ring(choices.contexts))
        return choices if self.schedule is None else choices._replace(schedules=(self.schedule,))

    def work(self, form: StrategyForm) -> ModelWork:
        """Return the work of the model under a form. A forward pass predicts the next token alone."""
        config = self.config
        if self.infer and config.get(NEXT_TOKEN_MODULES):
            config = {**config, NEXT_TOKEN_MODULES: 0}
        return model_work(config, form.context, form.sequence)

    def strategy(self, form: StrategyForm, sizes: Mapping[str, object]) -> Strategy:
        """Return a form at sizes, which may be columns."""
        strategy = Strategy(
            **sizes,  # type: ignore[arg-type]
            zero=form.zero,
            sequence=form.sequence,
            recompute=form.recompute,
            room=self.room,
            context=form.context,
            schedule=form.schedule,
            order=form.order,
            whole_experts=form.whole_experts,
            balanced=form.balanced,
            flash=self.flash,
            precision=self.precision,
            load=self.load,
            launched=self.local,
        )
        strategy = replace(strategy, gradient_bytes=BYTES[strategy.values])
        return strategy if self.stack is None else self.stack.run(strategy)

    def predicted(
        self,
        form: StrategyForm,
        sizes: Mapping[str, object],
        passes: dict[tuple[object, ...], PartSeconds] | None = None,
    ) -> Prediction:
        """Predict the time and memory of a form at sizes, which may be columns: the mean time of all lengths of
        sequences, and the memory of the longest. `passes`: passes that forms of the same columns share."""
        if self.lengths is None:
            return self.predicted_on(self.machine, form, sizes, self.batch, self.seq, self.constants, passes)
        return mix_predictions(
            self.lengths,
            [
                self.predicted_on(self.machine, form, sizes, self.batch, tokens, self.constants, passes)
                for tokens, _ in self.lengths.shares
            ],
        )

    def predicted_on(
        self,
        machine: Datasheet,
        form: StrategyForm,
        sizes: Mapping[str, object],
        batch: Any,
        seq: Any,
        constants: Constants | None,
        passes: dict[tuple[object, ...], PartSeconds] | None = None,
    ) -> Prediction:
        """Predict with other numbers of the machine, the batch or the constants."""
        setting = Setting(
            self.work(form), machine, self.strategy(form, sizes), batch, seq, constants or load_constants(), passes
        )
        if self.infer:
            return INFERENCE_PHASES[self.phase](setting, self.limits.head, self.reply)
        return predict_step(setting)


def without_ring(contexts: Sequence[str]) -> tuple[str, ...]:
    """Return the ways of context ranks that send no keys round a ring."""
    return tuple(name for name in contexts if CONTEXTS[name].mixing != "ring")


@dataclass(frozen=True)
class FormPrograms:
    """Times and peaks of all forms as one program. Equal results are computed once."""

    forms: Sequence[StrategyForm]
    program: CompiledTape
    times: NDArray[np.intp]  # for each form the index of its time
    peaks: NDArray[np.intp]  # for each form the index of its peak

    def values_at(self, sizes: SizeColumns, batch: int) -> NDArray[np.float64]:
        """Return the distinct results, a row each, at sizes and a number of sequences."""
        values = np.empty((len(self.program.results), len(sizes)))
        columns = {name: getattr(sizes, name).astype(np.float64) for name in SIZE_NAMES}
        self.program(columns | {BATCH_COLUMN: np.full(len(sizes), float(batch))}, values)
        return values


def compile_forms(question: PlanQuestion, forms: Sequence[StrategyForm]) -> FormPrograms:
    """Trace the formulas of each form once, and compile them: for any batch and number of devices."""
    tape, results, values = Tape(*SIZE_NAMES, BATCH_COLUMN), dict[tuple[bool, float], int](), list[object]()
    columns: dict[str, Any] = {name: tape.columns[name] for name in SIZE_NAMES}
    question = replace(question, batch=tape.columns[BATCH_COLUMN])  # type: ignore[arg-type]

    def place(value: Any) -> int:
        """Return the index of a result among the distinct ones."""
        key = (True, value.at) if isinstance(value, TracedColumn) else (False, float(value))
        if key not in results:
            results[key] = len(values)
            values.append(value)
        return results[key]

    times, peaks, passes = [], [], dict[tuple[object, ...], PartSeconds]()
    for form in forms:
        prediction = question.predicted(form, columns, passes)
        times.append(place(prediction.step_seconds))
        peaks.append(place(prediction.driver))
    return FormPrograms(forms, CompiledTape(tape, values), np.array(times), np.array(peaks))


@dataclass(frozen=True)
class FoundStrategies:
    """The fastest form that fits for each row of sizes."""

    question: PlanQuestion
    sizes: SizeColumns
    forms: NDArray[np.intp]  # index of that form, by row
    seconds: NDArray[np.float64]  # its seconds; infinite where no form fits
    peaks: NDArray[np.float64]  # its bytes
    count: int  # strategies predicted
    fit: int  # strategies that fit
    least: tuple[StrategyForm, int, float]  # form, row and bytes with the smallest memory

    def best_rows(self, keep: int) -> list[int]:
        """Return the fastest rows, one for each way to factor devices over axes."""
        rows: dict[tuple[int, ...], int] = {}
        for row in np.argsort(self.seconds, kind="stable"):
            if not np.isfinite(self.seconds[row]) or len(rows) == keep:
                break
            at = self.sizes.row(int(row))
            rows.setdefault(tuple(at[axis.name] for axis in PLANNED_AXES), int(row))
        return [*rows.values()]


def search_strategies(
    question: PlanQuestion,
    heard: Callable[..., None] = unheard,
    forms: Sequence[StrategyForm] | None = None,
    programs: FormPrograms | None = None,
) -> FoundStrategies:
    """Predict every strategy. `heard` is called with the number of rows done and their total; `programs`: those of a
    question with the same formulas. Raises InputError where no sizes are legal."""
    forms = question.forms if forms is None else forms
    if not len(question.sizes):  # refuses before any model is read
        raise InputError(f"--devices {question.devices}: no strategy on them runs a batch of {question.batch}")
    strategies = predict_columns(question, programs or compile_forms(question, forms), heard)
    if not strategies.count:
        raise InputError(f"--devices {question.devices}: no form of strategies applies to any legal sizes")
    return strategies


def predict_columns(
    question: PlanQuestion, programs: FormPrograms, heard: Callable[..., None] = unheard
) -> FoundStrategies:
    """Predict every form for all sizes, block by block, and keep for each row the fastest form that fits."""
    sizes, forms = question.sizes, programs.forms
    masks = FormMasks(forms, question.limits, question.mix.divided, question.local, question.choices, question.batch)
    best, seconds, peaks = np.zeros(len(sizes), np.intp), np.full(len(sizes), np.inf), np.full(len(sizes), np.inf)
    count = fit = done = 0
    least = (forms[0], 0, np.inf)
    for block in sizes.blocks(TAPE_ROWS):
        rows = slice(done, done + len(block))
        values = programs.values_at(block, question.batch)
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
