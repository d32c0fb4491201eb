"""A batch as recordings see it: numbers of every row and the layout of its sentences, in words that native code copies
to where the launches of a group read them."""
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from opmatrix.algebra.batch.batch import FIELDS
from opmatrix.algebra.batch.extents import Extents, S, T
from opmatrix.algebra.data import Numeric
from opmatrix.runtime.declarations.operands import C
from opmatrix.runtime.scheme import Group, Offsets

if TYPE_CHECKING:
    from formats.kernels.engine.replay import Script

INPUT_FIELDS = *FIELDS, "slots"                             # of what slots hold, a number a row


class Slots:
    """A batch of so many rows and sequences as recordings see it: where the numbers of every batch of that size will
    lie."""

    def __init__(self, rows: int, sentences: int, words: Offsets):
        from formats.kernels.attentions.chunks import PAGE
        from formats.kernels.attentions.heads import Layout
        self.page, self.rows, self.sentences, self.words = PAGE, rows, sentences, words
        words[:] = 0
        self.starts = Layout(*words[len(INPUT_FIELDS) * rows:].reshape(2, rows + 1))
        self.before = np.full(1, -1, np.int64)              # of one page, which stands for those of a session
        place(words, rows, [0, rows])

    def extents(self) -> Extents: return Extents({T: self.rows, S: self.sentences, C: self.page})

    @property
    def slots(self) -> Offsets:
        """Rows of caches."""
        return self.field("slots", 0)

    @staticmethod
    def count(rows: int) -> int: return (len(INPUT_FIELDS) + 2) * rows + 2

    def field(self, name: str, limit: int) -> Offsets:
        """The numbers of a field; whether they are below the limit is asked of each batch."""
        at = INPUT_FIELDS.index(name) * self.rows
        return self.words[at:at + self.rows]


def place(words: Offsets, rows: int, starts: Sequence[int] | Offsets) -> None:
    """Write the layout of a batch's sentences into its slots; the last entry is repeated to the end."""
    from formats.kernels.attentions.heads import layout
    for kept, part in zip(words[len(INPUT_FIELDS) * rows:].reshape(2, rows + 1),
                          layout(np.asarray(starts, np.int64).tobytes()),
                          strict=True):
        kept[:len(part)] = part
        kept[len(part):] = part[-1]


def take_in(batch: Any) -> Offsets:
    """The numbers and the layout of a batch as words, in which its fields are seen from here on."""
    words, rows = np.zeros(Slots.count(batch.rows), np.int64), batch.rows
    for i, name in enumerate(INPUT_FIELDS):
        own = words[i * rows:(i + 1) * rows]
        own[:] = getattr(batch, name)
        setattr(batch, name, own)
    place(words, rows, batch.starts)
    return words


class GroupTable:
    """What replay reads of the groups of every batch whose sentences start at the same rows: made once, and filled for
    each run, so one run at a time has it. Of arrays elsewhere a group has the rows of its tokens or of its sequences,
    by their space; all of caches. `held`: the words of the one batch that it is for, read where they lie if all of it
    is one group."""

    def __init__(self, groups: list[Group], scripts: "list[Script]", starts: Offsets, names: Sequence[str],
                 spaces: Sequence[Any], arrays: Sequence[Numeric], held: Offsets | None = None):
        from formats.kernels.engine.launch import address
        from formats.kernels.engine.replay import GROUP, replay_groups
        self.locate, self.replay = address, replay_groups
        self.groups, self.scripts = len(groups), scripts
        self.scratch, self.size = max(each.scratch for each in scripts), max(each.size for each in scripts)
        self.stages = max(each.ends[-1] for each in scripts)
        sizes = [group.high - group.low for group in groups]
        ends = np.cumsum([0, *map(Slots.count, sizes)])
        if len(groups) > 1: held = None
        self.inputs = np.empty(ends[-1], np.int64) if held is None else held
        words = [self.inputs[low:high] for low, high in pairwise(ends)]
        self.fields = [[(own[rows * at:rows * (at + 1)], group.low, group.high)
                        for own, rows, group in zip(words, sizes, groups, strict=True)]
                       for at in map(INPUT_FIELDS.index, () if held is not None else names)]
        self.offsets = np.array([[{T: group.low, S: group.first}.get(space, 0) * array.strides[0]
                                  for space, array in zip(spaces, arrays, strict=True)] for group in groups])
        self.places = np.empty((len(groups), len(arrays)), np.int64)
        self.records = np.zeros(len(groups), GROUP)
        for i, (group, script, own) in enumerate(zip(groups, scripts, words, strict=True)):
            place(own, sizes[i], starts[group.first:group.last + 1] - group.low)
            self.records[i] = address(script.record), address(own), len(own), script.home, address(self.places[i])
        self.address = address(self.records)

    def fill(self, fields: Sequence[Offsets]) -> None:
        """A batch's numbers."""
        for field, parts in zip(fields, self.fields, strict=False):             # none that it reads where they lie
            for own, low, high in parts: own[:] = field[low:high]

    def lay(self, arrays: Mapping[int, Numeric]) -> None:
        """Where these of its arrays are, by number."""
        for i, array in arrays.items(): self.places[:, i] = self.offsets[:, i] + self.locate(array)

    def launch(self, workers: int, clock: int = 0) -> Offsets | None:
        """Run its groups; with a clock, when every group's stages began and the last one ended, (seconds, nanoseconds).
        The pool is locked."""
        stamps = np.zeros((self.groups, self.stages + 1, 2), np.int64) if clock else None
        self.replay(self.address, self.groups, self.size, self.scratch, workers, clock, stamps, self.stages + 1)
        return stamps
