"""Kinds of the values that kernels compute: numbers, vectors, addresses, arrays, tuples of these; and of known
values."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from formats.kernels.engine.native import ir, types
from formats.kernels.simd.arithmetic import NUMBER
from formats.kernels.simd.vectors import VECTOR, Vectors

GivenValue: TypeAlias = Any  # a computed value, a tuple, or one of Python's
ValueKind: TypeAlias = Any  # numba's type of a number or vectors, or a kind below
LlvmValue: TypeAlias = Any
INTEGER64, BIT, REAL32, REAL64 = ir.IntType(64), ir.IntType(1), ir.FloatType(), ir.DoubleType()
STORED_KINDS = {types.int64: INTEGER64, types.boolean: BIT, NUMBER: REAL32, types.float64: REAL64}
REALS = {NUMBER, types.float64}
UNREAD = {np.bool_, np.uint64, np.float16}  # types whose meaning is not that of a word or a float32
LIES = {np.float32: REAL32, np.float64: REAL64}
CASTS = {
    (types.boolean, types.int64): "zext",
    (types.boolean, types.float32): "uitofp",
    (types.boolean, types.float64): "uitofp",
    (types.int64, types.float32): "sitofp",
    (types.int64, types.float64): "sitofp",
    (types.float32, types.int64): "fptosi",
    (types.float64, types.int64): "fptosi",
    (types.float32, types.float64): "fpext",
    (types.float64, types.float32): "fptrunc",
}


class Unwritten(TypeError):
    """Python that the writer does not support."""


@dataclass(frozen=True)
class At:
    """The kind of an address of numbers, or of a record, of this kind."""

    of: Any


class ArrayAt(NamedTuple):
    """Numbers or records stored side by side: their address, and their count."""

    at: LlvmValue
    size: Any


class Computed(NamedTuple):
    """A value that a kernel computes: its kind, and LLVM's name for it. Any other value is one of Python's, and
    known."""

    kind: ValueKind
    value: Any


def stored(kind: ValueKind) -> LlvmValue:
    """Return LLVM's type of a variable of this kind."""
    if isinstance(kind, At):
        return INTEGER64
    if isinstance(kind, Vectors):
        return ir.ArrayType(VECTOR, kind.count)
    if kind not in STORED_KINDS:
        raise Unwritten(f"a variable of kind {kind} is not supported")
    return STORED_KINDS[kind]


def narrow_bits(kind: ValueKind) -> int:
    """Return the bits of integers of this kind if they are fewer than a word's; else 0."""
    bits = int(getattr(kind, "bitwidth", 64)) if isinstance(kind, types.Integer) else 64
    return bits if bits < 64 else 0


def is_tuple(kind: ValueKind) -> bool:
    return isinstance(kind, types.BaseTuple)


@dataclass(frozen=True)
class KnownKind:
    """The kind of a value that is no number: the value itself."""

    value: Any


@dataclass(frozen=True)
class PartsKind:
    """The kind of a tuple: its class, and the kinds of its parts."""

    made: type
    kinds: tuple[Any, ...]


def is_several(found: GivenValue) -> bool:
    return isinstance(found, tuple) and not isinstance(found, Computed)


def each_part(function: Callable[..., Any], found: GivenValue, *more: Any) -> GivenValue:
    """Apply a function to a value, or to each part of a tuple; the results form a tuple of the same class."""
    if not is_several(found):
        return function(found, *more)
    return made_of(type(found), [each_part(function, *parts) for parts in zip(found, *more, strict=True)])


def made_of(kind: type, parts: list[GivenValue]) -> GivenValue:
    """Build a tuple of a class from its parts."""
    return kind(*parts) if hasattr(kind, "_fields") else tuple(parts)


def rebuilt(kind: ValueKind, values: Iterator[Any]) -> GivenValue:
    """Build a value of this kind from LLVM's values, taken one after another."""
    match kind:
        case KnownKind(value=value):
            return value
        case PartsKind(made=tuple_class, kinds=kinds):
            return made_of(tuple_class, [rebuilt(part, values) for part in kinds])
    return Computed(kind, next(values))


def stored_parts(kind: ValueKind) -> list[GivenValue]:
    """Return LLVM's types of all parts of a value of this kind."""
    match kind:
        case KnownKind():
            return []
        case PartsKind(kinds=kinds):
            return [part for part_kind in kinds for part in stored_parts(part_kind)]
    return [stored(kind)]


def pack_values(build: LlvmValue, kind: LlvmValue, values: Iterable[LlvmValue]) -> LlvmValue:
    """Pack several of LLVM's values into one."""
    packed = ir.Constant(kind, ir.Undefined)
    for k, value in enumerate(values):
        packed = build.insert_value(packed, value, k)
    return packed


def real_kind(kept: np.dtype[Any]) -> ValueKind:
    """Return the kind of floating-point numbers stored in 4 or 8 bytes."""
    return NUMBER if kept.itemsize == 4 else types.float64
