"""Six pipelines of one model on four ranks: whether their times come in the order in which they are foreseen.

    python benchmarks/pipelines.py [--width 256] [--tokens 64] [--micro-batches 8] [--runs 5]
        [--pipelines 1f1b:3+3+3+3,gpipe:1+2+2+7] [--csv OUT]

A GPT-2 of drawn weights is trained by `opmatrix.parallel.launch`: four processes, one BLAS thread each, gloo between
them, a stage each; stages have as many layers, or not. Foreseen: the seconds of a layer forward, backward and in
Adam's step, as one rank alone takes them, in the order of the schedule (opmatrix/parallel/schedules/simulated.py).
Ranks that compute at once share processors, caches and memory: how much one, two and four of them get done is
measured on passes of the same layers forward. No pipeline is looked at for any of it; what operations alone foresee
is printed, too. Measured: the median of steps after the first, in runs that take turns. The bar is of the two
fastest."""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from lib import command
from lib.command import Figure, Parser, concluded, cores, count, listed, spread, tabled, takes, within

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.parallel.cost.timed_step import timed_step
from opmatrix.parallel.launch.jobs import Job
from opmatrix.parallel.launch.launcher import Ranks
from opmatrix.parallel.launch.train_runs import train_plan
from opmatrix.parallel.ranks.ranks import Meter
from opmatrix.parallel.schedules.simulated import ChunkWork, simulate
from opmatrix.parallel.schedules.tasks import Task, TaskGraph
from opmatrix.parallel.train.train_ranks import TrainingRank

RANKS, WORDS = 4, 64
SIX = "1f1b:3+3+3+3,1f1b:6+2+2+2,1f1b:7+2+2+1,gpipe:1+2+2+7,1f1b:8+2+1+1,1f1b:9+1+1+1"
COLUMNS = "pipeline", "stages", "micro_batches", "operations", "foreseen_seconds", "measured_seconds", "spread"


class Pipeline(NamedTuple):
    """A schedule, layers of each stage, micro-batches of a batch."""

    schedule: str
    stages: Sequence[int]
    micro_batches: int

    def __str__(self) -> str:
        return f"{self.schedule} {'+'.join(map(str, self.stages))} x {self.micro_batches}"


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
            raise InputError(
                f"--pipelines {word}: it has {sum(layers)} layers, and {made[0]} {sum(made[0].stages)}: give as many"
            )
    return made


class LayerSeconds(NamedTuple):
    """What a layer takes for a micro-batch, and once a step."""

    forward: float
    backward: float
    learning: float


class TimedRank(TrainingRank):
    """One rank alone, which waits for nobody, and the seconds of each of its passes."""

    def timed(self, what: str, running):
        start = time.perf_counter()
        found = yield from running
        self.seconds[what].append(time.perf_counter() - start)
        return found

    def ahead(self, *given):
        return self.timed("forward", super().ahead(*given))

    def back(self, *given):
        return self.timed("backward", super().back(*given))

    def learn(self, *given):
        return self.timed("learning", super().learn(*given))


def layer_seconds(job: Job, layers: int, runs: int) -> LayerSeconds:
    """The seconds of a layer of a job's model on one rank in this process: medians of passes and steps."""
    train = train_plan(replace(job, axes={}, stages=None))
    rank, feeds, learning = TimedRank(train, next(train.mesh.places())), train.feeds(job.feed), list[float]()
    for _ in range(1 + runs):
        rank.seconds = defaultdict(list)
        for _ in rank.step(feeds, Meter()):
            raise AssertionError("one rank waits for nobody")
        learning.append(sum(rank.seconds["learning"]))
    return LayerSeconds(
        *(
            each / layers
            for each in (*(median(rank.seconds[what]) for what in ("forward", "backward")), median(learning[1:]))
        )
    )


def shared(
    graph: TaskGraph, works: Sequence[ChunkWork], done_at_once: Sequence[float], behind: Sequence[float] = (0,) * RANKS
) -> float:
    """The seconds of a pipeline whose stages share processors, evenly among those that compute: `done_at_once` is how
    much one, two, .. of them get done, beside one alone. `behind`: what each stage does when its passes are done."""
    heads, left, done, now = [0] * graph.stages, dict[int, float](), set[Task](), 0.0
    while True:
        for stage, slots in enumerate(graph.slots):
            if stage in left or heads[stage] > len(slots):
                continue
            if heads[stage] == len(slots):
                if behind[stage]:
                    left[stage] = behind[stage]
                else:
                    heads[stage] += 1
                continue
            slot = slots[heads[stage]]
            if all(need in done or need in slot for task in slot for need in graph.needs(task)):
                left[stage] = float(sum(works[task.chunk].seconds(task, task[1:] in graph.deferred) for task in slot))
        if not left:
            return now
        rate, soonest = done_at_once[len(left) - 1] / len(left), min(left.values())
        now += soonest / rate
        for stage in [*left]:
            left[stage] -= soonest
            if left[stage] > 0:
                continue
            del left[stage]
            done.update(*graph.slots[stage][heads[stage] : heads[stage] + 1])
            heads[stage] += 1


