"""Pools of devices: the best split by a bound is the best of all splits, and arrays that cross are counted."""

from dataclasses import replace
from functools import cache

import pytest
from planned_models import MODEL

from formats.core.errors import InputError
from opmatrix.models import known
from opmatrix.parallel.cost.memory_parts import STATE, driver_bytes
from opmatrix.parallel.questions.fewest_devices import fastest_on
from opmatrix.parallel.questions.pool_splits import (
    EVERY_WAY,
    POOL_PAIRS,
    PoolLimits,
    PoolsPlan,
    collective_seconds_of,
    plan_pools,
    pool_pair,
    same_layout,
    split_devices,
    take_turns,
)
from opmatrix.parallel.questions.pool_text import pools_csv, pools_json, pools_text
from opmatrix.parallel.search.plans import AskedPlan
from rewrites.cli.options import DevicePools

DEVICES, BATCH, SEQ, REPLY = 6, 12, 2048, 256
LIMITS = PoolLimits(REPLY)
ASKED = AskedPlan(BATCH, SEQ, memory=16e9).question(MODEL, DEVICES, "H100")


@cache
def pair_of(names):
    return pool_pair(ASKED, names, LIMITS)


@pytest.mark.parametrize("names", POOL_PAIRS)
def test_the_best_split_is_the_best_of_all(names):
    """Every split is priced from pools that are searched alone; the bound is under what each pool takes."""
    pair, periods = pair_of(names), list[float]()
    for count in range(1, DEVICES):
        first, second = pair.first.best_on(count), pair.second.best_on(DEVICES - count)
        if first is None or second is None:
            continue
        assert pair.second.least_period(DEVICES - count) <= second.period
        crossing = pair.crossing(first, second)
        slower = max(first.period, second.period)
        periods.append(max(slower, crossing.period) if names.endswith("decode") else slower + crossing.period)
    assert len(periods) > 2 and all(pair_of(names).first.best_on(n) is not None for n in (1, DEVICES))
    for keep in (1, 3):
        splits = split_devices(pair, keep)
        assert [split.period for split in splits.best] == sorted(periods)[:keep]
        assert splits.searched <= splits.count == DEVICES - 1


@pytest.mark.parametrize("names", POOL_PAIRS)
def test_a_pool_has_the_highest_rate_of_its_batches(names):
    """No number of sequences at a time is faster, each searched as a question of its own."""
    for pool in (pair_of(names).first, pair_of(names).second):
        share, alone = pool.best_on(4), list[float]()
        for batch in pool.batches(4):
            choice = fastest_on(replace(pool.question, devices=4, batch=batch), pool.programs)
            alone += [] if choice is None else [pool.rounds * choice.seconds / batch]
        assert share.period == pytest.approx(min(alone), rel=1e-12) and share.choice.bytes <= ASKED.room
        assert BATCH % share.batch == 0 or pool.question.phase != "rollout"


def test_caches_and_weights_cross_as_collectives():
    """A device sends its part of the caches of a batch; every device that generates receives its weights."""
    pair = pair_of("prefill,decode")
    first, second = pair.first.best_on(2), pair.second.best_on(4)
    crossing = pair.crossing(first, second)
    caches = (
        2 * 2 * 16 * 8 * 128 * (SEQ - REPLY) * first.batch
    )  # bytes, keys and values, layers, heads, columns, tokens
    assert crossing.payload * 2 >= caches and crossing.batch == first.batch
    assert crossing.payload == max(caches / 2, caches / 4)
    assert crossing.seconds == collective_seconds_of("send", crossing.payload, 2, (pair.link,), ASKED)
    slow = pool_pair(ASKED, "prefill,decode", PoolLimits(REPLY, link="1e-3"))
    split = split_devices(slow, 1).best[0]
    assert split.period == split.crossing.period > crossing.period  # the link is the slowest pool
    pair = pair_of("rollout,train")
    first, second = pair.first.best_on(2), pair.second.best_on(4)
    crossing = pair.crossing(first, second)
    assert crossing.payload == max(first.choice.prediction.memory["weights"], pair.weight_bytes / 4)
    assert pair.weight_bytes == pytest.approx(2 * 1.0e9, rel=0.2) and crossing.batch == BATCH


