"""Attention with a bias of scores by distance, beside attention without one, numpy by hand and torch.compile."""

from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from typing import NamedTuple

import lib.command  # noqa: F401, it finds the packages

import numpy as np

import opmatrix as om
from formats import kernels
from formats.host.threads import limit, threads
from opmatrix.algebra.term import Operator
from opmatrix.runtime.declarations.by_sequence import near_keys
from opmatrix.runtime.declarations.meanings import bound, meaning
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.measure import measure
from opmatrix.runtime.pricing import datasheet

HEADS, WIDTH, OTHER_LENGTHS = 12, 64, (1, 15, 16, 17, 1000)
COLUMNS = "bias", "number_type", "ms", "plain_ms", "over_plain", "over_numpy", "over_torch", "bits", "of_bound", "steps"


class Raced(NamedTuple):
    """A row of the table: seconds are medians of interleaved rounds, ratios those of the same rounds."""

    bias: str
    number_type: str
    ms: float
    plain_ms: float
    over_plain: float
    over_numpy: float | None
    over_torch: float | None
    bits: str
    of_bound: float
    steps: str


def biases(positions: int) -> dict[str, Operator]:
    """ALiBi's slopes, and T5's buckets with numbers as they are learned."""
    numbers = np.random.default_rng(3).normal(size=(32, HEADS))
    return {"alibi": om.alibi(HEADS, positions), "t5 bias": om.bucketed(om.Data(numbers))}


def race(rows: int, rounds: int) -> list[Raced]:
    """Both, in float32 and in bfloat16, for one sentence of so many rows."""
    return [
        raced(name, bias, number, rows, rounds) for name, bias in biases(rows).items() for number in ("float32", "bf16")
    ]


def raced(name: str, bias: Operator, number: str, rows: int, rounds: int) -> Raced:
    rng, scale = np.random.default_rng(0), WIDTH**-0.5
    q, k, v = (rng.standard_normal((rows, HEADS, WIDTH), np.float32) for _ in range(3))
    table, out, starts = np.asarray(bias.args[0].array, np.float32), np.empty_like(q), np.array([0, rows])
    call = kernels.attention if number == "float32" else kernels.attention_halves

    def ours() -> np.ndarray:
        return call(q, k, v, starts, out, scale, bias=table)

    calls: dict[str, Callable[[], object]] = {"ours": ours, "plain": lambda: call(q, k, v, starts, out, scale)}
    apart = near_keys(table, np.arange(rows)[:, None], np.arange(rows))
    if number == "float32":
        calls["numpy"] = lambda: by_hand(q, k, v, scale, apart)
        if find_spec("torch"):
            calls["torch"] = by_torch(q, k, v, scale, np.ascontiguousarray(apart))
    taken = measure({each: lambda _, call=one: call() for each, one in calls.items()}, [None], rounds)

    def over(other: str) -> float | None:
        if other not in taken:
            return None
        return median(a / b for a, b in zip(taken["ours"], taken[other], strict=True))

    first = ours().tobytes()
    with limit(1):
        bits = ours().tobytes() == first
    both = [np.concatenate([each, each[:100]]) for each in (q, k, v)]
    batched = call(
        *both, np.array([0, rows, rows + 100]), np.empty((rows + 100, HEADS, WIDTH), np.float32), scale, bias=table
    )
    bits = bits and batched[:rows].tobytes() == first
    worst = max(off(table, number, length) for length in OTHER_LENGTHS)
    ratio = over("plain")
    assert ratio is not None
    return Raced(
        name,
        number,
        1e3 * median(taken["ours"]),
        1e3 * median(taken["plain"]),
        ratio,
        over("numpy"),
        over("torch"),
        "same" if bits else "DIFFER",
        worst,
        steps_of(bias),
    )


def by_hand(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, apart: np.ndarray) -> np.ndarray:
    """As one writes it with numpy, the distances looked up beforehand."""
    s = q.swapaxes(0, 1) @ k.transpose(1, 2, 0)
    s *= np.float32(scale)
    s += apart
    s -= s.max(-1, keepdims=True)
    np.exp(s, out=s)
    s /= s.sum(-1, keepdims=True)
    return (s @ v.swapaxes(0, 1)).swapaxes(0, 1)


def by_torch(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, apart: np.ndarray) -> Callable[[], object]:
    """torch.compile of the same, on as many threads; its own fused attention takes a bias as a matrix."""
    import torch

    torch.set_num_threads(threads())
    given = [torch.from_numpy(np.ascontiguousarray(each.swapaxes(0, 1)))[None] for each in (q, k, v)]
    near = torch.from_numpy(apart.astype(np.float32))[None]

    @torch.compile
    def attend(q: "torch.Tensor", k: "torch.Tensor", v: "torch.Tensor") -> "torch.Tensor":
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, near, scale=scale)

    def call() -> object:
        with torch.inference_mode():
            return attend(*given)

    call()
    return call


def off(table: np.ndarray, number: str, length: int) -> float:
    """The largest share of its stated bound that a sentence of so many rows is off."""
    rng, kernel = np.random.default_rng(length), KERNELS["attention"]
    q, k, v = (rng.standard_normal((length, HEADS, WIDTH), np.float32) for _ in range(3))
    out, batch = np.empty_like(q), om.Batch([[0] * length])
    named = dict(
        q=q,
        k=k,
        v=v,
        mask0=None,
        mask1=None,
        bias=table,
        scale=WIDTH**-0.5,
        where="sequence",
        tile=256,
        number_type=number,
    )
    kernel.function(out, batch, **named)
    error = abs(out - meaning(kernel, named, batch))
    most = bound(kernel, named | {"batch": batch})
    with np.errstate(all="ignore"):
        return float(np.where(error == 0, 0.0, error / most).max(initial=0.0))


def steps_of(bias: Operator) -> str:
    """The steps of the program that is found for such attention of three inputs."""
    q, k, v = (om.given(name, WIDTH, "T", HEADS) for name in "qkv")
    term = om.product(om.product(q, om.turn(k)) * WIDTH**-0.5 + bias, v, over="softmax", where=om.sequence)
    program = om.schedule(
        term @ om.heads(HEADS).T,
        om.Batch([[0] * 60], inputs={name: np.zeros((60, HEADS, WIDTH), np.float32) for name in "qkv"}),
        machine=datasheet("A100"),
    )
    return "+".join(step.kernel for step in program.program.steps)
