"""A machine prices kernels: seconds are a nonnegative combination of features, each an expression in named sizes (the
closed form), times a factor for what that leaves out (formats/predictor.py). A short calibration (formats/calibrate.py)
fits both; a file of JSON keeps them."""
import hashlib
import json
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from math import exp, isfinite
from pathlib import Path
from typing import Any

import sympy

from formats import FORMATS
from formats.cache import keep, location, recall, say
from formats.errors import InputError
from formats.features import T, beyond, n, p
from formats.files import parse_json, shown
from formats.predictor import FILE, Correction
from formats.quiet import probe
from formats.switches import switched_off

S2, h, d = sympy.symbols("S2 h d", positive=True)            # sum of squared lengths; heads and columns of one
VERSION = 9                                                 # of the features: other files are calibrated anew

# What a kernel's time grows with: products as their formats declare it; 1, which is added to all, is the call.
FEATURES: dict[str, tuple[sympy.Expr, ...]] = {
    **{f"linear.{name}": form.work for name, form in FORMATS.items()},
    **{name: (T * p,) for name in ("bias", "gelu", "residual", "norm", "affine")},
    **{f"pointwise.{name}": (T * p,) for name in ("bias", "gelu", "residual", "norm", "affine")},
    "scale": (T * p,), "gather": (T * p,),
    **dict.fromkeys(("attention", "attention.bf16", "scores", "values"), (S2 * h * d, S2 * h, T * h * d)),
    "softmax": (S2 * h,), "headwise": (T * h * n * p, h * n * p, T * h * (n + p)),
}
KEPT = "the calibration"
MOST, LEAST = 20, 1e-3                                      # of a correction: no logarithm is larger, no deviation smaller
SAID = 1000                                                 # characters of what was seen, fewer
UNKNOWN = 0.3                                               # half the width of an interval that nobody measured
FUSED = ("bias", "gelu", "residual", "norm", "affine")       # no call of their own


def features(kernel: str) -> tuple[sympy.Expr, ...]:
    """The features of a kernel; KeyError names the kernels there are. BLAS does what dense does."""
    if kernel == "linear.blas": kernel = "linear.dense"
    if kernel not in FEATURES:
        raise KeyError(f"no kernel {kernel!r} has a price; there are {', '.join(FEATURES)}")
    return FEATURES[kernel] if kernel in FUSED else (*FEATURES[kernel], sympy.Integer(1))


@cache
def compiled(kernel: str) -> tuple[tuple[str, ...], Callable[..., tuple[float, ...]]]:
    """The names of the sizes that a kernel's features need, and a function of them."""
    symbols = sorted({symbol for feature in features(kernel) for symbol in feature.free_symbols}, key=str)
    return tuple(map(str, symbols)), sympy.lambdify(symbols, features(kernel), "math")


def evaluate(kernel: str, sizes: Mapping[str, float]) -> tuple[float, ...]:
    """The features of a kernel at these sizes; ValueError names a size that is missing."""
    names, function = compiled(kernel)
    if missing := [name for name in names if name not in sizes]:
        raise ValueError(f"the price of {kernel} needs {', '.join(missing)}; given were {', '.join(sizes)}")
    return tuple(map(float, function(*(sizes[name] for name in names))))


class NotThisMachine(ValueError):
    """A file that does not hold the prices of this machine: names the file, and what is wrong with it."""


@dataclass(frozen=True)
class Machine:
    """Coefficients of every kernel, in seconds, and what corrects them. Products with one row have coefficients of their own, as
    they take other ways, and `far` has the seconds of a byte of a weight beyond the second cache, with one row and with more.
    `interval`: of each kernel, half the width, as a logarithm, of an interval that should hold 80 % of calls. `busy`: what was seen
    of others while it was measured (formats/quiet.py), nothing on a quiet machine."""

    name: str
    threads: int
    versions: dict[str, str]
    coefficients: dict[str, list[float]]
    interval: dict[str, float] = field(default_factory=dict)
    features: int = VERSION
    corrections: dict[str, Correction] = field(default_factory=dict)
    one_row: dict[str, list[float]] = field(default_factory=dict)
    far: dict[str, list[float]] = field(default_factory=dict)
    busy: str = ""

    def seconds(self, kernel: str, **sizes: float) -> float:
        """Predicted seconds of one call. Beside the sizes that its features need, features of a pattern may be given
        (`formats.features.pattern`)."""
        plain = self.closed(kernel, **sizes)
        if kernel not in self.corrections: return plain
        return plain * exp(min(max(self.corrections[kernel](kernel, sizes), -MOST), MOST))

    def closed(self, kernel: str, **sizes: float) -> float:
        """The closed form alone."""
        one = sizes.get("T") == 1
        near = (self.one_row if one and kernel in self.one_row else self.coefficients)[kernel]
        far = self.far[kernel][0 if one else 1] * beyond(kernel, sizes) if kernel in self.far else 0.0
        return sum(a * b for a, b in zip(near, evaluate(kernel, sizes), strict=True)) + far

    def between(self, kernel: str, **sizes: float) -> tuple[float, float]:
        """Seconds that a call takes in 80 % of cases: a lower and an upper bound around `seconds`."""
        known = self.corrections.get(kernel)
        wide = self.interval.get(kernel, UNKNOWN) if known is None else known.deviation(kernel, sizes)
        middle = self.seconds(kernel, **sizes)
        return middle * exp(-wide), middle * exp(wide)

    def expression(self, kernel: str) -> sympy.Expr:
        """The closed form as an expression in the sizes, for more rows than one and weights in the cache."""
        terms = zip(self.coefficients[kernel], features(kernel), strict=True)
        return sympy.Add(*(sympy.Float(a, 4) * feature for a, feature in terms))

    def save(self, file: Path) -> bool:
        """Kept whole or not at all; whether it could be, which is said where it could not."""
        return keep(file, json.dumps(asdict(self), indent=1).encode(), KEPT)

    @classmethod
    def load(cls, file: Path) -> "Machine":
        """Raises NotThisMachine where the file is not what `save` writes here: another machine, version, damage, or others could have
        written it."""
        try:
            read = parse_json(recall(file), shown(file))
            read["corrections"] = {kernel: Correction(**given) for kernel, given in read["corrections"].items()}
            found = cls(**read)
            wrong = [kernel for kernel in FEATURES if not prices(found.coefficients[kernel], len(features(kernel)))]
            wrong += [kernel for kernel, each in found.corrections.items() if not corrects(kernel, each)]
            wrong += [kernel for kernel, each in found.one_row.items() if not prices([*each, 1e-12], len(features(kernel)) + 1)]
            wrong += [kernel for kernel, each in found.far.items() if not prices([*each, 1e-12], 3)]
            wrong += [kernel for kernel, each in found.interval.items() if not (number(each) and 0 <= each < MOST)]
            if not (isinstance(found.busy, str) and len(found.busy) < SAID and found.busy.isprintable()): wrong.append("a busy machine")
            here = found.identity == identity() and found.features == VERSION
        except InputError as error: raise NotThisMachine(str(error)) from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise NotThisMachine(f"{shown(file)}: {type(error).__name__}: {error}") from None
        if wrong: raise NotThisMachine(f"{file}: no prices of {', '.join(wrong)}")
        if not here: raise NotThisMachine(f"{file}: of another machine or other versions")
        return found

    @property
    def identity(self) -> tuple[Any, ...]:
        """What the prices belong to."""
        return self.name, self.threads, tuple(sorted(self.versions.items()))


