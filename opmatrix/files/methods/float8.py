"""Matrices of float8 (E4M3: Micikevicius et al. 2022, arXiv:2209.05433, table 1) with scales of blocks, outputs or all
numbers: as DeepSeek-V3 and transformers (`fp8`), FBGEMM, and compressed-tensors store them."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.core.arrays import Floats
from formats.core.block_layout import float8_values
from formats.core.errors import InputError
from formats.storage.block_layouts import FILED, LAYOUTS
from opmatrix.algebra.data import Numeric
from opmatrix.files.methods.grouped_levels import made_tensor
from opmatrix.files.methods.module_parts import FLOATS, MethodSettings, ModuleParts, read_raw
from opmatrix.files.tensors import Tensor

FLOAT8, FLOAT8_HOLDER = "F8_E4M3", "E4M3_128"  # number types of files, and of the blocks that hold them


FLOAT8_NUMBERS = float8_values()


class ScaledFloat8(NamedTuple):
    """A tensor of bytes (outputs, inputs), and that of the scales of its blocks of these sides, the last ones cut."""

    packed: Tensor
    scale: Tensor
    sides: tuple[int, ...]

    def read(self) -> NDArray[np.uint8]:
        """Return the bytes. Raises InputError for one that is no number."""
        codes: NDArray[np.uint8] = read_raw(self.packed)
        if len(wrong := np.argwhere((codes & 127) == 127)):
            raise InputError(
                f"{self.packed.file}: tensor {self.packed.name!r} has nan at {wrong[0].tolist()}: weights must be "
                "finite numbers, so get or train it again"
            )
        return codes

    def scales(self, size: int) -> Floats:
        """Return the scale of each group of `size` inputs, (outputs, groups); `size` divides the sides' inputs."""
        outputs, inputs = self.packed.shape
        rows, groups = np.arange(outputs) // self.sides[0], np.arange(inputs // size) * size // self.sides[1]
        scales: Floats = self.scale.read()
        return scales[rows[:, None], groups]

    def widen(self) -> Floats:
        """Return its numbers times their scales in float32. Raises InputError as `read`."""
        array: Floats = FLOAT8_NUMBERS[self.read()]
        array *= self.scales(1)
        return array

    def blocks(self) -> Numeric:
        """Return the blocks of the format that holds such numbers, (outputs, groups). Raises InputError as `read`."""
        name = FLOAT8_HOLDER.lower()
        size = LAYOUTS[name].inputs
        scales = self.scales(size)
        return FILED[name].made(self.read().reshape(-1, size), scales.reshape(-1), None, None).reshape(scales.shape)

    def tensor(self, name: str) -> Tensor:
        """Return it as a tensor: of blocks where whole ones lie within those of a scale each, else of float32."""
        size = LAYOUTS[FLOAT8_HOLDER.lower()].inputs
        if self.packed.shape[1] % size or self.sides[1] % size:
            return made_tensor(self.packed, name, self.packed.shape, self.widen)
        return made_tensor(self.packed, name, self.packed.shape, self.blocks, FLOAT8_HOLDER)


def fp8(settings: MethodSettings) -> Callable[[ModuleParts], Tensor]:
    """Build the function that reads a matrix of blocks, or of one scale where no size of blocks is set. Rounding of
    rows is not computed. Raises InputError for settings that are not read."""
    settings.choose("fmt", ("e4m3",), "e4m3")
    settings.choose("activation_scheme", ("dynamic", "static"), "dynamic")
    match settings.entries.get("weight_block_size"):
        case None:
            sides = None
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            sides = rows, columns
        case _:
            raise settings.wrong("weight_block_size", "two positive whole numbers, outputs and inputs")

    def read(module: ModuleParts) -> Tensor:
        """Read a matrix. Raises InputError for tensors that are missing or do not fit."""
        ending = ".weight_scale_inv" if ".weight_scale_inv" in module.parts else ".weight_scale"
        packed = module.take(".weight", (FLOAT8,), None, None)
        if sides is None:
            return scaled_float8(module, ending, packed.shape)
        blocks = [-(-length // side) for length, side in zip(packed.shape, sides, strict=True)]
        scale = module.take(ending, FLOATS, *blocks)
        return ScaledFloat8(packed, scale, sides).tensor(f"{module.stem}.weight")

    return read


def fbgemm_fp8(settings: MethodSettings) -> Callable[[ModuleParts], Tensor]:
    """Build the function that reads a matrix with a scale for each output."""

    def read(module: ModuleParts) -> Tensor:
        """Read a matrix. Raises InputError for tensors that are missing or do not fit."""
        packed = module.take(".weight", (FLOAT8,), None, None)
        module.take(".weight_scale", FLOATS, packed.shape[0], 1)
        return scaled_float8(module, ".weight_scale", (1, packed.shape[1]))

    return read


def scaled_float8(module: ModuleParts, ending: str, sides: tuple[int, ...]) -> Tensor:
    """Return a matrix of float8 whose blocks of these sides have a scale each. Raises InputError for tensors that are
    missing or do not fit."""
    packed = module.take(".weight", (FLOAT8,), None, None)
    blocks = [length // side for length, side in zip(packed.shape, sides, strict=True)]
    scale = module.take(ending, FLOATS, *blocks)
    return ScaledFloat8(packed, scale, sides).tensor(f"{module.stem}.weight")
