"""The order in which steps run: the one whose buffers need the least memory (register sufficiency: Sethi 1975, for
whole buffers).

The set of live buffers depends on the set of done steps, not on their order. So orders are paths through sets of done
steps, and the least peak is a bottleneck path. A step that frees at least as much as it takes, and whose own moment is
not above a peak that is reached anyway, may go first: it only lowers the live bytes, whatever else is done before."""

import heapq
from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from opmatrix.algebra.batch.extents import Extents
from opmatrix.runtime.buffers.planner import Life, place_buffers
from opmatrix.runtime.declarations.operands import WITH_SESSION
from opmatrix.runtime.schedule import Call, Schedule, homes

if TYPE_CHECKING:
    from opmatrix.runtime.program import Program

KEPT = 64  # answers that are cached
FOUND: "dict[tuple[object, ...], Order]" = {}  # cached answers, by the buffers of a schedule
STATES, WORK = 50_000, 60_000  # bounds: sets of done steps; sets, or plans, times steps


class Order(NamedTuple):
    """Numbers of steps in the order in which they run; planned bytes of its buffers; the most bytes live at one step,
    which no order has fewer of (0: not known); and whether it is proved that no order is planned with fewer bytes
    either."""

    steps: tuple[int, ...]
    peak: int
    floor: int
    proved: bool


