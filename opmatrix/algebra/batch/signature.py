"""Ports and signatures: the values that cross the border of a program, by name. A port is a value: the space of its
rows, its columns and heads, its number type.

    Signature(inputs={"features": V × 128 float32, "tokens": T × 1 int64}, outputs=.., state=..)

An input matrix is given with the batch, fields and relations are read from it; a piece of state is an input whose next
value is an output, in the same buffer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from formats.core.arrays import find_misfit
from formats.core.errors import InputError

__all__ = ["Port", "Signature"]

FLOAT, INTEGER, HALF = "float32", "int64", "bf16"  # number types: values; fields of a batch; narrower caches
NUMBERS = FLOAT, INTEGER
INFINITIES = -inf, inf
NAMED_INFINITIES = [["-inf"]], [["inf"]], [["-inf", "inf"]]  # infinite numbers of a port, as JSON
CACHED = "C"  # the space of rows of caches
STATE_SPACE = "states"  # the space of states of sequences
HELD_NUMBERS: dict[str, type[np.generic]] = {FLOAT: np.float32, HALF: np.uint16}  # types of caches: bf16 as its bits
NAME = re.compile(r"[A-Za-z][\w ]{0,39}", re.ASCII)
GivenMatrix: TypeAlias = NDArray[np.integer | np.floating]  # a matrix that a batch gives
WIDEST = 1 << 20  # numbers in a row of a value: a small file asks for no more


@dataclass(frozen=True)
class Port:
    """A value that crosses the border of a program: rows of a space, each of `heads` heads of `columns` columns, in a
    number type. `infinite`: the infinite numbers that an input of a program may hold; None in a term, which may be
    given any."""

    name: str
    space: str
    columns: int
    heads: int = 1
    number: str = FLOAT
    infinite: tuple[float, ...] | None = None

    def __str__(self) -> str:
        more = "".join(f" or {number:g}" for number in self.infinite or ())
        return f"{self.name}: {self.size} {self.number}{more}"

    @property
    def size(self) -> str:
        """The size as text: its space × its columns, with the heads between them if there are several."""
        return f"{self.space} × {self.columns}" if self.heads == 1 else f"{self.space} × {self.heads} × {self.columns}"

    def described(self) -> list[object]:
        """Return the port as JSON."""
        more = [[f"{number:g}" for number in self.infinite]] if self.infinite else []
        return [self.space, self.columns, self.heads, self.number, *more]

    @classmethod
    def read(cls, name: object, said: object, numbers: Iterable[str] = NUMBERS) -> Port:
        """The port of a name and [space, columns, heads, number type], and the infinite numbers that it may hold.
        Raises ValueError for anything else."""
        if not (isinstance(name, str) and NAME.fullmatch(name)):
            raise ValueError(f"{name!r:.60} is no name of up to 40 letters, digits and _")
        infinite: tuple[float, ...] | None = None
        if isinstance(said, list) and said[4:] in NAMED_INFINITIES:
            said, infinite = said[:4], tuple(map(float, said[4]))
        match said:
            case [str(space), int(columns), int(heads), str(number)] if NAME.fullmatch(space) and {
                type(columns),
                type(heads),
            } == {int}:
                allowed = {*numbers} - (set() if space == CACHED else {HALF})
                if number not in allowed:
                    raise ValueError(f"{name}: number type {number!r:.40}: it may be {', '.join(sorted(allowed))}")
                if min(columns, heads) < 1 or columns * heads > WIDEST:
                    raise ValueError(f"{name}: {heads} heads of {columns} columns: a row has 1 to {WIDEST:,} numbers")
                return cls(name, space, columns, heads, number, infinite)
        raise ValueError(f"{name}: {said!r:.80}, not [space, columns, heads, number type]")

    def matrix(self, given: object, where: str) -> GivenMatrix:
        """Return the numbers of a matrix, rows × columns or rows × heads × columns. Raises ValueError for another
        shape, and InputError for NaN, for a number beyond float32, and for an infinite number that it may not hold."""
        matrix = np.asarray(given)
        wanted = (self.columns,) if self.heads == 1 else (self.heads, self.columns)
        if matrix.dtype.kind not in "fiu" or matrix.ndim != 1 + len(wanted) or matrix.shape[1:] != wanted:
            raise ValueError(f"{where} {self}: the batch gives {matrix.dtype}{list(matrix.shape)}")
        if wrong := find_misfit(matrix, INFINITIES if self.infinite is None else self.infinite):
            raise InputError(f"{where} {self}: the batch gives {wrong[1]} at {[*wrong[0]]}")
        return matrix


def check_cache(number: object) -> None:
    """Raise InputError unless this is a number type of caches."""
    if number not in HELD_NUMBERS:
        raise InputError(f"cache {number!r:.40}: give {' or '.join(HELD_NUMBERS)}")


def widened(found: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers of a value as float32 or float64: bf16, whose bits are uint16, is widened."""
    if found.dtype != HELD_NUMBERS[HALF]:
        return found
    from formats.storage.bf16 import widen_bits

    return np.asarray(widen_bits(found))


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a program: matrices and fields, relations as texts, outputs, and for each piece of
    state the value that is its next one."""

    inputs: Mapping[str, Port]
    relations: tuple[str, ...]
    outputs: Mapping[str, Port]
    state: Mapping[str, str]

    def described(self) -> dict[str, Any]:
        """Return the signature as JSON."""
        ports = {
            name: {port_name: port.described() for port_name, port in sorted(of.items())}
            for name, of in (("inputs", self.inputs), ("outputs", self.outputs))
        }
        return ports | {"relations": sorted(self.relations), "state": dict(sorted(self.state.items()))}

    def differs(self, said: object) -> str:
        """Return, in words, the difference of this signature from one described as JSON; an empty text where there is
        none."""
        described = self.described()
        if not isinstance(said, dict):
            return f"it is {said!r:.60}, not an object"
        for name in sorted({*described, *map(str, said)}):
            if name not in described:
                return f"{name!r:.40} is no part of one"
            if name not in said:
                return f"{name!r} is missing"
            if described[name] == said[name]:
                continue
            both = isinstance(described[name], dict) and isinstance(said[name], dict)
            for key in sorted({*described[name], *map(str, said[name])}) if both else ():
                here, there = described[name].get(key), said[name].get(key)
                if here != there:
                    return f"{name}: {key!r:.60} is {there!r:.80}, but the steps have {here!r:.80}"
            return f"{name} are {said[name]!r:.80}, but the steps have {described[name]!r:.80}"
        return ""

    def lines(self) -> list[str]:
        """Return a comment for each direction."""
        reads = [*map(str, self.inputs.values()), *self.relations]
        carried = [f"{name} -> {value}" for name, value in self.state.items()]
        directions = [("reads", reads), ("gives", [*map(str, self.outputs.values())]), ("state", carried)]
        return [f"# {what} {', '.join(texts)}" for what, texts in directions if texts]