def foreseen(each: Pipeline, job: Job, layer: LayerSeconds, done_at_once: Sequence[float]) -> tuple[float, float]:
    """What a step takes in operations, where each stage has a processor, and in seconds where they share some."""
    sequences, tokens = job.feed.x.shape
    found = timed_step(
        job.operator(), job.mesh, BatchSizes(sequences, tokens), each.schedule, each.micro_batches, stages=each.stages
    )
    alone = simulate(found.graph, found.works).seconds
    assert abs(shared(found.graph, found.works, range(1, RANKS + 1)) / alone - 1) < 1e-9
    works = [ChunkWork(layers * layer.forward, layers * layer.backward) for layers in each.stages]
    return alone, shared(found.graph, works, done_at_once, [layers * layer.learning for layers in each.stages])


def at_once(options, layers: int) -> list[float]:
    """How much one, two, three and four ranks that compute at once get done, beside one alone: each a process that goes
    forward with a sequence of its own, so nothing crosses. Of three: between."""
    taken = {}
    for many in (1, 2, 4):
        ids = np.random.default_rng(0).integers(0, WORDS, (many, options.tokens)).tolist()
        with Ranks(many, deadline=120) as ranks:
            ran = ranks.run(Job(configuration(options, layers), dict(dp=(many, "data")), ids, 1 + 4 * options.runs))
        taken[many] = median(seconds for own in ran.apart.values() for seconds in own[1:])
    done = {many: many * taken[1] / taken[many] for many in taken}
    return [done[1], done[2], (done[2] + done[4]) / 2, done[4]]


def configuration(options, layers: int) -> dict[str, object]:
    return dict(
        model_type="gpt2", vocab_size=WORDS, n_embd=options.width, n_positions=options.tokens, n_head=4, n_layer=layers
    )


def job_of(each: Pipeline, options) -> Job:
    """What ranks are asked to train."""
    config = configuration(options, sum(each.stages))
    ids = np.random.default_rng(0).integers(0, WORDS, (options.micro_batches, options.tokens + 1))
    return Job(
        config,
        dict(pp=(RANKS, "pipeline")),
        ids,
        steps=2,
        stages=each.stages,
        train=dict(schedule=each.schedule, micro_batches=each.micro_batches),
    )


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--pipelines", default=SIX, help="schedules with the layers of each stage")
    parser.add_argument("--width", type=count, default=256, help="a multiple of four")
    parser.add_argument("--tokens", type=count, default=64, help="of each sequence")
    parser.add_argument("--micro-batches", type=count, default=8, help="of a sequence each")
    parser.add_argument("--runs", type=count, default=5, help="of each pipeline, which take turns")
    options = parser.parse_args()
    if options.width % 4:
        parser.error(f"--width {options.width}: a multiple of 4")
    among = pipelines(options.pipelines, options.micro_batches)
    within("runs", options.runs, 100)
    takes(20 + 8 * len(among) * options.runs)
    rows, layers, jobs = [], sum(among[0].stages), [job_of(each, options) for each in among]
    layer, done = layer_seconds(jobs[0], layers, options.runs), at_once(options, layers)
    taken: list[list[float]] = [[] for _ in among]
    with Ranks(RANKS, deadline=120) as ranks:
        for _ in range(options.runs):
            for job, own in zip(jobs, taken, strict=True):
                own.append(ranks.run(job).later)
    print(f"{'pipeline':<24}{'operations':>12}{'foreseen':>12}{'measured':>12}")
    for each, job, seconds in zip(among, jobs, taken, strict=True):
        alone, shares = foreseen(each, job, layer, done)
        rows.append(
            (
                str(each),
                "+".join(map(str, each.stages)),
                each.micro_batches,
                alone,
                shares,
                median(seconds),
                spread(seconds),
            )
        )
        print(f"{each!s:<24}{alone / 1e9:>10.3f} G{shares:>10.3f} s{median(seconds):>10.3f} s", flush=True)
    tabled(options.csv, [COLUMNS, *rows])
    by_time, by_share, by_alone = (sorted(rows, key=lambda row: row[at]) for at in (5, 4, 3))
    print(
        f"\na layer: {1e3 * layer.forward:.2f} ms forward, {1e3 * layer.backward:.2f} backward, once a step "
        f"{1e3 * layer.learning:.2f} for Adam. On {cores()} processors two, three, four ranks at once get "
        f"{', '.join(f'{each:.2f}' for each in done[1:])} times as much done as one"
    )
    for what, order in (("measured", by_time), ("foreseen", by_share), ("by operations", by_alone)):
        print(f"{what:<16}" + " < ".join(row[0] for row in order))
    unlike = (k for k, (one, other) in enumerate(zip(by_time, by_share, strict=True)) if one != other)
    agreeing = next(unlike, len(rows))
    concluded(
        options,
        [
            Figure("fastest pipelines that come in the order foreseen", agreeing, least=2),
            Figure("what four ranks at once get done, beside one", done[-1]),
            Figure("processors of four ranks", cores()),
        ],
    )
    return int(agreeing < 2)


if __name__ == "__main__":
    command.run(main)
