"""A pipeline schedule: the order in which stages run their passes, declared once, a file each. The planner, ranks, the
launcher, the command line and docs/tables.md read the declaration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opmatrix.parallel.schedules.tasks import TaskGraph


def none_hidden(*numbers: object) -> int:
    """Return no seconds: no two passes run at once."""
    return 0


def any_sizes(stages: int, micro_batches: int) -> str:
    """Return no complaint: the order exists for any number of stages and micro-batches."""
    return ""


@dataclass(frozen=True)
class PipelineSchedule:
    """An order of p stages, m micro-batches and v virtual stages (chunks) a stage. F, B and W are the seconds that a
    stage takes for a micro-batch forward, backward, and for gradients of weights, in all of its chunks."""

    name: str  # the value of `--schedule`
    help: str  # the idea and its source, in a sentence
    tasks: Callable[[int, int, int], TaskGraph]  # (p, m, v): each stage's passes, in order
    bubble: Callable[..., Any]  # (p, m, v, F, B, W): seconds that each stage waits
    held: Callable[..., Any]  # (s, p, m, v): micro-batches that stage s holds at most
    illegal: Callable[[int, int], str] = any_sizes  # (p, m): why there is no such order; empty if there is
    chunked: bool = False  # stages have several chunks; the name is NAME:V
    chains: int = 1  # chains of chunks through the stages
    weights_apart: bool = False  # gradients of weights are passes of their own
    hidden: Callable[..., Any] = none_hidden  # (p, m, F, h): seconds of a step that are hidden where a forward pass
    # that runs at once with a backward pass hides h: each computes while the other sends
    planned: bool = True  # `plan` tries it

    @property
    def spelled(self) -> str:
        """The name as `--schedule` takes it, with V for the chunks of a stage."""
        return f"{self.name}:V" if self.chunked else self.name

    @property
    def runs(self) -> bool:
        """True if ranks run it: one chain, whose backward passes compute gradients of weights, too."""
        return self.chains == 1 and not self.weights_apart
