"""A machine prices kernels: seconds are a nonnegative combination of features, each an expression in named sizes (the
closed form), times a factor for what that leaves out (formats/machine/predictor.py). A short calibration
(formats/machine/calibration.py) fits both; a file of JSON keeps them (formats/machine/local.py)."""
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

FEATURES_VERSION = 14                                       # of the features: other files are calibrated anew
KEPT_CONTENT = "the calibration"
WAYS = "apart", "together"                              # inside a run: each worker at a group of its own, or all at one
FROM_PYTHON = "called"                                      # outside a run
MAX_LOG, MIN_DEVIATION = 20, 1e-3                        # of a correction: no logarithm is larger, no deviation smaller
SAID = 1000                                                 # characters of what was seen, fewer
DEFAULT_HALF_WIDTH = 0.3                                    # half the width of an interval that nobody measured


class NotThisMachine(ValueError):
    """A file that does not hold the prices of this machine: names the file, and what is wrong with it."""


class UnknownPrice(KeyError):
    """A kernel that a machine was not measured for, in a way of running: whoever asks may have it measured
    (formats.machine.local.learn) and ask again."""

    def __init__(self, machine: "Machine", kernel: str, way: str) -> None:
        super().__init__(f"nobody measured {kernel} ({way}) on {machine.name or 'this machine'}")
        self.machine, self.kernel, self.way = machine, kernel, way


@dataclass(frozen=True)
class Rates:
    """Coefficients of kernels, in seconds, and what corrects them. Products with one row have coefficients of their
    own, as they take other ways, and `far` has the seconds of a byte of a weight beyond the second cache, with one row
    and with more. Those of formats with another way for few rows (Price.few) have coefficients for these, too, of which
    the last is that of such a byte. `interval`: of each kernel, half the width, as a logarithm, of an interval that
    should hold 80 % of calls. `start`: seconds of a run beside its kernels, `cold` those that a kernel takes more where
    others ran before it. `catalogue` declares the kernels."""

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
        """These rates, and those of kernels that others have."""
        return replace(self, **{name: getattr(self, name) | getattr(other, name) for name in TABLES})

    def holding(self, kernel: str) -> "Rates":
        """The rates in which those of this kernel stand."""
        return self

    def slowed(self, factor: float) -> Self:
        """The rates where everything takes so many times as long."""
        longer: dict[str, Any] = {
            name: {kernel: [factor * a for a in each] for kernel, each in getattr(self, name).items()}
            for name in ("coefficients", "one_row", "far", "few")}
        return replace(self, **longer, start=factor * self.start, cold=factor * self.cold)

    def seconds(self, kernel: str, **sizes: float) -> float:
        """Predicted seconds of one call."""
        if (own := self.holding(kernel)) is not self: return own.seconds(kernel, **sizes)
        plain = self.closed(kernel, **sizes)
        if kernel not in self.corrections: return plain
        left = self.corrections[kernel](locate_call(self.catalogue[kernel], sizes))
        return plain * exp(min(max(left, -MAX_LOG), MAX_LOG))

    def closed(self, kernel: str, **sizes: float) -> float:
        """The closed form alone."""
        if (own := self.holding(kernel)) is not self: return own.closed(kernel, **sizes)
        price, rows = self.catalogue[kernel], sizes.get("T", inf)
        one = rows == 1
        near, each = (self.one_row if one and kernel in self.one_row else self.coefficients)[kernel], 0.0
        if kernel in self.few and not one and rows <= price.few: *near, each = self.few[kernel]
        elif kernel in self.far: each = self.far[kernel][0 if one else 1]
        once = sum(a * b for a, b in zip(near, self.catalogue.evaluate_features(kernel, sizes), strict=True))
        return (once + (each and each * count_uncached(price, sizes))) * sizes.get(TIMES, 1)

    def between(self, kernel: str, **sizes: float) -> tuple[float, float]:
        """Seconds that a call takes in 80 % of cases: a lower and an upper bound around `seconds`."""
        if (own := self.holding(kernel)) is not self: return own.between(kernel, **sizes)
        known = self.corrections.get(kernel)
        wide = self.interval.get(kernel, DEFAULT_HALF_WIDTH) if known is None \
            else known.deviation(locate_call(self.catalogue[kernel], sizes))
        middle = self.seconds(kernel, **sizes)
        return middle * exp(-wide), middle * exp(wide)

    def expression(self, kernel: str) -> sympy.Expr:
        """The closed form as an expression in the sizes, for more rows than one and weights in the cache."""
        terms = zip(self.coefficients[kernel], self.catalogue[kernel].terms, strict=True)
        return sympy.Add(*(sympy.Float(a, 4) * feature for a, feature in terms))

    @property
    def wrong(self) -> list[str]:
        """What these are no rates of: names of kernels."""
        counts = {kernel: len(self.catalogue[kernel].terms) for kernel in (*self.coefficients, *self.one_row)}
        wrong = [kernel for kernel, each in self.coefficients.items() if not prices(each, counts[kernel])]
        wrong += [kernel for kernel, each in self.corrections.items()
                  if kernel not in self.catalogue or not corrects(each)]
        wrong += [kernel for kernel, each in self.one_row.items() if not prices([*each, 1e-12], counts[kernel] + 1)]
        wrong += [kernel for kernel, each in self.few.items()
                  if kernel not in counts or not prices(each, counts[kernel] + 1)]
        wrong += [kernel for kernel, each in self.far.items() if not prices([*each, 1e-12], 3)]
        wrong += [kernel for kernel, each in self.interval.items() if not (is_finite(each) and 0 <= each < MAX_LOG)]
        return wrong + [name for name in ("start", "cold")
                        if not (is_finite(value := getattr(self, name)) and 0 <= value < 1)]


