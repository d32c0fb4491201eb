"""compressed-tensors (the format of llm-compressor, https://github.com/vllm-project/compressed-tensors): levels in
words or bytes, float8 or MXFP4, with scales of groups, outputs or all numbers. Rounding of rows (`input_activations`)
is not computed."""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from formats.core.arrays import Floats
from formats.core.errors import InputError
from opmatrix.files.methods.float4 import GROUP_NUMBERS, packed_float4
from opmatrix.files.methods.float8 import scaled_float8
from opmatrix.files.methods.grouped_levels import GroupedLevels
from opmatrix.files.methods.module_parts import (
    ALL_INPUTS,
    FLOATS,
    INSTEAD,
    MethodSettings,
    ModuleParts,
    read_raw,
    unpack_words,
)
from opmatrix.files.tensors import Tensor

PACKED_WORDS, SIGNED_BYTES, PACKED_FLOAT8, PACKED_MXFP4 = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "mxfp4-pack-quantized",
)
SCALES_FOR = "tensor", "channel", "group"


def compressed_tensors(settings: MethodSettings) -> Callable[[ModuleParts], GroupedLevels | Tensor]:
    """Build the function that reads a matrix. Raises InputError for settings that are not read."""
    settings.choose("quantization_status", ("compressed",), "compressed")
    form = settings.choose("format", (PACKED_WORDS, SIGNED_BYTES, PACKED_FLOAT8, PACKED_MXFP4))
    weights = settings_of_weights(settings)
    if form == PACKED_MXFP4:
        weights.choose("group_size", (GROUP_NUMBERS,))
        return packed_float4
    weights.choose("type", ("float",) if form == PACKED_FLOAT8 else ("int",))
    bits = weights.choose("num_bits", (4, 8) if form == PACKED_WORDS else (8,))
    strategy = weights.choose("strategy", SCALES_FOR[:2] if form == PACKED_FLOAT8 else SCALES_FOR, "tensor")
    size = weights.group_size() if strategy == "group" else ALL_INPUTS

    def read(module: ModuleParts) -> GroupedLevels | Tensor:
        """Read a matrix. Raises InputError for tensors that are missing or do not fit."""
        if form == PACKED_FLOAT8:
            outputs, inputs = module.take(".weight", ("F8_E4M3",), None, None).shape
            return scaled_float8(module, ".weight_scale", (outputs if strategy == "tensor" else 1, inputs))
        packed, outputs, inputs = integers(module, form, bits)
        groups = module.count_groups(size, inputs)
        scales = module.take(".weight_scale", FLOATS, outputs if strategy != "tensor" else 1, groups)
        zeros = None
        if ".weight_zero_point" in module.parts:
            zeros = partial(zeros_of_rows, zeros_tensor(module, form, bits, scales.shape), bits, (outputs, groups))
        return GroupedLevels(
            packed,
            (outputs, inputs),
            groups,
            bits,
            partial(levels_of_words, packed, bits, inputs),
            partial(scales_of_rows, scales, outputs),
            zeros,
            module.order(".weight_g_idx", groups, inputs),
        )

    return read


def settings_of_weights(settings: MethodSettings) -> MethodSettings:
    """Return the settings of weights, which must be those of all groups of modules. Raises InputError for others."""
    groups = settings.below("config_groups")
    weights = [groups.below(name).below("weights") for name in groups.entries]
    if not weights:
        raise settings.wrong("config_groups", "settings of some modules")
    if any(other.entries != weights[0].entries for other in weights):
        raise InputError(
            f"{settings.file}: {groups.path} has weights of several kinds ({', '.join(groups.entries)}): one for all "
            f"modules is read: {INSTEAD}"
        )
    return weights[0]


def integers(module: ModuleParts, form: str, bits: int) -> tuple[Tensor, int, int]:
    """Return the tensor of levels, and the outputs and inputs of the matrix. Raises InputError as `take`."""
    if form == SIGNED_BYTES:
        packed = module.take(".weight", ("I8",), None, None)
        outputs, inputs = packed.shape
        return packed, outputs, inputs
    outputs, inputs = read_raw(module.take(".weight_shape", ("I64",), 2)).tolist()
    packed = module.take(".weight_packed", ("I32",), outputs, -(-inputs * bits // 32))
    return packed, outputs, inputs


def zeros_tensor(module: ModuleParts, form: str, bits: int, scales: tuple[int, ...]) -> Tensor:
    """Return the tensor of levels of zero, of words of adjacent outputs or of bytes. Raises InputError as `take`."""
    rows, groups = scales
    if form == PACKED_WORDS:
        return module.take(".weight_zero_point", ("I32",), -(-rows * bits // 32), groups)
    return module.take(".weight_zero_point", ("I8",), rows, groups)


def levels_of_words(packed: Tensor, bits: int, inputs: int) -> NDArray[np.uint8]:
    """Return the levels (outputs, inputs) of words or signed bytes of adjacent inputs, half of the levels added."""
    raw = read_raw(packed)
    if packed.number == "I8":
        return np.asarray(raw.view(np.uint8) ^ 128, np.uint8)
    return unpack_words(raw, bits).reshape(len(raw), -1)[:, :inputs]


def scales_of_rows(scales: Tensor, outputs: int) -> Floats:
    """Return scales (outputs, groups) in float32; a single one is repeated."""
    return np.broadcast_to(scales.read(), (outputs, scales.shape[1]))


def zeros_of_rows(packed: Tensor, bits: int, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Return the levels of zero (outputs, groups) of words of adjacent outputs, or of signed bytes, half of the levels
    added."""
    raw = read_raw(packed)
    if packed.number == "I8":
        return np.broadcast_to(raw.astype(np.int64) + 128, shape)
    levels = unpack_words(raw, bits).transpose(0, 2, 1).reshape(-1, shape[1])[: shape[0]]
    return np.broadcast_to(levels.astype(np.int64), shape)
