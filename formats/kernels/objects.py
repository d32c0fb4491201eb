"""Object code of kernels: files in the user's cache, named by all that they depend on, and loaded by LLVM alone.

A file is named like the one symbol that it defines. After the code come a line of names that only raising needs, and a checksum:
what is damaged is compiled again."""
import ctypes
import hashlib
import os
import platform
import re
import sys
import tempfile
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..cache import Distrusted, guarded, location, made, put, recall, say, unkept
from ..errors import InputError
from ..holdings import CODE, KINDS, bound, using
from . import digest
from .native import FEATURES, NAME, llvm

# what code only needs where a kernel raises, which none does, and what numba makes of that
RAISING = "Py", "_Py", "NRT_", "numba_gil_", "numba_do_raise", "numba_unpickle", "numba_runtime_"
ELSEWHERE = "NUMBA_NUM_THREADS", "NUMBA_CACHE_DIR"           # settings that no code depends on
KEPT = "compiled kernels"
CODES = re.compile(r".+\.o")
NAMES = re.compile(r"\w+(-[0-9a-f]{16})?")                   # of symbols, and so of files
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
    """Where object code of these sources and this processor is kept."""
    return location() / "kernels" / key()


@cache
def spare() -> tempfile.TemporaryDirectory[str]:
    """A directory of this process, where the cache cannot be used."""
    return tempfile.TemporaryDirectory(prefix="opmatrix-kernels-")


def target() -> Path:
    """Where new code is put: the cache, or, where that cannot be used, which is said, a spare directory."""
    try:
        hold(directory := guarded(made(home())))
        return directory
    except (OSError, InputError) as error:
        unkept(KEPT, home(), error)
        return Path(spare().name)


@cache
def hold(directory: Path) -> None:
    """This process uses its directory of the cache from now on. Raises OSError, and Distrusted."""
    using(directory)


def tidy() -> None:
    """After something was compiled: the cache keeps the code of few keys, and few functions that users declared."""
    bound(home().parent, KINDS["kernels"])
    bound(home(), CODE)


def file(directory: Path, name: str) -> Path:
    """The file of a symbol. ValueError for a name that could lead out of the directory."""
    if not NAMES.fullmatch(name): raise ValueError(f"{name[:80]!r}: a kernel is named by letters, digits and _")
    return directory / f"{name}.o"


def read(name: str) -> bytes:
    """The content of the file of this name; nothing unless it is there and whole. What others could have written is not read from the
    cache, which is said, and an error in a spare directory."""
    if spare.cache_info().currsize and (found := whole(file(Path(spare().name), name))): return found
    try: directory = guarded(home())
    except (OSError, Distrusted): return b""                 # which is said when something is to be kept there
    try: found = whole(file(directory, name))
    except Distrusted as error: say(f"compiled again: {error}")
    else:
        with suppress(OSError, InputError):
            if found: hold(directory)
        return found
    return b""


def whole(place: Path) -> bytes:
    """The code in a file; nothing where there is none or it is damaged. Raises Distrusted."""
    try: content = recall(place)
    except Distrusted: raise
    except InputError: return b""
    return content[:-SIZE] if content[-SIZE:] == checksum(content[:-SIZE]) else b""


def write(directory: Path, name: str, code: bytes, absent: list[str]) -> None:
    """Keep code that may lack these names, which only raising needs: the file is there whole or not at all. OSError, Distrusted."""
    content = code + b"\n" + " ".join(absent).encode()
    put(file(directory, name), content + checksum(content))


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
