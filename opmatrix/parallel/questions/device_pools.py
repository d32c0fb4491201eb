"""A pool of devices: one phase of inference or training, with the strategy of the highest rate on any number of
devices, and a bound on that rate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import NamedTuple

from formats.core.errors import InputError
from opmatrix.parallel.axes.known_axes import PLANNED_AXES
from opmatrix.parallel.cost.step_parts import Setting
from opmatrix.parallel.search.forms import StrategyForm
from opmatrix.parallel.search.inference import cache_bytes
from opmatrix.parallel.search.legal_sizes import axis_sizes
from opmatrix.parallel.search.plans import PlanChoice, model_operations
from opmatrix.parallel.search.strategy_search import FormPrograms, PlanQuestion, compile_forms, search_strategies


class PoolShare(NamedTuple):
    """A strategy of a pool on a number of devices."""

    devices: int
    batch: int  # sequences at a time
    choice: PlanChoice
    rounds: int = 1  # how often its prediction runs for a batch: a decode pool, once a token

    @property
    def period(self) -> float:
        """Seconds of the pool for one sequence."""
        return self.rounds * self.choice.seconds / self.batch


@dataclass(frozen=True)
class DevicePool:
    """A phase that is planned for any number of devices. Where its batch is free, as many sequences are run at a time
    as give the highest rate."""

    name: str
    question: PlanQuestion  # on all devices, of the largest batch
    free_batch: bool = True
    rounds: int = 1
    within: float = inf  # seconds of its prediction, at most: of a prefill pass, or of a token
    known: dict[int, PoolShare | None] = field(default_factory=dict, compare=False)

    @cached_property
    def forms(self) -> tuple[StrategyForm, ...]:
        """The forms of its strategies."""
        return tuple(self.question.forms)

    @cached_property
    def programs(self) -> FormPrograms:
        """The compiled formulas, for all batches and numbers of devices."""
        return compile_forms(self.question, self.forms)

    def batches(self, devices: int) -> list[int]:
        """Return the numbers of sequences that are tried at a time: powers of two, and these times the devices, up to
        the batch; of a rollout those that divide the batch, as a step runs all of it."""
        most = self.question.batch
        if not self.free_batch:
            return [most]
        steps = {1 << power for power in range(most.bit_length())}
        counts = {most, *(step * unit for step in steps for unit in (1, devices) if step * unit <= most)}
        return sorted(count for count in counts if self.question.phase != "rollout" or most % count == 0)

    def shares(self, devices: int, keep: int) -> Iterator[PoolShare]:
        """Yield the fastest strategies on a number of devices, up to `keep` ways to factor them for each batch."""
        for batch in self.batches(devices):
            question = replace(self.question, devices=devices, batch=batch)
            if not any(axis_sizes(question.limits, devices, batch, question.mix.divided)):
                continue
            try:
                strategies = search_strategies(question, forms=self.forms, programs=self.programs)
            except InputError:  # no strategy has the sizes that are fixed
                continue
            for row in strategies.best_rows(keep):
                if strategies.seconds[row] <= self.within:
                    form, sizes = self.forms[strategies.forms[row]], strategies.sizes.row(row)
                    choice = PlanChoice(form, sizes, question.predicted(form, sizes))
                    yield PoolShare(devices, batch, choice, self.rounds)

    def best_on(self, devices: int) -> PoolShare | None:
        """Return the strategy with the highest rate on a number of devices; None where none fits."""
        if devices not in self.known:
            self.known[devices] = min(self.shares(devices, 1), key=lambda share: share.period, default=None)
        return self.known[devices]

    def least_period(self, devices: int) -> float:
        """Return seconds that no strategy undercuts for one sequence: all operations at the full rate of the machine,
        and for tokens that follow the reading of keys and values."""
        question = self.question
        work, rate = question.work(StrategyForm()), question.machine.peak(question.precision)
        if question.phase != "decode":
            return model_operations(work, 1, question.seq, question.infer, question.flash) / (devices * rate)
        work = work._replace(source=0)  # a tower has run
        operations = model_operations(work, 1, 1, True, question.flash)
        met = whole_setting(question)._replace(seq=question.seq - question.reply / 2)
        read = cache_bytes(met, question.limits.head)
        return self.rounds * (operations / rate + float(read) / question.machine.memory[-1][2]) / devices


def whole_setting(question: PlanQuestion) -> Setting:
    """Return the setting of one sequence on one device, which has all of the model."""
    ones = dict.fromkeys((*(axis.name for axis in PLANNED_AXES), "micro_batch", "virtual"), 1)
    return replace(question, devices=1, batch=1).predicted(StrategyForm(), ones).setting
