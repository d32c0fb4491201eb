"""How a step is looked at where its rows are many: at some rows of its result, and on operands by which every number
that it reads shows in what it gives."""
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace as Bound
from typing import Any

import numpy as np
from numpy.typing import NDArray

RowNumbers = NDArray[np.int64]
Arguments = dict[str, Any]
Chosen = tuple[Arguments, Any]                              # arguments of a kernel, and the batch that they are of
SPREAD = 3.0                                                # of scores: what is seen most has most of a row's mass
FINITE = 1e15                                               # of factors: squares of it are float32


def some_rows(arguments: Mapping[str, Any], values: Sequence[str], batch: Any, at: RowNumbers) -> Chosen:
    """Of a kernel a row of whose result depends on that row of its values, and of the batch, alone."""
    some = batch.picked(at)
    own = {name: arguments[name][at] for name in values} | ({"batch": some} if "batch" in arguments else {})
    return {**arguments, **own}, some


def some_turned(arguments: Mapping[str, Any], values: Sequence[str], batch: Any, at: RowNumbers) -> Chosen | None:
    """Of a rotation of all tokens, not of one a sequence."""
    return some_rows(arguments, values, batch, at) if arguments["rows"] == "all" else None


def some_queries(arguments: Mapping[str, Any], values: Sequence[str], batch: Any, at: RowNumbers) -> Chosen:
    """Of attention: some queries, which see keys and values as ever."""
    return {**arguments, "q": arguments["q"][at], "at": at}, batch


Restrict = Callable[[Mapping[str, Any], Sequence[str], Any, RowNumbers], Chosen | None]


def telling_attention(a: Bound, rng: np.random.Generator) -> Iterator[Arguments]:
    """Where all scores are 0 every key has an equal share, however narrow numbers are, and each value is seen in one
    column; where they differ by much, what makes them is seen."""
    (T, _, d), e = a.q.shape, a.v.shape[2]
    seen = np.zeros(a.v.shape, np.float32)
    seen[np.arange(T), :, np.arange(T) % e] = rng.choice([-1, 1], (T, a.v.shape[1]))
    yield {"q": np.zeros(a.q.shape, np.float32), "v": seen}
    if not 1 / FINITE < abs(a.scale) < FINITE: return
    q, k, v = (rng.standard_normal(each.shape, np.float32) for each in (a.q, a.k, a.v))
    yield {"q": q * np.float32(SPREAD / (d ** 0.5 * a.scale)), "k": k, "v": v}
