"""MXFP4 (OCP Microscaling Formats 1.0, 2023): numbers of float4 (E2M1), two to a byte, the first in the low half, with
a power of two for each group of 32. As gpt-oss stores its experts, and as compressed-tensors stores matrices."""

from collections.abc import Callable
from functools import cache
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.core.arrays import Floats
from formats.core.errors import InputError
from formats.storage.block_layouts import FILED, ascending
from opmatrix.algebra.data import Numeric
from opmatrix.files.methods.grouped_levels import FLOAT32, made_tensor
from opmatrix.files.methods.module_parts import MethodSettings, ModuleParts, read_raw
from opmatrix.files.tensors import Tensor

HOLDER = "MXFP4"  # the type of blocks that hold such groups
FLOAT4_MAGNITUDES = 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0
FLOAT4_NUMBERS = np.array([*FLOAT4_MAGNITUDES, *(-number for number in FLOAT4_MAGNITUDES)], np.float32)
GROUP_NUMBERS, ONE_EXPONENT, NO_NUMBER = (
    32,
    127,
    255,
)  # numbers of a group; the exponent that stands for 1; the one that is NaN


class GroupsOfFloat4(NamedTuple):
    """The tensors of codes and of exponents, both of bytes."""

    codes: Tensor
    exponents: Tensor

    def read(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return the codes of each group (..., groups, 32) and its exponent (..., groups). Raises InputError for an
        exponent of NaN."""
        exponents, codes = read_raw(self.exponents), read_raw(self.codes)
        if len(wrong := np.argwhere(exponents == NO_NUMBER)):
            raise InputError(
                f"{self.exponents.file}: tensor {self.exponents.name!r} has nan at {wrong[0].tolist()}: scales must be "
                "finite numbers, so get the files again"
            )
        return np.stack([codes & 15, codes >> 4], -1).reshape(*exponents.shape, GROUP_NUMBERS), exponents

    def widen(self) -> Floats:
        """Return the numbers in float32, (..., numbers of a row). Raises InputError as `read`."""
        codes, exponents = self.read()
        numbers = np.ldexp(FLOAT4_NUMBERS[codes], exponents[..., None].astype(np.int32) - ONE_EXPONENT)
        return numbers.reshape(*exponents.shape[:-1], -1)

    def blocks(self) -> Numeric:
        """Return the blocks of the format that holds matrices of such groups, (outputs, groups). Raises InputError as
        `read`."""
        codes, exponents = self.read()
        flat = codes.reshape(-1, GROUP_NUMBERS)
        return FILED[HOLDER.lower()].made(ascending(flat), exponents.reshape(-1), None, None).reshape(exponents.shape)

    def holder(self) -> str:
        """Return the number type of blocks that hold these numbers; that of float32 where a power of two is below those
        of float32."""
        return HOLDER if read_raw(self.exponents).all() else FLOAT32

    def of_expert(self, e: int) -> "GroupsOfFloat4":
        """Return the tensors of one matrix of a stack."""
        parts = (part._replace(shape=part.shape[1:], start=part.start + e * prod(part.shape[1:])) for part in self)
        return GroupsOfFloat4(*parts)

    def tensor(self, name: str, number: str) -> Tensor:
        """Return a matrix (outputs, inputs) as a tensor of blocks, or of float32."""
        outputs, groups = self.exponents.shape
        made = self.widen if number == FLOAT32 else self.blocks
        return made_tensor(self.codes, name, (outputs, groups * GROUP_NUMBERS), made, number)

    def turned(self) -> Numeric:
        """Return the numbers of stacks of matrices, the last two axes exchanged."""
        return np.ascontiguousarray(self.widen().swapaxes(1, 2))


def mxfp4(settings: MethodSettings) -> Callable[[ModuleParts], Tensor]:
    """Build the function that reads the matrices of all experts, (experts, inputs, outputs) as in a plain gpt-oss, and
    apart from each other in blocks."""

    def read(module: ModuleParts) -> Tensor:
        """Read a stack of matrices. Raises InputError for tensors that are missing or do not fit."""
        codes = module.take("_blocks", ("U8",), None, None, None, GROUP_NUMBERS // 2)
        experts, outputs, groups, _ = codes.shape
        numbers = GroupsOfFloat4(codes, module.take("_scales", ("U8",), experts, outputs, groups))
        number = cache(numbers.holder)
        whole = made_tensor(codes, module.stem, (experts, groups * GROUP_NUMBERS, outputs), numbers.turned)
        return whole._replace(apart=lambda e: numbers.of_expert(e).tensor(f"{module.stem}[{e}]", number()))

    return read


def packed_float4(module: ModuleParts) -> Tensor:
    """Return a matrix as compressed-tensors stores it. Raises InputError for tensors that are missing or do not fit."""
    codes = module.take(".weight_packed", ("U8",), None, None)
    outputs, inputs = codes.shape[0], 2 * codes.shape[1]
    groups = module.count_groups(GROUP_NUMBERS, inputs)
    numbers = GroupsOfFloat4(codes, module.take(".weight_scale", ("U8",), outputs, groups))
    return numbers.tensor(f"{module.stem}.weight", numbers.holder())
