"""Object code of kernels: files in the user's cache, named by all that they depend on. They are loaded by this package
where their features are supported (elf.py), by LLVM elsewhere.

A file is named like the one symbol that it defines, which has a digest of the sources that it was made from. Behind the
code are a line of names that only raising needs, and a checksum: damaged code is compiled again."""

import ctypes
import hashlib
import os
import platform
import re
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from formats.core.errors import InputError
from formats.disk.cache import Distrusted, Unreadable, guarded, location, make_directory, put, recall, say, unkept
from formats.disk.holdings import CODE, ENTRY_KINDS, TERM_CODE, evict_oldest, list_entries, using
from formats.kernels.engine import elf
from formats.kernels.engine.processor import FEATURES, NAME, release

if TYPE_CHECKING:
    import tempfile

    import llvmlite.binding as llvm

# prefixes of names that code needs only to raise, which no kernel does, and of numba's code for that
RAISING = "Py", "_Py", "NRT_", "numba_gil_", "numba_do_raise", "numba_unpickle", "numba_runtime_"
IGNORED_SETTINGS = "NUMBA_NUM_THREADS", "NUMBA_CACHE_DIR"  # settings that no code depends on
KEPT_CONTENT = "compiled kernels"
CODES = re.compile(r".+\.o")
SYMBOL = re.compile(r"\w+(-[0-9a-f]{16})?")  # names of symbols, and so of files
SIZE = 16  # bytes of a checksum
BASIC = "memcpy", "memmove", "memset", "memcmp"  # functions of C that a compiler calls by itself
LOADED: dict[str, int] = {}  # addresses by name


@cache
def key() -> str:
    """Return a digest of all that object code depends on beside sources: processor, compiler versions, compiler
    settings. For Python that is its bytecode, which is the same for all builds of a version."""
    settings = sorted(
        (name, value)
        for name, value in os.environ.items()
        if name.startswith("NUMBA_") and name not in IGNORED_SETTINGS
    )
    parts = (
        NAME,
        FEATURES,
        release("numba"),
        release("llvmlite"),
        sys.implementation.cache_tag,
        sys.platform,
        platform.machine(),
        settings,
    )
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def home() -> Path:
    """Return the directory of object code for this processor."""
    return location() / "kernels" / key()


@cache
def spare() -> "tempfile.TemporaryDirectory[str]":
    """Make a directory of this process, for use where the cache cannot be used."""
    import tempfile

    return tempfile.TemporaryDirectory(prefix="opmatrix-kernels-")


def target() -> Path:
    """Return the directory for new code: the cache, or, where that cannot be used, which is reported, a spare
    directory."""
    try:
        hold(directory := guarded(make_directory(home())))
        return directory
    except (OSError, InputError) as error:
        unkept(KEPT_CONTENT, home(), error)
        return Path(spare().name)


def is_spare(directory: Path) -> bool:
    """True if a directory is the spare one of this process, which is removed with it."""
    return spare.cache_info().currsize > 0 and directory == Path(spare().name)


def has_others() -> bool:
    """True if the cache holds kernels under other keys, and none under this one."""
    return not list_entries(home(), CODES) and bool(list_entries(home().parent, ENTRY_KINDS["kernels"].names))


def clear_spare() -> None:
    """Remove the spare directory, once its code has been loaded: a process that is killed leaves none."""
    if spare.cache_info().currsize:
        spare().cleanup()
        spare.cache_clear()


@cache
def hold(directory: Path) -> None:
    """Mark a directory of the cache as used by this process from now on. Raise OSError, and Distrusted."""
    using(directory)


def tidy() -> None:
    """Evict old code after a compilation: the cache keeps the code of few keys, and of few functions that users
    declared or that were made from terms."""
    evict_oldest(home().parent, ENTRY_KINDS["kernels"])
    evict_oldest(home(), CODE)
    evict_oldest(home(), TERM_CODE)


def file(directory: Path, name: str) -> Path:
    """Return the file of a symbol. ValueError for a name that could lead out of the directory."""
    if not SYMBOL.fullmatch(name):
        raise ValueError(f"{name[:80]!r}: a kernel is named by letters, digits and _")
    return directory / f"{name}.o"


def lock_file(directory: Path, name: str) -> Path:
    """Return the file that is locked while a process compiles this symbol."""
    return file(directory, name).with_name(f".{name}.lock")


def read_code(name: str) -> bytes:
    """Return the content of the file of this name; empty unless it is there and complete. A file that others could have
    written, or that this user may not read, is reported and not read from the cache; in a spare directory it is an
    error."""
    if spare.cache_info().currsize and (code := read_intact(file(Path(spare().name), name))):
        return code
    try:
        directory = guarded(home())
    except (OSError, Distrusted):
        return b""  # reported when code is to be stored there
    try:
        code = read_intact(file(directory, name))
    except (Distrusted, Unreadable) as error:
        say(f"compiled again: {error}")
    else:
        with suppress(OSError, InputError):
            if code:
                hold(directory)
        return code
    return b""


def read_intact(place: Path) -> bytes:
    """Return the code in a file; empty where there is none or it is damaged. Raise Distrusted, Unreadable."""
    try:
        content = recall(place)
    except (Distrusted, Unreadable):
        raise
    except InputError:
        return b""
    return content[:-SIZE] if content[-SIZE:] == checksum(content[:-SIZE]) else b""


def write_code(directory: Path, name: str, code: bytes, absent: list[str]) -> None:
    """Store code that may lack these names, which only raising needs: the file is written completely or not at all.
    OSError, Distrusted."""
    content = code + b"\n" + " ".join(absent).encode()
    put(file(directory, name), content + checksum(content))


def checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=SIZE).digest()


def load_function(name: str) -> int:
    """Return the address of the function of this name, 0 if it is not there."""
    if name not in LOADED and (content := read_code(name)):
        code, _, absent = content.rpartition(b"\n")
        try:
            LOADED[name] = load_code(name, code, absent.decode("ascii", "replace").split())
        except InputError as error:
            say(f"compiled again: {file(home(), name)}: {error}")
    return LOADED.get(name, 0)


def load_code(name: str, code: bytes, absent: list[str]) -> int:
    """Load code into memory and return the address of its function. Raise InputError for damaged code."""
    outside = {symbol: find_c_function(symbol) for symbol in BASIC} | dict.fromkeys(absent, find_c_function("abort"))
    if elf.HERE:
        with suppress(elf.Foreign):
            return elf.load_object(code, name, outside)
    import llvmlite.binding as llvm

    for symbol in absent:
        if llvm.address_of_symbol(symbol) is None:
            llvm.add_symbol(symbol, find_c_function("abort"))
    linker().add_object_file(llvm.ObjectFileRef.from_data(code))
    linker().finalize_object()
    return int(linker().get_function_address(name))


@cache
def linker() -> "llvm.ExecutionEngine":
    """Make the linker of LLVM, whose code lasts as long as the process."""
    import llvmlite.binding as llvm

    with suppress(RuntimeError):
        llvm.initialize()  # newer versions raise, as they need it no more
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


@cache
def find_c_function(name: str) -> int:
    """Return the address of a function of the C library."""
    library = ctypes.CDLL(None if os.name == "posix" else "msvcrt")
    return int(ctypes.cast(library[name], ctypes.c_void_p).value or 0)
