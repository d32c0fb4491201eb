"""Texts in, embeddings out, a batch at a time: however many they are, memory holds one chunk of texts and one batch of
rows."""
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from weakref import WeakSet

import numpy as np

from formats.core.arrays import Floats
from formats.core.errors import InputError
from formats.disk.cache import tell
from formats.disk.files import open_regular, open_stream, reason, replacing, writable
from opmatrix.algebra.batch.batch import Batch
from opmatrix.display.progress import ProgressLine
from opmatrix.inference.text import LineReading, Tokenizer
from opmatrix.runtime.declarations.operands import Rows

if TYPE_CHECKING:
    from opmatrix.runtime.program import Program

Texts = str | Path | Iterable[str]                          # one text, a file of texts, texts
OnProgress = Callable[[int, int | None], None]              # so many texts are done, of so many where that is known

BATCH_ROWS = 4096                                           # of a batch, about
CHUNK_TEXTS = 1024                                          # texts that are tokenised at once
PIECE = 1 << 20                                             # bytes that are read at once where lines are counted
MAX_LINE_BYTES = 1 << 22                                    # bytes of a line: beyond that it is no text
PROGRESS_TEXTS = 300                                        # texts from which a terminal is shown how far it is
ADVICE = "shorten or split it, or cut it: --truncate (truncate=True)"
MENTIONED: WeakSet["Program"] = WeakSet()                    # programs that were given longer texts than they are for
NPY_MAGIC = b"\x93NUMPY\x01\x00"                           # of an .npy file, version 1.0 (NEP 1)


def stream(program: "Program", texts: Texts, rows: int = BATCH_ROWS, truncate: bool | None = None,
           skip_bad: bool = False) -> Iterator[Floats]:
    """Blocks (count, n) of embeddings, in the order of the texts: of as many texts as fit into so many rows, at least
    one; none where there is no text. Raises InputError for a text that is too long, a file that cannot be read, or has
    no line."""
    return embed_blocks(program, each(texts), rows,
                        reading(texts if isinstance(texts, Path) else None, truncate, skip_bad))


def embed_texts(program: "Program", texts: Texts, rows: int = BATCH_ROWS, progress: OnProgress | bool = True,
                truncate: bool | None = None, skip_bad: bool = False) -> Floats:
    """The blocks of `stream` as one array (S, n), of no row where there is no text."""
    blocks = followed(stream(program, texts, rows, truncate, skip_bad), quantity(texts), progress)
    return np.concatenate([*blocks] or [no_rows(program)])


def no_rows(program: "Program") -> Floats:
    """Embeddings of no text, (0, n): as wide as those of any."""
    shape = program.schedule.calls[program.schedule.result].shape
    assert isinstance(shape, Rows)                          # an output is rows, side by side where it has heads
    row = np.zeros((1, shape.cols), np.float32)
    wide: Floats = row if program.pooled else program.pooling(row, np.array([0, 1]))
    return wide[:0]


def reading(lines_of: str | Path | None, truncate: bool | None = None, skip_bad: bool = False) -> LineReading:
    """How texts are read, which are lines of something that has a name, or have numbers."""
    return LineReading(partial(name_line, lines_of) if lines_of else "text {}".format, truncate, skip_bad, ADVICE)


def embed_blocks(program: "Program", texts: Iterable[str], rows: int, reading: LineReading) -> Iterator[Floats]:
    """A block of embeddings for each batch; a text that is skipped has a row of NaN. Raises InputError where no text is
    left."""
    if rows < 1: raise InputError(f"rows {rows}: a batch has at least 1")
    done = 0
    for batch in batches(program.tokenizer, texts, rows, reading):
        block = program.vectors(batch)
        first, last = (bisect_left(reading.skipped, at) for at in (done, done + len(block)))
        block[[at - done for at in reading.skipped[first:last]]] = np.nan
        done += len(block)
        yield block
    if done and len(reading.skipped) == done: raise InputError(f"no text is left: {reading.fault}")


def mention_length(program: "Program", batch: Batch) -> None:
    """Says, once a program, that a text is longer than any that the program was verified on."""
    if (seen := program.longest_verified) is None or batch.rows <= seen or program in MENTIONED: return
    if (longest := int(np.diff(batch.starts).max())) > seen:
        MENTIONED.add(program)
        tell(f"a text of {longest} tokens: this program was verified on texts of up to {seen}; beyond that nothing is "
             f"stated: make it anew for such texts (optimize --tokens {longest})")


def batches(tokenizer: Tokenizer, texts: Iterable[str], rows: int = BATCH_ROWS,
            reading: LineReading | None = None) -> Iterator[Batch]:
    """The texts' tokens in the order given, as many texts at a time as fit into so many rows, at least one. A text that
    is skipped has one token."""
    texts, reading, kept, filled = iter(texts), reading or LineReading(), list[list[int]](), 0
    while chunk := [*islice(texts, CHUNK_TEXTS)]:
        for row in tokenizer.rows(chunk, reading):
            if kept and filled + len(row) > rows:
                yield Batch(kept)
                kept, filled = [], 0
            kept.append(row or [0])
            filled += len(kept[-1])
    if kept: yield Batch(kept)


