"""Runs of one batch again and again, whose arrays stay where they are while their numbers change, as those of a
session's steps do: what a run needs to know of them is asked once. A run then copies numbers, and gives its results
places of their own."""
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from formats.machine.threads import threads
from opmatrix.batch import Batch
from opmatrix.runtime.recorded import Recorded
from opmatrix.runtime.segments import Values

if TYPE_CHECKING:
    from opmatrix.runtime.schedule import Schedule

Turn = Callable[[Values], object]


class Repeated:
    """`run` gives what Schedule.run gives of the batch as it is by then. One caller at a time. An interrupted run
    leaves nothing that the next one does not write anew."""

    def __init__(self, schedule: "Schedule", batch: Batch) -> None:
        from formats.kernels.engine.launch import RECORDING
        self.recording = RECORDING
        self.schedule, self.batch, self.seen = schedule, batch, schedule.seen(batch)
        self.workers, self.turns = 0, list[Turn]()

    def run(self) -> list[NDArray[np.float32]]:
        """The outputs' rows. Raises as Schedule.run does."""
        if self.recording.get(): return Context().run(self.run)
        values = self.schedule.begun(self.batch, self.seen)
        if (workers := threads()) != self.workers:
            self.turns = [Replayed(each, values, workers).run if isinstance(each, Recorded) else each.run
                          for each in self.schedule.segments]
            self.workers = workers
        for turn in self.turns: turn(values)
        return self.schedule.outcome(values)


class Replayed:
    """A segment over a table of its own, which knows where what enters lies, and reads the batch's own words where it
    has such."""

    def __init__(self, segment: Recorded, values: Values, workers: int) -> None:
        from formats.kernels.engine.pool import POOL
        self.segment, self.workers, self.pool = segment, workers, POOL
        self.moved = {i: at for i, at in enumerate(segment.elsewhere) if at not in values.entered}
        arrays = segment.arrays(values)
        words = getattr(values.batch, "words", None)
        with POOL.lock: self.table = segment.table(values.batch.starts, workers, arrays, words)
        self.table.lay(dict(enumerate(arrays)))

    def run(self, values: Values) -> None:
        """Writes what later segments read, or the caller."""
        fields, moved = self.segment.fields(values.batch), {i: values[at] for i, at in self.moved.items()}
        with self.pool.lock:
            self.table.fill(fields)
            self.table.lay(moved)
            self.table.launch(self.workers)
