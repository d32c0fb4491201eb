"""The facts of this machine that matter to programs: the processor and the features that kernels use, cores, libraries,
caches."""

import errno
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from formats.host.host import Host

if TYPE_CHECKING:
    from formats.disk.holdings import CacheEntry

FEATURES = {
    "+avx2": "AVX2",
    "+avx512f": "AVX-512",
    "+avx512vnni": "VNNI",
    "+avxvnni": "AVX-VNNI",
    "+avx512bf16": "bf16",
    "+neon": "NEON",
    "+sve": "SVE",
    "+dotprod": "dot products",
    "+i8mm": "int8 matrices",
    "+bf16": "bf16",
}


class Library(NamedTuple):
    """A library with threads of its own."""

    library: str
    version: str
    architecture: str
    threads: int


@dataclass(frozen=True)
class Facts:
    """All facts that are examined."""

    host: Host = field(default_factory=Host)
    environment: Mapping[str, str] = field(default_factory=dict)
    processor: str = ""
    features: tuple[str, ...] = ()  # processor features that kernels use
    matrix: bool = False  # this process may use matrix registers
    threads: int = 1
    pools: tuple[Library, ...] = ()  # libraries with threads of their own
    versions: Mapping[str, str] = field(default_factory=dict)
    providers: Mapping[str, str] = field(default_factory=dict)  # other libraries that programs could use
    cache: Path = Path()  # directory of calibration and kernels
    unkept: str = ""  # why that directory cannot be written
    distrusted: bool = False  # true if so because other users may write there
    calibrated: bool = True  # a calibration of these sources is there
    kernels: int = 0  # kernels of these sources there
    holds: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # kind -> (entries, bytes)


def examined(environment: Mapping[str, str] = os.environ) -> Facts:
    """Return the facts of this process."""
    from formats.host.host import cpu
    from formats.host.threads import threads
    from formats.kernels.engine.native import FEATURES as FOUND
    from formats.kernels.simd.amx import MATRIX

    names = tuple(dict.fromkeys(name for feature, name in FEATURES.items() if feature in FOUND.split(",")))
    return Facts(
        Host.here(),
        environment,
        cpu(),
        (*names, *(["AMX"] if MATRIX else [])),
        MATRIX,
        threads(),
        tuple(pools()),
        versions(),
        providers(),
        **examine_cache(),
    )


def examine_cache() -> dict[str, Any]:
    """Return the facts of the cache."""
    from formats.disk.cache import Distrusted, guarded, location, make_directory, why
    from formats.disk.holdings import holdings, list_entries
    from formats.kernels.engine.objects import CODES, home
    from formats.machine.model import Machine, NotThisMachine, machine_file
    from opmatrix.files.fetch import MODELS
    from opmatrix.runtime.pricing import catalogue

    unkept, distrusted, calibrated = "", False, False
    try:
        place = guarded(make_directory(location()))
        if not os.access(place, os.W_OK):
            unkept = why(place, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    except (OSError, Distrusted) as error:
        unkept, distrusted = why(location(), error), isinstance(error, Distrusted)
    with suppress(NotThisMachine):
        calibrated = bool(Machine.load(machine_file(), catalogue()))
    return {
        "cache": location(),
        "unkept": unkept,
        "distrusted": distrusted,
        "calibrated": calibrated,
        "kernels": len(list_entries(home(), CODES)),
        "holds": holdings(MODELS),
    }


def cleaned() -> "list[CacheEntry]":
    """Remove from the cache the entries that the installed version does not use, and return them. Raises InputError
    if other users could have written to the cache (`Distrusted`), and if there is none."""
    from formats.core.errors import InputError
    from formats.disk.cache import location, why
    from formats.disk.holdings import clean
    from formats.kernels.engine.objects import key
    from formats.machine.model import current

    try:
        return clean(key(), current)
    except OSError as error:
        raise InputError(why(location(), error)) from error


def pools() -> Iterator[Library]:
    """Yield the loaded BLAS libraries."""
    import numpy  # noqa: F401
    from threadpoolctl import threadpool_info

    for pool in threadpool_info():
        if pool["user_api"] == "blas":
            yield Library(
                pool["internal_api"], pool.get("version") or "", pool.get("architecture") or "", pool["num_threads"]
            )


def versions() -> dict[str, str]:
    """Return the versions of Python, of the system, and of the libraries that make code."""
    from rewrites.report.installed import installed

    names = "opmatrix", "numpy", "scipy", "numba", "llvmlite", "egglog"
    return {
        "python": platform.python_version(),
        **{name: installed(name) for name in names},
        "system": platform.platform(),
    }


def providers() -> dict[str, str]:
    """Return the versions of other libraries that programs could multiply with. None of them is imported."""
    from rewrites.report.installed import installed

    installed_versions = {name: installed(name) for name in ("torch", "mkl", "sparse-dot-mkl")}
    return installed_versions | {"CUDA": cuda()}


def cuda() -> str:
    """Describe the number of devices that the CUDA driver reports."""
    import ctypes

    try:
        driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    except OSError:
        return "no driver"
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return f"{count.value} devices" if not failed else "a driver, no devices"
