"""`plan`: the fastest strategies of a model on so many devices of a machine, and what each takes, holds and costs."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from formats.core.errors import InputError
from formats.machine.datasheets import Datasheet, datasheet, datasheets
from opmatrix import body
from opmatrix.display.progress import unheard
from opmatrix.models import known
from opmatrix.models.config import Settings
from opmatrix.parallel.cost.constants import Constants
from opmatrix.parallel.cost.layer_work import ModelWork
from opmatrix.parallel.cost.prediction import Prediction, check_linked
from opmatrix.parallel.schedules.named import USUAL_SCHEDULE
from opmatrix.parallel.search.forms import StrategyForm
from opmatrix.parallel.search.strategy_search import FoundStrategies, PlanQuestion, search_strategies

BEST_KEPT = 10
CARBON = 473.0                                              # grams of CO2 a kWh: the world's mean of 2024 (Ember 2025,
                                                            # Global Electricity Review)
KINDS_OF_TIME = {"computation": ("computation", "loss", "host", "turns"),
                 "communication": (),                       # all that is nothing else
                 "synchronisation": ("synchronisation", "waiting"), "bubble": ("bubble",), "optimiser": ("optimiser",)}
FACTORS = 0.5, 2.0                                          # of links and memory, for what a plan is sensitive to


class PlanChoice(NamedTuple):
    """A strategy: its form, its sizes, what it takes and holds."""
    form: StrategyForm
    sizes: Mapping[str, int]
    prediction: Prediction

    @property
    def seconds(self) -> float: return float(self.prediction.step_seconds)
    @property
    def bytes(self) -> float: return float(self.prediction.reserved)

    def __str__(self) -> str:
        own = self.sizes
        axes = [f"{name} {own[name]}" for name in ("tp", "cp", "pp", "dp", "ep") if own[name] > 1] or ["one device"]
        more = [f"micro-batch {own['micro_batch']}"]
        if own["virtual"] > 1: more.append(f"{own['virtual']} chunks a stage")
        elif own["pp"] > 1: more.append(self.form.schedule)
        if self.form.zero: more.append(f"ZeRO {self.form.zero}")
        if self.form.sequence: more.append("norms cut")
        if own["cp"] > 1: more.append(self.form.context)
        if self.form.recompute != "none": more.append(f"{self.form.recompute} again")
        return f"{' × '.join(axes)}; {', '.join(more)}"

    def grouped(self) -> dict[str, float]:
        """Seconds of a step by kind; they add up to it."""
        found = dict.fromkeys(KINDS_OF_TIME, 0.0)
        for part, seconds in self.prediction.seconds.items(): found[group_of(part)] += float(seconds)
        return found


def group_of(part: str) -> str:
    """The kind of a part of a step."""
    return next((name for name, starts in KINDS_OF_TIME.items() if part.startswith(starts)), "communication")


@dataclass(frozen=True)
class StrategyPlan:
    """The best strategies, the fastest first, one for each way to factor the devices over axes."""
    name: str
    question: PlanQuestion
    found: FoundStrategies
    best: tuple[PlanChoice, ...]
    carbon: float = CARBON

    @cached_property
    def model_operations(self) -> float:
        """Operations of a step, forward and backward, of which none is computed again: what a utilisation counts."""
        return model_operations(self.question.work(StrategyForm()), self.question.batch, self.question.seq,
                                self.question.infer)

    def utilisation(self, choice: PlanChoice) -> float:
        """The share of the devices' rate that goes into the model's own operations."""
        rate = self.question.machine.product_rate(self.question.precision)[0]
        return self.model_operations / (choice.seconds * self.question.devices * rate)

    def tokens_a_second(self, choice: PlanChoice) -> float:
        """Tokens of each device."""
        return self.question.batch * self.question.seq / (choice.seconds * self.question.devices)

    def costs(self, choice: PlanChoice, tokens: float = 1e9) -> dict[str, float]:
        """What so many tokens take: device-hours, and where the data sheet states power and price kilowatt-hours of
        devices under load, kilograms of CO2 and dollars."""
        own = self.question
        hours = tokens / self.tokens_a_second(choice) / 3600
        found = {"device-hours": hours}
        if own.machine.watts is not None:
            found["kWh"] = hours * own.machine.watts / 1000
            found["kg of CO2"] = found["kWh"] * self.carbon / 1000
        if own.machine.hourly is not None: found["dollars"] = hours * own.machine.hourly
        return found

    def seconds_on(self, machine: Datasheet, choice: PlanChoice) -> float:
        """Seconds of a strategy where the machine is another one."""
        return float(replace(self.question, machine=machine).predicted(choice.form, choice.sizes).step_seconds)

    def sensitivity(self, choice: PlanChoice) -> Iterator[tuple[str, float, float]]:
        """What is changed, and how many times as long a step takes with half of it and with twice as much."""
        for what, change in CHANGES.items():
            low, high = (self.seconds_on(change(self.question.machine, factor), choice) / choice.seconds
                         for factor in FACTORS)
            yield what, low, high

    def __str__(self) -> str:
        text: str = body("parallel.search.plan_text.plan_text")(self)
        return text


def scale_links(sheet: Datasheet, bandwidth: float = 1, latency: float = 1, first: int = 0,
                last: int | None = None) -> Datasheet:
    """A machine whose links, from a level to another, are so many times as wide, or as slow to answer."""
    chosen = range(*slice(first, last).indices(len(sheet.links)))
    return replace(sheet, links=tuple(
        link._replace(bandwidth=link.bandwidth * bandwidth, latency=link.latency * latency) if at in chosen else link
        for at, link in enumerate(sheet.links)))


def scale_memory(sheet: Datasheet, by: float) -> Datasheet:
    """A machine whose memory is read so many times as fast."""
    *near, (name, room, rate) = sheet.memory
    return replace(sheet, memory=(*near, (name, room, rate * by)))


CHANGES: Mapping[str, Callable[[Datasheet, float], Datasheet]] = {
    "bandwidth of the nearest links": lambda sheet, by: scale_links(sheet, bandwidth=by, last=1),
    "bandwidth of all farther links": lambda sheet, by: scale_links(sheet, bandwidth=by, first=1),
    "latency of links": lambda sheet, by: scale_links(sheet, latency=by),
    "bandwidth of memory": scale_memory,
    "rate of products": lambda sheet, by: replace(sheet, matrix={k: by * rate for k, rate in sheet.matrix.items()})}


def model_operations(work: ModelWork, batch: int, seq: int, forward: bool = False) -> float:
    """Operations of a batch forward and backward, or forward alone, of a model that one device has whole."""
    sizes = {"b": 1, "s": seq, "t": 1, "c": 1, "e": 1}
    layers = [(work.first, 1), *work.layers, (work.last, 1)]
    return batch * sum(count * 2 * each.count * float(
        each.rows.at(sizes) * each.inner.at(sizes) * each.cols.at(sizes) * each.batch.at(sizes))
        for layer, count in layers for each in layer.products
        if not each.again and (not forward or each.during == "forward"))


def plan(model: str | Settings, devices: int, machine: str | Datasheet, *, batch: int, seq: int | None = None,
         memory: float | None = None, infer: bool = False, flash: bool = True,
         precision: str = "bf16", keep: int = BEST_KEPT, carbon: float = CARBON, constants: Constants | None = None,
         name: str | None = None, heard: Callable[..., None] = unheard) -> StrategyPlan:
    """The fastest strategies of a MODEL, a well-known name or a configuration, on so many devices of a machine, a name
    or a data sheet: `batch` sequences a step of `seq` tokens, the most that the model takes without it. `memory`: bytes
    of a device, by its data sheet without it. `infer`: a forward pass in place of a step of training. `keep`:
    how many; `carbon`: grams of CO2 a kWh. Nothing is run. Raises InputError for what cannot be planned, and where no
    strategy fits the memory."""
    config = known.configuration(model) if isinstance(model, str) else model
    sheet = read_machine(machine) if isinstance(machine, str) else machine
    if devices > 1: check_linked(sheet)
    tokens = check_tokens(config, seq)
    question = PlanQuestion(config, sheet, devices, batch, tokens, memory or sheet.memory[-1][1], flash,
                            precision, constants, infer)
    found = search_strategies(question, heard)
    if not found.fit: refuse_memory(found)
    best = [PlanChoice(form, sizes, question.predicted(form, sizes)) for form, sizes in (
        (question.forms[found.forms[row]], found.sizes.row(row)) for row in found.best_rows(keep))]
    said = model if isinstance(model, str) else str(config.get("model_type", "model"))
    return StrategyPlan(name or said, question, found, tuple(best), carbon)


def read_machine(name: str) -> Datasheet:
    """A machine or a cluster by name, or the only one of a .json file as docs/add_a_machine.md has it. Raises
    InputError for what is none."""
    if not name.endswith(".json"): return datasheet(name)
    try: found = [*datasheets(Path(name)).values()]
    except (OSError, ValueError) as error:
        raise InputError(f"--machine {name}: {str(error).removeprefix(f'{name}: ')}") from None
    if len(found) != 1: raise InputError(f"--machine {name}: it has {len(found)} machines: give a file of one")
    return found[0]


def check_tokens(config: Settings, seq: int | None) -> int:
    """How many tokens a sequence has: as asked, else as many as the model takes. Raises InputError for more than these,
    and where neither says."""
    most = next((each for each in map(config.get, ("max_position_embeddings", "n_positions"))
                 if isinstance(each, int)), None)
    if seq is not None and most is not None and seq > most and "rope_theta" not in config:
        raise InputError(f"--seq {seq}: the model has {most} positions: at most {most} tokens a sequence")
    if (found := seq or most) is not None: return found
    raise InputError("--seq: the configuration does not say how long sequences are: give a number of tokens")


def refuse_memory(found: FoundStrategies) -> None:
    """Raises InputError where no strategy fits: how much is missing, and what helps most."""
    form, row, least = found.least
    question = found.question
    choice = PlanChoice(form, found.sizes.row(row), question.predicted(form, found.sizes.row(row)))
    parts = {name: float(size) for name, size in choice.prediction.memory.items()}
    largest = max(parts, key=lambda name: parts[name])
    more = devices_that_fit(question)
    helps = f"{more} devices would do" if more else f"--memory {least / 1e9:.1f} would do"
    raise InputError(f"--memory {question.room / 1e9:g}: no strategy of {question.devices} devices fits: "
                     f"{(least - question.room) / 1e9:.1f} GB are missing for {choice}, which needs the least, "
                     f"{least / 1e9:.1f} GB, {parts[largest] / 1e9:.1f} of them {largest}; {helps}")


def devices_that_fit(question: PlanQuestion) -> int | None:
    """How many times as many devices are enough, doubling them; None where a hundred times as many are not."""
    form = StrategyForm(*("none", 0) if question.infer else ("full", 3), USUAL_SCHEDULE.name, "ring", True)
    for factor in (2, 4, 8, 16, 32, 64):
        other = replace(question, devices=question.devices * factor)
        try: found = search_strategies(other, forms=[form, form._replace(sequence=False)])
        except InputError: continue
        if found.fit: return other.devices
    return None
