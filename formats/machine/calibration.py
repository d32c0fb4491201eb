"""The calibration: every kernel on shapes, rows and densities spread evenly over what is usual, in rounds, so that a
busy moment spoils one round and not one kernel; the closed form with the least sum of relative errors and no
coefficient negative; then what it leaves out, learned from all cases and judged on each by the others
(formats/machine/predictor.py)."""
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import log

import numpy as np

from formats import FORMATS, Format, FormatError, kernels
from formats.core.arrays import Floats
from formats.core.epilogue import Epilogue
from formats.host.quiet import PACE_KERNEL, PACE_SIZES, Pace, Watch, timed
from formats.host.threads import threads
from formats.kernels.engine.replay import clock
from formats.machine.features import FAR, count_uncached, even, locate_call, quantile, weigh_format
from formats.machine.model import FROM_PYTHON, WAYS, Machine, Rates, here
from formats.machine.peaks import vector_rate
from formats.machine.predictor import find_disturbed, fit_correction
from formats.machine.prices import EPILOGUE, NARROW_SUFFIX, Catalogue, staged
from formats.machine.running import Case, Measurements, allocate_both, cold_cache_seconds, inside, settle_timings

Making = Callable[[], Epilogue | None]
MIN_SECONDS = 5e-12                                         # seconds a number: nothing is free, whatever the noise says
LAYOUT = 0.5                                             # of a format's matrices, more for each layout beyond the first
DURATION_POWER = 0.2                                        # power of its time that a case weighs
CASE_SECONDS = 0.003                                        # of one case in one round, or three calls if that is longer
ROUNDS, RUNS = 3, (3, 25)                                # of all cases; of one of them in a round, at least and at most
# steps that fill a cube evenly
EVEN = 0.7548776662466927, 0.5698402909980532, 0.4301597090019468, 0.8191725133961645


@dataclass(frozen=True)
class Effort:
    """How much is measured: matrices of each format, rows of each, the longest side and the most rows, the most
    arithmetic of a call, seconds for making the matrices of one format and for all measuring."""
    matrices: int = 14
    rows: int = 4
    largest: int = 2048
    most_rows: int = 640
    arithmetic: float = 1.5e8
    making: float = 0.35
    seconds: float = 9.0


QUICK, FULL = Effort(), Effort(40, 4, 4096, 1024, 8e8, 1.2, 36.0)
INSIDE, INSIDE_FULL = Effort(16, 4, 4096, 400, 4e8, 0.2, 3.0), Effort(40, 4, 4096, 512, 8e8, 1.2, 12.0)
MORE = 2.0                                          # seconds for what a calibration lacks, and for as many formats more
RIDDEN = {"packed": "", "int8": NARROW_SUFFIX}               # what epilogues are timed behind


class Numbers:
    """Random float32 arrays that share their memory, as only shapes matter to time: so many to read, and to write."""

    def __init__(self, count: int = 1 << 22) -> None:
        self.rng, self.count = np.random.default_rng(0), count
        self.memory, self.inputs, self.outputs = allocate_both(count)
        self.inputs[:], self.outputs[:], self.read = self.rng.standard_normal(count, np.float32), 0, 0

    def some(self, *shape: int) -> np.ndarray:
        """To read; `read` is how many they are."""
        self.read = int(np.prod(shape))
        return self.inputs[:self.read].reshape(shape)

    def room(self, *shape: int) -> np.ndarray: return self.outputs[:int(np.prod(shape))].reshape(shape)
    def fresh(self, *shape: int) -> np.ndarray: return self.rng.standard_normal(shape, np.float32)


@dataclass(frozen=True)
class Grid:
    """Where kernels without a weight are timed: at these widths, with so many rows; on batches of sentences of these
    lengths, with so many heads of so many columns."""
    widths: tuple[int, ...]
    rows: tuple[int, ...]
    batches: tuple[tuple[int, ...], ...]
    heads: tuple[tuple[int, int], ...] = ((12, 32), (6, 64), (3, 128))

    def passes(self, numbers: Numbers) -> Iterator[tuple[dict[str, float], np.ndarray, np.ndarray]]:
        """Sizes, rows to read, and rows to write."""
        for p in self.widths:
            for T in self.rows: yield {"T": T, "p": p}, numbers.some(T, p), numbers.room(T, p)


GRID = Grid((256, 384, 1280), (1, 8, 24, 160), ((24,), (100,), (60, 31, 9), (256,), (128, 40)))
REPLAYED = Grid((384, 768, 1536), (16, 1, 48, 200), ((16,), (48,), (128,), (60, 31, 9), (256,), (64, 64)))


