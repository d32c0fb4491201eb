"""Phases of inference: a forward pass of a batch (prefill), the next token (decode), and both one after the other
(rollout): their time and memory by a strategy, with the keys and values that stay. They are made of the same passes as
a step of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Literal, TypeAlias

from opmatrix.parallel.cost.layer_work import LayerWork
from opmatrix.parallel.cost.memory_parts import whole_bytes
from opmatrix.parallel.cost.prediction import Prediction
from opmatrix.parallel.cost.quantities import Quantity, least, most, step_at
from opmatrix.parallel.cost.step_parts import (
    PartSeconds,
    Setting,
    add_parts,
    known_pass,
    scale_parts,
    send_parts,
    stage_parameters,
    sum_parts,
    turn_parts,
)


def forward_parts(setting: Setting) -> PartSeconds:
    """Return the seconds until the last micro-batch has left the last stage, part by part."""
    strategy, model, m = setting.strategy, setting.model, setting.micro_batches

    def forward(work: LayerWork) -> PartSeconds:
        """Return the parts of a layer's forward pass."""
        return known_pass(setting, work, "forward")

    bodies = add_parts(*(scale_parts(forward(work), count) for work, count in model.layers))
    first, last, several = forward(model.first), forward(model.last), step_at(strategy.pp, 2)
    slowest = add_parts(scale_parts(bodies, 1 / strategy.pp), last, scale_parts(first, 1 - several))
    every, sent = sum_parts(bodies) + sum_parts(first) + sum_parts(last), scale_parts(send_parts(setting), 0.5)
    parts = scale_parts(add_parts(slowest, sent), m)
    parts["bubble"] = every - sum_parts(slowest) + (strategy.pp - 1) * sum_parts(sent)
    return add_parts(parts, turn_parts(setting, parts))


def cache_bytes(setting: Setting, width: int) -> Quantity:
    """Return the bytes of keys and values of all sequences on a rank of a stage; `width`: columns of a head of keys. A
    latent row is needed by every head, so each tensor rank has a copy."""
    strategy, model = setting.strategy, setting.model
    numbers = model.latent or 2 * width * model.key_heads / least(strategy.tp, model.key_heads)
    rows = setting.batch / strategy.dp * setting.seq / strategy.token_ranks
    return setting.number * numbers * (model.count - model.tower) / strategy.pp * rows


def predict_forward(setting: Setting, width: int) -> Prediction:
    """Predict the time and memory of a forward pass of a batch."""
    memory = cache_memory(setting, width) | {"working": largest_working(setting)}
    return Prediction(setting, forward_parts(setting), memory)


def cache_memory(setting: Setting, width: int) -> dict[str, Quantity]:
    """Return the bytes of weights, and of keys and values, on a rank."""
    return {"weights": setting.number * stage_parameters(setting), "caches": cache_bytes(setting, width)}


def largest_working(setting: Setting) -> Quantity:
    """Return the bytes that one layer works on, of the kind with the most."""
    return reduce(most, (whole_bytes(setting, work) for work in setting.model.kinds))


def predict_next_token(setting: Setting, width: int, reply: int = 0) -> Prediction:
    """Predict the time of one more token for each sequence, and the memory of a batch of `seq` tokens a sequence, of
    which `reply` are generated: half of these are there on the mean, while all of them have room. Every layer runs on
    one row of each sequence, and keys and values are read. A micro-batch goes through all stages before its next token
    starts: a token takes that long, or as long as a stage is busy with all micro-batches."""
    strategy, m = setting.strategy, setting.micro_batches
    model = setting.model._replace(source=0)  # a tower has run
    one = setting._replace(model=model, seq=strategy.token_ranks, passes=None)  # a token is on one context rank

    def forward(work: LayerWork) -> PartSeconds:
        """Return the parts of a layer's forward pass of one row."""
        return known_pass(one, work, "forward")

    bodies = add_parts(*(scale_parts(forward(work), count) for work, count in model.decoding))
    first: PartSeconds = {} if model.tower else forward(model.first)
    last, several = forward(model.last), step_at(strategy.pp, 2)
    met = setting._replace(seq=setting.seq - reply / 2)
    read = {"computation, caches": cache_bytes(met, width) / (m * setting.bandwidth)}
    sent = scale_parts(send_parts(one), 0.5)
    stage = add_parts(scale_parts(bodies, 1 / strategy.pp), last, scale_parts(first, 1 - several), read)
    through = sum_parts(bodies) + sum_parts(first) + sum_parts(last)
    through = through + (strategy.pp - 1) * sum_parts(sent) + strategy.pp * sum_parts(read)
    parts = scale_parts(add_parts(stage, sent), m)
    parts["bubble"] = most(through - sum_parts(parts), 0)
    memory = cache_memory(setting, width) | {"working": whole_bytes(one, model.decoding[0][0])}
    return Prediction(setting, parts, memory)


def predict_rollout(setting: Setting, width: int, reply: int) -> Prediction:
    """Predict the time and memory of a batch of `seq` tokens a sequence, of which `reply` are generated: a forward pass
    of the prompts, then token by token."""
    prompts = setting._replace(seq=setting.seq - reply, passes=None)
    token = predict_next_token(setting, width, reply)
    seconds = add_parts(forward_parts(prompts), scale_parts(token.seconds, reply))
    memory = cache_memory(setting, width) | {"working": largest_working(prompts)}
    return Prediction(setting, seconds, memory)


def next_token_seconds(setting: Setting, width: int) -> float:
    """Return the seconds of one more token for each sequence of a batch that is one micro-batch of each data rank."""
    strategy = setting.strategy
    whole = setting._replace(strategy=replace(strategy, micro_batch=setting.batch / strategy.dp))
    return float(predict_next_token(whole, width).step_seconds)


InferencePhase: TypeAlias = Literal["prefill", "decode", "rollout"]
INFERENCE_PHASES: Mapping[InferencePhase, Callable[[Setting, int, int], Prediction]] = {
    "prefill": lambda setting, width, _: predict_forward(setting, width),
    "decode": predict_next_token,
    "rollout": predict_rollout,
}
