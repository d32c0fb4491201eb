"""DualPipe: micro-batches enter a pipeline at both ends, so each stage has two virtual stages, and a forward pass of
one direction runs at once with a backward pass of the other (DeepSeek-AI 2024, DeepSeek-V3, section 3.2.1, figure
5)."""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any

from opmatrix.parallel.schedules.closed_forms import most, one_part
from opmatrix.parallel.schedules.pipeline_schedule import PipelineSchedule
from opmatrix.parallel.schedules.tasks import Pass, Slot, Task, TaskGraph

if TYPE_CHECKING:
    from formats.machine.collectives import Quantity


def both_ways(stages: int, micro_batches: int, chunks: int = 1) -> TaskGraph:
    """Return the passes of DualPipe. Half of the micro-batches go from the first stage to the last, the others back.
    Chunk s is stage s of the first direction; chunk p + s is the chunk of stage s in the second."""
    reads = [[s - 1] if s else [] for s in range(stages)]
    reads += [[stages + s + 1] if s < stages - 1 else [] for s in range(stages)]
    slots = [BothWays(s, stages, micro_batches).slots() for s in range(stages)]
    return TaskGraph("dualpipe", slots, [*range(stages)] * 2, reads)


class BothWays:
    """The slots of one stage. Way 0 is the direction that enters at the nearer end."""

    def __init__(self, stage: int, stages: int, micro_batches: int) -> None:
        self.half, self.stages = micro_batches // 2, stages
        self.depth = min(stage, stages - 1 - stage)  # stages from the nearer end
        self.inner = stages // 2 - 1 - self.depth  # stages from here to the middle
        far = stage >= stages // 2
        ways = (stages + stage, stage) if far else (stage, stages + stage)
        self.chunks = ways
        self.firsts = (self.half, 0) if far else (0, self.half)
        self.nexts = {(kind, way): count(self.firsts[way]) for kind in "FB" for way in (0, 1)}
        self.put_off: deque[Task] = deque()
        self.made: list[Slot] = []

    def slots(self) -> list[Slot]:
        """Return the slots of the eight phases of figure 5."""
        depth, inner = self.depth, self.inner
        for _ in range(2 * inner):
            self.run("F0")
        for _ in range(depth + 1):
            self.run("F0", "F1")
        for _ in range(inner):
            self.run("B1-", "W", "F1")
        for k in range(self.half - self.stages + depth + 1):
            self.run(*(["F0", "B1"] if k == 0 and inner == 0 else ["F0B1"]), "F1B0")
        for _ in range(inner):
            self.run("B1", "F1B0")
        for k in range(2 * (depth + 1)):
            self.run(f"B{1 - k % 2}" + "-" * (k > depth))  # the second half defers gradients of weights
        for _ in range(inner):
            self.run("W", "B0-")
        for _ in range(depth + 1):
            self.run("W")
        return self.made

    def run(self, *each: str) -> None:
        """Append slots given by letters: pass and direction. A - defers the gradients of weights; W runs the oldest
        deferred ones."""
        for text in each:
            if text == "W":
                self.made.append((self.put_off.popleft(),))
            else:
                self.made.append(tuple(self.task(text[at : at + 2]) for at in range(0, len(text.rstrip("-")), 2)))
            if text.endswith("-"):
                _, micro, chunk = self.made[-1][0]
                self.put_off.append(Task("W", micro, chunk))

    def task(self, text: str) -> Task:
        """Return the next task of a pass and a direction, such as "F0" or "B1"."""
        kind: Pass = "F" if text[0] == "F" else "B"
        way = int(text[1])
        return Task(kind, next(self.nexts[kind, way]), self.chunks[way])


def unpaired(stages: int, micro_batches: int) -> str:
    """Return the complaint about an odd number of stages, and about an odd number of micro-batches or fewer than two a
    stage; empty where there is none."""
    if stages % 2:
        return "it pairs stages: give an even number of stages"
    if micro_batches % 2 == 0 and micro_batches >= 2 * stages:
        return ""
    return f"give an even number of micro-batches, at least {2 * stages}"


def both_ways_rounds(p: Any, m: Any, v: Any, F: Any, B: Any, W: Any) -> Any:
    """Return the bubble of DualPipe: (p / 2 − 1)(F + B + W + B + W − 3 W) where passes take equal time (DeepSeek-AI
    2024, table 2, with a pair of a forward and a backward pass that takes as long as both); else the largest over four
    critical paths."""
    n = one_part(p, 2) - 1
    return most(0, most(2 * n * F, n * B + (n - 1) * F) + n * most(0, B - W))


def hidden_by_pairs(p: Quantity, m: Quantity, F: Quantity, each: Quantity) -> Quantity:
    """Return the seconds of a step that are hidden where every pair of a forward and a backward pass hides some: m − p
    / 2 − 2 pairs are on the critical path. Where a pair is shorter than a backward pass alone, which hides nothing,
    another path is critical, with p − 2 pairs fewer. For fewer than 3 p micro-batches it is then an upper bound."""
    fewer = p - 2
    return (m - one_part(p, 2) - 2) * each - fewer * most(each - F, 0)


DUALPIPE = PipelineSchedule(
    "dualpipe",
    "micro-batches enter at both ends, forward beside backward (DeepSeek-AI 2024)",
    both_ways,
    bubble=both_ways_rounds,
    held=lambda s, p, m, v: p + 1,
    illegal=unpaired,
    chains=2,
    weights_apart=True,
    hidden=hidden_by_pairs,
    planned=False,
)
