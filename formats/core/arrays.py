"""Arrays at the door: matrices that come in, what a kernel may read and write, arrays measured against their
declaration, a picture."""
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
LINE = 64                                                    # bytes of a cache line: where stored arrays begin
MAX_SIZE = 2 ** 31 - 1                                       # side of a matrix, or another size
SIZED_COLUMNS = 256                                          # whose numbers are made positive at a time
ROUNDED_TOGETHER = 2 ** 18                                   # numbers of a weight: a near cache holds them
SINGLE = np.dtype(np.float32)                                # numpy compares types of numbers faster than classes
OVERLAP_CANDIDATES = 10_000                               # candidates that the exact test for shared memory may look at


class FormatError(ValueError):
    """A matrix that a format cannot hold, or arrays that are not what it declares: names the format, part and value."""


def as_matrix(W: ArrayLike, where: str) -> Floats:
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


def storable(array: np.ndarray) -> Floats:
    """The array as contiguous float32; what overflows becomes infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, np.float32)


def multiply_sizes(x: NDArray[np.float64], W: NDArray[np.float64]) -> NDArray[np.float64]:
    """|x| |W|, some columns at a time, so that |W| stays in cache."""
    found, size = np.empty((len(x), W.shape[1])), abs(x)
    for at in range(0, W.shape[1], SIZED_COLUMNS):
        np.matmul(size, abs(W[:, at:at + SIZED_COLUMNS]), out=found[:, at:at + SIZED_COLUMNS])
    return found


# ---- what a kernel may read, and write

def by_rows(array: ArrayLike, name: str = "x") -> Floats:
    """The array itself if it is float32 with contiguous rows that begin at multiples of 4 bytes, otherwise a contiguous
    copy of that kind; ValueError for what are no real numbers."""
    if isinstance(array, np.ndarray) and array.dtype == SINGLE and array.strides[-1:] == (4,) and array.flags.aligned:
        return array
    return as_contiguous(name, np.asarray(array), SINGLE)


def as_contiguous(name: str, array: np.ndarray, dtype: DTypeLike | None = None) -> np.ndarray:
    """The array itself, or a copy of this kind that is contiguous and begins at a multiple of a number's size;
    ValueError for what are no real numbers."""
    if array.dtype.kind not in "biuf": raise ValueError(f"{name}: given {array.dtype}; give real numbers")
    given = np.ascontiguousarray(array, dtype)
    return given if given.flags.aligned else given.copy()


def places(name: str, array: np.ndarray, count: int, limit: int, least: int = 0, of: str = "") -> None:
    """ValueError unless these are so many whole numbers; IndexError for one below the least, or not below the limit,
    which is the number `of` what they name."""
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise ValueError(f"{name}: expected {count} whole numbers, got {array.dtype} of shape {array.shape}")
    if array.size and not least <= (low := array.min()) <= (high := array.max()) < limit:
        raise IndexError(f"{name}: {low if low < least else high} is outside {least} to "
                         f"{limit - 1}{f', the rows of {of}' if of else ''}")


def readable(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    """ValueError unless the array is float32 of this shape, its rows contiguous and at multiples of 4 bytes."""
    flags = array.flags
    if array.shape != shape or array.dtype != SINGLE:
        raise ValueError(f"{name}: expected float32 of shape {shape}, got {array.dtype} of shape {array.shape}")
    if not (flags.aligned and (flags.c_contiguous or shape[-1] < 2 or array.strides[-1] == 4)):
        raise ValueError(f"{name}: rows must be contiguous and begin at multiples of 4 bytes, got strides of "
                         f"{array.strides} bytes from address {array.ctypes.data:#x} on; give a copy")


def writable(name: str, array: np.ndarray) -> None:
    """ValueError if the array is read-only, or if two of its numbers may lie in the same place."""
    flags = array.flags
    if flags.carray: return
    if not flags.writeable: raise ValueError(f"{name}: it is read-only")
    reach = array.itemsize
    for apart, size in sorted((abs(stride), size) for stride, size in zip(array.strides, array.shape, strict=True)
                              if size > 1):
        if apart < reach and array.size:
            raise ValueError(f"{name}: numbers of shape {array.shape} with strides of {array.strides} bytes lie upon "
                             "each other")
        reach += (size - 1) * apart


def separate(out: np.ndarray, over: bool = False, **read: np.ndarray) -> None:
    """ValueError if one of these arrays shares memory with out; with over, it may be exactly where out is."""
    for name, array in read.items():
        if not may_share_memory(array, out): continue        # their bounds; what follows is exact
        if over and array.strides == out.strides and array.ctypes.data == out.ctypes.data: continue
        try: shared = np.shares_memory(array, out, max_work=OVERLAP_CANDIDATES)  # type: ignore[arg-type]
        except np.exceptions.TooHardError: shared = True
        if shared:
            raise ValueError(f"{name} overlaps out, and is still read when out is written: {array.shape} with strides "
                             f"of {array.strides} bytes; {out.ctypes.data - array.ctypes.data} bytes behind, "
                             f"{out.shape} with {out.strides}")


# ---- stored arrays


def aligned(array: np.ndarray, dtype: np.dtype, where: str) -> np.ndarray:
    """A copy of this dtype that begins at a cache line; FormatError if an integer does not fit into it. An array that
    is so already, and that nobody may write to, needs no copy."""
    if dtype.kind == "u" and array.dtype != dtype and array.size and not 0 <= array.min(
            ) <= array.max() <= np.iinfo(dtype).max:
        raise FormatError(f"{where}: {array.min()} to {array.max()} do not fit into {dtype}")
    flags = array.flags
    if (array.dtype == dtype and flags.c_contiguous and not flags.writeable and array.base is not None
            and array.ctypes.data % LINE == 0):
        return array
    result = room(array.shape, dtype)
    with np.errstate(over="ignore"): result[...] = array
    return result


def room(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array of whatever is there, in memory of its own, that begins at a cache line."""
    size = prod(shape) * dtype.itemsize
    whole = np.empty(size + LINE, np.uint8)
    start = -whole.ctypes.data % LINE
    return whole[start:start + size].view(dtype).reshape(shape)


