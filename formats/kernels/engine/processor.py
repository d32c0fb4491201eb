"""The processor that code is made for, in LLVM's words. LLVM takes longer to load than most programs to run: what it
said is kept in the user's cache, under all that the system says of the processor."""
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

UNSOUND = "corei7-avx", "core-avx-i", "sandybridge", "ivybridge", "nocona"      # numba leaves their avx alone
SAID = re.compile(r"([\w.-]+) ((?:[+-][\w.-]+,?)+) (\w+)")   # a name, features, and a digest of both
# lines of /proc/cpuinfo
TELLING = "vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags"


def avx(name: str) -> bool:
    """Whether AVX is used where there is some: as numba decides."""
    if chosen := os.environ.get("NUMBA_ENABLE_AVX"): return bool(int(chosen))
    return name not in UNSOUND and system_avx()


def system_avx() -> bool:
    """Whether the system keeps the registers of AVX: old kernels of Linux do not."""
    if not sys.platform.startswith("linux") or platform.machine() not in ("i386", "i586", "i686", "x86_64"): return True
    return not (told := cpuinfo()) or "avx" in told.get("flags", "").split()


def hash_words(*words: object) -> str: return hashlib.blake2b(repr(words).encode(), digest_size=8).hexdigest()


def release(package: str) -> bytes:
    """What tells the version of a package, without importing it: importlib.metadata takes as long as all else here."""
    from importlib.util import find_spec
    beside = Path((spec.origin if (spec := find_spec(package)) else None) or package)
    return next((file.read_bytes() for file in (beside.with_name("_version.py"), beside) if file.exists()), b"")


def asked() -> tuple[str, str]:
    """(name, features) of this processor, by LLVM. RuntimeError where it knows no features."""
    import llvmlite.binding as llvm
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def remembered() -> tuple[str, str]:
    """Name and features, from the cache where they are there, whole, and of this processor."""
    if not {"vendor_id", "flags"} <= (told := cpuinfo()).keys(): return asked()
    file = location() / "processors" / f"{hash_words(release('llvmlite'), [told.get(each) for each in TELLING])}.txt"
    with suppress(InputError, UnicodeDecodeError):
        if (found := SAID.fullmatch(recall(file).decode())) and found[3] == hash_words(found[1], found[2]):
            return found[1], found[2]
    name, features = asked()
    with suppress(OSError, InputError):                      # that the cache cannot be used is said of kernels
        put(file, f"{name} {features} {hash_words(name, features)}".encode())
        evict_oldest(file.parent, ENTRY_KINDS[file.parent.name])
    return name, features


def processor() -> tuple[str, str]:
    """(name, features) of the processor that code is made for: NUMBA_CPU_NAME and NUMBA_CPU_FEATURES, otherwise this
    one's."""
    name, features = (os.environ.get(f"NUMBA_CPU_{each}") for each in ("NAME", "FEATURES"))
    if features is None and (name or "").lower() == "generic": features = ""
    if name is not None and features is not None: return name, features
    try: here, found = remembered()
    except RuntimeError:
        import llvmlite.binding as llvm
        here, found = llvm.get_host_cpu_name(), ""
    if not avx(name or here): found = re.sub(r"[+](?=avx)", "-", found)
    return here if name is None else name, found if features is None else features


NAME, FEATURES = processor()
FEATURES = without(FEATURES, switched_off())
