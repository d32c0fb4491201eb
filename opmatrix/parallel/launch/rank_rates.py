"""Rates of ranks that are processes of this machine, and the time that they take to meet, measured by running some. One
rank is timed in this process, all ranks over gloo. Bytes are those that the planner counts, so its prediction for such
a layer is the measurement."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from importlib.util import find_spec
from statistics import median
from typing import NamedTuple

import numpy as np

from formats.host.threads import available, single_blas
from formats.machine.collectives import wire_bytes
from formats.machine.datasheets import BYTES, Datasheet
from formats.machine.links import Link
from formats.machine.peaks import best
from opmatrix.models.config import Settings
from opmatrix.parallel.cost.constants import Constants
from opmatrix.parallel.cost.layer_work import model_work
from opmatrix.parallel.cost.step_parts import Setting, step_parts, sum_parts
from opmatrix.parallel.cost.strategies import Strategy
from opmatrix.parallel.launch.counters import NUMBER_BYTES
from opmatrix.parallel.launch.jobs import Job
from opmatrix.parallel.launch.launcher import Launched, Ranks
from opmatrix.parallel.launch.train_runs import train_plan
from opmatrix.parallel.ranks.ranks import Meter
from opmatrix.parallel.train.train_ranks import TrainingRank

SIDE, LAYERS, TIMED_STEPS, VOCABULARY = 512, 2, 5, 64
TINY_HEADS, WIDE_HEADS = (4, 4), (64, 64)  # columns of a head, tokens of a sequence
SLOWEST, FASTEST = 1e7, 1e13  # bounds of measured bytes a second
LOCAL_NUMBER, WIDER = "float32", 2  # formulas count float32, ranks have twice the bytes
LATENCY = 1e-6  # seconds of a message beside the time to meet
ASSUMED = 2e-3, 1e9  # `met` and `wire` where torch is absent


class RankRates(NamedTuple):
    """The measured rates of ranks."""

    product: float  # operations a second of one rank alone
    passed: float  # bytes a second of operations other than products
    issued: float  # seconds of an operation beside its numbers
    met: float  # seconds to meet, of two ranks with almost no numbers
    wire: float  # bytes a second of each rank, if all hand over at once
    processors: float  # throughput of all ranks at once, relative to one
    source: str  # origin of the rates

    def sheet(self, ranks: int, room: float) -> Datasheet:
        """Return the data sheet of one of `ranks` ranks, with `room` bytes of memory."""
        return Datasheet(
            "local",
            self.source,
            {LOCAL_NUMBER: self.product},
            {LOCAL_NUMBER: self.product},
            (1, 1, 1),
            (("memory", room, self.passed / WIDER),),
            processors=min(ranks, self.processors),
            links=(Link("processes", float("inf"), self.wire / WIDER, LATENCY),),
        )

    @property
    def constants(self) -> Constants:
        """The constants of the planner. Efficiencies are 1, because rates are measured."""
        return Constants(matrix=1, idle=0, memory=1, links=1, superstep=self.met, gap=self.issued, hidden=0)


def rank_rates(ranks: int) -> RankRates:
    """Return the rates of `ranks` ranks; rates that take torch to measure are assumed without it."""
    a = np.ones((SIDE, SIDE))
    with single_blas():
        product = 2 * SIDE**3 / best(lambda: a @ a)
        tiny, wide = (step_of_one(drawn_job(ranks, size)) for size in (TINY_HEADS, WIDE_HEADS))
    rates = RankRates(
        product,
        1.0,
        tiny / issued_operations(ranks),
        *ASSUMED,
        float(available()),
        f"measured: a product of {SIDE} x {SIDE} in float64, steps of one rank; collectives: assumed",
    )
    rates = rates._replace(passed=passed_bytes(rates, ranks, wide))
    return rates if ranks == 1 or find_spec("torch") is None else meeting_rates(rates, ranks, wide)


def meeting_rates(alone: RankRates, ranks: int, seconds: float) -> RankRates:
    """Return the rates with the time in which all ranks meet, and their throughput at once, given the seconds of a step
    of one rank."""
    with Ranks(ranks, deadline=60) as running:
        tiny, wide = (
            crossing_seconds(running.run(drawn_job(ranks, size, tp=(ranks, "tensor"))))
            for size in (TINY_HEADS, WIDE_HEADS)
        )
        at_once = running.run(drawn_job(ranks, WIDE_HEADS, dp=(ranks, "data")))
    moved = float(wire_bytes("all_reduce", NUMBER_BYTES * ranks * WIDE_HEADS[0] * WIDE_HEADS[1], ranks))
    computed = [
        sum(moment.end - moment.begin for moment in row if moment.what == "compute") for row in at_once.moments.values()
    ]
    return alone._replace(
        met=tiny / float(np.log2(ranks)) ** 0.5,
        wire=moved / max(wide - tiny, 0.01 * wide),
        processors=max(1.0, ranks * seconds / median(computed)),
        source=f"measured: a product of {SIDE} x {SIDE} in float64, steps of one rank, and of {ranks} over gloo",
    )


def drawn_config(ranks: int, size: tuple[int, int]) -> Settings:
    """Return the configuration of a GPT-2 with a head a rank."""
    return dict(
        model_type="gpt2",
        vocab_size=VOCABULARY,
        n_embd=ranks * size[0],
        n_positions=size[1],
        n_head=ranks,
        n_layer=LAYERS,
    )


def drawn_job(ranks: int, size: tuple[int, int], **axes: tuple[int, str]) -> Job:
    """Return steps of training, with a sequence for each rank of data."""
    sequences = axes.get("dp", (1, ""))[0]
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (sequences, size[1] + 1))
    return Job(drawn_config(ranks, size), axes, ids.tolist(), 1 + TIMED_STEPS, traced=True, train={})


def step_of_one(job: Job) -> float:
    """Return the seconds of a step of one rank in this process, the least of those after the first."""
    train, seconds = train_plan(job), list[float]()
    rank, feeds = TrainingRank(train, next(train.mesh.places())), train.feeds(job.feed)
    for _ in range(job.steps):
        begin = time.perf_counter()
        for _ in rank.step(feeds, Meter()):
            raise AssertionError("one rank waits for no other")
        seconds.append(time.perf_counter() - begin)
    return min(seconds[1:])


def issued_operations(ranks: int) -> int:
    """Return the number of operations of a step of the tiny model, as the planner counts them."""
    model = model_work(drawn_config(ranks, TINY_HEADS), "gathered")
    return 3 * sum(count * work.lines for work, count in ((model.first, 1), *model.layers, (model.last, 1)))


def passed_bytes(rates: RankRates, ranks: int, seconds: float) -> float:
    """Return the bytes a second by which the planner foresees a step of one rank in `seconds` seconds."""
    model = model_work(drawn_config(ranks, WIDE_HEADS), "gathered")
    strategy = Strategy(flash=False, precision=LOCAL_NUMBER, gradient_bytes=BYTES[LOCAL_NUMBER])
    low, high = SLOWEST, FASTEST
    for _ in range(50):
        middle = (low * high) ** 0.5
        sheet = rates._replace(passed=middle).sheet(1, 1e12)
        foreseen = sum_parts(step_parts(Setting(model, sheet, strategy, 1, WIDE_HEADS[1], rates.constants)))
        low, high = (middle, high) if float(foreseen) > seconds else (low, middle)
    return low


def crossing_seconds(ran: Launched) -> float:
    """Return the median seconds of a sum over all ranks in the last step, from when the last of them comes."""
    ended = defaultdict(list)
    for row in ran.moments.values():
        seen = Counter[int]()
        for moment in row:
            if moment.what != "all_reduce":
                continue
            ended[moment.at, seen[moment.at]].append(moment.end - moment.begin)
            seen[moment.at] += 1
    return median(map(min, ended.values()))
