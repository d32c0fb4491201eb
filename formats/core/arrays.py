"""Checks of arrays: matrices from callers, arrays that a kernel reads or writes, stored arrays against their
declaration. Also a picture of a pattern."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy import may_share_memory
from numpy.typing import ArrayLike, DTypeLike, NDArray

from formats.core.sizes import Array, Expression, Size

Floats = NDArray[np.float32]
LINE = 64  # bytes of a cache line: where stored arrays begin
MAX_SIZE = 2**31 - 1  # the largest side of a matrix, or any other size
SIZED_COLUMNS = 256  # columns made absolute at a time
ROUNDED_TOGETHER = 2**18  # numbers of a weight rounded at a time: a cache holds them
SINGLE = np.dtype(np.float32)  # numpy compares types of numbers faster than classes
OVERLAP_CANDIDATES = 10_000  # candidates that the exact test for shared memory may look at


class FormatError(ValueError):
    """A matrix that a format cannot hold, or arrays that contradict its declaration. Names the format, part and
    value."""


def as_matrix(W: ArrayLike, where: str) -> Floats:
    """Return W as a float32 matrix. FormatError for another number of axes, a type that is no real number, and the
    first entry that is not a finite float32."""
    source = np.asarray(W)
    if source.dtype.kind not in "biuf":
        raise FormatError(f"{where}: W is {type(W).__name__} of {source.dtype}; give an array of real numbers")
    if source.ndim != 2 or 0 in source.shape:
        raise FormatError(
            f"{where}: W has shape {source.shape}; give a matrix of (inputs, outputs), at least 1 of each"
        )
    result = storable(source)
    if not (finite := np.isfinite(result)).all():
        i, j = (int(at[0]) for at in np.nonzero(~finite))
        raise FormatError(f"{where}: W[{i}, {j}] = {source[i, j]} is not a finite float32")
    return result


def storable(array: np.ndarray) -> Floats:
    """Return the array as contiguous float32; numbers that overflow become infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, np.float32)


