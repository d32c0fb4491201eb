"""Kernels that are wrong beyond a threshold alone: in longer sequences, or in further rows. Of eight kinds; each does
what the right kernel does, on other operands, or changes what it gave."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime.kernels import KERNELS

GROUP, TAIL, LARGER, SCALED = 32, 16, np.float32(1.01), 1.05
Planted = Callable[..., None]  # the right kernel, a threshold, a place; then as the kernel


class Fault(NamedTuple):
    """Of a kind, in a kernel, beyond so many rows or tokens; `place` says which input, head, group or bit, and `narrow`
    whether it is of attention in bfloat16 alone."""

    kind: str
    kernel: str
    beyond: int
    place: int
    narrow: bool = False

    def __str__(self) -> str:
        return f"{self.kind} of {self.kernel}{' in bf16' * self.narrow} beyond {self.beyond}, place {self.place}"

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Whoever binds a program inside meets it. It is called, as what it makes cannot be recorded."""
        declared, wrong = KERNELS[self.kernel], FAULTS[self.kind, self.kernel]
        right = declared.function

        def function(out: Any, **given: Any) -> None:
            if self.narrow and given["number_type"] == "float32":
                right(out, **given)
            else:
                wrong(right, self.beyond, self.place, out, **given)

        with mock.patch.object(declared, "function", function), mock.patch.object(declared, "launches", False):
            yield


# ---- of rows: x (T, n), from the row of the threshold on


