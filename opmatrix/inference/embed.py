"""Texts in, embeddings out, a batch at a time: for any number of texts, memory holds one chunk of texts and one batch
of rows."""

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar
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

Texts = str | Path | Iterable[str]  # one text, a file of texts, texts
Chunked = TypeVar("Chunked")  # a text or a pair; their tokens
OnProgress = Callable[[int, int | None], None]  # texts done, texts in all (None: not known)

BATCH_ROWS = 4096  # rows of a batch, about
CHUNK_TEXTS = 1024  # texts that are tokenised at once
PIECE = 1 << 20  # bytes that are read at once to count lines
MAX_LINE_BYTES = 1 << 22  # bytes of a line: a longer one is no text
PROGRESS_TEXTS = 300  # texts from which on a terminal shows the progress
ADVICE = "shorten or split it, or cut it: --truncate (truncate=True)"
MENTIONED: WeakSet["Program"] = WeakSet()  # programs for which `mention_length` has spoken
NPY_MAGIC = b"\x93NUMPY\x01\x00"  # the magic of an .npy file, version 1.0 (NEP 1)


def stream(
    program: "Program", texts: Texts, rows: int = BATCH_ROWS, how: LineReading | None = None
) -> Iterator[Floats]:
    """Yield blocks (count, n) of embeddings, in the order of the texts: of as many texts as fit into `rows` rows, at
    least one; no block without texts. Raises InputError for a text that is too long, a file that cannot be read, or has
    no line."""
    lines_of = texts if isinstance(texts, Path) else None
    blocks = embed_blocks(program, each(texts), rows, how or reading(lines_of))
    return first_columns(blocks, program.pooling.width)


def first_columns(blocks: Iterable[Floats], width: int | None) -> Iterator[Floats]:
    """Yield the first `width` columns of blocks; None: all of them (Kusupati et al. 2022)."""
    for block in blocks:
        yield block if width is None else block[:, :width]


def embed_texts(
    program: "Program",
    texts: Texts,
    rows: int = BATCH_ROWS,
    progress: OnProgress | bool = True,
    how: LineReading | None = None,
) -> Floats:
    """Return the blocks of `stream` as one array (S, n), without a row if there is no text."""
    blocks = followed(stream(program, texts, rows, how), quantity(texts), progress)
    return np.concatenate([*blocks] or [*first_columns([no_rows(program)], program.pooling.width)])


def no_rows(program: "Program") -> Floats:
    """Return the embeddings of no text, (0, n), as wide as those of any text."""
    shape = program.schedule.calls[program.schedule.result].shape
    assert isinstance(shape, Rows)  # an output is rows, side by side where it has heads
    row = np.zeros((1, shape.cols), np.float32)
    wide: Floats = row if program.pooled else program.pooling(row, np.array([0, 1]))
    return wide[:0]


def reading(
    lines_of: str | Path | None, truncate: bool | None = None, skip_bad: bool = False, prompt: str | None = None
) -> LineReading:
    """Return the options of reading texts: lines of a file or stream with a name, or texts with numbers."""
    name = partial(name_line, lines_of) if lines_of else "text {}".format
    return LineReading(name, truncate, skip_bad, ADVICE, prompt)


def options(program: "Program", texts: Texts, truncate: bool | None, skip_bad: bool, prompt: str | None) -> LineReading:
    """Return the options of reading texts for a program, with the prompt of that name. Raises InputError for an unknown
    one."""
    named = None if prompt is None else program.pooling.named_prompt(prompt)
    return reading(texts if isinstance(texts, Path) else None, truncate, skip_bad, named)


def embed_blocks(program: "Program", texts: Iterable[str], rows: int, reading: LineReading) -> Iterator[Floats]:
    """Yield a block of embeddings for each batch; a text that is skipped has a row of NaN. Raises InputError if no text
    is left."""
    done = 0
    for block in embed_batches(program, texts, rows, reading):
        done += len(block)
        yield block
    if done and len(reading.skipped) == done:
        raise InputError(f"no text is left: {reading.fault}")


