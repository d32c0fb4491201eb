"""Steps run from recordings: the launches for a number of rows are recorded once, and replayed on groups of sentences
(scheme.py)."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any
from weakref import proxy

import numpy as np
from numpy.typing import NDArray

from formats.host.host import caches
from formats.host.threads import threads
from opmatrix.algebra.batch.extents import Extents, S, T
from opmatrix.algebra.data import Numeric
from opmatrix.runtime.buffers.planner import Plan
from opmatrix.runtime.buffers.slots import SESSION_FIELDS, GroupTable, Slots
from opmatrix.runtime.declarations.operands import number_of, round_to_lines
from opmatrix.runtime.scheme import GROUP_ROWS, Group, Offsets, make_groups
from opmatrix.runtime.segments import ROW, Span, Values, plan_buffers

if TYPE_CHECKING:
    from formats.kernels.engine.replay import Script
    from opmatrix.algebra.batch.batch import Batch
    from opmatrix.runtime.schedule import Call, Schedule

SCRIPT_SHARE = 1 / 8  # share of the last cache for the stored scripts of a
# program
TABLES = 4  # tables of batches that a segment stores
SINGLE = 2  # for up to this many sequences a script has exactly as many
RECORDS = 110  # bytes of the records of a step, about


class Recorded:
    """Consecutive steps of a schedule that only launch kernels, as scripts: one for each number of rows and workers,
    made when first needed. Buffers that only these steps use are in a worker's arena; the other arrays belong to the
    whole batch, and each group has its rows."""

    def __init__(self, schedule: "Schedule", steps: Sequence[int]):
        self.schedule = proxy(schedule)  # the schedule holds this: without a cycle, mapped files are
        # freed at once with their program
        self.steps = steps
        self.scripts: OrderedDict[tuple[int, int, int], Script] = OrderedDict()
        self.tables: OrderedDict[tuple[bytes, int], GroupTable] = OrderedDict()

    @cached_property
    def elsewhere(self) -> list[int]:
        """The steps that write the buffers of the whole batch, and the inputs, that these steps use."""
        return [at for at in self.schedule.used(self.steps) if at in self.schedule.crossing or at < self.schedule.first]

    @cached_property
    def own(self) -> dict[int, Span]:
        """The buffers of a group, by the step that writes them first."""
        return {at: self.schedule.spans[at] for at in self.schedule.used(self.steps) if at not in self.elsewhere}

    def plan(self, rows: int) -> Plan:
        """Return the places of a group's buffers."""
        return plan_buffers(tuple(self.own.values()), None, ROW).times(rows)

    @cached_property
    def read(self) -> dict[str, int]:
        """The fields of the batch that are read, each with the least limit of its tables."""
        return least_limits(map(self.schedule.calls.__getitem__, self.steps))

    @cached_property
    def counted(self) -> bool:
        """True if a script is for a number of sequences: some kernel has a row for each and does not accept more."""
        return any(
            getattr(call.shape, "space", T) == S and not call.kernel.pads_sequences
            for call in map(self.schedule.calls.__getitem__, self.steps)
        )

    @cached_property
    def handed(self) -> list[int]:
        """The values of `elsewhere` that have a row a sequence. A script for more sequences than the batch has writes
        them to the arena, and passes on the rows of the existing sequences."""
        return [at for at in self.elsewhere if getattr(self.schedule.calls[at].shape, "space", T) == S]

    @cached_property
    def roomy(self) -> bool:
        """True if a script may be for more sequences than the batch has: no row of a sequence is read from
        elsewhere."""
        return self.counted and {*self.handed} <= {*self.steps}

    def seats(self, rows: int, sentences: int) -> int:
        """Return the number of sequences that a script is for if the batch has `sentences`: a power of two, so that few
        scripts serve batches of any lengths. If no kernel depends on it, one a row."""
        if not self.counted:
            return rows
        return min(rows, 1 << (sentences - 1).bit_length()) if self.roomy and sentences > SINGLE else sentences

    def script(self, group: Group, workers: int) -> "Script":
        """Return the script for the rows of a group, and its sequences if they matter, on `workers` workers. The pool
        is locked."""
        rows = group.high - group.low
        key = rows, self.seats(rows, group.last - group.first), workers
        # the latest used script comes last
        if script := self.scripts.get(key):
            self.scripts.move_to_end(key)
        else:
            self.scripts[key] = script = self.record(*key)
            room = SCRIPT_SHARE * caches()[-1] / len(self.schedule.segments)
            while len(self.scripts) > 1 and sum(s.content.nbytes for s in self.scripts.values()) > room:
                self.scripts.popitem(last=False)
                self.tables.clear()  # tables hold scripts, too
        return script

    def record(self, rows: int, sentences: int, workers: int) -> "Script":
        """Record the script of a walk; kernels that must be compiled are compiled together, together with those that
        replay it."""
        from formats.kernels.engine.compiled import walk_compiled
        from formats.kernels.engine.pool import end_workers, launch_items, worker_loop
        from formats.kernels.engine.replay import conduct, replay

        return walk_compiled(
            lambda: self.walk(rows, sentences, workers), replay, conduct, launch_items, worker_loop, end_workers
        )

    def walk(self, rows: int, sentences: int, workers: int) -> "Script":
        """Walk through the steps and record their launches."""
        from formats.kernels.engine.replay import Recording
        from formats.kernels.rows.sequences import hand_rows

        plan, input_bytes, handed = self.plan(rows), round_to_lines(8 * Slots.count(rows)), self.kept(sentences)
        memory = np.empty(input_bytes + plan.end + sum(handed.values()), np.uint8)
        slots = Slots(rows, sentences, memory[: 8 * Slots.count(rows)].view(np.int64))
        places = dict(zip(self.own, plan.offsets, strict=True)) | dict(
            zip(handed, accumulate(handed.values(), initial=plan.end), strict=False)
        )
        shapes = {at: self.schedule.calls[at].shape for at in self.elsewhere}
        elsewhere = {at: np.empty(shape.at(slots.extents()), number_of(shape)) for at, shape in shapes.items()}
        recording = Recording(memory, workers, [*elsewhere.values(), slots.before])

        def buffer(at: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
            """Return the array of a step's result: in the worker's arena, or its rows of one that belongs to the whole
            batch."""
            if at in elsewhere and at not in handed:
                return array if (array := elsewhere[at]).shape == shape else array.reshape(shape)
            return np.ndarray(shape, np.float32, memory, input_bytes + places[at])

        def steps() -> None:
            """Compute the steps in turn, then copy the rows of results that are handed on."""
            values = Values(self.schedule, slots, slots.extents(), buffer)
            for step in self.steps:
                values.compute(step)
                recording.step()
            for at in handed:
                hand_rows(values[at].reshape(sentences, -1), slots.starts, elsewhere[at].reshape(sentences, -1))
                recording.step()

        recording.keep(steps)
        return recording.script()

    def kept(self, sentences: int) -> dict[int, int]:
        """Return the bytes of the values in `handed`, in the arena of a script for this many sequences; none if a
        script has exactly the sequences of the batch."""
        if not self.roomy or sentences <= SINGLE:
            return {}
        return {at: self.schedule.calls[at].shape.size.sequence * sentences for at in self.handed}

    def peak(self, extents: Extents, starts: Offsets | None = None) -> int:
        """Return the bytes of the values between kernels, of every worker. Without the sentences' starts, as if they
        could be split anywhere."""
        workers, rows = threads(), extents[T]
        groups = (
            []
            if starts is None
            else [
                (group.high - group.low, group.last - group.first)
                for group in make_groups(starts, workers, reading=self.schedule.reading)
            ]
        )
        if not groups:
            groups = [(whole := min(rows, workers * GROUP_ROWS), min(whole, extents[S]) if self.counted else whole)]
        return int((workers if len(groups) > 1 else 1) * max(self.arena(*sizes) for sizes in groups))

    def held(self, extents: Extents) -> int:
        """Return the bytes of its inputs, which outlast its steps: of a batch's rows."""
        return 8 * Slots.count(int(extents[T]))

    def arena(self, rows: int, sentences: int) -> int:
        """Return the bytes of a worker's inputs, buffers and records."""
        calls = [self.schedule.calls[step] for step in self.steps]
        room = max(call.kernel.scratch(call.bound).at(Extents({T: rows, S: rows})) for call in calls)
        handed = sum(self.kept(self.seats(rows, sentences)).values())
        return int(round_to_lines(8 * Slots.count(rows)) + self.plan(rows).end + handed + room + RECORDS * len(calls))

    def run(self, values: Values) -> None:
        """Write the values that later segments, or the caller, read. Raises ValueError for an id outside its table."""
        self.replay(values)

    def timed(self, values: Values) -> dict[int, float]:
        """Return the seconds of each step of a run; if each worker has groups of its own, the mean of the workers'
        times for all their groups. Raises RuntimeError if native code finds no clock."""
        from formats.kernels.engine.replay import clock, nanoseconds

        if not clock():
            raise RuntimeError("steps cannot be timed: native code has no clock on this system")
        scripts, stamps = self.replay(values, clock())
        since = 1e-9 * nanoseconds(stamps)
        taken = [
            np.diff(times[script.ends[: len(self.steps) + 1]]) for times, script in zip(since, scripts, strict=True)
        ]
        workers = min(len(taken), threads())
        return dict(zip(self.steps, (np.sum(taken, axis=0) / workers).tolist(), strict=True))

    def replay(self, values: Values, clock: int = 0) -> tuple["list[Script]", Any]:
        """Run; with a clock, return the times when every group's stages began and the last one ended, (seconds,
        nanoseconds)."""
        from formats.kernels.engine.pool import POOL

        fields, arrays, workers = self.fields(values.batch), self.arrays(values), threads()
        key = values.batch.starts.tobytes(), workers
        with POOL.lock:  # no other thread has the table meanwhile
            table = self.tables.pop(key, None) or self.table(values.batch.starts, workers, arrays)
            table.fill(fields)
            table.lay(dict(enumerate(arrays)))
            stamps = table.launch(workers, clock)
            self.tables[key] = table
            while len(self.tables) > TABLES:
                self.tables.popitem(last=False)
        return table.scripts, stamps

    def fields(self, batch: Any) -> list[NDArray[np.int64]]:
        """Return the numbers of rows that it reads. Raises ValueError for an id outside its table."""
        numbers = [batch.field(name, most) for name, most in self.read.items()]
        return [*numbers, *(getattr(batch, name) for name in SESSION_FIELDS)] if self.schedule.state else numbers

    def arrays(self, values: Values) -> list[Numeric]:
        """Return the arrays elsewhere, and the pages of a session."""
        arrays = [values[at] for at in self.elsewhere]
        return [*arrays, values.batch.before] if self.schedule.state else arrays

    def forget(self) -> None:
        """Drop the tables. Scripts stay, as compiled code does."""
        from formats.kernels.engine.pool import POOL

        with POOL.lock:
            self.tables.clear()

    def table(
        self, starts: Offsets, workers: int, arrays: Sequence[Numeric], words: Offsets | None = None
    ) -> GroupTable:
        """Return the table of batches whose sentences start at these rows, on `workers` workers; `words`: for one batch
        that has its numbers there. The pool is locked."""
        groups = make_groups(starts, workers, reading=self.schedule.reading)
        scripts = [self.script(group, workers if len(groups) == 1 else 1) for group in groups]
        spaces = [getattr(self.schedule.calls[at].shape, "space", None) for at in self.elsewhere]
        names = [*self.read]
        if self.schedule.state:
            names, spaces = [*names, *SESSION_FIELDS], [*spaces, None]
        return GroupTable(groups, scripts, starts, names, spaces, arrays, words)


class Repeated:
    """Repeated runs of one batch, whose arrays stay in place while their numbers change, as in a session's steps: a
    run's preparation is done once, and results have buffers of their own. `run` returns what Schedule.run returns for
    the batch as it is by then. One caller at a time. After an interrupted run the next one writes every value anew."""

    def __init__(self, schedule: "Schedule", batch: "Batch") -> None:
        from formats.kernels.engine.launch import RECORDING

        self.recording = RECORDING
        self.schedule, self.batch, self.outset = schedule, batch, schedule.outset(batch)
        self.workers, self.turns = 0, list[Callable[[Values], object]]()

    def run(self) -> list[NDArray[np.float32]]:
        """Return the outputs' rows. Raises as Schedule.run does."""
        if self.recording.get():
            return Context().run(self.run)
        values = self.schedule.begun(self.batch, self.outset)
        if (workers := threads()) != self.workers:
            self.turns = [
                Replayed(segment, values, workers).run if isinstance(segment, Recorded) else segment.run
                for segment in self.schedule.segments
            ]
            self.workers = workers
        for turn in self.turns:
            turn(values)
        return self.schedule.outcome(values)


class Replayed:
    """A segment over a table of its own, which stores the addresses of inputs, and reads the batch's own words if it
    has them."""

    def __init__(self, segment: Recorded, values: Values, workers: int) -> None:
        from formats.kernels.engine.pool import POOL

        self.segment, self.workers, self.pool = segment, workers, POOL
        self.moved = {i: at for i, at in enumerate(segment.elsewhere) if at not in values.entered}
        arrays = segment.arrays(values)
        words = getattr(values.batch, "words", None)
        with POOL.lock:
            self.table = segment.table(values.batch.starts, workers, arrays, words)
        self.table.lay(dict(enumerate(arrays)))

    def run(self, values: Values) -> None:
        """Write the values that later segments, or the caller, read."""
        fields, moved = self.segment.fields(values.batch), {i: values[at] for i, at in self.moved.items()}
        with self.pool.lock:
            self.table.fill(fields)
            self.table.lay(moved)
            self.table.launch(self.workers)


def least_limits(calls: "Iterable[Call]") -> dict[str, int]:
    """Return the fields of the batch that these calls read, each with the least limit of its tables."""
    limits: dict[str, int] = {}
    for call in calls:
        for name, limit in call.kernel.limits(call.bound).items():
            limits[name] = min(limit, limits.get(name, limit))
    return limits


def launches(call: "Call") -> bool:
    """True if a step is a view, or a kernel of ours on weights of ours that only launches, on rows by which groups are
    split."""
    if call.kernel.view:
        return True
    rows = call.shape, *map(vars(call.bound).get, call.values)
    if any(getattr(value, "space", T) not in (T, S) for value in rows):
        return False
    weight = getattr(call.bound, "weight", None)
    kind = getattr(weight, "form", type(weight))  # for a stack the format of its matrices
    ours = weight is None or isinstance(weight, np.ndarray) or kind.__module__.startswith("formats.")
    return call.kernel.launches and ours
