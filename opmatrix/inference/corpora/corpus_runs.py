"""The identity of a run over a corpus: which lines of which file, by which program, read in which way. A run goes on
only where another with the same identity stopped, and shards are joined only if they are of one run."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from formats.core.errors import InputError
from formats.disk.files import open_regular, read_json, reason
from formats.kernels.engine import objects
from opmatrix.inference.embed import PIECE, no_rows
from opmatrix.inference.text import LineReading
from opmatrix.runtime.program import Program

MOST_SHARDS = 100_000


class CorpusShard(NamedTuple):
    """One of several parts of a corpus, counted from 1.

    >>> [CorpusShard(number, 3).lines(10) for number in (1, 2, 3)]
    [range(0, 3), range(3, 6), range(6, 10)]"""

    number: int = 1
    of: int = 1

    def lines(self, total: int) -> range:
        """Return the places of its lines, of so many in all."""
        return range(total * (self.number - 1) // self.of, total * self.number // self.of)

    @classmethod
    def parsed(cls, text: str) -> "CorpusShard":
        """Return the shard of a text such as 2/4. Raises InputError."""
        number, _, of = text.partition("/")
        if all(part.isascii() and part.isdecimal() and len(part) < 9 for part in (number, of)):
            shard = cls(int(number), int(of))
            if 1 <= shard.number <= shard.of <= MOST_SHARDS:
                return shard
        raise InputError(f"--shard {text:.40}: give a number of a part and the number of parts, 1/4 to 4/4 say")


WHOLE_CORPUS = CorpusShard()  # all lines


@dataclass(frozen=True)
class CorpusRun:
    """The identity of a run over the lines of a file, or over a shard of them."""

    input: str  # SHA-256 of the file
    lines: int  # of the file
    program: str  # hash
    kernels: str  # digest of all that machine code depends on
    prompt: str
    truncate: bool | None
    width: int  # columns of a row
    shard: CorpusShard

    @property
    def places(self) -> range:
        """The places of its lines in the file."""
        return self.shard.lines(self.lines)

    def differs(self, other: "CorpusRun", *but: str) -> str:
        """Return the names of the fields that differ from another run's, but for some."""
        mine, theirs = asdict(self), asdict(other)
        return ", ".join(name for name in mine if name not in but and mine[name] != theirs[name])

    def described(self) -> dict[str, object]:
        """Return the run as JSON."""
        return asdict(self) | {"shard": [*self.shard]}


def identify_run(program: Program, file: Path, reading: LineReading, shard: CorpusShard) -> CorpusRun:
    """Return the identity of a run, for which the file is read once. Raises InputError if it cannot be read, or has no
    line."""
    digest, lines = digest_lines(file)
    width = program.pooling.width
    return CorpusRun(
        input=digest,
        lines=lines,
        program=program.hash,
        kernels=objects.key(),
        prompt=program.tokenizer.prompt(reading),
        truncate=reading.truncate,
        width=int(no_rows(program)[:, :width].shape[1]),
        shard=shard,
    )


def digest_lines(file: Path) -> tuple[str, int]:
    """Return the SHA-256 of a file and the number of its lines. Raises InputError."""
    digest, count, last = hashlib.sha256(), 0, b"\n"
    with open_regular(file) as opened:
        try:
            while piece := opened.read(PIECE):
                digest.update(piece)
                count += piece.count(b"\n")
                last = piece[-1:]
        except OSError as error:
            raise InputError(f"{file}: {reason(error)}: give a file, one text a line") from error
    count += last != b"\n"
    if not count:
        raise InputError(f"{file}: no text: give a file, one text a line")
    return digest.hexdigest(), count


# ---- as JSON

FIELD_TYPES: Mapping[str, tuple[type, ...]] = {
    "input": (str,),
    "lines": (int,),
    "program": (str,),
    "kernels": (str,),
    "prompt": (str,),
    "truncate": (bool, type(None)),
    "width": (int,),
    "shard": (list,),
}


def run_bytes(run: CorpusRun, **more: object) -> bytes:
    """Return a run as JSON, with more entries."""
    return json.dumps(run.described() | more, indent=1).encode()


def read_run(file: Path) -> tuple[CorpusRun, dict[str, object]]:
    """Return the run that a file of JSON holds, and its other entries. Raises InputError, which names the entry."""
    entries = read_json(file)
    if not isinstance(entries, dict):
        raise InputError(f"{file}: it holds no object: it was not written by `opmatrix embed`")
    for name, types in FIELD_TYPES.items():
        if type(entries.get(name)) not in types:
            raise InputError(f"{file}: {name} {entries.get(name)!r:.40}: it was not written by `opmatrix embed`")
    shard = CorpusShard.parsed("/".join(map(str, entries["shard"])))
    fields = {name: entries.pop(name) for name in FIELD_TYPES}
    run = CorpusRun(**fields | {"shard": shard})
    if run.lines < 1 or run.width < 1:
        raise InputError(f"{file}: lines {run.lines}, width {run.width}: give files as `opmatrix embed` wrote them")
    return run, entries
