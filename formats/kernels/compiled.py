"""Functions compiled by numba when first needed, or read from a cache that notices any change of these sources."""
import ctypes
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any, Self

from llvmlite import ir
from numba import cfunc, types
from numba.core import cgutils, config
from numba.extending import intrinsic

from ..cache import cache_directory
from . import digest

FUNCTIONS: dict[str, "Function"] = {}
FAST = {"contract", "reassoc", "nsz", "arcp"}               # sums in any order; infinities and NaN keep their meaning
OPTIONS: dict[str, Any] = dict(boundscheck=False, error_model="numpy")
HELPER = OPTIONS | dict(no_cpython_wrapper=True, no_cfunc_wrapper=True, no_rewrites=True)      # not for Python to call
COMPILING = RLock()


class Function:
    """A C function, named by its address. Arguments, and the result if there is one, are int64. A rare one is compiled
    only when it is used."""

    def __init__(self, body: Callable[..., Any], arguments: int = 3, result: bool = False, rare: bool = False) -> None:
        self.body, self.name, self.arguments, self.result = body, body.__name__, arguments, result
        self.rare = rare
        FUNCTIONS[self.name] = self

    @classmethod
    def of(cls, arguments: int, result: bool = False, rare: bool = False) -> Callable[[Callable[..., Any]], Self]:
        """Decorate a function of so many arguments."""
        return lambda body: cls(body, arguments, result, rare)

    @cached_property
    def compiled(self) -> Any:
        """The compiled function; cache_hits tells whether it was read."""
        signature = f"{'int64' if self.result else 'void'}({', '.join(['int64'] * self.arguments)})"
        with COMPILING, cached_here(): return cfunc(signature, cache=True, **OPTIONS)(self.body)

    @cached_property
    def address(self) -> int:
        """Where it is in this process."""
        return int(self.compiled.address)

    @cached_property
    def call(self) -> Callable[..., Any]:
        """Call it from Python; the interpreter lock is released meanwhile."""
        result = ctypes.c_int64 if self.result else None
        return ctypes.CFUNCTYPE(result, *[ctypes.c_int64] * self.arguments)(self.address)


def calling(count: int) -> Any:
    """An intrinsic that calls the C function at an address with so many arguments."""
    kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * count)
    @intrinsic
    def call(typing, address, *arguments):
        def code(context, builder, signature, values):
            function, arguments = values[0], cgutils.unpack_tuple(builder, values[1])
            builder.call(builder.inttoptr(function, kind.as_pointer()), arguments)
            return context.get_dummy_value()
        return types.void(types.int64, types.StarArgTuple([types.int64] * count)), code
    return call


class Kernel(Function):
    """A function of (item, worker, arguments), for launch."""


@contextmanager
def cached_here() -> Generator[None]:
    """numba's cache in a directory named by a digest of these sources: it would notice a change of one file only."""
    before = config.CACHE_DIR
    root = Path(before) if before else cache_directory() / "kernels"
    config.CACHE_DIR = str(root / digest())
    try: yield
    finally: config.CACHE_DIR = before
