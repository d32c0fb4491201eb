"""MXFP4 (OCP Microscaling Formats 1.0, 2023): numbers of float4 (E2M1), two to a byte, the first in the low half, with
a power of two for each group of 32. As gpt-oss stores its experts, and as compressed-tensors stores matrices."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from formats.core.arrays import Floats
from formats.core.errors import InputError
from opmatrix.algebra.data import Numeric
from opmatrix.files.methods.grouped_levels import made_tensor
from opmatrix.files.methods.module_parts import MethodSettings, ModuleParts, read_raw
from opmatrix.files.tensors import Tensor

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

    def widen(self) -> Floats:
        """Return the numbers in float32, (..., numbers of a row). Raises InputError for an exponent of NaN."""
        exponents, codes = read_raw(self.exponents), read_raw(self.codes)
        if len(wrong := np.argwhere(exponents == NO_NUMBER)):
            raise InputError(
                f"{self.exponents.file}: tensor {self.exponents.name!r} has nan at {wrong[0].tolist()}: scales must be "
                "finite numbers, so get the files again"
            )
        halves = np.stack([codes & 15, codes >> 4], -1).reshape(*exponents.shape, GROUP_NUMBERS)
        numbers = np.ldexp(FLOAT4_NUMBERS[halves], exponents[..., None].astype(np.int32) - ONE_EXPONENT)
        return numbers.reshape(*exponents.shape[:-1], -1)

    def turned(self) -> Numeric:
        """Return the numbers of stacks of matrices, the last two axes exchanged."""
        return np.ascontiguousarray(self.widen().swapaxes(1, 2))


def mxfp4(settings: MethodSettings) -> Callable[[ModuleParts], Tensor]:
    """Build the function that reads the matrices of all experts, (experts, inputs, outputs) as in a plain gpt-oss."""

    def read(module: ModuleParts) -> Tensor:
        """Read a stack of matrices. Raises InputError for tensors that are missing or do not fit."""
        codes = module.take("_blocks", ("U8",), None, None, None, GROUP_NUMBERS // 2)
        experts, outputs, groups, _ = codes.shape
        numbers = GroupsOfFloat4(codes, module.take("_scales", ("U8",), experts, outputs, groups))
        return made_tensor(codes, module.stem, (experts, groups * GROUP_NUMBERS, outputs), numbers.turned)

    return read


def packed_float4(module: ModuleParts) -> Tensor:
    """Return a matrix as compressed-tensors stores it. Raises InputError for tensors that are missing or do not fit."""
    codes = module.take(".weight_packed", ("U8",), None, None)
    outputs, inputs = codes.shape[0], 2 * codes.shape[1]
    groups = module.count_groups(GROUP_NUMBERS, inputs)
    numbers = GroupsOfFloat4(codes, module.take(".weight_scale", ("U8",), outputs, groups))
    return made_tensor(codes, f"{module.stem}.weight", (outputs, inputs), numbers.widen)
