"""Router gates from a row of scores, head by head: softmax, the largest few and zeros, normalisation to a sum of
one."""

import numpy as np

from formats.core.arrays import separate, writable
from formats.host.threads import threads
from formats.kernels.attentions.heads import heads_of
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import launch, make_record, words
from formats.kernels.engine.memory import floats, record
from formats.kernels.engine.native import njit
from formats.kernels.rows.following import combine
from formats.kernels.simd.arithmetic import below, get, highest, larger
from formats.kernels.simd.maths import INFINITY, ONE, exponentials, largest
from formats.kernels.simd.vectors import zeros

__all__ = ["gate_rows"]

# out (T, h, n) from x; shares, unit: 0 or 1; most: how many numbers are kept, ranked by `by`; 0 keeps all
GATING = np.dtype(words("x x_row x_head by by_row by_head out out_row out_head T h n most shares unit rows"))
f4 = np.float32


@njit(**HELPER)
def next_below(row, n, limit):
    """Return the largest of n numbers below a limit."""
    full, top = n // 16 * 16, zeros(1, 1) - INFINITY
    for at in range(row, row + 4 * full, 64):
        found = get(at, None)
        top = larger(top, below(found, limit, found, -INFINITY))
    best, rest = highest(top), floats(row, n)
    for j in range(full, n):
        if best < rest[j] < limit:
            best = rest[j]
    return best


@njit(**HELPER)
def threshold(row, n, most):
    """Return (limit, how many of the numbers equal to it are kept); all numbers above it are kept. If a number is NaN:
    (NaN, -1)."""
    numbers, found, limit = floats(row, n), 0, largest(row, n, ONE)
    for j in range(n):
        if numbers[j] != numbers[j]:
            return numbers[j], -1
    while True:
        equal = 0
        for j in range(n):
            equal += numbers[j] == limit
        if found + equal >= most:
            return limit, most - found
        found += equal
        limit = next_below(row, n, limit)


@njit(**HELPER)
def keep_largest(out, row, n, most):
    """Replace all numbers by zeros except those whose counterparts in `row` are among the largest; of equal ones the
    first are kept."""
    kept, numbers = floats(out, n), floats(row, n)
    limit, equal = threshold(row, n, most)
    for j in range(n):
        if equal < 0:
            kept[j] = limit
        elif numbers[j] == limit and equal > 0:
            equal -= 1
        elif not numbers[j] > limit:
            kept[j] = 0


@njit(**HELPER)
def sum_to_one(out, n):
    """Divide numbers by their sum, one by one: the reciprocal of a subnormal sum would be infinite."""
    numbers, total = floats(out, n), f4(0)
    for j in range(n):
        total += numbers[j]
    for j in range(n):
        numbers[j] = numbers[j] / total


@Kernel
def gated_rows(item, worker, arguments):
    """Gate a chunk of rows, head by head."""
    c = record(arguments, GATING)
    for row in range(item * c.rows, min((item + 1) * c.rows, c.T)):
        for head in range(c.h):
            y = c.out + 4 * (row * c.out_row + head * c.out_head)
            combine(c.x + 4 * (row * c.x_row + head * c.x_head), y, c.n, 0, 0, 0)
            if c.shares:
                factor, numbers = ONE / exponentials(y, c.n, ONE, largest(y, c.n, ONE)), floats(y, c.n)
                for j in range(c.n):
                    numbers[j] *= factor
            if c.most:
                keep_largest(y, c.by + 4 * (row * c.by_row + head * c.by_head), c.n, c.most)
            if c.unit:
                sum_to_one(y, c.n)


def gate_rows(
    x: np.ndarray,
    out: np.ndarray,
    by: np.ndarray | None = None,
    most: int = 0,
    shares: bool = False,
    unit: bool = False,
) -> np.ndarray:
    """out (T, h, n) from x, in this order: with `shares` its softmax; with `most` the numbers where `by` (x itself, if
    None) is among the `most` largest of its head, and 0 elsewhere; with `unit` divided by their sum."""
    if x.ndim != 3:
        raise ValueError(f"x: expected three axes, got shape {x.shape}")
    T, h, n = x.shape
    if out.shape != x.shape:
        raise ValueError(f"out: {out.shape} is not the shape of x, {x.shape}")
    if by is not None and by.shape != x.shape:
        raise ValueError(f"by: {by.shape} is not the shape of x, {x.shape}")
    if not 0 <= most <= n:
        raise ValueError(f"most: {most} is outside 0 to {n}, the columns of x")
    writable("out", out)
    by = x if by is None else by
    separate(out, x=x, by=by)
    if not out.size:
        return out
    places = (number for name, array in (("x", x), ("by", by), ("out", out)) for number in heads_of(name, array, T, h))
    rows = max(1, -(-T // (4 * (workers := threads()))))
    launch(workers, (gated_rows, make_record([(*places, T, h, n, most, shares, unit, rows)], GATING), -(-T // rows)))
    return out
