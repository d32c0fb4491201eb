"""The exact program of a checkpoint, which is searched for at first use and kept in the user's cache, by checkpoint and
machine."""

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import replace
from os.path import isdir
from pathlib import Path

from formats.core.errors import InputError
from formats.disk.cache import guarded, location, make_directory, unkept
from formats.disk.holdings import ENTRY_KINDS, evict_oldest, removed
from formats.kernels.engine import objects
from formats.machine.model import machine_file
from opmatrix.files.checkpoint import Checkpoint, open_model
from opmatrix.files.directory.declared import read_plain
from opmatrix.files.directory.late_files import LATE_MODEL, declares_late, read_late
from opmatrix.files.directory.model_files import MODULES
from opmatrix.files.directory.sparse_files import plain_sparse
from opmatrix.files.fetch import MODELS
from opmatrix.runtime.program import Program
from rewrites.encoders.refused import EMBEDDINGS, LATE_ROWS, PAIR_SCORES, SPARSE_ROWS, TOKEN_ROWS

FILLS = "ForMaskedLM"  # the ending of the architectures of models that score masked tokens
ENCODERS = "encoders"  # directory of the cache


def open_kept(name: str | Path, task: str = EMBEDDINGS, template: str | None = None) -> Program:
    """Return the exact program of a checkpoint: its directory, its name on the hub, or the name of a model that
    opmatrix fetches; `task`: EMBEDDINGS, SPARSE_ROWS or PAIR_SCORES, where files declare none, or TOKEN_ROWS. Raises
    InputError for any other name, and for a language model whose files declare no embedding."""
    checkpoint = as_encoder(open_model(name), task, template)
    place = location() / ENCODERS / digest_checkpoint(checkpoint)
    with suppress(InputError, OSError):
        kept = guarded(place)
        os.utime(kept)
        return Program.load(kept)
    from rewrites.encoders.searched import find_exact  # imports all laws; a program that is kept needs none

    program = find_exact(checkpoint)
    keep_program(program, place)
    return program


def as_encoder(checkpoint: Checkpoint, task: str = EMBEDDINGS, template: str | None = None) -> Checkpoint:
    """Return a checkpoint with the pooling that sentence-transformers takes where no file declares one: sparse rows, if
    it has a head that scores masked tokens, or pairs scored by a language model; for TOKEN_ROWS without pooling. Raises
    InputError for any other language model."""
    if task == LATE_ROWS:
        return as_late(checkpoint)
    if task == TOKEN_ROWS:  # a program pools none where the rows of a prompt are left out
        pooled = as_encoder(checkpoint)
        return replace(pooled, declared=replace(pooled.pooling(), include_prompt=False, layers=()))
    if task == PAIR_SCORES:
        checkpoint = replace(checkpoint, pairs=True, template=template)
    if checkpoint.speaks:
        raise InputError(
            f"{checkpoint.directory}: a language model ({checkpoint.architecture}), and no file declares how its rows "
            f"become embeddings or scores: take one with a {MODULES}"
        )
    plain = not (checkpoint.directory / MODULES).exists() and checkpoint.keys is None
    if checkpoint.name in MODELS or checkpoint.scoring is not None or not plain:
        return checkpoint
    if task == SPARSE_ROWS and checkpoint.layout.masked is not None and checkpoint.architecture.endswith(FILLS):
        return replace(checkpoint, declared=plain_sparse(checkpoint.directory, checkpoint.positions))
    return replace(checkpoint, declared=read_plain(checkpoint.directory, checkpoint.positions))


def as_late(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint with the treatment of rows for late interaction that its files declare. Raises InputError
    where they declare none."""
    if checkpoint.keys is not None or not declares_late(checkpoint.directory):
        raise InputError(
            f"{checkpoint.directory}: no file declares rows for late interaction (model_type {LATE_MODEL!r}): "
            "om.SentenceTransformer, or save the model by sentence-transformers 6"
        )
    return replace(checkpoint, declared=read_late(checkpoint.directory, checkpoint.positions))


def digest_checkpoint(checkpoint: Checkpoint) -> str:
    """Return 24 hexadecimal digits that tell a checkpoint, this machine and the code of kernels apart from others: the
    path of its files, their sizes and times."""
    home = checkpoint.directory.resolve()
    files = sorted(path for path in home.rglob("*") if path.is_file()) if isdir(home) else [home]
    listed = [(str(path), status.st_size, status.st_mtime_ns) for path in files if (status := path.stat())]
    read = repr(checkpoint.declared), repr(checkpoint.answer), checkpoint.template
    told = [listed, machine_file().name, objects.key(), *read]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:24]


def keep_program(program: Program, place: Path) -> None:
    """Save a program in the cache in place of one that could not be read, and remove the one that was not used for
    longest where there are too many. A failure is reported."""
    try:
        removed([place])
        program.save(guarded(make_directory(place.parent)) / place.name)
        evict_oldest(place.parent, ENTRY_KINDS[ENCODERS])
    except (OSError, InputError) as error:
        unkept("program of an encoder", place.parent, error)
