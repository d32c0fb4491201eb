"""The calibration: every kernel on shapes, rows and densities spread evenly over what is usual, in rounds, so that a busy
moment spoils one round and not one kernel; the closed form with the least sum of relative errors and no coefficient negative;
then what it leaves out, learned from all cases and judged on each by the others (formats/predictor.py)."""
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import log
from typing import Any

import numpy as np

from formats import FORMATS, Format, FormatError
from formats.arrays import room
from formats.epilogue import Epilogue
from formats.features import beyond, pattern, stored
from formats.machine import FEATURES, FUSED, Machine, evaluate, identity
from formats.peaks import vector_rate
from formats.predictor import fitted
from formats.quiet import Watch
from formats.threads import threads

Case = tuple[str, dict[str, float], Callable[[], Any]]      # kernel, sizes, one call
Measured = list[tuple[str, dict[str, float], float]]
SOME_ROWS, BATCHES = (1, 8, 24, 160), ((24,), (100,), (60, 31, 9), (256,), (128, 40))
HEADS = ((6, 32), (3, 64))                                  # heads, columns of one
LEAST = 5e-12                                               # seconds a number: nothing is free, whatever the noise says
LAYOUT = 0.5                                                # of a format's matrices, more for each layout beyond the first
LONG = 0.2                                                  # power of its time that a case weighs
SECONDS = 0.003                                             # of one case in one round, or three calls if that is longer
ROUNDS = 3
EVEN = 0.7548776662466927, 0.5698402909980532, 0.4301597090019468, 0.8191725133961645      # steps that fill a cube evenly


@dataclass(frozen=True)
class Plan:
    """How much is measured: matrices of each format, rows of each, the longest side and the most rows, the most arithmetic of
    a call, seconds for making the matrices of one format and for all measuring."""
    matrices: int = 14
    rows: int = 4
    largest: int = 2048
    most_rows: int = 640
    arithmetic: float = 1.5e8
    making: float = 0.35
    seconds: float = 9.0


QUICK, FULL = Plan(), Plan(40, 4, 4096, 1024, 8e8, 1.2, 36.0)


