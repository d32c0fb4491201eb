"""Two pools of devices: prefill and decode of inference (Zhong et al. 2024, DistServe), or rollout and training of
reinforcement learning. Disaggregated, each has devices of its own, the exact best split of them is searched, and caches
or weights cross a link; colocated, both run on all devices in turn, and weights are laid out anew between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import NamedTuple

from formats.core.errors import InputError, suggest_name
from formats.machine.datasheets import Datasheet
from formats.machine.links import Link
from opmatrix.parallel.cost.constants import load_constants
from opmatrix.parallel.cost.level_seconds import collective_parts
from opmatrix.parallel.cost.memory_parts import STATE, driver_bytes
from opmatrix.parallel.cost.quantities import add_all
from opmatrix.parallel.cost.step_parts import stage_parameters
from opmatrix.parallel.questions.device_pools import DevicePool, PoolShare, whole_setting
from opmatrix.parallel.search.forms import StrategyForm
from opmatrix.parallel.search.plans import check_generating, check_tower_rows
from opmatrix.parallel.search.strategy_search import PlanQuestion

EVERY_WAY = 10**6  # ways to factor devices: all of them
SAME_LAYOUT = "dp", "tp", "pp", "cp", "ep", "virtual"  # sizes by which weights and caches are laid out


class PoolCrossing(NamedTuple):
    """Arrays on their way from one pool to the other, or from one layout to another."""

    payload: float  # bytes that the busiest device sends or receives
    seconds: float
    batch: int  # sequences for which they cross once

    @property
    def period(self) -> float:
        """Seconds of it for one sequence."""
        return self.seconds / self.batch


class DevicesSplit(NamedTuple):
    """Devices divided between both pools."""

    first: PoolShare
    second: PoolShare
    crossing: PoolCrossing
    period: float  # seconds for one sequence

    def busy(self, share: PoolShare) -> float:
        """Return the share of time in which a pool works."""
        return share.period / self.period


class PoolTurns(NamedTuple):
    """Both phases in turn on all devices."""

    first: PoolShare
    second: PoolShare
    crossing: PoolCrossing  # weights, and caches, that are laid out anew

    @property
    def period(self) -> float:
        """Seconds for one sequence."""
        return self.first.period + self.second.period + self.crossing.period


@dataclass(frozen=True)
class PoolLimits:
    """The limits and the link of pools."""

    reply: int  # tokens of a sequence that are generated
    ttft: float | None = None  # seconds to the first token: of a prefill pass
    tpot: float | None = None  # seconds of each token that follows
    link: str | None = None  # a level of the machine's links, or gigabytes a second


@dataclass(frozen=True)
class PoolPair(ABC):
    """Both pools with the link between them."""

    first: DevicePool
    second: DevicePool
    link: Link

    overlaps = False  # arrays cross while both pools work
    crossing_name = ""

    @property
    def question(self) -> PlanQuestion:
        """The inputs of the second pool."""
        return self.second.question

    @abstractmethod
    def crossing(self, first: PoolShare, second: PoolShare) -> PoolCrossing:
        """Return the arrays that cross from pool to pool."""

    @abstractmethod
    def laid_anew(self, first: PoolShare, second: PoolShare) -> PoolCrossing:
        """Return the arrays that are laid out anew in a turn of both phases."""

    @abstractmethod
    def fit_in_turn(self, first: PoolShare, second: PoolShare) -> bool:
        """True if both phases fit beside the arrays that stay between them."""

    def period(self, first: PoolShare, second: PoolShare, crossing: PoolCrossing) -> float:
        """Return the seconds of a sequence: of the slower pool; the link is a third pool where it overlaps."""
        slower = max(first.period, second.period)
        return max(slower, crossing.period) if self.overlaps else slower + crossing.period

    def over_link(self, op: str, payload: float, ranks: int, batch: int) -> PoolCrossing:
        """Return a collective over the link between the pools."""
        return PoolCrossing(payload, collective_seconds_of(op, payload, ranks, (self.link,), self.question), batch)

    def over_devices(self, payload: float, batch: int) -> PoolCrossing:
        """Return an all-to-all among all devices, over the levels of their links."""
        question = self.question
        links = question.machine.links
        seconds = collective_seconds_of("all_to_all", payload, question.devices, links, question) if payload else 0.0
        return PoolCrossing(payload, seconds, batch)


def collective_seconds_of(
    op: str, payload: float, ranks: int, links: tuple[Link, ...], question: PlanQuestion
) -> float:
    """Return the seconds of a collective of neighbouring ranks."""
    took = collective_parts(op, payload, ranks, 1, links, question.constants or load_constants())
    return float(add_all(seconds for _, seconds in took.moved) + took.waited)


def memory_of(share: PoolShare, name: str) -> float:
    """Return the bytes of a part of a strategy's memory."""
    return float(share.choice.prediction.memory[name])


