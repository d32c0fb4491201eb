"""The pipeline of a strategy in time: its tasks one by one, with unequal stages, or partitioned so that the slowest
stage is as fast as possible. The best strategies of a search are simulated this way, where formulas take stages to be
alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from formats.core.errors import InputError
from opmatrix.display.timeline import write_timeline
from opmatrix.parallel.cost.layer_work import LayerWork
from opmatrix.parallel.cost.memory_parts import allocatable, kept_bytes, memory_parts, recomputing, state_bytes
from opmatrix.parallel.cost.step_parts import (
    HIDDEN_BY_PAIRS,
    Setting,
    layer_parts,
    learning_seconds,
    loss_parts,
    pass_parts,
    send_parts,
    sum_parts,
)
from opmatrix.parallel.cost.strategies import BLOCK_AGAIN, RECOMPUTES, RecomputeKind
from opmatrix.parallel.schedules.named import SCHEDULES, USUAL_SCHEDULE, ChunkedSchedule
from opmatrix.parallel.schedules.simulated import ChunkWork, Simulated, bars_of, simulate
from opmatrix.parallel.schedules.tasks import TaskGraph
from opmatrix.parallel.search.plans import PlanChoice
from opmatrix.parallel.search.uneven_cuts import LayerWays, MixedWays, cut_stages
from opmatrix.parallel.sharding.axis_states import bounds

MOST_TASKS = 20_000  # tasks of a pipeline that is simulated, at most
DRAWN = 16_000  # tasks of a picture, at most


@dataclass(frozen=True)
class StageTimes:
    """A simulated pipeline."""

    partition: StageCut
    ran: Simulated  # the tasks in time
    after: float  # seconds of a step after the last task

    @property
    def seconds(self) -> float:
        """The seconds of a step: all tasks, and the work after the last one."""
        return float(self.ran.seconds) + self.after

    @property
    def cut(self) -> tuple[int, ...]:
        """The layers of each chunk."""
        return self.partition.layers

    @property
    def allocated(self) -> float:
        """The bytes that the fullest stage allocates."""
        return float(max(self.ran.peaks))


def pass_seconds(setting: Setting, work: LayerWork, last: bool = False) -> tuple[float, float, float]:
    """Return the seconds of a layer: forward, backward with recomputation, and the gradients of its weights; behind the
    last layer with the loss."""
    forward, learnt = float(sum_parts(pass_parts(setting, work, "forward"))), float(learning_seconds(setting, work))
    whole = float(sum_parts(layer_parts(setting, work))) + (float(sum_parts(loss_parts(setting))) if last else 0)
    return forward, whole - forward - learnt, learnt


def crossing_seconds(setting: Setting, work: LayerWork) -> tuple[float, float]:
    """Return the seconds of a layer in which values cross links that passes of another direction hide: forward, and
    backward with recomputation."""
    forward, whole = (
        float(sum_parts({name: seconds for name, seconds in parts.items() if name.startswith(HIDDEN_BY_PAIRS)}))
        for parts in (pass_parts(setting, work, "forward"), layer_parts(setting, work))
    )
    return forward, whole - forward


def layer_seconds(setting: Setting) -> list[tuple[float, float, float]]:
    """Return the seconds of the passes of each layer."""
    return [seconds for work, times in setting.model.layers for seconds in [pass_seconds(setting, work)] * times]


def layer_crossings(setting: Setting) -> list[tuple[float, float]]:
    """Return the seconds of each layer in which values cross links that passes of another direction hide."""
    return [crossing for work, times in setting.model.layers for crossing in [crossing_seconds(setting, work)] * times]


def layer_bytes(setting: Setting) -> list[float]:
    """Return the bytes that each layer saves for a micro-batch."""
    return [size for work, times in setting.model.layers for size in [float(kept_bytes(setting, work))] * times]


def even_cut(layers: int, chunks: int, before: int = 0, behind: int = 0) -> tuple[int, ...]:
    """Return the layers of each chunk; the first chunks have one more where the layers do not divide. The operations
    before all layers count as `before` layers of the first chunk, and those behind them as `behind` of the last.

        >>> even_cut(30, 4), even_cut(30, 4, 1, 1)
        ((8, 8, 7, 7), (7, 8, 8, 7))"""
    places = layers + before + behind
    cut = [end - begin for begin, end in (bounds(places, chunks, at) for at in range(chunks))]
    cut[0] -= before
    cut[-1] -= behind
    return tuple(cut)


class StageCut(NamedTuple):
    """A partition of layers into stages, or into chunks of stages."""

    layers: tuple[int, ...]  # layers of each chunk
    again: tuple[RecomputeKind, ...]  # the recomputation of each chunk
    counts: tuple[int, ...] | None = None  # its first layers that are computed again so; None: all

    @property
    def recomputed(self) -> tuple[int, ...]:
        """The layers of each chunk that are computed again."""
        counts = self.layers if self.counts is None else self.counts
        return tuple(0 if kind == "none" else n for n, kind in zip(counts, self.again, strict=True))

    def kinds(self) -> list[list[RecomputeKind]]:
        """Return the recomputation of each layer of each chunk."""
        plain: list[RecomputeKind] = ["none"]
        return [
            [kind] * n + plain * (layers - n)
            for layers, kind, n in zip(self.layers, self.again, self.recomputed, strict=True)
        ]


def even_stages(choice: PlanChoice) -> StageCut:
    """Return the even partition of a strategy, which counts table and head where the strategy does."""
    chunks = choice.sizes["pp"] * choice.sizes["virtual"]
    strategy, count = choice.prediction.setting.strategy, choice.prediction.setting.model.count
    layers = even_cut(count, chunks, int(strategy.balanced), int(strategy.balanced))
    if strategy.recompute != BLOCK_AGAIN:
        return StageCut(layers, (strategy.recompute,) * chunks)
    again = round(float(strategy.again or 0) * max(layers))
    whole: RecomputeKind = "full"
    return StageCut(layers, (whole,) * chunks, tuple(min(again, number) for number in layers))


def run_stages(choice: PlanChoice, cut: StageCut | None = None, micro_batches: int | None = None) -> StageTimes:
    """Simulate the pipeline of a strategy, task by task, by an even partition unless `cut` is given. Raises InputError
    for more tasks than are simulated."""
    setting, sizes = choice.prediction.setting, choice.sizes
    cut = cut or even_stages(choice)
    chunks, count = len(cut.layers), round(float(setting.micro_batches))
    m = min(count, micro_batches or count)
    if (tasks := 2 * chunks * m) > MOST_TASKS:
        raise InputError(f"pipeline: {tasks} tasks: at most {MOST_TASKS} are run one by one")
    kinds = cut.kinds()
    timed = {kind: layer_seconds(recomputing(setting, kind)) for row in kinds for kind in {*row}}
    held = {kind: layer_bytes(recomputing(setting, kind)) for row in kinds for kind in {*row}}
    crossed = {kind: layer_crossings(recomputing(setting, kind)) for row in kinds for kind in {*row}}
    works, at = [], 0
    for chunk, row in enumerate(kinds):
        ends = [pass_seconds(setting, setting.model.first)] if chunk == 0 else []
        if chunk == chunks - 1:
            ends.append(pass_seconds(setting, setting.model.last, last=True))
        passes = [*(timed[kind][at + n] for n, kind in enumerate(row)), *ends]
        forward, backward, learnt = (sum(seconds[k] for seconds in passes) for k in range(3))
        saved = sum(held[kind][at + n] for n, kind in enumerate(row))
        crossing = [sum(crossed[kind][at + n][k] for n, kind in enumerate(row)) for k in range(2)]
        works.append(ChunkWork(forward, backward, learnt, saved, saved, 0, *crossing))
        at += len(row)
    graph = schedule_of(choice).tasks(sizes["pp"], m)
    sent = float(sum_parts(send_parts(setting))) / (2 * sizes["virtual"])
    parts = choice.prediction.seconds
    after = sum(float(seconds) for name, seconds in parts.items() if name.startswith(("gradients", "weights", "optim")))
    placed = [works[depth] for depth in graph.depths]  # a chunk of either direction
    return StageTimes(cut, simulate(graph, placed, sent, stage_state(setting, cut, graph)), after)


def stage_state(setting: Setting, cut: StageCut, graph: TaskGraph) -> list[float]:
    """Return the bytes that each stage holds all the time: the state of its layers, and what a layer makes that is
    computed again."""
    stored = [size for work, times in setting.model.layers for size in [state_bytes(setting, work)] * times]
    ends = [0, *np.cumsum(cut.layers)]
    sizes = [sum(stored[start:end]) for start, end in pairwise(ends)]
    sizes[0] += state_bytes(setting, setting.model.first)
    sizes[-1] += state_bytes(setting, setting.model.last)
    working = {
        kind: float(memory_parts(recomputing(setting, kind))["working"]) for row in cut.kinds() for kind in {*row}
    }
    state = [0.0] * graph.stages
    for place, depth in zip(graph.places, graph.depths, strict=True):
        state[place] += sizes[depth]
    kinds = cut.kinds()
    for stage in range(graph.stages):
        rows = [kinds[depth] for place, depth in zip(graph.places, graph.depths, strict=True) if place == stage]
        state[stage] += max((working[kind] for row in rows for kind in row), default=0.0)
    return state


def schedule_of(choice: PlanChoice) -> ChunkedSchedule:
    """Return the schedule whose tasks are simulated; one chunk a stage is the usual schedule."""
    schedule, chunks = SCHEDULES[choice.form.schedule], choice.sizes["virtual"]
    return ChunkedSchedule(USUAL_SCHEDULE if schedule.chunked and chunks == 1 else schedule, chunks)


def best_cut(choice: PlanChoice, room: float) -> StageCut | None:
    """Return the layers of each stage and what it recomputes, such that the slowest stage is as fast as possible and
    each fits `room` bytes. None for a single stage, for several chunks a stage, of one direction or of two, and if no
    partition fits."""
    setting, sizes = choice.prediction.setting, choice.sizes
    stages = sizes["pp"]
    if stages == 1 or sizes["virtual"] > 1 or schedule_of(choice).schedule.chains > 1:
        return None
    settings = [recomputing(setting, kind) for kind in RECOMPUTES]
    costs = [[*map(sum, layer_seconds(variant))] for variant in settings]
    stored = [size for work, times in setting.model.layers for size in [state_bytes(setting, work)] * times]
    held, m = [layer_bytes(variant) for variant in settings], round(float(setting.micro_batches))
    schedule = schedule_of(choice).schedule
    waits = [schedule.held(at, stages, m, 1) for at in range(stages)]
    ways = [
        mixed_ways(
            [
                LayerWays(costs[k], [state + many * size for state, size in zip(stored, held[k], strict=True)])
                for k in range(len(RECOMPUTES))
            ]
        )
        for many in waits
    ]
    spare = allocatable(setting, room) * (1 + 1e-9)  # the even partition may just fit
    spare -= float(choice.prediction.memory["working"])
    rooms = [
        spare
        - (at == 0) * state_bytes(setting, setting.model.first)
        - (at == stages - 1) * state_bytes(setting, setting.model.last)
        for at in range(stages)
    ]
    best = cut_stages(
        ways,
        rooms,
        sum(pass_seconds(setting, setting.model.first)),
        sum(pass_seconds(setting, setting.model.last, last=True)),
    )
    if best is None:
        return None
    kinds = tuple(RECOMPUTES[k] for k in best.ways)
    return StageCut(best.layers, kinds, tuple(n for n in best.counts))


def mixed_ways(ways: Sequence[LayerWays]) -> list[LayerWays | MixedWays]:
    """Return the ways of a stage, by what is computed again: nothing, or the first layers as far as it takes to fit."""
    fast, *slower = ways
    return [fast, *(MixedWays(fast, slow) for slow in slower)]


def draw_step(choice: PlanChoice, path: Path, title: str, cut: StageCut | None = None) -> Path:
    """Draw the pipeline of a strategy as a picture or a trace, by an even partition unless `cut` is given, with as many
    micro-batches as the picture can show."""
    chunks = choice.sizes["pp"] * choice.sizes["virtual"]
    stages = choice.sizes["pp"]
    most = max(stages, DRAWN // (2 * chunks) // stages * stages)
    count = round(float(choice.prediction.setting.micro_batches))
    ran = run_stages(choice, cut, min(count, most)).ran
    if count > most:
        title += f", the first {most} of {count} micro-batches"
    return write_timeline(path, bars_of(ran), [f"stage {at}" for at in range(stages)], title)