def spread_evenly(i: int, axis: int, least: float, most: float) -> float:
    """Term i of a sequence that fills the interval evenly in octaves, and with the other axes fills the cube evenly
    (Kronecker's; Roberts 2018)."""
    return float(least * (most / least) ** ((0.5 + (i + 1) * EVEN[axis]) % 1))


def matrices(name: str, plan: Effort, numbers: Numbers, start: int = 0, skew: float = 0.0) -> Iterator[Format]:
    """Matrices in one format, of shapes and options spread evenly; fewer where making them takes long. A skew spreads
    the sizes of columns, so what keeps the highest numbers keeps more in some."""
    form, end = FORMATS[name], time.perf_counter() + plan.making
    count = round(plan.matrices * (1 + LAYOUT * (len(form.layouts(512, 512)) - 1)))
    for i in range(start, start + count):
        n, p = (32 * round(spread_evenly(i, axis, 64, plan.largest) / 32) for axis in (0, 1))
        choices, layouts = form.choices(n, p), form.layouts(n, p)
        if not choices: continue
        options = choices[i % len(choices)] | layouts[i % len(layouts)]
        if isinstance(options.get("density"), float): options["density"] = spread_evenly(i, 2, 0.02, 0.75)
        W = numbers.fresh(n, p)
        if skew: W *= np.exp(skew * numbers.fresh(1, p))
        try: yield example(form, W, options)
        except FormatError: continue
        if time.perf_counter() > end: break