class Numbers:
    """Random float32 arrays that share their memory, as only shapes matter to time."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.inputs, self.outputs = (room((1 << 22,), np.dtype(np.float32)) for _ in range(2))
        self.inputs[:], self.outputs[:] = self.rng.standard_normal(1 << 22, np.float32), 0

    def some(self, *shape: int) -> np.ndarray: return self.inputs[:int(np.prod(shape))].reshape(shape)
    def room(self, *shape: int) -> np.ndarray: return self.outputs[:int(np.prod(shape))].reshape(shape)
    def fresh(self, *shape: int) -> np.ndarray: return self.rng.standard_normal(shape, np.float32)


def spread(i: int, axis: int, least: float, most: float) -> float:
    """Term i of a sequence that fills the interval evenly in octaves, and with the other axes fills the cube evenly
    (Kronecker's; Roberts 2018)."""
    return float(least * (most / least) ** ((0.5 + (i + 1) * EVEN[axis]) % 1))


def matrices(name: str, plan: Plan, numbers: Numbers, start: int = 0, skew: float = 0.0) -> Iterator[Format]:
    """Matrices in one format, of shapes and options spread evenly; fewer where making them takes long. A skew spreads the
    sizes of columns, so what keeps the highest numbers keeps more in some."""
    form, end = FORMATS[name], time.perf_counter() + plan.making
    count = round(plan.matrices * (1 + LAYOUT * (len(form.layouts(512, 512)) - 1)))
    for i in range(start, start + count):
        n, p = (32 * round(spread(i, axis, 64, plan.largest) / 32) for axis in (0, 1))
        choices, layouts = form.choices(n, p), form.layouts(n, p)
        if not choices: continue
        options = choices[i % len(choices)] | layouts[i % len(layouts)]
        if isinstance(options.get("density"), float): options["density"] = spread(i, 2, 0.02, 0.75)
        W = numbers.fresh(n, p)
        if skew: W *= np.exp(skew * numbers.fresh(1, p))
        try: yield example(form, W, options)
        except FormatError: continue
        if time.perf_counter() > end: break


def example(form: type[Format], W: np.ndarray, options: dict[str, Any]) -> Format:
    """A matrix in this format, with the sizes that these options give; what would be decomposed is put together from its
    factors."""
    if not hasattr(form, "pack_factors"): return form.approximate(W, **options)
    rank = min(options.get("rank") or min(W.shape) // 4, *W.shape)
    remainder = [FORMATS["csr"].fit(W, density=options["density"])] if "density" in options else []
    packed: Format = form.pack_factors(W[:, :rank], W[:rank], *remainder)
    return packed


def products(names: Iterable[str], plan: Plan, numbers: Numbers, start: int = 0, skew: float = 0.0) -> Iterator[Case]:
    """x @ W in these formats, each matrix with one row and with others, fewer where the matrix is large."""
    for name in names:
        for i, packed in enumerate(matrices(name, plan, numbers, start, skew)):
            sizes = {str(size): float(value) for size, value in packed.sizes.items()}
            if skew: sizes |= pattern(packed.unpack())
            n, p = packed.shape
            most = int(min(plan.most_rows, plan.arithmetic / stored(name, sizes)[1], (1 << 22) / max(n, p)))
            for T in rows_of(i + start, plan.rows, most):
                x, out = numbers.some(T, n), numbers.room(T, p)
                yield f"linear.{name}", {"T": T} | sizes, lambda w=packed, x=x, out=out: w.matmul(x, out=out)


def by_numpy(plan: Plan, numbers: Numbers) -> Iterator[Case]:
    """The products of dense, by numpy."""
    for i, packed in enumerate(matrices("dense", plan, numbers)):
        n, p = packed.shape
        w = packed.unpack()
        for T in rows_of(i, plan.rows, int(min(plan.most_rows, plan.arithmetic / w.size, (1 << 22) / max(n, p)))):
            x, out = numbers.some(T, n), numbers.room(T, p)
            yield "linear.blas", {"T": T, "n": n, "p": p}, lambda w=w, x=x, out=out: np.dot(x, w, out=out)


def rows_of(i: int, count: int, most: int) -> list[int]:
    """One row, and others up to `most`, every other one a multiple of 16."""
    found = {1}
    for k in range(count - 1):
        T = spread(i * (count - 1) + k, 3, 2, max(most, 2))
        found.add(max(16, round(T / 16) * 16) if (i + k) % 2 and most >= 16 else round(T))
    return sorted(T for T in found if T <= max(most, 1))


def epilogues(p: int, x: np.ndarray) -> dict[str, Epilogue]:
    """The parts of an epilogue, each alone."""
    row = np.ones(p, np.float32)
    return {"bias": Epilogue(bias=row), "gelu": Epilogue(activation="gelu"), "residual": Epilogue(residual=x),
            "norm": Epilogue(eps=1e-6), "affine": Epilogue(gain=row, shift=row)}


def passes(widths: Iterable[int], rows: Iterable[int], numbers: Numbers) -> Iterator[Case]:
    """Epilogues as passes of their own, scaling, gathering."""
    from formats import kernels
    for p in widths:
        table = numbers.fresh(1000, p)
        for T in rows:
            x, out, sizes = numbers.some(T, p), numbers.room(T, p), {"T": T, "p": p}
            ids = numbers.rng.integers(0, 1000, T)
            for name, after in epilogues(p, x).items():
                yield f"pointwise.{name}", sizes, lambda x=x, out=out, after=after: kernels.pointwise(x, out, after)
            yield "scale", sizes, lambda x=x, out=out: kernels.scale(x, 0.5, out)
            yield "gather", sizes, lambda ids=ids, table=table, out=out: kernels.gather(ids, table, out)


def heads(batches: Iterable[tuple[int, ...]], numbers: Numbers) -> Iterator[Case]:
    """Attention, whole and in its three steps, and products of each head."""
    from formats import kernels
    for lengths in batches:
        starts = np.cumsum([0, *lengths])
        T, S2 = int(starts[-1]), int(np.dot(lengths, lengths))
        for h, d in HEADS:
            q, out, w = numbers.some(T, h, d), numbers.room(T, h, d), numbers.fresh(h, d, d)
            flat, soft, sizes = numbers.fresh(h * S2), numbers.fresh(h * S2), {"T": T, "S2": S2, "h": h, "d": d}
            yield "attention", sizes, lambda a=(q, q, q, starts, out): kernels.attention(*a)
            yield "attention.bf16", sizes, lambda a=(q, q, q, starts, out): kernels.attention_halves(*a)
            yield "scores", sizes, lambda a=(q, q, starts, flat): kernels.scores(*a)
            yield "softmax", sizes, lambda a=(flat, starts, h, soft): kernels.softmax(*a)
            yield "values", sizes, lambda a=(soft, q, starts, out): kernels.values(*a)
            yield "headwise", {"T": T, "h": h, "n": d, "p": d}, lambda a=(q, w, out): kernels.headwise(*a)


def timed(call: Callable[[], Any], seconds: float = SECONDS) -> list[float]:
    """Seconds of a few runs, after one that is not counted; of runs that lost the processor only if all did."""
    call()
    taken: list[float] = []
    clean: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < 3 or (time.perf_counter() < end and len(taken) < 25):
        start, worked = time.perf_counter(), time.thread_time()
        call()
        taken.append(time.perf_counter() - start)
        if taken[-1] < 1.1 * (time.thread_time() - worked): clean.append(taken[-1])
    return clean or taken


def measured(cases: list[Case], progress: Callable[..., None] = lambda *_: None, most: float = 10.0,
             watch: Watch | None = None) -> Measured:
    """The lower quartile of all runs of each case: what else the machine does only ever adds. After the first round, no
    more are begun than `most` seconds allow. All runs are handed to the watch."""
    runs: list[list[float]] = [[] for _ in cases]
    end, steps = time.perf_counter() + most, ROUNDS * len(cases)
    for done in range(steps):
        if done >= len(cases) and time.perf_counter() > end: break
        runs[done % len(cases)] += timed(cases[done % len(cases)][2])
        progress(done + 1, steps)
    progress(steps, steps)
    if watch: watch.note(runs)
    return [(kernel, sizes, sorted(taken)[len(taken) // 4])
            for (kernel, sizes, _), taken in zip(cases, runs, strict=True)]


def fused(numbers: Numbers) -> dict[str, float]:
    """Seconds a number that each stage adds behind a product that is short and has many outputs."""
    n, p, T = 32, 768, 256
    weight, x, out = FORMATS["dense"].pack(numbers.fresh(n, p)), numbers.some(T, n), numbers.room(T, p)
    stages: list[tuple[str, Epilogue | None]] = [("", None), *epilogues(p, numbers.some(T, p)).items()]
    runs: dict[str, list[float]] = {name: [] for name, _ in stages}
    for _ in range(8):
        for name, after in stages: runs[name] += timed(lambda after=after: weight.matmul(x, out=out, epilogue=after))
    quartile = {name: sorted(taken)[len(taken) // 4] for name, taken in runs.items()}
    return {name: max((quartile[name] - quartile[""]) / (T * p), LEAST) for name in FUSED}


def fit(kernel: str, rows: Measured, far: bool = False) -> list[float]:
    """Coefficients, none negative, with the least sum of relative errors: least squares, weighted anew a few times so
    that a measurement that something else disturbed counts for little. Long calls weigh more: from them the rates are known, and
    there are few. `far`: the last coefficient is that of bytes beyond the second cache."""
    from scipy.optimize import nnls
    taken = np.array([row[2] for row in rows])
    values = np.array([(*evaluate(kernel, sizes), *([beyond(kernel, sizes)] if far else [])) for _, sizes, _ in rows])
    relative, long = values / taken[:, None], (taken / taken.min()) ** LONG
    scale, weight = relative.max(0), long
    for _ in range(6):
        found = nnls(relative / scale * weight[:, None], weight)[0] / scale
        weight = long / np.sqrt(np.maximum(abs(relative @ found - 1), 0.02))
    return [float(a) for a in found]


def closed(found: dict[str, Measured]) -> Machine:
    """The closed forms of what was measured."""
    products = {kernel: rows for kernel, rows in found.items() if kernel.startswith("linear.")}
    one, more = ({kernel: fit(kernel, [row for row in rows if (row[1]["T"] == 1) == alone], far=True)
                  for kernel, rows in products.items()} for alone in (True, False))
    others = {kernel: fit(kernel, rows) for kernel, rows in found.items() if kernel not in products}
    name, threads, versions = identity()
    return Machine(name, threads, dict(versions), others | {kernel: each[:-1] for kernel, each in more.items()},
                   one_row={kernel: each[:-1] for kernel, each in one.items()},
                   far={kernel: [one[kernel][-1], more[kernel][-1]] for kernel in products})


def residuals(machine: Machine, rows: Measured) -> list[float]:
    """The logarithms of what was measured over the closed form."""
    return [log(taken / machine.closed(kernel, **sizes)) for kernel, sizes, taken in rows]


def calibrate(progress: Callable[..., None] = lambda *_: None, full: bool = False, blas: bool = False) -> Machine:
    """Measures this machine, in 18 seconds at most, or full, in a minute; kernels are compiled, or read from the cache, first.
    With `blas` also float32 products by numpy, which nothing but `formats.select` asks for. What is taken on a busy machine is
    marked so."""
    from formats import kernels
    kernels.warm(progress=lambda name, seconds: progress(f"compiled {name}"))
    numbers, plan, watch = Numbers(), FULL if full else QUICK, Watch()
    cases = [*products(FORMATS, plan, numbers), *(by_numpy(plan, numbers) if blas else ()),
             *passes((256, 384, 1280), SOME_ROWS, numbers), *heads(BATCHES, numbers)]
    found: dict[str, Measured] = {}
    for row in measured(cases, progress, plan.seconds, watch): found.setdefault(row[0], []).append(row)
    plain = closed(found)
    corrections = {kernel: fitted(kernel, [sizes for _, sizes, _ in rows], residuals(plain, rows))
                   for kernel, rows in found.items()}
    coefficients = plain.coefficients | {                   # riding along is never dearer than a pass of its own
        name: [min(slope, max(plain.coefficients[f"pointwise.{name}"][0], LEAST))] for name, slope in fused(numbers).items()}
    known = [*FEATURES, *(["linear.blas"] if blas else [])]
    if threads() > 1: watch.speedup = (rate := vector_rate()).all / rate.one
    return replace(plain, coefficients={kernel: coefficients[kernel] for kernel in known}, corrections=corrections,
                   interval={kernel: each.alone for kernel, each in corrections.items()}, busy=watch.seen())