@pytest.mark.parametrize("names", POOL_PAIRS)
def test_turns_are_the_best_pair_that_fits(names):
    """All pairs are priced: what stays on the devices has room, and one layout crosses no link."""
    pair, periods = pair_of(names), list[float]()
    shares = [[*pool.shares(DEVICES, EVERY_WAY)] for pool in (pair.first, pair.second)]
    for first in shares[0]:
        for second in shares[1]:
            step, memory = first.choice.prediction, second.choice.prediction.memory
            crossing = pair.laid_anew(first, second)
            alike = same_layout(first, second)
            assert (crossing.payload == crossing.seconds == 0) == alike
            if names.endswith("train"):
                stays = sum(memory[name] for name in STATE) - alike * memory["weights"]
            else:
                stays = step.memory["caches"] / first.batch * max(second.batch - first.batch, 0)
            if driver_bytes(step.setting, step.allocated + stays) <= ASKED.room:
                periods.append(first.period + second.period + crossing.period)
    assert 0 < len(periods) and take_turns(pair).period == pytest.approx(min(periods), rel=1e-12)


def test_latencies_limit_batches_and_what_does_not_fit_is_refused():
    free = split_devices(pair_of("prefill,decode"), 1).best[0]
    first, later = free.first.choice.seconds, free.second.choice.seconds
    tight = pool_pair(ASKED, "prefill,decode", PoolLimits(REPLY, 0.9 * first, later))
    best = split_devices(tight, 1).best[0]
    assert best.first.choice.seconds <= 0.9 * first and best.second.choice.seconds <= later
    assert best.period >= free.period
    with pytest.raises(InputError, match=r"--devices 6: too few for both pools: prefill fits on none within 1e-09 s, "):
        plan_pools(ASKED, "prefill,decode", PoolLimits(REPLY, ttft=1e-9))


def test_a_token_behind_a_tower_is_within_its_bound():
    """The tower has run: no token of decode computes it again, nor does the bound."""
    config = known.configuration("llava-1.5-7b")
    text = config["text_config"] | dict(num_hidden_layers=2, vocab_size=512)
    few = config | dict(text_config=text, vision_config=config["vision_config"] | dict(num_hidden_layers=2))
    pool = pool_pair(AskedPlan(64, 1024).question(few, 2, "A100"), "prefill,decode", LIMITS).second
    share = pool.best_on(1)
    assert share.batch == 64 and 0 < pool.least_period(1) <= share.period


@pytest.mark.parametrize(
    "name, seq, pools, options, words",
    [
        ("t5-base", 114, "prefill,decode", {}, "--pools prefill,decode: t5 attends to keys of its encoder"),
        ("whisper-large-v2", 448, "rollout,train", {}, "--pools rollout,train: whisper attends to keys"),
        ("bert-large", 128, "prefill,decode", {}, "--pools prefill,decode: bert generates no tokens"),
        ("llava-1.5-7b", 576 + 31, "rollout,train", {}, "--reply 32: a prompt of 575 tokens, of which 576 are rows"),
        ("gpt2", 128, "prefill,decode", dict(stack="megatron"), "--stack megatron: it is of training"),
        ("gpt2", 128, "prefill,decode", dict(schedule="gpipe"), "--schedule gpipe: it is of training"),
    ],
)
def test_models_and_options_that_pools_lack_are_one_line(name, seq, pools, options, words):
    question = AskedPlan(BATCH, seq, **options).question(known.configuration(name), 2, "A100")
    with pytest.raises(InputError, match=words) as error:
        plan_pools(question, pools, PoolLimits(32))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("names", POOL_PAIRS)
def test_texts_rows_and_json_agree(names):
    """The help of the option names each pair."""
    pair = pair_of(names)
    plan = PoolsPlan("a model", pair, split_devices(pair, 2), take_turns(pair))
    figures, rows = pools_json(plan), pools_csv(plan).splitlines()
    assert names in DevicePools.__metadata__[0].help and len(rows) == 1 + 2 + 1
    text, best = pools_text(plan), figures["disaggregated"][0]
    assert f"{1 / best['seconds a sequence']:.4g}" in text and f"{REPLY} of them generated" in text
    first, second = figures["pools"]
    assert best[f"{first} devices"] + best[f"{second} devices"] == DEVICES
    assert best["generated tokens a second and device"] == REPLY / best["seconds a sequence"] / DEVICES
    assert figures["colocated"]["seconds a sequence"] == plan.turns.period and "in turn on all devices: " in text