class StepGraph:
    """Steps that are no views, as bits: a set of done steps is a whole number."""

    def __init__(self, calls: Sequence[Call], outputs: Sequence[int], extents: Extents) -> None:
        self.calls = calls
        base = list(range(len(calls)))  # the step whose buffer a view shows
        for i, call in enumerate(calls):
            if call.kernel.view:
                base[i] = base[call.values["x"]]
        self.base = base
        self.real = [i for i, call in enumerate(calls) if not (call.kernel.view or call.kernel.is_input)]
        entered = sum(1 << i for i, call in enumerate(calls) if call.kernel.is_input)
        self.size = [call.shape.size.at(extents) for call in calls]
        self.needs = [sum(1 << root for root in {base[v] for v in call.values.values()}) & ~entered for call in calls]
        self.readers = [0] * len(calls)
        for i in self.real:
            for v in calls[i].values.values():
                self.readers[base[v]] |= 1 << i
        self.kept, self.all = {base[at] for at in outputs}, sum(1 << i for i in self.real)

    def alive(self, done: int) -> int:
        """Return the bytes of results that a later step reads, or that are the output."""
        return sum(self.size[i] for i in self.real if done >> i & 1 and self.held(i, done))

    def held(self, i: int, done: int) -> bool:
        """True if the result of step i is still read, or is the output."""
        return i in self.kept or bool(self.readers[i] & ~done)

    def ready(self, done: int) -> list[int]:
        """Return the steps that can be next."""
        return [i for i in self.real if not done >> i & 1 and not self.needs[i] & ~done]

    def moment(self, i: int, done: int, alive: int) -> int:
        """Return the bytes while step i runs: the live bytes and its result, unless that is written over an operand."""
        return alive + (0 if self.over(i, done) else self.size[i])

    def over(self, i: int, done: int) -> bool:
        """True if step i may write over its operand: as `schedule.over` decides, in terms of the done steps."""
        call = self.calls[i]
        if call.kernel.inplace is None:
            return False
        v = call.values[call.kernel.inplace]
        root = self.base[v]
        alone = [self.base[w] for w in call.values.values()].count(root) == 1
        if self.calls[root].kernel.is_input:
            return isinstance(call.shape, WITH_SESSION)
        return (
            alone
            and self.calls[v].shape == call.shape
            and root not in self.kept
            and not self.readers[root] & ~(done | 1 << i)
        )

    def free(self, i: int, done: int, alive: int, peak: int) -> bool:
        """True if step i may go first: it raises neither the live bytes nor the peak."""
        return self.moment(i, done, alive) <= peak and self.alive(done | 1 << i) <= alive

    def cuts(self) -> list[int]:
        """Return sets of done steps that every order goes through: those up to a step that all others come before or
        after."""
        before, after = [0] * len(self.calls), [0] * len(self.calls)
        for i in self.real:
            for j in each_step(self.needs[i]):
                before[i] |= before[j] | 1 << j
        for i in reversed(self.real):
            for j in each_step(self.needs[i]):
                after[j] |= after[i] | 1 << i
        return [before[i] | 1 << i for i in self.real if before[i] | after[i] | 1 << i == self.all] + [self.all]

    def within(self, done: int, goal: int) -> "StepGraph":
        """Return the graph between two sets of done steps: the steps that are still to be done, and those whose results
        are still read. A result without readers left is never read again."""
        graph = copy(self)
        graph.real = [*(i for i in self.real if done >> i & 1 and self.held(i, done)), *each_step(goal & ~done)]
        return graph

    def path(self, most: int = STATES) -> tuple[int, list[int], bool]:
        """Return the least peak of live bytes, an order that has it, and whether it is proved to be the least. At most
        `most` sets of done steps are visited, between two cuts at a time; if these are too few, the next step is the
        one that adds least."""
        done, peak, order, least = 0, 0, list[int](), True
        near = self
        for goal in self.cuts():
            near = near.within(done, goal)  # the smaller graph saves visiting n steps n times
            answer, looked = near.between(done, goal, peak, most)
            most -= looked
            least = least and answer is not None
            reached, steps = answer or near.greedy(done, goal)
            done, peak, order = goal, max(peak, reached), order + steps
        return peak, order, least

    def between(self, start: int, goal: int, paid: int, most: int) -> tuple[tuple[int, list[int]] | None, int]:
        """Find the least peak from one set of done steps to another, after a peak `paid`, with its order; None if
        `most` sets are too few. Return also the number of visited sets."""
        queue: list[tuple[int, int, int]] = [(paid, 0, start)]  # peak, minus the number of done steps, done steps
        best, came = {start: paid}, dict[int, tuple[int, int]]()
        while queue and len(best) <= most:
            peak, _, done = heapq.heappop(queue)
            if done == goal:
                return (peak, back(start, done, came)), len(best)
            if peak > best[done]:
                continue
            alive = self.alive(done)
            ready = [i for i in self.ready(done) if goal >> i & 1]
            free = next((i for i in ready if self.free(i, done, alive, peak)), None)
            for i in ready if free is None else [free]:
                then, reached = done | 1 << i, max(peak, self.moment(i, done, alive))
                if reached < best.get(then, reached + 1):
                    best[then], came[then] = reached, (done, i)
                    heapq.heappush(queue, (reached, -then.bit_count(), then))
        return None, len(best)

    def greedy(self, done: int, goal: int) -> tuple[int, list[int]]:
        """Return the peak and order of the greedy choice: always the step that leaves the fewest bytes live, of those
        the one that needs least meanwhile."""
        peak, order = 0, list[int]()
        while done != goal:
            alive = self.alive(done)
            ready = [i for i in self.ready(done) if goal >> i & 1]
            left = {i: (self.alive(done | 1 << i), self.moment(i, done, alive)) for i in ready}
            i = min(left, key=left.__getitem__)
            done, peak, order = done | 1 << i, max(peak, left[i][1]), [*order, i]
        return peak, order

    def below(self, peak: int) -> Iterator[list[int] | None]:
        """Yield every order in which always fewer bytes than `peak` are live; None for every set of done steps on the
        way."""
        stack: list[tuple[int, list[int]]] = [(0, [])]
        while stack:
            done, order = stack.pop()
            if done == self.all:
                yield order
                continue
            yield None
            alive = self.alive(done)
            stack += [(done | 1 << i, [*order, i]) for i in self.ready(done) if self.moment(i, done, alive) < peak]

    def whole(self, order: Sequence[int]) -> tuple[int, ...]:
        """Return an order of all steps: inputs first, and every view right behind the step that it shows."""
        views: dict[int, list[int]] = {}
        for i in range(len(self.calls)):
            if self.base[i] != i:
                views.setdefault(self.base[i], []).append(i)
        entered = [i for i, call in enumerate(self.calls) if call.kernel.is_input]
        return tuple(step for i in (*entered, *order) for step in (i, *views.get(i, ())))

    @cached_property
    def given(self) -> tuple[int, ...]:
        """The order of the schedule."""
        return tuple(range(len(self.calls)))


