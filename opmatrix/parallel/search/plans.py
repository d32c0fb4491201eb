"""`plan`: the fastest strategies of a model on a number of devices of a machine, with time, memory and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import NamedTuple

from formats.core.errors import InputError, suggest_name
from formats.machine.datasheets import BYTES, EIGHT_BITS, Datasheet, datasheet, datasheets
from opmatrix import body
from opmatrix.display.progress import unheard
from opmatrix.models import known, normalise_config
from opmatrix.models.config import Settings
from opmatrix.models.encoders.encoder_decoders import has_halves
from opmatrix.models.encoders.towers import decoder_settings, has_tower, read_tower
from opmatrix.parallel.axes.known_axes import PLANNED_AXES, PRINTED
from opmatrix.parallel.cost.constants import Constants
from opmatrix.parallel.cost.expert_work import count_experts
from opmatrix.parallel.cost.intervals import UNKNOWN_STACK, StepInterval, bytes_of, find_interval, kind_of
from opmatrix.parallel.cost.layer_work import ModelWork
from opmatrix.parallel.cost.prediction import Prediction, check_linked
from opmatrix.parallel.cost.source_rows import DECODER_ROWS, SOURCE_ROWS
from opmatrix.parallel.cost.stacks import stack_named
from opmatrix.parallel.schedules.named import SCHEDULES, USUAL_SCHEDULE
from opmatrix.parallel.search.forms import StrategyForm
from opmatrix.parallel.search.length_mix import LengthMix, mix_lengths
from opmatrix.parallel.search.step_factors import Calibration, calibrate_question
from opmatrix.parallel.search.strategy_search import FoundStrategies, PlanQuestion, search_strategies

BEST_KEPT = 10
REAL_LOAD = 1.2  # rows of the busiest expert rank over the mean: routers that are
# not forced to be even make steps 8 to 20 % longer (MPT, Megatron-Core); this makes them 13 % longer
MOST_LOAD = 1e3  # all rows to one rank of as many
POSITION_KEYS = "max_position_embeddings", "n_positions", "max_target_positions"
CARBON = 473.0  # grams of CO2 a kWh: the world's mean of 2024 (Ember 2025,
# Global Electricity Review)
KINDS_OF_TIME = {
    "computation": ("computation", "loss", "host", "turns"),
    "communication": (),  # every part that belongs to no other kind
    "synchronisation": ("synchronisation", "waiting"),
    "bubble": ("bubble",),
    "optimiser": ("optimiser",),
}
FACTORS = 0.5, 2.0  # factors of links, memory and rates for `sensitivity`


class PlanChoice(NamedTuple):
    """A strategy: its form, its sizes, and its predicted time and memory."""

    form: StrategyForm
    sizes: Mapping[str, int]
    prediction: Prediction

    @property
    def seconds(self) -> float:
        """The predicted seconds of a step."""
        return float(self.prediction.step_seconds)

    @property
    def bytes(self) -> float:
        """The predicted bytes of the fullest device, as its driver reports them."""
        return float(self.prediction.driver)

    def __str__(self) -> str:
        sizes = self.sizes
        axes = [f"{name} {sizes[name]}" for name in PRINTED if sizes[name] > 1] or ["one device"]
        more = [f"micro-batch {sizes['micro_batch']}"]
        if sizes["virtual"] > 1:
            more.append(f"{sizes['virtual']} chunks a stage")
        elif sizes["pp"] > 1:
            more.append(self.form.schedule)
        if self.form.zero:
            more.append(f"ZeRO {self.form.zero}")
        if self.form.sequence:
            more.append("norms cut")
        if self.form.whole_experts:
            more.append("whole experts")
        if self.form.balanced:
            more.append("ends counted")
        if sizes["cp"] > 1:
            more.append(self.form.context)
        if self.form.recompute != "none":
            more.append(f"{self.form.recompute} again")
        if (again := self.prediction.setting.strategy.again) is not None:
            more.append(f"{round(100 * float(again))} % of layers")
        return f"{' × '.join(axes)}; {', '.join(more)}"

    def grouped(self) -> dict[str, float]:
        """Return the seconds of a step by kind; they add up to the step."""
        totals = dict.fromkeys(KINDS_OF_TIME, 0.0)
        for part, seconds in self.prediction.seconds.items():
            totals[group_of(part)] += float(seconds)
        return totals


def group_of(part: str) -> str:
    """Return the kind of a part of a step."""
    return next((name for name, starts in KINDS_OF_TIME.items() if part.startswith(starts)), "communication")


@dataclass(frozen=True)
class StrategyPlan:
    """The best strategies, the fastest first, one for each way to factor the devices over axes."""

    name: str
    question: PlanQuestion
    found: FoundStrategies
    best: tuple[PlanChoice, ...]
    carbon: float = CARBON
    learned: Calibration | None = None  # from measured steps of one's own

    @cached_property
    def model_operations(self) -> float:
        """Operations of a step, forward and backward, without recomputation: the numerator of a utilisation."""
        question, work = self.question, self.question.work(StrategyForm())
        return sum(
            share * model_operations(work, question.batch, tokens, question.infer, question.flash)
            for tokens, share in question.mix.shares
        )

    def utilisation(self, choice: PlanChoice) -> float:
        """Return the share of the devices' rate that is spent on the model's own operations."""
        rate = self.question.machine.peak(self.question.precision)
        return self.model_operations / (choice.seconds * self.question.devices * rate)

    @property
    def stack(self) -> str:
        """The name of the stack that strategies are of; "unknown" without one."""
        return self.question.stack.name if self.question.stack else UNKNOWN_STACK

    @cached_property
    def intervals(self) -> tuple[StepInterval | None, StepInterval | None]:
        """The intervals of seconds and of bytes of a step, as factors, from measured steps of the same kind. None for a
        forward pass and for processes of this machine, of which no steps are published."""
        if self.question.infer or self.question.local:
            return None, None
        kind = kind_of(self.best[0].prediction.setting, self.stack)
        seconds = self.question.interval or find_interval(kind)
        return seconds, find_interval(kind, bytes_of)

    def tokens_a_second(self, choice: PlanChoice) -> float:
        """Return the tokens a second of each device."""
        return self.question.batch * self.question.mix.mean / (choice.seconds * self.question.devices)

    def costs(self, choice: PlanChoice, tokens: float = 1e9) -> dict[str, float]:
        """Return the cost of a number of tokens: device-hours; where the data sheet states power, kilowatt-hours of
        devices under load and kilograms of CO2; where it states a price, dollars."""
        question = self.question
        hours = tokens / self.tokens_a_second(choice) / 3600
        amounts = {"device-hours": hours}
        if question.machine.watts is not None:
            amounts["kWh"] = hours * question.machine.watts / 1000
            amounts["kg of CO2"] = amounts["kWh"] * self.carbon / 1000
        if question.machine.hourly is not None:
            amounts["dollars"] = hours * question.machine.hourly
        return amounts

    def seconds_by_length(self, choice: PlanChoice) -> dict[int, float]:
        """Return the seconds of a step by the tokens of its sequences."""
        steps = {
            tokens: replace(self.question, seq=tokens, lengths=None).predicted(choice.form, choice.sizes)
            for tokens, _ in self.question.mix.shares
        }
        return {tokens: float(step.step_seconds) for tokens, step in steps.items()}

    def seconds_on(self, machine: Datasheet, choice: PlanChoice) -> float:
        """Return the seconds of a strategy on another machine."""
        return float(replace(self.question, machine=machine).predicted(choice.form, choice.sizes).step_seconds)

    def sensitivity(self, choice: PlanChoice) -> Iterator[tuple[str, float, float]]:
        """Yield each property of the machine that is varied, and the time of a step with half of it and with twice as
        much, relative to the predicted time."""
        for what, change in CHANGES.items():
            low, high = (
                self.seconds_on(change(self.question.machine, factor), choice) / choice.seconds for factor in FACTORS
            )
            yield what, low, high

    def __str__(self) -> str:
        text: str = body("parallel.search.plan_text.plan_text")(self)
        return text


def scale_links(
    sheet: Datasheet, bandwidth: float = 1, latency: float = 1, first: int = 0, last: int | None = None
) -> Datasheet:
    """Return a machine whose links, from level `first` up to `last`, have bandwidth and latency multiplied by
    factors."""
    chosen = range(*slice(first, last).indices(len(sheet.links)))
    return replace(
        sheet,
        links=tuple(
            link._replace(bandwidth=link.bandwidth * bandwidth, latency=link.latency * latency)
            if at in chosen
            else link
            for at, link in enumerate(sheet.links)
        ),
    )


def scale_memory(sheet: Datasheet, by: float) -> Datasheet:
    """Return a machine whose memory bandwidth is multiplied by a factor."""
    *near, (name, room, rate) = sheet.memory
    return replace(sheet, memory=(*near, (name, room, rate * by)))


def scale_products(sheet: Datasheet, by: float) -> Datasheet:
    """Return a machine whose rate of products is multiplied by a factor, and the watts that pay for them, too."""
    watts = None if sheet.watts is None else by * sheet.watts
    return replace(sheet, matrix={kind: by * rate for kind, rate in sheet.matrix.items()}, watts=watts)


CHANGES: Mapping[str, Callable[[Datasheet, float], Datasheet]] = {
    "bandwidth of the nearest links": lambda sheet, by: scale_links(sheet, bandwidth=by, last=1),
    "bandwidth of all farther links": lambda sheet, by: scale_links(sheet, bandwidth=by, first=1),
    "latency of links": lambda sheet, by: scale_links(sheet, latency=by),
    "bandwidth of memory": scale_memory,
    "rate of products": scale_products,
}


def model_operations(work: ModelWork, batch: int, seq: int, forward: bool = False, flash: bool = False) -> float:
    """Return the operations of a batch forward and backward, or forward alone, of a model that one device has whole.
    Recomputation does not count, nor do scores that `flash` attention leaves out."""
    sizes = {
        "b": 1,
        DECODER_ROWS: seq,
        SOURCE_ROWS: work.source,
        **{axis.letter: 1 for axis in PLANNED_AXES if axis.letter},
    }
    layers = [(work.first, 1), *work.layers, (work.last, 1)]
    return batch * sum(
        count
        * (1 if flash and product.between and product.causal else 2)
        * product.count
        * float(product.rows.at(sizes) * product.inner.at(sizes) * product.cols.at(sizes) * product.batch.at(sizes))
        for layer, count in layers
        for product in layer.products
        if not product.again and (not forward or product.during == "forward")
    )


@dataclass(frozen=True)
class AskedPlan:
    """The inputs of a plan as `plan` takes them, beside the model, the devices and the machine."""

    batch: int
    seq: int | Mapping[int, float] | None = None
    memory: float | None = None
    infer: bool = False
    flash: bool = True
    precision: str = "bf16"
    constants: Constants | None = None
    stack: str | None = None
    schedule: str | None = None
    max_tp: int | None = None
    no_ring: bool = False
    headroom: float = 0
    load: float | None = None

    def question(self, config: Settings, devices: int, machine: str | Datasheet) -> PlanQuestion:
        """Return the inputs, checked. Raises InputError for a model or machine that cannot be planned."""
        sheet = read_machine(machine) if isinstance(machine, str) else machine
        if devices > 1:
            check_linked(sheet)
        if sheet.processors < inf and (has_halves(config) or has_tower(config)):
            raise InputError(
                f"--machine {sheet.name}: no ranks here run {config['model_type']}, which is two stacks of layers"
            )
        if self.infer:
            check_generating(config, "--infer")
        tokens, lengths = check_lengths(config, self.seq)
        check_plan_precision(self.precision, sheet)
        return PlanQuestion(
            config,
            sheet,
            devices,
            self.batch,
            tokens,
            (self.memory or sheet.memory[-1][1]) * (1 - check_headroom(self.headroom)),
            self.flash,
            self.precision,
            self.constants,
            self.infer,
            None if self.stack is None else stack_named(self.stack),
            check_schedule(self.schedule, self.stack),
            self.max_tp,
            no_ring=self.no_ring,
            load=check_load(self.load, config),
            lengths=lengths,
        )


def plan(
    model: str | Settings,
    devices: int,
    machine: str | Datasheet,
    *,
    batch: int,
    seq: int | Mapping[int, float] | None = None,
    memory: float | None = None,
    infer: bool = False,
    flash: bool = True,
    precision: str = "bf16",
    keep: int = BEST_KEPT,
    carbon: float = CARBON,
    constants: Constants | None = None,
    name: str | None = None,
    stack: str | None = None,
    schedule: str | None = None,
    max_tp: int | None = None,
    calibrate: Path | None = None,
    no_ring: bool = False,
    headroom: float = 0,
    load: float | None = None,
    heard: Callable[..., None] = unheard,
) -> StrategyPlan:
    """Find the fastest strategies of a MODEL, a well-known name or a configuration, on a number of devices of a
    machine, a name or a data sheet. `batch`: sequences a step; `seq`: their tokens, by default the most that the model
    takes, or several lengths with the share of steps that have each. `memory`: bytes of a device, by default as its
    data sheet says. `infer`: a forward pass in place of a step of training. `keep`: how many strategies to return;
    `carbon`: grams of CO2 a kWh. `precision`: fp8 and mxfp8 are products of weights in eight bits. `stack`: the
    training stack that runs it, whose strategies and habits are taken; `schedule`: the only pipeline schedule;
    `max_tp`: tensor ranks at most; `calibrate`: a table of steps that were measured, which scale predictions.
    `no_ring`: context ranks exchange heads; `headroom`: the share of the memory that is to stay free; `load`: rows of
    the busiest expert rank relative to the mean, 1.2 by default. Nothing is run. Raises InputError for a model or
    machine that cannot be planned, and where no strategy fits the memory."""
    config = known.configuration(model) if isinstance(model, str) else model
    asked = AskedPlan(
        batch, seq, memory, infer, flash, precision, constants, stack, schedule, max_tp, no_ring, headroom, load
    )
    question = asked.question(config, devices, machine)
    learned = None if calibrate is None else calibrate_question(question, calibrate)
    question = question if learned is None else learned.question
    strategies = search_strategies(question, heard)
    if not strategies.fit:
        refuse_memory(strategies)
    best = [
        PlanChoice(form, sizes, question.predicted(form, sizes))
        for form, sizes in (
            (question.forms[strategies.forms[row]], strategies.sizes.row(row)) for row in strategies.best_rows(keep)
        )
    ]
    default_name = model if isinstance(model, str) else str(config.get("model_type", "model"))
    return StrategyPlan(name or default_name, question, strategies, tuple(best), carbon, learned)


def check_plan_precision(precision: str, sheet: Datasheet) -> None:
    """Raise InputError for an unknown precision, and for one that a machine has no products of."""
    known = [*BYTES, *EIGHT_BITS]
    if precision not in known:
        raise InputError(f"precision {precision!r}: {suggest_name(precision, known)}it is one of {', '.join(known)}")
    if precision in EIGHT_BITS:
        sheet.peak(precision)


def check_headroom(headroom: float) -> float:
    """Return the share of memory that stays free. Raises InputError for one that is none."""
    if 0 <= headroom < 1:
        return headroom
    raise InputError(f"--headroom {headroom:g}: a share of the memory, from 0 on and less than 1")


def check_load(load: float | None, config: Settings) -> float:
    """Return the rows of the busiest expert rank relative to the mean: as stated, else as routers are measured to send
    them. Raises InputError for a load below the mean, and for one of a model without experts."""
    if load is None:
        return REAL_LOAD if count_experts(config) else 1.0
    if not count_experts(config) and load != 1:
        raise InputError(f"--load {load:g}: the model has no experts")
    if 1 <= load <= MOST_LOAD:
        return load
    raise InputError(f"--load {load:g}: rows of the busiest expert rank over the mean: from 1 to {MOST_LOAD:g}")


def check_generating(config: Settings, option: str) -> None:
    """Raise InputError for a model of an encoder and a decoder, which has no plan of inference."""
    if has_halves(config):
        raise InputError(
            f"{option}: {config['model_type']} attends to keys of its encoder, which only training plans have"
        )


def check_tower_rows(config: Settings, prompt: int, option: str) -> None:
    """Raise InputError for a prompt with fewer tokens than the rows that a tower gives the decoder of each sequence."""
    if not has_tower(config):
        return
    rows = read_tower(config, normalise_config(decoder_settings(config))["hidden_size"]).last_rows
    if prompt < rows:
        raise InputError(
            f"{option}: a prompt of {prompt} tokens, of which {rows} are rows of the tower: give more tokens"
        )


def check_schedule(schedule: str | None, stack: str | None = None) -> str | None:
    """Return a schedule by name. Raises InputError for an unknown one, and for one that the stack does not run."""
    if schedule is None:
        return None
    if schedule not in SCHEDULES:
        raise InputError(f"--schedule {schedule}: {suggest_name(schedule, SCHEDULES)}there are {', '.join(SCHEDULES)}")
    if stack is not None and schedule not in (has := stack_named(stack).schedules):
        raise InputError(f"--schedule {schedule}: --stack {stack} does not run it: it has {', '.join(has)}")
    return schedule


def read_machine(name: str) -> Datasheet:
    """Return a machine or a cluster by name, or the only one of a .json file (format: docs/add_a_machine.md). Raises
    InputError for an unknown name or a bad file."""
    if not name.endswith(".json"):
        return datasheet(name)
    try:
        sheets = [*datasheets(Path(name)).values()]
    except (OSError, ValueError) as error:
        raise InputError(f"--machine {name}: {str(error).removeprefix(f'{name}: ')}") from None
    if len(sheets) != 1:
        raise InputError(f"--machine {name}: it has {len(sheets)} machines: give a file of one")
    return sheets[0]


def check_tokens(config: Settings, seq: int | None) -> int:
    """Return the tokens of a sequence: as requested, else as many as the model takes. Raises InputError for more than
    the model takes, for fewer than its tower gives, and where neither is given."""
    whole, config = config, decoder_settings(config)
    most = next((limit for limit in map(config.get, POSITION_KEYS) if isinstance(limit, int)), None)
    endless = "rope_theta" in config or config.get("model_type") == "t5"  # it has distances alone
    if seq is not None and most is not None and seq > most and not endless:
        raise InputError(f"--seq {seq}: the model has {most} positions: at most {most} tokens a sequence")
    if (tokens := seq or most) is not None:
        check_tower_rows(whole, tokens, f"--seq {tokens}")
        return tokens
    raise InputError("--seq: the configuration declares no sequence length: give a number of tokens")


def check_lengths(config: Settings, seq: int | Mapping[int, float] | None) -> tuple[int, LengthMix | None]:
    """Return the tokens of the longest sequence, and the shares of lengths where there are several. Raises InputError
    as `check_tokens` and `mix_lengths` do."""
    if not isinstance(seq, Mapping):
        return check_tokens(config, seq), None
    lengths = mix_lengths(seq)
    return check_tokens(config, lengths.longest), lengths


def refuse_memory(found: FoundStrategies) -> None:
    """Raise InputError where no strategy fits: how much memory is missing, and what helps most."""
    form, row, least = found.least
    question = found.question
    choice = PlanChoice(form, found.sizes.row(row), question.predicted(form, found.sizes.row(row)))
    parts = {name: float(size) for name, size in choice.prediction.memory.items()}
    largest = max(parts, key=lambda name: parts[name])
    more = devices_that_fit(question)
    helps = f"{more} devices would do" if more else f"--memory {least / 1e9:.1f} would do"
    raise InputError(
        f"--memory {question.room / 1e9:g}: no strategy of {question.devices} devices fits: "
        f"{(least - question.room) / 1e9:.1f} GB are missing for {choice}, which needs the least, "
        f"{least / 1e9:.1f} GB, {parts[largest] / 1e9:.1f} of them {largest}; {helps}"
    )


def devices_that_fit(question: PlanQuestion) -> int | None:
    """Return a sufficient number of devices, found by doubling; None if 64 times as many do not suffice."""
    form = StrategyForm(*("none", 0) if question.infer else ("full", 3), USUAL_SCHEDULE.name, "ring", True)
    for factor in (2, 4, 8, 16, 32, 64):
        other = replace(question, devices=question.devices * factor)
        try:
            strategies = search_strategies(other, forms=[form, form._replace(sequence=False)])
        except InputError:
            continue
        if strategies.fit:
            return other.devices
    return None
