"""Object code of kernels: files in the user's cache, named by all that they depend on, and loaded by LLVM alone.

A file is named like the one symbol that it defines. After the code come a line of names that only raising needs, and a checksum:
what is damaged is compiled again."""
import ctypes
import hashlib
import os
import platform
import sys
import tempfile
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..cache import cache_directory
from . import digest
from .native import FEATURES, NAME, llvm

# what code only needs where a kernel raises, which none does, and what numba makes of that
RAISING = "Py", "_Py", "NRT_", "numba_gil_", "numba_do_raise", "numba_unpickle", "numba_runtime_"
ELSEWHERE = "NUMBA_NUM_THREADS", "NUMBA_CACHE_DIR"           # settings that no code depends on
SIZE = 16                                                    # bytes of a checksum
LOADED: dict[str, int] = {}                                  # addresses


@cache
def key() -> str:
    """A name for all that object code depends on: sources, processor, who compiled it, and how it was told to."""
    settings = sorted((name, value) for name, value in os.environ.items() if name.startswith("NUMBA_") and name not in ELSEWHERE)
    parts = (digest(), NAME, FEATURES, release("numba"), release("llvmlite"), sys.version, sys.platform, platform.machine(), settings)
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def release(package: str) -> bytes:
    """What tells the version of a package, without importing it: importlib.metadata takes as long as all else here."""
    beside = Path((spec.origin if (spec := find_spec(package)) else None) or package)
    return next((file.read_bytes() for file in (beside.with_name("_version.py"), beside) if file.exists()), b"")


def home() -> Path:
    """Where object code of these sources and this processor is kept. OSError where there can be no cache."""
    return cache_directory() / "kernels" / key()


@cache
def spare() -> tempfile.TemporaryDirectory[str]:
    """A directory of this process, where the cache cannot be written to."""
    return tempfile.TemporaryDirectory(prefix="opmatrix-kernels-")


def target() -> Path:
    """Where new code is put: the cache, or a spare directory."""
    with suppress(OSError):
        (directory := home()).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory): return directory
    return Path(spare().name)


def read(name: str) -> bytes:
    """The content of the file of this name; nothing unless it is there and whole."""
    places = [Path(spare().name)] if spare.cache_info().currsize else []
    with suppress(OSError): places.append(home())
    for place in places:
        with suppress(OSError):
            content = (place / f"{name}.o").read_bytes()
            if content[-SIZE:] == checksum(content[:-SIZE]): return content[:-SIZE]
    return b""


def write(directory: Path, name: str, code: bytes, absent: list[str]) -> None:
    """Keep code that may lack these names, which only raising needs: the file is there whole or not at all."""
    content = code + b"\n" + " ".join(absent).encode()
    part = directory / f"{name}.{os.getpid()}"
    part.write_bytes(content + checksum(content))
    os.replace(part, directory / f"{name}.o")


def checksum(content: bytes) -> bytes: return hashlib.blake2b(content, digest_size=SIZE).digest()


@cache
def linker() -> Any:
    """LLVM's, whose code lasts as long as the process."""
    with suppress(RuntimeError): llvm.initialize()           # newer versions need it no more, and say so
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


def load(name: str) -> int:
    """The address of the function of this name, 0 if it is not there."""
    if name not in LOADED and (content := read(name)):
        code, absent = content.rsplit(b"\n", 1)
        for each in absent.decode().split():
            if llvm.address_of_symbol(each) is None: llvm.add_symbol(each, abort())
        linker().add_object_file(llvm.ObjectFileRef.from_data(code))
        linker().finalize_object()
        LOADED[name] = int(linker().get_function_address(name))
    return LOADED.get(name, 0)


@cache
def abort() -> int:
    """The address of C's abort."""
    library = ctypes.CDLL(None if os.name == "posix" else "msvcrt")
    return int(ctypes.cast(library.abort, ctypes.c_void_p).value or 0)
