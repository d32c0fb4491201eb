"""Arrays of every step, alignment, overlap and flag, each before or behind a page that nobody may touch, at the door of every
kernel: the result is right, or the arrays are refused in words. A child runs the cases, so that a crash has a name.

    python tests/guarded.py < cases        one JSON case a line; says each before it runs, and what became of it after"""
import ctypes
import json
import mmap
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

PAGE, FORBIDDEN = mmap.PAGESIZE, 0
ROWS = 1, 2, 5, 17, 61
SHAPES = (20, 35), (64, 18), (100, 130)                      # of weights
Case = tuple[str, int, str, str, bool]                       # door, rows, operand, what is done to it, before a guard page

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
    return [size * int(np.prod(shape[i + 1:], dtype=int)) for i in range(len(shape))]


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
    return lambda given, shape: Layout(kind or given, shape, (*steps(shape, np.dtype(kind or given).itemsize),), offset, writable)


def reshaped(change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Callable[..., Layout]:
    return lambda kind, shape: plainly()(kind, change(shape))


LAYOUTS: dict[str, Callable[[str, tuple[int, ...]], Layout]] = {
    "plain": plainly(), "read-only": plainly(writable=False),
    "at 1": plainly(offset=1), "at 2": plainly(offset=2),
    "wide rows": rowwise(lambda step, _: (step + 12, 0)), "rows of a record, 2 more": rowwise(lambda step, _: (step + 2, 0)),
    "rows of a record, 1 more": rowwise(lambda step, _: (step + 1, 0)), "rows of a record, at 3": rowwise(lambda step, _: (step + 5, 3)),
    "rows backwards": rowwise(lambda step, rows: (-step, max(rows - 1, 0) * step)), "rows all the same": rowwise(lambda step, _: (0, 0)),
    "rows that slide": rowwise(lambda step, _: (4, 0)), "rows that lap": rowwise(lambda step, _: (max(step - 4, 4), 0)),
    "numbers backwards": lastwise(lambda size, count: (-size, (count - 1) * size)),
    "numbers apart": lastwise(lambda size, _: (2 * size, 0)),
    "numbers all the same": lastwise(lambda size, _: (0, 0)), "numbers of a record": lastwise(lambda size, _: (size + 1, 0)),
    "turned": lambda kind, shape: Layout(kind, shape, (*steps(shape[::-1], np.dtype(kind).itemsize)[::-1],)),
    "swapped bytes": lambda kind, shape: plainly(">" + np.dtype(kind).str[1:])(kind, shape),
    "float64": plainly("f8"), "float16": plainly("f2"), "int32": plainly("i4"), "complex": plainly("c8"), "bytes": plainly("u1"),
    "a row more": reshaped(lambda shape: (shape[0] + 1, *shape[1:])), "a number more": reshaped(lambda shape: (*shape[:-1], shape[-1] + 1)),
    "flat": reshaped(lambda shape: (int(np.prod(shape)),)), "an axis more": reshaped(lambda shape: (*shape, 1)),
    "no axis": reshaped(lambda shape: ()), "no rows": reshaped(lambda shape: (0, *shape[1:])),
}
# where out begins in the memory of what is read, in bytes, given its step between rows
OVERLAPS: dict[str, Callable[[int], int]] = {
    "out is it": lambda step: 0, "out 4 bytes behind": lambda step: 4, "out 4 bytes before": lambda step: -4,
    "out a row behind": lambda step: step, "out a row before": lambda step: -step, "out 2 bytes behind": lambda step: 2}


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
    while isinstance(array.base, np.ndarray): array = array.base
    return array


# ---- doors

class Door(NamedTuple):
    """A kernel: what it reads (one makes them for so many rows), the shape of out, how it is called, and what it means in float64
    with a bound. over: what out may be; flat: out is so many numbers, of any shape; exempt: (operand, layout) that it cannot know to
    be wrong."""
    operands: Callable[[np.random.Generator, int], dict[str, np.ndarray]]
    out: Callable[..., tuple[int, ...]]
    call: Callable[..., Any]
    means: Callable[..., tuple[np.ndarray, Any]]
    over: tuple[str, ...] = ()
    flat: bool = False
    exempt: tuple[tuple[str, str], ...] = ()


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray: return rng.standard_normal(shape, np.float32)


def parts(rng: np.random.Generator, rows: int, columns: int) -> dict[str, np.ndarray]:
    """The operands of an epilogue."""
    return {name: normal(rng, columns) for name in ("bias", "gain", "shift")} | {
        name: normal(rng, rows, columns) for name in ("times", "residual")}


def after(arrays: dict[str, np.ndarray]) -> Any:
    from formats import Epilogue
    return Epilogue(activation="gelu", eps=1e-5, **arrays)


def product_doors() -> Iterator[tuple[str, Door]]:
    """Every choice of every format: as x @ W, and its kernel alone. W's own arrays are operands of the kernel."""
    from formats import FORMATS
    for name, F in FORMATS.items():
        for i, shape in enumerate(SHAPES):
            for j, options in enumerate(F.choices(*shape)):
                if j and i != 1: continue
                where = f"{name} {shape[0]}x{shape[1]}" + (f" {options}" if j else "")
                yield f"{where} matmul", product_door(F, shape, options, whole=True)
                yield f"{where} kernel", product_door(F, shape, options, whole=False)


def product_door(F: Any, shape: tuple[int, int], options: dict[str, Any], whole: bool) -> Door:
    @cache
    def packed() -> Any: return F.approximate(np.random.default_rng(7).standard_normal(shape, np.float32), **options)

    def operands(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
        return {"x": normal(rng, rows, shape[0]), **parts(rng, rows, shape[1]), **({} if whole else packed().arrays())}

    def call(out: np.ndarray, x: np.ndarray, **given: np.ndarray) -> Any:
        if whole: return packed().matmul(x, out, after(given))
        stored = [given.pop(name) for name in packed().arrays()]
        return packed().declared.kernel(x, *stored, out, after(given), **packed().remembered)

    def means(x: np.ndarray, **given: np.ndarray) -> Any:
        W = packed()
        if not whole: W = F(shape, tuple(given.pop(name) for name in W.arrays()), **W.remembered)
        exact = W.reads(x) @ W.unpack().astype(np.float64)
        return after(given).reference(exact), after(given).bound(exact, W.bound(x), F.rounds)
    # arrays of a weight need not say how many inputs it has: what calls their kernels does
    exempt = () if whole else (("x", "a number more"),)
    return Door(operands, lambda x, **_: (len(x), shape[1]), call, means, exempt=exempt)


def heads(rng: np.random.Generator, rows: int, **count: int) -> dict[str, np.ndarray]:
    return {name: normal(rng, rows, many, 24 if name == "v" else 20) for name, many in count.items()}


def starts(rows: int) -> np.ndarray: return np.array([0, rows // 3, rows // 3, rows])


def softly(s: np.ndarray, v: np.ndarray, seen: Any = True) -> tuple[np.ndarray, np.ndarray]:
    """softmax(s) v over what is seen, and what a relative error of p as of float32 sums may make of it: s (h, q, k), v (h, k, e)."""
    from formats.epilogue import gamma
    p = np.where(seen, np.exp(s - np.where(seen, s, -1e9).max(-1, keepdims=True)), 0)
    p /= np.maximum(p.sum(-1, keepdims=True), 1e-300)
    wrong = gamma(64 + s.shape[-1]) * (4 + 8 * np.abs(s).max(-1, keepdims=True, initial=0))
    return (p @ v).swapaxes(0, 1), (wrong * (p @ abs(v))).swapaxes(0, 1)


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray, at: np.ndarray, rough: float = 0) -> tuple[np.ndarray, np.ndarray]:
    """Attention sequence by sequence; rough: what rounding q, k, p and v costs besides, of float32's own error 1."""
    most = max(each.shape[1] for each in (q, k, v))
    q, k, v = (each.astype(np.float64).repeat(most // each.shape[1], 1).swapaxes(0, 1) for each in (q, k, v))
    found = [softly(0.3 * q[:, a:b] @ k[:, a:b].swapaxes(1, 2), v[:, a:b]) for a, b in pairwise(at) if a < b]
    want, bound = (np.concatenate(each) for each in zip(*found, strict=True))
    if rough: bound = bound + rough * (1 + 0.3 * np.abs(q).max() * np.abs(k).max() * q.shape[2]) * np.abs(v).max()
    return want, bound


def pass_doors() -> Iterator[tuple[str, Door]]:
    from formats import kernels
    from formats.epilogue import gamma

    def alone(out: np.ndarray, x: np.ndarray, **given: np.ndarray) -> Any: return kernels.pointwise(x, out, after(given))
    def finished(x: np.ndarray, **given: np.ndarray) -> Any: return after(given).reference(x), after(given).bound(x, np.zeros(x.shape))
    for columns in (18, 35):
        yield f"pointwise {columns}", Door(lambda rng, rows, c=columns: {"x": normal(rng, rows, c), **parts(rng, rows, c)},
                                           lambda x, **_: x.shape, alone, finished, ("x",))
    for shape in (35,), (3, 5), ():
        yield f"scale {len(shape) + 1} axes", Door(
            lambda rng, rows, shape=shape: {"x": normal(rng, rows, *shape)}, lambda x: x.shape,
            lambda out, x: kernels.scale(x, 0.3, out), lambda x: (x * np.float32(0.3), 0), ("x",))

    def summed(ids: np.ndarray, table: np.ndarray, few: np.ndarray) -> Any:
        one, two = table[ids].astype(np.float64), few[ids * 0]
        return one + two, gamma(2) * (abs(one) + abs(two))
    yield "embed", Door(
        lambda rng, rows: {"ids": rng.integers(0, 9, rows), "table": normal(rng, 9, 35), "few": normal(rng, 3, 35).astype(np.float16)},
        lambda ids, **_: (len(ids), 35), lambda out, ids, table, few: kernels.embed([(ids, table), (ids * 0, few)], out), summed)

    def turned(x: np.ndarray, at: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> Any:
        k = cos.shape[1]
        (a, b, rest), c, s = np.split(x.astype(np.float64), (k, 2 * k), -1), cos[at][:, None], sin[at][:, None]
        size = np.concatenate([abs(a * c) + abs(b * s), abs(a * s) + abs(b * c), 0 * rest], -1)
        return np.concatenate([a * c - b * s, a * s + b * c, rest], -1), gamma(2) * size
    for k, d in (10, 20), (18, 37):
        yield f"rotate {k} {d}", Door(
            lambda rng, rows, k=k, d=d: {"x": normal(rng, rows, 3, d), "at": rng.integers(0, 9, rows), "cos": normal(rng, 9, k),
                                         "sin": normal(rng, 9, k)},
            lambda x, **_: x.shape, lambda out, x, at, cos, sin: kernels.rotate(x, at, cos, sin, out), turned, ("x",))


def head_doors() -> Iterator[tuple[str, Door]]:
    from formats import Mask, kernels
    from formats.epilogue import gamma
    width = lambda v, q=None, **_: (len(v), max(4, v.shape[1]), v.shape[2])
    for name, rough in ("attention", 0), ("attention_halves", 2.0 ** -5):
        for many in (4, 4, 4), (4, 2, 1):
            yield f"{name} {many}", Door(
                lambda rng, rows, many=many: heads(rng, rows, **dict(zip("qkv", many, strict=True))) | {"starts": starts(rows)}, width,
                lambda out, q, k, v, starts, name=name: getattr(kernels, name)(q, k, v, starts, out, 0.3),
                lambda q, k, v, starts, rough=rough: attended(q, k, v, starts, rough))

    def scored(q: np.ndarray, k: np.ndarray) -> Any:
        q, k = q.astype(np.float64).swapaxes(0, 1), k.astype(np.float64).swapaxes(0, 1)
        s = 0.3 * q @ k.swapaxes(1, 2)
        return s.ravel(), gamma(q.shape[2] + 4) * 0.3 * (abs(q) @ abs(k).swapaxes(1, 2)).ravel()
    yield "scores", Door(lambda rng, rows: heads(rng, rows, q=4, k=4), lambda q, **_: (4 * len(q) ** 2,),
                         lambda out, q, k: kernels.scores(q, k, np.array([0, q.size // 80]), out, 0.3), scored, flat=True)

    def shared(x: np.ndarray) -> Any:
        s = x.astype(np.float64).reshape(4, -1, int((x.size // 4) ** 0.5))
        p, bound = softly(s, np.broadcast_to(np.eye(s.shape[-1]), (4, s.shape[-1], s.shape[-1])))
        return p.swapaxes(0, 1).ravel(), bound.swapaxes(0, 1).ravel()
    yield "softmax", Door(lambda rng, rows: {"x": normal(rng, 4 * rows ** 2)}, lambda x: x.shape,
                          lambda out, x: kernels.softmax(x, np.array([0, int((x.size // 4) ** 0.5)]), 4, out), shared, ("x",), True)

    def weighed(p: np.ndarray, v: np.ndarray) -> Any:
        s, v = p.astype(np.float64).reshape(4, len(v), len(v)), v.astype(np.float64).swapaxes(0, 1)
        return (s @ v).swapaxes(0, 1), (gamma(len(s[0]) + 2) * (abs(s) @ abs(v))).swapaxes(0, 1)
    yield "values", Door(lambda rng, rows: {"p": normal(rng, 4 * rows ** 2), **heads(rng, rows, v=4)}, width,
                         lambda out, p, v: kernels.values(p, v, np.array([0, v.size // 96]), out), weighed)

    def headwise(x: np.ndarray, w: np.ndarray) -> Any:
        x, w = x.astype(np.float64).swapaxes(0, 1), w.astype(np.float64)
        return (x @ w).swapaxes(0, 1), gamma(22) * (abs(x) @ abs(w)).swapaxes(0, 1)
    yield "headwise", Door(lambda rng, rows: {"x": normal(rng, rows, 4, 20), "w": normal(rng, 4, 20, 9)},
                           lambda x, w: (len(x), 4, 9), lambda out, x, w: kernels.headwise(x, w, out), headwise)

    def masked(q: np.ndarray, k: np.ndarray, v: np.ndarray, **_: np.ndarray) -> Any:
        seen = Mask.window(len(q), 9, 16).unpack()
        q, k, v = (each.astype(np.float64).repeat(4 // each.shape[1], 1).swapaxes(0, 1) for each in (q, k, v))
        return softly(0.3 * q @ k.swapaxes(1, 2), v, seen)
    yield "attention_blocks", Door(
        lambda rng, rows: heads(rng, rows, q=4, k=2, v=2) | Mask.window(rows, 9, 16).arrays(), width,
        lambda out, q, k, v, **mask: kernels.attention_blocks(q, k, v, *mask.values(), out, 16, 0.3), masked)


def cache_doors() -> Iterator[tuple[str, Door]]:
    from formats import kernels
    from formats.kernels.caches import PAGE

    def kept(x: np.ndarray, slots: np.ndarray) -> Any:
        return x[np.argsort(slots)].astype(np.float64), 0
    yield "append", Door(lambda rng, rows: {"x": normal(rng, rows, 2, 20), "slots": rng.permutation(rows)},
                         lambda x, **_: x.shape, lambda out, x, slots: kernels.append(x, slots, out), kept,
                         exempt=(("out", "a row more"), ("slots", "rows all the same"), ("slots", "numbers all the same")))

    def recalled(q: np.ndarray, k: np.ndarray, v: np.ndarray, slots: np.ndarray, before: np.ndarray) -> Any:
        k, v = (each.astype(np.float64).repeat(2, 1).swapaxes(0, 1) for each in (k, v))
        return softly(0.3 * q.astype(np.float64).swapaxes(0, 1) @ k.swapaxes(1, 2), v, np.arange(k.shape[1]) <= slots[:, None])

    def cached(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
        """One sequence, whose pages follow one another."""
        pages = rows // PAGE + 1
        return {"q": normal(rng, rows, 4, 20), "k": normal(rng, pages * PAGE, 2, 20), "v": normal(rng, pages * PAGE, 2, 24),
                "slots": np.arange(rows), "before": np.arange(pages) - 1}
    yield "attention_cached", Door(cached, lambda q, v, **_: (len(q), 4, v.shape[2]), lambda out, q, k, v, slots, before:
                                   kernels.attention_cached(q, k, v, slots, before, out, 0.3), recalled)


def space_doors() -> Iterator[tuple[str, Door]]:
    from formats import kernels
    from formats.epilogue import gamma

    def mean(x: np.ndarray, **_: np.ndarray) -> Any:
        return x.astype(np.float64).sum(0, keepdims=True) / max(1, len(x)), gamma(2) * abs(x).max(0, initial=0)
    yield "pool_rows", Door(lambda rng, rows: {"x": normal(rng, rows, 35), "starts": np.array([0, rows])}, lambda **_: (1, 35),
                            lambda out, x, starts: kernels.pool_rows(x, starts, out, "mean"), mean)

    def linked(x: np.ndarray, starts: np.ndarray, at: np.ndarray, weights: np.ndarray) -> Any:
        every = weights.astype(np.float64)[:, None] * x[at]
        return (np.stack([each[a:b].sum(0) for each in (every, abs(every)) for a, b in pairwise(starts)]).reshape(2, len(starts) - 1, -1)
                * np.array([1, gamma(len(at) + 2)])[:, None, None])
    yield "link_rows", Door(
        lambda rng, rows: {"x": normal(rng, rows, 35), "starts": np.array([0, rows, rows, 2 * rows]),
                           "at": rng.integers(0, max(rows, 1), 2 * rows), "weights": normal(rng, 2 * rows)}, lambda **_: (3, 35),
        lambda out, x, starts, at, weights: kernels.link_rows(x, starts, at, weights, out, "sum"), linked)

    def once(q: np.ndarray, k: np.ndarray, v: np.ndarray, starts: np.ndarray) -> Any:
        q, k, v = (each.astype(np.float64).repeat(4 // each.shape[1], 1).swapaxes(0, 1) for each in (q, k, v))
        return softly(0.3 * q @ k.swapaxes(1, 2), v)
    yield "attend_once", Door(
        lambda rng, rows: heads(rng, 1, q=4) | heads(rng, rows, k=2, v=2) | {"starts": np.array([0, rows])}, lambda **_: (1, 4, 24),
        lambda out, q, k, v, starts: kernels.attend_once(q, k, v, starts, out, 0.3), once)


@cache
def doors() -> dict[str, Door]: return dict([*product_doors(), *pass_doors(), *head_doors(), *cache_doors(), *space_doors()])


# ---- cases

def cases() -> Iterator[Case]:
    """Every layout of every operand and of out, and every overlap of out with an operand, for every door and number of rows."""
    for name, door in doors().items():
        names = [*door.operands(np.random.default_rng(0), 2)]
        for rows in ROWS:
            for before in (True, False):
                yield from ((name, rows, operand, layout, before) for operand in [*names, "out"] for layout in LAYOUTS
                            if (operand, layout) not in door.exempt)
                yield from ((name, rows, operand, overlap, before) for operand in names for overlap in OVERLAPS)


def run(case: Case) -> str:
    """right, or refused: in which words. AssertionError says what is wrong."""
    name, rows, operand, done, before = case
    door, rng = doors()[name], np.random.default_rng(rows)
    given = door.operands(rng, rows)
    arrays = {each: laid(array, done if each == operand and done in LAYOUTS else "plain", before) for each, array in given.items()}
    shape = door.out(**given)
    if done in OVERLAPS: out, arrays[operand] = overlapping(arrays[operand], shape, done, before)
    else: out = laid(np.zeros(shape, np.float32), done if operand == "out" else "plain", before)
    if out.flags.writeable: out[...] = 77
    kept, around = {each: array.copy() for each, array in arrays.items()}, memory_of(out).copy()
    try: door.call(out, **arrays)
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


def check(door: Door, operand: str, kept: dict[str, np.ndarray], arrays: dict[str, np.ndarray], out: np.ndarray, around: np.ndarray,
          done: str) -> None:
    """out holds the bits that plain arrays give, which are near those in float64; nothing beside it was written."""
    for each, array in arrays.items():
        assert (each in door.over and done == "out is it") or np.array_equal(array, kept[each], equal_nan=True), f"{each} was changed"
    halves = {each for each, array in kept.items() if array.dtype == np.float16}
    plain = {each: np.ascontiguousarray(array, np.float32 if array.dtype.kind == "f" and each not in halves else None)
             for each, array in kept.items()}
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
        places = out.__array_interface__["data"][0] - memory.__array_interface__["data"][0] + sum(
            np.multiply.outer(np.arange(count), step).reshape([-1 if j == i else 1 for j in range(out.ndim)])
            for i, (count, step) in enumerate(zip(out.shape, out.strides, strict=True)))
        for byte in range(4): marked[np.ravel(places) + byte] = True
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
        if len(lines) == len(chosen): break
        found[f"{chosen[len(lines)]}: {child.returncode}: {child.stderr[-600:]}", "crashed"] += 1
        chosen = chosen[len(lines) + 1:]
    return found


def main() -> None:
    """Run the cases of stdin."""
    from formats.threads import limit
    with limit(1):
        for line in sys.stdin:
            try: result = run(json.loads(line))
            except Exception as error: result = f"wrong: {type(error).__name__}: {error}"
            print(json.dumps(result), flush=True)


if __name__ == "__main__": main()
