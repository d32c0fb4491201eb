"""A kind of file that opmatrix reads: how a good one is made, how it is read, which part of it is spoilt, and what came
of reading it."""

import json
from contextlib import contextmanager

from formats.core.errors import InputError

BATCH = [[3, 4, 5], [6]]
KINDS = []


class Kind:
    """A file in a directory of its own; `good` makes it `read` gives bytes for what it says."""

    file, part, refusals = "", "", (InputError,)

    def __init_subclass__(cls):
        if cls.file:
            KINDS.append(cls)

    def __init__(self, room):
        room.mkdir(0o700)
        self.room, self.path = room, room / self.file
        self.good()
        self.content, self.wanted = self.path.read_bytes(), self.read()

    @property
    def name(self):
        return f"{self.file}{self.part and ': '}{self.part}"

    @contextmanager
    def spoilt(self, mutator):
        """The file as a mutation leaves it, for as long as the block lasts."""
        self.path.write_bytes(self.spoil(mutator))
        try:
            yield
        finally:
            self.path.write_bytes(self.content)

    def spoil(self, mutator):
        return mutator.document(json.loads(self.content)) if mutator.below(5) else mutator.text(self.content)

    def outcome(self):
        """One of hostile.OUTCOMES, and what was said."""
        try:
            found = self.read()
        except self.refusals as error:
            return self.refused(error)
        return "same" if found == self.wanted else "other", ""

    def refused(self, error):
        """In one line that names where it comes from, and is not too long to be read."""
        said = str(error)
        fair = "\n" not in said and str(self.room) in said and len(said) < 1000
        return ("refused", said) if fair else ("error", f"no line that names the file: {said[:200]!r}")
