"""Which format: every one that holds a matrix within an allowed error, ranked by what a machine predicts; where
predictions lie too near to tell, the few in question may be timed (as FFTW plans: Frigo and Johnson 2005; as OSKI
tunes: Vuduc, Demmel and Yelick 2005).

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

INPUT_GROUPS, OUTPUT_GROUPS, GROUPS = 64, 64, (8, 2)     # a sample: so many groups of inputs and of outputs, of so many
PROBES = 16                                                  # rows that a sample is multiplied by
HOPEFUL = 4.0                                                # times the fastest: beyond, counts are not even looked at
TIMED_CANDIDATES = 6                                         # candidates that are timed
TURN_SECONDS, MAX_TURNS = 0.003, 20                          # of one candidate in one turn; turns at most
TURN_NOISE, TOLD = 0.05, 2                                   # of turns of one candidate, as logarithms, before any is
                                                             # timed; what that
                                                            # counts for, in turns
BUSY, MOST_BUSY = 0.3, 2.0                           # of a machine with others on it, as a logarithm, and times at most
PROCESS_NOISE = 0.01                              # of a process: its times are off by so much from those of another one
WITHIN, SURE = 1.2816, 2.0                             # standard deviations that hold 80 %, and that are as good as all


class Pricer(Protocol):
    """What predicts seconds: formats.machine.model.Machine, or a stand-in."""

    def seconds(self, kernel: str, **sizes: float) -> float: ...
    def between(self, kernel: str, **sizes: float) -> tuple[float, float]: ...


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
        """W, stored so: rounded where the format rounds. FormatError where it cannot hold it."""
        if self.format == "blas": return NumpyProduct(as_weights(W))
        form = FORMATS[self.format]
        return (form.approximate if approximates(form) else form.pack)(as_weights(W), **dict(self.options))

    @property
    def cost(self) -> float:
        """Seconds of a product, with its share of the conversion."""
        return self.seconds + self.conversion

    def __str__(self) -> str:
        inside = ", ".join(f"{name}={value}" for name, value in self.options)
        return f"{self.format}({inside})" if inside else self.format


@dataclass
class DecomposedMatrix:
    """A matrix W (n, p) with its singular values and vectors, each worked out when it is first asked for, and once: a
    decomposition takes longer than all else that a selection does."""
    W: Floats
    known: dict[int, NDArray[np.float64]] = field(default_factory=dict)     # directions, by rank

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
        """The leading right singular vectors, as rows."""
        leading = self.vectors[:, :rank]
        if self.W.shape[0] > self.W.shape[1]: return leading.T
        if rank not in self.known: self.known[rank] = np.linalg.qr(self.W.astype(np.float64).T @ leading)[0].T
        return self.known[rank]

    def pack(self, candidate: Candidate) -> "Format | NumpyProduct":
        """W as a candidate stores it, of low rank without another decomposition."""
        form: Any = FORMATS.get(candidate.format)           # one that is projected declares `projection`
        options = dict(candidate.options)
        rank = options.get("rank")
        if form is None or not form.projected or not isinstance(rank, int): return candidate.pack(self.W)
        packed: Format = form.projection(self.W.astype(np.float64), self.directions(rank), **options)
        return packed


class NumpyProduct:
    """W (n, p) as it lies, multiplied by numpy: no format, but in the race where a machine was calibrated for it."""

    def __init__(self, W: Floats) -> None:
        self.w, self.nbytes, self.sizes = W, W.nbytes, {"n": W.shape[0], "p": W.shape[1]}

    def matmul(self, x: Floats, out: Floats | None = None) -> Floats: return np.dot(x, self.w, out=out)
    def unpack(self) -> Floats: return self.w


def select(W: ArrayLike, rows: int, error: float = 0.0, machine: Pricer | None = None, formats: Sequence[str] = (),
           products: float = 0) -> list[Candidate]:
    """The formats that hold W (n, p), or a matrix with this pattern of booleans, so that x @ W for x of so many rows is
    off by at most `error` (relative, Frobenius norm, for normal x; 0: exactly what float32 gives), the cheapest first.

    Counts and errors are estimated from a sample first, and taken of the whole matrix for those that may be the
    cheapest; of low rank the least that is near enough is offered. With `products`, each pays its share of one
    conversion from dense, which is done and timed. FormatError where nothing holds W, ValueError for rows or an error
    that are none."""
    return rank_candidates(DecomposedMatrix(as_weights(W)), rows, error, machine, formats, products)


def rank_candidates(weights: "DecomposedMatrix", rows: int, error: float, machine: Pricer | None,
                    formats: Sequence[str] = (), products: float = 0) -> list[Candidate]:
    """See `select`, of weights that a caller goes on with."""
    if not (rows >= 1 and rows % 1 == 0):
        raise ValueError(f"select: rows={rows}: a whole number of rows of x, 1 at least")
    if not 0 <= error < 1:
        raise ValueError(f"select: error={error}: a relative error from 0 to 1, such as 4e-3; 0 is exactly float32")
    machine = machine or local_machine(FORMAT_CATALOGUE, announced("the machine"))
    found = candidates(weights, rows, error, machine, formats)
    hopeful = HOPEFUL * min(each.cost for each in found)
    exact = [recount(machine, weights, each, rows, products, error) for each in found if each.cost <= hopeful]
    if not any(exact):                                      # what held the sample does not hold the rest
        exact = [recount(machine, weights, each, rows, products, error) for each in found]
    if not any(exact): refuse_all(formats, error)
    return sorted((each for each in exact if each), key=lambda each: (each.cost, each.nbytes, str(each)))


def announced(kernel: str) -> Progress:
    """Progress of a measurement that a line tells of, as it takes seconds: once, and nothing of what was measured
    before."""
    return lambda *_: say(f"select: {kernel} is measured here for the first time; it is kept for the next")


def refuse_all(formats: Sequence[str], error: float) -> NoReturn:
    raise FormatError(f"select: none of {', '.join(formats or FORMATS)} holds this matrix within an error of {error:g}")


def candidates(weights: DecomposedMatrix, rows: int, error: float, machine: Pricer,
               formats: Sequence[str] = ()) -> list[Candidate]:
    """What holds a sample of W within the error, priced at counts estimated from it, and factors of the least rank that
    holds W. FormatError where nothing does."""
    names, W = [*(formats or FORMATS)], weights.W
    if unknown := [name for name in names if name not in FORMATS]:
        raise FormatError(f"select: there is no format {unknown[0]!r:.40}; there are {', '.join(FORMATS)}")
    sample, shape, share = sampled(W), W.shape, np.count_nonzero(W) / W.size
    thinner = share / max(np.count_nonzero(sample) / sample.size, 1e-9)
    factored = [name for name in names if error and FORMATS[name].projected]
    found = []
    for name, given in offered([name for name in names if name not in factored], shape):
        if (fits := fit_within(FORMATS[name], given, sample, error)) is None: continue
        packed, off = fits
        found.append(priced(machine, name, given, scale_sizes(packed, shape, thinner, given), rows, off))
    for rank, off in least_ranks(weights, error) if factored else ():
        for name in factored:
            sizes = {str(size): float(value) for size, value in FORMATS[name].expected(*shape, rank=rank).items()}
            found.append(priced(machine, name, {"rank": rank}, sizes, rows, off))
    if not formats and "linear.blas" in getattr(machine, "coefficients", ()):
        found.append(priced(machine, "blas", {}, {"n": float(shape[0]), "p": float(shape[1])}, rows, 0.0))
    if not found: refuse_all(names, error)
    return found


def least_ranks(weights: DecomposedMatrix, error: float) -> Iterator[tuple[int, float]]:
    """The least rank, in eights, whose factors hold W within an error, with what they lose (Eckart and Young 1936), and
    one a tenth larger, as rounding adds to it; none where factors are larger than W."""
    W = weights.W
    lost = np.cumsum(np.r_[0, weights.squares])[::-1]       # with rank 0, 1, 2, …
    errors = np.sqrt(lost / max(lost[0], np.finfo(float).tiny))
    able = range(8, min(W.size // sum(W.shape), len(weights.squares)) + 1, 8)
    least = next((rank for rank in able if errors[rank] <= error), None)
    for rank in () if least is None else (least, least + max(8, least // 80 * 8)):
        if rank in able: yield rank, float(errors[rank])


def choose(W: ArrayLike, rows: int, error: float = 0.0, machine: Pricer | None = None, measured: bool = True,
           products: float = 0, seconds: float = 0.25) -> Candidate:
    """The cheapest. `measured`: those whose interval reaches below the upper end of the cheapest one's are packed and
    timed for so many seconds in all, in turn; then prediction and timing decide together, each for what it is worth."""
    weights = DecomposedMatrix(as_weights(W))
    found = rank_candidates(weights, rows, error, machine, (), products)
    return race_candidates(weights, rows, found, seconds) if measured else found[0]


def race_candidates(weights: DecomposedMatrix, rows: int, found: Sequence[Candidate],
                    seconds: float = 0.25) -> Candidate:
    """The one of ranked candidates that prediction and timing together find fastest (`believed`). Those are timed, in
    turn, whose interval reaches below the upper end of the first one's; who is surely slower drops out, and who may be
    faster than all joins."""
    left = [each for each in found
            if each.low + each.conversion <= found[0].high + found[0].conversion][:TIMED_CANDIDATES]
    x, out = (room((rows, side), np.dtype(np.float32)) for side in weights.W.shape)
    x[:] = np.random.default_rng(0).standard_normal(x.shape, np.float32)
    packed: dict[Candidate, Format | NumpyProduct] = {}
    runs: dict[Candidate, list[float]] = {}
    end = time.perf_counter() + seconds
    for turn in range(MAX_TURNS):
        for each in left:
            if each not in packed: packed[each], runs[each] = weights.pack(each), []
            runs[each].append(log(quantile(burst(lambda: packed[each].matmul(x, out=out)), 0.25)))      # noqa: B023
        now = believed(runs)
        left = sorted(now, key=lambda each: now[each].seconds + each.conversion)
        best = now[left[0]]
        left = [each for each in left if now[each].surely(each.conversion) <= best.seconds + left[0].conversion]
        more = [each for each in found if each not in runs
                and each.low + each.conversion < best.seconds + left[0].conversion][:TIMED_CANDIDATES]
        if not more and (len(left) == 1 or (turn and time.perf_counter() > end)): break
        left += more
    return replace(left[0], seconds=now[left[0]].seconds)


class Belief(NamedTuple):
    """Seconds of a call, as a logarithm: its mean and standard deviation."""
    mean: float
    deviation: float

    @property
    def seconds(self) -> float: return exp(self.mean)

    def surely(self, more: float) -> float:
        """Seconds that it takes at least, and these."""
        return exp(self.mean - SURE * self.deviation) + more


def believed(runs: Mapping[Candidate, Sequence[float]]) -> dict[Candidate, Belief]:
    """What candidates take, from predictions and timings (logarithms of seconds, one a turn), each with its variance
    (Gelman et al. 2013, Bayesian Data Analysis, section 2.5). What the machine does besides slows all of them alike, by
    one factor more; how far turns are apart is one variance of all, which a few turns tell together."""
    counts = {each: len(logs) for each, logs in runs.items()}
    middle = {each: median(logs) for each, logs in runs.items()}
    off = sum((one - middle[each]) ** 2 for each, logs in runs.items() for one in logs)
    apart = (TOLD * TURN_NOISE ** 2 + off) / (TOLD + sum(counts.values()) - len(counts))
    noise = {each: apart / count + PROCESS_NOISE ** 2 for each, count in counts.items()}
    prior = {each: (log(each.seconds), max((log(each.high) - log(each.low)) / (2 * WITHIN), PROCESS_NOISE) ** 2)
             for each in runs}
    weight = {each: 1 / (noise[each] + prior[each][1]) for each in runs}
    slower = sum(weight[each] * (middle[each] - prior[each][0]) for each in runs) / (sum(weight.values()) + BUSY ** -2)
    slower = min(slower, log(MOST_BUSY))                    # beyond, predictions are wrong
    found = {}
    for each, (mean, variance) in prior.items():
        both = 1 / (1 / variance + 1 / noise[each])
        found[each] = Belief(both * (mean / variance + (middle[each] - slower) / noise[each]), sqrt(both))
    return found


def burst(call: Callable[[], object]) -> list[float]:
    """Seconds of a few calls within some milliseconds, or of one that takes longer."""
    return timed(call, TURN_SECONDS, 1, 50)


def as_weights(W: ArrayLike) -> Floats:
    """W as float32; a pattern of booleans gets normal numbers."""
    given = np.asarray(W)
    if given.dtype != bool: return as_matrix(given, "select")
    values = np.random.default_rng(0).standard_normal(given.shape, np.float32)
    return as_matrix(np.where(given, np.where(values == 0, 1, values), 0).astype(np.float32), "select")


def offered(names: Sequence[str], shape: tuple[int, int]) -> Iterator[tuple[str, dict[str, int | float]]]:
    """Every format with the options that decide how it stores, each once."""
    for name in names:
        form = FORMATS[name]
        yield from ((name, given) for given in (form.choices if approximates(form) else form.layouts)(*shape))


def approximates(form: type[Format]) -> bool:
    """Whether it holds other numbers than float32 has, or a matrix only up to rounding."""
    return form.rounds or form.tolerance is not Format.tolerance or not any(
        array.number.name == "f4" for array in form.fields.values())


def fit_within(form: type[Format], given: dict[str, int | float], sample: Floats,
               error: float) -> tuple[Format, float] | None:
    """The sample in this format and the error that it makes; None where that is too much, or it cannot be held. A
    format that rounds x holds nothing exactly."""
    if error == 0 and (form.rounds or form.tolerance is not Format.tolerance): return None
    try:
        if not approximates(form): return form.pack(sample, **given), 0.0
        sizes = form.expected(sample.shape[0], sample.shape[1], **given)
        # factors as large as the sample
        if form.flops.subs(sizes).subs(T, 1) > 2 * sample.size: return None
        packed = form.approximate(sample, **given) if error else form.pack(sample, **given)
    except FormatError: return None
    off = deviation(packed, sample)
    return (packed, off) if off <= error else None


def deviation(packed: Format, W: Floats) -> float:
    """How far the product of normal rows is off, relative: Frobenius norms. Of what rounds no x it is that of the
    matrix."""
    if not packed.rounds:
        whole = float(np.linalg.norm(W.astype(np.float64)))
        return float(np.linalg.norm(packed.unpack().astype(np.float64) - W)) / whole if whole else 0.0
    x = np.random.default_rng(1).standard_normal((PROBES, len(W)), np.float32)
    wanted = x.astype(np.float64) @ W.astype(np.float64)
    size = float(np.linalg.norm(wanted))
    return float(np.linalg.norm(packed.matmul(x) - wanted)) / size if size else 0.0


def sampled(W: Floats) -> Floats:
    """A few groups of inputs and outputs, spread evenly and aligned, so that tiles stay whole."""
    inputs, outputs = (pick_groups(*each) for each in zip(W.shape, (INPUT_GROUPS, OUTPUT_GROUPS), GROUPS, strict=True))
    part: Floats = W[np.ix_(inputs, outputs)]
    return part


def pick_groups(size: int, step: int, count: int) -> np.ndarray:
    """The numbers of so many whole groups out of `size`; all where there are no more."""
    if size <= step * count: return np.arange(size)
    first = np.linspace(0, size // step - 1, count).astype(int) * step
    return (first[:, None] + np.arange(step)).ravel()


def scale_sizes(packed: Format, shape: tuple[int, int], thinner: float,
                given: Mapping[str, object]) -> dict[str, float]:
    """The sizes of a sample as the whole matrix may have them: counts grow with the area, and with how dense the rest
    is."""
    larger = shape[0] * shape[1] / (packed.shape[0] * packed.shape[1]) * thinner
    sizes = {str(size): float(value) if size.is_positive or str(size) in given else value * larger
             for size, value in packed.sizes.items()}
    return sizes | {"n": float(shape[0]), "p": float(shape[1])}


def recount(machine: Pricer, weights: DecomposedMatrix, guess: Candidate, rows: int, products: float,
            error: float) -> Candidate | None:
    """The candidate with the sizes and the error that W has in it; None where W cannot be held within the error."""
    W = weights.W
    start = time.perf_counter()
    try: packed = guess.pack(W) if products else weights.pack(guess)        # a conversion alone decomposes, too
    except FormatError: return None
    share = (time.perf_counter() - start) / products if products else 0.0
    sizes = {str(size): float(value) for size, value in packed.sizes.items()}
    off = deviation(packed, W) if error and isinstance(packed, Format) and approximates(type(packed)) else 0.0
    return priced(machine, guess.format, dict(guess.options), sizes, rows, off, share) if off <= error else None


def priced(machine: Pricer, name: str, given: Mapping[str, object], sizes: dict[str, float], rows: int,
           error: float, conversion: float = 0.0) -> Candidate:
    """The candidate at what the machine predicts."""
    kernel, sizes = f"linear.{name}", {"T": float(rows)} | sizes
    low, high = learning(lambda: machine.between(kernel, **sizes), announced(kernel))
    return Candidate(name, tuple(given.items()), machine.seconds(kernel, **sizes), low, high,
                     round(weigh_format(FORMAT_CATALOGUE[kernel].product, sizes)[0]), error, conversion)
