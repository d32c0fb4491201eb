"""DualPipe: micro-batches enter a pipeline at both ends, so each stage has two chunks, and a forward pass of one way
runs at once with a backward pass of the other (DeepSeek-AI 2024, DeepSeek-V3, section 3.2.1, figure 5)."""
from __future__ import annotations

from collections import deque
from itertools import count

from formats.core.errors import InputError
from opmatrix.parallel.schedules.tasks import Pass, Slot, Task, TaskGraph


def both_ways(stages: int, micro_batches: int) -> TaskGraph:
    """Half of the micro-batches go from the first stage to the last, the others back. Chunk s is stage s of the first
    way; chunk p + s is what stage s has of the second. Raises InputError for an odd number of stages, and for fewer
    than two micro-batches a stage, or an odd number of them."""
    if stages % 2: raise InputError(f"dualpipe: {stages} stages: it pairs them: give an even number")
    if micro_batches % 2 or micro_batches < 2 * stages:
        raise InputError(f"dualpipe: {micro_batches} micro-batches on {stages} stages: give an even number, at least "
                         f"{2 * stages}")
    reads = [[s - 1] if s else [] for s in range(stages)]
    reads += [[stages + s + 1] if s < stages - 1 else [] for s in range(stages)]
    slots = [BothWays(s, stages, micro_batches).slots() for s in range(stages)]
    return TaskGraph("dualpipe", slots, [*range(stages)] * 2, reads)


class BothWays:
    """The slots of one stage. Way 0 is that which enters at the nearer end."""
    def __init__(self, stage: int, stages: int, micro_batches: int) -> None:
        self.half, self.stages = micro_batches // 2, stages
        self.depth = min(stage, stages - 1 - stage)             # from the nearer end
        self.inner = stages // 2 - 1 - self.depth               # to the middle
        far = stage >= stages // 2
        ways = (stages + stage, stage) if far else (stage, stages + stage)
        self.chunks = ways
        self.firsts = (self.half, 0) if far else (0, self.half)
        self.nexts = {(kind, way): count(self.firsts[way]) for kind in "FB" for way in (0, 1)}
        self.put_off: deque[Task] = deque()
        self.made: list[Slot] = []

    def slots(self) -> list[Slot]:
        """The eight phases of figure 5."""
        depth, inner = self.depth, self.inner
        for _ in range(2 * inner): self.run("F0")
        for _ in range(depth + 1): self.run("F0", "F1")
        for _ in range(inner): self.run("B1-", "W", "F1")
        for k in range(self.half - self.stages + depth + 1):
            self.run(*(["F0", "B1"] if k == 0 and inner == 0 else ["F0B1"]), "F1B0")
        for _ in range(inner): self.run("B1", "F1B0")
        for k in range(2 * (depth + 1)):
            self.run(f"B{1 - k % 2}" + "-" * (k > depth))       # the second half puts gradients of weights off
        for _ in range(inner): self.run("W", "B0-")
        for _ in range(depth + 1): self.run("W")
        return self.made

    def run(self, *each: str) -> None:
        """Slots by letters: pass and way; a - puts the gradients of weights off, W is the oldest that was put off."""
        for text in each:
            if text == "W": self.made.append((self.put_off.popleft(),))
            else: self.made.append(tuple(self.task(text[at:at + 2]) for at in range(0, len(text.rstrip("-")), 2)))
            if text.endswith("-"):
                _, micro, chunk = self.made[-1][0]
                self.put_off.append(Task("W", micro, chunk))

    def task(self, text: str) -> Task:
        kind: Pass = "F" if text[0] == "F" else "B"
        way = int(text[1])
        return Task(kind, next(self.nexts[kind, way]), self.chunks[way])
