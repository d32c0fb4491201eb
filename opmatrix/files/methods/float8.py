"""Matrices of float8 (E4M3: Micikevicius et al. 2022, arXiv:2209.05433, table 1) with scales of blocks, outputs or all
numbers: as DeepSeek-V3 and transformers (`fp8`), FBGEMM, and compressed-tensors store them."""

from collections.abc import Callable
from functools import partial

import numpy as np

from formats.core.arrays import Floats
from formats.core.errors import InputError
from opmatrix.files.methods.grouped_levels import made_tensor
from opmatrix.files.methods.module_parts import FLOATS, MethodSettings, ModuleParts, read_raw
from opmatrix.files.tensors import Tensor

FLOAT8 = "F8_E4M3"
EXPONENT_BIAS, FRACTION_BITS = 7, 3  # of the exponent; bits of the fraction


def float8_numbers() -> Floats:
    """Return the numbers of all 256 bytes: a sign, four bits of exponent, three of fraction; no infinities."""
    codes = np.arange(128)
    exponent, fraction = codes >> FRACTION_BITS, codes & 7
    whole = np.where(exponent > 0, 8 + fraction, fraction)
    magnitude = np.ldexp(whole.astype(np.float32), np.maximum(exponent, 1) - EXPONENT_BIAS - FRACTION_BITS)
    magnitude[-1] = np.nan
    return np.concatenate([magnitude, -magnitude])


FLOAT8_NUMBERS = float8_numbers()


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
        return made_tensor(packed, f"{module.stem}.weight", packed.shape, partial(widen_float8, packed, scale, sides))

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
    return made_tensor(packed, f"{module.stem}.weight", packed.shape, partial(widen_float8, packed, scale, sides))


def widen_float8(packed: Tensor, scale: Tensor, sides: tuple[int, ...]) -> Floats:
    """Return numbers times the scales of their blocks, in float32. Raises InputError for a byte that is no number."""
    codes, scales = read_raw(packed), scale.read()
    if len(wrong := np.argwhere((codes & 127) == 127)):
        raise InputError(
            f"{packed.file}: tensor {packed.name!r} has nan at {wrong[0].tolist()}: weights must be finite numbers, so "
            "get or train it again"
        )
    array: Floats = FLOAT8_NUMBERS[codes]
    rows = np.arange(len(array)) // sides[0]
    array *= np.repeat(scales, sides[1], 1)[rows, : array.shape[1]]
    return array
