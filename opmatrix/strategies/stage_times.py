"""A strategy's pipeline in time: its tasks one by one, its stages as unequal as they are, or cut so that the slowest is
as quick as it can be. Survivors of a search are run so, where formulas take stages to be alike."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from formats.core.errors import InputError
from opmatrix.display.timeline import write_timeline
from opmatrix.microbatches.named import pipeline_tasks
from opmatrix.microbatches.simulated import ChunkWork, Simulated, bars_of, simulate
from opmatrix.planner.layer_work import LayerWork
from opmatrix.planner.memory_parts import kept_bytes
from opmatrix.planner.step_parts import Setting, layer_parts, loss_parts, pass_parts, send_parts, sum_parts
from opmatrix.split.axis_states import bounds
from opmatrix.strategies.plans import PlanChoice
from opmatrix.strategies.uneven_cuts import cut_layers

MOST_TASKS = 20_000                                         # of a pipeline that is run
DRAWN = 16_000                                              # tasks of a picture


@dataclass(frozen=True)
class StageTimes:
    """A pipeline that was run: layers of each chunk, its tasks, and seconds of a step with what follows them."""
    cut: tuple[int, ...]
    ran: Simulated
    after: float

    @property
    def seconds(self) -> float: return float(self.ran.seconds) + self.after


def pass_seconds(setting: Setting, work: LayerWork, last: bool = False) -> tuple[float, float]:
    """Seconds of a layer forward, and backward with what is computed again; behind the last with the loss."""
    forward = float(sum_parts(pass_parts(setting, work, "forward")))
    whole = float(sum_parts(layer_parts(setting, work))) + (float(sum_parts(loss_parts(setting))) if last else 0)
    return forward, whole - forward


def even_cut(layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk, the first ones with one more where they do not divide."""
    return tuple(end - begin for begin, end in (bounds(layers, chunks, at) for at in range(chunks)))


def run_stages(choice: PlanChoice, cut: Sequence[int] | None = None, micro_batches: int | None = None) -> StageTimes:
    """The pipeline of a strategy, task by task, by layers of each chunk, even without them. Raises InputError for more
    tasks than are run."""
    setting, own = choice.prediction.setting, choice.sizes
    chunks, count = own["pp"] * own["virtual"], round(float(setting.micro_batches))
    m = min(count, micro_batches or count)
    if (tasks := 2 * chunks * m) > MOST_TASKS:
        raise InputError(f"pipeline: {tasks} tasks: at most {MOST_TASKS} are run one by one")
    each = [pass_seconds(setting, work) for work, times in setting.model.layers for _ in range(times)]
    kept = [float(kept_bytes(setting, work)) for work, times in setting.model.layers for _ in range(times)]
    cut = tuple(cut or even_cut(len(each), chunks))
    works, at = [], 0
    for chunk, layers in enumerate(cut):
        ends = [pass_seconds(setting, setting.model.first)] if chunk == 0 else []
        if chunk == chunks - 1: ends.append(pass_seconds(setting, setting.model.last, last=True))
        forward, backward = (sum(pair[k] for pair in [*each[at:at + layers], *ends]) for k in (0, 1))
        works.append(ChunkWork(forward, backward, kept=sum(kept[at:at + layers]),
                               kept_for_gradients=sum(kept[at:at + layers])))
        at += layers
    graph = pipeline_tasks(schedule_of(choice), own["pp"], m)
    sent = float(sum_parts(send_parts(setting))) / (2 * own["virtual"])
    parts = choice.prediction.seconds
    after = sum(float(seconds) for name, seconds in parts.items() if name.startswith(("gradients", "weights", "optim")))
    return StageTimes(cut, simulate(graph, works, sent), after)


def schedule_of(choice: PlanChoice) -> str:
    """What the schedule is called where its tasks are listed."""
    chunks = choice.sizes["virtual"]
    return f"interleaved:{chunks}" if chunks > 1 else "1f1b" if choice.form.schedule == "interleaved" \
        else choice.form.schedule


def best_cut(choice: PlanChoice) -> tuple[int, ...] | None:
    """Layers of each stage such that the slowest is as quick as it can be; None where that is the even cut, where a
    stage has several chunks, and where there is one."""
    setting, own = choice.prediction.setting, choice.sizes
    if own["pp"] == 1 or own["virtual"] > 1: return None
    costs = [sum(pass_seconds(setting, work)) for work, times in setting.model.layers for _ in range(times)]
    found = cut_layers(costs, own["pp"], sum(pass_seconds(setting, setting.model.first)),
                       sum(pass_seconds(setting, setting.model.last, last=True)))
    return None if found is None or found == even_cut(len(costs), own["pp"]) else found


def draw_step(choice: PlanChoice, path: Path, title: str) -> Path:
    """A picture or a trace of the pipeline of a strategy, with as many micro-batches as it shows."""
    chunks = choice.sizes["pp"] * choice.sizes["virtual"]
    stages = choice.sizes["pp"]
    most = max(stages, DRAWN // (2 * chunks) // stages * stages)
    count = round(float(choice.prediction.setting.micro_batches))
    ran = run_stages(choice, best_cut(choice), min(count, most)).ran
    if count > most: title += f", the first {most} of {count} micro-batches"
    return write_timeline(path, bars_of(ran), [f"stage {at}" for at in range(stages)], title)
