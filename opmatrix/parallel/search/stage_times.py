"""A strategy's pipeline in time: its tasks one by one, its stages as unequal as they are, or cut so that the slowest is
as quick as it can be. Survivors of a search are run so, where formulas take stages to be alike."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from formats.core.errors import InputError
from opmatrix.display.timeline import write_timeline
from opmatrix.parallel.cost.layer_work import LayerWork
from opmatrix.parallel.cost.memory_parts import allocatable, kept_bytes, state_bytes
from opmatrix.parallel.cost.step_parts import (
    Setting,
    layer_parts,
    learning_seconds,
    loss_parts,
    pass_parts,
    send_parts,
    sum_parts,
)
from opmatrix.parallel.cost.strategies import RECOMPUTES, RecomputeKind
from opmatrix.parallel.schedules.named import SCHEDULES, USUAL_SCHEDULE, ChunkedSchedule, pipeline_kind, pipeline_tasks
from opmatrix.parallel.schedules.simulated import ChunkWork, Simulated, bars_of, simulate
from opmatrix.parallel.search.plans import PlanChoice
from opmatrix.parallel.search.uneven_cuts import LayerWays, cut_stages
from opmatrix.parallel.sharding.axis_states import bounds

MOST_TASKS = 20_000                                         # of a pipeline that is run
DRAWN = 16_000                                              # tasks of a picture


@dataclass(frozen=True)
class StageTimes:
    """A pipeline that was run: layers of each chunk, what each computes again, its tasks, and seconds of a step with
    what follows them."""
    cut: tuple[int, ...]
    again: tuple[RecomputeKind, ...]
    ran: Simulated
    after: float

    @property
    def seconds(self) -> float: return float(self.ran.seconds) + self.after


def pass_seconds(setting: Setting, work: LayerWork, last: bool = False) -> tuple[float, float, float]:
    """Seconds of a layer forward, backward with what is computed again, and of the gradients of its weights; behind the
    last with the loss."""
    forward, learnt = float(sum_parts(pass_parts(setting, work, "forward"))), float(learning_seconds(setting, work))
    whole = float(sum_parts(layer_parts(setting, work))) + (float(sum_parts(loss_parts(setting))) if last else 0)
    return forward, whole - forward - learnt, learnt


def recomputing(setting: Setting, kind: RecomputeKind) -> Setting:
    """What is asked, where another part of it is computed again."""
    return setting._replace(strategy=replace(setting.strategy, recompute=kind), passes=None)


def layer_seconds(setting: Setting) -> list[tuple[float, float, float]]:
    """Seconds of the passes of each layer."""
    return [seconds for work, times in setting.model.layers for seconds in [pass_seconds(setting, work)] * times]


def layer_bytes(setting: Setting) -> list[float]:
    """Bytes that each layer keeps of a micro-batch."""
    return [size for work, times in setting.model.layers for size in [float(kept_bytes(setting, work))] * times]


def even_cut(layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk, the first ones with one more where they do not divide."""
    return tuple(end - begin for begin, end in (bounds(layers, chunks, at) for at in range(chunks)))


