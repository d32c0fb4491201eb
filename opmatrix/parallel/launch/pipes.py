"""What a launcher and its ranks tell each other through pipes: a line of JSON, with an array behind it where there is
one. Nothing is unpickled."""
from __future__ import annotations

import json
from threading import Lock
from typing import BinaryIO, NamedTuple

import numpy as np

from opmatrix.algebra.data import Numeric

LOOPBACK = "127.0.0.1"                                      # where they are, all of them


class Note(NamedTuple):
    """What one rank says: of what kind, with what, and an array."""
    kind: str
    said: dict[str, object]
    array: Numeric | None = None


class NoteWriter:
    """Writes notes of several threads, one after the other."""
    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.lock = stream, Lock()

    def send(self, kind: str, array: Numeric | None = None, **said: object) -> None:
        shape = None if array is None else array.shape
        line = json.dumps({"kind": kind, "shape": shape, **said}).encode() + b"\n"
        with self.lock:
            self.stream.write(line)
            if array is not None: self.stream.write(np.ascontiguousarray(array, np.float64).tobytes())
            self.stream.flush()


def read_note(stream: BinaryIO) -> Note | None:
    """The next note; None at the end, and for a line that was cut off."""
    line = stream.readline()
    if not line.endswith(b"\n"): return None
    said = json.loads(line)
    kind, shape = said.pop("kind"), said.pop("shape")
    if shape is None: return Note(kind, said)
    size = 8 * int(np.prod(shape, dtype=np.int64))
    held = stream.read(size)
    return Note(kind, said, np.frombuffer(held, np.float64).reshape(shape)) if len(held) == size else None
