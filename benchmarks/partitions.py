"""Partitions of models over ranks: random ones, steps and pipelines over gloo, plans for this machine."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from statistics import median
from typing import NamedTuple

from lib import command
from lib.command import (
    Figure,
    Parser,
    concluded,
    cores,
    count,
    followed,
    listed,
    named,
    spread,
    tabled,
    takes,
    whole,
    within,
)

import numpy as np
from partitioned import compared, random_arrays, random_case
from trained_ranks import noticed, random_training_case, trained

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.models import build
from opmatrix.parallel.cost.timed_step import timed_step
from opmatrix.parallel.launch.jobs import Job
from opmatrix.parallel.launch.launcher import Launched, Ranks
from opmatrix.parallel.launch.local_ranks import launch_job, launch_line, local_plan
from opmatrix.parallel.launch.prepared import Prepared
from opmatrix.parallel.launch.rank_rates import rank_rates
from opmatrix.parallel.launch.train_runs import train_plan
from opmatrix.parallel.ranks.ranks import Meter
from opmatrix.parallel.schedules.simulated import ChunkWork, simulate
from opmatrix.parallel.schedules.tasks import Task, TaskGraph
from opmatrix.parallel.train.train_ranks import TrainingRank, virtual_step

# ---- partitions

BAD = "wrong", "fault", "unnoticed"
CONTROLS = 4  # of so many cases one is a control, too
PARTITIONS_COLUMNS = ("seed", "strategies", "ranks", "outcome", "error", "advised", "seconds", "said")


class Outcome(NamedTuple):
    """What became of the case of a seed: relative error of the output, refusals that were followed."""

    seed: int
    strategies: str
    ranks: int
    outcome: str
    error: float
    advised: int
    seconds: float
    said: str

    @property
    def case(self) -> str:
        return f"seed {self.seed}"


def judge(seed: int, backward: bool = False) -> Outcome:
    """The case of a seed, run."""
    start = time.perf_counter()
    try:
        case, advised, found, outcome = (run_backward if backward else run_forward)(seed)
    except Exception as fault:
        return Outcome(seed, "", 0, "fault", np.nan, 0, time.perf_counter() - start, f"{type(fault).__name__}: {fault}")
    names = " ".join(f"{axis.strategy.name}:{axis.ranks}" for axis in case.mesh)
    said = "" if outcome == "right" else f"{case}: {found.differences[:2]}"
    return Outcome(seed, names, int(case.mesh.ranks), outcome, found.error, advised, time.perf_counter() - start, said)


def run_forward(seed):
    """A case forward, how often its mesh was changed, how it compares, what became of it."""
    case = random_case(seed)
    found = compared(build(case.config, random_arrays()), case.mesh, case.sequences, case.tokens)
    return case, len(case.advised), found, "right" if found.agrees else "wrong"


def run_backward(seed):
    """A case forward and backward, and every few the control."""
    case = random_training_case(seed)
    found = trained(case)
    if not found.agrees:
        return case, case.changed, found, "wrong"
    cut = any(axis.strategy.weights for axis in case.mesh)
    return case, case.changed, found, "unnoticed" if cut and seed % CONTROLS == 0 and not noticed(case) else "right"


def judged(many: int, seed: int, processes: int, backward: bool = False) -> Iterator[Outcome]:
    """The outcomes of so many cases."""
    seeds, one = range(seed, seed + many), partial(judge, backward=backward)
    if processes == 1:
        yield from map(one, seeds)
    else:
        with ProcessPoolExecutor(processes) as pool:
            yield from pool.map(one, seeds, chunksize=8)


def table(found: list[Outcome]) -> list[str]:
    """A line a strategy: in how many cases it had several ranks, right ones, and the largest error."""
    lines = [f"{'strategy':<22}{'cases':>6}{'right':>6}  largest error"]
    held: dict[str, list[Outcome]] = {}
    for each in found:
        for axis in each.strategies.split():
            if not axis.endswith(":1"):
                held.setdefault(axis.partition(":")[0], []).append(each)
    for name, cases in sorted(held.items()):
        right = sum(each.outcome == "right" for each in cases)
        lines.append(f"{name:<22}{len(cases):>6}{right:>6}  {max(each.error for each in cases):.1e}")
    axes = Counter(sum(not axis.endswith(":1") for axis in each.strategies.split()) for each in found)
    return [*lines, "", ", ".join(f"{axes[n]} of {n} axes" for n in sorted(axes) if n)]


def measure_partitions() -> int:
    """Draw random models on random meshes, and compare formulas of partitions with what virtual ranks count.

        python benchmarks/partitions.py [--backward] [--count 1000] [--seed 0] [--processes 2] [--csv OUT]

    Models of BERT, GPT-2, LLaMA and `transformer` of random sizes, heads, norms, gates, masks; meshes of one to
    three axes of any strategies that go together, 2 to 8 ranks, in any order; batches that nothing divides
    (tests/support/partitioned.py). `right`: operations, payload, wire, messages, stored numbers and peak of every
    rank are what the formulas say, exactly, and the output is one rank's to 1e-12. `advised`: meshes that were
    refused first, and then changed as the refusal says. What must not be: `wrong`, `fault` (an exception, or a
    refusal that advises nothing). Seconds are those of one model: its formulas, one rank's output and all virtual
    ranks.

    `--backward`: forward and backward under a random policy, a third with dropout (tests/support/trained_ranks.py).
    `right`: the counts are what the formulas say, sums of gradients and the peak of both ways, too, and gradients
    are one rank's to 1e-12. Where an axis cuts weights, every fourth runs again without the sums of the cotangents
    that matrices of cut rows give: the control. It must differ, or it is `unnoticed`."""
    parser = Parser(measure_partitions)
    parser.add_argument("--count", type=count, default=1000, help="models, each on a mesh")
    parser.add_argument("--seed", type=whole, default=0, help="of the first; the others follow")
    parser.add_argument("--processes", type=count, default=2)
    parser.add_argument("--backward", action="store_true", help="forward and backward, gradients and what is kept")
    options = parser.parse_args()
    takes(5 + (1.6 if options.backward else 0.4) * options.count / options.processes)
    found = followed(judged(options.count, options.seed, options.processes, options.backward), "models", BAD)
    for line in table(found):
        print(line)
    tabled(options.csv, [PARTITIONS_COLUMNS, *found])
    counts = Counter(each.outcome for each in found)
    figures = [Figure(f"{kind} of {len(found)} partitions", counts[kind], most=0) for kind in BAD]
    figures += [
        Figure(
            "largest error of " + ("gradients" if options.backward else "an output"),
            float(np.nanmax([each.error for each in found])),
            most=1e-12,
        ),
        Figure("meshes changed as a refusal says", sum(bool(each.advised) for each in found)),
        Figure("seconds of one, at the median", float(np.median([each.seconds for each in found])), "s"),
    ]
    concluded(options, figures)
    return int(any(counts[kind] for kind in BAD))


# ---- processes of this machine

PROCESSES, GPT2_WORDS = 4, 64  # ranks over gloo, and tokens of the models that they run


def gpt2_configuration(options, layers: int) -> dict[str, object]:
    """Return the configuration of a small GPT-2 of so many layers, by the options of a part."""
    return dict(
        model_type="gpt2",
        vocab_size=GPT2_WORDS,
        n_embd=options.width,
        n_positions=options.tokens,
        n_head=4,
        n_layer=layers,
    )


# ---- launched

MOST, FLAT = 1.3, 4.0  # the bar of the ratio, megabytes
LLAMA = dict(
    model_type="llama",
    vocab_size=64,
    max_position_embeddings=128,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    hidden_act="silu",
    num_attention_heads=4,
    num_key_value_heads=4,
)
MODELS = dict(
    tiny=(LLAMA | dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2), (4, 8)),
    small=(LLAMA | dict(hidden_size=256, intermediate_size=688, num_hidden_layers=4), (8, 64)),
)
MESHES = {
    "dp x tp": dict(dp=(2, "data"), tp=(2, "tensor")),
    "pp x tp": dict(pp=(2, "pipeline"), tp=(2, "sequence")),
    "ZeRO-3": dict(dp=(4, "zero3")),
    "ring": dict(cp=(4, "ring")),
    "ulysses": dict(cp=(4, "ulysses")),
}
LAUNCHED_COLUMNS = "model", "mesh", "kind", "virtual_seconds", "launched_seconds", "ratio", "spread"


class LaunchedCase(NamedTuple):
    """A model on a mesh, forward or as steps of training."""

    model: str
    mesh: str
    trains: bool

    def __str__(self) -> str:
        return f"{self.model}, {self.mesh}, {'training' if self.trains else 'forward'}"

    def job(self, steps: int) -> Job:
        config, (sequences, tokens) = MODELS[self.model]
        ids = np.random.default_rng(0).integers(0, 64, (sequences, tokens + self.trains)).tolist()
        often = 2 if "pp" in self.mesh else 1
        return Job(
            config, MESHES[self.mesh], ids, steps, scores=True, train=dict(micro_batches=often) if self.trains else None
        )


def in_one_process(job: Job) -> Callable[[], object]:
    """A step of all ranks in this process."""
    if job.train is None:
        ready, feed = Prepared(job.plan()), job.feed
        return lambda: ready.virtual(feed)
    train = train_plan(job)
    ranks, feeds = {place: TrainingRank(train, place) for place in train.mesh.places()}, train.feeds(job.feed)
    return lambda: virtual_step(train, ranks, feeds)


def seconds_of(step: Callable[[], object], steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        found.append(time.perf_counter() - start)
    return found


def launched_compared(case: LaunchedCase, ranks: Ranks, rounds: int, steps: int) -> tuple[float, float, list[float]]:
    """Median seconds of a step in one process and in several, and the ratio of each round."""
    step, alone, apart = in_one_process(case.job(1)), list[float](), list[float]()
    step()
    for _ in range(rounds):
        alone.append(median(seconds_of(step, steps)))
        apart.append(median(ranks.run(case.job(1 + steps)).seconds[1:]))
    return median(alone), median(apart), [b / a for a, b in zip(alone, apart, strict=True)]


def grown(ran: Launched) -> float:
    """Megabytes that all ranks have more after the last step than after the tenth."""
    return (ran.memory[-1] - ran.memory[min(9, len(ran.memory) - 1)]) / 2**20


def measure_launched() -> int:
    """Time steps of four ranks that are processes over gloo beside those of ranks in one process; memory over 100
    steps.

        python benchmarks/partitions.py launched [--models tiny,small] [--meshes dp x tp,ring] [--rounds 3]
                [--steps 5] [--long 100] [--csv OUT]

    LLaMAs of drawn weights on several meshes, forward and as steps of Adam. Seconds are those of a step after the
    first, one BLAS thread each; rounds of both sides take turns, and the ratio of a round is of its medians. Ranks
    that are processes have all processors, those in one process take turns on one. Memory is that of all ranks,
    from the tenth step to the last one."""
    parser = Parser(measure_launched)
    parser.add_argument("--models", default="tiny,small", help=", ".join(MODELS))
    parser.add_argument("--meshes", default=",".join(MESHES), help=", ".join(MESHES))
    parser.add_argument("--rounds", type=count, default=3, help="of each side in turn")
    parser.add_argument("--steps", type=count, default=5, help="of a round, behind the first")
    parser.add_argument("--long", type=whole, default=100, help="steps of memory; 0: none")
    options = parser.parse_args()
    models, meshes = listed(options.models), listed(options.meshes)
    named("models", models, MODELS)
    named("meshes", meshes, MESHES)
    cases = [LaunchedCase(model, mesh, trains) for model in models for mesh in meshes for trains in (False, True)]
    takes(len(cases) * (4 + options.rounds * options.steps / 2) + options.long / 4)
    rows, figures = [], list[Figure]()
    print(f"{'a step of four ranks':<28}{'virtual':>12}{'launched':>12}{'ratio':>8}")
    with Ranks(PROCESSES, deadline=120) as ranks:
        for case in cases:
            alone, apart, ratios = launched_compared(case, ranks, options.rounds, options.steps)
            rows.append(
                (
                    case.model,
                    case.mesh,
                    "training" if case.trains else "forward",
                    alone,
                    apart,
                    median(ratios),
                    spread(ratios),
                )
            )
            print(f"{case!s:<28}{1e3 * alone:>9.2f} ms{1e3 * apart:>9.2f} ms{median(ratios):>8.2f}", flush=True)
            figures.append(Figure(f"{case}: launched over virtual", median(ratios), spread=spread(ratios), most=MOST))
        for trains in (False, True) if options.long else ():
            case = LaunchedCase(models[0], meshes[0], trains)
            more = grown(ranks.run(case.job(options.long)))
            figures.append(Figure(f"{case}: memory of {options.long} steps grows", more, "MB", most=FLAT))
    tabled(options.csv, [LAUNCHED_COLUMNS, *rows])
    concluded(options, [*figures, Figure("processors", cores())])
    return int(any(each.verdict == "missed" for each in figures))


# ---- pipelines

SIX = "1f1b:3+3+3+3,1f1b:6+2+2+2,1f1b:7+2+2+1,gpipe:1+2+2+7,1f1b:8+2+1+1,1f1b:9+1+1+1"
PIPELINES_COLUMNS = (
    "pipeline",
    "stages",
    "micro_batches",
    "operations",
    "foreseen_seconds",
    "measured_seconds",
    "spread",
)


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
        if len(layers) != PROCESSES or len(stages.split("+")) != PROCESSES:
            raise InputError(
                f"--pipelines {word}: a schedule and the layers of {PROCESSES} stages, such as 1f1b:3+3+3+3"
            )
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
    graph: TaskGraph,
    works: Sequence[ChunkWork],
    done_at_once: Sequence[float],
    behind: Sequence[float] = (0,) * PROCESSES,
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
    assert abs(shared(found.graph, found.works, range(1, PROCESSES + 1)) / alone - 1) < 1e-9
    works = [ChunkWork(layers * layer.forward, layers * layer.backward) for layers in each.stages]
    return alone, shared(found.graph, works, done_at_once, [layers * layer.learning for layers in each.stages])


def at_once(options, layers: int) -> list[float]:
    """How much one, two, three and four ranks that compute at once get done, beside one alone: each a process that goes
    forward with a sequence of its own, so nothing crosses. Of three: between."""
    taken = {}
    for many in (1, 2, 4):
        ids = np.random.default_rng(0).integers(0, GPT2_WORDS, (many, options.tokens)).tolist()
        with Ranks(many, deadline=120) as ranks:
            ran = ranks.run(
                Job(gpt2_configuration(options, layers), dict(dp=(many, "data")), ids, 1 + 4 * options.runs)
            )
        taken[many] = median(seconds for own in ran.apart.values() for seconds in own[1:])
    done = {many: many * taken[1] / taken[many] for many in taken}
    return [done[1], done[2], (done[2] + done[4]) / 2, done[4]]


def job_of(each: Pipeline, options) -> Job:
    """What ranks are asked to train."""
    config = gpt2_configuration(options, sum(each.stages))
    ids = np.random.default_rng(0).integers(0, GPT2_WORDS, (options.micro_batches, options.tokens + 1))
    return Job(
        config,
        dict(pp=(PROCESSES, "pipeline")),
        ids,
        steps=2,
        stages=each.stages,
        train=dict(schedule=each.schedule, micro_batches=each.micro_batches),
    )


def measure_pipelines() -> int:
    """Time six pipelines of one model on four ranks, and compare their order with the predicted one.

        python benchmarks/partitions.py pipelines [--width 256] [--tokens 64] [--micro-batches 8] [--runs 5]
                [--pipelines 1f1b:3+3+3+3,gpipe:1+2+2+7] [--csv OUT]

    A GPT-2 of drawn weights is trained by `opmatrix.parallel.launch`: four processes, one BLAS thread each, gloo
    between them, a stage each; stages have as many layers, or not. Foreseen: the seconds of a layer forward,
    backward and in Adam's step, as one rank alone takes them, in the order of the schedule
    (opmatrix/parallel/schedules/simulated.py). Ranks that compute at once share processors, caches and memory: how
    much one, two and four of them get done is measured on passes of the same layers forward. No pipeline is looked
    at for any of it; what operations alone foresee is printed, too. Measured: the median of steps after the first,
    in runs that take turns. The bar is of the two fastest."""
    parser = Parser(measure_pipelines)
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
    with Ranks(PROCESSES, deadline=120) as ranks:
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
    tabled(options.csv, [PIPELINES_COLUMNS, *rows])
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


# ---- local_plans

LOCAL_PLANS_COLUMNS = "plan", "foreseen_seconds", "measured_seconds", "spread", "line"


def measure_local_plans() -> int:
    """Run six plans for four ranks of this machine by `launch`, and say whether the plan's first is among the two
    fastest.

        python benchmarks/partitions.py local_plans [--width 256] [--layers 4] [--tokens 64] [--batch 8] [--plans 6]
                [--rounds 5] [--steps 3] [--infer] [--csv OUT]

    A GPT-2 of drawn weights is planned as `opmatrix plan --machine local` does it: rates of ranks are measured,
    then every strategy that `launch` runs is foreseen; the fastest of each way to factor four ranks are taken. Each
    is run by four processes over gloo, one BLAS thread each, in rounds that take turns; a round's seconds are the
    median of its steps behind the first, a plan's the median of its rounds. The bar is of the plan's first; the
    orders are printed."""
    parser = Parser(measure_local_plans)
    parser.add_argument("--width", type=count, default=256, help="a multiple of four")
    parser.add_argument("--layers", type=count, default=4)
    parser.add_argument("--tokens", type=count, default=64, help="of each sequence")
    parser.add_argument("--batch", type=count, default=8, help="sequences")
    parser.add_argument("--plans", type=count, default=6, help="the best, of as many ways to factor the ranks")
    parser.add_argument("--rounds", type=count, default=5, help="of all plans, one after another")
    parser.add_argument("--steps", type=count, default=3, help="of a plan in a round, behind the first")
    parser.add_argument("--infer", action="store_true", help="a forward pass in place of a step of training")
    options = parser.parse_args()
    if options.width % 4:
        parser.error(f"--width {options.width}: a multiple of 4")
    within("rounds", options.rounds, 100)
    within("steps", options.steps, 100)
    within("plans", options.plans, 10, 2)
    takes(20 + 4 * options.plans * options.rounds)
    rates = rank_rates(PROCESSES)
    found = local_plan(
        gpt2_configuration(options, options.layers),
        PROCESSES,
        rates,
        batch=options.batch,
        seq=options.tokens,
        infer=options.infer,
        keep=options.plans,
        name="gpt2",
    )
    if len(found.best) < options.plans:
        raise InputError(f"--plans {options.plans}: there are {len(found.best)} ways to factor {PROCESSES} ranks")
    ids = (
        np.random.default_rng(0).integers(0, GPT2_WORDS, (options.batch, options.tokens + (not options.infer))).tolist()
    )
    jobs, seconds = [launch_job(found, each, ids, 1 + options.steps) for each in found.best], [[] for _ in found.best]
    with Ranks(PROCESSES, deadline=120) as ranks:
        for _ in range(options.rounds):
            for job, own in zip(jobs, seconds, strict=True):
                own.append(ranks.run(job).later)
    rows = [
        (str(each), each.seconds, median(own), spread(own), launch_line(found, each, "gpt2.json"))
        for each, own in zip(found.best, seconds, strict=True)
    ]
    print(f"{'foreseen':>10}{'measured':>12}")
    for name, foreseen, measured, _, _ in rows:
        print(f"{foreseen:>8.3f} s{measured:>10.3f} s  {name}")
    tabled(options.csv, [LOCAL_PLANS_COLUMNS, *rows])
    place = sorted(range(len(rows)), key=lambda at: rows[at][2]).index(0)
    print(
        f"\na rank alone: {rates.product / 1e9:.1f} Gflop/s, {rates.passed / 1e9:.2f} GB/s of what is no product, "
        f"{1e6 * rates.issued:.0f} us an operation; ranks meet in {1e3 * rates.met:.2f} ms, hand over "
        f"{rates.wire / 1e9:.2f} GB/s each, and get {rates.processors:.2f} times as much done as one"
    )
    concluded(
        options,
        [
            Figure("place of the plan's first among those measured", place + 1, most=2),
            Figure("its seconds over the fastest's", rows[0][2] / min(row[2] for row in rows)),
            Figure("processors of four ranks", cores()),
        ],
    )
    return int(place > 1)


if __name__ == "__main__":
    command.run_parts(measure_partitions, measure_launched, measure_pipelines, measure_local_plans)
