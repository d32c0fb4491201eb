"""The choice of kernels in numpy's BLAS. OpenBLAS chooses by the processor's name, and may choose slower kernels than
it has; it reads OPENBLAS_CORETYPE when it is loaded, so each setting is tried in a process of its own."""

import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from formats.disk.own_python import child_of_python

CORES = {
    "x86_64": ("HASWELL", "ZEN", "SKYLAKEX", "COOPERLAKE", "SAPPHIRERAPIDS"),
    "aarch64": ("ARMV8", "CORTEXA72", "NEOVERSEN1", "NEOVERSEN2", "NEOVERSEV1"),
    "ppc64le": ("POWER8", "POWER9", "POWER10"),
}
SAME = {"amd64": "x86_64", "arm64": "aarch64"}
CORE_VARIABLE = "OPENBLAS_CORETYPE"
MARGIN = 1.03  # a setting must win by more than noise
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
    """The fastest setting ("" is the library's own choice), and operations a second with each setting that runs
    here."""

    core: str = ""
    rates: dict[str, float] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The variables to set before numpy is imported."""
        return {CORE_VARIABLE: self.core} if self.core else {}


@cache
def adjustable() -> bool:
    """True if numpy's BLAS is an OpenBLAS, which alone reads the variable."""
    from threadpoolctl import threadpool_info

    return any(library["internal_api"] == "openblas" for library in threadpool_info())


def rate(core: str, seconds: float = 20.0) -> float | None:
    """Measure the operations a second of a few products on one thread; None where this processor cannot run those
    kernels."""
    import subprocess  # imported here, as few commands need it

    child = child_of_python("-c", TRIAL, OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    child.environment.pop(CORE_VARIABLE, None)
    setting = {CORE_VARIABLE: core} if core else {}
    try:
        done = subprocess.run(
            child.command, capture_output=True, text=True, timeout=seconds, env=child.environment | setting
        )
        return float(done.stdout) if done.returncode == 0 else None
    except (subprocess.TimeoutExpired, ValueError):
        return None


def fastest(progress: Callable[..., None] = lambda *_: None, rounds: int = 2) -> Blas:
    """Try every setting for this kind of processor, in turn, `rounds` times. The library's own choice stays unless
    another is clearly faster. The environment is not changed: a caller that starts a process may put `environment` into
    it."""
    machine = platform.machine().lower()
    tried = ["", *CORES.get(SAME.get(machine, machine), ())] if adjustable() else [""]
    rates: dict[str, float] = {}
    for step in range(rounds * len(tried)):
        core = tried[step % len(tried)]
        if (step < len(tried) or core in rates) and (speed := rate(core)):
            rates[core] = max(speed, rates.get(core, 0.0))
        progress(step + 1, rounds * len(tried))
    if not rates:
        return Blas()
    best = max(rates, key=lambda core: rates[core])
    return Blas(best if rates[best] > MARGIN * rates.get("", 0.0) else "", rates)
