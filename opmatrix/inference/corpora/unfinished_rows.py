"""Rows of a run that is not finished, in a directory beside its output: the rows so far, and the number of them that
are certainly on the disk. A process that is killed leaves it, and the same run goes on from there."""

import json
import os
import shutil
import time
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from io import BufferedRandom
from pathlib import Path

import numpy as np

from formats.core.arrays import Floats
from formats.core.errors import InputError
from formats.disk.files import read_json, replacing
from formats.disk.locks import taking
from opmatrix.inference.corpora.corpus_runs import CorpusRun, read_run, run_bytes
from opmatrix.inference.embed import PIECE, head

SUFFIX_UNFINISHED, SUFFIX_SHARD = ".unfinished", ".json"  # behind the name of an output
RUN_FILE, ROWS_FILE, PROGRESS_FILE = "run.json", "rows.npy", "progress.json"  # files of the directory
HEAD_BYTES = 128  # of an .npy file
CHECKPOINT_SECONDS = 2.0  # seconds between two times that rows are brought to the disk


@dataclass
class RowsProgress:
    """The part of a run that is on the disk: the number of lines that are `done`, the CRC-32 of their rows, and the
    outcome of reading them."""

    done: int = 0
    crc: int = 0
    truncated: int = 0
    skipped: int = 0
    fault: str = ""


@dataclass
class UnfinishedRows:
    """The directory of a run, open for more rows."""

    out: Path
    run: CorpusRun
    rows: BufferedRandom
    progress: RowsProgress
    began: float = field(default_factory=time.monotonic)
    checked: float = field(default_factory=time.monotonic)  # when rows were last brought to the disk

    def append(self, block: Floats, truncated: int, skipped: int, fault: str) -> None:
        """Append rows, with the numbers of lines among them that were truncated and skipped, and the first fault so
        far. From time to time they are brought to the disk."""
        raw, before = np.ascontiguousarray(block, "<f4").tobytes(), self.progress
        self.rows.write(raw)
        self.progress = RowsProgress(
            done=before.done + len(block),
            crc=zlib.crc32(raw, before.crc),
            truncated=before.truncated + truncated,
            skipped=before.skipped + skipped,
            fault=before.fault or fault,
        )
        if time.monotonic() - self.checked >= CHECKPOINT_SECONDS:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Bring the rows to the disk, and then the number of them."""
        sync(self.rows)
        with replacing(unfinished_place(self.out) / PROGRESS_FILE) as out:
            out.write(as_bytes(self.progress))
        self.checked = time.monotonic()

    def leave(self) -> None:
        """Leave the directory of a run that is not finished as one that can go on; without rows it is removed."""
        if self.progress.done and unfinished_place(self.out).exists():
            self.checkpoint()
        else:
            shutil.rmtree(unfinished_place(self.out), ignore_errors=True)

    def finish(self) -> None:
        """Give the rows their header, and the output its name; a shard has its run beside it. Raises InputError if the
        output exists by now."""
        self.rows.seek(0)
        head(self.rows, self.progress.done, self.run.width)
        sync(self.rows)
        refuse_existing(self.out)
        if self.run.shard.of > 1:
            with replacing(shard_place(self.out)) as out:
                out.write(run_bytes(self.run, **asdict(self.progress)))
        os.replace(unfinished_place(self.out) / ROWS_FILE, self.out)
        shutil.rmtree(unfinished_place(self.out), ignore_errors=True)


def unfinished_place(out: Path) -> Path:
    """Return the directory of a run that is not finished."""
    return out.with_name(out.name + SUFFIX_UNFINISHED)


def shard_place(out: Path) -> Path:
    """Return the file that says which shard an output is."""
    return out.with_name(out.name + SUFFIX_SHARD)


def refuse_existing(out: Path) -> None:
    """Raise InputError if the output exists."""
    if os.path.lexists(out):
        raise InputError(f"{out}: it exists: remove it, or name another output")


@contextmanager
def unfinished(out: Path, run: CorpusRun) -> Generator[UnfinishedRows]:
    """Open the directory of a run: a new one, or that of the same run, which goes on. When the block ends, finished or
    not, all rows are on the disk; the directory of a run without rows is removed. Raises InputError for the directory
    of another run, one that is damaged, and one that another process writes."""
    place = unfinished_place(out)
    with taking(out.with_name(f".{out.name}.lock"), 0) as alone:
        if not alone:
            raise InputError(f"{place}: another process writes it: wait for it, or name another output")
        refuse_existing(out)
        place.mkdir(exist_ok=True)
        if not (place / RUN_FILE).exists():
            begin_rows(place, run)
        with open(place / ROWS_FILE, "r+b") as rows:
            store = UnfinishedRows(out, run, rows, go_on(place, run, rows))
            try:
                yield store
            finally:
                store.leave()


def begin_rows(place: Path, run: CorpusRun) -> None:
    """Write the files of a run without rows. Raises InputError if the directory holds other files."""
    if other := {name for name in os.listdir(place) if not name.startswith(".")} - {ROWS_FILE}:
        raise InputError(f"{place}: it holds {min(other)}, and no {RUN_FILE}: remove it, or name another output")
    with open(place / ROWS_FILE, "wb") as rows:
        head(rows, 0, run.width)
    with replacing(place / RUN_FILE) as out:
        out.write(run_bytes(run))


def go_on(place: Path, run: CorpusRun, rows: BufferedRandom) -> RowsProgress:
    """Return the progress of a run, with its rows cut to those that are certainly on the disk. Raises InputError for
    another run, and for rows that are not the ones that were written."""
    before, _ = read_run(place / RUN_FILE)
    if differing := run.differs(before):
        raise InputError(f"{place}: it is of another run, with another {differing}: remove it, or name another output")
    progress = read_progress(place / PROGRESS_FILE, len(run.places))
    wanted, crc = progress.done * run.width * 4, 0
    rows.seek(HEAD_BYTES)
    while wanted and (piece := rows.read(min(PIECE, wanted))):
        wanted, crc = wanted - len(piece), zlib.crc32(piece, crc)
    if wanted or crc != progress.crc:
        why = f"{wanted} bytes of rows are missing" if wanted else "its rows are not the ones that were written"
        raise InputError(f"{place}: {why}: remove it, and begin again")
    rows.seek(HEAD_BYTES + progress.done * run.width * 4)
    rows.truncate()
    return progress


def read_progress(file: Path, most: int) -> RowsProgress:
    """Return the progress that a file holds; nothing is done if there is none. Raises InputError for a damaged file."""
    if not file.exists():
        return RowsProgress()
    entries, usual = read_json(file), asdict(RowsProgress())
    kinds = {name: type(value) for name, value in usual.items()}
    if not isinstance(entries, dict) or {name: type(value) for name, value in entries.items()} != kinds:
        raise InputError(f"{file}: it was not written by `opmatrix embed`: remove the directory, and begin again")
    progress = RowsProgress(**entries)
    if not 0 <= progress.done <= most:
        raise InputError(f"{file}: done {progress.done} of {most} lines: remove the directory, and begin again")
    return progress


def as_bytes(progress: RowsProgress) -> bytes:
    """Return progress as JSON."""
    return json.dumps(asdict(progress)).encode()


def sync(rows: BufferedRandom) -> None:
    """Bring what was written to the disk."""
    rows.flush()
    os.fsync(rows.fileno())
