"""The calibration: every kernel on shapes, rows and densities spread evenly over what is usual, in rounds, so that a busy
moment spoils one round and not one kernel; the closed form with the least sum of relative errors and no coefficient negative;
then what it leaves out, learned from all cases and judged on each by the others (formats/predictor.py)."""
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import log
from typing import Any

import numpy as np

from formats import FORMATS, Format, FormatError
from formats.epilogue import Epilogue
from formats.features import beyond, even, quantile, stored
from formats.host import uncached
from formats.kernels.heads import ALL
from formats.machine import FEATURES, NARROW, STAGES, WAYS, Machine, Rates, evaluate, here
from formats.masks import attended
from formats.peaks import vector_rate
from formats.predictor import fitted
from formats.quiet import Watch
from formats.running import Case, Measured, inside, shared
from formats.threads import threads

SOME_ROWS, BATCHES = (1, 8, 24, 160), ((24,), (100,), (60, 31, 9), (256,), (128, 40))
HEADS = ((12, 32), (6, 64), (3, 128))                                  # heads, columns of one
REACHES = (ALL, ALL), (ALL, 0), (32, 32)                               # keys that a query sees, behind it and ahead
TURNED = 64                                                 # columns of a head that is rotated
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
INSIDE, INSIDE_FULL = Plan(16, 4, 4096, 400, 4e8, 0.2, 3.0), Plan(40, 4, 4096, 512, 8e8, 1.2, 12.0)
WIDTHS, GROUPS = (384, 768, 1536), ((16,), (48,), (128,), (60, 31, 9), (256,), (64, 64))
RIDDEN = {"packed": "", "int8": NARROW}                      # what epilogues are timed behind
BY_ITSELF = {"scores", "softmax", "values"}                 # programs with these run function by function


class Numbers:
    """Random float32 arrays that share their memory, as only shapes matter to time: so many to read, and to write."""

    def __init__(self, count: int = 1 << 22) -> None:
        self.rng, self.count = np.random.default_rng(0), count
        self.memory, self.inputs, self.outputs = shared(count)
        self.inputs[:], self.outputs[:] = self.rng.standard_normal(count, np.float32), 0

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
            n, p = packed.shape
            most = int(min(plan.most_rows, plan.arithmetic / stored(name, sizes)[1], numbers.count / max(n, p)))
            for T in rows_of(i + start, plan.rows, most):
                x, out = numbers.some(T, n), numbers.room(T, p)
                yield f"linear.{name}", {"T": T} | sizes, lambda w=packed, x=x, out=out: w.matmul(x, out=out)


def by_numpy(plan: Plan, numbers: Numbers) -> Iterator[Case]:
    """The products of dense, by numpy."""
    for i, packed in enumerate(matrices("dense", plan, numbers)):
        n, p = packed.shape
        w = packed.unpack()
        for T in rows_of(i, plan.rows, int(min(plan.most_rows, plan.arithmetic / w.size, numbers.count / max(n, p)))):
            x, out = numbers.some(T, n), numbers.room(T, p)
            yield "linear.blas", {"T": T, "n": n, "p": p}, lambda w=w, x=x, out=out: np.dot(x, w, out=out)


def rows_of(i: int, count: int, most: int) -> list[int]:
    """One row, and others up to `most`, every other one a multiple of 16."""
    found = {1}
    for k in range(count - 1):
        T = spread(i * (count - 1) + k, 3, 2, max(most, 2))
        found.add(max(16, round(T / 16) * 16) if (i + k) % 2 and most >= 16 else round(T))
    return sorted(T for T in found if T <= max(most, 1))


def epilogues(p: int, x: np.ndarray) -> dict[str, Callable[[], Epilogue]]:
    """The parts of an epilogue, each alone; made anew for each call, as steps do."""
    row = np.ones(p, np.float32)
    given: dict[str, dict[str, Any]] = {"bias": {"bias": row}, "gelu": {"activation": "gelu"}, "residual": {"residual": x},
                                        "norm": {"eps": 1e-6}, "affine": {"gain": row, "shift": row}}
    return {name: partial(Epilogue, **each) for name, each in given.items()}


