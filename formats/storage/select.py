"""Selection of a format: every one that holds a matrix within an allowed error, ranked by a machine's predictions;
where predictions are too close to decide, the few in question may be timed (as FFTW plans: Frigo and Johnson 2005; as
OSKI tunes: Vuduc, Demmel and Yelick 2005).

>>> select(W, rows=128)                                      # exactly W, in float32                 # doctest: +SKIP
>>> choose(W, rows=128, error=4e-3).pack(W)  # bfloat16 is near enough               # doctest: +SKIP"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, log, sqrt
from statistics import median
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from formats import FORMATS, Format, FormatError
from formats.core.arrays import Floats, as_matrix, room
from formats.core.sizes import T
from formats.disk.cache import say
from formats.host.quiet import timed
from formats.machine.features import quantile, weigh_format
from formats.machine.local import learning, local_machine
from formats.machine.peaks import Progress
from formats.machine.prices import FORMAT_CATALOGUE

INPUT_GROUPS, OUTPUT_GROUPS, GROUPS = 64, 64, (8, 2)  # a sample: inputs of a group, outputs of one; groups
PROBES = 16  # rows that a sample is multiplied by
HOPEFUL = 4.0  # slower candidates than this times the fastest are dropped
TIMED_CANDIDATES = 6  # candidates that are timed
TURN_SECONDS, MAX_TURNS = 0.003, 20  # seconds of one candidate in one turn; turns at most
TURN_NOISE, TOLD = 0.05, 2  # deviation between turns of one candidate, as a logarithm,
# before any is timed; weight of this prior, in turns
BUSY, MOST_BUSY = 0.3, 2.0  # deviation of the slow-down by others, a logarithm; largest factor
PROCESS_NOISE = 0.01  # deviation between processes, as a logarithm
WITHIN, SURE = 1.2816, 2.0  # standard deviations that hold 80 %, and nearly all


class Pricer(Protocol):
    """A predictor of seconds: formats.machine.model.Machine, or a stand-in."""

    def seconds(self, kernel: str, **sizes: float) -> float:
        """Predict the seconds of a kernel at these sizes."""

    def between(self, kernel: str, **sizes: float) -> tuple[float, float]:
        """Predict a lower and an upper bound on the seconds of a kernel at these sizes."""


@dataclass(frozen=True)
class Candidate:
    """A format with its options: predicted seconds of a product and their interval, stored bytes, relative error of the
    product, and the share of the conversion that a product pays, in seconds."""

    format: str
    options: tuple[tuple[str, object], ...]
    seconds: float
    low: float
    high: float
    nbytes: int
    error: float = 0.0
    conversion: float = 0.0

    def pack(self, W: ArrayLike) -> "Format | NumpyProduct":
        """Store W in this format: rounded where the format rounds. FormatError where it cannot hold W."""
        if self.format == "blas":
            return NumpyProduct(as_weights(W))
        form = FORMATS[self.format]
        return (form.approximate if approximates(form) else form.pack)(as_weights(W), **dict(self.options))

    @property
    def cost(self) -> float:
        """The seconds of a product, with its share of the conversion."""
        return self.seconds + self.conversion

    def __str__(self) -> str:
        inside = ", ".join(f"{name}={value}" for name, value in self.options)
        return f"{self.format}({inside})" if inside else self.format


@dataclass
class DecomposedMatrix:
    """A matrix W (n, p) with its singular values and vectors, each computed on first use, and once: a decomposition
    takes longer than all else in a selection."""

    W: Floats
    known: dict[int, NDArray[np.float64]] = field(default_factory=dict)  # directions, by rank

    @cached_property
    def gram(self) -> NDArray[np.float64]:
        """W Wᵀ, or WᵀW where that is smaller."""
        wide = (self.W if self.W.shape[0] <= self.W.shape[1] else self.W.T).astype(np.float64)
        return np.asarray(wide @ wide.T)

    @cached_property
    def squares(self) -> NDArray[np.float64]:
        """The squares of singular values, the smallest first."""
        return np.asarray(np.maximum(np.linalg.eigvalsh(self.gram), 0))

    @cached_property
    def vectors(self) -> NDArray[np.float64]:
        """The eigenvectors of `gram`, as columns, that of the largest eigenvalue first."""
        return np.asarray(np.linalg.eigh(self.gram)[1][:, ::-1])

    def directions(self, rank: int) -> NDArray[np.float64]:
        """Return the leading right singular vectors, as rows."""
        leading = self.vectors[:, :rank]
        if self.W.shape[0] > self.W.shape[1]:
            return leading.T
        if rank not in self.known:
            self.known[rank] = np.linalg.qr(self.W.astype(np.float64).T @ leading)[0].T
        return self.known[rank]

    def pack(self, candidate: Candidate) -> "Format | NumpyProduct":
        """Store W as a candidate does, with low rank from this decomposition."""
        form: Any = FORMATS.get(candidate.format)  # a projected format declares `projection`
        options = dict(candidate.options)
        rank = options.get("rank")
        if form is None or not form.projected or not isinstance(rank, int):
            return candidate.pack(self.W)
        packed: Format = form.projection(self.W.astype(np.float64), self.directions(rank), **options)
        return packed


class NumpyProduct:
    """W (n, p) in its own array, multiplied by numpy: no format, but a candidate where a machine was calibrated for
    it."""

    def __init__(self, W: Floats) -> None:
        self.w, self.nbytes, self.sizes = W, W.nbytes, {"n": W.shape[0], "p": W.shape[1]}

    def matmul(self, x: Floats, out: Floats | None = None) -> Floats:
        """Compute x (T, n) @ W by numpy, into `out` if it is there."""
        return np.dot(x, self.w, out=out)

    def unpack(self) -> Floats:
        """Return W itself, not a copy."""
        return self.w


def select(
    W: ArrayLike,
    rows: int,
    error: float = 0.0,
    machine: Pricer | None = None,
    formats: Sequence[str] = (),
    products: float = 0,
) -> list[Candidate]:
    """Return the formats that hold W (n, p), or a matrix with this pattern of booleans, so that x @ W for x of `rows`
    rows is off by at most `error` (relative, Frobenius norm, for normal x; 0: exactly the float32 result), the cheapest
    first.

    Counts and errors are estimated from a sample first, and computed on the full matrix for those that may be the
    cheapest; of low rank the least sufficient rank is offered. With `products`, each pays its share of one conversion
    from dense, which is done and timed. FormatError where no format holds W, ValueError for invalid rows or an invalid
    error."""
    return rank_candidates(DecomposedMatrix(as_weights(W)), rows, error, machine, formats, products)


def rank_candidates(
    weights: "DecomposedMatrix",
    rows: int,
    error: float,
    machine: Pricer | None,
    formats: Sequence[str] = (),
    products: float = 0,
) -> list[Candidate]:
    """Rank candidates as `select` does, for weights that a caller uses further."""
    if not (rows >= 1 and rows % 1 == 0):
        raise ValueError(f"select: rows={rows}: give a whole number of rows of x, at least 1")
    if not 0 <= error < 1:
        raise ValueError(
            f"select: error={error}: give a relative error from 0 to 1, such as 4e-3; 0 is exactly float32"
        )
    machine = machine or local_machine(FORMAT_CATALOGUE, announced("the machine"))
    guesses = candidates(weights, rows, error, machine, formats)
    hopeful = HOPEFUL * min(guess.cost for guess in guesses)
    exact = [recount(machine, weights, guess, rows, products, error) for guess in guesses if guess.cost <= hopeful]
    if not any(exact):  # the formats that hold the sample do not hold W
        exact = [recount(machine, weights, guess, rows, products, error) for guess in guesses]
    if not any(exact):
        refuse_all(formats, error)
    return sorted((candidate for candidate in exact if candidate), key=lambda each: (each.cost, each.nbytes, str(each)))


def announced(kernel: str) -> Progress:
    """Return a progress callback that reports a measurement in a line, as it takes seconds: once, and only if it is not
    in the cache."""
    return lambda *_: say(f"select: {kernel} is measured here for the first time; the result is cached")


def refuse_all(formats: Sequence[str], error: float) -> NoReturn:
    """Raise the FormatError that no format holds the matrix within the error, naming the formats."""
    raise FormatError(
        f"select: no format of {', '.join(formats or FORMATS)} stores this matrix within an error of {error:g}"
    )


def candidates(
    weights: DecomposedMatrix, rows: int, error: float, machine: Pricer, formats: Sequence[str] = ()
) -> list[Candidate]:
    """Return the formats that hold a sample of W within the error, priced at counts estimated from it, and factors of
    the least rank that holds W. FormatError where there are none."""
    names, W = [*(formats or (name for name, form in FORMATS.items() if form.ranked))], weights.W
    if unknown := [name for name in names if name not in FORMATS]:
        raise FormatError(f"select: there is no format {unknown[0]!r:.40}; there are {', '.join(FORMATS)}")
    sample, shape, share = sampled(W), W.shape, np.count_nonzero(W) / W.size
    thinner = share / max(np.count_nonzero(sample) / sample.size, 1e-9)
    factored = [name for name in names if error and FORMATS[name].projected]
    offers = []
    for name, options in offered([name for name in names if name not in factored], shape):
        if (fits := fit_within(FORMATS[name], options, sample, error)) is None:
            continue
        packed, off = fits
        offers.append(priced(machine, name, options, scale_sizes(packed, shape, thinner, options), rows, off))
    for rank, off in least_ranks(weights, error) if factored else ():
        for name in factored:
            sizes = {str(size): float(value) for size, value in FORMATS[name].expected(*shape, rank=rank).items()}
            offers.append(priced(machine, name, {"rank": rank}, sizes, rows, off))
    if not formats and "linear.blas" in getattr(machine, "coefficients", ()):
        offers.append(priced(machine, "blas", {}, {"n": float(shape[0]), "p": float(shape[1])}, rows, 0.0))
    if not offers:
        refuse_all(names, error)
    return offers


def least_ranks(weights: DecomposedMatrix, error: float) -> Iterator[tuple[int, float]]:
    """Yield the least rank, in eights, whose factors hold W within an error, with their error (Eckart and Young 1936),
    and one a tenth larger, as rounding adds to it; none where factors are larger than W."""
    W = weights.W
    lost = np.cumsum(np.r_[0, weights.squares])[::-1]  # squared error at rank 0, 1, 2, …
    errors = np.sqrt(lost / max(lost[0], np.finfo(float).tiny))
    able = range(8, min(W.size // sum(W.shape), len(weights.squares)) + 1, 8)
    least = next((rank for rank in able if errors[rank] <= error), None)
    for rank in () if least is None else (least, least + max(8, least // 80 * 8)):
        if rank in able:
            yield rank, float(errors[rank])


def choose(
    W: ArrayLike,
    rows: int,
    error: float = 0.0,
    machine: Pricer | None = None,
    measured: bool = True,
    products: float = 0,
    seconds: float = 0.25,
) -> Candidate:
    """Return the cheapest candidate. `measured`: the candidates whose interval reaches below the upper end of the
    cheapest one's are packed and timed in turn, for `seconds` in all; then prediction and timing decide together,
    weighted by their precision."""
    weights = DecomposedMatrix(as_weights(W))
    ranked = rank_candidates(weights, rows, error, machine, (), products)
    return race_candidates(weights, rows, ranked, seconds) if measured else ranked[0]


def race_candidates(
    weights: DecomposedMatrix, rows: int, found: Sequence[Candidate], seconds: float = 0.25
) -> Candidate:
    """Return the one of ranked candidates that prediction and timing together find fastest (`believed`). The candidates
    whose interval reaches below the upper end of the first one's are timed in turn; one that is surely slower drops
    out, and one that may be faster than all joins."""
    left = [
        candidate for candidate in found if candidate.low + candidate.conversion <= found[0].high + found[0].conversion
    ][:TIMED_CANDIDATES]
    x, out = (room((rows, side), np.dtype(np.float32)) for side in weights.W.shape)
    x[:] = np.random.default_rng(0).standard_normal(x.shape, np.float32)
    packed: dict[Candidate, Format | NumpyProduct] = {}
    runs: dict[Candidate, list[float]] = {}
    end = time.perf_counter() + seconds
    for turn in range(MAX_TURNS):
        for candidate in left:
            if candidate not in packed:
                packed[candidate], runs[candidate] = weights.pack(candidate), []
            runs[candidate].append(log(quantile(burst(lambda: packed[candidate].matmul(x, out=out)), 0.25)))  # noqa: B023
        now = believed(runs)
        left = sorted(now, key=lambda each: now[each].seconds + each.conversion)
        best = now[left[0]]
        left = [
            candidate
            for candidate in left
            if now[candidate].surely(candidate.conversion) <= best.seconds + left[0].conversion
        ]
        more = [
            candidate
            for candidate in found
            if candidate not in runs and candidate.low + candidate.conversion < best.seconds + left[0].conversion
        ][:TIMED_CANDIDATES]
        if not more and (len(left) == 1 or (turn and time.perf_counter() > end)):
            break
        left += more
    return replace(left[0], seconds=now[left[0]].seconds)


class Belief(NamedTuple):
    """Seconds of a call, as a logarithm: its mean and standard deviation."""

    mean: float
    deviation: float

    @property
    def seconds(self) -> float:
        """The median of the seconds: e to the power of the mean logarithm."""
        return exp(self.mean)

    def surely(self, more: float) -> float:
        """Return `more` plus the seconds that the call surely takes (SURE deviations below the mean)."""
        return exp(self.mean - SURE * self.deviation) + more


def believed(runs: Mapping[Candidate, Sequence[float]]) -> dict[Candidate, Belief]:
    """Combine predictions and timings (logarithms of seconds, one a turn) of candidates, each with its variance (Gelman
    et al. 2013, Bayesian Data Analysis, section 2.5). Other processes slow all of them alike, by one more factor; the
    deviation between turns is one variance of all, which a few turns determine together."""
    counts = {candidate: len(logs) for candidate, logs in runs.items()}
    middle = {candidate: median(logs) for candidate, logs in runs.items()}
    off = sum((one - middle[candidate]) ** 2 for candidate, logs in runs.items() for one in logs)
    apart = (TOLD * TURN_NOISE**2 + off) / (TOLD + sum(counts.values()) - len(counts))
    noise = {candidate: apart / count + PROCESS_NOISE**2 for candidate, count in counts.items()}
    prior = {
        candidate: (
            log(candidate.seconds),
            max((log(candidate.high) - log(candidate.low)) / (2 * WITHIN), PROCESS_NOISE) ** 2,
        )
        for candidate in runs
    }
    weight = {candidate: 1 / (noise[candidate] + prior[candidate][1]) for candidate in runs}
    slower = sum(weight[candidate] * (middle[candidate] - prior[candidate][0]) for candidate in runs) / (
        sum(weight.values()) + BUSY**-2
    )
    slower = min(slower, log(MOST_BUSY))  # beyond, predictions are wrong
    beliefs = {}
    for candidate, (mean, variance) in prior.items():
        both = 1 / (1 / variance + 1 / noise[candidate])
        beliefs[candidate] = Belief(
            both * (mean / variance + (middle[candidate] - slower) / noise[candidate]), sqrt(both)
        )
    return beliefs


def burst(call: Callable[[], object]) -> list[float]:
    """Return the seconds of a few calls within some milliseconds, or of one that takes longer."""
    return timed(call, TURN_SECONDS, 1, 50)


def as_weights(W: ArrayLike) -> Floats:
    """Return W as float32; a pattern of booleans gets normal numbers."""
    source = np.asarray(W)
    if source.dtype != bool:
        return as_matrix(source, "select")
    values = np.random.default_rng(0).standard_normal(source.shape, np.float32)
    return as_matrix(np.where(source, np.where(values == 0, 1, values), 0).astype(np.float32), "select")


def offered(names: Sequence[str], shape: tuple[int, int]) -> Iterator[tuple[str, dict[str, int | float]]]:
    """Yield every format with the options that decide how it stores, each once."""
    for name in names:
        form = FORMATS[name]
        yield from ((name, options) for options in (form.choices if approximates(form) else form.layouts)(*shape))


def approximates(form: type[Format]) -> bool:
    """True if it holds other numbers than float32 has, or a matrix only up to rounding."""
    return (
        form.rounds
        or form.tolerance is not Format.tolerance
        or not any(array.number.name == "f4" for array in form.fields.values())
    )


def fit_within(
    form: type[Format], given: dict[str, int | float], sample: Floats, error: float
) -> tuple[Format, float] | None:
    """Return the sample in this format and its error; None where that is too large, or the sample cannot be held. A
    format that rounds x holds no matrix exactly."""
    if error == 0 and (form.rounds or form.tolerance is not Format.tolerance):
        return None
    try:
        if not approximates(form):
            return form.pack(sample, **given), 0.0
        sizes = form.expected(sample.shape[0], sample.shape[1], **given)
        # factors as large as the sample
        if form.flops.subs(sizes).subs(T, 1) > 2 * sample.size:
            return None
        packed = form.approximate(sample, **given) if error else form.pack(sample, **given)
    except FormatError:
        return None
    off = deviation(packed, sample)
    return (packed, off) if off <= error else None


def deviation(packed: Format, W: Floats) -> float:
    """Return the relative error of the product of normal rows, in Frobenius norms. For a format that does not round x
    it is that of the matrix."""
    if not packed.rounds:
        whole = float(np.linalg.norm(W.astype(np.float64)))
        return float(np.linalg.norm(packed.unpack().astype(np.float64) - W)) / whole if whole else 0.0
    x = np.random.default_rng(1).standard_normal((PROBES, len(W)), np.float32)
    wanted = x.astype(np.float64) @ W.astype(np.float64)
    size = float(np.linalg.norm(wanted))
    return float(np.linalg.norm(packed.matmul(x) - wanted)) / size if size else 0.0


def sampled(W: Floats) -> Floats:
    """Return a few groups of inputs and outputs, spread evenly and aligned, so that tiles stay complete."""
    inputs, outputs = (pick_groups(*axis) for axis in zip(W.shape, (INPUT_GROUPS, OUTPUT_GROUPS), GROUPS, strict=True))
    part: Floats = W[np.ix_(inputs, outputs)]
    return part


def pick_groups(size: int, step: int, count: int) -> np.ndarray:
    """Return the indices of `count` groups of `step` out of `size`; all where there are no more."""
    if size <= step * count:
        return np.arange(size)
    first = np.linspace(0, size // step - 1, count).astype(int) * step
    return (first[:, None] + np.arange(step)).ravel()


def scale_sizes(
    packed: Format, shape: tuple[int, int], thinner: float, given: Mapping[str, object]
) -> dict[str, float]:
    """Scale the sizes of a sample to the full matrix: counts grow with the area, and with the density of the rest."""
    larger = shape[0] * shape[1] / (packed.shape[0] * packed.shape[1]) * thinner
    sizes = {
        str(size): float(value) if size.is_positive or str(size) in given else value * larger
        for size, value in packed.sizes.items()
    }
    return sizes | {"n": float(shape[0]), "p": float(shape[1])}


def recount(
    machine: Pricer, weights: DecomposedMatrix, guess: Candidate, rows: int, products: float, error: float
) -> Candidate | None:
    """Return the candidate with the sizes and the error that W has in it; None where W cannot be held within the
    error."""
    W = weights.W
    start = time.perf_counter()
    try:
        packed = guess.pack(W) if products else weights.pack(guess)  # a conversion includes its decomposition
    except FormatError:
        return None
    share = (time.perf_counter() - start) / products if products else 0.0
    sizes = {str(size): float(value) for size, value in packed.sizes.items()}
    off = deviation(packed, W) if error and isinstance(packed, Format) and approximates(type(packed)) else 0.0
    return priced(machine, guess.format, dict(guess.options), sizes, rows, off, share) if off <= error else None


def priced(
    machine: Pricer,
    name: str,
    given: Mapping[str, object],
    sizes: dict[str, float],
    rows: int,
    error: float,
    conversion: float = 0.0,
) -> Candidate:
    """Make the candidate at the seconds that the machine predicts."""
    kernel, sizes = f"linear.{name}", {"T": float(rows)} | sizes
    low, high = learning(lambda: machine.between(kernel, **sizes), announced(kernel))
    return Candidate(
        name,
        tuple(given.items()),
        machine.seconds(kernel, **sizes),
        low,
        high,
        round(weigh_format(FORMAT_CATALOGUE[kernel].product, sizes)[0]),
        error,
        conversion,
    )