def each_step(steps: int) -> Iterator[int]:
    """Yield the numbers of a set of steps, the lowest first."""
    while steps:
        lowest = steps & -steps
        yield lowest.bit_length() - 1
        steps ^= lowest


def back(start: int, done: int, came: dict[int, tuple[int, int]]) -> list[int]:
    """Return the steps that led from one set of done steps to another."""
    order: list[int] = []
    while done != start:
        done, i = came[done]
        order.append(i)
    return order[::-1]


def least_peak(schedule: Schedule, extents: Extents) -> Order:
    """Return the order whose planned buffers take the fewest bytes for a batch of this size; that of the schedule
    unless another takes fewer. An order that is planned at the floor is proved best; else all orders that could be
    better are planned, as many as WORK allows. Programs of a front that differ in stored numbers alone have one answer,
    which is searched once."""
    asked = (
        tuple(schedule.results),
        extents,
        tuple(
            (call.kernel.is_input, call.kernel.view, call.kernel.inplace, tuple(call.values.items()), call.shape)
            for call in schedule.calls
        ),
    )
    if (known := FOUND.get(asked)) is not None:
        return known  # a single read: other threads change it
    answer = sought(schedule, extents)
    if len(FOUND) >= KEPT:
        FOUND.clear()
    FOUND[asked] = answer
    return answer


def sought(schedule: Schedule, extents: Extents) -> Order:
    """Search the order anew: the shortest path first, then all others with a lower peak, within WORK."""
    graph = StepGraph(schedule.calls, schedule.results, extents)
    given_bytes = schedule.plan(extents).end
    peak, order, least = graph.path()
    best = Order(graph.given, given_bytes, peak if least else 0, False)
    if least and given_bytes <= peak:
        return best._replace(proved=True)
    best = better(best, schedule, graph.whole(order), extents)
    if best.peak <= best.floor:
        return best._replace(proved=True)
    for states, candidate in enumerate(graph.below(best.peak)):
        if states * len(graph.calls) > WORK:
            return best
        if candidate is not None:
            best = better(best, schedule, graph.whole(candidate), extents)
        if best.peak <= best.floor:
            break
    return best._replace(proved=True)


def better(best: Order, schedule: Schedule, steps: tuple[int, ...], extents: Extents) -> Order:
    """Return the order with the smaller plan of the two."""
    peak = planned(schedule, steps, extents)
    return best._replace(steps=steps, peak=peak) if peak < best.peak else best


def planned(schedule: Schedule, steps: Sequence[int], extents: Extents) -> int:
    """Return the bytes of the buffers of a schedule's steps in another order."""
    number = {old: new for new, old in enumerate(steps)}
    calls = [
        call._replace(values={name: number[v] for name, v in call.values.items()})
        for call in map(schedule.calls.__getitem__, steps)
    ]
    home, last = homes(calls, [number[at] for at in schedule.results])
    buffers, result = sorted({b for b in home if not calls[b].kernel.is_input}), number[schedule.result]
    lives = [Life(calls[b].shape.size.at(extents), b, last[b]) for b in buffers]
    return place_buffers(lives, buffers.index(home[result])).end


def ordered(program: "Program", extents: Extents) -> "Program":
    """Return a program with its steps in the order of the least planned peak; the program itself if none is lower, or
    if the other needs more when it runs in segments."""
    order, first = least_peak(program.schedule, extents), program.schedule.first
    if order.steps == tuple(range(len(order.steps))):
        return program
    reordered = program.over([program.steps[i - first] for i in order.steps[first:]])
    return reordered if reordered.schedule.peak(extents) <= program.schedule.peak(extents) else program
