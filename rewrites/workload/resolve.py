"""A model as given, a checkpoint, an operator or several outputs by name, with the workload that its programs are
optimized for."""

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from formats.core.errors import InputError
from formats.disk.cache import location
from formats.disk.files import read_json
from formats.machine.local import learning
from formats.machine.model import Machine
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import collect_needs
from opmatrix.algebra.term import Operator
from opmatrix.files.checkpoint import Checkpoint, open_model
from opmatrix.files.end_tokens import end_tokens
from opmatrix.files.fetch import MODELS
from opmatrix.files.hub import is_hub_name
from opmatrix.files.saving import REPORT
from opmatrix.inference.pooling import MEAN
from opmatrix.runtime.pricing import this_machine
from opmatrix.runtime.program import Program
from opmatrix.runtime.scheme import Running
from rewrites.egraph.layers import Model, check_possible, find_vocabulary, outputs
from rewrites.lowering.mixed import Mix
from rewrites.lowering.phased import Generation, parse_generation
from rewrites.workload.phases import Tell
from rewrites.workload.workload import Workload, draw_workload

if TYPE_CHECKING:
    from torch.nn import Module

SOURCE_ENTRY, ADAPTER_ENTRY = "source", "adapter"  # entries of meta that are names of directories
IN_MEMORY = "memory:"  # begins the source of a program whose model was in memory; a digest follows
AnyModel: TypeAlias = "str | Model | Module | Checkpoint"  # accepted types of a model
AnyWorkload = Workload | Batch | Generation | str | Path | Mix  # accepted types of a workload


def open_arguments(
    model: AnyModel,
    workload: AnyWorkload | None,
    text: str | None,
    tokens: int | None,
    output: str = "pooled",
    adapter: str | Path | None = None,
) -> tuple[Model, Workload, dict[str, object]]:
    """Return the operator, its workload, and the meta of its programs, which records where the model comes from."""
    if isinstance(workload, str) and not Path(workload).exists():
        workload = parse_generation(workload) or workload
    if isinstance(model, Operator | Mapping):
        if adapter is not None:
            raise InputError(f"--adapter {adapter}: an operator has no names of weights: add it to a checkpoint")
        if isinstance(workload, str | Path):
            raise InputError(f"workload {workload}: an operator has no tokenizer for texts: give a batch")
        check_possible(model)
        first = next(iter(outputs(model).values()))
        entering = collect_needs(*outputs(model).values())[1]
        if (vocabulary := find_vocabulary(model)) is None and not entering:
            raise InputError(
                f"optimize: {first!r:.60} takes rows of any number of columns: a model begins with "
                "weight(table), on one-hot rows of tokens, or with an input, given(name, columns, space)"
            )
        if workload is None and entering:
            raise InputError(
                "optimize: this model has matrix inputs, which cannot be drawn: give a workload, Batch(.., inputs=..)"
            )
        batch = Batch([np.arange(tokens or 128) % (vocabulary or 1)]) if workload is None else workload
        return model, draw_workload(batch, model), {"model": "operator"}
    checkpoint = open_model(model, adapter)
    operator = checkpoint.operator(output == "pooled")
    if workload is None or isinstance(workload, str | Path):
        workload = Workload.of(checkpoint, text, tokens, None if workload is None else str(workload))
    elif isinstance(workload, Generation):
        workload = Workload.of(checkpoint, text, tokens, generation=workload)
    elif not isinstance(workload, Workload | Batch):
        workload = Workload.of(checkpoint, text, tokens, mix=workload)
    return operator, draw_workload(workload, operator), source(checkpoint)


def source(checkpoint: Checkpoint) -> dict[str, object]:
    """Return the meta of a checkpoint's programs: its place, and the entries that they need to read text."""
    tokenizer, pooling = checkpoint.tokenizer_text, checkpoint.pooling()
    config = {**checkpoint.config, "max_position_embeddings": checkpoint.positions}  # same name in all families
    return {
        "model": checkpoint.name,
        "config": config,
        SOURCE_ENTRY: name_origin(checkpoint),
        **({ADAPTER_ENTRY: relative(checkpoint.adapter.directory)} if checkpoint.adapter else {}),
        **({"head": checkpoint.head} if checkpoint.head else {}),
        **({"scoring": checkpoint.scoring.described()} if checkpoint.scoring else {}),
        **({"ends": end_tokens(checkpoint)} if checkpoint.speaks else {}),
        **({"chat": chat.described()} if checkpoint.speaks and (chat := checkpoint.chat) else {}),
        **({} if tokenizer is None else {"tokenizer": tokenizer}),
        **({} if checkpoint.unplaced is None else {"unplaced": checkpoint.unplaced}),
        **({"pooling": pooling.described()} if pooling != MEAN else {}),
    }