def number(value: Any) -> bool:
    """Whether this is a finite number, and not a text that says one."""
    return type(value) in (int, float) and isfinite(value)


def prices(coefficients: Any, count: int) -> bool:
    """Whether these are so many coefficients, finite and not negative, and not all zero."""
    return len(coefficients) == count and all(number(a) and 0 <= a < 1 for a in coefficients) and any(coefficients)


def corrects(kernel: str, correction: Correction) -> bool:
    """Whether this is a correction of the kernel: finite numbers, a length for every axis, something left at every place."""
    scale, places, left = correction.scale, correction.places, correction.left
    numbers = [correction.trust, correction.noise, correction.spread, correction.amplitude, correction.alone, *left]
    right = kernel in (*FEATURES, "linear.blas") and all(number(each) and abs(each) < MOST for each in numbers)
    return (right and all(map(number, scale)) and min(correction.noise, correction.spread, *scale, 1.0) >= LEAST
            and len(places) == len(left) and all(len(place) == len(scale) and all(map(number, place)) for place in places))


def cpu() -> str:
    """The processor's own name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return next(iter(models), platform.processor() or platform.machine())


def identity() -> tuple[Any, ...]:
    """What a calibration belongs to: the processor and what of it is switched off, the threads, the versions that make code, the
    kernels, the trained predictor."""
    from formats.kernels import digest
    from formats.threads import threads
    versions = [(name, version(name)) for name in ("numba", "llvmlite", "numpy")]
    off = [("off", ",".join(names))] if (names := switched_off()) else []
    return cpu(), threads(), tuple(sorted([*versions, *off, ("kernels", digest()), ("predictor", trained_by())]))


@cache
def trained_by() -> str:
    """A name for the trained predictor."""
    return hashlib.blake2b(FILE.read_bytes() if FILE.exists() else b"", digest_size=8).hexdigest()


def machine_file() -> Path:
    """Where this machine's model is kept."""
    name = hashlib.blake2b(repr(identity()).encode(), digest_size=8).hexdigest()
    return location() / "machines" / f"{name}.json"


def current(file: Path) -> bool:
    """Whether a file in the directory of calibrations is of this processor and these versions, for any number of threads."""
    name, _, versions = identity()
    try: kept = parse_json(recall(file.with_name(f"{file.name.split('.')[0]}.json")), shown(file))
    except InputError: return False
    return isinstance(kept, dict) and (kept.get("name"), kept.get("versions")) == (name, dict(versions))


def this_machine(progress: Callable[..., None] = lambda *_: None) -> Machine:
    """This machine's model: read from the cache, else calibrated (18 seconds at most) and kept there. What cannot be read, belongs to
    another machine, or could be somebody else's, is measured again, and that is said; so is what cannot be kept. What was measured
    while the machine was busy is measured again as soon as it is quiet; until then it is used, and that is said."""
    if os.path.lexists(file := machine_file()):
        try: machine = Machine.load(file)
        except NotThisMachine as error: say(f"measured again: {error}")
        else:
            if not machine.busy: return machine
            if probe():
                say(marked(machine))
                return machine
            say(f"measured again: {marked(machine)}")
    from formats.calibrate import calibrate
    machine = calibrate(progress)
    machine.save(file)
    if machine.busy: say(marked(machine))
    return machine


def marked(machine: Machine) -> str:
    """What is said of a calibration that was taken on a busy machine."""
    return f"the calibration was taken while busy: {machine.busy}: predicted times are too long, and less certain"
