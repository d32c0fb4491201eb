"""Embeddings and scores in the forms that callers ask for: shorter rows, rows of length one, rows in bytes and bits;
tensors; similarities."""

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from formats.core.arrays import Floats
from formats.core.errors import InputError, suggest_name
from opmatrix.algebra.data import Numeric
from opmatrix.inference.pooling import normalise_rows
from opmatrix.inference.scores.similarity import Float64Rows, Similarities

Converted: TypeAlias = Any  # an array, a tensor of torch, or a list of tensors, a row each
BYTE_STEPS = 255  # steps between the least and the greatest number of a column


def cut_columns(vectors: Floats, width: int | None) -> Floats:
    """Return the first `width` columns (Kusupati et al. 2022); None: all of them. Raises InputError for no such
    number."""
    if width is None:
        return vectors
    if type(width) is not int or not 1 <= width <= vectors.shape[1]:
        raise InputError(f"truncate_dim {width!r:.40}: embeddings have {vectors.shape[1]} columns: give 1 to as many")
    return vectors[:, :width]


def unit_rows(vectors: Floats) -> Floats:
    """Return rows of length one in the same directions, computed in float64."""
    rows: Floats = normalise_rows(vectors.astype(np.float64)).astype(vectors.dtype)
    return rows


# ---- numbers in bytes and bits


def by_levels(vectors: Floats) -> NDArray[np.uint8]:
    """Return for each number the step that it is on, of 256 from the least to the greatest number of its column."""
    least = vectors.min(0)
    steps = (vectors.max(0) - least) / BYTE_STEPS
    steps = np.where(steps == 0, 1, steps)
    levels: NDArray[np.uint8] = np.clip(np.floor((vectors - least) / steps), 0, BYTE_STEPS).astype(np.uint8)
    return levels


def by_signs(vectors: Floats) -> NDArray[np.uint8]:
    """Return a bit for each number, 1 above zero, eight columns a byte, the first in its highest bit."""
    return np.packbits(vectors > 0, axis=-1)


def centre_bytes(levels: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Return bytes less 128."""
    return (levels.astype(np.int16) - 128).astype(np.int8)


PRECISIONS: dict[str, Callable[[Floats], Numeric]] = {  # (S, n) float32 to (S, n) bytes, or (S, n / 8) of bits
    "float32": lambda vectors: vectors,
    "int8": lambda vectors: centre_bytes(by_levels(vectors)),
    "uint8": by_levels,
    "binary": lambda vectors: centre_bytes(by_signs(vectors)),
    "ubinary": by_signs,
}


def quantise(vectors: Floats, precision: str) -> Numeric:
    """Return embeddings in the numbers of that name. int8 and uint8 are steps of each column over these very rows."""
    return vectors if not len(vectors) else PRECISIONS[precision](vectors)


def check_form(precision: object) -> str:
    """Return the name of a precision; None is float32. Raises InputError for an unknown one."""
    if precision is None or precision in PRECISIONS:
        return str(precision or "float32")
    raise InputError(
        f"precision {precision!r:.40}: {suggest_name(str(precision), PRECISIONS)}there are {', '.join(PRECISIONS)}"
    )


# ---- tensors


def loaded_torch() -> ModuleType | None:
    """Return torch if this process has imported it, else None."""
    return sys.modules.get("torch")


def as_tensor(array: Numeric) -> Converted:
    """Return an array as a tensor. Raises InputError where torch is not imported."""
    if (torch := loaded_torch()) is None:
        raise InputError("convert_to_tensor: torch is not imported here: import torch first, or take numpy's arrays")
    return torch.as_tensor(array)


def converted(array: Numeric, to_numpy: bool, to_tensor: bool, single: bool = False) -> Converted:
    """Return results in the form that is asked for: an array, a tensor, or a list of tensors, a row each; of a `single`
    text or pair its only row."""
    if single:
        return converted(array[0], to_numpy, to_tensor or not to_numpy)
    if to_tensor:
        return as_tensor(array)
    if to_numpy:
        return array
    return [as_tensor(row) for row in array]


# ---- similarities


def as_rows(vectors: object) -> Float64Rows:
    """Return embeddings of numpy, torch or a list of them as rows of float64; a single one is one row."""
    if isinstance(vectors, Sequence):
        vectors = [np.asarray(vector, np.float64) for vector in vectors]
    rows = np.asarray(vectors, np.float64)
    return rows[None] if rows.ndim == 1 else rows


def compare_rows(of: Similarities, name: str, first: object, second: object) -> Converted:
    """Return the similarities of embeddings in float32: a tensor where torch is imported, else an array. Raises
    InputError for rows of different lengths."""
    a, b = as_rows(first), as_rows(second)
    if a.shape[-1] != b.shape[-1]:
        raise InputError(
            f"similarity: embeddings of {a.shape[-1]} and of {b.shape[-1]} columns: give equally long ones"
        )
    similarities = of[name](a, b).astype(np.float32)
    return similarities if loaded_torch() is None else as_tensor(similarities)
