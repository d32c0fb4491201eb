"""Notes between a launcher and its ranks through pipes: a line of JSON, with an array behind it if there is one. No
data is unpickled."""

from __future__ import annotations

import json
from threading import Lock
from typing import BinaryIO, NamedTuple

import numpy as np

from opmatrix.algebra.data import Numeric

LOOPBACK = "127.0.0.1"  # the address of all ranks


class Note(NamedTuple):
    """A note of one rank."""

    kind: str  # ready, beat, done or failed
    said: dict[str, object]  # its values
    array: Numeric | None = None  # an array, if it has one


class NoteWriter:
    """Writes notes of several threads, one after the other."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.lock = stream, Lock()

    def send(self, kind: str, array: Numeric | None = None, **said: object) -> None:
        """Write a note as a line of JSON, and its array in float64 behind it, while other threads wait."""
        shape = None if array is None else array.shape
        line = json.dumps({"kind": kind, "shape": shape, **said}).encode() + b"\n"
        with self.lock:
            self.stream.write(line)
            if array is not None:
                self.stream.write(np.ascontiguousarray(array, np.float64).tobytes())
            self.stream.flush()


def read_note(stream: BinaryIO) -> Note | None:
    """Return the next note; None at the end, and for a note that was truncated."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    values = json.loads(line)
    kind, shape = values.pop("kind"), values.pop("shape")
    if shape is None:
        return Note(kind, values)
    size = 8 * int(np.prod(shape, dtype=np.int64))
    held = stream.read(size)
    return Note(kind, values, np.frombuffer(held, np.float64).reshape(shape)) if len(held) == size else None
