"""The calibration: every kernel on shapes, rows and densities spread evenly over the usual range, in rounds, so that a
busy moment spoils one round and not one kernel. Then the closed form with the least sum of relative errors and no
coefficient negative; then a correction of its residuals, learned from all cases and judged on each by the others
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
MIN_SECONDS = 5e-12  # least seconds a number, whatever the noise is
LAYOUT = 0.5  # share of additional matrices for each layout beyond the first
DURATION_POWER = 0.2  # the weight of a case is its time to this power
CASE_SECONDS = 0.003  # seconds of one case in one round, at least three calls
ROUNDS, RUNS = 3, (3, 25)  # rounds of all cases; least and most runs of a case in a round
# steps that fill a cube evenly
EVEN = 0.7548776662466927, 0.5698402909980532, 0.4301597090019468, 0.8191725133961645


@dataclass(frozen=True)
class Effort:
    """The extent of a calibration: matrices of each format, rows of each, the longest side and the most rows, the most
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
MORE = 2.0  # seconds for kernels that it lacks, and for every 4 formats
RIDDEN = {"packed": "", "int8": NARROW_SUFFIX}  # formats of the products that epilogues are timed behind


class Numbers:
    """Random float32 arrays that share their memory, as only shapes matter to time: `count` numbers to read, and as
    many to write."""

    def __init__(self, count: int = 1 << 22) -> None:
        self.rng, self.count = np.random.default_rng(0), count
        self.memory, self.inputs, self.outputs = allocate_both(count)
        self.inputs[:], self.outputs[:], self.read = self.rng.standard_normal(count, np.float32), 0, 0

    def some(self, *shape: int) -> np.ndarray:
        """Return an array to read; `read` is the count of its numbers."""
        self.read = int(np.prod(shape))
        return self.inputs[: self.read].reshape(shape)

    def room(self, *shape: int) -> np.ndarray:
        """Return an array to write, of this shape, in the memory that all outputs share."""
        return self.outputs[: int(np.prod(shape))].reshape(shape)

    def fresh(self, *shape: int) -> np.ndarray:
        """Return new normal numbers in an array of its own."""
        return self.rng.standard_normal(shape, np.float32)


@dataclass(frozen=True)
class Grid:
    """The cases of kernels without a weight: these widths, with these numbers of rows; batches of sentences of these
    lengths, with these (heads, columns of a head)."""

    widths: tuple[int, ...]
    rows: tuple[int, ...]
    batches: tuple[tuple[int, ...], ...]
    heads: tuple[tuple[int, int], ...] = ((12, 32), (6, 64), (3, 128))

    def passes(self, numbers: Numbers) -> Iterator[tuple[dict[str, float], np.ndarray, np.ndarray]]:
        """Yield sizes, rows to read, and rows to write."""
        for p in self.widths:
            for T in self.rows:
                yield {"T": T, "p": p}, numbers.some(T, p), numbers.room(T, p)


GRID = Grid((256, 384, 1280), (1, 8, 24, 160), ((24,), (100,), (60, 31, 9), (256,), (128, 40)))
REPLAYED = Grid((384, 768, 1536), (16, 1, 48, 200), ((16,), (48,), (128,), (60, 31, 9), (256,), (64, 64)))


def spread_evenly(i: int, axis: int, least: float, most: float) -> float:
    """Return term i of a sequence that fills the interval evenly in octaves, and with the other axes fills the cube
    evenly (Kronecker's; Roberts 2018)."""
    return float(least * (most / least) ** ((0.5 + (i + 1) * EVEN[axis]) % 1))


def matrices(name: str, plan: Effort, numbers: Numbers, start: int = 0, skew: float = 0.0) -> Iterator[Format]:
    """Yield matrices in one format, of shapes and options spread evenly; fewer where making them takes long. A skew
    spreads the sizes of columns, so pruning by the highest numbers keeps more in some columns."""
    form, end = FORMATS[name], time.perf_counter() + plan.making
    count = round(plan.matrices * (1 + LAYOUT * (len(form.layouts(512, 512)) - 1)))
    for i in range(start, start + count):
        n, p = (32 * round(spread_evenly(i, axis, 64, plan.largest) / 32) for axis in (0, 1))
        choices, layouts = form.choices(n, p), form.layouts(n, p)
        if not choices:
            continue
        options = choices[i % len(choices)] | layouts[i % len(layouts)]
        if isinstance(options.get("density"), float):
            options["density"] = spread_evenly(i, 2, 0.02, 0.75)
        W = numbers.fresh(n, p)
        if skew:
            W *= np.exp(skew * numbers.fresh(1, p))
        try:
            yield example(form, W, options)
        except FormatError:
            continue
        if time.perf_counter() > end:
            break


