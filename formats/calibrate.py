"""The calibration: every kernel on a few shapes, medians, nonnegative least squares on relative errors; then judged on
shapes that were not fitted."""
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np

from formats import FORMATS
from formats.epilogue import Epilogue
from formats.machine import FEATURES, FUSED, Machine, evaluate, identity

Case = tuple[str, dict[str, float], Callable[[], Any]]
SHAPES = ((256, 512), (512, 320), (320, 1280), (1280, 256))
ROWS = (4, 24, 72, 160, 448)
JUDGED_SHAPES, JUDGED_ROWS = ((384, 384), (384, 1536), (1536, 384)), (16, 128)
BATCHES = ((24,), (100,), (60, 31, 9), (256,))
JUDGED_BATCHES = ((128,), (64, 64))
STORED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("dense", {}), ("half", {}), ("csr", {"density": 0.1}), ("csr", {"density": 0.4}), ("block", {"density": 0.25}),
    ("block", {"density": 0.6}), ("nm", {}), ("lowrank", {"rank": 64}))
HEADS, WIDTH = 6, 32
LEAST = 5e-12                                               # seconds a number: nothing is free, whatever the noise says
SECONDS = 0.02                                              # for one case, or three runs where that is longer


def products(shapes: Any, rows: Any, rng: np.random.Generator) -> Iterator[Case]:
    """x @ W in every format."""
    for n, p in shapes:
        W = rng.normal(size=(n, p)).astype(np.float32)
        for name, options in STORED:
            form = FORMATS[name]
            packed = form.approximate(W, **options) if name != "lowrank" else form.pack_factors(W[:, :64], W[:64])
            for count in rows:
                x, out = rng.normal(size=(count, n)).astype(np.float32), np.empty((count, p), np.float32)
                sizes = {"T": count} | {str(size): float(value) for size, value in packed.sizes.items()}
                yield f"linear.{name}", sizes, lambda w=packed, x=x, out=out: w.matmul(x, out=out)


def epilogues(p: int, x: np.ndarray) -> dict[str, Epilogue]:
    row = np.ones(p, np.float32)
    return {"bias": Epilogue(bias=row), "gelu": Epilogue(activation="gelu"), "residual": Epilogue(residual=x),
            "norm": Epilogue(eps=1e-6), "affine": Epilogue(gain=row, shift=row)}


def passes(widths: Any, rows: Any, rng: np.random.Generator) -> Iterator[Case]:
    """Epilogues as passes of their own, scaling, gathering."""
    from formats import kernels
    for p in widths:
        table = rng.normal(size=(1000, p)).astype(np.float32)
        for count in rows:
            x, out = rng.normal(size=(count, p)).astype(np.float32), np.empty((count, p), np.float32)
            ids = rng.integers(0, 1000, count)
            for name, epilogue in epilogues(p, x).items():
                yield f"pointwise.{name}", {"T": count, "p": p}, lambda x=x, out=out, e=epilogue: kernels.pointwise(x, out, e)
            yield "scale", {"T": count, "p": p}, lambda x=x, out=out: kernels.scale(x, 0.5, out)
            yield "gather", {"T": count, "p": p}, lambda i=ids, t=table, out=out: kernels.gather(i, t, out)


def heads(batches: Any, rng: np.random.Generator) -> Iterator[Case]:
    """Attention, whole and in its three steps, and products of each head."""
    from formats import kernels
    for lengths in batches:
        starts = np.cumsum([0, *lengths])
        rows, pairs = int(starts[-1]), int(np.dot(lengths, lengths))
        q, k, v, out = (rng.normal(size=(rows, HEADS, WIDTH)).astype(np.float32) for _ in range(4))
        flat, soft = (np.ones(HEADS * pairs, np.float32) for _ in range(2))
        w = rng.normal(size=(HEADS, WIDTH, WIDTH)).astype(np.float32)
        sizes = {"T": rows, "S2": pairs, "h": HEADS, "d": WIDTH}
        yield "attention", sizes, lambda a=(q, k, v, starts, out): kernels.attention(*a)
        yield "scores", sizes, lambda a=(q, k, starts, flat): kernels.scores(*a)
        yield "softmax", sizes, lambda a=(flat, starts, HEADS, soft): kernels.softmax(*a)
        yield "values", sizes, lambda a=(soft, v, starts, out): kernels.values(*a)
        yield "headwise", {"T": rows, "h": HEADS, "n": WIDTH, "p": WIDTH}, lambda a=(q, w, out): kernels.headwise(*a)