def same_layout(first: PoolShare, second: PoolShare) -> bool:
    """True if two strategies store each weight on the same devices."""
    one, other = first.choice, second.choice
    equal = all(one.sizes[name] == other.sizes[name] for name in SAME_LAYOUT)
    stored = one.form.zero < 3 and other.form.zero < 3
    return equal and stored and one.form.order == other.form.order


class PrefillDecode(PoolPair):
    """Prompts are computed by one pool, replies by the other. Keys and values cross layer by layer while prompts are
    computed (Patel et al. 2024, Splitwise), and are not in the time to the first token, which prefill gives."""

    overlaps = True
    crossing_name = "caches"

    def crossing(self, first: PoolShare, second: PoolShare) -> PoolCrossing:
        """Return the caches of a prefill batch: each device sends its part, and receives that of its own layout."""
        payload = max(memory_of(first, "caches"), self.prompt_caches(second) * first.batch / second.batch)
        return self.over_link("send", payload, 2, first.batch)

    def prompt_caches(self, second: PoolShare) -> float:
        """Return the bytes of the caches of prompts on a rank of decode."""
        return memory_of(second, "caches") * (1 - self.question.reply / self.question.seq)

    def laid_anew(self, first: PoolShare, second: PoolShare) -> PoolCrossing:
        """Return weights there and back, and caches, once for all sequences that decode together."""
        if same_layout(first, second):
            return PoolCrossing(0, 0, second.batch)
        weights = memory_of(first, "weights") + memory_of(second, "weights")
        return self.over_devices(weights + self.prompt_caches(second), second.batch)

    def fit_in_turn(self, first: PoolShare, second: PoolShare) -> bool:
        """True if the last prefill pass fits beside the caches of all prompts that decode together."""
        waiting = memory_of(first, "caches") * max(second.batch / first.batch - 1, 0)
        step = first.choice.prediction
        return bool(driver_bytes(step.setting, step.allocated + waiting) <= self.question.room)


class RolloutTrain(PoolPair):
    """Sequences are generated by one pool while the other trains on those of the step before; behind each step new
    weights cross, and both wait for them."""

    crossing_name = "weights"

    @cached_property
    def weight_bytes(self) -> float:
        """Bytes of the weights of the model."""
        whole = whole_setting(self.question)
        return float(whole.number * stage_parameters(whole))

    def crossing(self, first: PoolShare, second: PoolShare) -> PoolCrossing:
        """Return new weights: each device that trains sends its share, and passed on from copy to copy they reach each
        device that generates."""
        received = memory_of(first, "weights")
        copies = max(round(received * first.devices / self.weight_bytes), 1)
        payload = max(received, self.weight_bytes / second.devices)
        return self.over_link("broadcast", payload, 1 + copies, self.question.batch)

    def laid_anew(self, first: PoolShare, second: PoolShare) -> PoolCrossing:
        """Return the weights of the layout that generates, once a step."""
        return self.over_devices(0 if same_layout(first, second) else memory_of(first, "weights"), self.question.batch)

    def fit_in_turn(self, first: PoolShare, second: PoolShare) -> bool:
        """True if a rollout fits beside the state of training, which stays on the devices."""
        state = sum(memory_of(second, name) for name in STATE)
        shared = memory_of(second, "weights") if same_layout(first, second) else 0
        step = first.choice.prediction
        return bool(driver_bytes(step.setting, step.allocated + state - shared) <= self.question.room)


