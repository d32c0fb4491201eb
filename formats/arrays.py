"""Arrays at the door of a format: matrices that come in, arrays measured against their declaration, a picture."""
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .sizes import Array, Size

Floats = NDArray[np.float32]
LINE = 64                                                    # bytes of a cache line: where stored arrays begin


class FormatError(ValueError):
    """A matrix that a format cannot hold, or arrays that are not what it declares: names the format, part and value."""


def matrix(W: ArrayLike, where: str) -> Floats:
    """W as a float32 matrix; FormatError for another number of axes, a type that is no real number, and the first
    entry that is not a finite float32."""
    given = np.asarray(W)
    if given.dtype.kind not in "biuf":
        raise FormatError(f"{where}: W is {type(W).__name__} of {given.dtype}; give an array of real numbers")
    if given.ndim != 2 or 0 in given.shape:
        raise FormatError(f"{where}: W has shape {given.shape}; give a matrix of (inputs, outputs), at least 1 of each")
    result = storable(given)
    if not (finite := np.isfinite(result)).all():
        i, j = (int(at[0]) for at in np.nonzero(~finite))
        raise FormatError(f"{where}: W[{i}, {j}] = {given[i, j]} is not a finite float32")
    return result


def storable(array: NDArray[Any]) -> Floats:
    """The array as contiguous float32; what overflows becomes infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, np.float32)


def by_rows(array: ArrayLike) -> Floats:
    """The array itself if it is float32 with contiguous rows, otherwise a contiguous copy of that kind."""
    if isinstance(array, np.ndarray) and array.dtype == np.float32 and array.strides[-1:] == (4,): return array
    return np.ascontiguousarray(array, np.float32)


def aligned(array: NDArray[Any], dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    """A copy of this dtype that begins at a cache line; FormatError if an integer does not fit into it. An array that is so
    already, and that nobody may write to, needs no copy."""
    if dtype.kind == "u" and array.dtype != dtype and array.size and not 0 <= array.min() <= array.max() <= np.iinfo(dtype).max:
        raise FormatError(f"{where}: {array.min()} to {array.max()} do not fit into {dtype}")
    flags = array.flags
    if array.dtype == dtype and flags.c_contiguous and not flags.writeable and array.base is not None and array.ctypes.data % LINE == 0:
        return array
    result = room(array.shape, dtype)
    with np.errstate(over="ignore"): result[...] = array
    return result


def room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array of whatever is there, in memory of its own, that begins at a cache line."""
    size = prod(shape) * dtype.itemsize
    whole = np.empty(size + LINE, np.uint8)
    start = -whole.ctypes.data % LINE
    return whole[start:start + size].view(dtype).reshape(shape)


def finite(array: NDArray[Any]) -> bool:
    """Whether every number is, looking at about a megabyte at a time."""
    flat = array.reshape(-1)
    return all(np.isfinite(flat[at:at + (1 << 18)]).all() for at in range(0, flat.size, 1 << 18))


def measure(name: str, fields: Mapping[str, Array], arrays: tuple[NDArray[Any], ...],
            known: Mapping[Any, int]) -> dict[Any, int]:
    """Every size, read off the arrays of a format where an axis is just that size; FormatError where one disagrees."""
    sizes = dict(known)
    pairs = [(f"{name}.{field}", array, given) for (field, array), given in zip(fields.items(), arrays, strict=True)]
    for where, array, given in pairs:
        if given.ndim != len(array.shape):
            raise FormatError(f"{where}: declared {array}, given the shape {given.shape}")
        for axis, length in zip(array.shape, given.shape, strict=True):
            if not axis.is_Symbol: continue
            sizes.setdefault(axis, length)
            if not length and axis.is_positive: raise FormatError(f"{where}: declared {array}, given none of {axis}")
    for where, array, given in pairs:
        wanted = tuple(fixed(axis, sizes) for axis in array.shape)
        if wanted != given.shape:
            raise FormatError(f"{where}: declared {array} = [{', '.join(map(str, wanted))}], given {list(given.shape)}")
    return sizes


def fixed(axis: Any, sizes: Mapping[Any, int]) -> Any:
    """What a size is, given others; itself where they do not say."""
    if not isinstance(axis, Size): return axis.subs(sizes)
    try: return axis.at(sizes)
    except (KeyError, ZeroDivisionError): return axis


def picture(pattern: NDArray[np.bool_], lines: int = 32, columns: int = 64) -> str:
    """A pattern as text: a character stands for a rectangle of entries, as dark as it is full; blank is empty."""
    down, across = (np.arange(min(size, room) + 1) * size // min(size, room)
                    for size, room in zip(pattern.shape, (lines, columns), strict=True))
    full = np.add.reduceat(np.add.reduceat(pattern, down[:-1], 0, np.int64), across[:-1], 1)
    shade = np.ceil(4 * full / np.outer(np.diff(down), np.diff(across))).astype(int)
    return "\n".join("".join(" ░▒▓█"[level] for level in row) for row in shade)