def passes(widths: Iterable[int], rows: Iterable[int], numbers: Numbers) -> Iterator[Case]:
    """Epilogues as passes of their own, scaling, rotating, gathering."""
    from formats import kernels
    held = np.ones(uncached() // 4, np.float32)  # more than any cache holds, as a vocabulary is
    for p in widths:
        table = held[:held.size // p * p].reshape(-1, p)
        for T in rows:
            x, out, sizes = numbers.some(T, p), numbers.room(T, p), {"T": T, "p": p}
            ids = numbers.rng.integers(0, len(table), T)
            for name, after in epilogues(p, x).items():
                yield f"pointwise.{name}", sizes, lambda x=x, out=out, after=after: kernels.pointwise(x, out, after())
            yield "scale", sizes, lambda x=x, out=out: kernels.scale(x, 0.5, out)
            turned = *(each.reshape(T, -1, TURNED) for each in (x, out)), np.arange(T), numbers.fresh(T, TURNED // 2)
            yield "rotate", sizes, lambda x=turned[0], out=turned[1], at=turned[2], by=turned[3]: kernels.rotate(x, at, by, by, out)
            yield "gather", sizes, lambda ids=ids, table=table, out=out: kernels.gather(ids, table, out)


def heads(batches: Iterable[tuple[int, ...]], numbers: Numbers) -> Iterator[Case]:
    """Attention, whole and in its three steps, and products of each head."""
    from formats import kernels
    from formats.kernels.heads import layout
    for lengths in batches:
        starts = np.cumsum([0, *lengths])
        laid = layout(starts.tobytes())
        T, S2 = int(starts[-1]), int(np.dot(lengths, lengths))
        for h, d in HEADS:
            q, out, w = numbers.some(T, h, d), numbers.room(T, h, d), numbers.fresh(h, d, d)
            flat, soft, sizes = numbers.fresh(h * S2), numbers.fresh(h * S2), {"T": T, "S2": S2, "h": h, "d": d}
            for reach in REACHES:
                held = sizes | {"S2": sum(attended(length, *reach) for length in lengths)}
                if reach != REACHES[0] and held["S2"] == S2: continue
                yield "attention", held, lambda a=(q, q, q, laid, out, 1.0, reach): kernels.attention(*a)
                yield "attention.bf16", held, lambda a=(q, q, q, laid, out, 1.0, reach): kernels.attention_halves(*a)
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
             watch: Watch | None = None, firsts: list[float] | None = None) -> Measured:
    """The lower quartile of all runs of each case: what else the machine does only ever adds. After the first round, no
    more are begun than `most` seconds allow. All runs are handed to the watch; to `firsts`, of what has no weight, what the first of a
    turn took more, as others ran before it."""
    runs: list[list[float]] = [[] for _ in cases]
    end, steps = time.perf_counter() + most, ROUNDS * len(cases)
    for done in range(steps):
        if done >= len(cases) and time.perf_counter() > end: break
        kernel, _, call = cases[done % len(cases)]
        begun = time.perf_counter()
        call()
        first = time.perf_counter() - begun
        runs[done % len(cases)] += (taken := timed(call))
        if firsts is not None and not kernel.startswith("linear."): firsts.append(first - quantile(taken, 0.25))
        progress(done + 1, steps)
    progress(steps, steps)
    if watch: watch.note(runs)
    return [(kernel, sizes, quantile(taken, 0.25))
            for (kernel, sizes, _), taken in zip(cases, runs, strict=True)]


def fused(numbers: Numbers, form: str) -> dict[str, float]:
    """Seconds a number that each stage adds behind a product in this format that is short and has many outputs."""
    n, p, T = 32, 768, 256
    weight, x, out = FORMATS[form].approximate(numbers.fresh(n, p)), numbers.some(T, n), numbers.room(T, p)
    stages: list[tuple[str, Epilogue | None]] = [("", None), *((name, after()) for name, after in epilogues(p, numbers.some(T, p)).items())]
    runs: dict[str, list[float]] = {name: [] for name, _ in stages}
    for _ in range(8):
        for name, after in stages: runs[name] += timed(lambda after=after: weight.matmul(x, out=out, epilogue=after))
    return slopes([(f"{form} {name}", {"T": T, "p": p}, quantile(taken, 0.25)) for name, taken in runs.items()], form)


def riding(numbers: Numbers, form: str) -> Iterator[Case]:
    """Short products with many outputs, alone and with each stage."""
    for T, p in ((32, 1536), (64, 768), (128, 384), (128, 1536), (200, 768)):
        weight, x, out = FORMATS[form].approximate(numbers.fresh(32, p)), numbers.some(T, 32), numbers.room(T, p)
        for name, after in {"": lambda: None, **epilogues(p, numbers.some(T, p))}.items():
            yield f"{form} {name}", {"T": T, "p": p}, lambda w=weight, x=x, out=out, after=after: w.matmul(x, out=out, epilogue=after())


def slopes(rows: Measured, form: str) -> dict[str, float]:
    """Seconds a number that each stage adds, of all numbers of these products."""
    total = {name: sum(taken for kernel, _, taken in rows if kernel == f"{form} {name}") for name in ("", *STAGES)}
    count = sum(sizes["T"] * sizes["p"] for kernel, sizes, _ in rows if kernel == f"{form} ")
    return {name: max((total[name] - total[""]) / count, LEAST) for name in STAGES}


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


def closed(found: dict[str, Measured]) -> Rates:
    """The closed forms of what was measured."""
    products = {kernel: rows for kernel, rows in found.items() if kernel.startswith("linear.")}
    one, more = ({kernel: fit(kernel, [row for row in rows if (row[1]["T"] == 1) == alone], far=True)
                  for kernel, rows in products.items()} for alone in (True, False))
    others = {kernel: fit(kernel, rows) for kernel, rows in found.items() if kernel not in products}
    return Rates(others | {kernel: each[:-1] for kernel, each in more.items()},
                 one_row={kernel: each[:-1] for kernel, each in one.items()},
                 far={kernel: [one[kernel][-1], more[kernel][-1]] for kernel in products})


def residuals(rates: Rates, rows: Measured) -> list[float]:
    """The logarithms of what was measured over the closed form."""
    return [log(taken / rates.closed(kernel, **sizes)) for kernel, sizes, taken in rows]


def rated(rows: Measured) -> Rates:
    """Closed forms, and what they leave out."""
    found: dict[str, Measured] = {}
    for row in rows: found.setdefault(row[0], []).append(row)
    plain = closed(found)
    corrections = {kernel: fitted(kernel, [sizes for _, sizes, _ in rows], residuals(plain, rows)) for kernel, rows in found.items()}
    return replace(plain, corrections=corrections, interval={kernel: each.alone for kernel, each in corrections.items()})


def calibrate(progress: Callable[..., None] = lambda *_: None, full: bool = False, blas: bool = False) -> Machine:
    """Measures this machine, in 24 seconds at most, or full, in a minute and a half; kernels are compiled, or read from the cache,
    first. With `blas` also float32 products by numpy, which nothing but `formats.select` asks for. What is taken on a busy machine
    is marked so."""
    from formats import kernels
    kernels.warm(progress=lambda name, seconds: progress(f"compiled {name}"))
    numbers, plan, watch = Numbers(), FULL if full else QUICK, Watch()
    cases = [*products(FORMATS, plan, numbers), *(by_numpy(plan, numbers) if blas else ()),
             *passes((256, 384, 1280), SOME_ROWS, numbers), *heads(BATCHES, numbers)]
    firsts: list[float] = []
    plain = rated(measured(cases, progress, plan.seconds, watch, firsts))
    coefficients = plain.coefficients | along(plain, lambda form: fused(numbers, form))
    known = [*FEATURES, *(["linear.blas"] if blas else [])]
    if threads() > 1: watch.speedup = (rate := vector_rate()).all / rate.one
    ways = in_runs(progress, INSIDE_FULL if full else INSIDE)
    return Machine({kernel: coefficients[kernel] for kernel in known}, plain.interval, plain.corrections, plain.one_row, plain.far,
                   cold=max(0.0, quantile(firsts, 0.5)) if firsts else 0.0, **here(), ways=ways, busy=watch.seen())


def along(rates: Rates, added: Callable[[str], dict[str, float]]) -> dict[str, list[float]]:
    """Coefficients of stages that ride along with products that round and with others: never dearer than as a pass of their own."""
    return {f"{name}{suffix}": [min(slope, max(rates.coefficients[f"pointwise.{name}"][0], LEAST))]
            for form, suffix in RIDDEN.items() for name, slope in added(form).items()}


def in_runs(progress: Callable[..., None], plan: Plan) -> dict[str, Rates]:
    """The rates of kernels inside runs, for each way of running; none where there is no clock that native code can look at."""
    from formats.kernels.replay import clock
    if not clock(): return {}
    numbers, found = Numbers(1 << 20), {}
    every = *passes(WIDTHS, (16, 1, 48, 200), numbers), *products(FORMATS, plan, numbers), *heads(GROUPS, numbers)
    every += tuple(case for form in RIDDEN for case in riding(numbers, form))
    cases = [case for case in every if case[0] not in BY_ITSELF]
    for way in WAYS:
        rows, start = inside(cases, numbers.memory, way == WAYS[0], plan.seconds, progress)
        share = partial(even, workers=threads()) if way == "together" else dict
        rates = rated([(kernel, share(sizes), taken) for kernel, sizes, taken in rows if kernel in FEATURES])
        ridden = along(rates, lambda form: slopes(rows, form))      # noqa: B023
        found[way] = replace(rates, coefficients=rates.coefficients | ridden, start=max(start, 0.0))
    return found