def name_origin(checkpoint: Checkpoint) -> str:
    """Return a checkpoint's name in a saved program, which may be read elsewhere: the name that it is fetched by, or
    its directory relative to the working directory; of a model in memory its digest."""
    if checkpoint.held is not None:
        return IN_MEMORY + checkpoint.held.digest
    if is_hub_name(checkpoint.name):
        return checkpoint.name
    if checkpoint.name in MODELS and checkpoint.directory == location() / checkpoint.name:
        return checkpoint.name
    return relative(checkpoint.directory)


def relative(directory: Path) -> str:
    """Return a directory relative to the working directory if it is below it, else its name alone. The result is no
    name of a model."""
    whole = directory.resolve()
    try:
        below = whole.is_relative_to(Path.cwd())
    except OSError:
        below = False  # the working directory was removed
    return os.path.join(os.curdir, os.path.relpath(whole) if below else whole.name)


def find_origin(program: Program) -> str | None:
    """Return the checkpoint that a program names, if it is stored here: no file makes this code fetch one."""
    place = program.meta.get(SOURCE_ENTRY)
    if not isinstance(place, str) or place.startswith(IN_MEMORY):
        return None
    if place in MODELS:
        return place if (location() / place).is_dir() else None
    return find_directory(program, SOURCE_ENTRY, place)


def needed_model(program: Program) -> str:
    """Describe the model that checks of a program need: any, as `--model`, or the saved one that it was made of in
    memory."""
    place = program.meta.get(SOURCE_ENTRY)
    if isinstance(place, str) and place.startswith(IN_MEMORY):
        return f"--model DIR, with model.save_pretrained(DIR) of the {program.meta.get('model')} in memory, {place:.80}"
    return "--model MODEL"


def find_directory(program: Program, entry: str, place: str) -> str | None:
    """Return a directory that a program names: the one in the report beside the program, or beside its front; or
    relative to the working directory, or to the program's directory. None if none exists."""
    likely = [place]
    if program.directory is not None:
        for whole in (program.directory, program.directory / ".." / ".."):  # its own, or that of its front
            with suppress(InputError):
                report = read_json(whole / REPORT)
                recorded = report.get(entry) if isinstance(report, dict) else None
                if isinstance(recorded, str):
                    likely.insert(0, recorded)
            likely.append(str(whole / ".." / place))
    return next(filter(os.path.exists, likely), None)


def name_places(model: AnyModel, adapter: str | Path | None) -> dict[str, str]:
    """Return the directories that a model and an adapter were read from, as absolute paths, for a report."""
    named = {SOURCE_ENTRY: model, ADAPTER_ENTRY: adapter}
    return {
        entry: os.path.abspath(place)
        for entry, place in named.items()
        if isinstance(place, str | Path) and os.path.exists(place)
    }


def calibrated(progress: Tell, *batches: Batch) -> Machine:
    """Return this machine's model, from the cache or measured now, with the data for runs of these batches."""
    machine = this_machine(progress)
    ways = {Running.of(machine, batch.starts).way for batch in batches} if machine.ways else ()
    for way in sorted(ways):
        learning(partial(machine.opened, way), progress)
    return machine


def adapter_of(program: Program) -> str | None:
    """Return the adapter that a program was made with, or None. Raises InputError for an entry that is no name."""
    adapter = program.meta.get(ADAPTER_ENTRY)
    if adapter is None:
        return None
    if isinstance(adapter, str):
        return find_directory(program, ADAPTER_ENTRY, adapter) or adapter
    raise InputError(f"the program records the adapter {adapter!r:.60}: create it again")
