"""C functions written in Python: found in a cache of object code when first needed, or compiled by other processes,
several at once (compiler.py)."""

import ctypes
import hashlib
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar, copy_context
from functools import cached_property
from threading import RLock
from typing import Any, Self, TypeVar

from formats.kernels.engine import objects
from formats.kernels.engine.frozen import closure, sources
from formats.kernels.engine.native import Context, Intrinsic, Signature, Typing, Values, cgutils, intrinsic, ir, types

FUNCTIONS: dict[str, "Function"] = {}
FAST = {"contract", "reassoc", "nsz", "arcp"}  # sums in any order; infinities and NaN keep their meaning
OPTIONS: dict[str, Any] = dict(boundscheck=False, error_model="numpy")
HELPER = OPTIONS | dict(no_cpython_wrapper=True, no_cfunc_wrapper=True, no_rewrites=True)  # not for Python to call
WRITTEN_BY = "formats.kernels.llvm.text_code"
HOME = __package__.rpartition(".")[0]  # the package of all kernels
# modules that most other kernels need
COMMON = "rows.activations", "rows.following", "matmul.gemm", "matmul.linear", "engine.pool"
COMPILING = RLock()  # a thread that waits for it finds its functions compiled
UNFORKED = RLock()  # held for moments that a fork must not split; a fork waits
SHARING: list[None] = []  # one for each thread that compiles
# functions that a walk lacks, see walk_compiled
MISSING: ContextVar[list["Function"] | None] = ContextVar("missing", default=None)
T = TypeVar("T")


def digest_code(said: str) -> str:
    """Return the key of code: a digest of its description and of the sources of the compiler that writes it."""
    return hashlib.blake2b(f"{sources(WRITTEN_BY)} {said}".encode(), digest_size=8).hexdigest()


class Function:
    """A C function, called by its address. Arguments, and the result if there is one, are int64. A rare one is compiled
    only when it is used. It may be declared in any module that can be imported."""

    def __init__(
        self, body: Callable[..., object], arguments: int = 3, result: bool = False, rare: bool = False
    ) -> None:
        self.body, self.name, self.arguments, self.result = body, body.__name__, arguments, result
        self.rare, self.place = rare, 0
        FUNCTIONS[self.name] = self

    @classmethod
    def of(cls, arguments: int, result: bool = False, rare: bool = False) -> Callable[[Callable[..., object]], Self]:
        """Decorate a function of `arguments` arguments."""
        return lambda body: cls(body, arguments, result, rare)

    @property
    def module(self) -> str:
        """The name of the module that declares it."""
        return self.body.__module__

    @property
    def address(self) -> int:
        """The address of the function in this process; 0 inside `walk_compiled` if it must be compiled."""
        if not self.place:
            if (missing := MISSING.get()) is None:
                provide([self], others=True)
            elif not self.found():
                missing.append(self)
        return self.place

    @cached_property
    def call(self) -> Callable[..., int | None]:
        """The function as Python calls it; the interpreter lock is released meanwhile."""
        provide([self], others=True)
        result = ctypes.c_int64 if self.result else None
        return ctypes.CFUNCTYPE(result, *[ctypes.c_int64] * self.arguments)(self.place)

    @cached_property
    def symbol(self) -> str:
        """The name of its object code, with a digest of the sources that it depends on."""
        if (module := self.body.__module__) == "__main__":
            raise RuntimeError(
                f"{self.name}: a kernel of __main__ cannot be compiled, declare it in a module that can be imported"
            )
        description = sources(module) if module.startswith(f"{HOME}.") else closure(self.body)
        return f"{self.name}-{digest_code(description)}"

    def found(self) -> bool:
        """True if it is in this process, or was in the cache."""
        with UNFORKED:
            if not self.place:
                self.place = objects.load_function(self.symbol)
            return bool(self.place)


class Kernel(Function):
    """A function of (item, worker, arguments), for launch."""


def walk_compiled(
    walk: Callable[[], T], *needed: Function, progress: Callable[[str, float], None] = lambda name, seconds: None
) -> T:
    """Return walk(). If it or the functions in `needed` lack code, they are compiled together, with progress(name,
    seconds) after each, and the walk is repeated: the first time they have the address 0. The context variable is reset
    however the walk ends."""
    missing = [function for function in needed if not function.found()]

    def collect() -> T:
        MISSING.set(missing)
        return walk()

    result = copy_context().run(collect)
    if not missing:
        return result
    provide(missing, progress)
    return walk()


def provide(
    functions: Iterable[Function],
    progress: Callable[[str, float], None] = lambda name, seconds: None,
    others: bool = False,
) -> None:
    """Give functions their addresses: from the cache, or compiled, with progress(name, seconds) after each. With
    `others`, if any must be compiled, so are the functions most likely needed next: of the same modules, and of common
    ones. No lock is held in progress: it may launch, for which another thread may hold a lock that compiling waits
    for."""
    with closing(provided(functions, others)) as compiled:
        while True:
            with COMPILING:
                timing = next(compiled, None)
            if timing is None:
                return
            progress(*timing)


def provided(functions: Iterable[Function], others: bool) -> Generator[tuple[str, float]]:
    """Yield (name, seconds) of each function once it has its address."""
    begun, missing = time.perf_counter(), []
    for function in dict.fromkeys(functions):
        if not function.found():
            missing.append(function)
        else:
            yield function.name, time.perf_counter() - begun
            begun = time.perf_counter()
    if not missing:
        return
    from formats.kernels.engine.compiler import compile_each

    if others:
        near = {function.module for function in missing} | {f"{HOME}.{name}" for name in COMMON}
        missing += [
            function
            for function in FUNCTIONS.values()
            if function.module in near and function not in missing and not function.rare and not function.found()
        ]
    with sharing_spare():
        yield from load_compiled(compile_each(missing), missing)


@contextmanager
def sharing_spare() -> Iterator[None]:
    """Register a thread that compiles, and may do so into the spare directory. The directory is removed once no thread
    compiles: loaded code needs no file, and a process that is killed later leaves none."""
    with UNFORKED:
        SHARING.append(None)
    try:
        yield
    finally:
        with UNFORKED:
            SHARING.pop()
            if not SHARING:
                objects.clear_spare()


def load_compiled(compiling: Iterable[tuple[str, float]], missing: list[Function]) -> Generator[tuple[str, float]]:
    """Yield (name, seconds) of functions that are being compiled; all of them are loaded in the end."""
    yield from compiling
    if lost := [function.name for function in missing if not function.found()]:
        raise RuntimeError(
            f"kernels {', '.join(lost)} were compiled, but their files in {objects.target()} are incomplete: is the "
            "disk full?"
        )


def calling(count: int) -> Callable[..., None]:
    """Make an intrinsic that calls the C function at an address with `count` arguments."""
    kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * count)

    @intrinsic
    def call(typing: Typing, address: types.Type, *arguments: types.Type) -> Intrinsic:
        def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
            function, arguments = values[0], cgutils.unpack_tuple(builder, values[1])
            builder.call(builder.inttoptr(function, kind.as_pointer()), arguments)
            return context.get_dummy_value()

        several = types.StarArgTuple([types.int64] * count)
        return types.void(types.int64, several), code

    return call


def forked() -> None:
    """Reset the lock in a forked process: the thread that waits for a compiler is not here."""
    global COMPILING
    COMPILING = RLock()
    UNFORKED.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=UNFORKED.acquire, after_in_parent=UNFORKED.release, after_in_child=forked)
