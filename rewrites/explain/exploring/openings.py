"""The inputs of an exploration: a model, a batch, a machine and laws, in the forms that users pass."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from formats.core.errors import InputError, suggest_name
from formats.machine.datasheets import Datasheet
from formats.machine.model import machine_file
from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime.pricing import datasheet
from rewrites.laws import EXACT_LAWS
from rewrites.laws.law import Law
from rewrites.lowering.price import TimeModel
from rewrites.opened import Opened
from rewrites.search.planned import shapes, weightless
from rewrites.verify.user_laws import admit_laws, load_laws
from rewrites.workload.phases import silence_stdout
from rewrites.workload.resolve import AnyModel, calibrated, open_arguments
from rewrites.workload.workload import Workload, draw_workload

AnyBatch = int | str | Sequence[int] | Batch | Workload | None
MachineName = str | TimeModel | None
STAND_IN = "A100"  # the data sheet used if this machine is not calibrated
SENTENCES = re.compile(r"(?:(\d+)x)?(\d+)")
MOST_TOKENS, MOST_DIGITS = 1_000_000, 9  # tokens of all sentences together; digits of a number


def open_exploration(
    model: AnyModel, batch: AnyBatch, machine: MachineName, laws: Sequence[Law] | None
) -> tuple[Opened, str, tuple[str, ...], str]:
    """Return the opened model, a remark on its prices, a line for each law that is left out, and the name."""
    named = model
    if isinstance(model, str) and weightless(model):
        model = shapes(model)
    tokens = batch if isinstance(batch, int) else None
    if tokens is not None:
        check_token_count(tokens)
    workload = None if batch is None or isinstance(batch, int) else read_batch(batch)
    operator, drawn, meta = open_arguments(model, workload, None, tokens)
    time_model, note = resolve_machine(machine, drawn)
    usable, left_out = admit_laws(EXACT_LAWS if laws is None else laws)
    opened, failed = Opened(operator, drawn, time_model, usable, meta).leave_out_failing()
    return opened, note, (*left_out, *failed), named if isinstance(named, str) else str(meta["model"])


def read_batch(batch: str | Sequence[int] | Batch | Workload) -> Batch | Workload:
    """Return lengths as a batch of tokens 0; a batch or a workload unchanged. Raises InputError."""
    if isinstance(batch, Batch | Workload):
        return batch
    if isinstance(batch, str):
        if not (match := SENTENCES.fullmatch(batch)):
            raise InputError(
                f"batch {batch!r:.60}: give a number of tokens, sentences x tokens such as 8x128, lengths, or a Batch"
            )
        if max(map(len, filter(None, match.groups()))) > MOST_DIGITS:
            refuse_large(batch)
        count, length = int(match[1] or 1), int(match[2])
        if count * length > MOST_TOKENS:
            refuse_large(batch)
        batch = [length] * count
    lengths = [*batch]
    if not lengths or not all(isinstance(length, int | np.integer) and length > 0 for length in lengths):
        raise InputError(f"batch {lengths!r:.60}: lengths are whole numbers from 1 on, one for each sentence")
    if sum(lengths) > MOST_TOKENS:
        refuse_large(f"of {len(lengths)} sentences")
    return Batch([np.zeros(length, int) for length in lengths])


def refuse_large(batch: str) -> NoReturn:
    """Raise InputError for more tokens than can be explored."""
    raise InputError(f"batch {batch:.60}: explore takes at most {MOST_TOKENS:,} tokens in all: give fewer")


def check_token_count(tokens: int) -> None:
    """Raise InputError for a number of tokens that no batch has."""
    if tokens < 1:
        raise InputError(f"explore: {tokens} tokens: at least 1")
    if tokens > MOST_TOKENS:
        refuse_large(f"of {tokens} tokens" if tokens < 10**MOST_DIGITS else "of too many tokens")


def resolve_workload(opened: Opened, batch: AnyBatch) -> Workload:
    """Return the workload of another batch for an open model."""
    if batch is None:
        return opened.workload
    if isinstance(batch, int):
        check_token_count(batch)
        batch = [batch]
    return draw_workload(read_batch(batch), opened.model)


def resolve_machine(machine: MachineName, workload: Workload) -> tuple[TimeModel, str]:
    """Return a machine, and a remark on its prices. Raises InputError for an unknown data sheet."""
    if isinstance(machine, str):
        sheet: Datasheet = datasheet(machine)
        return sheet, f"prices are lower bounds of {sheet.name}'s data sheet; nothing was run"
    if machine is not None:
        return machine, ""
    if not machine_file().exists():
        sheet = datasheet(STAND_IN)
        return sheet, (
            f"this machine is not calibrated: prices are lower bounds of {sheet.name}'s data sheet; run "
            "`opmatrix calibrate`, which takes a minute"
        )
    with silence_stdout():
        return calibrated(lambda *_: None, *(batch for _, batch in workload.shares)), ""


def own_laws(given: Sequence[Law | str | Path], known: Sequence[Law]) -> tuple[tuple[Law, ...], tuple[str, ...]]:
    """Return the user's laws that can be used, after each was tried, and a line for each that is left out. Raises
    InputError for a wrong one, and for a name that is taken."""
    laws, taken = list[Law](), {law.name for law in known}
    for source in given:
        if isinstance(source, Law):
            laws.append(source)
        elif isinstance(source, str | Path):
            laws += load_laws(source).laws
        else:
            raise InputError(f"{source!r:.60} is not a law: put @law(...) before a function, or give a file of laws")
    for law in laws:
        refuse_name(law, taken)
    return admit_laws(laws)


def refuse_name(law: Law, taken: set[str]) -> None:
    """Raise InputError for a law whose name is taken."""
    if law.name in taken:
        raise InputError(f"law {law.name}: there is one of that name: give it another")


def check_names(names: Sequence[str], laws: Sequence[Law]) -> None:
    """Raise InputError for a law that does not exist, with a similar name."""
    known = [law.name for law in laws]
    if not names:
        raise InputError("name a law: there are " + ", ".join(sorted(known)))
    if (wrong := next((name for name in names if name not in known), None)) is not None:
        raise InputError(
            f"law {wrong!r:.60}: there is none of that name here; {suggest_name(str(wrong), known)}"
            f"there are {', '.join(sorted(known))}"
        )


def check_part(number: int, count: int) -> int:
    """Return a part's number. Raises InputError if there is no such part."""
    if not 0 <= number < count:
        raise InputError(f"part {number}: the model has parts 0 to {count - 1}")
    return number