TABLES = "coefficients", "interval", "corrections", "one_row", "far", "few"     # fields of rates, by kernel


def record(value: Any) -> dict[str, object]:
    """The fields of rates or of a correction as JSON has them: without the catalogue."""
    return {each.name: getattr(value, each.name) for each in fields(value) if each.name != "catalogue"}


def read_rates(given: Mapping[str, Any], catalogue: Catalogue) -> dict[str, Any]:
    """The fields of rates from JSON, without kernels that the catalogue does not declare."""
    others = given["coefficients"].keys() - {*catalogue.prices, *catalogue.optional}
    known = {name: {kernel: each for kernel, each in given[name].items() if kernel not in others} for name in TABLES}
    return dict(given) | known | {"catalogue": catalogue, "corrections": {
        kernel: Correction(**each) for kernel, each in known["corrections"].items()}}


@dataclass(frozen=True)
class Machine(Rates):
    """The rates of calls from Python, on all threads, of weights that lie where the call before left them. `ways` are
    those of kernels inside a run (WAYS). `busy`: what was seen of others while it was measured
    (formats/host/quiet.py), nothing on a quiet machine. `pace`: seconds of what says how fast the machine was then
    (formats/host/quiet.py), 0 where nobody looked."""

    name: str = ""
    threads: int = 1
    versions: dict[str, str] = field(default_factory=dict)
    features: int = FEATURES_VERSION
    ways: dict[str, Rates] = field(default_factory=dict)
    busy: str = ""
    pace: float = 0.0

    def save(self, file: Path) -> bool:
        """Kept whole or not at all; whether it could be, which is said where it could not."""
        return try_put(file, json.dumps(self, default=record, indent=1).encode(), KEPT_CONTENT)

    @classmethod
    def load(cls, file: Path, catalogue: Catalogue, wanted: Collection[str] = (), way: str = FROM_PYTHON) -> "Machine":
        """The rates of kernels of a catalogue, of these at least, in this way. Raises NotThisMachine where the file is
        not what `save` writes here: another machine, version, damage, or others could have written it."""
        try:
            read = read_rates(parse_json(recall(file), shown(file)), catalogue)
            read["ways"] = {way: Rates(**read_rates(each, catalogue)) for way, each in read["ways"].items()}
            found = cls(**read)
            wrong = [kernel for kernel in wanted if kernel not in found.rates(way).coefficients]
            wrong += [kernel for each in (found, *found.ways.values()) for kernel in each.wrong]
            wrong += [way for way in found.ways if way not in WAYS]
            if not (isinstance(found.busy, str) and len(found.busy) < SAID and found.busy.isprintable()):
                wrong.append("a busy machine")
            if not (is_finite(found.pace) and 0 <= found.pace < 1): wrong.append("a pace")
            here = found.identity == identity() and found.features == FEATURES_VERSION
        except InputError as error: raise NotThisMachine(str(error)) from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise NotThisMachine(f"{shown(file)}: {type(error).__name__}: {error}") from None
        if wrong: raise NotThisMachine(f"{file}: no prices of {', '.join(wrong)}")
        if not here: raise NotThisMachine(f"{file}: of another machine or other versions")
        return found

    def slowed(self, factor: float) -> Self:
        return replace(super().slowed(factor), ways={way: each.slowed(factor) for way, each in self.ways.items()})

    def holding(self, kernel: str, way: str = FROM_PYTHON) -> Rates:
        """The rates in which those of this kernel stand, called from Python or inside a run; of one that is never
        recorded those of the way, without it. Raises UnknownPrice where it was not measured: nothing is measured
        here."""
        own = self.rates(way)
        if kernel in own.coefficients: return own
        if (way, kernel) in self.more: return self.more[way, kernel]
        declared = self.catalogue[kernel]
        if way != FROM_PYTHON and not declared.recorded: return own
        raise UnknownPrice(self, kernel, way)

    def rates(self, way: str) -> Rates:
        """The rates that are here, of calls or in a way of running."""
        return self if way == FROM_PYTHON else self.ways[way]

    def opened(self, way: str) -> Rates:
        """The rates of a way of running, with what every search meets. Raises UnknownPrice."""
        return self.holding(next(name for name in self.catalogue.common if self.catalogue[name].recorded), way)

    def add(self, names: Iterable[str], way: str, measured: "Machine") -> None:
        """Have the rates of these kernels in this way, which were measured later."""
        if measured.busy: self.marks.append(measured.busy)
        self.more.update(dict.fromkeys([(way, name) for name in names], measured.rates(way)))

    @cached_property
    def more(self) -> dict[tuple[str, str], Rates]:
        """The rates of what was measured later, by way and kernel, each kept in a file beside the calibration."""
        return {}

    @cached_property
    def marks(self) -> list[str]:
        """What was seen of others while these prices were measured, and those that were first met later."""
        return [self.busy] if self.busy else []

    @property
    def identity(self) -> tuple[int, tuple[tuple[str, str], ...]]:
        """What the prices belong to."""
        return self.threads, tuple(sorted(self.versions.items()))


