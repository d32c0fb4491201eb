"""numba and LLVM for the one process that compiles (compiler.py). In every other their names mean Nothing, so that kernels are
declared for free, and only their object code runs."""
import os
import platform
import sys
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm

COMPILES = "OPMATRIX_COMPILES" in os.environ
UNSOUND = "corei7-avx", "core-avx-i", "sandybridge", "ivybridge", "nocona"      # numba leaves their avx alone


class Inert(type):
    """Any attribute and any call of its classes is Nothing."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"): raise AttributeError(name)
        return Nothing

    def __call__(cls, *arguments: Any, **options: Any) -> Any: return Nothing


class Nothing(metaclass=Inert):
    """In place of what only the process that compiles has."""


if TYPE_CHECKING or COMPILES:
    from llvmlite import ir
    from numba import carray, cfunc, njit, types
    from numba.core import cgutils
    from numba.core.cgutils import get_or_insert_function
    from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
    from numba.extending import intrinsic, lower_builtin, models, register_model
else:
    ir = carray = cfunc = njit = types = cgutils = get_or_insert_function = Nothing
    ConcreteTemplate = infer_global = signature = intrinsic = lower_builtin = models = register_model = Nothing

__all__ = ["COMPILES", "FEATURES", "NAME", "ConcreteTemplate", "Nothing", "carray", "cfunc", "cgutils", "get_or_insert_function",
           "infer_global", "intrinsic", "ir", "llvm", "lower_builtin", "models", "njit", "register_model", "signature", "types"]


def avx(name: str) -> bool:
    """Whether AVX is used where there is some: as numba decides."""
    if chosen := os.environ.get("NUMBA_ENABLE_AVX"): return bool(int(chosen))
    return name not in UNSOUND and system_avx()


def system_avx() -> bool:
    """Whether the system keeps the registers of AVX: old kernels of Linux do not."""
    if not sys.platform.startswith("linux") or platform.machine() not in ("i386", "i586", "i686", "x86_64"): return True
    try: lines = open("/proc/cpuinfo")
    except OSError: return True
    with lines: return any(line.startswith("flags") and "avx" in line.split() for line in lines)


def processor() -> tuple[str, str]:
    """(name, features) of the processor that code is made for: NUMBA_CPU_NAME and NUMBA_CPU_FEATURES, otherwise this one's."""
    name, features = (os.environ.get(f"NUMBA_CPU_{each}") for each in ("NAME", "FEATURES"))
    if features is None and (name or "").lower() == "generic": features = ""
    if features is None:
        try: found = llvm.get_host_cpu_features()
        except RuntimeError: return name or llvm.get_host_cpu_name(), ""
        if not avx(name or llvm.get_host_cpu_name()): found |= {each: False for each in found if each.startswith("avx")}
        features = type(found)(found).flatten()
    return llvm.get_host_cpu_name() if name is None else name, features


NAME, FEATURES = processor()
