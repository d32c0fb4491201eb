"""Numbers of many heads that are never all there: scores of each pair of rows are made some heads at a time, as heads
are independent of one another."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

MOST_NUMBERS = 1 << 22                                      # of a value that is there at once
HeadNumbers: TypeAlias = NDArray[Any]
HeadsMade: TypeAlias = "dict[HeadBlocks, HeadNumbers]"      # of some heads, so that what is shared is made once
MakeHeads: TypeAlias = "Callable[[slice, HeadsMade], HeadNumbers]"


@dataclass(frozen=True, eq=False)
class HeadBlocks:
    """Heads x rows x columns; `make` gives those of some heads, and has up to so many numbers of a head at once."""

    shape: tuple[int, ...]
    make: MakeHeads
    head: int

    def at(self, heads: slice, made: HeadsMade) -> HeadNumbers:
        """The numbers of some heads; remembered by what is made of these heads."""
        if self not in made: made[self] = self.make(heads, made)
        return made[self]

    def pieces(self) -> Iterator[HeadNumbers]:
        """All numbers, some heads at a time."""
        each = max(1, MOST_NUMBERS // self.head)
        for low in range(0, self.shape[0], each): yield self.at(slice(low, low + each), {})

    def toarray(self) -> HeadNumbers: return np.concatenate([*self.pieces()])


class ByHeads:
    """A reading of arrays, those of many heads some at a time."""

    value: Any
    if TYPE_CHECKING:
        @property
        def array(self) -> HeadNumbers: ...
        def of(self, value: object) -> Self: ...

    def taken(self, array: HeadNumbers) -> HeadNumbers:
        """Numbers as this reading has them wherever they are read."""
        return array

    def piece(self, heads: slice, made: HeadsMade) -> HeadNumbers:
        """The numbers of some heads."""
        if isinstance(self.value, HeadBlocks): return self.taken(self.value.at(heads, made))
        return self.array[heads] if self.array.ndim == 3 and len(self.array) > 1 else self.array

    def in_heads(self, shape: tuple[int, ...], make: Callable[..., HeadNumbers], *others: ByHeads) -> Self:
        """A value of this shape, made of this one and others."""
        every: tuple[ByHeads, ...] = (self, *others)
        return self.of(make_by_heads(shape, lambda heads, made: make(*(each.piece(heads, made) for each in every)),
                                     *(each.value for each in every)))

    def meet_entries(self, other: ByHeads, make: Callable[..., HeadNumbers]) -> Self:
        """A value made of the entries of both."""
        return self.in_heads(np.broadcast_shapes(self.value.shape, other.value.shape), make, other)

    def turn(self) -> Self:
        """Rows and columns exchanged."""
        *heads, rows, cols = self.value.shape
        return self.in_heads((*heads, cols, rows), lambda x: x.swapaxes(-1, -2))

    def spread(self, rows: int, cols: int) -> Self:
        """So many rows and columns, of what is the same in all of them."""
        own = self.array[..., :1, :] if rows != self.value.shape[-2] else self.array
        own = own[..., :1] if cols != self.value.shape[-1] else own
        return self.of(np.broadcast_to(own, (*own.shape[:-2], rows, cols)))


def make_by_heads(shape: tuple[int, ...], make: MakeHeads,
                  *values: HeadNumbers | HeadBlocks) -> HeadNumbers | HeadBlocks:
    """Numbers of this shape, made of values: all at once, unless they are too many for that, or some heads at a time
    where that is so of a value."""
    blocks, large = [each for each in values if isinstance(each, HeadBlocks)], prod(shape) > MOST_NUMBERS
    if len(shape) < 3 or shape[0] == 1 or not (blocks or large): return make(slice(None), {})
    made = HeadBlocks(shape, make, max(1, prod(shape[1:]), *(each.head for each in blocks)))
    return made if large else made.toarray()


def count_held(heads: int, numbers: float) -> float:
    """The count of a value's numbers that are there at once."""
    return numbers if heads == 1 or numbers <= MOST_NUMBERS else max(MOST_NUMBERS, numbers / heads)
