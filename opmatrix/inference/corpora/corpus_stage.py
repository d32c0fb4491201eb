"""Embedding as a stage of other schedulers, such as Dask and Ray: functions of plain arguments, which a worker calls
for its part of the texts. A process opens a program once, and all processes map the same weights."""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from formats.core.arrays import Floats
from formats.core.errors import InputError
from formats.disk.files import shown
from opmatrix.inference.corpora.corpus_runs import CorpusShard, identify_run
from opmatrix.inference.corpora.embedded_corpus import embed_corpus
from opmatrix.inference.corpora.joined_shards import check_size, read_shard
from opmatrix.inference.embed import options
from opmatrix.runtime.program import Program

OPEN_PROGRAMS = 4  # programs that a process keeps open


@lru_cache(OPEN_PROGRAMS)
def open_once(directory: str) -> Program:
    """Return the program of a directory, which a process opens once."""
    return Program.load(directory)


def embed_part(
    texts: Iterable[str], directory: str | Path, truncate: bool | None = None, prompt: str | None = None
) -> Floats:
    """Return (S, n): the embeddings of a part of a corpus, as `Program.embed` gives them. Raises as that does."""
    return open_once(str(directory)).embed(texts, progress=False, truncate=truncate, prompt=prompt)


def embed_shard(
    number: int,
    of: int,
    directory: str | Path,
    file: str | Path,
    folder: str | Path,
    truncate: bool | None = None,
    prompt: str | None = None,
) -> Path:
    """Embed a shard of a file's lines, counted from 1, into an .npy file in a folder, and return its path. One that was
    interrupted goes on, and one that is finished stays, so a scheduler may call it again. Raises as `embed_corpus`
    does, and InputError for a file that is there and belongs to another run."""
    program, shard = open_once(str(directory)), CorpusShard.parsed(f"{number}/{of}")
    Path(folder).mkdir(parents=True, exist_ok=True)
    out = Path(folder) / f"part-{number}-of-{of}.npy"
    reading = options(program, Path(file), truncate, False, prompt)
    if not out.exists():
        embed_corpus(program, Path(file), out, reading, shard)
        return out
    written = read_shard(out)
    check_size(written)
    if differing := written.run.differs(identify_run(program, Path(file), reading, shard), "kernels"):
        raise InputError(f"{shown(out)}: it is of another run, with another {differing}: name another folder")
    return out
