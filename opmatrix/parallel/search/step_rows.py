"""Measured steps of training as a table: a row each, with its strategy, its seconds and its memory."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from formats.core.errors import InputError
from formats.machine.datasheets import Datasheet, datasheet
from opmatrix.models import known
from opmatrix.models.config import Settings
from opmatrix.parallel.axes.known_axes import DEVICE_AXES
from opmatrix.parallel.cost.strategies import Strategy

TableRow = Mapping[str, str]
COUNTS = "dp", "tp", "pp", "cp", "ep", "virtual", "micro_batch"
NEEDED = "config", "machine", "devices", "global_batch", "seq", *COUNTS
YES = "yes", "true", "1"
GIB = 2.0**30


class StepRow(NamedTuple):
    """A measured step of training."""

    source: str  # publication
    model: str  # name of the configuration
    config: Settings
    machine: Datasheet
    strategy: Strategy
    batch: int  # sequences of a step
    seq: int  # tokens of a sequence
    seconds: float | None  # seconds of a step
    memory: float | None  # bytes by the driver
    failed: bool  # memory did not suffice
    precision: str  # number type of products
    notes: str


def read_step_rows(file: Path) -> list[StepRow]:
    """Read a table of measured steps. Configurations are those of the file beside it whose name ends in
    .configs.json, or well-known ones. Raises InputError for a column or a configuration that is missing."""
    with file.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    if not rows:
        raise InputError(f"{file}: it has no rows: give a table of measured steps")
    for name in NEEDED:
        if name not in rows[0]:
            raise InputError(f"{file}: column {name} is missing: give a table of measured steps")
    beside = file.with_suffix(".configs.json")
    configs = json.loads(beside.read_text("utf-8")) if beside.exists() else {}
    return [read_step_row(row, configs, f"{file}, row {at}") for at, row in enumerate(rows, 1)]


def read_step_row(row: TableRow, configs: Mapping[str, Settings], place: str) -> StepRow:
    """Read one row. `configs`: configurations by name; `place`: the row, in errors."""
    strategy, batch, seq = read_strategy(row, place), whole_number(row, "global_batch", place), seq_of(row, place)
    name = row["config"]
    return StepRow(
        row.get("source", ""),
        name,
        configs[name] if name in configs else known.configuration(name),
        datasheet(row["machine"]),
        strategy,
        batch,
        seq,
        measured_seconds(row, strategy, batch * seq),
        measured_bytes(row),
        "out of memory" in row.get("notes", ""),
        row.get("precision") or "bf16",
        row.get("notes", ""),
    )


def seq_of(row: TableRow, place: str) -> int:
    """Return the tokens of a sequence."""
    return whole_number(row, "seq", place)


def whole_number(row: TableRow, name: str, place: str) -> int:
    """Read a count. Raises InputError for a value that is no whole number from 1 on."""
    text = row[name] or "1"
    if not text.isdigit() or int(text) < 1:
        raise InputError(f"{place}: {name} is {text!r}: give a whole number from 1 on")
    return int(text)


def decimal(row: TableRow, name: str) -> float | None:
    """Read a positive number, None where the row has none."""
    try:
        value = float(row.get(name) or "")
    except ValueError:
        return None
    return value if value > 0 else None


def read_strategy(row: TableRow, place: str) -> Strategy:
    """Read the strategy of a row. Raises InputError where its ranks are not the devices."""
    sizes = {name: whole_number(row, name, place) for name in COUNTS}
    strategy = Strategy(
        **sizes,
        zero=int(row.get("zero") or 0),
        sequence=row.get("sequence", "").lower() in YES,
        recompute=row.get("recompute") or "none",  # type: ignore[arg-type]
        context=row.get("context") or "ring",
        schedule=row.get("schedule") or "1f1b",
        flash=True,
    )
    ranks, devices = strategy.devices, whole_number(row, "devices", place)
    if ranks != devices:
        spelled = " x ".join(f"{axis.name} {sizes[axis.name]}" for axis in DEVICE_AXES)
        raise InputError(f"{place}: {spelled} are {ranks} ranks, and the row has {devices} devices")
    return strategy


def measured_seconds(row: TableRow, strategy: Strategy, tokens: int) -> float | None:
    """Return the seconds of a step: as measured, or by tokens a second and device."""
    rate = decimal(row, "tokens_s_device")
    return decimal(row, "step_s") or (tokens / (rate * float(strategy.devices)) if rate else None)


def measured_bytes(row: TableRow) -> float | None:
    """Return the bytes of the fullest device."""
    size = decimal(row, "memory")
    unit = GIB if "GiB" in row.get("memory_kind", "") else 1e9
    return None if size is None else size * unit
