"""A model as it comes, a checkpoint, an operator or several outputs by name, with what its programs are made cheapest
for."""
from functools import partial
from pathlib import Path

import numpy as np

from formats.core.errors import InputError
from formats.machine.local import learning
from formats.machine.model import Machine
from opmatrix.batch import Batch
from opmatrix.extents import collect_needs
from opmatrix.files.checkpoint import Checkpoint, open_model
from opmatrix.pipelines.end_tokens import end_tokens
from opmatrix.pipelines.pooling import MEAN
from opmatrix.pricing import this_machine
from opmatrix.program import Program
from opmatrix.runtime.scheme import Running
from rewrites.graph.layers import Model, check_possible, find_vocabulary, outputs
from rewrites.lower.mixed import Mix
from rewrites.lower.phased import Generation, parse_generation
from rewrites.phases import Tell
from rewrites.workload.workload import Workload, draw_workload

AnyWorkload = Workload | Batch | Generation | str | Path | Mix      # what says it


def open_arguments(model: str | Model, workload: AnyWorkload | None, text: str | None,
                   tokens: int | None, output: str = "pooled",
                   adapter: str | Path | None = None) -> tuple[Model, Workload, dict[str, object]]:
    """The operator, what it is made cheapest for, and what its programs keep of where it comes from."""
    if isinstance(workload, str) and not Path(workload).exists(): workload = parse_generation(workload) or workload
    if not isinstance(model, str):
        if adapter is not None:
            raise InputError(f"--adapter {adapter}: an operator has no names of weights: add it to a checkpoint")
        if isinstance(workload, str | Path):
            raise InputError(f"workload {workload}: an operator has no tokenizer for texts: give a batch")
        check_possible(model)
        first = next(iter(outputs(model).values()))
        entering = collect_needs(*outputs(model).values())[1]
        if (vocabulary := find_vocabulary(model)) is None and not entering:
            raise InputError(f"optimize: {first!r:.60} takes rows of any number of columns: a model begins with "
                             "weight(table), on one-hot rows of tokens, or with an input, given(name, columns, space)")
        if workload is None and entering:
            raise InputError("optimize: nobody draws the matrices that this model is given: give a workload, Batch(.., "
                             "inputs=..)")
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
    """Where a checkpoint is, and what its programs need to read text."""
    tokenizer, pooling = checkpoint.tokenizer_text, checkpoint.pooling()
    config = {**checkpoint.config, "max_position_embeddings": checkpoint.positions}         # however its family says it
    return {"model": checkpoint.name, "config": config, "source": str(checkpoint.directory.resolve()),
            **({"adapter": str(checkpoint.adapter.directory.resolve())} if checkpoint.adapter else {}),
            **({"head": checkpoint.head} if checkpoint.head else {}),
            **({"ends": end_tokens(checkpoint)} if checkpoint.speaks else {}),
            **({} if tokenizer is None else {"tokenizer": tokenizer}),
            **({} if checkpoint.unplaced is None else {"unplaced": checkpoint.unplaced}),
            **({"pooling": pooling.described()} if pooling != MEAN else {})}


def calibrated(progress: Tell, *batches: Batch) -> Machine:
    """This machine's model, from the cache or measured now, with what runs of these batches take."""
    machine = this_machine(progress)
    ways = {Running.of(machine, batch.starts).way for batch in batches} if machine.ways else ()
    for way in sorted(ways): learning(partial(machine.opened, way), progress)
    return machine


def adapter_of(program: Program) -> str | None:
    """The adapter that a program says it was made with. Raises InputError for what is no name of one."""
    found = program.meta.get("adapter")
    if found is None or isinstance(found, str): return found
    raise InputError(f"the program says that its adapter is {found!r:.60}: make it anew")
