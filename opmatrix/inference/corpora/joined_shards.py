"""Shards of a corpus joined into one array. Each is checked to be whole, and of the same run, before anything is
written."""

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from formats.core.arrays import Floats
from formats.core.errors import InputError
from formats.disk.files import open_regular, shown
from opmatrix.inference.corpora.corpus_runs import CorpusRun, read_run
from opmatrix.inference.corpora.unfinished_rows import HEAD_BYTES, refuse_existing, shard_place, unfinished_place
from opmatrix.inference.embed import PIECE, is_npy, replaceable, write_npy


class WrittenShard(NamedTuple):
    """A file of rows, the run that it is a shard of, the CRC-32 of its rows, and the number of lines left out."""

    file: Path
    run: CorpusRun
    crc: int
    skipped: int


def join_shards(files: Sequence[str | Path], out: str | Path) -> tuple[int, int]:
    """Write the rows of all shards of a run, in the order of their lines, to an .npy file that does not exist yet.
    Returns its shape. Raises InputError for shards of different runs, for one that is missing, there twice or damaged,
    and for an output that exists; then nothing is written."""
    out = Path(out)
    replaceable(out)
    refuse_existing(out)
    shards = sorted((read_shard(Path(file)) for file in files), key=lambda written: written.run.shard)
    check_together(shards)
    for written in shards:
        check_size(written)
    return write_npy((block for written in shards for block in shard_rows(written)), out)


def read_shard(file: Path) -> WrittenShard:
    """Return a shard by its file and the one beside it. Raises InputError if one of them is missing or damaged."""
    if unfinished_place(file).exists() and not file.exists():
        raise InputError(f"{shown(file)}: it is not finished: run its `opmatrix embed` again")
    if not is_npy(file):
        raise InputError(f"{shown(file)}: it is no .npy file: name the files that `opmatrix embed --shard` wrote")
    if not shard_place(file).exists():
        raise InputError(f"{shown(file)}: there is no {shard_place(file).name} beside it, which says which shard it is")
    run, entries = read_run(shard_place(file))
    crc, skipped = entries.get("crc"), entries.get("skipped")
    if type(crc) is not int or type(skipped) is not int:
        raise InputError(f"{shard_place(file)}: crc, skipped: it was not written by `opmatrix embed --shard`")
    return WrittenShard(file, run, crc, skipped)


def check_size(written: WrittenShard) -> None:
    """Raise InputError if the file of a shard is shorter or longer than it was."""
    file, wanted = written.file, HEAD_BYTES + len(written.run.places) * written.run.width * 4
    if (size := file.stat().st_size) != wanted:
        raise InputError(f"{shown(file)}: it has {size} bytes, and was written with {wanted}: embed this shard again")


def check_together(shards: Sequence[WrittenShard]) -> None:
    """Raise InputError unless these are all shards of one run. The machines that computed them may differ."""
    first = shards[0]
    for other in shards[1:]:
        if differing := other.run.differs(first.run, "shard", "kernels"):
            raise InputError(f"{other.file}: it is of another run than {first.file}, with another {differing}")
        if other.run.shard.of != first.run.shard.of:
            raise InputError(f"{other.file}: one of {other.run.shard.of} shards; {first.file}: {first.run.shard.of}")
    numbers = [written.run.shard.number for written in shards]
    for number in range(1, first.run.shard.of + 1):
        if (count := numbers.count(number)) != 1:
            raise InputError(f"shard {number}/{first.run.shard.of} is named {count} times: name every shard once")
    if sum(written.skipped for written in shards) == first.run.lines:
        raise InputError("no text is left: every line of every shard was left out")


def shard_rows(written: WrittenShard) -> Iterator[Floats]:
    """Yield the rows of a shard in blocks. Raises InputError if they are not the ones that were written."""
    width, crc = written.run.width, 0
    step = max(1, PIECE // (4 * width)) * 4 * width
    with open_regular(written.file) as opened:
        opened.seek(HEAD_BYTES)
        while piece := opened.read(step):
            crc = zlib.crc32(piece, crc)
            yield np.frombuffer(piece, "<f4").reshape(-1, width)
    if crc != written.crc:
        raise InputError(f"{written.file}: its rows are not the ones that were written: embed this shard again")
