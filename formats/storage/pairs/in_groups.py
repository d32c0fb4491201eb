"""Blocks of files where x is rounded, too: each 32 numbers of a row to bytes with a scale of their own."""

import inspect

import numpy as np

from formats.core.arrays import multiply_sizes
from formats.core.epilogue import gamma
from formats.core.layout import LEAST_SCALED
from formats.core.sizes import T, n, p
from formats.core.stage import SMALLEST
from formats.storage.format import Format
from formats.storage.q4_1 import GROUP_INPUTS, Blocks


class InGroups(Blocks):
    """A format of blocks, multiplied by rows whose groups are rounded to 255 steps, as ggml does it. The arrays are
    those of `structure`, to the bit, so code that gathers its columns reads them as they are."""

    structure: type[Format]
    unit = "int8"
    least = LEAST_SCALED  # groups whose largest number is below it are read as zeros

    def __init_subclass__(cls, structure: type[Format]) -> None:
        whole = structure.declared
        cls.structure, cls.__annotations__ = structure, inspect.get_annotations(structure)
        cls.filed, cls.panelled = structure.filed, structure.panelled  # type: ignore[attr-defined]
        cls.flops, cls.work = 2 * T * n * p, (T * n * p, n * p, T * (n + p), T * n)  # type: ignore[attr-defined]
        cls.fit, cls.pack, cls.unpack = whole.fit, whole.pack, whole.unpack  # type: ignore[attr-defined]
        super().__init_subclass__()

    @staticmethod
    def reads(x):
        """Return x with each 32 numbers of a row rounded to integers up to 127 times their scale, in float64."""
        return by_group(x)

    def bound(self, x, operands=None):
        """Bound the roundings: sums of a group are exact; rounded are its product with d, the addition, and for levels
        its share of m."""
        read, W = operands or self.operands(x)
        groups = -(-len(W) // GROUP_INPUTS)
        return gamma(2 * groups + 4) * multiply_sizes(read, self.sizes_of(W)) + len(W) * SMALLEST

    def sizes_of(self, W):
        """Return a bound on the size of the terms that are added in place of each number."""
        return abs(W)

    @classmethod
    def narrowest(cls):
        """Return 8, the bits of rounded x: the stored weights may have fewer."""
        return 8

    @classmethod
    def of_blocks(cls, blocks):
        """Return x @ W.T for blocks of a file."""
        weight = cls.structure.of_blocks(blocks)
        return cls(weight.shape, tuple(weight.arrays().values()))

    def filed_blocks(self):
        """Return the blocks of a file: the inverse of `of_blocks`."""
        return self.structure(self.shape, tuple(self.arrays().values())).filed_blocks()


def by_group(x):
    """Return x (T, n) in float64 as kernels read it: each 32 numbers as integer multiples, up to 127, of their largest
    / 127, by the float32 operations of formats/kernels/matmul/rounded_groups.py, one by one."""
    x = np.asarray(x, np.float32)
    parts = np.pad(x, ((0, 0), (0, -x.shape[1] % GROUP_INPUTS))).reshape(len(x), -1, GROUP_INPUTS)
    largest = abs(parts).max(2, keepdims=True)
    turns = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest >= LEAST_SCALED)
    read = np.rint(parts * turns).astype(np.float64) * (largest / np.float32(127))
    return read.reshape(len(x), -1)[:, : x.shape[1]]