def embed_batches(program: "Program", texts: Iterable[str], rows: int, reading: LineReading) -> Iterator[Floats]:
    """Yield the blocks of `embed_blocks`, even if no text is left."""
    if rows < 1:
        raise InputError(f"rows {rows}: a batch has at least 1")
    done, left = 0, program.tokenizer.left_out(reading)
    for batch in batches(program.tokenizer, texts, rows, reading):
        block = program.vectors(batch, left)
        first, last = (bisect_left(reading.skipped, at) for at in (done, done + len(block)))
        block[[at - done for at in reading.skipped[first:last]]] = np.nan
        done += len(block)
        yield block


def mention_length(program: "Program", batch: Batch) -> None:
    """Tell the user, once a program, that a text is longer than any that the program was verified on."""
    if (seen := program.longest_verified) is None or batch.rows <= seen or program in MENTIONED:
        return
    if (longest := int(np.diff(batch.starts).max())) > seen:
        MENTIONED.add(program)
        tell(
            f"a text of {longest} tokens: this program was verified on texts of up to {seen}; beyond that no error "
            f"is stated: optimize again for such texts (optimize --tokens {longest})"
        )


def batches(
    tokenizer: Tokenizer, texts: Iterable[str], rows: int = BATCH_ROWS, reading: LineReading | None = None
) -> Iterator[Batch]:
    """Yield the texts' tokens in the order of the texts, as many texts at a time as fit into `rows` rows, at least one.
    A text that is skipped has one token that is pooled."""
    reading = reading or LineReading()
    skipped = [0] * (1 + tokenizer.left_out(reading))
    tokens = (row or skipped for chunk in chunks(texts) for row in tokenizer.rows(chunk, reading))
    yield from map(Batch, fill(tokens, len, rows))


def chunks(texts: Iterable[Chunked]) -> Iterator[list[Chunked]]:
    """Yield what is tokenised at once."""
    left = iter(texts)
    while chunk := [*islice(left, CHUNK_TEXTS)]:
        yield chunk


def fill(items: Iterable[Chunked], length: Callable[[Chunked], int], most: int) -> Iterator[list[Chunked]]:
    """Yield the items in their order, as many at a time as have `most` rows together, at least one."""
    batch, filled = list[Chunked](), 0
    for item in items:
        if batch and filled + length(item) > most:
            yield batch
            batch, filled = [], 0
        batch.append(item)
        filled += length(item)
    if batch:
        yield batch


def outcome(reading: LineReading, tokenizer: Tokenizer) -> str:
    """Return the end of a sentence about texts that were truncated or could not be read."""
    cut, skipped = reading.truncated, len(reading.skipped)
    words = f"; {cut} cut at {tokenizer.most} tokens" if cut else ""
    return words + (f"; {skipped} left out, rows of NaN, the first: {reading.fault}" if skipped else "")


# ---- where texts come from


def each(texts: Texts) -> Iterable[str]:
    """Return texts one by one. Raises TypeError for anything but a text, a Path and an iterable of texts."""
    if isinstance(texts, Path):
        return read_lines(texts)
    if isinstance(texts, str):
        return [texts]
    if isinstance(texts, Mapping | bytes) or not isinstance(texts, Iterable):
        raise TypeError(
            f"texts: {texts!r:.60} is a {type(texts).__name__}: give one text, an iterable of texts, or "
            "the Path of a file"
        )
    return texts


def read_lines(file: Path, opened: Callable[[Path], BinaryIO] = open_stream) -> Iterator[str]:
    """Yield every line of a file or a pipe, blank ones too. Raises InputError if it cannot be read or is empty."""
    with opened(file) as raw:
        yield from decode_lines(raw, file)


def read_stdin() -> Iterator[str]:
    """Yield every line of the standard input."""
    if sys.stdin is None:
        raise InputError("standard input: it is closed: give a file, one text a line")
    return decode_lines(sys.stdin.buffer, "standard input")


