"""What a program may run at on this machine: the processor and what kernels use of it, cores, libraries, caches."""
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from formats.host import Host

FEATURES = {"+avx2": "AVX2", "+avx512f": "AVX-512", "+avx512vnni": "VNNI", "+avxvnni": "AVX-VNNI", "+avx512bf16": "bf16",
            "+neon": "NEON", "+sve": "SVE", "+dotprod": "dot products", "+i8mm": "int8 matrices", "+bf16": "bf16"}


class Pool(NamedTuple):
    """A library with threads of its own."""

    library: str
    version: str
    architecture: str
    threads: int


@dataclass(frozen=True)
class Facts:
    """All that is looked at. `features`: what kernels use; `matrix`: whether this process may use matrix registers; `cache`: where
    calibration and kernels are kept, `calibrated` and `kernels` what of it is of these sources."""

    host: Host = field(default_factory=Host)
    environment: Mapping[str, str] = field(default_factory=dict)
    processor: str = ""
    features: tuple[str, ...] = ()
    matrix: bool = False
    threads: int = 1
    pools: tuple[Pool, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    providers: Mapping[str, str] = field(default_factory=dict)
    cache: Path = Path()
    writable: bool = True
    calibrated: bool = True
    kernels: int = 0


def examined(environment: Mapping[str, str] = os.environ) -> Facts:
    """This process's facts."""
    from formats.kernels.amx import MATRIX
    from formats.kernels.native import FEATURES as FOUND
    from formats.machine import cpu
    from formats.threads import threads
    names = tuple(dict.fromkeys(name for feature, name in FEATURES.items() if feature in FOUND.split(",")))
    cache, writable, calibrated, kernels = kept()
    return Facts(Host.here(), environment, cpu(), (*names, *(["AMX"] if MATRIX else [])), MATRIX, threads(), tuple(pools()), versions(),
                 providers(), cache, writable, calibrated, kernels)


def kept() -> tuple[Path, bool, bool, int]:
    """The cache, whether it can be written, whether a calibration of this machine is in it, how many kernels of these sources."""
    from formats.cache import cache_directory
    from formats.kernels.objects import home
    from formats.machine import Machine, NotThisMachine, machine_file
    try: cache, file = cache_directory(), machine_file()
    except OSError as error: return Path(error.filename or "cache"), False, False, 0
    calibrated = False
    with suppress(NotThisMachine): calibrated = bool(Machine.load(file))
    return cache, os.access(cache, os.W_OK), calibrated, sum(1 for _ in home().glob("*.o"))


def pools() -> Iterator[Pool]:
    """The BLAS libraries that are loaded."""
    import numpy  # noqa: F401
    from threadpoolctl import threadpool_info
    for each in threadpool_info():
        if each["user_api"] == "blas":
            yield Pool(each["internal_api"], each.get("version") or "", each.get("architecture") or "", each["num_threads"])


def versions() -> dict[str, str]:
    """Of Python, of the system, and of what makes code."""
    from rewrites.results import installed
    names = "opmatrix", "numpy", "scipy", "numba", "llvmlite", "egglog"
    return {"python": platform.python_version(), **{name: installed(name) for name in names}, "system": platform.platform()}


def providers() -> dict[str, str]:
    """Other libraries that programs could multiply with, none of them imported."""
    from rewrites.results import installed
    found = {name: installed(name) for name in ("torch", "mkl", "sparse-dot-mkl")}
    return found | {"CUDA": cuda()}


def cuda() -> str:
    """How many devices the driver tells."""
    import ctypes
    try: driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    except OSError: return "no driver"
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return f"{count.value} devices" if not failed else "a driver, no devices"
