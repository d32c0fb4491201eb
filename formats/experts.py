"""Experts: each row of x times the weight of its own expert, in whatever format that one has."""
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from formats.core.arrays import Floats, by_rows, readable, separate, writable
from formats.core.epilogue import Epilogue
from formats.core.stage import ROW_FIELDS

from .format import Format


def multiply_grouped(x: ArrayLike, starts: ArrayLike, weights: Sequence[Format], out: Floats | None = None,
                     epilogues: Sequence[Epilogue] | None = None) -> Floats:
    """Rows starts[e] to starts[e + 1] of x (T, n) times weights[e] (n, p), then epilogues[e]: (T, p), written to `out`
    if given.

    Rows lie together by expert (see `by_expert`): every expert is one product, and none is padded or dropped (Gale et
    al. 2023, arXiv:2211.15841). An epilogue's own rows (times, residual) are all T. ValueError says what does not
    fit."""
    x, starts = by_rows(x), np.asarray(starts)
    rise = starts.shape == (len(weights) + 1,) and starts.dtype.kind in "iu" and (starts[1:] >= starts[:-1]).all()
    if not rise or starts[0] != 0 or starts[-1] != len(x):
        raise ValueError(f"experts: starts = {starts.tolist()} do not divide {len(x)} rows among "
                             f"{len(weights)} experts")
    if len(shapes := {weight.shape for weight in weights}) != 1:
        raise ValueError(f"experts: weights of one shape are needed, given {sorted(shapes)}")
    wanted = len(x), weights[0].shape[1]
    if out is None: out = np.empty(wanted, np.float32)
    else:                                                    # whole, before the first expert writes
        readable("out", out, wanted)
        writable("out", out)
        separate(out, x=x)
    if epilogues is not None:
        if len(epilogues) != len(weights):
            raise ValueError(f"experts: {len(epilogues)} epilogues for {len(weights)} experts")
        for epilogue in epilogues: epilogue.check(*wanted, "experts", out)
    for e, (weight, low, high) in enumerate(zip(weights, starts[:-1], starts[1:], strict=True)):
        if low < high:
            weight.matmul(x[low:high], out[low:high], slice_epilogue(epilogues[e], low, high) if epilogues else None)
    return out


def by_expert(choice: ArrayLike, experts: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The order that brings rows of one expert together, each in their own order, and where each expert's begin: choice
    (T,) -> (T,), (experts + 1,). ValueError names a choice that is no expert."""
    choice = np.asarray(choice)
    if choice.ndim != 1 or (choice.size and choice.dtype.kind not in "iu"):
        raise ValueError(f"experts: choice is {choice.dtype} of shape {choice.shape}; give a whole number for each row")
    if (wrong := (choice < 0) | (choice >= experts)).any():
        raise ValueError(f"experts: row {int(wrong.argmax())} chooses {choice[wrong.argmax()]}; there are {experts} "
                         "experts")
    return np.argsort(choice,
                      kind="stable"), np.append(0, np.bincount(choice.astype(np.intp), minlength=experts).cumsum())


def slice_epilogue(epilogue: Epilogue, low: int, high: int) -> Epilogue:
    """The part of an epilogue that belongs to some rows."""
    parts: dict[str, Any] = {name: rows[low:high] for name, rows in epilogue.arrays.items() if name in ROW_FIELDS}
    return replace(epilogue, **parts)