def inference_question(question: PlanQuestion, phase: str, reply: int) -> PlanQuestion:
    """Return the question of a phase of inference. Tokens that are generated are on one context rank."""
    tokens = question.seq - reply if phase == "prefill" else question.seq
    fixed = () if phase == "prefill" else (("cp", 1), ("sequence", False))
    return replace(
        question,
        infer=True,
        phase=phase,  # type: ignore[arg-type]
        seq=tokens,
        reply=0 if phase == "prefill" else reply,
        fixed=fixed,
        stack=None,
        schedule=None,
    )


def prefill_decode(question: PlanQuestion, limits: PoolLimits, link: Link) -> PoolPair:
    """Return the pools of inference. Raises InputError for a stack and a schedule, which are of training."""
    for option, training in (("--stack", question.stack and question.stack.name), ("--schedule", question.schedule)):
        if training is not None:
            raise InputError(f"{option} {training}: it is of training, and --pools prefill,decode has none")
    prefill, decode = (inference_question(question, phase, limits.reply) for phase in ("prefill", "decode"))
    first = DevicePool("prefill", prefill, within=limits.ttft or inf)
    return PrefillDecode(first, DevicePool("decode", decode, True, limits.reply, limits.tpot or inf), link)


def rollout_train(question: PlanQuestion, limits: PoolLimits, link: Link) -> PoolPair:
    """Return the pools of reinforcement learning. Raises InputError for latencies, which are limits of inference."""
    for option, limit in (("--ttft", limits.ttft), ("--tpot", limits.tpot)):
        if limit is not None:
            raise InputError(f"{option} {limit:g}: it belongs to --pools prefill,decode")
    rollout = DevicePool("rollout", inference_question(question, "rollout", limits.reply))
    return RolloutTrain(rollout, DevicePool("train", question, free_batch=False), link)


POOL_PAIRS: Mapping[str, Callable[[PlanQuestion, PoolLimits, Link], PoolPair]] = {
    "prefill,decode": prefill_decode,
    "rollout,train": rollout_train,
}


def pool_pair(question: PlanQuestion, names: str, limits: PoolLimits) -> PoolPair:
    """Return the pools of these names. Raises InputError for unknown pools, a model that generates no tokens, limits
    that are none, one device, and a link that the machine lacks."""
    pair = names.replace(" ", "")
    if pair not in POOL_PAIRS:
        raise InputError(f"--pools {names}: {suggest_name(pair, POOL_PAIRS)}there are {' and '.join(POOL_PAIRS)}")
    check_generating(question.config, f"--pools {names}")
    if not any(product.causal for layer, _ in question.work(StrategyForm()).decoding for product in layer.products):
        raise InputError(
            f"--pools {names}: {question.config['model_type']} generates no tokens: each row sees all others"
        )
    if not 1 <= limits.reply < question.seq:
        raise InputError(f"--reply {limits.reply}: tokens that are generated, from 1 to {question.seq - 1} of --seq")
    check_tower_rows(question.config, question.seq - limits.reply, f"--reply {limits.reply}")
    for option, limit in (("--ttft", limits.ttft), ("--tpot", limits.tpot)):
        if limit is not None and not 0 < limit < inf:
            raise InputError(f"{option} {limit:g}: seconds, more than 0")
    if question.devices < 2:
        raise InputError("--devices 1: two pools need two devices at least")
    return POOL_PAIRS[pair](question, limits, link_between(question.machine, question.devices, limits.link))


def link_between(sheet: Datasheet, devices: int, stated: str | None) -> Link:
    """Return the link between the pools: that of a level, one of a stated rate, or by default the nearest level that
    has all devices. Raises InputError for a level that the machine lacks."""
    if stated is None:
        return next((link for link in sheet.links if link.devices >= devices), sheet.links[-1])
    names = {link.name: link for link in sheet.links}
    if stated in names:
        return names[stated]
    try:
        rate = 1e9 * float(stated)
    except ValueError:
        rate = 0.0
    if not 0 < rate < inf:
        raise InputError(
            f"--pool-link {stated}: a level of {sheet.name} ({', '.join(names)}), or gigabytes a second of a device"
        )
    return Link(f"{stated} GB/s", inf, rate, sheet.links[-1].latency)


