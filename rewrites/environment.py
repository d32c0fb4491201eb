"""What the command line puts into the environment before numpy is imported, so nothing here imports it: one pool of threads,
and the kernels of numpy's BLAS that `opmatrix calibrate` found fastest on this processor."""
import hashlib
import json
import os
import platform
from collections.abc import MutableMapping
from pathlib import Path

POOLS = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_THREAD_TIMEOUT": "4"}     # docs/architecture.md
CORE = "OPENBLAS_CORETYPE"


def prepare(environment: MutableMapping[str, str] = os.environ) -> None:
    """Sets what the user has not set."""
    for name, value in (POOLS | blas()).items(): environment.setdefault(name, value)


def blas() -> dict[str, str]:
    """What a calibration of this very processor keeps; nothing where there is none, or where it cannot be read."""
    try: kept = json.loads(file().read_text())
    except (OSError, ValueError): return {}
    core = kept.get("core") if isinstance(kept, dict) and kept.get("processor") == processor() else None
    return {CORE: core} if isinstance(core, str) and core.isalnum() else {}


def remember(core: str, rates: dict[str, float]) -> Path:
    """Keeps the fastest setting ("": the library's own choice) for later commands; the file."""
    target = file()
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps({"processor": processor(), "core": core, "rates": rates}, indent=1))
    fresh.replace(target)
    return target


def file() -> Path:
    """Where it is kept: in formats.cache's directory, which cannot be asked here."""
    if not (named := os.environ.get("OPMATRIX_CACHE")):
        from platformdirs import user_cache_dir
        named = user_cache_dir("opmatrix", appauthor=False)
    return Path(named).expanduser() / "machines" / "blas.json"


def processor() -> str:
    """A name for what this processor can do: kernels for another one might not run at all."""
    try: lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError: lines = [platform.processor(), platform.machine()]
    telling = sorted({line for line in lines if not line.startswith(("cpu MHz", "processor", "bogomips", "BogoMIPS", "apicid",
                                                                    "initial apicid", "core id", "physical id"))})
    return hashlib.blake2b("\n".join(telling).encode(), digest_size=8).hexdigest()