def example(form: type[Format], W: np.ndarray, options: dict[str, int | float]) -> Format:
    """A matrix in this format, with the sizes that these options give; what would be decomposed is put together from
    its factors."""
    if not hasattr(form, "pack_factors"): return form.approximate(W, **options)
    rank = min(options.get("rank") or min(W.shape) // 4, *W.shape)
    remainder = [FORMATS["csr"].fit(W, density=options["density"])] if "density" in options else []
    packed: Format = form.pack_factors(W[:, :rank], W[:rank], *remainder)
    return packed


def products(names: Iterable[str], plan: Effort, numbers: Numbers, start: int = 0, skew: float = 0.0) -> Iterator[Case]:
    """x @ W in these formats, each matrix with one row and with others, fewer where the matrix is large."""
    for name in names:
        for i, packed in enumerate(matrices(name, plan, numbers, start, skew)):
            sizes = {str(size): float(value) for size, value in packed.sizes.items()}
            n, p = packed.shape
            most = int(min(plan.most_rows, plan.arithmetic / weigh_format(name, sizes)[1], numbers.count / max(n, p)))
            for T in rows_of(i + start, plan.rows, most, packed.few):
                x, out = numbers.some(T, n), numbers.room(T, p)
                yield f"linear.{name}", {"T": T} | sizes, partial(packed.matmul, x, out=out)


def by_numpy(plan: Effort, numbers: Numbers) -> Iterator[Case]:
    """The products of dense, by numpy."""
    for i, packed in enumerate(matrices("dense", plan, numbers)):
        n, p = packed.shape
        w = packed.unpack()
        for T in rows_of(i, plan.rows, int(min(plan.most_rows, plan.arithmetic / w.size, numbers.count / max(n, p)))):
            x, out = numbers.some(T, n), numbers.room(T, p)
            yield "linear.blas", {"T": T, "n": n, "p": p}, partial(np.dot, x, w, out=out)


def rows_of(i: int, count: int, most: int, few: int = 1) -> list[int]:
    """One row, others up to `most`, every other one a multiple of 16, and a few where these take a way of their own."""
    found = {1, 1 + i % few, few - i % few}
    for k in range(count - 1):
        T = spread_evenly(i * (count - 1) + k, 3, 2, max(most, 2))
        found.add(max(16, round(T / 16) * 16) if (i + k) % 2 and most >= 16 else round(T))
    return sorted(T for T in found if T <= max(most, 1))


def others(catalogue: Catalogue, grid: Grid, numbers: Numbers, names: Iterable[str]) -> Iterator[Case]:
    """The cases that these prices declare."""
    for name in names:
        for sizes, call in catalogue[name].cases(grid, numbers): yield name, sizes, call


def measured(catalogue: Catalogue, cases: list[Case], progress: Callable[..., None] = lambda *_: None,
             most: float = 10.0, watch: Watch | None = None, firsts: list[float] | None = None) -> Measurements:
    """The lower quartile of all runs of each case: what else the machine does only ever adds. After the first round, no
    more are begun than `most` seconds allow. All runs are handed to the watch; to `firsts`, of what has no weight, what
    the first of a turn took more, as others ran before it."""
    runs: list[list[float]] = [[] for _ in cases]
    end, steps = time.perf_counter() + most, ROUNDS * len(cases)
    for done in range(steps):
        if done >= len(cases) and time.perf_counter() > end: break
        kernel, _, call = cases[done % len(cases)]
        begun = time.perf_counter()
        call()
        first = time.perf_counter() - begun
        runs[done % len(cases)] += (taken := timed(call, CASE_SECONDS, *RUNS))
        if firsts is not None and not catalogue[kernel].product: firsts.append(first - quantile(taken, 0.25))
        progress(done + 1, steps)
    progress(steps, steps)
    if watch: watch.note(runs)
    rows = [(kernel, sizes, quantile(taken, 0.25)) for (kernel, sizes, _), taken in zip(cases, runs, strict=True)]

    def again(some: Sequence[int]) -> list[float]:
        return [quantile(timed(cases[i][2], CASE_SECONDS, *RUNS), 0.25) for i in some]
    return settle_timings(rows, partial(find_doubtful, catalogue), again)


def find_doubtful(catalogue: Catalogue, rows: Measurements) -> list[int]:
    """The numbers of measurements that the others of their kernel, of weights alike in memory or in the caches, do not
    allow (formats/machine/predictor.py), the farthest of each first."""
    by_kernel: dict[str, list[int]] = {}
    for i, (kernel, _, _) in enumerate(rows):
        if kernel in catalogue: by_kernel.setdefault(kernel, []).append(i)
    plain = fit_closed(catalogue, {kernel: [rows[i] for i in every] for kernel, every in by_kernel.items()})
    doubtful = list[int]()
    for kernel, every in by_kernel.items():
        for far in (True, False):
            some = [i for i in every if bool(rows[i][1].get(FAR, 1.0)) == far]
            places = [locate_call(catalogue[kernel], rows[i][1]) for i in some]
            off = residuals(plain, [rows[i] for i in some])
            doubtful += [some[at] for at in find_disturbed(places, off, bool(catalogue[kernel].product))]
    return doubtful


def fused(numbers: Numbers, form: str) -> dict[str, float]:
    """Seconds a number that each stage adds behind a product in this format that is short and has many outputs."""
    n, p, T = 32, 768, 256
    weight, x, out = FORMATS[form].approximate(numbers.fresh(n, p)), numbers.some(T, n), numbers.room(T, p)
    rows = numbers.some(T, p)
    stages: list[tuple[str, Epilogue | None]] = [("", None),
                                                 *((name, staged(stage, rows)) for name, stage in EPILOGUE.items())]
    runs: dict[str, list[float]] = {name: [] for name, _ in stages}
    for _ in range(8):
        for name, after in stages:
            runs[name] += timed(partial(weight.matmul, x, out, after), CASE_SECONDS, *RUNS)
    return slopes([(f"{form} {name}", {"T": T, "p": p}, quantile(taken, 0.25)) for name, taken in runs.items()], form)


def riding(numbers: Numbers, form: str) -> Iterator[Case]:
    """Short products with many outputs, alone and with each stage."""
    for T, p in ((32, 1536), (64, 768), (128, 384), (128, 1536), (200, 768)):
        weight, x, out = FORMATS[form].approximate(numbers.fresh(32, p)), numbers.some(T, 32), numbers.room(T, p)
        rows = numbers.some(T, p)
        making: dict[str, Making] = {name: partial(staged, stage, rows) for name, stage in EPILOGUE.items()}
        for name, after in ({"": lambda: None} | making).items():
            def call(w: Format = weight, x: Floats = x, out: Floats = out, after: Making = after) -> object:
                return w.matmul(x, out=out, epilogue=after())
            yield f"{form} {name}", {"T": T, "p": p}, call


def slopes(rows: Measurements, form: str) -> dict[str, float]:
    """Seconds a number that each stage adds, of all numbers of these products."""
    total = {name: sum(taken for kernel, _, taken in rows if kernel == f"{form} {name}") for name in ("", *EPILOGUE)}
    count = sum(sizes["T"] * sizes["p"] for kernel, sizes, _ in rows if kernel == f"{form} ")
    return {name: max((total[name] - total[""]) / count, MIN_SECONDS) for name in EPILOGUE}


def fit(catalogue: Catalogue, kernel: str, rows: Measurements, far: bool = False) -> list[float]:
    """Coefficients, none negative, with the least sum of relative errors: least squares, weighted anew a few times so
    that a measurement that something else disturbed counts for little. Long calls weigh more: from them the rates are
    known, and there are few. `far`: the last coefficient is that of bytes beyond the second cache."""
    from scipy.optimize import nnls
    taken = np.array([row[2] for row in rows])
    values = np.array([(*catalogue.evaluate_features(kernel, sizes),
                        *([count_uncached(catalogue[kernel], sizes)] if far else [])) for _, sizes, _ in rows])
    relative, long = values / taken[:, None], (taken / taken.min()) ** DURATION_POWER
    scale, weight = relative.max(0), long
    for _ in range(6):
        found = nnls(relative / scale * weight[:, None], weight)[0] / scale
        weight = long / np.sqrt(np.maximum(abs(relative @ found - 1), 0.02))
    return [float(a) for a in found]


def fit_closed(catalogue: Catalogue, measurements: dict[str, Measurements]) -> Rates:
    """The closed forms of what was measured, by kernel."""
    products = {kernel: rows for kernel, rows in measurements.items() if catalogue[kernel].product}
    one, few, more = ({kernel: fit(catalogue, kernel, some, far=True) for kernel, rows in products.items()
                       if (some := [row for row in rows if way_of(catalogue, row) == way])} for way in range(3))
    others = {kernel: fit(catalogue, kernel, rows) for kernel, rows in measurements.items() if kernel not in products}
    return Rates(others | {kernel: each[:-1] for kernel, each in more.items()},
                 one_row={kernel: each[:-1] for kernel, each in one.items()}, few=few,
                 far={kernel: [one[kernel][-1], more[kernel][-1]] for kernel in products}, catalogue=catalogue)


def way_of(catalogue: Catalogue, row: tuple[str, dict[str, float], float]) -> int:
    """Which way a product takes: 0 of one row, 1 of few, 2 of more."""
    kernel, sizes, _ = row
    return 0 if sizes["T"] == 1 else 1 if sizes["T"] <= catalogue[kernel].few else 2


def residuals(rates: Rates, rows: Measurements) -> list[float]:
    """The logarithms of what was measured over the closed form."""
    return [log(taken / rates.closed(kernel, **sizes)) for kernel, sizes, taken in rows]


def fit_rates(catalogue: Catalogue, rows: Measurements) -> Rates:
    """Closed forms, and what they leave out where weights come from memory, as they do in most models."""
    by_kernel: dict[str, Measurements] = {}
    for row in rows: by_kernel.setdefault(row[0], []).append(row)
    plain, corrections = fit_closed(catalogue, by_kernel), {}
    for kernel, measurements in by_kernel.items():
        price, far = catalogue[kernel], [row for row in measurements if row[1].get(FAR, 1.0)]
        corrections[kernel] = fit_correction([locate_call(price, sizes) for _, sizes, _ in far], residuals(plain, far),
                                             bool(price.product))
    return replace(plain, corrections=corrections,
                   interval={kernel: each.alone for kernel, each in corrections.items()})


def calibrate(catalogue: Catalogue, progress: Callable[..., None] = lambda *_: None, whole: bool = False,
              full: bool = False, blas: bool = False) -> Machine:
    """Begins to measure what a catalogue declares: what is never recorded, so always called from Python; all else is
    measured when somebody first asks for it. Or measures it whole, in 24 seconds at most, or full, with what searches
    seldom ask for, in a minute and a half. With `blas` also float32 products by numpy, which nothing but
    `formats.storage.select` asks for. What is taken on a busy machine is marked so."""
    numbers, plan, watch = Numbers(), FULL if full else QUICK, Watch()
    whole = whole or full or not clock()
    names = [name for name in catalogue.common if whole or not catalogue[name].recorded]
    if full: names += catalogue.lazy
    if not names: return Machine({}, **here(), ways={way: Rates({}, catalogue=catalogue) for way in WAYS if clock()},
                                 catalogue=catalogue)
    if whole: kernels.warm(progress=lambda name, seconds: progress(f"compiled {name}"))
    firsts, pace = list[float](), Pace()
    pace.sample()
    # of what is never recorded Python is the most, and calls differ on a quiet machine, too
    rates = by_calls(catalogue, names, plan, numbers, progress, plan.seconds, watch if whole else None, firsts, blas)
    pace.sample()
    if threads() > 1: watch.speedup = (rate := vector_rate()).all / rate.one
    inside_plan = INSIDE_FULL if full else INSIDE
    ways = {way: in_runs(catalogue, way, progress, inside_plan, names) if whole else Rates({}, catalogue=catalogue)
            for way in WAYS if clock()}
    cold = max(0.0, quantile(firsts, 0.5)) if firsts else 0.0
    pace.sample()
    return Machine(**vars(rates) | {"cold": cold}, **here(), ways=ways, busy=watch.seen(),
                   pace=pace_of([rates, *ways.values()], pace))


def pace_of(measured: Iterable[Rates], sampled: Pace) -> float:
    """The pace of rates: what they say of its product, which was timed among all else, or, where they do not know it,
    what was sampled."""
    for rates in measured:
        if PACE_KERNEL in rates.coefficients: return rates.seconds(PACE_KERNEL, **PACE_SIZES)
    return sampled.seconds


def by_calls(catalogue: Catalogue, names: Collection[str], plan: Effort, numbers: Numbers,
             progress: Callable[..., None], seconds: float, watch: Watch | None = None,
             firsts: list[float] | None = None, blas: bool = False) -> Rates:
    """The rates of calls from Python, of these kernels, and of stages behind products where they are among them."""
    cases = [*products(formats_of(catalogue, names), plan, numbers), *(by_numpy(plan, numbers) if blas else ()),
             *others(catalogue, GRID, numbers, names)]
    rates = fit_rates(catalogue, measured(catalogue, cases, progress, seconds, watch, firsts))
    if not any(catalogue[name].rides for name in names): return rates
    return replace(rates, coefficients=rates.coefficients | along(rates, lambda form: fused(numbers, form)))


def along(rates: Rates, added: Callable[[str], dict[str, float]]) -> dict[str, list[float]]:
    """Coefficients of stages that ride along with products that round and with others: never dearer than as a pass of
    their own."""
    return {f"{name}{suffix}": [min(slope, max(rates.coefficients[f"pointwise.{name}"][0], MIN_SECONDS))]
            for form, suffix in RIDDEN.items() for name, slope in added(form).items()}


def formats_of(catalogue: Catalogue, names: Iterable[str]) -> list[str]:
    """The formats whose products these prices are."""
    return [catalogue[name].product for name in names if catalogue[name].product]


def in_runs(catalogue: Catalogue, way: str, progress: Callable[..., None], plan: Effort,
            names: Collection[str]) -> Rates:
    """The rates of those of these kernels that are recorded, inside runs of this way, and of stages behind products
    where they are among them."""
    numbers, rides = Numbers(1 << 20), any(catalogue[name].rides for name in names)
    cases, reads = list[Case](), list[int]()
    for case in chain(others(catalogue, REPLAYED, numbers, [name for name in names if catalogue[name].recorded]),
                      products(formats_of(catalogue, names), plan, numbers),
                      *(riding(numbers, form) for form in RIDDEN if rides)):
        for each in from_memory_and_caches(catalogue, case):
            cases.append(each)
            reads.append(numbers.read)
    workers, sentences = (1, threads()) if way == WAYS[0] else (threads(), 1)

    def shared(rows: Measurements) -> Measurements:
        return [(kernel, even(catalogue[kernel], sizes, workers) if kernel in catalogue else sizes, taken)
                for kernel, sizes, taken in rows]
    rows = inside(cases, numbers.memory, way == WAYS[0], plan.seconds, progress, reads,
                  lambda some: find_doubtful(catalogue, shared(some)))
    rates = fit_rates(catalogue, [row for row in shared(rows) if row[0] in catalogue])
    ridden = along(rates, lambda form: slopes(rows, form)) if rides else {}
    start = sum(cold_cache_seconds(begun(sentences)) for begun in catalogue.startup_cases) if rides else 0.0
    return replace(rates, coefficients=rates.coefficients | ridden, start=start)


def from_memory_and_caches(catalogue: Catalogue, case: Case) -> list[Case]:
    """A product once with its weight in memory, and once more with it in the caches; anything else as it is."""
    kernel, sizes, call = case
    name = catalogue[kernel].product if kernel in catalogue else ""
    return [(kernel, sizes | {FAR: far}, call) for far in (weigh_format(name, sizes)[0], 0.0)] if name else [case]


def calibrate_more(catalogue: Catalogue, names: Collection[str], way: str = FROM_PYTHON,
                   progress: Callable[..., None] = lambda *_: None) -> Machine:
    """The rates of these kernels in one way, in a few seconds: of what nobody asked for when a calibration was
    taken."""
    watch, pace, ways = Watch(), Pace(), dict[str, Rates]()
    pace.sample()
    if way != FROM_PYTHON:
        ways, rates = {way: in_runs(catalogue, way, progress, INSIDE, names)}, Rates({}, catalogue=catalogue)
    else:
        seconds = MORE * (1 + len(formats_of(catalogue, names)) / 4)
        rates = by_calls(catalogue, names, QUICK, Numbers(), progress, seconds, watch)
    pace.sample()
    return Machine(**vars(rates), **here(), ways=ways, busy=watch.seen(),
                   pace=pace_of([rates, *ways.values()], pace))
