"""A machine prices kernels: seconds are a nonnegative combination of features, each an expression in named sizes (the
closed form), times a correction factor for the residual (formats/machine/predictor.py). A short calibration
(formats/machine/calibration.py) fits both; a JSON file stores them (formats/machine/local.py)."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from importlib.metadata import version
from math import exp, inf, isfinite
from pathlib import Path
from typing import Any, Self

import sympy

from formats.core.errors import InputError
from formats.disk.cache import location, recall
from formats.disk.files import parse_json, shown
from formats.disk.holdings import try_put
from formats.host.host import Host, caches, cpu
from formats.host.switches import switched_off
from formats.machine.features import count_uncached, locate_call
from formats.machine.predictor import Correction
from formats.machine.prices import FORMAT_CATALOGUE, TIMES, Catalogue

FEATURES_VERSION = 14  # other files are calibrated anew
KEPT_CONTENT = "the calibration"
WAYS = "apart", "together"  # inside a run: each worker on a group of its own, or all on one
FROM_PYTHON = "called"  # calls from Python, outside a run
MAX_LOG, MIN_DEVIATION = 20, 1e-3  # largest logarithm, least deviation of a correction
SAID = 1000  # `busy` has fewer characters than this
DEFAULT_HALF_WIDTH = 0.3  # half the width of an unmeasured interval


class NotThisMachine(ValueError):
    """A file without valid prices of this machine. Names the file and the fault."""


class UnknownPrice(KeyError):
    """A kernel that was not measured on a machine, in a way of running. A caller may have it measured
    (formats.machine.local.learn) and retry."""

    def __init__(self, machine: "Machine", kernel: str, way: str) -> None:
        super().__init__(f"{kernel} ({way}) has not been measured on {machine.name or 'this machine'}")
        self.machine, self.kernel, self.way = machine, kernel, way


@dataclass(frozen=True)
class Rates:
    """Coefficients of kernels, in seconds, and their corrections. Products with one row have coefficients of their own,
    as they use other code paths, and `far` has the seconds of a byte of a weight beyond the second cache, with one row
    and with more. Formats with another code path for few rows (Price.few) have coefficients for these, too, of which
    the last is that of such a byte. `interval`: for each kernel half the width, as a logarithm, of an interval that
    should hold 80 % of calls. `start`: seconds of a run beside its kernels; `cold`: additional seconds of a kernel
    where others ran before it. `catalogue` declares the kernels."""

    coefficients: dict[str, list[float]]
    interval: dict[str, float] = field(default_factory=dict)
    corrections: dict[str, Correction] = field(default_factory=dict)
    one_row: dict[str, list[float]] = field(default_factory=dict)
    far: dict[str, list[float]] = field(default_factory=dict)
    few: dict[str, list[float]] = field(default_factory=dict)
    start: float = 0.0
    cold: float = 0.0
    catalogue: Catalogue = field(default=FORMAT_CATALOGUE, compare=False, repr=False)

    def also(self, other: "Rates") -> Self:
        """Return these rates, with those of other kernels added."""
        return replace(self, **{name: getattr(self, name) | getattr(other, name) for name in TABLES})

    def holding(self, kernel: str) -> "Rates":
        """Return the rates that contain those of this kernel."""
        return self

    def slowed(self, factor: float) -> Self:
        """Return the rates where every call takes `factor` times as long."""
        longer: dict[str, Any] = {
            name: {kernel: [factor * a for a in coefficients] for kernel, coefficients in getattr(self, name).items()}
            for name in ("coefficients", "one_row", "far", "few")
        }
        return replace(self, **longer, start=factor * self.start, cold=factor * self.cold)

    def seconds(self, kernel: str, **sizes: float) -> float:
        """Predict the seconds of one call."""
        if (rates := self.holding(kernel)) is not self:
            return rates.seconds(kernel, **sizes)
        plain = self.closed(kernel, **sizes)
        if kernel not in self.corrections:
            return plain
        residual = self.corrections[kernel](locate_call(self.catalogue[kernel], sizes))
        return plain * exp(min(max(residual, -MAX_LOG), MAX_LOG))

    def closed(self, kernel: str, **sizes: float) -> float:
        """Evaluate the closed form alone."""
        if (rates := self.holding(kernel)) is not self:
            return rates.closed(kernel, **sizes)
        price, rows = self.catalogue[kernel], sizes.get("T", inf)
        one = rows == 1
        near, byte_seconds = (self.one_row if one and kernel in self.one_row else self.coefficients)[kernel], 0.0
        if kernel in self.few and not one and rows <= price.few:
            *near, byte_seconds = self.few[kernel]
        elif kernel in self.far:
            byte_seconds = self.far[kernel][0 if one else 1]
        once = sum(a * b for a, b in zip(near, self.catalogue.evaluate_features(kernel, sizes), strict=True))
        return (once + (byte_seconds and byte_seconds * count_uncached(price, sizes))) * sizes.get(TIMES, 1)

    def between(self, kernel: str, **sizes: float) -> tuple[float, float]:
        """Return seconds that a call takes in 80 % of cases: a lower and an upper bound around `seconds`."""
        if (rates := self.holding(kernel)) is not self:
            return rates.between(kernel, **sizes)
        known = self.corrections.get(kernel)
        wide = (
            self.interval.get(kernel, DEFAULT_HALF_WIDTH)
            if known is None
            else known.deviation(locate_call(self.catalogue[kernel], sizes))
        )
        middle = self.seconds(kernel, **sizes)
        return middle * exp(-wide), middle * exp(wide)

    def expression(self, kernel: str) -> sympy.Expr:
        """Return the closed form as an expression in the sizes, for more rows than one and weights in the cache."""
        terms = zip(self.coefficients[kernel], self.catalogue[kernel].terms, strict=True)
        return sympy.Add(*(sympy.Float(a, 4) * feature for a, feature in terms))

    @property
    def wrong(self) -> list[str]:
        """The names of kernels whose rates are not valid."""
        counts = {kernel: len(self.catalogue[kernel].terms) for kernel in (*self.coefficients, *self.one_row)}
        wrong = [kernel for kernel, numbers in self.coefficients.items() if not prices(numbers, counts[kernel])]
        wrong += [
            kernel
            for kernel, correction in self.corrections.items()
            if kernel not in self.catalogue or not corrects(correction)
        ]
        wrong += [
            kernel for kernel, numbers in self.one_row.items() if not prices([*numbers, 1e-12], counts[kernel] + 1)
        ]
        wrong += [
            kernel
            for kernel, numbers in self.few.items()
            if kernel not in counts or not prices(numbers, counts[kernel] + 1)
        ]
        wrong += [kernel for kernel, numbers in self.far.items() if not prices([*numbers, 1e-12], 3)]
        wrong += [kernel for kernel, wide in self.interval.items() if not (is_finite(wide) and 0 <= wide < MAX_LOG)]
        return wrong + [
            name for name in ("start", "cold") if not (is_finite(value := getattr(self, name)) and 0 <= value < 1)
        ]


TABLES = "coefficients", "interval", "corrections", "one_row", "far", "few"  # fields of rates, by kernel


def record(value: Any) -> dict[str, object]:
    """Return the fields of rates or of a correction for JSON: without the catalogue."""
    return {field.name: getattr(value, field.name) for field in fields(value) if field.name != "catalogue"}


def read_rates(given: Mapping[str, Any], catalogue: Catalogue) -> dict[str, Any]:
    """Read the fields of rates from JSON, without kernels that the catalogue does not declare."""
    others = given["coefficients"].keys() - {*catalogue.prices, *catalogue.optional}
    known = {name: {kernel: entry for kernel, entry in given[name].items() if kernel not in others} for name in TABLES}
    return (
        dict(given)
        | known
        | {
            "catalogue": catalogue,
            "corrections": {kernel: Correction(**entry) for kernel, entry in known["corrections"].items()},
        }
    )


@dataclass(frozen=True)
class Machine(Rates):
    """The rates of calls from Python, on all threads, of weights that are where the call before left them. `ways` are
    those of kernels inside a run (WAYS). `busy`: the signs of other processes during the measurement
    (formats/host/quiet.py), empty on a quiet machine. `pace`: seconds that measure the pace of the machine then
    (formats/host/quiet.py), 0 where it is unknown."""

    name: str = ""
    threads: int = 1
    versions: dict[str, str] = field(default_factory=dict)
    features: int = FEATURES_VERSION
    ways: dict[str, Rates] = field(default_factory=dict)
    busy: str = ""
    pace: float = 0.0

    def save(self, file: Path) -> bool:
        """Write the file completely or not at all. Return whether it could be written; a failure is reported."""
        return try_put(file, json.dumps(self, default=record, indent=1).encode(), KEPT_CONTENT)

    @classmethod
    def load(cls, file: Path, catalogue: Catalogue, wanted: Collection[str] = (), way: str = FROM_PYTHON) -> "Machine":
        """Load the rates of kernels of a catalogue, with at least the `wanted` ones in this way of running. Raise
        NotThisMachine where the file is not what `save` writes here: another machine, version, damage, or others could
        have written it."""
        try:
            read = read_rates(parse_json(recall(file), shown(file)), catalogue)
            read["ways"] = {way: Rates(**read_rates(rates, catalogue)) for way, rates in read["ways"].items()}
            machine = cls(**read)
            wrong = [kernel for kernel in wanted if kernel not in machine.rates(way).coefficients]
            wrong += [kernel for rates in (machine, *machine.ways.values()) for kernel in rates.wrong]
            wrong += [way for way in machine.ways if way not in WAYS]
            if not (isinstance(machine.busy, str) and len(machine.busy) < SAID and machine.busy.isprintable()):
                wrong.append("a busy machine")
            if not (is_finite(machine.pace) and 0 <= machine.pace < 1):
                wrong.append("a pace")
            here = machine.identity == identity() and machine.features == FEATURES_VERSION
        except InputError as error:
            raise NotThisMachine(str(error)) from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise NotThisMachine(f"{shown(file)}: {type(error).__name__}: {error}") from None
        if wrong:
            raise NotThisMachine(f"{file}: it has no prices of {', '.join(wrong)}")
        if not here:
            raise NotThisMachine(f"{file}: it was measured on another machine or with other versions")
        return machine

    def slowed(self, factor: float) -> Self:
        """Scale the times of all rates by a factor, those inside runs too."""
        return replace(super().slowed(factor), ways={way: rates.slowed(factor) for way, rates in self.ways.items()})

    def holding(self, kernel: str, way: str = FROM_PYTHON) -> Rates:
        """Return the rates that contain those of this kernel, called from Python or inside a run; for a kernel that is
        never recorded, the rates of the way without it. Raise UnknownPrice where it was not measured: this method
        measures none."""
        rates = self.rates(way)
        if kernel in rates.coefficients:
            return rates
        if (way, kernel) in self.more:
            return self.more[way, kernel]
        declared = self.catalogue[kernel]
        if way != FROM_PYTHON and not declared.recorded:
            return rates
        raise UnknownPrice(self, kernel, way)

    def rates(self, way: str) -> Rates:
        """Return the present rates, of calls or in a way of running."""
        return self if way == FROM_PYTHON else self.ways[way]

    def opened(self, way: str) -> Rates:
        """Return the rates of a way of running, with the common kernels. Raise UnknownPrice."""
        return self.holding(next(name for name in self.catalogue.common if self.catalogue[name].recorded), way)

    def add(self, names: Iterable[str], way: str, measured: "Machine") -> None:
        """Add the rates of these kernels in this way of running, which were measured later."""
        if measured.busy:
            self.marks.append(measured.busy)
        self.more.update(dict.fromkeys([(way, name) for name in names], measured.rates(way)))

    @cached_property
    def more(self) -> dict[tuple[str, str], Rates]:
        """The rates of kernels measured later, by way and kernel, each stored in a file beside the calibration."""
        return {}

    @cached_property
    def marks(self) -> list[str]:
        """The signs of other processes during the measurement of these prices, and of those measured later."""
        return [self.busy] if self.busy else []

    @property
    def identity(self) -> tuple[int, tuple[tuple[str, str], ...]]:
        """The threads and versions that the prices belong to."""
        return self.threads, tuple(sorted(self.versions.items()))


def is_finite(value: object) -> bool:
    """True for a finite number; False for a text that holds one."""
    return type(value) in (int, float) and isinstance(value, int | float) and isfinite(value)


def prices(coefficients: Sequence[float], count: int) -> bool:
    """True for `count` coefficients, finite and not negative, and not all zero."""
    return len(coefficients) == count and all(is_finite(a) and 0 <= a < 1 for a in coefficients) and any(coefficients)


def corrects(correction: Correction) -> bool:
    """True for a valid correction: finite numbers, a length for every axis, a residual at every place."""
    scale, places, left = correction.scale, correction.places, correction.left
    numbers = [correction.noise, correction.spread, correction.amplitude, correction.alone, *left]
    right = all(is_finite(number) and abs(number) < MAX_LOG for number in numbers)
    return (
        right
        and all(map(is_finite, scale))
        and min(correction.noise, correction.spread, *scale, 1.0) >= MIN_DEVIATION
        and len(places) == len(left)
        and all(len(place) == len(scale) and all(map(is_finite, place)) for place in places)
    )


def identity() -> tuple[int, tuple[tuple[str, str], ...]]:
    """Return the key of a calibration: the threads, the features of the processor and those that are switched off, its
    caches and cores (its name states none of these), the versions of the compilers, the kernels."""
    from formats.host.threads import threads
    from formats.kernels import digest

    host = Host.here()
    versions = {name: version(name) for name in ("numba", "llvmlite", "numpy")} | {
        "kernels": digest(),
        "flags": digested(" ".join(sorted(host.flags)) or cpu()),
        "caches": " ".join(map(str, caches())),
        "cores": str(host.cores),
    }
    if names := switched_off():
        versions["off"] = ",".join(names)
    return threads(), tuple(sorted(versions.items()))


def here() -> dict[str, Any]:
    """Return the fields that identify this machine."""
    count, versions = identity()
    return {"name": cpu(), "threads": count, "versions": dict(versions)}


def digested(text: str) -> str:
    """Return the digest of a text: 16 hexadecimal digits of BLAKE2b."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def machine_file() -> Path:
    """Return the file of this machine's model."""
    return location() / "machines" / f"{digested(repr(identity()))}.json"


def current(file: Path) -> bool:
    """True if a file in the directory of calibrations is for this processor and these versions, for any number of
    threads."""
    _, versions = identity()
    try:
        content = parse_json(recall(file.with_name(f"{file.name.split('.')[0]}.json")), shown(file))
    except InputError:
        return False
    return isinstance(content, dict) and content.get("versions") == dict(versions)
