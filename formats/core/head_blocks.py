"""Numbers of many heads that are never all in memory: scores of each pair of rows are made some heads at a time, as
heads are independent of one another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

MOST_NUMBERS = 1 << 22  # numbers of a value that are in memory at once
HeadNumbers: TypeAlias = NDArray[Any]
HeadsMade: TypeAlias = "dict[HeadBlocks, HeadNumbers]"  # values of some heads, so that a shared one is made once
MakeHeads: TypeAlias = "Callable[[slice, HeadsMade], HeadNumbers]"


@dataclass(frozen=True, eq=False)
class HeadBlocks:
    """Heads x rows x columns. `make` computes the numbers of some heads, and holds up to `head` numbers for each head
    at once."""

    shape: tuple[int, ...]
    make: MakeHeads
    head: int

    def at(self, heads: slice, made: HeadsMade) -> HeadNumbers:
        """Return the numbers of some heads, and remember them in `made`."""
        if self not in made:
            made[self] = self.make(heads, made)
        return made[self]

    def pieces(self) -> Iterator[HeadNumbers]:
        """Yield all numbers, some heads at a time."""
        step = max(1, MOST_NUMBERS // self.head)
        for low in range(0, self.shape[0], step):
            yield self.at(slice(low, low + step), {})

    def toarray(self) -> HeadNumbers:
        """Compute the numbers of all heads at once, as one array."""
        return np.concatenate([*self.pieces()])


class ByHeads:
    """A reading of arrays; arrays of many heads are read some heads at a time."""

    value: Any
    if TYPE_CHECKING:

        @property
        def array(self) -> HeadNumbers:
            """The value as one array of all heads."""

        def of(self, value: object) -> Self:
            """Make a reading of the same kind with another value."""

    def taken(self, array: HeadNumbers) -> HeadNumbers:
        """Convert numbers as this reading does wherever they are read."""
        return array

    def piece(self, heads: slice, made: HeadsMade) -> HeadNumbers:
        """Return the numbers of some heads."""
        if isinstance(self.value, HeadBlocks):
            return self.taken(self.value.at(heads, made))
        return self.array[heads] if self.array.ndim == 3 and len(self.array) > 1 else self.array

    def in_heads(self, shape: tuple[int, ...], make: Callable[..., HeadNumbers], *others: ByHeads) -> Self:
        """Make a value of this shape from this one and others."""
        every: tuple[ByHeads, ...] = (self, *others)
        return self.of(
            make_by_heads(
                shape,
                lambda heads, made: make(*(reading.piece(heads, made) for reading in every)),
                *(reading.value for reading in every),
            )
        )

    def meet_entries(self, other: ByHeads, make: Callable[..., HeadNumbers]) -> Self:
        """Make a value from the entries of both."""
        return self.in_heads(np.broadcast_shapes(self.value.shape, other.value.shape), make, other)

    def turn(self) -> Self:
        """Exchange rows and columns."""
        *heads, rows, cols = self.value.shape
        return self.in_heads((*heads, cols, rows), lambda x: x.swapaxes(-1, -2))

    def spread(self, rows: int, cols: int) -> Self:
        """Broadcast to `rows` rows and `cols` columns, where all rows or columns are the same."""
        array = self.array[..., :1, :] if rows != self.value.shape[-2] else self.array
        array = array[..., :1] if cols != self.value.shape[-1] else array
        return self.of(np.broadcast_to(array, (*array.shape[:-2], rows, cols)))


def make_by_heads(
    shape: tuple[int, ...], make: MakeHeads, *values: HeadNumbers | HeadBlocks
) -> HeadNumbers | HeadBlocks:
    """Make numbers of this shape from values: all at once; some heads at a time if the result or one of the values is
    too large for that."""
    blocks, large = [block for block in values if isinstance(block, HeadBlocks)], prod(shape) > MOST_NUMBERS
    if len(shape) < 3 or shape[0] == 1 or not (blocks or large):
        return make(slice(None), {})
    result = HeadBlocks(shape, make, max(1, prod(shape[1:]), *(block.head for block in blocks)))
    return result if large else result.toarray()


def count_held(heads: int, numbers: float) -> float:
    """Count the numbers of a value that are in memory at once."""
    return numbers if heads == 1 or numbers <= MOST_NUMBERS else max(MOST_NUMBERS, numbers / heads)
