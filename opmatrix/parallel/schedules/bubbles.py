"""Closed forms of equal stages: how long a stage waits, and what it keeps at most. Sizes and seconds are numbers or
expressions: p stages, m micro-batches, v chunks a stage; F forward, B backward of the input, W gradients of weights, of
all that a stage has. Sends take nothing. They equal the simulation (tests/opmatrix/test_bubbles.py)."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import sympy


class ClosedForm(NamedTuple):
    """`bubble(p, m, v, F, B, W)`: seconds that each stage waits. `kept(s, p, m, v)`: micro-batches whose values stage s
    keeps at most, each of all its layers."""
    bubble: Callable[..., Any]
    kept: Callable[..., Any]


def one_part(number: Any, of: Any) -> Any:
    return number / of if isinstance(of, sympy.Expr) else number * Fraction(1, of)


def most(*each: Any) -> Any:
    """The largest of numbers, expressions, or arrays, element by element."""
    if any(isinstance(e, sympy.Expr) for e in each): return sympy.Max(*each)
    return reduce(np.maximum, each) if any(hasattr(e, "__array_ufunc__") for e in each) else max(each)


def least(*each: Any) -> Any:
    """The smallest of numbers, expressions, or arrays, element by element."""
    if any(isinstance(e, sympy.Expr) for e in each): return sympy.Min(*each)
    return reduce(np.minimum, each) if any(hasattr(e, "__array_ufunc__") for e in each) else min(each)


def rounds(p: Any, m: Any, v: Any, F: Any, B: Any, W: Any) -> Any:
    """Each stage but one waits for a forward and a backward pass of a chunk: (p − 1)(F + B + W) / v, of the work
    (p − 1) / (v m) (Huang et al. 2019; Narayanan et al. 2021, section 2.2)."""
    return (p - 1) * (F + B + W) * one_part(1, v)


def deferred_rounds(p: Any, m: Any, v: Any, F: Any, B: Any, W: Any) -> Any:
    """ZB-H1: as many gradients of weights as micro-batches wait fill the bubble, (p − 1)(F + B − W) where W is the
    shortest pass and there is a micro-batch a stage (Qi et al. 2023, table 2); where another is shorter, a stage has
    only its time to fill."""
    return (p - 1) * (F + B) - (least(m, p) - 1) * least(F, B, W)


def both_ways_rounds(p: Any, m: Any, v: Any, F: Any, B: Any, W: Any) -> Any:
    """DualPipe: (p / 2 − 1)(F + B + W + B + W − 3 W) where passes take as long (DeepSeek-AI 2024, table 2, with a pair
    of a forward and a backward pass that takes as long as both); the largest of four ways where they do not."""
    n = one_part(p, 2) - 1
    return most(0, most(2 * n * F, n * B + (n - 1) * F) + n * most(0, B - W))


def ahead_kept(s: Any, p: Any, m: Any, v: Any) -> Any:
    """Forward passes of chunks that a stage is ahead of its backward passes, one of v a micro-batch: of the first stage
    p (1 + (p − 1) / (p v)) micro-batches (Korthikanti et al. 2022, section 4.2.3); p − s where v is 1."""
    return least(m * v, 2 * (p - s - 1) + (v - 1) * p + 1) * one_part(1, v)


CLOSED: Mapping[str, ClosedForm] = {
    "gpipe": ClosedForm(rounds, lambda s, p, m, v: m),
    "1f1b": ClosedForm(rounds, lambda s, p, m, v: least(m, p - s)),
    "interleaved": ClosedForm(rounds, ahead_kept),
    "zb-h1": ClosedForm(deferred_rounds, lambda s, p, m, v: least(m, p)),
    "dualpipe": ClosedForm(both_ways_rounds, lambda s, p, m, v: p + 1)}
