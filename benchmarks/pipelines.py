"""Six pipelines of one model on four ranks: whether their times come in the order in which they are foreseen.

    python benchmarks/pipelines.py [--width 256] [--tokens 64] [--micro-batches 8] [--runs 5]
        [--pipelines 1f1b:3+3+3+3,gpipe:1+2+2+7] [--csv OUT]

A GPT-2 of drawn weights is trained by `opmatrix.launching`: four processes, one BLAS thread each, gloo between them, a
stage each; stages have as many layers, or not. Foreseen: the operations of each pass, from formulas, in the order of
the schedule, with no machine and nothing measured (opmatrix/microbatches/simulated.py). On fewer processors than ranks
those that compute share them evenly; on as many that is the simulation itself. Measured: the median step after the
first. The bar is of the two fastest."""
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from lib import command
from lib.command import Figure, Parser, concluded, cores, count, listed, spread, tabled, takes, within

import numpy as np

from formats.core.errors import InputError
from opmatrix.launching.jobs import Job
from opmatrix.launching.launcher import Ranks
from opmatrix.microbatches.simulated import ChunkWork, simulate
from opmatrix.microbatches.tasks import Task, TaskGraph
from opmatrix.split.moving import BatchSizes
from opmatrix.training.timed_step import timed_step

RANKS, WORDS = 4, 64
SIX = "1f1b:3+3+3+3,1f1b:6+2+2+2,1f1b:7+2+2+1,gpipe:1+2+2+7,1f1b:8+2+1+1,1f1b:9+1+1+1"
COLUMNS = "pipeline", "stages", "micro_batches", "foreseen", "on_these_processors", "measured_seconds", "spread"


class Pipeline(NamedTuple):
    """A schedule, layers of each stage, micro-batches of a batch."""
    schedule: str
    stages: Sequence[int]
    micro_batches: int

    def __str__(self) -> str: return f"{self.schedule} {'+'.join(map(str, self.stages))} x {self.micro_batches}"


def pipelines(text: str, micro_batches: int) -> list[Pipeline]:
    """Schedules with the layers of each stage, between commas. Micro-batches are as large in all, so passes of a layer
    are alike. Raises InputError for what is no pipeline of four stages, and for models that are not the same."""
    made = []
    for word in listed(text):
        schedule, _, stages = word.partition(":")
        layers = [int(each) for each in stages.split("+") if each.isdigit() and int(each)]
        if len(layers) != RANKS or len(stages.split("+")) != RANKS:
            raise InputError(f"--pipelines {word}: a schedule and the layers of {RANKS} stages, such as 1f1b:3+3+3+3")
        made.append(Pipeline(schedule, layers, micro_batches))
        if sum(layers) != sum(made[0].stages):
            raise InputError(f"--pipelines {word}: it has {sum(layers)} layers, and {made[0]} {sum(made[0].stages)}: "
                             "give as many")
    return made


def shared(graph: TaskGraph, works: Sequence[ChunkWork], processors: int) -> float:
    """The seconds of a pipeline whose stages share so many processors, evenly among those that compute."""
    heads, left, done, now = [0] * graph.stages, dict[int, float](), set[Task](), 0.0
    while True:
        for stage, slots in enumerate(graph.slots):
            if stage in left or heads[stage] == len(slots): continue
            slot = slots[heads[stage]]
            if all(need in done or need in slot for task in slot for need in graph.needs(task)):
                left[stage] = float(sum(works[task.chunk].seconds(task, task[1:] in graph.deferred) for task in slot))
        if not left: return now
        rate, soonest = min(1.0, processors / len(left)), min(left.values())
        now += soonest / rate
        for stage in [*left]:
            left[stage] -= soonest
            if left[stage] > 0: continue
            del left[stage]
            done.update(graph.slots[stage][heads[stage]])
            heads[stage] += 1


def foreseen(each: Pipeline, job: Job, processors: int) -> tuple[float, float]:
    """What a step takes in operations, where each stage has a processor, and where they share these."""
    sequences, tokens = job.feed.x.shape
    found = timed_step(job.operator(), job.mesh, BatchSizes(sequences, tokens), each.schedule, each.micro_batches,
                       stages=each.stages)
    alone = simulate(found.graph, found.works).seconds
    assert abs(shared(found.graph, found.works, RANKS) / alone - 1) < 1e-9
    return alone, shared(found.graph, found.works, processors)


def job_of(each: Pipeline, options) -> Job:
    """What ranks are asked to train."""
    config = dict(model_type="gpt2", vocab_size=WORDS, n_embd=options.width, n_positions=options.tokens, n_head=4,
                  n_layer=sum(each.stages))
    ids = np.random.default_rng(0).integers(0, WORDS, (options.micro_batches, options.tokens + 1))
    return Job(config, dict(pp=(RANKS, "pipeline")), ids, steps=1 + options.runs, stages=each.stages,
               train=dict(schedule=each.schedule, micro_batches=each.micro_batches))


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--pipelines", default=SIX, help="schedules with the layers of each stage")
    parser.add_argument("--width", type=count, default=256, help="a multiple of four")
    parser.add_argument("--tokens", type=count, default=64, help="of each sequence")
    parser.add_argument("--micro-batches", type=count, default=8, help="of a sequence each")
    parser.add_argument("--runs", type=count, default=5, help="steps behind the first")
    options = parser.parse_args()
    if options.width % 4: parser.error(f"--width {options.width}: a multiple of 4")
    among = pipelines(options.pipelines, options.micro_batches)
    within("runs", options.runs, 100)
    takes(len(among) * (8 + 2 * options.runs))
    rows = []
    print(f"{'pipeline':<24}{'foreseen':>10}{'shared':>8}  measured")
    with Ranks(RANKS, deadline=120) as ranks:
        for each in among:
            job = job_of(each, options)
            alone, own = (found / 1e9 for found in foreseen(each, job, cores()))
            seconds = ranks.run(job).seconds[1:]
            rows.append((str(each), "+".join(map(str, each.stages)), each.micro_batches, alone, own, median(seconds),
                         spread(seconds)))
            print(f"{each!s:<24}{alone:>10.3f}{own:>8.3f}  {median(seconds):.3f} s", flush=True)
    tabled(options.csv, [COLUMNS, *rows])
    by_time, by_share, by_alone = (sorted(rows, key=lambda row: row[at]) for at in (5, 4, 3))
    print(f"\nbillions of operations on a stage of its own, and on {cores()} processors that {RANKS} ranks share")
    for what, order in (("measured", by_time), ("foreseen", by_share), ("of stages apart", by_alone)):
        print(f"{what:<16}" + " < ".join(row[0] for row in order))
    unlike = (k for k, (one, other) in enumerate(zip(by_time, by_share, strict=True)) if one != other)
    agreeing = next(unlike, len(rows))
    concluded(options, [Figure("fastest pipelines that come in the order foreseen", agreeing, least=2),
                        Figure("processors of four ranks", cores())])
    return int(agreeing < 2)


if __name__ == "__main__": command.run(main)
