"""Headings that ranks send each other before the numbers of a message: operation, step, axis, sharding, shapes. Ranks
that are not in one operation are named, all of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

import numpy as np

from opmatrix.algebra.data import Numeric
from opmatrix.parallel.ranks.ranks import Message
from opmatrix.parallel.ranks.virtual import MERGES, POSTED, STEPS
from opmatrix.parallel.sharding.carrier_pieces import AXES
from opmatrix.parallel.sharding.mesh import Mesh

OPERATIONS = *MERGES, *POSTED, *POSTED.values()
SAME_SHAPES = "all_reduce", "reduce_scatter"  # operations with the same shapes on all ranks
DIMENSIONS = 4
ArrayShape = tuple[int, ...]


class RanksFailed(RuntimeError):
    """The cause of the end of a run, in a line: which rank, and what happened to it."""


class RanksDisagree(RanksFailed):
    """Ranks that are not in one operation."""


class Heading(NamedTuple):
    """The description that one rank sends of the message that it is in."""

    op: str  # collective or transfer
    axis: int  # number of the axis
    at: int  # number of the step
    how: int  # checksum of how it is sharded and merged
    shapes: tuple[ArrayShape, ...]  # shapes of the arrays

    @classmethod
    def of(cls, message: Message) -> Heading:
        """Describe a message; rows that move to experts or visit them have counts that come later."""
        over = message.over.__name__ if message.over else ""
        how = how_told(over, message.cut, message.then, message.unit, message.units, message.unfinished, message.among)
        shapes = tuple([array.shape for array in message.arrays])
        if message.op in ("exchange", "visit"):
            shapes = ((len(shapes), shapes[0][-1]),)  # row counts come later
        return cls(message.op, message.axis, message.at, how, shapes)

    def vector(self, length: int) -> Numeric:
        """Return the heading as numbers, of a length that every rank knows."""
        return heading_vector(self, length)

    @classmethod
    def read(cls, vector: Numeric) -> Heading:
        """Read a heading from the numbers that another rank sent."""
        op, axis, at, how, count = map(int, vector[:5])
        rows = vector[5 : 5 + count * (DIMENSIONS + 1)].astype(int).reshape(count, DIMENSIONS + 1)
        return cls(OPERATIONS[op], axis, at, how, tuple(tuple(map(int, row[1 : 1 + row[0]])) for row in rows))

    def told(self, mesh: Mesh) -> str:
        """Describe the message for error texts: operation, step, axis and shapes."""
        shapes = ", ".join(" × ".join(map(str, shape)) for shape in self.shapes) or "nothing"
        factor, step = divmod(self.at, STEPS)
        between = self.op in POSTED or self.op in POSTED.values()
        where = f"factor {factor or step}" if between else f"step {step} of factor {factor}"
        return f"{self.op} of {where} on axis {mesh.axes[self.axis].name} with {shapes}"


@lru_cache(maxsize=4096)
def heading_vector(own: Heading, length: int) -> Numeric:
    """Return a heading as numbers, which must not change: a rank sends the same ones in every step."""
    numbers = [OPERATIONS.index(own.op), own.axis, own.at, own.how, len(own.shapes)]
    for shape in own.shapes:
        numbers += [len(shape), *shape, *[0] * (DIMENSIONS - len(shape))]
    return np.array(numbers + [0] * (length - len(numbers)), np.float64)


@lru_cache(maxsize=4096)
def how_told(*how: Hashable) -> int:
    """Return a checksum of how a message is sharded and merged. It is cached: there are few ways, and every message
    needs one."""
    return crc32(repr(how).encode())


def length_of(mesh: Mesh) -> int:
    """Return the numbers of a heading: a halo has an array for each rank of its axis."""
    return 5 + (DIMENSIONS + 1) * max([4, *(axis.count for axis in mesh)])


def meets(one: Heading, other: Heading, cut_along: int | None) -> bool:
    """True if two ranks are in one operation. Gathered arrays may differ along the sharded dimension; arrays that go
    round or to neighbours may differ in rows."""
    if POSTED.get(one.op) == other.op or POSTED.get(other.op) == one.op:
        return (one.axis, one.at) == (other.axis, other.at)
    if one[:4] != other[:4]:
        return False
    if one.op in ("send", "halo"):
        return True
    free = None if one.op in SAME_SHAPES else cut_along

    def kept(shape: ArrayShape) -> ArrayShape:
        """Return a shape without the dimension that may differ."""
        return tuple(n for k, n in enumerate(shape) if k != free)

    return [*map(kept, one.shapes)] == [*map(kept, other.shapes)]


@dataclass(frozen=True)
class Checking:
    """A comparison of the headings of a group with that of one of its ranks."""

    mesh: Mesh
    here: int

    def demand(self, message: Message, own: Heading, said: Mapping[int, Heading]) -> None:
        """Raise RanksDisagree, which names both ranks, if a heading does not meet that of this rank."""
        along = AXES[message.cut.role] if message.cut else None
        for rank, other in said.items():
            if meets(own, other, along):
                continue
            (a, first), (b, second) = sorted([(self.here, own), (rank, other)])
            how = (
                " and would shard or reduce it differently"
                if first[:3] == second[:3] and first.how != second.how
                else ""
            )
            raise RanksDisagree(
                f"ranks {a} and {b} disagree: rank {a} is in {first.told(self.mesh)}, rank {b} in "
                f"{second.told(self.mesh)}{how}"
            )
