"""A machine prices kernels: seconds as a nonnegative combination of features, each an expression in named sizes, with
coefficients that a short calibration fits (formats/calibrate.py) and a file of JSON keeps."""
import hashlib
import json
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import sympy

from formats.cache import cache_directory
from formats.sizes import T, blocks, c, group, kept, n, nnz, p, r

S2, h, d = sympy.symbols("S2 h d", positive=True)            # sum of squared lengths; heads and columns of one
VERSION = 2                                                 # of the features: other files are calibrated anew

# What a kernel's time grows with: its arithmetic, the weight it reads, the rows it reads and writes. 1 is the call itself.
FEATURES: dict[str, tuple[sympy.Expr, ...]] = {
    "linear.dense": (T * n * p, n * p, T * (n + p)),
    "linear.half": (T * n * p, n * p, T * (n + p)),
    "linear.csr": (T * nnz, nnz, T * (n + p), p),
    "linear.block": (T * blocks * r * c, blocks * r * c, T * (n + p)),
    "linear.nm": (T * n * p * kept / group, n * p * kept / group, T * (n + p)),
    "linear.lowrank": (T * r * (n + p), r * (n + p), T * (n + p + r)),
    **{name: (T * p,) for name in ("bias", "gelu", "residual", "norm", "affine")},
    **{f"pointwise.{name}": (T * p,) for name in ("bias", "gelu", "residual", "norm", "affine")},
    "scale": (T * p,), "gather": (T * p,),
    "attention": (S2 * h * d, S2 * h, T * h * d), "scores": (S2 * h * d, S2 * h, T * h * d), "softmax": (S2 * h,),
    "values": (S2 * h * d, S2 * h, T * h * d), "headwise": (T * h * n * p, h * n * p, T * h * (n + p)),
}
FUSED = ("bias", "gelu", "residual", "norm", "affine")       # no call of their own


def features(kernel: str) -> tuple[sympy.Expr, ...]:
    """The features of a kernel; KeyError names the kernels there are."""
    if kernel not in FEATURES:
        raise KeyError(f"no kernel {kernel!r} has a price; there are {', '.join(FEATURES)}")
    return FEATURES[kernel] if kernel in FUSED else (*FEATURES[kernel], sympy.Integer(1))


def evaluate(kernel: str, sizes: Mapping[str, float]) -> tuple[float, ...]:
    """The features of a kernel at these sizes."""
    if kernel not in COMPILED:
        symbols = sorted({s for f in features(kernel) for s in f.free_symbols}, key=str)
        COMPILED[kernel] = [str(s) for s in symbols], sympy.lambdify(symbols, features(kernel), "math")
    names, function = COMPILED[kernel]
    return tuple(function(*(sizes[name] for name in names)))


COMPILED: dict[str, tuple[list[str], Callable[..., Any]]] = {}


@dataclass(frozen=True)
class Machine:
    """Coefficients of every kernel, in seconds. `interval` is the median relative error on shapes that were not fitted."""

    name: str
    threads: int
    versions: dict[str, str]
    coefficients: dict[str, list[float]]
    interval: dict[str, float] = field(default_factory=dict)
    features: int = VERSION

    def seconds(self, kernel: str, **sizes: float) -> float:
        """Predicted seconds of one call."""
        return sum(a * b for a, b in zip(self.coefficients[kernel], evaluate(kernel, sizes), strict=True))

    def expression(self, kernel: str) -> sympy.Expr:
        """The same as an expression in the sizes."""
        return sympy.Add(*(sympy.Float(a, 4) * f for a, f in zip(self.coefficients[kernel], features(kernel), strict=True)))

    def save(self, file: Path) -> None:
        """Written whole or not at all."""
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(asdict(self), indent=1))
        fresh.replace(file)

    @classmethod
    def load(cls, file: Path) -> "Machine":
        """Raises ValueError where the file is not what `save` writes, or is of another machine or other versions."""
        found = cls(**json.loads(file.read_text()))
        wrong = [kernel for kernel in FEATURES if len(found.coefficients.get(kernel, [])) != len(features(kernel))]
        if wrong or found.identity != identity() or found.features != VERSION:
            raise ValueError(f"{file} does not price {', '.join(wrong) or 'this machine'}")
        return found

    @cached_property
    def identity(self) -> tuple[Any, ...]:
        return self.name, self.threads, tuple(sorted(self.versions.items()))


def cpu() -> str:
    """The processor's own name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor() or platform.machine())


def identity() -> tuple[Any, ...]:
    """What a calibration belongs to: the processor, the threads of the pool, the versions that make code."""
    from formats.threads import threads
    return cpu(), threads(), tuple(sorted((name, version(name)) for name in ("numba", "llvmlite", "numpy")))


def this_machine(progress: Callable[..., None] = lambda *_: None) -> Machine:
    """This machine's model: read from the cache, else calibrated (half a minute at most) and kept there. What cannot be
    read, or belongs to another machine, is measured again and said so through `progress`."""
    name = hashlib.blake2b(repr(identity()).encode(), digest_size=8).hexdigest()
    file = cache_directory() / "machines" / f"{name}.json"
    if file.exists():
        try:
            return Machine.load(file)
        except (ValueError, TypeError, OSError) as error:
            progress(f"measured again: {error}")
    from formats.calibrate import calibrate
    machine = calibrate(progress)
    machine.save(file)
    return machine