def decode_lines(opened: BinaryIO, name: str | Path) -> Iterator[str]:
    """Yield every line of an open file, without its end; bytes that are no UTF-8 become surrogates, which no tokenizer
    reads. Raises InputError for a line that is too long to be a text."""
    number = -1
    try:
        for number, raw in enumerate(iter(partial(opened.readline, MAX_LINE_BYTES + 1), b"")):
            if len(raw) > MAX_LINE_BYTES:
                raise InputError(f"{name_line(name, number)}: more than {MAX_LINE_BYTES:,} bytes: give one text a line")
            yield raw.decode("utf-8-sig" if number == 0 else "utf-8", "surrogateescape").rstrip("\r\n")
    except OSError as error:
        raise InputError(f"{name}: {reason(error)}: give a file, one text a line") from error
    if number < 0:
        raise InputError(f"{name}: no text: give a file, one text a line")


def name_line(file: str | Path, at: int) -> str:
    """Name a line of a file for error texts, counted from 1."""
    return f"{file}: line {at + 1}"


def quantity(texts: Texts) -> int | None:
    """Return the number of texts; None if it cannot be known without reading an input that can be read only once."""
    if isinstance(texts, str):
        return 1
    if isinstance(texts, Path):
        return ended(texts)
    return len(texts) if isinstance(texts, Sized) else None


def ended(file: Path) -> int | None:
    """Return the number of lines of a file; None for a pipe, and for a file that cannot be read."""
    count, last = 0, b"\n"
    with suppress(InputError, OSError), open_regular(file) as opened:
        while some := opened.read(PIECE):
            count, last = count + some.count(b"\n"), some[-1:]
        return count + (last != b"\n")
    return None


# ---- where embeddings go


def followed(blocks: Iterable[Floats], of: int | None, progress: OnProgress | bool = True) -> Iterator[Floats]:
    """Yield the blocks, and call `progress` after each with the number of texts done. True shows it on a terminal, for
    many texts."""
    done, line = 0, None
    try:
        for block in blocks:
            yield block
            done += len(block)
            if callable(progress):
                progress(done, of)
            elif progress and sys.stderr.isatty() and max(done, of or 0) >= PROGRESS_TEXTS:
                line = line or ProgressLine("texts")
                line(done, of)
    finally:
        if line:
            line.end()


def write_npy(blocks: Iterable[Floats], out: Path) -> tuple[int, int]:
    """Write blocks of rows to an .npy file, which appears complete or not at all; return its shape. Memory holds one
    block: the header, which has the number of rows, has room for any number and is written again at the end."""
    replaceable(out)
    rows, width = 0, 0
    try:
        with replacing(out) as opened:
            for block in blocks:
                if not width:
                    head(opened, 0, width := block.shape[1])
                opened.write(np.ascontiguousarray(block, "<f4").data)
                rows += len(block)
            opened.seek(0)
            head(opened, rows, width)
    except OSError as error:
        raise InputError(f"{out}: not written: {reason(error)}") from error
    return rows, width


def replaceable(out: Path) -> None:
    """Raise InputError if no .npy file could be written, if an existing file is no array, or if the name has another
    ending."""
    writable(out)
    if out.exists() and not is_npy(out):
        raise InputError(f"{out}: it exists and is no .npy file: choose another name or remove it")
    if out.suffix.lower() != ".npy":
        raise InputError(
            f"{out}: embeddings are written as NumPy arrays: give a name that ends in .npy, "
            f"{out.with_suffix('.npy').name} say"
        )


def is_npy(file: Path) -> bool:
    """True if the file begins with the magic of numpy's array files."""
    with open_regular(file) as opened:
        return opened.read(len(NPY_MAGIC)) == NPY_MAGIC


def head(opened: BinaryIO, rows: int, width: int) -> None:
    """Write the header of an .npy file of float32 rows (NEP 1). Its length is equal for any number of rows."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}".ljust(117) + "\n"
    opened.write(NPY_MAGIC + len(text).to_bytes(2, "little") + text.encode("ascii"))