def outcome(reading: LineReading, tokenizer: Tokenizer) -> str:
    """What became of texts that were too long or could not be read, at the end of a sentence."""
    cut, skipped = reading.truncated, len(reading.skipped)
    said = f"; {cut} cut at {tokenizer.most} tokens" if cut else ""
    return said + (f"; {skipped} left out, rows of NaN, the first: {reading.fault}" if skipped else "")


# ---- where texts come from

def each(texts: Texts) -> Iterable[str]:
    """Texts one by one. Raises TypeError for what is none of text, Path and iterable of texts."""
    if isinstance(texts, Path): return read_lines(texts)
    if isinstance(texts, str): return [texts]
    if isinstance(texts, Mapping | bytes) or not isinstance(texts, Iterable):
        raise TypeError(f"texts: {texts!r:.60} is a {type(texts).__name__}: give one text, an iterable of texts, or "
                        "the Path of a file")
    return texts


def read_lines(file: Path, opened: Callable[[Path], BinaryIO] = open_stream) -> Iterator[str]:
    """Every line of a file or a pipe, blank ones too. Raises InputError where it cannot be read or is empty."""
    with opened(file) as raw: yield from decode_lines(raw, file)


def read_stdin() -> Iterator[str]:
    """Every line of the standard input."""
    if sys.stdin is None: raise InputError("standard input: it is closed: give a file, one text a line")
    return decode_lines(sys.stdin.buffer, "standard input")


def decode_lines(opened: BinaryIO, name: str | Path) -> Iterator[str]:
    """Every line of an open file, without its end; bytes that are no UTF-8 become surrogates, which no tokenizer reads.
    Raises InputError for a line that is too long to be a text."""
    number = -1
    try:
        for number, raw in enumerate(iter(partial(opened.readline, MAX_LINE_BYTES + 1), b"")):
            if len(raw) > MAX_LINE_BYTES:
                raise InputError(f"{name_line(name, number)}: more than {MAX_LINE_BYTES:,} bytes: it is to be one text "
                                 "a line")
            yield raw.decode("utf-8-sig" if number == 0 else "utf-8", "surrogateescape").rstrip("\r\n")
    except OSError as error: raise InputError(f"{name}: {reason(error)}: give a file, one text a line") from error
    if number < 0: raise InputError(f"{name}: no text: give a file, one text a line")


def name_line(file: str | Path, at: int) -> str: return f"{file}: line {at + 1}"


def quantity(texts: Texts) -> int | None:
    """How many texts there are, where that can be known without reading what can be read only once."""
    if isinstance(texts, str): return 1
    if isinstance(texts, Path): return ended(texts)
    return len(texts) if isinstance(texts, Sized) else None


def ended(file: Path) -> int | None:
    """Lines of a file; None of a pipe, and where it cannot be read."""
    count, last = 0, b"\n"
    with suppress(InputError, OSError), open_regular(file) as opened:
        while some := opened.read(PIECE): count, last = count + some.count(b"\n"), some[-1:]
        return count + (last != b"\n")
    return None


# ---- where embeddings go

def followed(blocks: Iterable[Floats], of: int | None, progress: OnProgress | bool = True) -> Iterator[Floats]:
    """The blocks; `progress` is told after each how many texts are done. True shows it on a terminal, for many
    texts."""
    done, line = 0, None
    try:
        for block in blocks:
            yield block
            done += len(block)
            if callable(progress): progress(done, of)
            elif progress and sys.stderr.isatty() and max(done, of or 0) >= PROGRESS_TEXTS:
                line = line or ProgressLine("texts")
                line(done, of)
    finally:
        if line: line.end()


def write_npy(blocks: Iterable[Floats], out: Path) -> tuple[int, int]:
    """Blocks of rows to an .npy file, which appears whole or not at all; its shape. Memory holds one block: the header,
    which says how many rows there are, has room for any number and is written again at the end."""
    replaceable(out)
    rows, width = 0, 0
    try:
        with replacing(out) as opened:
            for block in blocks:
                if not width: head(opened, 0, width := block.shape[1])
                opened.write(np.ascontiguousarray(block, "<f4").data)
                rows += len(block)
            opened.seek(0)
            head(opened, rows, width)
    except OSError as error: raise InputError(f"{out}: not written: {reason(error)}") from error
    return rows, width


def replaceable(out: Path) -> None:
    """Raises InputError where no .npy file could be written, what is there is no array, or the name promises something
    else."""
    writable(out)
    if out.exists() and not is_npy(out):
        raise InputError(f"{out}: it exists and is no .npy file: choose another name or remove it")
    if out.suffix.lower() != ".npy":
        raise InputError(f"{out}: embeddings are written as NumPy's arrays: let its name end in .npy, "
                         f"{out.with_suffix('.npy').name} say")


def is_npy(file: Path) -> bool:
    with open_regular(file) as opened: return opened.read(len(NPY_MAGIC)) == NPY_MAGIC


def head(opened: BinaryIO, rows: int, width: int) -> None:
    """The header of an .npy file of float32 rows (NEP 1): of equal length for any number of them."""
    said = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}".ljust(117) + "\n"
    opened.write(NPY_MAGIC + len(said).to_bytes(2, "little") + said.encode("ascii"))
