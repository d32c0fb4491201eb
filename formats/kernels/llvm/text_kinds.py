"""Kinds of what kernels compute: numbers, vectors, addresses, arrays, several of these; and what is known before."""
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from formats.kernels.engine.native import ir, types
from formats.kernels.simd.arithmetic import NUMBER
from formats.kernels.simd.vectors import VECTOR, Vectors

GivenValue: TypeAlias = Any                                 # computed, several of that, or one of Python's
ValueKind: TypeAlias = Any                                  # numba's kind of a number or vectors, or one of those below
LlvmValue: TypeAlias = Any
INTEGER64, BIT, REAL32, REAL64 = ir.IntType(64), ir.IntType(1), ir.FloatType(), ir.DoubleType()
STORED_KINDS = {types.int64: INTEGER64, types.boolean: BIT, NUMBER: REAL32, types.float64: REAL64}
REALS = {NUMBER, types.float64}
UNREAD = {np.bool_, np.uint64, np.float16}                  # what they mean is not what is a word or a float32
LIES = {np.float32: REAL32, np.float64: REAL64}
CASTS = {(types.boolean, types.int64): "zext", (types.boolean, types.float32): "uitofp",
         (types.boolean, types.float64): "uitofp", (types.int64, types.float32): "sitofp",
         (types.int64, types.float64): "sitofp", (types.float32, types.int64): "fptosi",
         (types.float64, types.int64): "fptosi", (types.float32, types.float64): "fpext",
         (types.float64, types.float32): "fptrunc"}


class Unwritten(TypeError):
    """What texts do not say."""


@dataclass(frozen=True)
class At:
    """The kind of an address at which numbers or a record of this kind lie."""
    of: Any


class ArrayAt(NamedTuple):
    """Numbers or records that lie side by side: where, and how many there are."""
    at: LlvmValue
    size: Any


class Computed(NamedTuple):
    """A value that a kernel computes: its kind, and LLVM's name for it. What is none is one of Python's, and known."""
    kind: ValueKind
    value: Any


def stored(kind: ValueKind) -> LlvmValue:
    """LLVM's kind of what a variable of this kind holds."""
    if isinstance(kind, At): return INTEGER64
    if isinstance(kind, Vectors): return ir.ArrayType(VECTOR, kind.count)
    if kind not in STORED_KINDS: raise Unwritten(f"{kind}: no kind that is stored")
    return STORED_KINDS[kind]


def narrow_bits(kind: ValueKind) -> int:
    """How many bits whole numbers of a kind have, where they are fewer than a word's; else 0."""
    bits = int(getattr(kind, "bitwidth", 64)) if isinstance(kind, types.Integer) else 64
    return bits if bits < 64 else 0


def is_tuple(kind: ValueKind) -> bool: return isinstance(kind, types.BaseTuple)


@dataclass(frozen=True)
class KnownKind:
    """The kind of what is no number: what it is."""
    value: Any


@dataclass(frozen=True)
class PartsKind:
    """The kind of a tuple: its class, and the kinds of its parts."""
    made: type
    kinds: tuple[Any, ...]


def is_several(found: GivenValue) -> bool: return isinstance(found, tuple) and not isinstance(found, Computed)


def each_part(function: Callable[..., Any], found: GivenValue, *more: Any) -> GivenValue:
    """What a function makes of a value, or of each part of several, as several of the same kind."""
    if not is_several(found): return function(found, *more)
    return made_of(type(found), [each_part(function, *each) for each in zip(found, *more, strict=True)])


def made_of(kind: type, parts: list[GivenValue]) -> GivenValue:
    """A tuple of a class, of its parts."""
    return kind(*parts) if hasattr(kind, "_fields") else tuple(parts)


def rebuilt(kind: ValueKind, values: Iterator[Any]) -> GivenValue:
    """What is of this kind, of LLVM's values one after another."""
    match kind:
        case KnownKind(value=value): return value
        case PartsKind(made=made, kinds=kinds): return made_of(made, [rebuilt(each, values) for each in kinds])
    return Computed(kind, next(values))


def stored_parts(kind: ValueKind) -> list[GivenValue]:
    """LLVM's kinds of the values of what is of this kind."""
    match kind:
        case KnownKind(): return []
        case PartsKind(kinds=kinds): return [part for each in kinds for part in stored_parts(each)]
    return [stored(kind)]


def pack_values(build: LlvmValue, kind: LlvmValue, values: Iterable[LlvmValue]) -> LlvmValue:
    """Several of LLVM's values as one."""
    made = ir.Constant(kind, ir.Undefined)
    for k, each in enumerate(values): made = build.insert_value(made, each, k)
    return made


def real_kind(kept: np.dtype[Any]) -> ValueKind:
    """The kind of numbers that are kept so, of 4 or 8 bytes."""
    return NUMBER if kept.itemsize == 4 else types.float64
