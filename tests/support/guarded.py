"""Arrays of every step, alignment, overlap and flag, each before or behind a page that nobody may touch, at the door of
every kernel: the result is right, or the arrays are refused in words. A child runs the cases, so that a crash has a
name.

    python tests/support/guarded.py < cases        one JSON case a line; says each before it runs, and what became of it
                                           after"""

import ctypes
import json
import mmap
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from doors import Door, doors

PAGE, FORBIDDEN = mmap.PAGESIZE, 0
ROWS = 1, 2, 5, 17, 61
Case = tuple[str, int, str, str, bool]  # door, rows, operand, what is done to it, before a guard
# page

# ---- memory


def fenced(size: int, before: bool) -> np.ndarray:
    """So many bytes that end where a guard page begins, or begin where one ends; there is one on both sides."""
    pages = max(-(-size // PAGE), 1)
    area = mmap.mmap(-1, (pages + 2) * PAGE)
    start = ctypes.c_char.from_buffer(area)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for page in (0, pages + 1):
        if protect(ctypes.c_void_p(ctypes.addressof(start) + page * PAGE), ctypes.c_size_t(PAGE), FORBIDDEN):
            raise OSError(ctypes.get_errno(), "mprotect")
    low = PAGE + (pages * PAGE - size if before else 0)
    memory = np.frombuffer((ctypes.c_uint8 * size).from_buffer(area, low), np.uint8)
    memory[:] = 0xA5
    return memory


def steps(shape: tuple[int, ...], size: int) -> list[int]:
    """The strides of a contiguous array."""
    return [size * int(np.prod(shape[i + 1 :], dtype=int)) for i in range(len(shape))]


class Layout(NamedTuple):
    """How an array lies: kind of number, shape, strides, and where its first number lies."""

    kind: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    writable: bool = True


def rowwise(change: Callable[[int, int], tuple[int, int]]) -> Callable[..., Layout]:
    """A layout in which (step between rows, offset) is what `change` makes of (step, rows)."""

    def laid(kind: str, shape: tuple[int, ...]) -> Layout:
        first, *rest = steps(shape, np.dtype(kind).itemsize)
        step, offset = change(first, shape[0])
        return Layout(kind, shape, (step, *rest), offset)

    return laid


def lastwise(change: Callable[[int, int], tuple[int, int]]) -> Callable[..., Layout]:
    """The same for numbers of the last axis."""

    def laid(kind: str, shape: tuple[int, ...]) -> Layout:
        size = np.dtype(kind).itemsize
        step, offset = change(size, shape[-1])
        return Layout(kind, shape, (*steps(shape, abs(step) or size)[:-1], step), offset)

    return laid


def plainly(kind: str | None = None, offset: int = 0, writable: bool = True) -> Callable[..., Layout]:
    """Contiguous, of another kind of number or not where it should begin."""
    return lambda given, shape: Layout(
        kind or given, shape, (*steps(shape, np.dtype(kind or given).itemsize),), offset, writable
    )


def reshaped(change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Callable[..., Layout]:
    return lambda kind, shape: plainly()(kind, change(shape))


LAYOUTS: dict[str, Callable[[str, tuple[int, ...]], Layout]] = {
    "plain": plainly(),
    "read-only": plainly(writable=False),
    "at 1": plainly(offset=1),
    "at 2": plainly(offset=2),
    "wide rows": rowwise(lambda step, _: (step + 12, 0)),
    "rows of a record, 2 more": rowwise(lambda step, _: (step + 2, 0)),
    "rows of a record, 1 more": rowwise(lambda step, _: (step + 1, 0)),
    "rows of a record, at 3": rowwise(lambda step, _: (step + 5, 3)),
    "rows backwards": rowwise(lambda step, rows: (-step, max(rows - 1, 0) * step)),
    "rows all the same": rowwise(lambda step, _: (0, 0)),
    "rows that slide": rowwise(lambda step, _: (4, 0)),
    "rows that lap": rowwise(lambda step, _: (max(step - 4, 4), 0)),
    "numbers backwards": lastwise(lambda size, count: (-size, (count - 1) * size)),
    "numbers apart": lastwise(lambda size, _: (2 * size, 0)),
    "numbers all the same": lastwise(lambda size, _: (0, 0)),
    "numbers of a record": lastwise(lambda size, _: (size + 1, 0)),
    "turned": lambda kind, shape: Layout(kind, shape, (*steps(shape[::-1], np.dtype(kind).itemsize)[::-1],)),
    "swapped bytes": lambda kind, shape: plainly(">" + np.dtype(kind).str[1:])(kind, shape),
    "float64": plainly("f8"),
    "float16": plainly("f2"),
    "int32": plainly("i4"),
    "complex": plainly("c8"),
    "bytes": plainly("u1"),
    "a row more": reshaped(lambda shape: (shape[0] + 1, *shape[1:])),
    "a number more": reshaped(lambda shape: (*shape[:-1], shape[-1] + 1)),
    "flat": reshaped(lambda shape: (int(np.prod(shape)),)),
    "an axis more": reshaped(lambda shape: (*shape, 1)),
    "no axis": reshaped(lambda shape: ()),
    "no rows": reshaped(lambda shape: (0, *shape[1:])),
}
# where out begins in the memory of what is read, in bytes, given its step between rows
OVERLAPS: dict[str, Callable[[int], int]] = {
    "out is it": lambda step: 0,
    "out 4 bytes behind": lambda step: 4,
    "out 4 bytes before": lambda step: -4,
    "out a row behind": lambda step: step,
    "out a row before": lambda step: -step,
    "out 2 bytes behind": lambda step: 2,
}


def laid(array: np.ndarray, name: str, before: bool) -> np.ndarray:
    """Numbers of an array in another layout, as far as it has room for them."""
    return spread(array, LAYOUTS[name](array.dtype.str, array.shape), before)


def spread(array: np.ndarray, to: Layout, before: bool) -> np.ndarray:
    size = np.dtype(to.kind).itemsize
    reach = [(count - 1) * step for count, step in zip(to.shape, to.strides, strict=True)]
    whole = to.offset + sum(max(each, 0) for each in reach) + size if 0 not in to.shape else to.offset + size
    made = np.ndarray(to.shape, to.kind, fenced(whole, before), to.offset, to.strides)
    made[...] = np.resize(array, to.shape).astype(to.kind) if made.dtype.kind != "u" or array.dtype.kind != "f" else 1
    made.flags.writeable = to.writable
    return made


def memory_of(array: np.ndarray) -> np.ndarray:
    """All bytes of the memory that an array of `spread` lies in."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


# ---- cases


def cases() -> Iterator[Case]:
    """Every layout of every operand and of out, and every overlap of out with an operand, for every door and number of
    rows."""
    for name, door in doors().items():
        names = [*door.operands(np.random.default_rng(0), 2)]
        for rows in ROWS:
            for before in (True, False):
                yield from (
                    (name, rows, operand, layout, before)
                    for operand in [*names, "out"]
                    for layout in LAYOUTS
                    if (operand, layout) not in door.exempt
                )
                yield from ((name, rows, operand, overlap, before) for operand in names for overlap in OVERLAPS)


def run(case: Case) -> str:
    """right, or refused: in which words. AssertionError says what is wrong."""
    name, rows, operand, done, before = case
    door, rng = doors()[name], np.random.default_rng(rows)
    given = door.operands(rng, rows)
    arrays = {
        each: laid(array, done if each == operand and done in LAYOUTS else "plain", before)
        for each, array in given.items()
    }
    shape = door.out(**given)
    if done in OVERLAPS:
        out, arrays[operand] = overlapping(arrays[operand], shape, done, before)
    else:
        out = laid(np.zeros(shape, np.float32), done if operand == "out" else "plain", before)
    if out.flags.writeable:
        out[...] = 77
    kept, around = {each: array.copy() for each, array in arrays.items()}, memory_of(out).copy()
    try:
        door.call(out, **arrays)
    except (ValueError, IndexError) as error:
        assert np.array_equal(memory_of(out), around), f"refused after it was written: {error}"
        return f"refused: {error}"
    check(door, operand, kept, arrays, out, around, done)
    return "right"


def overlapping(array: np.ndarray, shape: tuple[int, ...], done: str, before: bool) -> tuple[np.ndarray, np.ndarray]:
    """An out of this shape, and the array with its numbers, where one begins so many bytes after the other."""
    step = array.strides[0] if array.ndim else 4
    at = OVERLAPS[done](step)
    size = max(-at, 0) + max(array.nbytes, max(at, 0) + 4 * int(np.prod(shape))) + (at < 0) * 4 * int(np.prod(shape))
    memory = fenced(-(-size // 8) * 8, before)
    moved = np.ndarray(array.shape, array.dtype, memory, max(-at, 0))
    out = np.ndarray(shape, np.float32, memory, max(at, 0))
    kept = array.copy()
    out[...] = 77
    moved[...] = kept
    return out, moved


def check(
    door: Door,
    operand: str,
    kept: dict[str, np.ndarray],
    arrays: dict[str, np.ndarray],
    out: np.ndarray,
    around: np.ndarray,
    done: str,
) -> None:
    """out holds the bits that plain arrays give, which are near those in float64; nothing beside it was written."""
    for each, array in arrays.items():
        assert (each in door.over and done == "out is it") or np.array_equal(array, kept[each], equal_nan=True), (
            f"{each} was changed"
        )
    halves = {each for each, array in kept.items() if array.dtype == np.float16}
    plain = {
        each: np.ascontiguousarray(array, np.float32 if array.dtype.kind == "f" and each not in halves else None)
        for each, array in kept.items()
    }
    wanted = door.out(**plain)
    assert out.shape == wanted or (door.flat and out.size == np.prod(wanted)), f"out is {out.shape}"
    fresh = np.empty(wanted, np.float32)
    door.call(fresh, **plain)
    if out.size:
        want, bound = door.means(**plain)
        far = abs(fresh.reshape(want.shape) - want) - bound
        assert (far <= 0).all(), f"off by {far.max():.3g} more than rounding allows"
    assert np.array_equal(out.reshape(fresh.shape), fresh), "other numbers than of plain arrays"
    memory, marked = memory_of(out), np.zeros(memory_of(out).size, bool)
    if memory.size and out.size and done not in OVERLAPS:
        places = (
            out.__array_interface__["data"][0]
            - memory.__array_interface__["data"][0]
            + sum(
                np.multiply.outer(np.arange(count), step).reshape([-1 if j == i else 1 for j in range(out.ndim)])
                for i, (count, step) in enumerate(zip(out.shape, out.strides, strict=True))
            )
        )
        for byte in range(4):
            marked[np.ravel(places) + byte] = True
        assert np.array_equal(memory[~marked], around[~marked]), "what lies beside out was written"


# ---- children


def run_all(chosen: list[Case], environment: dict[str, str] | None = None) -> Counter[tuple[str, str]]:
    """(door, result) of every case, counted; a wrong or crashed one is (its words, "wrong" or "crashed")."""
    found: Counter[tuple[str, str]] = Counter()
    while chosen:
        given = "".join(json.dumps(case) + "\n" for case in chosen)
        command = sys.executable, "-X", "faulthandler", __file__
        child = subprocess.run(command, input=given, capture_output=True, text=True, env=environment, check=False)
        lines = [json.loads(line) for line in child.stdout.splitlines()]
        for case, result in zip(chosen, lines, strict=False):
            word = result.split(":")[0]
            found[case[0] if word != "wrong" else f"{case}: {result}", word] += 1
        if len(lines) == len(chosen):
            break
        found[f"{chosen[len(lines)]}: {child.returncode}: {child.stderr[-600:]}", "crashed"] += 1
        chosen = chosen[len(lines) + 1 :]
    return found


def main() -> None:
    """Run the cases of stdin."""
    from formats.host.threads import limit

    with limit(1):
        for line in sys.stdin:
            try:
                result = run(json.loads(line))
            except Exception as error:
                result = f"wrong: {type(error).__name__}: {error}"
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