def timed(call: Callable[[], Any], seconds: float = SECONDS) -> float:
    """The lower quartile of a few runs after one that is not counted: what else the machine does only ever adds."""
    call()
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < 4 or (time.perf_counter() < end and len(taken) < 25):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return sorted(taken)[len(taken) // 4]


def fused(rng: np.random.Generator) -> dict[str, list[float]]:
    """Seconds a number that each stage adds behind a product: paired medians, beside the product alone."""
    n, p, count = 96, 768, 256
    weight = FORMATS["dense"].pack(rng.normal(size=(n, p)).astype(np.float32))
    x, out = rng.normal(size=(count, n)).astype(np.float32), np.empty((count, p), np.float32)
    found: dict[str, list[float]] = {name: [] for name in FUSED}
    for _ in range(12):
        alone = timed(lambda: weight.matmul(x, out=out), 0.0)
        for name, epilogue in epilogues(p, rng.normal(size=(count, p)).astype(np.float32)).items():
            found[name].append(timed(lambda e=epilogue: weight.matmul(x, out=out, epilogue=e), 0.0) - alone)
    return {name: [max(median(extra) / (count * p), LEAST)] for name, extra in found.items()}


def fit(kernel: str, rows: list[tuple[dict[str, float], float]]) -> list[float]:
    """Coefficients that make the relative errors least, none negative."""
    from scipy.optimize import nnls
    features = np.array([evaluate(kernel, sizes) for sizes, _ in rows])
    seconds = np.array([taken for _, taken in rows])
    scale = features.max(0)
    return [float(a) for a in nnls(features / scale / seconds[:, None], np.ones(len(rows)))[0] / scale]


def calibrate(progress: Callable[..., None] = lambda *_: None) -> Machine:
    """Measures this machine: kernels are compiled or read from the cache first."""
    from formats import kernels
    kernels.warm(progress=lambda name, seconds: progress(f"compiling {name}"))
    rng = np.random.default_rng(0)
    cases = [*products(SHAPES, ROWS, rng), *passes((256, 1280), ROWS, rng), *heads(BATCHES, rng)]
    measured: dict[str, list[tuple[dict[str, float], float]]] = {}
    for done, (kernel, sizes, call) in enumerate(cases):
        measured.setdefault(kernel, []).append((sizes, timed(call)))
        progress(done + 1, len(cases))
    coefficients = {kernel: fit(kernel, rows) for kernel, rows in measured.items()}
    for name, (slope,) in fused(rng).items():               # riding along is never dearer than a pass of its own
        coefficients[name] = [min(slope, max(coefficients[f"pointwise.{name}"][0], LEAST))]
    name, threads, versions = identity()
    machine = Machine(name, threads, dict(versions), {kernel: coefficients[kernel] for kernel in FEATURES})
    return Machine(**{**vars(machine), "interval": judged(machine, rng)})


def judged(machine: Machine, rng: np.random.Generator) -> dict[str, float]:
    """The median relative error of each kernel's prediction on shapes that were not fitted."""
    wrong: dict[str, list[float]] = {}
    for kernel, sizes, call in [*products(JUDGED_SHAPES, JUDGED_ROWS, rng), *passes((384,), JUDGED_ROWS, rng), *heads(JUDGED_BATCHES, rng)]:
        wrong.setdefault(kernel, []).append(abs(machine.seconds(kernel, **sizes) / timed(call) - 1))
    return {kernel: float(median(errors)) for kernel, errors in wrong.items()}
