"""`predict`: the time and memory of a step of training, by a strategy on a machine, part by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from formats.core.errors import InputError
from formats.machine.datasheets import Datasheet, datasheet
from opmatrix.models import known
from opmatrix.models.config import Settings
from opmatrix.parallel.cost.constants import Constants, load_constants
from opmatrix.parallel.cost.layer_work import ModelWork, model_work
from opmatrix.parallel.cost.legality import check_legal, check_named_choices
from opmatrix.parallel.cost.memory_parts import MEMORY_KINDS, block_share, driver_bytes, memory_parts, reserved_bytes
from opmatrix.parallel.cost.quantities import Quantity
from opmatrix.parallel.cost.step_parts import Setting, step_parts, sum_parts
from opmatrix.parallel.cost.strategies import BLOCK_AGAIN, Strategy


@dataclass(frozen=True)
class Prediction:
    """Seconds of a step by part, and bytes of the fullest device by part; the parts of each add up to the total."""

    setting: Setting
    seconds: Mapping[str, Quantity]
    memory: Mapping[str, Quantity]

    @property
    def step_seconds(self) -> Quantity:
        """The seconds of a step: the sum of the parts."""
        return sum_parts(self.seconds)

    @property
    def allocated(self) -> Quantity:
        """The bytes that the fullest device allocates: the sum of the parts."""
        return sum_parts(self.memory)

    @property
    def reserved(self) -> Quantity:
        """The bytes that the allocator reserves for them."""
        return reserved_bytes(self.setting, self.allocated)

    @property
    def driver(self) -> Quantity:
        """The bytes that the driver reports of the device, which decide what fits."""
        return driver_bytes(self.setting, self.allocated)

    def bytes_of(self, kind: str) -> Quantity:
        """Return the bytes of a kind of memory, one of `MEMORY_KINDS`."""
        sizes = dict(zip(MEMORY_KINDS, (self.allocated, self.reserved, self.driver), strict=True))
        return sizes[kind]


def read_work(model: str | Settings, strategy: Strategy, dropout: float = 0) -> ModelWork:
    """Read the work of a model, given by name or configuration, under a strategy."""
    config = known.configuration(model) if isinstance(model, str) else model
    return model_work(config, strategy.context, strategy.sequence, dropout)


def predict(
    model: str | Settings | ModelWork,
    machine: str | Datasheet,
    strategy: Strategy,
    batch: Quantity,
    seq: Quantity,
    *,
    dropout: float = 0,
    constants: Constants | None = None,
) -> Prediction:
    """Predict the time and memory of a step. Numbers of the strategy, `batch` and `seq` may be arrays or symbols: then
    the results are, too. Raises InputError for a machine without links, for a model without a backward pass, and for a
    strategy of numbers that is not legal."""
    check_named_choices(strategy)
    sheet = datasheet(machine) if isinstance(machine, str) else machine
    work = model if isinstance(model, ModelWork) else read_work(model, strategy, dropout)
    check_legal(work, strategy, batch, seq)
    return predict_step(Setting(work, sheet, strategy, batch, seq, constants or load_constants()))


def predict_step(setting: Setting) -> Prediction:
    """Predict the time and memory of a step from a complete setting. Raises InputError for a machine without links."""
    check_linked(setting.machine)
    if setting.strategy.recompute == BLOCK_AGAIN and setting.strategy.again is None:
        setting = setting._replace(strategy=replace(setting.strategy, again=block_share(setting)))
    return Prediction(setting, step_parts(setting), memory_parts(setting))


def check_linked(sheet: Datasheet) -> None:
    """Raise InputError for a machine whose data sheet states no links between devices."""
    if not sheet.links:
        raise InputError(
            f"{sheet.name}: its data sheet declares no links between devices: add `links` (docs/add_a_machine.md)"
        )