def run_stages(choice: PlanChoice, cut: Sequence[int] | None = None, micro_batches: int | None = None,
               again: Sequence[RecomputeKind] | None = None) -> StageTimes:
    """The pipeline of a strategy, task by task, by layers of each chunk, even without them, and by what each computes
    again. Raises InputError for more tasks than are run."""
    setting, own = choice.prediction.setting, choice.sizes
    chunks, count = own["pp"] * own["virtual"], round(float(setting.micro_batches))
    m = min(count, micro_batches or count)
    if (tasks := 2 * chunks * m) > MOST_TASKS:
        raise InputError(f"pipeline: {tasks} tasks: at most {MOST_TASKS} are run one by one")
    cut = tuple(cut or even_cut(setting.model.count, chunks))
    again = tuple(again or [setting.strategy.recompute] * chunks)
    timed = {kind: layer_seconds(recomputing(setting, kind)) for kind in {*again}}
    held = {kind: layer_bytes(recomputing(setting, kind)) for kind in {*again}}
    works, at = [], 0
    for chunk, (layers, kind) in enumerate(zip(cut, again, strict=True)):
        ends = [pass_seconds(setting, setting.model.first)] if chunk == 0 else []
        if chunk == chunks - 1: ends.append(pass_seconds(setting, setting.model.last, last=True))
        forward, backward, learnt = (sum(each[k] for each in [*timed[kind][at:at + layers], *ends]) for k in range(3))
        kept = sum(held[kind][at:at + layers])
        works.append(ChunkWork(forward, backward, learnt, kept, kept))
        at += layers
    graph = pipeline_tasks(schedule_of(choice), own["pp"], m)
    sent = float(sum_parts(send_parts(setting))) / (2 * own["virtual"])
    parts = choice.prediction.seconds
    after = sum(float(seconds) for name, seconds in parts.items() if name.startswith(("gradients", "weights", "optim")))
    return StageTimes(cut, again, simulate(graph, works, sent), after)


def schedule_of(choice: PlanChoice) -> str:
    """What the schedule is called where its tasks are listed."""
    chunks = choice.sizes["virtual"]
    schedule = SCHEDULES[choice.form.schedule]
    if not schedule.chunked: return schedule.name
    return str(ChunkedSchedule(schedule, chunks)) if chunks > 1 else USUAL_SCHEDULE.name


class StageCut(NamedTuple):
    """Layers of each stage, and what each computes again."""
    layers: tuple[int, ...]
    again: tuple[RecomputeKind, ...]


def best_cut(choice: PlanChoice, room: float) -> StageCut | None:
    """Layers of each stage and what it computes again, such that the slowest is as quick as it can be, and each fits
    so many bytes; None where a stage has several chunks, where there is one, and where nothing fits."""
    setting, own = choice.prediction.setting, choice.sizes
    stages = own["pp"]
    if stages == 1 or own["virtual"] > 1: return None
    settings = [recomputing(setting, kind) for kind in RECOMPUTES]
    costs = [[*map(sum, layer_seconds(each))] for each in settings]
    stored = [size for work, times in setting.model.layers for size in [state_bytes(setting, work)] * times]
    held, m = [layer_bytes(each) for each in settings], round(float(setting.micro_batches))
    schedule = pipeline_kind(schedule_of(choice)).schedule
    waits = [schedule.held(at, stages, m, 1) for at in range(stages)]
    ways = [[LayerWays(costs[k], [state + many * size for state, size in zip(stored, held[k], strict=True)])
             for k in range(len(RECOMPUTES))] for many in waits]
    spare = allocatable(setting, room) * (1 + 1e-9)         # the even cut may just fit
    spare -= float(choice.prediction.memory["working"])
    rooms = [spare - (at == 0) * state_bytes(setting, setting.model.first)
             - (at == stages - 1) * state_bytes(setting, setting.model.last) for at in range(stages)]
    found = cut_stages(ways, rooms, sum(pass_seconds(setting, setting.model.first)),
                       sum(pass_seconds(setting, setting.model.last, last=True)))
    return None if found is None else StageCut(found[0], tuple(RECOMPUTES[k] for k in found[1]))


def draw_step(choice: PlanChoice, path: Path, title: str, cut: StageCut | None = None) -> Path:
    """A picture or a trace of the pipeline of a strategy, by an even cut without another, with as many micro-batches as
    it shows."""
    chunks = choice.sizes["pp"] * choice.sizes["virtual"]
    stages = choice.sizes["pp"]
    most = max(stages, DRAWN // (2 * chunks) // stages * stages)
    count = round(float(choice.prediction.setting.micro_batches))
    layers, again = cut or (None, None)
    ran = run_stages(choice, layers, min(count, most), again).ran
    if count > most: title += f", the first {most} of {count} micro-batches"
    return write_timeline(path, bars_of(ran), [f"stage {at}" for at in range(stages)], title)
