"""What the command line puts into the environment before numpy is imported, which nothing here imports: one pool of
threads, and the kernels of numpy's BLAS that `opmatrix calibrate` found fastest on this processor."""
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

MAX_KEPT_BYTES = 1 << 16                                     # bytes of what is kept


def prepare(environment: MutableMapping[str, str] = os.environ) -> None:
    """Sets what the user has not set."""
    for name, value in (command_line_environment() | blas()).items(): environment.setdefault(name, value)


def blas() -> dict[str, str]:
    """What a calibration of this very processor keeps; nothing where there is none, where it cannot be read, or where
    others could have written it."""
    try: kept = parse_json(cache.recall(file(), MAX_KEPT_BYTES), str(file()))
    except InputError: return {}
    core = kept.get("core") if isinstance(kept, dict) and kept.get("processor") == processor() else None
    return {CORE_VARIABLE: core} if isinstance(core, str) and any(core in cores for cores in CORES.values()) else {}


def remember(core: str, rates: dict[str, float]) -> bool:
    """Keeps the fastest setting ("": the library's own choice) for later commands; whether it could be kept, which is
    said where it could not."""
    kept = {"processor": processor(), "core": core, "rates": rates}
    return try_put(file(), json.dumps(kept, indent=1).encode(), "the setting of BLAS")


def file() -> Path:
    """Where it is kept."""
    return cache.location() / "machines" / "blas.json"


def processor() -> str:
    """A name for what this processor can do: kernels for another one might not run at all."""
    try: lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError: lines = [platform.processor(), platform.machine()]
    telling = sorted({line for line in lines
                      if not line.startswith(("cpu MHz", "processor", "bogomips", "BogoMIPS", "apicid",
                                                                    "initial apicid", "core id", "physical id"))})
    return hashlib.blake2b("\n".join(telling).encode(), digest_size=8).hexdigest()
