"""Ahead-of-time compilation of all kernels of a program into a cache that others may read, so that a process that runs
the program later, as another user and without write access, compiles nothing."""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from errno import EACCES
from pathlib import Path
from typing import TYPE_CHECKING

from formats.core.errors import InputError
from formats.disk.cache import OTHERS, find_closed, guarded, location, make_directory, why
from formats.disk.holdings import count_bytes, list_entries
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.signature import HELD_NUMBERS
from opmatrix.inference.generation import speaks
from opmatrix.runtime.recorded import least_limits

if TYPE_CHECKING:
    from opmatrix.runtime.program import Program

BATCH_LENGTHS = (1,), (2,), (8,), (40,), (300,), (5, 1, 9), (7,) * 40  # lengths of the sentences of each batch
PROMPTS = (3,), (40,), (5, 20, 1)  # tokens of the prompts of each batch of prompts
REPLY = 4  # tokens of a reply


@dataclass(frozen=True)
class CompiledKernels:
    """The directory of the kernels for a processor, their number and bytes, and the number that was compiled now;
    `closed` says what keeps others from reading them."""

    place: Path
    processor: str
    kernels: int
    bytes: int
    new: int
    closed: str


def compile_ahead(program: "Program", progress: Callable[[str, float], None]) -> CompiledKernels:
    """Compile the kernels of a program into the cache, with progress(name, seconds) after each kernel that most
    programs need. Raises InputError if no file can be kept there."""
    from formats import kernels
    from formats.kernels.engine import objects
    from formats.kernels.engine.processor import NAME, remembered

    place = keep_directory(objects.home())
    before, loaded = {entry.path for entry in list_entries(place, objects.CODES)}, {*objects.LOADED}
    kernels.warm(progress=progress)
    run_all_ways(program)
    remembered()  # cache the description of the processor by LLVM, too
    for directory in (location(), location() / "kernels", place, location() / "processors"):
        open_to_readers(directory)
    after = {entry.path for entry in list_entries(place, objects.CODES)}
    if lost := [name for name in objects.LOADED.keys() - loaded if objects.file(place, name) not in after]:
        raise InputError(
            f"{place}: {len(lost)} kernels could not be stored there, {min(lost)} among them: make room there"
        )
    return CompiledKernels(place, NAME, len(after), count_bytes(place), len(after - before), find_closed(place))


def keep_directory(directory: Path) -> Path:
    """Return a directory of the cache, made if it is absent. Raises InputError if no file can be kept there."""
    try:
        place = guarded(make_directory(directory))
        if not os.access(place, os.W_OK):
            raise PermissionError(EACCES, os.strerror(EACCES))
    except OSError as error:
        raise InputError(why(directory, error)) from error
    return place


def open_to_readers(directory: Path) -> None:
    """Let others read a directory of ours and its files, whatever the umask was. A file that others may write stays as
    it is, and is not trusted."""
    for place in (directory, *(entry.path for entry in list_entries(directory) if entry.path.is_file())):
        with suppress(OSError):
            mode = stat.S_IMODE(place.stat().st_mode)
            if not mode & OTHERS:
                place.chmod(mode | (0o055 if place.is_dir() else 0o044))


# ---- all ways that a program runs


def run_all_ways(program: "Program") -> None:
    """Run a program on batches of all kinds; a language model also continues prompts. Programs that read matrices are
    not run, as no test matrices can be drawn."""
    if not program.inputs:
        for batch in drawn_batches(program):
            program.run(batch)
    if not speaks(program):
        return
    for cache in (None, *HELD_NUMBERS):
        prompts = [row for lengths in PROMPTS for row in draw(program, lengths)]
        with suppress(InputError):  # no session computes its rows, or with caches of this type
            for several in (prompts[:1], prompts):
                program.generate(several, max_tokens=REPLY, cache=cache)


def drawn_batches(program: "Program") -> Iterator[Batch]:
    """Yield a batch of each kind."""
    for lengths in BATCH_LENGTHS:
        if rows := draw(program, lengths):
            yield Batch(rows)


def draw(program: "Program", lengths: tuple[int, ...]) -> list[list[int]]:
    """Return rows of token ids of these lengths, none longer than the model has positions; no row if it reads no
    tokens."""
    limits = least_limits(program.schedule.calls)
    if "tokens" not in limits:
        return []
    most = limits.get("positions", max(lengths))
    return [[place % limits["tokens"] for place in range(min(length, most))] for length in lengths]
