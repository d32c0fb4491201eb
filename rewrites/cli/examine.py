"""What this machine has for programs: the processor and what kernels use of it, cores, libraries, caches."""
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

FEATURES = {"+avx2": "AVX2", "+avx512f": "AVX-512", "+avx512vnni": "VNNI", "+avxvnni": "AVX-VNNI",
            "+avx512bf16": "bf16",
            "+neon": "NEON", "+sve": "SVE", "+dotprod": "dot products", "+i8mm": "int8 matrices", "+bf16": "bf16"}


class Library(NamedTuple):
    """A library with threads of its own."""

    library: str
    version: str
    architecture: str
    threads: int


@dataclass(frozen=True)
class Facts:
    """All that is looked at. `features`: what kernels use; `matrix`: whether this process may use matrix registers;
    `cache`: where calibration and kernels are kept, `calibrated` and `kernels` what of it is of these sources, `holds`
    entries and bytes by kind; `unkept`: why nothing can be kept there, `distrusted`: whether that is because others may
    write there."""

    host: Host = field(default_factory=Host)
    environment: Mapping[str, str] = field(default_factory=dict)
    processor: str = ""
    features: tuple[str, ...] = ()
    matrix: bool = False
    threads: int = 1
    pools: tuple[Library, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    providers: Mapping[str, str] = field(default_factory=dict)
    cache: Path = Path()
    unkept: str = ""
    distrusted: bool = False
    calibrated: bool = True
    kernels: int = 0
    holds: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def examined(environment: Mapping[str, str] = os.environ) -> Facts:
    """This process's facts."""
    from formats.host.host import cpu
    from formats.host.threads import threads
    from formats.kernels.engine.native import FEATURES as FOUND
    from formats.kernels.simd.amx import MATRIX
    names = tuple(dict.fromkeys(name for feature, name in FEATURES.items() if feature in FOUND.split(",")))
    return Facts(Host.here(), environment, cpu(), (*names, *(["AMX"] if MATRIX else [])), MATRIX, threads(),
                 tuple(pools()), versions(),
                 providers(), **examine_cache())


def examine_cache() -> dict[str, Any]:
    """The facts of the cache."""
    from formats.disk.cache import Distrusted, guarded, location, make_directory, why
    from formats.disk.holdings import holdings, list_entries
    from formats.kernels.engine.objects import CODES, home
    from formats.machine.model import Machine, NotThisMachine, machine_file
    from opmatrix.files.fetch import MODELS
    from opmatrix.runtime.pricing import catalogue
    unkept, distrusted, calibrated = "", False, False
    try:
        place = guarded(make_directory(location()))
        if not os.access(place, os.W_OK): unkept = why(place, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    except (OSError, Distrusted) as error: unkept, distrusted = why(location(), error), isinstance(error, Distrusted)
    with suppress(NotThisMachine): calibrated = bool(Machine.load(machine_file(), catalogue()))
    return {"cache": location(), "unkept": unkept, "distrusted": distrusted, "calibrated": calibrated,
            "kernels": len(list_entries(home(), CODES)), "holds": holdings(MODELS)}


def cleaned() -> "list[CacheEntry]":
    """Removes from the cache what the installed version makes no use of: what went. Raises InputError where the cache
    is not ours."""
    from formats.core.errors import InputError
    from formats.disk.cache import location, why
    from formats.disk.holdings import clean
    from formats.kernels.engine.objects import key
    from formats.machine.model import current
    try: return clean(key(), current)
    except OSError as error: raise InputError(why(location(), error)) from error


def pools() -> Iterator[Library]:
    """The BLAS libraries that are loaded."""
    import numpy  # noqa: F401
    from threadpoolctl import threadpool_info
    for each in threadpool_info():
        if each["user_api"] == "blas":
            yield Library(each["internal_api"], each.get("version") or "", each.get("architecture") or "",
                       each["num_threads"])


def versions() -> dict[str, str]:
    """The versions of Python, of the system, and of what makes code."""
    from rewrites.report.results import installed
    names = "opmatrix", "numpy", "scipy", "numba", "llvmlite", "egglog"
    return {"python": platform.python_version(), **{name: installed(name) for name in names},
            "system": platform.platform()}


def providers() -> dict[str, str]:
    """Other libraries that programs could multiply with, none of them imported."""
    from rewrites.report.results import installed
    found = {name: installed(name) for name in ("torch", "mkl", "sparse-dot-mkl")}
    return found | {"CUDA": cuda()}


def cuda() -> str:
    """How many devices the driver tells."""
    import ctypes
    try: driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    except OSError: return "no driver"
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return f"{count.value} devices" if not failed else "a driver, no devices"