def example(form: type[Format], W: np.ndarray, options: dict[str, int | float]) -> Format:
    """Make a matrix in this format, with the sizes that these options give. A format of factors is made from slices of
    W, without a decomposition; one of blocks whose levels do not change its time is drawn."""
    if hasattr(form, "drawn"):
        drawn: Format = form.drawn(np.random.default_rng(0), *W.shape)
        return drawn
    if not hasattr(form, "pack_factors"):
        return form.approximate(W, **options)
    rank = min(options.get("rank") or min(W.shape) // 4, *W.shape)
    remainder = [FORMATS["csr"].fit(W, density=options["density"])] if "density" in options else []
    packed: Format = form.pack_factors(W[:, :rank], W[:rank], *remainder)
    return packed


def products(names: Iterable[str], plan: Effort, numbers: Numbers, start: int = 0, skew: float = 0.0) -> Iterator[Case]:
    """Yield x @ W in these formats, each matrix with one row and with others, fewer where the matrix is large."""
    for name in names:
        for i, packed in enumerate(matrices(name, plan, numbers, start, skew)):
            sizes = {str(size): float(value) for size, value in packed.sizes.items()}
            n, p = packed.shape
            most = int(min(plan.most_rows, plan.arithmetic / weigh_format(name, sizes)[1], numbers.count / max(n, p)))
            for T in rows_of(i + start, plan.rows, most, packed.few):
                x, out = numbers.some(T, n), numbers.room(T, p)
                yield f"linear.{name}", {"T": T} | sizes, partial(packed.matmul, x, out=out)


def by_numpy(plan: Effort, numbers: Numbers) -> Iterator[Case]:
    """Yield the products of dense, by numpy."""
    for i, packed in enumerate(matrices("dense", plan, numbers)):
        n, p = packed.shape
        w = packed.unpack()
        for T in rows_of(i, plan.rows, int(min(plan.most_rows, plan.arithmetic / w.size, numbers.count / max(n, p)))):
            x, out = numbers.some(T, n), numbers.room(T, p)
            yield "linear.blas", {"T": T, "n": n, "p": p}, partial(np.dot, x, w, out=out)


def rows_of(i: int, count: int, most: int, few: int = 1) -> list[int]:
    """Choose numbers of rows: one, others up to `most`, every other one a multiple of 16, and a few up to `few`, for
    which a product may use a different code path."""
    rows = {1, 1 + i % few, few - i % few}
    for k in range(count - 1):
        T = spread_evenly(i * (count - 1) + k, 3, 2, max(most, 2))
        rows.add(max(16, round(T / 16) * 16) if (i + k) % 2 and most >= 16 else round(T))
    return sorted(T for T in rows if T <= max(most, 1))


def others(catalogue: Catalogue, grid: Grid, numbers: Numbers, names: Iterable[str]) -> Iterator[Case]:
    """Yield the cases that these prices declare."""
    for name in names:
        for sizes, call in catalogue[name].cases(grid, numbers):
            yield name, sizes, call


def measured(
    catalogue: Catalogue,
    cases: list[Case],
    progress: Callable[..., None] = lambda *_: None,
    most: float = 10.0,
    watch: Watch | None = None,
    firsts: list[float] | None = None,
) -> Measurements:
    """Time each case: the lower quartile of all its runs, as disturbances only ever add time. After the first round, no
    call begins later than `most` seconds. All runs are handed to the watch. `firsts` receives, for kernels without a
    weight, the additional seconds of the first call of a turn, as others ran before it."""
    runs: list[list[float]] = [[] for _ in cases]
    end, steps = time.perf_counter() + most, ROUNDS * len(cases)
    for done in range(steps):
        if done >= len(cases) and time.perf_counter() > end:
            break
        kernel, _, call = cases[done % len(cases)]
        begun = time.perf_counter()
        call()
        first = time.perf_counter() - begun
        runs[done % len(cases)] += (taken := timed(call, CASE_SECONDS, *RUNS))
        if firsts is not None and not catalogue[kernel].product:
            firsts.append(first - quantile(taken, 0.25))
        progress(done + 1, steps)
    progress(steps, steps)
    if watch:
        watch.note(runs)
    rows = [(kernel, sizes, quantile(taken, 0.25)) for (kernel, sizes, _), taken in zip(cases, runs, strict=True)]

    def again(some: Sequence[int]) -> list[float]:
        """Time some of the cases again; return the lower quartile of each, in seconds."""
        return [quantile(timed(cases[i][2], CASE_SECONDS, *RUNS), 0.25) for i in some]

    return settle_timings(rows, partial(find_doubtful, catalogue), again)


def find_doubtful(catalogue: Catalogue, rows: Measurements) -> list[int]:
    """Find the measurements that disagree with the others of their kernel, separately for weights from memory and from
    the caches (formats/machine/predictor.py). Return their indices, the farthest of each kernel first."""
    by_kernel: dict[str, list[int]] = {}
    for i, (kernel, _, _) in enumerate(rows):
        if kernel in catalogue:
            by_kernel.setdefault(kernel, []).append(i)
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
    """Measure the seconds a number that each stage adds behind a product in this format that is short and has many
    outputs."""
    n, p, T = 32, 768, 256
    weight, x, out = FORMATS[form].approximate(numbers.fresh(n, p)), numbers.some(T, n), numbers.room(T, p)
    rows = numbers.some(T, p)
    stages: list[tuple[str, Epilogue | None]] = [
        ("", None),
        *((name, staged(stage, rows)) for name, stage in EPILOGUE.items()),
    ]
    runs: dict[str, list[float]] = {name: [] for name, _ in stages}
    for _ in range(8):
        for name, after in stages:
            runs[name] += timed(partial(weight.matmul, x, out, after), CASE_SECONDS, *RUNS)
    return slopes([(f"{form} {name}", {"T": T, "p": p}, quantile(taken, 0.25)) for name, taken in runs.items()], form)


def riding(numbers: Numbers, form: str) -> Iterator[Case]:
    """Yield short products with many outputs, alone and with each stage."""
    for T, p in ((32, 1536), (64, 768), (128, 384), (128, 1536), (200, 768)):
        weight, x, out = FORMATS[form].approximate(numbers.fresh(32, p)), numbers.some(T, 32), numbers.room(T, p)
        rows = numbers.some(T, p)
        making: dict[str, Making] = {name: partial(staged, stage, rows) for name, stage in EPILOGUE.items()}
        for name, after in ({"": lambda: None} | making).items():

            def call(w: Format = weight, x: Floats = x, out: Floats = out, after: Making = after) -> object:
                """Compute the product with a new epilogue; the defaults bind the operands of this turn of the loop."""
                return w.matmul(x, out=out, epilogue=after())

            yield f"{form} {name}", {"T": T, "p": p}, call


def slopes(rows: Measurements, form: str) -> dict[str, float]:
    """Return the seconds a number that each stage adds, over all numbers of these products."""
    total = {name: sum(taken for kernel, _, taken in rows if kernel == f"{form} {name}") for name in ("", *EPILOGUE)}
    count = sum(sizes["T"] * sizes["p"] for kernel, sizes, _ in rows if kernel == f"{form} ")
    return {name: max((total[name] - total[""]) / count, MIN_SECONDS) for name in EPILOGUE}


def fit(catalogue: Catalogue, kernel: str, rows: Measurements, far: bool = False) -> list[float]:
    """Fit coefficients, none negative, with the least sum of relative errors: least squares, weighted anew a few times
    so that a disturbed measurement counts for little. Long calls weigh more: they determine the rates, and there are
    few. `far`: the last coefficient is that of bytes beyond the second cache."""
    from scipy.optimize import nnls

    taken = np.array([row[2] for row in rows])
    values = np.array(
        [
            (*catalogue.evaluate_features(kernel, sizes), *([count_uncached(catalogue[kernel], sizes)] if far else []))
            for _, sizes, _ in rows
        ]
    )
    relative, long = values / taken[:, None], (taken / taken.min()) ** DURATION_POWER
    scale, weight = relative.max(0), long
    for _ in range(6):
        coefficients = nnls(relative / scale * weight[:, None], weight)[0] / scale
        weight = long / np.sqrt(np.maximum(abs(relative @ coefficients - 1), 0.02))
    return [float(a) for a in coefficients]


def fit_closed(catalogue: Catalogue, measurements: dict[str, Measurements]) -> Rates:
    """Fit the closed forms of these measurements, by kernel."""
    products = {kernel: rows for kernel, rows in measurements.items() if catalogue[kernel].product}
    one, few, more = (
        {
            kernel: fit(catalogue, kernel, some, far=True)
            for kernel, rows in products.items()
            if (some := [row for row in rows if way_of(catalogue, row) == way])
        }
        for way in range(3)
    )
    others = {kernel: fit(catalogue, kernel, rows) for kernel, rows in measurements.items() if kernel not in products}
    return Rates(
        others | {kernel: coefficients[:-1] for kernel, coefficients in more.items()},
        one_row={kernel: coefficients[:-1] for kernel, coefficients in one.items()},
        few=few,
        far={kernel: [one[kernel][-1], more[kernel][-1]] for kernel in products},
        catalogue=catalogue,
    )


def way_of(catalogue: Catalogue, row: tuple[str, dict[str, float], float]) -> int:
    """Classify the code path of a product: 0 for one row, 1 for few, 2 for more."""
    kernel, sizes, _ = row
    return 0 if sizes["T"] == 1 else 1 if sizes["T"] <= catalogue[kernel].few else 2


def residuals(rates: Rates, rows: Measurements) -> list[float]:
    """Return the logarithms of measured seconds over the closed form."""
    return [log(taken / rates.closed(kernel, **sizes)) for kernel, sizes, taken in rows]


def fit_rates(catalogue: Catalogue, rows: Measurements) -> Rates:
    """Fit closed forms, and corrections of their residuals where weights come from memory, as they do in most
    models."""
    by_kernel: dict[str, Measurements] = {}
    for row in rows:
        by_kernel.setdefault(row[0], []).append(row)
    plain, corrections = fit_closed(catalogue, by_kernel), {}
    for kernel, measurements in by_kernel.items():
        price, far = catalogue[kernel], [row for row in measurements if row[1].get(FAR, 1.0)]
        corrections[kernel] = fit_correction(
            [locate_call(price, sizes) for _, sizes, _ in far], residuals(plain, far), bool(price.product)
        )
    return replace(
        plain,
        corrections=corrections,
        interval={kernel: correction.alone for kernel, correction in corrections.items()},
    )


def calibrate(
    catalogue: Catalogue,
    progress: Callable[..., None] = lambda *_: None,
    whole: bool = False,
    full: bool = False,
    blas: bool = False,
) -> Machine:
    """Begin to measure the kernels of a catalogue: those that are never recorded, so always called from Python; all
    others are measured on first use. With `whole` measure them all, in 24 seconds at most; with `full` also those that
    searches seldom use, in a minute and a half. With `blas` also float32 products by numpy, which only
    `formats.storage.select` uses. Rates measured on a busy machine are marked so."""
    plan, watch = FULL if full else QUICK, Watch()
    whole = whole or full or not clock()
    names = [name for name in catalogue.common if whole or not catalogue[name].recorded]
    if full:
        names += catalogue.lazy
    if not names:
        return Machine(
            {}, **here(), ways={way: Rates({}, catalogue=catalogue) for way in WAYS if clock()}, catalogue=catalogue
        )
    if whole:
        kernels.warm(progress=lambda name, seconds: progress(f"compiled {name}"))
    firsts, pace = list[float](), Pace()
    pace.sample()
    # kernels that are never recorded spend most time in Python, and vary on a quiet machine, too
    rates = by_calls(catalogue, names, plan, progress, watch if whole else None, firsts, blas)
    pace.sample()
    if threads() > 1:
        watch.speedup = (rate := vector_rate()).all / rate.one
    inside_plan = INSIDE_FULL if full else INSIDE
    ways = {
        way: in_runs(catalogue, way, progress, inside_plan, names) if whole else Rates({}, catalogue=catalogue)
        for way in WAYS
        if clock()
    }
    cold = max(0.0, quantile(firsts, 0.5)) if firsts else 0.0
    pace.sample()
    return Machine(
        **vars(rates) | {"cold": cold},
        **here(),
        ways=ways,
        busy=watch.seen(),
        pace=pace_of([rates, *ways.values()], pace),
    )


def pace_of(measured: Iterable[Rates], sampled: Pace) -> float:
    """Return the pace of rates: their prediction for the product of `Pace`, which was timed among all other cases, or,
    where they do not have it, the samples."""
    for rates in measured:
        if PACE_KERNEL in rates.coefficients:
            return rates.seconds(PACE_KERNEL, **PACE_SIZES)
    return sampled.seconds


def by_calls(
    catalogue: Catalogue,
    names: Collection[str],
    plan: Effort,
    progress: Callable[..., None],
    watch: Watch | None = None,
    firsts: list[float] | None = None,
    blas: bool = False,
) -> Rates:
    """Measure the rates of these kernels called from Python, and of stages behind products if they are among them. With
    `blas` also float32 products by numpy; `watch` and `firsts` as in `measured`."""
    numbers = Numbers()
    cases = [
        *products(formats_of(catalogue, names), plan, numbers),
        *(by_numpy(plan, numbers) if blas else ()),
        *others(catalogue, GRID, numbers, names),
    ]
    rates = fit_rates(catalogue, measured(catalogue, cases, progress, plan.seconds, watch, firsts))
    if not any(catalogue[name].rides for name in names):
        return rates
    return replace(rates, coefficients=rates.coefficients | along(rates, lambda form: fused(numbers, form)))


def along(rates: Rates, added: Callable[[str], dict[str, float]]) -> dict[str, list[float]]:
    """Return coefficients of stages that ride along with products, rounding ones and others: at most those of a pass of
    their own."""
    return {
        f"{name}{suffix}": [min(slope, max(rates.coefficients[f"pointwise.{name}"][0], MIN_SECONDS))]
        for form, suffix in RIDDEN.items()
        for name, slope in added(form).items()
    }


def formats_of(catalogue: Catalogue, names: Iterable[str]) -> list[str]:
    """Return the formats whose products these prices are."""
    return [catalogue[name].product for name in names if catalogue[name].product]


def in_runs(
    catalogue: Catalogue, way: str, progress: Callable[..., None], plan: Effort, names: Collection[str]
) -> Rates:
    """Measure the rates of the recorded ones of these kernels inside runs of this kind, and the rates of stages behind
    products if they are among these kernels."""
    numbers, rides = Numbers(1 << 20), any(catalogue[name].rides for name in names)
    cases, reads = list[Case](), list[int]()
    for case in chain(
        others(catalogue, REPLAYED, numbers, [name for name in names if catalogue[name].recorded]),
        products(formats_of(catalogue, names), plan, numbers),
        *(riding(numbers, form) for form in RIDDEN if rides),
    ):
        for variant in from_memory_and_caches(catalogue, case):
            cases.append(variant)
            reads.append(numbers.read)
    workers, sentences = (1, threads()) if way == WAYS[0] else (threads(), 1)

    def shared(rows: Measurements) -> Measurements:
        """Replace the sizes of each measurement by those of the busiest worker's part, times the workers."""
        return [
            (kernel, even(catalogue[kernel], sizes, workers) if kernel in catalogue else sizes, taken)
            for kernel, sizes, taken in rows
        ]

    rows = inside(
        cases,
        numbers.memory,
        way == WAYS[0],
        plan.seconds,
        progress,
        reads,
        lambda some: find_doubtful(catalogue, shared(some)),
    )
    rates = fit_rates(catalogue, [row for row in shared(rows) if row[0] in catalogue])
    ridden = along(rates, lambda form: slopes(rows, form)) if rides else {}
    start = sum(cold_cache_seconds(begun(sentences)) for begun in catalogue.startup_cases) if rides else 0.0
    return replace(rates, coefficients=rates.coefficients | ridden, start=start)


def from_memory_and_caches(catalogue: Catalogue, case: Case) -> list[Case]:
    """Return a product twice, with its weight in memory and with it in the caches; any other case as it is."""
    kernel, sizes, call = case
    name = catalogue[kernel].product if kernel in catalogue else ""
    return [(kernel, sizes | {FAR: far}, call) for far in (weigh_format(name, sizes)[0], 0.0)] if name else [case]


def calibrate_more(
    catalogue: Catalogue,
    names: Collection[str],
    way: str = FROM_PYTHON,
    progress: Callable[..., None] = lambda *_: None,
) -> Machine:
    """Measure the rates of these kernels in one way of running, in a few seconds: kernels that an earlier calibration
    left out."""
    watch, pace, ways = Watch(), Pace(), dict[str, Rates]()
    pace.sample()
    if way != FROM_PYTHON:
        ways, rates = {way: in_runs(catalogue, way, progress, INSIDE, names)}, Rates({}, catalogue=catalogue)
    else:
        plan = replace(QUICK, seconds=MORE * (1 + len(formats_of(catalogue, names)) / 4))
        rates = by_calls(catalogue, names, plan, progress, watch)
    pace.sample()
    return Machine(**vars(rates), **here(), ways=ways, busy=watch.seen(), pace=pace_of([rates, *ways.values()], pace))
