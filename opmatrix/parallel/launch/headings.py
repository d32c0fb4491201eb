"""What ranks tell each other of a crossing before its numbers: operation, step, axis, how it is cut, shapes. Ranks that
are not in one crossing are named, all of them."""
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
SAME_SHAPES = "all_reduce", "reduce_scatter"                # all ranks hand over the same shapes
DIMENSIONS = 4
ArrayShape = tuple[int, ...]


class RanksFailed(RuntimeError):
    """What ended a run, in a line: which rank, and what happened to it."""


class RanksDisagree(RanksFailed):
    """Ranks that are not in one crossing."""


class Heading(NamedTuple):
    """What one rank says of the crossing that it is in."""
    op: str
    axis: int
    at: int
    how: int
    shapes: tuple[ArrayShape, ...]

    @classmethod
    def of(cls, message: Message) -> Heading:
        over = message.over.__name__ if message.over else ""
        how = how_told(over, message.cut, message.then, message.unit, message.units, message.unfinished, message.among)
        shapes = tuple([each.shape for each in message.arrays])
        if message.op in ("exchange", "visit"): shapes = ((len(shapes), shapes[0][-1]),)    # rows are told every time
        return cls(message.op, message.axis, message.at, how, shapes)

    def vector(self, length: int) -> Numeric:
        """As numbers, of a length that every rank knows."""
        return heading_vector(self, length)

    @classmethod
    def read(cls, vector: Numeric) -> Heading:
        op, axis, at, how, count = map(int, vector[:5])
        rows = vector[5:5 + count * (DIMENSIONS + 1)].astype(int).reshape(count, DIMENSIONS + 1)
        return cls(OPERATIONS[op], axis, at, how, tuple(tuple(map(int, row[1:1 + row[0]])) for row in rows))

    def told(self, mesh: Mesh) -> str:
        shapes = ", ".join(" × ".join(map(str, shape)) for shape in self.shapes) or "nothing"
        factor, step = divmod(self.at, STEPS)
        between = self.op in POSTED or self.op in POSTED.values()
        where = f"factor {factor or step}" if between else f"step {step} of factor {factor}"
        return f"{self.op} of {where} on axis {mesh.axes[self.axis].name} with {shapes}"


@lru_cache(maxsize=4096)
def heading_vector(own: Heading, length: int) -> Numeric:
    """A heading as numbers, which nobody changes: a rank says the same ones in every step."""
    found = [OPERATIONS.index(own.op), own.axis, own.at, own.how, len(own.shapes)]
    for shape in own.shapes: found += [len(shape), *shape, *[0] * (DIMENSIONS - len(shape))]
    return np.array(found + [0] * (length - len(found)), np.float64)


@lru_cache(maxsize=4096)
def how_told(*how: Hashable) -> int:
    """How a crossing is cut and merged, as a number; there are few ways, and a rank is in one at every crossing."""
    return crc32(repr(how).encode())


def length_of(mesh: Mesh) -> int:
    """Numbers of a heading: a halo has an array for each rank of its axis."""
    return 5 + (DIMENSIONS + 1) * max([4, *(axis.count for axis in mesh)])


def meets(one: Heading, other: Heading, cut_along: int | None) -> bool:
    """Whether two ranks are in one crossing. What is gathered may differ along the dimension that is cut, what goes
    round or to neighbours in its rows."""
    if POSTED.get(one.op) == other.op or POSTED.get(other.op) == one.op:
        return (one.axis, one.at) == (other.axis, other.at)
    if one[:4] != other[:4]: return False
    if one.op in ("send", "halo"): return True
    free = None if one.op in SAME_SHAPES else cut_along
    def kept(shape: ArrayShape) -> ArrayShape: return tuple(n for k, n in enumerate(shape) if k != free)
    return [*map(kept, one.shapes)] == [*map(kept, other.shapes)]


@dataclass(frozen=True)
class Checking:
    """Compares what the ranks of a group say with what one of them is in."""
    mesh: Mesh
    here: int

    def demand(self, message: Message, own: Heading, said: Mapping[int, Heading]) -> None:
        """Raises RanksDisagree that names both ranks."""
        along = AXES[message.cut.role] if message.cut else None
        for rank, other in said.items():
            if meets(own, other, along): continue
            (a, first), (b, second) = sorted([(self.here, own), (rank, other)])
            how = " and would cut or merge it otherwise" if first[:3] == second[:3] and first.how != second.how else ""
            raise RanksDisagree(f"ranks {a} and {b} disagree: rank {a} is in {first.told(self.mesh)}, rank {b} in "
                               f"{second.told(self.mesh)}{how}")