def multiply_sizes(x: NDArray[np.float64], W: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return |x| |W|, computed some columns at a time so that |W| stays in cache."""
    product, size = np.empty((len(x), W.shape[1])), abs(x)
    for at in range(0, W.shape[1], SIZED_COLUMNS):
        np.matmul(size, abs(W[:, at : at + SIZED_COLUMNS]), out=product[:, at : at + SIZED_COLUMNS])
    return product


# ---- arrays that a kernel reads or writes


def by_rows(array: ArrayLike, name: str = "x") -> Floats:
    """Return the array itself if it is float32 with contiguous rows that begin at multiples of 4 bytes, otherwise a
    contiguous copy of that kind. ValueError for a type that is no real number."""
    if isinstance(array, np.ndarray) and array.dtype == SINGLE and array.strides[-1:] == (4,) and array.flags.aligned:
        return array
    return as_contiguous(name, np.asarray(array), SINGLE)


def as_contiguous(name: str, array: np.ndarray, dtype: DTypeLike | None = None) -> np.ndarray:
    """Return the array itself, or a copy of this dtype that is contiguous and begins at a multiple of a number's size.
    ValueError for a type that is no real number."""
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name}: given {array.dtype}; give real numbers")
    contiguous = np.ascontiguousarray(array, dtype)
    return contiguous if contiguous.flags.aligned else contiguous.copy()


def places(name: str, array: np.ndarray, count: int, limit: int, least: int = 0, of: str = "") -> None:
    """Raise ValueError unless the array is `count` whole numbers. Raise IndexError for one below `least`, or not below
    `limit`, which is the number of rows of `of`."""
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise ValueError(f"{name}: expected {count} whole numbers, got {array.dtype} of shape {array.shape}")
    if array.size and not least <= (low := array.min()) <= (high := array.max()) < limit:
        raise IndexError(
            f"{name}: {low if low < least else high} is outside {least} to "
            f"{limit - 1}{f', the rows of {of}' if of else ''}"
        )


def readable(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless the array is float32 of this shape, its rows contiguous and at multiples of 4 bytes."""
    flags = array.flags
    if array.shape != shape or array.dtype != SINGLE:
        raise ValueError(f"{name}: expected float32 of shape {shape}, got {array.dtype} of shape {array.shape}")
    if not (flags.aligned and (flags.c_contiguous or shape[-1] < 2 or array.strides[-1] == 4)):
        raise ValueError(
            f"{name}: rows must be contiguous and begin at multiples of 4 bytes, got strides of "
            f"{array.strides} bytes from address {array.ctypes.data:#x} on; give a copy"
        )


def writable(name: str, array: np.ndarray) -> None:
    """Raise ValueError if the array is read-only, or if two of its numbers may share an address."""
    flags = array.flags
    if flags.carray:
        return
    if not flags.writeable:
        raise ValueError(f"{name}: it is read-only")
    reach = array.itemsize
    for apart, size in sorted(
        (abs(stride), size) for stride, size in zip(array.strides, array.shape, strict=True) if size > 1
    ):
        if apart < reach and array.size:
            raise ValueError(
                f"{name}: its elements overlap in memory: shape {array.shape}, strides of {array.strides} bytes: "
                "give a copy"
            )
        reach += (size - 1) * apart


def separate(out: np.ndarray, over: bool = False, **read: np.ndarray) -> None:
    """Raise ValueError if one of these arrays shares memory with out. With `over`, an array may be exactly where out
    is."""
    for name, array in read.items():
        if not may_share_memory(array, out):
            continue  # compares bounds only; the test below is exact
        if over and array.strides == out.strides and array.ctypes.data == out.ctypes.data:
            continue
        try:
            shared = np.shares_memory(array, out, max_work=OVERLAP_CANDIDATES)  # type: ignore[arg-type]
        except np.exceptions.TooHardError:
            shared = True
        if shared:
            raise ValueError(
                f"{name} overlaps out, which is written while {name} is still read: {name} is {array.shape} with "
                f"strides of {array.strides} bytes; out, {out.ctypes.data - array.ctypes.data} bytes behind "
                f"it, is {out.shape} with {out.strides}"
            )


# ---- stored arrays


def aligned(array: np.ndarray, dtype: np.dtype, where: str) -> np.ndarray:
    """Return a copy of this dtype that begins at a cache line; FormatError if an integer does not fit into it. An array
    that is aligned and read-only already is returned itself."""
    if (
        dtype.kind == "u"
        and array.dtype != dtype
        and array.size
        and not 0 <= array.min() <= array.max() <= np.iinfo(dtype).max
    ):
        raise FormatError(f"{where}: {array.min()} to {array.max()} do not fit into {dtype}")
    flags = array.flags
    if (
        array.dtype == dtype
        and flags.c_contiguous
        and not flags.writeable
        and array.base is not None
        and array.ctypes.data % LINE == 0
    ):
        return array
    result = room(array.shape, dtype)
    with np.errstate(over="ignore"):
        result[...] = array
    return result


def room(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Allocate an uninitialised array that owns its memory and begins at a cache line."""
    size = prod(shape) * dtype.itemsize
    whole = np.empty(size + LINE, np.uint8)
    start = -whole.ctypes.data % LINE
    return whole[start : start + size].view(dtype).reshape(shape)


def all_finite(array: np.ndarray) -> bool:
    """True if every number is finite. Looks at about a megabyte at a time."""
    flat = array.reshape(-1)
    return all(np.isfinite(flat[at : at + (1 << 18)]).all() for at in range(0, flat.size, 1 << 18))


def find_misfit(array: np.ndarray, infinite: Iterable[float] = ()) -> tuple[tuple[int, ...], str] | None:
    """Return the index of the first number that float32 cannot hold, and that number in words; None if all fit. Looks
    at a megabyte at a time. Numbers in `infinite` are allowed."""
    flat = array.reshape(-1)
    for at in range(0, flat.size, 1 << 18):
        piece = flat[at : at + (1 << 18)]
        with np.errstate(over="ignore"):
            fits = np.isfinite(piece.astype(np.float32, copy=False))
        if fits.all():
            continue
        for allowed in infinite:
            fits |= piece == allowed
        if fits.all():
            continue
        misfit = flat[first := at + int(np.argmin(fits))]
        why = "beyond the largest float32, 3.4e38: scale it" if np.isfinite(misfit) else "not a finite number"
        if np.isinf(misfit):
            why += ", nor the identity of a monoid that reads it"
        return tuple(int(place) for place in np.unravel_index(first, array.shape)), f"{misfit:g}, {why},"
    return None


class HasFields(Protocol):
    """A format, as far as its arrays go."""

    name: str
    fields: Mapping[str, Array]


@lru_cache(1024)  # a model has few shapes, and is read often
def sizes_of(
    form: type[HasFields], shapes: tuple[tuple[int, ...], ...], known: tuple[tuple[Size, int], ...]
) -> Mapping[Size, int]:
    """Return `read_sizes` of a format's own arrays, cached."""
    return MappingProxyType(read_sizes(form.name, form.fields, shapes, dict(known)))


def read_sizes(
    name: str, fields: Mapping[str, Array], shapes: Iterable[tuple[int, ...]], known: Mapping[Size, int]
) -> dict[Size, int]:
    """Read every size off the shapes of a format's arrays, where an axis is just that size. FormatError where a shape
    disagrees."""
    sizes = dict(known)
    pairs = [(f"{name}.{field}", array, shape) for (field, array), shape in zip(fields.items(), shapes, strict=True)]
    for where, array, shape in pairs:
        if len(shape) != len(array.shape):
            raise FormatError(f"{where}: declared {array}, given the shape {shape}")
        for axis, length in zip(array.shape, shape, strict=True):
            if not axis.is_Symbol:
                continue
            sizes.setdefault(axis, length)
            if not length and axis.is_positive:
                raise FormatError(f"{where}: declared {array}, but {axis} is 0")
    for where, array, shape in pairs:
        wanted = tuple(fixed(axis, sizes) for axis in array.shape)
        if wanted != shape:
            raise FormatError(f"{where}: declared {array} = [{', '.join(map(str, wanted))}], given {list(shape)}")
    return sizes


def fixed(axis: Expression, sizes: Mapping[Size, int]) -> "int | Fraction | Expression":
    """Evaluate a size, given other sizes; the size itself where they do not determine it."""
    if not isinstance(axis, Size):
        return axis.subs(sizes)
    try:
        return axis.at(sizes)
    except (KeyError, ZeroDivisionError):
        return axis


def picture(pattern: NDArray[np.bool_], lines: int = 32, columns: int = 64) -> str:
    """Draw a pattern as text: a character stands for a rectangle of entries, as dark as it is full; blank is empty."""
    down, across = (
        np.arange(min(size, room) + 1) * size // min(size, room)
        for size, room in zip(pattern.shape, (lines, columns), strict=True)
    )
    full = np.add.reduceat(np.add.reduceat(pattern, down[:-1], 0, np.int64), across[:-1], 1)
    shade = np.ceil(4 * full / np.outer(np.diff(down), np.diff(across))).astype(int)
    return "\n".join("".join(" ░▒▓█"[level] for level in row) for row in shade)


def is_size(value: object) -> bool:
    """True if a value from a file is a positive integer, and no larger than a kernel counts without overflow."""
    return type(value) is int and 0 < value <= MAX_SIZE


def settled(found: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the error of an output, and the sizes that it is relative to. Where `wanted` is infinite (a maximum over
    no numbers) or NaN (0/0), an equal output has error 0, and the size is 0."""
    if (finite := np.isfinite(wanted)).all():
        return found - wanted, wanted
    with np.errstate(invalid="ignore"):
        alike = ~finite & ((found == wanted) | (np.isnan(found) & np.isnan(wanted)))
        return np.where(alike, 0.0, found - wanted), np.where(finite, wanted, 0.0)
