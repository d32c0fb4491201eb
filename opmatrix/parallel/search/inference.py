"""A forward pass of a batch, as in inference: its time and memory by a strategy, with the keys and values that stay,
and the time of the next token. It is made of the same passes as a step of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

from opmatrix.parallel.cost.layer_work import LayerWork
from opmatrix.parallel.cost.memory_parts import whole_bytes
from opmatrix.parallel.cost.prediction import Prediction
from opmatrix.parallel.cost.quantities import Quantity, add_all, least, most, step_at
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
    memory: Mapping[str, Quantity] = {
        "weights": setting.number * stage_parameters(setting),
        "caches": cache_bytes(setting, width),
        "working": reduce(most, (whole_bytes(setting, work) for work in setting.model.kinds)),
    }
    return Prediction(setting, forward_parts(setting), memory)


def next_token_seconds(setting: Setting, width: int) -> float:
    """Return the seconds of one more token for each sequence: every layer runs on one row of each, and keys and values
    are read."""
    strategy = setting.strategy
    one = setting._replace(
        model=setting.model._replace(source=0),  # a tower has run
        seq=strategy.token_ranks,  # a token is on one context rank
        passes=None,
        strategy=replace(strategy, micro_batch=setting.batch / strategy.dp),
    )
    model = one.model
    before = () if model.tower else ((model.first, 1),)
    layers = [*before, *model.decoding, (model.last, 1)]
    passes = add_all(count * sum_parts(known_pass(one, work, "forward")) for work, count in layers)
    sent = (strategy.pp - 1) * sum_parts(send_parts(one)) / 2
    return float(passes + sent + strategy.pp * cache_bytes(setting, width) / setting.bandwidth)
