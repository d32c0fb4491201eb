"""A forward pass of a batch, as a model is asked: what it takes and holds by a strategy, with the keys and values that
stay, and the token that follows. It is made of the passes that a step of training is made of."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from opmatrix.parallel.cost.layer_work import LayerWork
from opmatrix.parallel.cost.memory_parts import whole_bytes
from opmatrix.parallel.cost.prediction import Prediction
from opmatrix.parallel.cost.quantities import Quantity, add_all, least, step_at
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
    """Seconds until the last micro-batch has left the last stage, part by part."""
    own, model, m = setting.strategy, setting.model, setting.micro_batches

    def forward(work: LayerWork) -> PartSeconds: return known_pass(setting, work, "forward")
    bodies = add_parts(*(scale_parts(forward(work), count) for work, count in model.layers))
    first, last, several = forward(model.first), forward(model.last), step_at(own.pp, 2)
    slowest = add_parts(scale_parts(bodies, 1 / own.pp), last, scale_parts(first, 1 - several))
    every, sent = sum_parts(bodies) + sum_parts(first) + sum_parts(last), scale_parts(send_parts(setting), 0.5)
    found = scale_parts(add_parts(slowest, sent), m)
    found["bubble"] = every - sum_parts(slowest) + (own.pp - 1) * sum_parts(sent)
    return add_parts(found, turn_parts(setting, found))


def cache_bytes(setting: Setting, width: int) -> Quantity:
    """Bytes of keys and values of all sequences of a rank of a stage, heads of keys being so wide."""
    own, model = setting.strategy, setting.model
    heads = model.key_heads / least(own.tp, model.key_heads)
    return 2 * setting.number * heads * width * model.count / own.pp * setting.batch / own.dp * setting.seq / own.cp


def predict_forward(setting: Setting, width: int) -> Prediction:
    """Time and memory of a forward pass of a batch."""
    body = setting.model.layers[0][0]
    memory: Mapping[str, Quantity] = {
        "weights": setting.number * stage_parameters(setting), "caches": cache_bytes(setting, width),
        "working": whole_bytes(setting, body)}
    return Prediction(setting, forward_parts(setting), memory)


def next_token_seconds(setting: Setting, width: int) -> float:
    """Seconds of one token more for each sequence: every layer for one row of each, and keys and values are read."""
    own = setting.strategy
    one = setting._replace(seq=own.cp, passes=None,         # a token is on one rank of context
                           strategy=replace(own, micro_batch=setting.batch / own.dp))
    layers = [(setting.model.first, 1), *setting.model.layers, (setting.model.last, 1)]
    passes = add_all(count * sum_parts(known_pass(one, work, "forward")) for work, count in layers)
    sent = (own.pp - 1) * sum_parts(send_parts(one)) / 2
    return float(passes + sent + own.pp * cache_bytes(setting, width) / setting.bandwidth)
