"""Embeddings of a file of many lines, or of a shard of it, a row a line: the run goes on after an interruption. A text
has the same bits in any batch, so the resumed, the joined and the uninterrupted run are equal to the bit."""

import os
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

from formats.core.arrays import Floats
from formats.core.errors import InputError
from formats.disk.files import open_regular, reason
from opmatrix.display.progress import ProgressLine
from opmatrix.inference.corpora.corpus_runs import WHOLE_CORPUS, CorpusRun, CorpusShard, identify_run
from opmatrix.inference.corpora.unfinished_rows import RowsProgress, UnfinishedRows, unfinished, unfinished_place
from opmatrix.inference.embed import (
    BATCH_ROWS,
    embed_batches,
    first_columns,
    name_line,
    quantity,
    read_lines,
    replaceable,
)
from opmatrix.inference.text import LineReading
from opmatrix.runtime.program import Program

LARGE_LINES = 100_000  # lines from which on a run is resumable by default
TIME_UNITS = (86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")  # seconds of a unit, and its name


def embed_corpus(
    program: Program,
    file: Path,
    out: Path,
    reading: LineReading,
    shard: CorpusShard = WHOLE_CORPUS,
    rows: int = BATCH_ROWS,
) -> RowsProgress:
    """Write the embeddings of a shard of a file's lines to an .npy file that does not exist yet, float32, a row a line.
    A run that was interrupted goes on. Returns its outcome. Raises InputError for an output that exists, for another
    run's unfinished rows, and for a line that cannot be read: what is before it stays, and the run goes on with
    `skip_bad`."""
    replaceable(out)
    with open_regular(file) as opened:
        before = os.fstat(opened.fileno())
    run = identify_run(program, file, reading, shard)
    try:
        with unfinished(out, run) as store:
            embed_rest(program, file, store, reading, rows)
            check_unchanged(file, before)
            if store.progress.skipped == run.lines:
                fault, store.progress = store.progress.fault, RowsProgress()
                raise InputError(f"no text is left: {fault}")
            store.finish()
            return store.progress
    except OSError as error:
        raise InputError(
            f"{unfinished_place(out)}: not written: {reason(error)}: make room and run it again"
        ) from error


def embed_rest(program: Program, file: Path, store: UnfinishedRows, reading: LineReading, rows: int) -> None:
    """Embed the lines of a run that are not embedded yet."""
    before, places = store.progress, store.run.places
    if before.skipped and not reading.skip_bad:
        raise InputError(f"{before.fault}: it was left out with --skip-bad: go on with it, too")
    first = places.start + before.done
    cut, skipped = list[int](), list[int]()  # places of lines that were read
    name = partial(name_from, file, first)
    reading = replace(reading, name=name, texts=0, truncated=0, cut_places=cut, skipped=skipped)
    texts = islice(read_lines(file), first, places.stop)
    blocks = first_columns(embed_batches(program, texts, rows, reading), program.pooling.width)
    for block in with_time_left(blocks, before.done, store.run):
        end = store.progress.done + len(block) - before.done
        store.append(block, take_before(end, cut), take_before(end, skipped), reading.fault)


def take_before(end: int, places: list[int]) -> int:
    """Remove the places before an end from a sorted list, and return their number. Texts are read ahead of their rows:
    places from the end on are counted with later rows."""
    count = bisect_left(places, end)
    del places[:count]
    return count


def is_resumable(file: str, shard: str | None, resume: bool | None) -> bool:
    """True if a run over a file goes on after an interruption: if that is asked for, for a shard, and by default for
    many lines. Raises InputError for input that can be read only once, and for a shard that is not to go on."""
    if shard is not None and resume is False:
        raise InputError(f"--no-resume: a shard, {shard:.20}, always goes on: leave it out")
    if file == "-":
        if shard is not None or resume:
            raise InputError("--shard, --resume: the standard input can be read only once: give a file")
        return False
    if resume is not None or shard is not None:
        return bool(resume or shard)
    return (quantity(Path(file)) or 0) >= LARGE_LINES


def write_corpus(program: Program, file: Path, out: Path, reading: LineReading, shard: str | None, rows: int) -> str:
    """Embed a file, or a shard of it, and return a line about the outcome. Raises as `embed_corpus` does."""
    began = time.perf_counter()
    part = WHOLE_CORPUS if shard is None else CorpusShard.parsed(shard)
    done = embed_corpus(program, file, out, reading, part, rows)
    seconds = time.perf_counter() - began
    cut = f"; {done.truncated} cut at {program.tokenizer.most} tokens" if done.truncated else ""
    left_out = f"; {done.skipped} left out, rows of NaN, the first: {done.fault}" if done.skipped else ""
    return f"{done.done} texts in {out}, {seconds:.1f} s{cut}{left_out}"


def name_from(file: Path, first: int, place: int) -> str:
    """Name a line of a file, counted from a first one."""
    return name_line(file, first + place)


def check_unchanged(file: Path, before: os.stat_result) -> None:
    """Raise InputError if a file was changed since."""
    now = os.stat(file)
    if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise InputError(f"{file}: it was changed while it was read: run it again on a file that stays")


# ---- progress


def with_time_left(blocks: Iterable[Floats], done: int, run: CorpusRun) -> Iterator[Floats]:
    """Yield the blocks, and show the lines done and the time left, by the rate since now."""
    of, first, began = len(run.places), done, time.monotonic()
    line = ProgressLine("texts")
    try:
        for block in blocks:
            yield block
            done += len(block)
            left = (of - done) * (time.monotonic() - began) / (done - first)
            line(f"{done}/{of}, {shown_time(left)} left")
    finally:
        line.end()


def shown_time(seconds: float) -> str:
    """Return a time in its two largest units.

    >>> shown_time(9), shown_time(75), shown_time(90_061)
    ('9 s', '1 min 15 s', '1 d 1 h')"""
    whole, parts = round(seconds), list[str]()
    for size, name in TIME_UNITS:
        count, whole = divmod(whole, size)
        if count or parts or name == "s":
            parts.append(f"{count} {name}")
    return " ".join(parts[:2])