def all_finite(array: np.ndarray) -> bool:
    """Whether every number is, looking at about a megabyte at a time."""
    flat = array.reshape(-1)
    return all(np.isfinite(flat[at:at + (1 << 18)]).all() for at in range(0, flat.size, 1 << 18))


def find_misfit(array: np.ndarray, infinite: Iterable[float] = ()) -> tuple[tuple[int, ...], str] | None:
    """The place of the first number that float32 has none for, and the number in words; a megabyte at a time. Some
    `infinite` numbers may be allowed."""
    flat = array.reshape(-1)
    for at in range(0, flat.size, 1 << 18):
        piece = flat[at:at + (1 << 18)]
        with np.errstate(over="ignore"): fits = np.isfinite(piece.astype(np.float32, copy=False))
        if fits.all(): continue
        for each in infinite: fits |= piece == each
        if fits.all(): continue
        found = flat[first := at + int(np.argmin(fits))]
        why = "beyond float32, which has numbers to 3.4e38: scale it" if np.isfinite(found) else "no finite number"
        if np.isinf(found): why += ", nor the identity of a monoid that reads it"
        return tuple(int(each) for each in np.unravel_index(first, array.shape)), f"{found:g}, {why},"
    return None


class HasFields(Protocol):
    """A format, as far as its arrays go."""
    name: str
    fields: Mapping[str, Array]


@lru_cache(1024)                                            # a model has few shapes, and is read often
def sizes_of(form: type[HasFields], shapes: tuple[tuple[int, ...], ...],
             known: tuple[tuple[Size, int], ...]) -> Mapping[Size, int]:
    """As `read_sizes`, of a format's own arrays."""
    return MappingProxyType(read_sizes(form.name, form.fields, shapes, dict(known)))


def read_sizes(name: str, fields: Mapping[str, Array], shapes: Iterable[tuple[int, ...]],
               known: Mapping[Size, int]) -> dict[Size, int]:
    """Every size, read off the shapes of a format's arrays where an axis is just that size; FormatError where one
    disagrees."""
    sizes = dict(known)
    pairs = [(f"{name}.{field}", array, given) for (field, array), given in zip(fields.items(), shapes, strict=True)]
    for where, array, given in pairs:
        if len(given) != len(array.shape):
            raise FormatError(f"{where}: declared {array}, given the shape {given}")
        for axis, length in zip(array.shape, given, strict=True):
            if not axis.is_Symbol: continue
            sizes.setdefault(axis, length)
            if not length and axis.is_positive: raise FormatError(f"{where}: declared {array}, given none of {axis}")
    for where, array, given in pairs:
        wanted = tuple(fixed(axis, sizes) for axis in array.shape)
        if wanted != given:
            raise FormatError(f"{where}: declared {array} = [{', '.join(map(str, wanted))}], given {list(given)}")
    return sizes


def fixed(axis: Expression, sizes: Mapping[Size, int]) -> "int | Fraction | Expression":
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


def is_size(value: object) -> bool:
    """Whether a value from a file is a positive integer, and no larger than a kernel counts without overflow."""
    return type(value) is int and 0 < value <= MAX_SIZE


def settled(found: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By how much an output differs from the one wanted, and the numbers of that: infinities, such as a maximum over
    nothing, and what is no number, such as 0/0, differ by nothing from themselves, and have no size."""
    if (finite := np.isfinite(wanted)).all(): return found - wanted, wanted
    with np.errstate(invalid="ignore"):
        alike = ~finite & ((found == wanted) | (np.isnan(found) & np.isnan(wanted)))
        return np.where(alike, 0.0, found - wanted), np.where(finite, wanted, 0.0)
