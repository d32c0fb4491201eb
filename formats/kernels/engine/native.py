"""numba and LLVM for the one process that compiles (compiler.py). In every other process their names mean Nothing, so
that declaring kernels costs no time, and only their object code runs."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from numpy.typing import NDArray

from formats.kernels.engine.processor import FEATURES, NAME

COMPILES = "OPMATRIX_COMPILES" in os.environ


class Inert(type):
    """Any attribute and any call of its classes is Nothing."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        return Nothing


class Nothing(metaclass=Inert):
    """A stand-in for the names that only the process that compiles has."""


class Kept:
    """A function that is compiled elsewhere: not callable here, but its contents are part of a kernel's name
    (frozen.py)."""

    def __init__(self, function: Any) -> None:
        self.py_func = function

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return Nothing

    def __getattr__(self, name: str) -> Any:
        return getattr(Nothing, name)


def defer(function: Any = None, **options: Any) -> Any:
    """Stand in for numba's njit."""
    return Kept(function) if callable(function) else defer


if TYPE_CHECKING or COMPILES:
    import llvmlite.binding as llvm
    from llvmlite import ir
    from numba import cfunc, typeof, types
    from numba.core import cgutils
    from numba.core.cgutils import get_or_insert_function
    from numba.core.cpu_options import FastMathOptions
    from numba.core.fastmathpass import rewrite_module
    from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
    from numba.extending import lower_builtin, models, register_model
else:
    llvm = ir = cfunc = typeof = types = cgutils = get_or_insert_function = rewrite_module = FastMathOptions = Nothing
    ConcreteTemplate = infer_global = signature = lower_builtin = models = register_model = Nothing
if TYPE_CHECKING:  # types that numba does not declare
    from numba.core.base import BaseContext as Context
    from numba.core.typing.context import BaseContext as Typing
    from numba.core.typing.templates import Signature

    Body = TypeVar("Body", bound=Callable[..., object])
    Values: TypeAlias = Sequence[ir.Value]
    Intrinsic: TypeAlias = tuple[Signature, Callable[[Context, ir.IRBuilder, Signature, Values], ir.Value]]

    def carray(pointer: object, count: int) -> NDArray[Any]: ...
    @overload
    def intrinsic(*, prefer_literal: bool) -> Callable[[Callable[..., Intrinsic]], Callable[..., Any]]: ...
    @overload
    def intrinsic(body: Callable[..., Intrinsic], /) -> Callable[..., Any]: ...
    def intrinsic(*body: object, **options: object) -> object: ...
    @overload
    def njit(**options: object) -> Callable[[Body], Body]: ...
    @overload
    def njit(body: Body, /) -> Body: ...
    def njit(*body: object, **options: object) -> object: ...
else:
    Context = Intrinsic = Signature = Typing = Values = Nothing
    if COMPILES:
        from numba import carray, njit
        from numba.extending import intrinsic
    else:
        carray, intrinsic, njit = Nothing, Nothing, defer

__all__ = [
    "COMPILES",
    "FEATURES",
    "NAME",
    "ConcreteTemplate",
    "Context",
    "FastMathOptions",
    "Intrinsic",
    "Nothing",
    "Signature",
    "Typing",
    "Values",
    "carray",
    "cfunc",
    "cgutils",
    "get_or_insert_function",
    "infer_global",
    "intrinsic",
    "ir",
    "llvm",
    "lower_builtin",
    "models",
    "njit",
    "register_model",
    "rewrite_module",
    "signature",
    "typeof",
    "types",
]
