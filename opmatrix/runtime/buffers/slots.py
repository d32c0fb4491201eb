"""A batch in the form of recordings: the numbers of every row and the layout of its sentences, in words that native
code copies to where the launches of a group read them."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from opmatrix.algebra.batch.batch import FIELDS
from opmatrix.algebra.batch.extents import Extents, S, T
from opmatrix.algebra.data import Numeric
from opmatrix.runtime.declarations.operands import C, Z
from opmatrix.runtime.scheme import Group, Offsets

if TYPE_CHECKING:
    from formats.kernels.engine.replay import Script

SESSION_FIELDS = "slots", "ages", "sources", "targets"  # fields of new rows in a session, each one number a row
INPUT_FIELDS = *FIELDS, *SESSION_FIELDS


class Slots:
    """A batch of `rows` rows and `sentences` sequences in the form of recordings: the places of the numbers of every
    batch of that size."""

    def __init__(self, rows: int, sentences: int, words: Offsets):
        from formats.kernels.attentions.chunks import PAGE
        from formats.kernels.attentions.heads import Layout

        self.page, self.rows, self.sentences, self.words = PAGE, rows, sentences, words
        words[:] = 0
        self.starts = Layout(*words[len(INPUT_FIELDS) * rows :].reshape(2, rows + 1))
        self.before = np.full(1, -1, np.int64)  # one page, in place of the pages of a session
        place(words, rows, [0, rows])

    def extents(self) -> Extents:
        """Return the sizes of these batches: rows, sequences, one page of a cache, and one state."""
        return Extents({T: self.rows, S: self.sentences, C: self.page, Z: 1})

    def __getattr__(self, name: str) -> Offsets:
        """Return the numbers of new rows in a session: rows of caches, and places of states."""
        if name not in SESSION_FIELDS:
            raise AttributeError(name)
        return self.field(name, 0)

    @staticmethod
    def count(rows: int) -> int:
        """Return the words of a batch: its fields, and the layout of its sentences."""
        return (len(INPUT_FIELDS) + 2) * rows + 2

    def field(self, name: str, limit: int) -> Offsets:
        """Return the numbers of a field; the limit is checked for each batch elsewhere."""
        at = INPUT_FIELDS.index(name) * self.rows
        return self.words[at : at + self.rows]


def place(words: Offsets, rows: int, starts: Sequence[int] | Offsets) -> None:
    """Write the layout of a batch's sentences into its slots; the last entry is repeated to the end."""
    from formats.kernels.attentions.heads import layout

    for target, part in zip(
        words[len(INPUT_FIELDS) * rows :].reshape(2, rows + 1),
        layout(np.asarray(starts, np.int64).tobytes()),
        strict=True,
    ):
        target[: len(part)] = part
        target[len(part) :] = part[-1]


def take_in(batch: Any) -> Offsets:
    """Copy the numbers and the layout of a batch into words; its fields are views of these from here on."""
    words, rows = np.zeros(Slots.count(batch.rows), np.int64), batch.rows
    for i, name in enumerate(INPUT_FIELDS):
        column = words[i * rows : (i + 1) * rows]
        column[:] = getattr(batch, name)
        setattr(batch, name, column)
    place(words, rows, batch.starts)
    return words


class GroupTable:
    """The table that replay reads for the groups of every batch whose sentences start at the same rows: made once, and
    filled for each run, so one run at a time has it. From arrays elsewhere a group reads the rows of its tokens or of
    its sequences, by their space; from caches all. `held`: the words of the one batch that it is for, read in place if
    all of it is one group."""

    def __init__(
        self,
        groups: list[Group],
        scripts: "list[Script]",
        starts: Offsets,
        names: Sequence[str],
        spaces: Sequence[Any],
        arrays: Sequence[Numeric],
        held: Offsets | None = None,
    ):
        from formats.kernels.engine.launch import address
        from formats.kernels.engine.replay import GROUP, replay_groups

        self.locate, self.replay = address, replay_groups
        self.groups, self.scripts = len(groups), scripts
        self.scratch, self.size = max(s.scratch for s in scripts), max(s.size for s in scripts)
        self.stages = max(s.ends[-1] for s in scripts)
        sizes = [group.high - group.low for group in groups]
        ends = np.cumsum([0, *map(Slots.count, sizes)])
        if len(groups) > 1:
            held = None
        self.inputs = np.empty(ends[-1], np.int64) if held is None else held
        words = [self.inputs[low:high] for low, high in pairwise(ends)]
        self.fields = [
            [
                (part[rows * at : rows * (at + 1)], group.low, group.high)
                for part, rows, group in zip(words, sizes, groups, strict=True)
            ]
            for at in map(INPUT_FIELDS.index, () if held is not None else names)
        ]
        self.offsets = np.array(
            [
                [
                    {T: group.low, S: group.first}.get(space, 0) * array.strides[0]
                    for space, array in zip(spaces, arrays, strict=True)
                ]
                for group in groups
            ]
        )
        self.places = np.empty((len(groups), len(arrays)), np.int64)
        self.records = np.zeros(len(groups), GROUP)
        for i, (group, script, group_words) in enumerate(zip(groups, scripts, words, strict=True)):
            place(group_words, sizes[i], starts[group.first : group.last + 1] - group.low)
            self.records[i] = (
                address(script.record),
                address(group_words),
                len(group_words),
                script.home,
                address(self.places[i]),
            )
        self.address = address(self.records)

    def fill(self, fields: Sequence[Offsets]) -> None:
        """Copy in the numbers of a batch."""
        for field, parts in zip(fields, self.fields, strict=False):  # `self.fields` is empty with `held`
            for part, low, high in parts:
                part[:] = field[low:high]

    def lay(self, arrays: Mapping[int, Numeric]) -> None:
        """Set the addresses of some of its arrays, by number."""
        for i, array in arrays.items():
            self.places[:, i] = self.offsets[:, i] + self.locate(array)

    def launch(self, workers: int, clock: int = 0) -> Offsets | None:
        """Run its groups; with a clock, return the times when every group's stages began and the last one ended,
        (seconds, nanoseconds). The pool is locked."""
        stamps = np.zeros((self.groups, self.stages + 1, 2), np.int64) if clock else None
        self.replay(self.address, self.groups, self.size, self.scratch, workers, clock, stamps, self.stages + 1)
        return stamps
