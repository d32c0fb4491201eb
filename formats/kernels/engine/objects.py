"""Object code of kernels: files in the user's cache, named by all that they depend on, and brought into memory by
ourselves where that is known (elf.py), by LLVM elsewhere.

A file is named like the one symbol that it defines, which says the sources that it was made from. After the code come a
line of names that only raising needs, and a checksum: what is damaged is compiled again."""
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

# what code only needs where a kernel raises, which none does, and what numba makes of that
RAISING = "Py", "_Py", "NRT_", "numba_gil_", "numba_do_raise", "numba_unpickle", "numba_runtime_"
IGNORED_SETTINGS = "NUMBA_NUM_THREADS", "NUMBA_CACHE_DIR"    # settings that no code depends on
KEPT_CONTENT = "compiled kernels"
CODES = re.compile(r".+\.o")
SYMBOL = re.compile(r"\w+(-[0-9a-f]{16})?")                  # of symbols, and so of files
SIZE = 16                                                    # bytes of a checksum
BASIC = "memcpy", "memmove", "memset", "memcmp"              # of C's functions those that a compiler calls by itself
LOADED: dict[str, int] = {}                                  # addresses


@cache
def key() -> str:
    """A name for all that object code depends on beside sources: processor, who compiled it, how it was told to. Of
    Python that is its bytecode, which is the same for all builds of a version."""
    settings = sorted((name, value) for name, value in os.environ.items() if name.startswith("NUMBA_")
                      and name not in IGNORED_SETTINGS)
    parts = (NAME, FEATURES, release("numba"), release("llvmlite"), sys.implementation.cache_tag, sys.platform,
             platform.machine(), settings)
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def home() -> Path:
    """Where object code for this processor is kept."""
    return location() / "kernels" / key()


@cache
def spare() -> "tempfile.TemporaryDirectory[str]":
    """A directory of this process, where the cache cannot be used."""
    import tempfile
    return tempfile.TemporaryDirectory(prefix="opmatrix-kernels-")


def target() -> Path:
    """Where new code is put: the cache, or, where that cannot be used, which is said, a spare directory."""
    try:
        hold(directory := guarded(make_directory(home())))
        return directory
    except (OSError, InputError) as error:
        unkept(KEPT_CONTENT, home(), error)
        return Path(spare().name)


def is_spare(directory: Path) -> bool:
    """Whether a directory is the spare one of this process, which goes with it."""
    return spare.cache_info().currsize > 0 and directory == Path(spare().name)


def has_others() -> bool:
    """Whether the cache holds kernels under other keys, and none under this one."""
    return not list_entries(home(), CODES) and bool(list_entries(home().parent, ENTRY_KINDS["kernels"].names))


def clear_spare() -> None:
    """The spare directory goes, once what lies there has been loaded: a process that is killed leaves none."""
    if spare.cache_info().currsize:
        spare().cleanup()
        spare.cache_clear()


@cache
def hold(directory: Path) -> None:
    """This process uses its directory of the cache from now on. Raises OSError, and Distrusted."""
    using(directory)


def tidy() -> None:
    """After something was compiled: the cache keeps the code of few keys, and of few functions that users declared or
    terms became."""
    evict_oldest(home().parent, ENTRY_KINDS["kernels"])
    evict_oldest(home(), CODE)
    evict_oldest(home(), TERM_CODE)


def file(directory: Path, name: str) -> Path:
    """The file of a symbol. ValueError for a name that could lead out of the directory."""
    if not SYMBOL.fullmatch(name): raise ValueError(f"{name[:80]!r}: a kernel is named by letters, digits and _")
    return directory / f"{name}.o"


def lock_file(directory: Path, name: str) -> Path:
    """The file that says, while it is locked, that a process compiles this symbol."""
    return file(directory, name).with_name(f".{name}.lock")


def read_code(name: str) -> bytes:
    """The content of the file of this name; nothing unless it is there and whole. What others could have written, and
    what this user may not read, is not read from the cache, which is said, and an error in a spare directory."""
    if spare.cache_info().currsize and (found := read_intact(file(Path(spare().name), name))): return found
    try: directory = guarded(home())
    except (OSError, Distrusted): return b""                 # which is said when something is to be kept there
    try: found = read_intact(file(directory, name))
    except (Distrusted, Unreadable) as error: say(f"compiled again: {error}")
    else:
        with suppress(OSError, InputError):
            if found: hold(directory)
        return found
    return b""


def read_intact(place: Path) -> bytes:
    """The code in a file; nothing where there is none or it is damaged. Raises Distrusted, Unreadable."""
    try: content = recall(place)
    except (Distrusted, Unreadable): raise
    except InputError: return b""
    return content[:-SIZE] if content[-SIZE:] == checksum(content[:-SIZE]) else b""


def write_code(directory: Path, name: str, code: bytes, absent: list[str]) -> None:
    """Keep code that may lack these names, which only raising needs: the file is there whole or not at all. OSError,
    Distrusted."""
    content = code + b"\n" + " ".join(absent).encode()
    put(file(directory, name), content + checksum(content))


def checksum(content: bytes) -> bytes: return hashlib.blake2b(content, digest_size=SIZE).digest()


def load_function(name: str) -> int:
    """The address of the function of this name, 0 if it is not there."""
    if name not in LOADED and (content := read_code(name)):
        code, _, absent = content.rpartition(b"\n")
        try: LOADED[name] = load_code(name, code, absent.decode("ascii", "replace").split())
        except InputError as error: say(f"compiled again: {file(home(), name)}: {error}")
    return LOADED.get(name, 0)


def load_code(name: str, code: bytes, absent: list[str]) -> int:
    """The address of a function once its code is in memory. Raises InputError for what is damaged."""
    outside = {each: find_c_function(each) for each in BASIC} | dict.fromkeys(absent, find_c_function("abort"))
    if elf.HERE:
        with suppress(elf.Foreign): return elf.load_object(code, name, outside)
    import llvmlite.binding as llvm
    for each in absent:
        if llvm.address_of_symbol(each) is None: llvm.add_symbol(each, find_c_function("abort"))
    linker().add_object_file(llvm.ObjectFileRef.from_data(code))
    linker().finalize_object()
    return int(linker().get_function_address(name))


@cache
def linker() -> "llvm.ExecutionEngine":
    """LLVM's, whose code lasts as long as the process."""
    import llvmlite.binding as llvm
    with suppress(RuntimeError): llvm.initialize()           # newer versions need it no more, and say so
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


@cache
def find_c_function(name: str) -> int:
    """The address of a function of C's."""
    library = ctypes.CDLL(None if os.name == "posix" else "msvcrt")
    return int(ctypes.cast(library[name], ctypes.c_void_p).value or 0)
