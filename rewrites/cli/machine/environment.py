"""Environment variables that the command line sets before numpy is imported: one pool of threads, and the kernels of
numpy's BLAS that `opmatrix calibrate` found fastest on this processor. This module does not import numpy."""

import hashlib
import json
import os
import platform
from collections.abc import MutableMapping
from pathlib import Path

from formats.core.errors import InputError
from formats.disk import cache
from formats.disk.files import parse_json
from formats.disk.holdings import try_put
from formats.host.blas import CORE_VARIABLE, CORES
from formats.host.threads import command_line_environment

MAX_KEPT_BYTES = 1 << 16  # bytes of the saved file, at most


def prepare(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables that the user has not set."""
    for name, value in (command_line_environment() | blas()).items():
        environment.setdefault(name, value)


def blas() -> dict[str, str]:
    """Return the BLAS variable that a calibration of this very processor saved; empty if there is none, if it cannot be
    read, or if other users could have written it."""
    try:
        saved = parse_json(cache.recall(file(), MAX_KEPT_BYTES), str(file()))
    except InputError:
        return {}
    core = saved.get("core") if isinstance(saved, dict) and saved.get("processor") == processor() else None
    return {CORE_VARIABLE: core} if isinstance(core, str) and any(core in cores for cores in CORES.values()) else {}


def remember(core: str, rates: dict[str, float]) -> bool:
    """Save the fastest setting ("": the library's own choice) for later commands. Return whether it could be saved; a
    failure is reported."""
    settings = {"processor": processor(), "core": core, "rates": rates}
    return try_put(file(), json.dumps(settings, indent=1).encode(), "the setting of BLAS")


def file() -> Path:
    """Return the file of the saved setting."""
    return cache.location() / "machines" / "blas.json"


def processor() -> str:
    """Return an identifier of the processor's abilities: kernels for another one might not run at all."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = [platform.processor(), platform.machine()]
    telling = sorted(
        {
            line
            for line in lines
            if not line.startswith(
                ("cpu MHz", "processor", "bogomips", "BogoMIPS", "apicid", "initial apicid", "core id", "physical id")
            )
        }
    )
    return hashlib.blake2b("\n".join(telling).encode(), digest_size=8).hexdigest()