@dataclass(frozen=True)
class FoundSplits:
    """The best splits of the devices, the fastest first; `searched` of `count` splits were searched in both pools, and
    the bound excludes the others."""

    best: tuple[DevicesSplit, ...]
    searched: int
    count: int


def split_devices(pair: PoolPair, keep: int) -> FoundSplits:
    """Return the best splits of the devices. The first pool is searched for each number of devices. Splits follow in
    the order of a bound: the seconds of the first pool, or the least of the second. Where the bound is no less than the
    seconds of the last that is kept, no later split is better."""
    devices, bounds = pair.question.devices, list[tuple[float, int]]()
    for count in range(1, devices):
        if (share := pair.first.best_on(count)) is not None:
            bounds.append((max(share.period, pair.second.least_period(devices - count)), count))
    best, searched = list[DevicesSplit](), 0
    for bound, count in sorted(bounds):
        if len(best) == keep and bound >= best[-1].period:
            break
        searched += 1
        first, second = pair.first.best_on(count), pair.second.best_on(devices - count)
        if first is not None and second is not None:
            crossing = pair.crossing(first, second)
            best.append(DevicesSplit(first, second, crossing, pair.period(first, second, crossing)))
            best = sorted(best, key=lambda split: split.period)[:keep]
    return FoundSplits(tuple(best), searched, devices - 1)


def take_turns(pair: PoolPair) -> PoolTurns | None:
    """Return the best pair of strategies that run in turn on all devices; None where no pair fits. Candidates are the
    fastest strategy of each way to factor the devices, for each number of sequences."""
    devices = pair.question.devices
    firsts, seconds = (
        sorted(pool.shares(devices, EVERY_WAY), key=lambda share: share.period) for pool in (pair.first, pair.second)
    )
    best: PoolTurns | None = None
    for first in firsts:
        for second in seconds:
            if best is not None and first.period + second.period >= best.period:
                break  # all later ones are slower
            turns = PoolTurns(first, second, pair.laid_anew(first, second))
            if (best is None or turns.period < best.period) and pair.fit_in_turn(first, second):
                best = turns
    return best


@dataclass(frozen=True)
class PoolsPlan:
    """The best splits of devices between two pools, and both in turn."""

    name: str
    pair: PoolPair
    splits: FoundSplits
    turns: PoolTurns | None

    def tokens_a_second(self, period: float) -> float:
        """Return the generated tokens a second of each device."""
        question = self.pair.question
        return self.reply / (period * question.devices)

    @property
    def reply(self) -> int:
        """The tokens of a sequence that are generated."""
        return self.pair.first.question.reply or self.pair.question.reply


def plan_pools(
    question: PlanQuestion, names: str, limits: PoolLimits, *, keep: int = 10, name: str | None = None
) -> PoolsPlan:
    """Plan two pools ("prefill,decode" or "rollout,train") for the model, devices and batch of a question of training.
    `batch` is the sequences at a time at most, of training those of a step. Raises InputError where neither a split of
    the devices nor turns on all of them fit."""
    pair = pool_pair(question, names, limits)
    splits, turns = split_devices(pair, keep), take_turns(pair)
    if not splits.best and turns is None:
        refuse_pools(pair)
    default = str(question.config.get("model_type", "model"))
    return PoolsPlan(name or default, pair, splits, turns)


def refuse_pools(pair: PoolPair) -> None:
    """Raise InputError, which names the pool that fits on no number of devices, or the fewest that each needs."""
    devices, needs = pair.question.devices, []
    for pool in (pair.first, pair.second):
        least = next((count for count in range(1, devices + 1) if pool.best_on(count) is not None), None)
        within = "" if pool.within == inf else f" within {pool.within:g} s"
        needs.append(f"{pool.name} fits on {'none' if least is None else least}{within}")
    raise InputError(
        f"--devices {devices}: too few for both pools: {', '.join(needs)}: give more devices, memory or time"
    )
