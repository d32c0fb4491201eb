"""A matrix of levels with a scale for each group of inputs, as a tensor: of blocks that a format holds where these have
the same numbers, else of float32."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats import Q8_0
from formats.core.arrays import Floats
from formats.storage.block_layouts import FILED, LAYOUTS
from opmatrix.algebra.data import Numeric
from opmatrix.files.quantised import STORED
from opmatrix.files.tensors import Tensor

FLOAT32 = "F32"
HOLDERS = {  # bits, and whether zero has a level of its own in each group -> number types of blocks, the longest first
    (4, False): ("W4_128", "W4_64", "Q4_0"),
    (4, True): ("Z4_128", "Z4_64", "Z4_32"),
    (8, False): ("W8_128", "Q8_0"),
    (8, True): ("Z8_128",),
}


class GroupedLevels(NamedTuple):
    """Levels q (outputs, inputs) that stand for s (q - z), exact but for the rounding of the product to float32: s and
    z (outputs, groups) are those of a group, z half of the levels where there is none. `order` has the group of each
    input; without it groups are of adjacent inputs. `packed`: the tensor that holds the levels."""

    packed: Tensor
    shape: tuple[int, int]
    groups: int
    bits: int
    levels: Callable[[], NDArray[np.uint8]]
    scales: Callable[[], Floats]
    zeros: Callable[[], NDArray[np.integer]] | None = None
    order: NDArray[np.int64] | None = None

    @property
    def middle(self) -> int:
        """The level that stands for zero where groups have none of their own."""
        return 1 << self.bits - 1

    def is_centred(self) -> bool:
        """True if some group has another level of zero than the middle one."""
        return self.zeros is not None and bool((self.zeros() != self.middle).any())

    def holder(self, centred: bool) -> str:
        """Return the number type of blocks that hold these numbers, or that of float32. Raises InputError for a scale
        that is not finite."""
        scales = self.scales()
        with np.errstate(over="ignore"):
            exact = np.array_equal(scales.astype(np.float16).astype(np.float32), scales)
        if not exact or self.order is not None:
            return FLOAT32
        group = self.shape[1] // self.groups
        fitting = (name for name in HOLDERS[self.bits, centred] if group % STORED[name].numbers == 0)
        return next(fitting, FLOAT32)

    def blocks(self, number: str) -> Numeric:
        """Return its blocks of a number type, (outputs, blocks)."""
        size, (outputs, inputs), name = STORED[number].numbers, self.shape, number.lower()
        each = inputs // size // self.groups
        levels, d, m = self.levels().reshape(-1, size), np.repeat(self.scales(), each, 1).reshape(-1), None
        if name not in FILED:
            made = np.zeros(len(levels), Q8_0.filed)
            made["d"], made["q"] = d, (levels ^ 128).view(np.int8)
            return made.reshape(outputs, -1)
        if LAYOUTS[name].minimum:
            zeros = np.broadcast_to(self.middle if self.zeros is None else self.zeros(), (outputs, self.groups))
            m = np.repeat(zeros, each, 1).reshape(-1)
        return FILED[name].made(levels, d, m, None).reshape(outputs, -1)

    def widen(self) -> Floats:
        """Return its numbers in float32, (outputs, inputs)."""
        inputs = self.shape[1]
        array = self.levels().astype(np.float32)
        places = np.arange(inputs) * self.groups // inputs if self.order is None else self.order
        array -= np.float32(self.middle) if self.zeros is None else self.zeros().astype(np.float32)[:, places]
        array *= self.scales()[:, places]
        return array

    def tensor(self, name: str, number: str) -> Tensor:
        """Return it as a tensor of a number type."""
        make = self.widen if number == FLOAT32 else partial(self.blocks, number)
        return made_tensor(self.packed, name, self.shape, make, number)


def made_tensor(
    packed: Tensor, name: str, shape: tuple[int, ...], make: Callable[[], Numeric], number: str = FLOAT32
) -> Tensor:
    """Return a tensor whose blocks are made of those of others, in the file of a packed one."""
    return Tensor(packed.file, name, number, shape, 0, made=make)


def choose_holder(alike: Iterable[GroupedLevels]) -> str:
    """Return the number type of matrices that are stored alike: the one that holds all of them."""
    matrices = list(alike)
    centred = any(matrix.is_centred() for matrix in matrices)
    numbers = {matrix.holder(centred) for matrix in matrices}
    return numbers.pop() if len(numbers) == 1 else FLOAT32
