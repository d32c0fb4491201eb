"""What an exploration begins with: a model, a batch, a machine and laws, as people give them."""
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
from rewrites.egraph.layers import Model
from rewrites.laws import EXACT_LAWS
from rewrites.laws.law import Law
from rewrites.lowering.price import TimeModel
from rewrites.opened import Opened
from rewrites.search.planned import shapes, weightless
from rewrites.verify.user_laws import admit_laws, load_laws
from rewrites.workload.phases import silence_stdout
from rewrites.workload.resolve import calibrated, open_arguments
from rewrites.workload.workload import Workload, draw_workload

AnyBatch = int | str | Sequence[int] | Batch | Workload | None
MachineName = str | TimeModel | None
STAND_IN = "A100"                                           # the data sheet where this machine is not calibrated
SENTENCES = re.compile(r"(?:(\d+)x)?(\d+)")
MOST_TOKENS, MOST_DIGITS = 1_000_000, 9                     # of a batch that is explored, all sentences together


def open_exploration(model: str | Model, batch: AnyBatch, machine: MachineName,
                     laws: Sequence[Law] | None) -> tuple[Opened, str, tuple[str, ...], str]:
    """The model that is explored, what is to be said of its prices, a line for each law that is left out, and how it
    is called."""
    name = model if isinstance(model, str) else "operator"
    if isinstance(model, str) and weightless(model): model = shapes(model)
    tokens = batch if isinstance(batch, int) else None
    if tokens is not None: check_token_count(tokens)
    workload = None if batch is None or isinstance(batch, int) else read_batch(batch)
    operator, drawn, meta = open_arguments(model, workload, None, tokens)
    found, note = resolve_machine(machine, drawn)
    usable, left_out = admit_laws(EXACT_LAWS if laws is None else laws)
    opened, failed = Opened(operator, drawn, found, usable, meta).leave_out_failing()
    return opened, note, (*left_out, *failed), name


def read_batch(batch: str | Sequence[int] | Batch | Workload) -> Batch | Workload:
    """Lengths as a batch of tokens 0; a batch and a workload as they are. Raises InputError."""
    if isinstance(batch, Batch | Workload): return batch
    if isinstance(batch, str):
        if not (found := SENTENCES.fullmatch(batch)):
            raise InputError(f"batch {batch!r:.60}: give a number of tokens, sentences x tokens such as 8x128, "
                             "lengths, or a Batch")
        if max(map(len, filter(None, found.groups()))) > MOST_DIGITS: refuse_large(batch)
        count, length = int(found[1] or 1), int(found[2])
        if count * length > MOST_TOKENS: refuse_large(batch)
        batch = [length] * count
    lengths = [*batch]
    if not lengths or not all(isinstance(each, int | np.integer) and each > 0 for each in lengths):
        raise InputError(f"batch {lengths!r:.60}: lengths are whole numbers from 1 on, one for each sentence")
    if sum(lengths) > MOST_TOKENS: refuse_large(f"of {len(lengths)} sentences")
    return Batch([np.zeros(length, int) for length in lengths])


def refuse_large(batch: str) -> NoReturn:
    """Raises InputError for more tokens than are explored."""
    raise InputError(f"batch {batch:.60}: explore takes at most {MOST_TOKENS:,} tokens in all: "
                     "ask for fewer")


def check_token_count(tokens: int) -> None:
    """Raises InputError for a number of tokens that no batch has."""
    if tokens < 1: raise InputError(f"explore: {tokens} tokens: at least 1")
    if tokens > MOST_TOKENS: refuse_large(f"of {tokens} tokens" if tokens < 10 ** MOST_DIGITS else "of so many tokens")


def resolve_workload(opened: Opened, batch: AnyBatch) -> Workload:
    """Another batch for a model that is open."""
    if batch is None: return opened.workload
    if isinstance(batch, int):
        check_token_count(batch)
        batch = [batch]
    return draw_workload(read_batch(batch), opened.model)


def resolve_machine(machine: MachineName, workload: Workload) -> tuple[TimeModel, str]:
    """A machine, and what is to be said of its prices. Raises InputError for a data sheet that there is not."""
    if isinstance(machine, str):
        sheet: Datasheet = datasheet(machine)
        return sheet, f"prices are lower bounds of {sheet.name}'s data sheet; nothing was run"
    if machine is not None: return machine, ""
    if not machine_file().exists():
        sheet = datasheet(STAND_IN)
        return sheet, (f"this machine is not calibrated: prices are lower bounds of {sheet.name}'s data sheet; run "
                       "`opmatrix calibrate`, which takes a minute")
    with silence_stdout(): return calibrated(lambda *_: None, *(each for _, each in workload.shares)), ""


def own_laws(given: Sequence[Law | str | Path], known: Sequence[Law]) -> tuple[tuple[Law, ...], tuple[str, ...]]:
    """Laws of one's own that can be used, each tried, and a line for each that is left out. Raises InputError for a
    wrong one, and for a name that is taken."""
    laws, taken = list[Law](), {law.name for law in known}
    for each in given:
        if isinstance(each, Law): laws.append(each)
        elif isinstance(each, str | Path): laws += load_laws(each).laws
        else: raise InputError(f"{each!r:.60} is no law: put @law(...) before a function, or give a file of laws")
    for law in laws: refuse_name(law, taken)
    return admit_laws(laws)


def refuse_name(law: Law, taken: set[str]) -> None:
    """Raises InputError for a law whose name another has."""
    if law.name in taken: raise InputError(f"law {law.name}: there is one of that name: give it another")


def check_names(names: Sequence[str], laws: Sequence[Law]) -> None:
    """Raises InputError for a law that there is not, with one that is near."""
    known = [law.name for law in laws]
    if not names: raise InputError("name a law: there are " + ", ".join(sorted(known)))
    if (wrong := next((name for name in names if name not in known), None)) is not None:
        raise InputError(f"law {wrong!r:.60}: there is none of that name here; {suggest_name(str(wrong), known)}"
                         f"there are {', '.join(sorted(known))}")


def check_part(number: int, count: int) -> int:
    """A part's number. Raises InputError where there is none."""
    if not 0 <= number < count: raise InputError(f"part {number}: the model has parts 0 to {count - 1}")
    return number
