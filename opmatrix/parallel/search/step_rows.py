"""Measured steps of training as a table: a row each, with its strategy, its seconds and its memory."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from formats.core.errors import InputError
from formats.machine.datasheets import Datasheet, datasheet
from opmatrix.models import known
from opmatrix.models.config import Settings
from opmatrix.parallel.axes.known_axes import DEVICE_AXES
from opmatrix.parallel.cost.stacks import SoftwareStack, stack_named, stack_of_source
from opmatrix.parallel.cost.strategies import Strategy

TableRow = Mapping[str, str]
RANK_COUNTS = "dp", "tp", "pp", "cp", "ep", "virtual", "micro_batch"
NEEDED = "config", "machine", "devices", "global_batch", "seq", *RANK_COUNTS
YES = "yes", "true", "1"
GIB = 2.0**30
KIND_WORDS = {
    "allocated": "allocated",
    "active": "allocated",
    "reserved": "reserved",
    "smi": "driver",
    "driver": "driver",
}
CAP = re.compile(r"\b(\d{2,4}) ?W\b")  # a power cap in notes


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
    memory: float | None  # bytes of the fullest device
    memory_kind: str  # one of MEMORY_KINDS; empty if the row does not say it
    failed: bool  # memory did not suffice
    stack: SoftwareStack
    notes: str
    plain: Strategy  # the strategy without habits of the stack


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


def read_step_row(
    row: TableRow, configs: Mapping[str, Settings], place: str, sheets: Mapping[str, Datasheet] | None = None
) -> StepRow:
    """Read one row. `configs`: configurations by name; `place`: the row, in errors; `sheets`: machines by name, besides
    those of the package."""
    stack, plain = read_stack(row), read_strategy(row, place)
    strategy = stack.habits(plain)
    batch, seq = (whole_number(row, column, place) for column in ("global_batch", "seq"))
    name = row["config"]
    return StepRow(
        row.get("source", ""),
        name,
        configs[name] if name in configs else known.configuration(name),
        read_sheet(row, sheets or {}),
        strategy,
        batch,
        seq,
        measured_seconds(row, strategy, batch * seq),
        measured_bytes(row),
        memory_kind(row.get("memory_kind", "")),
        "out of memory" in row.get("notes", ""),
        stack,
        row.get("notes", ""),
        plain,
    )


def read_stack(row: TableRow) -> SoftwareStack:
    """Return the stack of a row: that of its column, or the one that its source and notes name. Gradients that a row
    says are summed in float32 are."""
    stated = row.get("stack")
    stack = stack_named(stated) if stated else stack_of_source(row.get("source", ""), row.get("notes", ""))
    return replace(stack, gradient_bytes=4) if row.get("wide_gradients", "").lower() in YES else stack


def read_sheet(row: TableRow, sheets: Mapping[str, Datasheet]) -> Datasheet:
    """Return the data sheet of a row's machine; a power cap that the row states replaces the watts."""
    name = row["machine"]
    sheet, watts = sheets[name] if name in sheets else datasheet(name), decimal(row, "watts")
    stated = CAP.search(row.get("notes", ""))
    cap = watts or (float(stated[1]) if stated else None)
    return replace(sheet, watts=cap) if cap else sheet


def whole_number(row: TableRow, name: str, place: str) -> int:
    """Read a count. Raises InputError for a value that is no whole number from 1 on."""
    text = row.get(name) or "1"
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
    sizes = {name: whole_number(row, name, place) for name in RANK_COUNTS}
    strategy = Strategy(
        **sizes,  # type: ignore[arg-type]
        zero=int(row.get("zero") or 0),
        sequence=row.get("sequence", "").lower() in YES,
        recompute=row.get("recompute") or "none",  # type: ignore[arg-type]
        context=row.get("context") or "ring",
        schedule=row.get("schedule") or "1f1b",
        flash=True,
        precision=number_type(row.get("precision") or "bf16"),
    )
    ranks, devices = strategy.devices, whole_number(row, "devices", place)
    if ranks != devices:
        spelled = " x ".join(f"{axis.name} {sizes[axis.name]}" for axis in DEVICE_AXES)
        raise InputError(f"{place}: {spelled} are {ranks} ranks, and the row has {devices} devices")
    return strategy


def number_type(text: str) -> str:
    """Return the number type of products by any spelling of publications: FP8-CS, MXFP8, amp_fp8, float8, bf16."""
    lowered = text.lower()
    if "mx" in lowered:
        return "mxfp8"
    if "8" in lowered.replace("float", "fp").replace("fp32", ""):
        return "fp8"
    return "float16" if "16" in lowered and "b" not in lowered else "bf16"


def measured_seconds(row: TableRow, strategy: Strategy, tokens: int) -> float | None:
    """Return the seconds of a step: as measured, or by tokens a second and device."""
    rate = decimal(row, "tokens_s_device")
    return (
        decimal(row, "step_s")
        or decimal(row, "seconds")
        or (tokens / (rate * float(strategy.devices)) if rate else None)
    )


def memory_kind(text: str) -> str:
    """Return the kind of memory that a text names; empty for a text that names none.

    >>> memory_kind("nvidia-smi GiB"), memory_kind("max reserved GiB"), memory_kind("GB")
    ('driver', 'reserved', '')"""
    return next((kind for words, kind in KIND_WORDS.items() if words in text.lower()), "")


def measured_bytes(row: TableRow) -> float | None:
    """Return the bytes of the fullest device."""
    size = decimal(row, "memory")
    unit = GIB if "GiB" in row.get("memory_kind", "") else 1e9
    return None if size is None else size * unit