def is_finite(value: object) -> bool:
    """Whether this is a finite number, and not a text that says one."""
    return type(value) in (int, float) and isinstance(value, int | float) and isfinite(value)


def prices(coefficients: Sequence[float], count: int) -> bool:
    """Whether these are so many coefficients, finite and not negative, and not all zero."""
    return len(coefficients) == count and all(is_finite(a) and 0 <= a < 1 for a in coefficients) and any(coefficients)


def corrects(correction: Correction) -> bool:
    """Whether this is a correction: finite numbers, a length for every axis, something left at every
    place."""
    scale, places, left = correction.scale, correction.places, correction.left
    numbers = [correction.noise, correction.spread, correction.amplitude, correction.alone, *left]
    right = all(is_finite(each) and abs(each) < MAX_LOG for each in numbers)
    return (right and all(map(is_finite, scale))
            and min(correction.noise, correction.spread, *scale, 1.0) >= MIN_DEVIATION and len(places) == len(left)
            and all(len(place) == len(scale) and all(map(is_finite, place)) for place in places))


def identity() -> tuple[int, tuple[tuple[str, str], ...]]:
    """What a calibration belongs to: the threads, what the processor can do and what of it is switched off, its caches
    and cores (its name says none of these), the versions that make code, the kernels."""
    from formats.host.threads import threads
    from formats.kernels import digest
    host = Host.here()
    versions = {name: version(name) for name in ("numba", "llvmlite", "numpy")} | {
        "kernels": digest(), "flags": digested(" ".join(sorted(host.flags)) or cpu()),
        "caches": " ".join(map(str, caches())), "cores": str(host.cores)}
    if names := switched_off(): versions["off"] = ",".join(names)
    return threads(), tuple(sorted(versions.items()))


def here() -> dict[str, Any]:
    """The fields of a machine that say which it is: this one."""
    own, versions = identity()
    return {"name": cpu(), "threads": own, "versions": dict(versions)}


def digested(text: str) -> str: return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def machine_file() -> Path:
    """Where this machine's model is kept."""
    return location() / "machines" / f"{digested(repr(identity()))}.json"


def current(file: Path) -> bool:
    """Whether a file in the directory of calibrations is of this processor and these versions, for any number of
    threads."""
    _, versions = identity()
    try: kept = parse_json(recall(file.with_name(f"{file.name.split('.')[0]}.json")), shown(file))
    except InputError: return False
    return isinstance(kept, dict) and kept.get("versions") == dict(versions)