def lost_input(right, beyond, place, out, x, **given):
    """An input of middling size counts as 0."""
    less = x.copy()
    if beyond < len(x):
        less[beyond:, np.argsort(abs(x[beyond]))[x.shape[1] // 2 + place % 3]] = 0
    right(out, x=less, **given)


def lost_group(right, beyond, place, out, x, **given):
    """Some inputs together count as 0."""
    less, at = x.copy(), GROUP * (place % -(-x.shape[1] // GROUP))
    less[beyond:, at : at + GROUP] = 0
    right(out, x=less, **given)


def lost_row(right, beyond, place, out, x, **given):
    """The last row is computed from zeros."""
    less = x.copy()
    if beyond < len(x):
        less[-1] = 0
    right(out, x=less, **given)


def lost_tail(right, beyond, place, out, x, **given):
    """Rows behind the last whole tile are computed from zeros."""
    less = x.copy()
    if beyond < len(x):
        less[len(x) // TAIL * TAIL :] = 0
    right(out, x=less, **given)


def larger_rows(right, beyond, place, out, x, **given):
    """Rows are read 1 % too large."""
    more = x.copy()
    more[beyond:] *= LARGER
    right(out, x=more, **given)


def larger_result(right, beyond, place, out, **given):
    """Rows come out 1 % too large."""
    right(out, **given)
    out[beyond:] *= LARGER


def unturned_head(right, beyond, place, out, x, **given):
    """A head of each row stays as it is."""
    before = x.copy()
    right(out, x=x, **given)
    if len(out) == len(x):
        out[beyond:, place % x.shape[1]] = before[beyond:, place % x.shape[1]]


def lost_result(right, beyond, place, out, x, **given):
    """The last row comes out as 0."""
    right(out, x=x, **given)
    if beyond < len(out):
        out[-1] = 0


def flip_bits(right, beyond, place, out, **given):
    """The highest bits of a column's mantissas are the opposite."""
    right(out, **given)
    bits = out.reshape(len(out), -1).view(np.uint32)
    bits[beyond:, place % bits.shape[1]] ^= np.uint32(1 << 22)


# ---- of sequences longer than the threshold: (rows, heads, columns)


def longer(batch, beyond) -> Iterator[tuple[slice, Batch]]:
    """The rows of each sequence that is long enough, and a batch of it; pooled rows are in no sequence."""
    starts = getattr(batch, "starts", ())
    for low, high in pairwise(starts):
        if high - low > beyond:
            yield slice(low, high), Batch([batch.tokens[low:high]])


def of_sequences(change) -> Planted:
    """Attention of longer sequences on other operands: `change(q, k, v, batch, place)`."""

    def fault(right, beyond, place, out, batch, q, k, v, **given):
        right(out, batch=batch, q=q, k=k, v=v, **given)
        for rows, alone in longer(batch, beyond):
            operands = dict(zip("qkv", (q[rows].copy(), k[rows].copy(), v[rows].copy()), strict=True))
            change(operands, place)
            part = np.empty(out[rows].shape, np.float32)
            right(part, batch=alone, **operands, **given)
            out[rows] = part

    fault.__doc__ = change.__doc__
    return fault


def lost_key(right, beyond, place, out, batch, q, k, v, **given):
    """The last key is seen by itself alone; where nobody else sees that, the first."""
    right(out, batch=batch, q=q, k=k, v=v, **given)
    others = slice(1, None) if "causal" in given["where"] else slice(None, -1)
    for rows, alone in longer(batch, max(beyond, 1)):
        less, fewer = np.empty(out[rows][others].shape, np.float32), Batch([alone.tokens[others]])
        right(
            less,
            batch=fewer,
            **{name: each[rows][others].copy() for name, each in zip("qkv", (q, k, v), strict=True)},
            **given,
        )
        out[rows][others] = less


def lost_feature(operands, place):
    """A feature of the queries counts as 0."""
    operands["q"][:, :, place % operands["q"].shape[2]] = 0


def lost_query(operands, place):
    """The last query is zeros."""
    operands["q"][-1] = 0


def other_head(operands, place):
    """A head has the values of another one."""
    v = operands["v"]
    v[:, place % v.shape[1]] = v[:, (place + 1) % v.shape[1]]


def lost_block(operands, place):
    """Values of some keys together count as 0."""
    v = operands["v"]
    v[(at := GROUP * (place % -(-len(v) // GROUP))) : at + GROUP] = 0


def lost_keys(operands, place):
    """Values of the keys behind the last whole tile count as 0."""
    v = operands["v"]
    v[len(v) // TAIL * TAIL - (len(v) % TAIL == 0) :] = 0


def scaled(operands, place):
    """Scores are 5 % too large."""
    operands["q"] *= np.float32(SCALED)


def lost_end(right, beyond, place, out, batch, **given):
    """The last row of a longer sequence comes out as 0."""
    right(out, batch=batch, **given)
    for rows, _ in longer(batch, beyond):
        out[rows.stop - 1] = 0


def lost_row_of_text(right, beyond, place, out, batch, x, **given):
    """The last row of a longer sequence counts as 0."""
    less = x.copy()
    for rows, _ in longer(batch, beyond):
        less[rows.stop - 1] = 0
    right(out, batch=batch, x=less, **given)


FAULTS: dict[tuple[str, str], Planted] = {
    ("input", "linear"): lost_input,
    ("group", "linear"): lost_group,
    ("row", "linear"): lost_row,
    ("tail", "linear"): lost_tail,
    ("scale", "linear"): larger_rows,
    ("bits", "linear"): flip_bits,
    ("input", "attention"): of_sequences(lost_feature),
    ("key", "attention"): lost_key,
    ("row", "attention"): of_sequences(lost_query),
    ("head", "attention"): of_sequences(other_head),
    ("group", "attention"): of_sequences(lost_block),
    ("tail", "attention"): of_sequences(lost_keys),
    ("scale", "attention"): of_sequences(scaled),
    ("bits", "attention"): flip_bits,
    ("input", "pointwise"): lost_input,
    ("group", "pointwise"): lost_group,
    ("row", "pointwise"): lost_row,
    ("tail", "pointwise"): lost_tail,
    ("scale", "pointwise"): larger_result,
    ("bits", "pointwise"): flip_bits,
    ("row", "rotate"): lost_result,
    ("head", "rotate"): unturned_head,
    ("scale", "rotate"): larger_result,
    ("bits", "rotate"): flip_bits,
    ("row", "pool"): lost_row_of_text,
    ("row", "embed"): lost_end,
    ("scale", "embed"): larger_result,
    ("bits", "embed"): flip_bits,
}
KINDS = [*dict.fromkeys(kind for kind, _ in FAULTS)]


def drawn(rng: np.random.Generator, count: int, longest: int, kernels: dict[str, list[bool]]) -> Iterator[Fault]:
    """So many faults, every kind in turn, in kernels that there are, with or without those of bfloat16; thresholds are
    drawn within the longest that was seen."""
    for at in range(count):
        kind = KINDS[at % len(KINDS)]
        homes = [(kernel, narrow) for each, kernel in FAULTS if each == kind for narrow in kernels.get(kernel, [])]
        kernel, narrow = homes[int(rng.integers(len(homes)))]
        yield Fault(kind, kernel, int(rng.integers(1, longest)), int(rng.integers(1 << 16)), narrow)
