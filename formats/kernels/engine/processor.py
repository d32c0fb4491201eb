"""The processor that code is made for, in LLVM's names. LLVM takes longer to load than most programs to run: its answer
is stored in the user's cache, under the system's full description of the processor."""

import hashlib
import os
import platform
import re
import sys
from contextlib import suppress
from pathlib import Path

from formats.core.errors import InputError
from formats.disk.cache import location, put, recall
from formats.disk.holdings import ENTRY_KINDS, evict_oldest
from formats.host.host import cpuinfo
from formats.host.switches import switched_off, without

UNSOUND = "corei7-avx", "core-avx-i", "sandybridge", "ivybridge", "nocona"  # numba does not use AVX on these
SAID = re.compile(r"([\w.-]+) ((?:[+-][\w.-]+,?)+) (\w+)")  # a name, features, and a digest of both
# the lines of /proc/cpuinfo that identify a processor
TELLING = "vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags"


def avx(name: str) -> bool:
    """True if AVX is used where the processor has it: as numba decides."""
    if chosen := os.environ.get("NUMBA_ENABLE_AVX"):
        return bool(int(chosen))
    return name not in UNSOUND and system_avx()


def system_avx() -> bool:
    """True if the system saves the registers of AVX: old kernels of Linux do not."""
    if not sys.platform.startswith("linux") or platform.machine() not in ("i386", "i586", "i686", "x86_64"):
        return True
    return not (fields := cpuinfo()) or "avx" in fields.get("flags", "").split()


def hash_words(*words: object) -> str:
    return hashlib.blake2b(repr(words).encode(), digest_size=8).hexdigest()


def release(package: str) -> bytes:
    """Return bytes that identify the version of a package, without importing it: importlib.metadata takes as long as
    all else here."""
    from importlib.util import find_spec

    beside = Path((spec.origin if (spec := find_spec(package)) else None) or package)
    return next((file.read_bytes() for file in (beside.with_name("_version.py"), beside) if file.exists()), b"")


def asked() -> tuple[str, str]:
    """Read (name, features) of this processor from LLVM. RuntimeError where it knows no features."""
    import llvmlite.binding as llvm

    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def remembered() -> tuple[str, str]:
    """Return name and features from the cache, where they are there, complete, and of this processor; from LLVM
    otherwise."""
    if not {"vendor_id", "flags"} <= (fields := cpuinfo()).keys():
        return asked()
    file = location() / "processors" / f"{hash_words(release('llvmlite'), [fields.get(line) for line in TELLING])}.txt"
    with suppress(InputError, UnicodeDecodeError):
        if (match := SAID.fullmatch(recall(file).decode())) and match[3] == hash_words(match[1], match[2]):
            return match[1], match[2]
    name, features = asked()
    with suppress(OSError, InputError):  # an unusable cache is reported for kernels
        put(file, f"{name} {features} {hash_words(name, features)}".encode())
        evict_oldest(file.parent, ENTRY_KINDS[file.parent.name])
    return name, features


def processor() -> tuple[str, str]:
    """Return (name, features) of the processor that code is made for: NUMBA_CPU_NAME and NUMBA_CPU_FEATURES, otherwise
    those of this one."""
    name, features = (os.environ.get(f"NUMBA_CPU_{part}") for part in ("NAME", "FEATURES"))
    if features is None and (name or "").lower() == "generic":
        features = ""
    if name is not None and features is not None:
        return name, features
    try:
        here, detected = remembered()
    except RuntimeError:
        import llvmlite.binding as llvm

        here, detected = llvm.get_host_cpu_name(), ""
    if not avx(name or here):
        detected = re.sub(r"[+](?=avx)", "-", detected)
    return here if name is None else name, detected if features is None else features


NAME, FEATURES = processor()
FEATURES = without(FEATURES, switched_off())
