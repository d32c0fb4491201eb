"""Strategies that are no strategies are refused in a line, and all others have seconds and bytes."""

import random
from math import isfinite

import numpy as np
import pytest

from formats.core.errors import InputError
from opmatrix.parallel.axes.known_axes import ORDERS
from opmatrix.parallel.cost.layer_work import model_work
from opmatrix.parallel.cost.prediction import predict
from opmatrix.parallel.cost.strategies import Strategy
from opmatrix.parallel.schedules.named import SCHEDULES

DENSE = dict(
    model_type="llama",
    vocab_size=128256,
    hidden_size=8192,
    intermediate_size=28672,
    num_hidden_layers=80,
    num_attention_heads=64,
    num_key_value_heads=8,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
)
MIXTURE = DENSE | dict(
    model_type="mixtral", hidden_size=1024, intermediate_size=3584, num_local_experts=8, num_experts_per_tok=2
)
HOW = Strategy(flash=True)


@pytest.mark.parametrize(
    "change, batch, words",
    [
        (dict(tp=9), 64, r"tp 9: 64 heads: .*the nearest legal are 8 and 16"),
        (dict(tp=3), 64, r"tp 3: 64 heads: .*the nearest legal are 2 and 4"),
        (dict(pp=200), 64, r"pp 200: 80 layers: .*the nearest legal are 80"),
        (dict(ep=4), 64, r"ep 4: no experts"),
        (dict(schedule="zigzag"), 64, r"schedule 'zigzag': it is one of 1f1b, gpipe"),
        (dict(schedule="interleavd"), 64, r"did you mean interleaved"),
        (dict(context="rings"), 64, r"context 'rings': did you mean ring"),
        (dict(context="keys", cp=2), 64, r"context 'keys': .*it is one of ring, ulysses"),
        (dict(recompute="some"), 64, r"recompute 'some': .*it is one of none, selective, full"),
        (dict(zero=4), 64, r"zero 4: a stage of ZeRO is 0, 1, 2 or 3"),
        (dict(precision="fp4"), 64, r"precision 'fp4'"),
        (dict(precision="fp8"), 64, r"A100: its data sheet has no rate of fp8 products"),
        (dict(order=("tp", "dp")), 64, r"order tp dp: it has each of"),
        (dict(dp=8, micro_batch=3), 64, r"batch 64: dp 8 ranks .* multiples of 24; the nearest legal are 48 and 72"),
        (dict(dp=128), 64, r"dp 128: 64 sequences"),
        (dict(pp=8, virtual=20), 64, r"virtual 20: 8 stages of 20 chunks are more than 80 layers; .* is 10"),
        (dict(tp=2.5), 64, r"tp 2.5: give a whole number"),
        (dict(tp=-1), 64, r"tp -1: give a whole number"),
        (dict(tp=float("nan")), 64, r"tp nan: give a whole number"),
        (dict(micro_batch="2"), 64, r"micro_batch '2': give a whole number"),
        (dict(load=0.5), 64, r"load 0.5: .*from 1 on"),
        (dict(whole_experts=True), 64, r"whole experts: they need a model with experts"),
        (dict(context="ulysses", cp=2, tp=64), 64, r"context ulysses: tp 64 x cp 2 ranks do not divide 64 heads"),
        (dict(pp=2, cut=(40, 41)), 64, r"cut \(40, 41\): give layers of 2 chunks that add up to 80"),
    ],
)
def test_what_is_not_legal_is_one_line(change, batch, words):
    with pytest.raises(InputError, match=words) as error:
        predict(DENSE, "A100", Strategy(**{"flash": True} | change), batch, 8192)
    assert "\n" not in str(error.value)


def test_experts_lie_on_ranks_that_are_there():
    with pytest.raises(InputError, match=r"ep 8: it must divide the 4 ranks of dp x cp, .*the nearest legal are 4"):
        predict(MIXTURE, "H100", Strategy(dp=4, tp=2, ep=8, sequence=True, flash=True), 64, 4096)
    whole = Strategy(dp=4, tp=2, ep=8, sequence=True, flash=True, whole_experts=True)
    assert isfinite(predict(MIXTURE, "H100", whole, 64, 4096).step_seconds)
    with pytest.raises(InputError, match=r"ep 3: 8 experts: .*the nearest legal are 2 and 4"):
        predict(MIXTURE, "H100", Strategy(dp=3, ep=3, flash=True), 63, 4096)


def test_arrays_and_symbols_are_not_checked():
    rows = predict(DENSE, "A100", Strategy(tp=np.array([1.0, 9.0]), flash=True), 64, 8192)
    assert np.isfinite(rows.step_seconds).all()


def test_a_stage_of_both_directions_has_two_chunks_of_weights():
    """DualPipe stores the layers of its mirror stage, too (DeepSeek-AI 2024, table 2), and waits for less."""
    one, both = (
        predict(DENSE, "H100", Strategy(tp=8, pp=8, flash=True, schedule=name), 64, 4096)
        for name in ("1f1b", "dualpipe")
    )
    norm = 2 * DENSE["hidden_size"]  # bytes by which the head's end is more than that of the table; each is there once
    assert both.memory["weights"] == 2 * one.memory["weights"] - norm
    assert both.seconds["bubble"] < one.seconds["bubble"]
    with pytest.raises(
        InputError, match=r"schedule dualpipe: 8 micro-batches on 8 stages: give an even .* at least 16"
    ):
        predict(DENSE, "H100", Strategy(tp=8, pp=8, flash=True, schedule="dualpipe"), 8, 4096)


@pytest.fixture(scope="module")
def works():
    """The work of each model by context and norms, read once."""
    return {
        (model["model_type"], context, cut): model_work(model, context, cut)
        for model in (DENSE, MIXTURE)
        for context in ("ring", "ulysses")
        for cut in (False, True)
    }


def test_thousands_of_strategies_are_finite_or_refused_in_a_line(works):
    """Of small and odd numbers, most of them illegal somewhere; of those that are legal all parts are numbers."""
    draw = random.Random(5)
    sizes = *[1] * 6, *[2] * 4, 4, 4, 8, 3, 9, 16, 64, 200
    legal = 0
    for _ in range(3000):
        context, cut = draw.choice(("ring", "ulysses")), draw.random() < 0.5
        work = works[draw.choice(("llama", "mixtral")), context, cut]
        how = Strategy(
            **{name: draw.choice(sizes) for name in ("dp", "tp", "pp", "cp", "ep", "micro_batch", "virtual")},
            zero=draw.choice((0, 1, 2, 3, 3, 4)),
            sequence=cut,
            recompute=draw.choice(("none", "selective", "full", "core_attention")),
            context=context,
            schedule=draw.choice((*SCHEDULES, "other")),
            order=draw.choice(ORDERS),
            flash=draw.random() < 0.8,
            precision=draw.choice(("bf16", "float16", "fp8", "mxfp8")),
            whole_experts=draw.random() < 0.15,
            beside=draw.choice(((), ("tp", "cp", "pp"))),
        )
        try:
            step = predict(
                work, draw.choice(("A100", "H100", "B200", "Ascend910B")), how, draw.choice((64, 2400)), 4096
            )
        except InputError as error:
            assert "\n" not in str(error) and len(str(error)) < 300
            continue
        legal += 1
        parts = [*step.seconds.values(), *step.memory.values(), step.step_seconds, step.driver]
        assert all(isinstance(float(part), float) and isfinite(part) and part >= -1e-9 for part in parts), how
    assert 200 < legal < 2000
