"""The calibration: every kernel on a few shapes, in rounds, so that a busy moment spoils one round and not one kernel;
the least sum of relative errors with no coefficient negative; then judged on shapes that were not fitted."""
import time
from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Any

import numpy as np

from formats import FORMATS
from formats.epilogue import Epilogue
from formats.machine import FEATURES, FUSED, Machine, evaluate, identity

Case = tuple[str, dict[str, float], Callable[[], Any]]      # kernel, sizes, one call
Measured = list[tuple[str, dict[str, float], float]]
SHAPES = ((256, 512), (512, 320), (320, 1280), (1280, 256))
LARGE = ((640, 2560),)                                      # a weight larger than most caches of one core
ROWS, SOME_ROWS = (4, 16, 40, 64, 192, 640), (8, 24, 160)
JUDGED_SHAPES, JUDGED_ROWS = ((384, 384), (384, 1536), (1536, 384)), (16, 128)
BATCHES = ((24,), (100,), (60, 31, 9), (256,))
JUDGED_BATCHES = ((128,), (64, 64))
HEADS = ((6, 32), (3, 64))                                  # heads, columns of one
DENSE: tuple[tuple[str, dict[str, Any]], ...] = (("dense", {}), ("half", {}))
SPARSE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("csr", {"density": 0.1}), ("csr", {"density": 0.4}), ("block", {"density": 0.25}), ("block", {"density": 0.6}),
    ("nm", {}), ("lowrank", {"rank": 24}), ("lowrank", {"rank": 160}))
LEAST = 5e-12                                               # seconds a number: nothing is free, whatever the noise says
ROUNDS, SECONDS = 3, 0.004                                  # of one case in one round, or three calls if that is longer


class Numbers:
    """Random float32 arrays that share their memory, as only shapes matter to time."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.inputs, self.outputs = (self.rng.normal(size=1 << 22).astype(np.float32) for _ in range(2))

    def some(self, *shape: int) -> np.ndarray: return self.inputs[:int(np.prod(shape))].reshape(shape)
    def room(self, *shape: int) -> np.ndarray: return self.outputs[:int(np.prod(shape))].reshape(shape)
    def fresh(self, *shape: int) -> np.ndarray: return self.rng.normal(size=shape).astype(np.float32)


def products(shapes: Iterable[tuple[int, int]], formats: Any, rows: Iterable[int], numbers: Numbers) -> Iterator[Case]:
    """x @ W in every format."""
    for n, p in shapes:
        W = numbers.fresh(n, p)
        for name, options in formats:
            form = FORMATS[name]
            packed = form.approximate(W, **options) if name != "lowrank" else form.pack_factors(W[:, :options["rank"]], W[:options["rank"]])
            for T in rows:
                sizes = {"T": T} | {str(size): float(value) for size, value in packed.sizes.items()}
                x, out = numbers.some(T, n), numbers.room(T, p)
                yield f"linear.{name}", sizes, lambda w=packed, x=x, out=out: w.matmul(x, out=out)


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


def measured(cases: list[Case], progress: Callable[..., None] = lambda *_: None, most: float = 10.0) -> Measured:
    """The lower quartile of all runs of each case: what else the machine does only ever adds. After the first round, no
    more are begun than `most` seconds allow."""
    runs: list[list[float]] = [[] for _ in cases]
    end, steps = time.perf_counter() + most, ROUNDS * len(cases)
    for done in range(steps):
        if done >= len(cases) and time.perf_counter() > end: break
        runs[done % len(cases)] += timed(cases[done % len(cases)][2])
        progress(done + 1, steps)
    progress(steps, steps)
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


def fit(kernel: str, rows: Measured) -> list[float]:
    """Coefficients, none negative, with the least sum of relative errors: least squares, weighted anew a few times so
    that a measurement that something else disturbed counts for little."""
    from scipy.optimize import nnls
    relative = np.array([evaluate(kernel, sizes) for _, sizes, _ in rows]) / np.array([[taken] for *_, taken in rows])
    scale, weight = relative.max(0), np.ones(len(rows))
    for _ in range(6):
        found = nnls(relative / scale * weight[:, None], weight)[0] / scale
        weight = 1 / np.sqrt(np.maximum(abs(relative @ found - 1), 0.02))
    return [float(a) for a in found]


def calibrate(progress: Callable[..., None] = lambda *_: None) -> Machine:
    """Measures this machine, in half a minute at most; kernels are compiled, or read from the cache, first."""
    from formats import kernels
    kernels.warm(progress=lambda name, seconds: progress(f"compiled {name}"))
    numbers = Numbers()
    cases = [*products(SHAPES, DENSE + SPARSE, ROWS, numbers), *products(LARGE, DENSE, (8, 100, 700), numbers),
             *passes((256, 1280), SOME_ROWS, numbers), *heads(BATCHES, numbers)]
    found: dict[str, Measured] = {}
    for row in measured(cases, progress): found.setdefault(row[0], []).append(row)
    coefficients = {kernel: fit(kernel, rows) for kernel, rows in found.items()}
    for name, slope in fused(numbers).items():              # riding along is never dearer than a pass of its own
        coefficients[name] = [min(slope, max(coefficients[f"pointwise.{name}"][0], LEAST))]
    name, threads, versions = identity()
    machine = Machine(name, threads, dict(versions), {kernel: coefficients[kernel] for kernel in FEATURES})
    return Machine(**{**vars(machine), "interval": judged(machine, numbers)})


def judged(machine: Machine, numbers: Numbers) -> dict[str, float]:
    """The median relative error of each kernel's prediction on shapes that were not fitted."""
    cases = [*products(JUDGED_SHAPES, DENSE + SPARSE, JUDGED_ROWS, numbers), *passes((384,), JUDGED_ROWS, numbers),
             *heads(JUDGED_BATCHES, numbers)]
    wrong: dict[str, list[float]] = {}
    for kernel, sizes, taken in measured(cases, most=4.0):
        wrong.setdefault(kernel, []).append(abs(machine.seconds(kernel, **sizes) / taken - 1))
    return {kernel: float(median(errors)) for kernel, errors in wrong.items()}
