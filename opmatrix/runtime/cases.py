"""The calls of kernels that a calibration times (formats/machine/calibration.py), each with its sizes; only shapes
matter to time."""
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from formats import FORMATS, Format, kernels
from formats.machine.prices import Timed
from formats.machine.running import BEGINNINGS

TURNED = 64                                                 # columns of a head that is rotated
BEYOND = 2 ** 40                                            # as far as anybody sees
REACHES = (BEYOND, BEYOND), (BEYOND, 0), (32, 32)           # keys that a query sees, behind it and ahead
Cases = Callable[[Any, Any], Iterator[Timed]]


def passes(call: Callable[..., Any]) -> Cases:
    """`call(x, out)` of rows."""
    def cases(grid: Any, numbers: Any) -> Iterator[Timed]:
        for sizes, x, out in grid.passes(numbers): yield sizes, partial(call, x, out)
    return cases


def rotate(grid: Any, numbers: Any) -> Iterator[Timed]:
    for sizes, x, out in grid.passes(numbers):
        by, at = numbers.fresh(len(x), TURNED // 2), np.arange(len(x))
        turned, into = (each.reshape(len(x), -1, TURNED) for each in (x, out))
        yield sizes, partial(kernels.rotate, turned, at, by, by, into)


def gather(grid: Any, numbers: Any) -> Iterator[Timed]:
    """From more than any cache holds, as a vocabulary is."""
    from formats.machine.host import uncached
    held = np.ones(uncached() // 4, np.float32)
    for sizes, x, out in grid.passes(numbers):
        table = held[:held.size // x.shape[1] * x.shape[1]].reshape(-1, x.shape[1])
        at = numbers.rng.integers(0, len(table), len(x))
        yield sizes, partial(kernels.gather, at, table, out)


def columns(form: type[Format], grid: Any, numbers: Any) -> Iterator[Timed]:
    """The same from a format's panels."""
    from formats.machine.host import uncached
    held = np.ones(uncached() // 4, np.float32).view(form.fields["w"].number.dtype({}))
    assert form.panelled is not None
    for sizes, x, out in grid.passes(numbers):
        deep, width = form.panelled.stored(n := x.shape[1]), form.panelled.width
        N = len(held) // deep // width * width
        scales = (np.ones((1, N), np.float32), n) if "scale" in form.fields else ()
        table = kernels.Columns((n, N), form.panelled, held[:deep * N], *scales)
        yield sizes, partial(kernels.gather, numbers.rng.integers(0, N, len(x)), table, out)


def link(grid: Any, numbers: Any) -> Iterator[Timed]:
    """One entry a row."""
    for sizes, x, out in grid.passes(numbers):
        starts, at, ones = np.arange(len(x) + 1), numbers.rng.permutation(len(x)), np.ones(len(x), np.float32)
        yield sizes, partial(kernels.link_rows, x, starts, at, ones, out, "sum")


def pick(grid: Any, numbers: Any) -> Iterator[Timed]:
    for sizes, x, out in grid.passes(numbers):
        at = numbers.rng.permutation(len(x))
        yield sizes, partial(np.take, x, at, 0, out)


def pool(grid: Any, numbers: Any) -> Iterator[Timed]:
    from formats.kernels.mixing.heads import layout
    for lengths in grid.batches:
        starts = layout(np.cumsum([0, *lengths]).tobytes())
        for p in grid.widths:
            x, out = numbers.some(sum(lengths), p), numbers.room(len(lengths), p)
            yield {"T": len(x), "S": len(out), "p": p}, partial(kernels.pool_rows, x, starts, out, "mean")


def batches(call: Callable[..., tuple[dict[str, float], Callable[[], Any]]]) -> Cases:
    """`call(numbers, lengths, h, d)` for sentences of these lengths, in so many heads of so many columns."""
    def cases(grid: Any, numbers: Any) -> Iterator[Timed]:
        for lengths in grid.batches:
            for h, d in grid.heads: yield call(numbers, lengths, h, d)
    return cases


def sized(lengths: tuple[int, ...], h: int, d: int) -> dict[str, float]:
    return {"T": sum(lengths), "S2": int(np.dot(lengths, lengths)), "h": h, "d": d}


def attention(call: Callable[..., Any]) -> Cases:
    """Of everybody, of what lies behind, of a window."""
    def cases(grid: Any, numbers: Any) -> Iterator[Timed]:
        from formats.kernels.mixing.heads import layout
        from formats.masks import attended
        for lengths in grid.batches:
            starts = layout(np.cumsum([0, *lengths]).tobytes())
            for h, d in grid.heads:
                sizes, q, out = sized(lengths, h, d), numbers.some(sum(lengths), h, d), numbers.room(sum(lengths), h, d)
                for reach in REACHES:
                    held = sum(attended(length, *reach) for length in lengths)
                    if reach != REACHES[0] and held == sizes["S2"]: continue
                    yield sizes | {"S2": held}, partial(call, q, q, q, starts, out, 1.0, reach)
    return cases


@batches
def attend_once(numbers: Any, lengths: tuple[int, ...], h: int, d: int) -> Timed:
    from formats.kernels.mixing.heads import layout
    starts, k, out = layout(np.cumsum([0,
                                       *lengths]).tobytes()), numbers.some(sum(lengths), h,
                                                                           d), numbers.room(len(lengths), h, d)
    return {"T": len(k), "h": h, "d": d}, partial(kernels.attend_once, k[:len(out)], k, k, starts, out)


@batches
def scores(numbers: Any, lengths: tuple[int, ...], h: int, d: int) -> Timed:
    sizes, q = sized(lengths, h, d), numbers.some(sum(lengths), h, d)
    a = q, q, np.cumsum([0, *lengths]), numbers.fresh(h * sizes["S2"])
    return sizes, lambda: kernels.scores(*a)


@batches
def softmax(numbers: Any, lengths: tuple[int, ...], h: int, d: int) -> Timed:
    sizes = sized(lengths, h, d)
    a = numbers.fresh(h * sizes["S2"]), np.cumsum([0, *lengths]), h, numbers.fresh(h * sizes["S2"])
    return sizes, lambda: kernels.softmax(*a)


@batches
def values(numbers: Any, lengths: tuple[int, ...], h: int, d: int) -> Timed:
    sizes, q, out = sized(lengths, h, d), numbers.some(sum(lengths), h, d), numbers.room(sum(lengths), h, d)
    a = numbers.fresh(h * sizes["S2"]), q, np.cumsum([0, *lengths]), out
    return sizes, lambda: kernels.values(*a)


@batches
def headwise(numbers: Any, lengths: tuple[int, ...], h: int, d: int) -> Timed:
    a = numbers.some(sum(lengths), h, d), numbers.fresh(h, d, d), numbers.room(sum(lengths), h, d)
    return {"T": len(a[0]), "h": h, "n": d, "p": d}, lambda: kernels.headwise(*a)


def beginning(sentences: int) -> Callable[[], Any]:
    """A run of a program that gathers a row of each sentence: Python before it and after it is all that takes time."""
    from opmatrix.batch import Batch
    from opmatrix.program import Program, Step
    table = FORMATS["dense"].pack(np.ones((1, 16), np.float32))
    program = Program([Step("embed", {"table0": "table"}, {"fields": "tokens"}, "x")], {"table": table}, "x")
    batch = Batch([[0]] * sentences)
    program.run(batch)                                      # compiles
    return partial(program.run, batch)


BEGINNINGS.append(beginning)
