"""Which kernels numpy's BLAS is fastest with. OpenBLAS chooses by the processor's name, and may choose slower ones than
it has; it reads OPENBLAS_CORETYPE when it is loaded, so each is tried in a process of its own."""
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from formats.disk.own_python import child_of_python

CORES = {"x86_64": ("HASWELL", "ZEN", "SKYLAKEX", "COOPERLAKE", "SAPPHIRERAPIDS"),
         "aarch64": ("ARMV8", "CORTEXA72", "NEOVERSEN1", "NEOVERSEN2", "NEOVERSEV1"),
         "ppc64le": ("POWER8", "POWER9", "POWER10")}
SAME = {"amd64": "x86_64", "arm64": "aarch64"}
CORE_VARIABLE = "OPENBLAS_CORETYPE"
MARGIN = 1.03                                                # a setting must win by more than noise
TRIAL = """
import time
import numpy as np
cases = [(np.ones((t, n), kind), np.ones((n, p), kind)) for t, n, p, kind in
         ((128, 384, 1536, "f4"), (128, 1024, 1024, "f4"), (16, 1536, 384, "f4"), (256, 512, 512, "f8"))]
score = 1.0
for x, w in cases:
    out, taken = np.empty((len(x), w.shape[1]), x.dtype), []
    for _ in range(25):
        start = time.perf_counter()
        np.dot(x, w, out=out)
        taken.append(time.perf_counter() - start)
    score *= 2 * x.size * w.shape[1] / sorted(taken)[len(taken) // 4]
print(score ** (1 / len(cases)))
"""


@dataclass(frozen=True)
class Blas:
    """The fastest setting ("" is the library's own choice), and operations a second with each that runs here."""
    core: str = ""
    rates: dict[str, float] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """What must be set before numpy is imported."""
        return {CORE_VARIABLE: self.core} if self.core else {}


@cache
def adjustable() -> bool:
    """Whether numpy's BLAS is an OpenBLAS, which alone reads the variable."""
    from threadpoolctl import threadpool_info
    return any(found["internal_api"] == "openblas" for found in threadpool_info())


def rate(core: str, seconds: float = 20.0) -> float | None:
    """Operations a second of a few products on one thread; None where this processor cannot run those kernels."""
    import subprocess  # which few commands need
    child = child_of_python("-c", TRIAL, OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    child.environment.pop(CORE_VARIABLE, None)
    setting = {CORE_VARIABLE: core} if core else {}
    try:
        done = subprocess.run(child.command, capture_output=True, text=True, timeout=seconds,
                              env=child.environment | setting)
        return float(done.stdout) if done.returncode == 0 else None
    except (subprocess.TimeoutExpired, ValueError): return None


def fastest(progress: Callable[..., None] = lambda *_: None, rounds: int = 2) -> Blas:
    """Tries every setting for this kind of processor, in turn, so many rounds; the library's own choice stays unless
    another is clearly faster. Nothing is set: whoever starts a process may put `environment` into it."""
    machine = platform.machine().lower()
    tried = ["", *CORES.get(SAME.get(machine, machine), ())] if adjustable() else [""]
    found: dict[str, float] = {}
    for step in range(rounds * len(tried)):
        core = tried[step % len(tried)]
        if (step < len(tried) or core in found) and (got := rate(core)): found[core] = max(got, found.get(core, 0.0))
        progress(step + 1, rounds * len(tried))
    if not found: return Blas()
    best = max(found, key=lambda core: found[core])
    return Blas(best if found[best] > MARGIN * found.get("", 0.0) else "", found)
