"""What kernels mean, in float64 numpy: slow and obvious, the oracle of each. It shares no arithmetic with them."""
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace as Bound
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.epilogue import gelu

Exact = NDArray[np.float64]


def ending(y: Exact, a: Bound) -> Exact:
    """An epilogue's parts, those that the kernel has, in their order."""
    given = {name for name, value in vars(a).items() if value is not None}
    if "bias" in given: y = y + a.bias
    if "activation" in given and a.activation == "gelu": y = gelu(y)
    if "residual" in given: y = y + a.residual
    if "eps" in given:
        y = y - y.mean(1, keepdims=True)
        y = y / np.sqrt(np.square(y).mean(1, keepdims=True) + a.eps)
    if "gain" in given: y = y * a.gain
    return y + a.shift if "shift" in given else y


def chosen(a: Bound) -> Exact:
    """The sum of one row of each table."""
    found = [table[getattr(a.batch, field)] for field, table in zip(a.fields.split(","), a.tables, strict=True)]
    return np.asarray(sum(found))


def sentences(batch: Any) -> Iterator[slice]:
    """The rows of each sentence."""
    yield from (slice(lo, hi) for lo, hi in pairwise(batch.starts))


def squares(flat: Exact, batch: Any) -> Iterator[tuple[slice, Exact]]:
    """The rows of each sentence, and its scores (heads, length, length)."""
    lengths = np.diff(batch.starts)
    heads = len(flat) // int(lengths @ lengths)
    parts = np.split(flat, heads * np.cumsum(lengths ** 2)[:-1])
    for rows, part, n in zip(sentences(batch), parts, lengths, strict=True): yield rows, part.reshape(heads, n, n)


def scored(a: Bound) -> Exact:
    """q kᵀ · scale, flat."""
    parts = [np.einsum("qhd,khd->hqk", a.q[rows], a.k[rows]) for rows in sentences(a.batch)]
    return np.asarray(np.concatenate([part.ravel() for part in parts]) * a.scale)


def shared(x: Exact, batch: Any) -> Exact:
    """Softmax along the keys, flat."""
    parts = [np.exp(part - part.max(-1, keepdims=True)) for _, part in squares(x, batch)]
    return np.concatenate([(part / part.sum(-1, keepdims=True)).ravel() for part in parts])


def weighed(p: Exact, v: Exact, batch: Any) -> Exact:
    """p v, sentence by sentence."""
    return np.concatenate([np.einsum("hqk,khd->qhd", part, v[rows]) for rows, part in squares(p, batch)])


def by_head(x: Exact, weight: Exact) -> Exact:
    return (x.swapaxes(0, 1) @ weight).swapaxes(0, 1)
