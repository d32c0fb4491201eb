"""Steps of four ranks that are processes over gloo beside those of ranks in one process; memory over 100 steps.

    python benchmarks/launched.py [--models tiny,small] [--meshes dp x tp,ring] [--rounds 3] [--steps 5] [--long 100]
        [--csv OUT]

LLaMAs of drawn weights on several meshes, forward and as steps of Adam. Seconds are those of a step after the first,
one BLAS thread each; rounds of both sides take turns, and the ratio of a round is of its medians. Ranks that are
processes have all processors, those in one process take turns on one. Memory is that of all ranks, from the tenth step
to the last one."""

import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

from lib import command
from lib.command import Figure, Parser, concluded, cores, count, listed, named, spread, tabled, takes, whole

import numpy as np

from opmatrix.parallel.launch.jobs import Job
from opmatrix.parallel.launch.launcher import Launched, Ranks
from opmatrix.parallel.launch.prepared import Prepared
from opmatrix.parallel.launch.train_runs import train_plan
from opmatrix.parallel.train.train_ranks import TrainingRank, virtual_step

RANKS, MOST, FLAT = 4, 1.3, 4.0  # processes, the bar of the ratio, megabytes
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
COLUMNS = "model", "mesh", "kind", "virtual_seconds", "launched_seconds", "ratio", "spread"


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


def compared(case: LaunchedCase, ranks: Ranks, rounds: int, steps: int) -> tuple[float, float, list[float]]:
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


def main() -> int:
    parser = Parser(__doc__)
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
    with Ranks(RANKS, deadline=120) as ranks:
        for case in cases:
            alone, apart, ratios = compared(case, ranks, options.rounds, options.steps)
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
    tabled(options.csv, [COLUMNS, *rows])
    concluded(options, [*figures, Figure("processors", cores())])
    return int(any(each.verdict == "missed" for each in figures))


if __name__ == "__main__":
    command.run(main)
