"""GPTQ (Frantar et al. 2022, arXiv:2210.17323) as AutoGPTQ and GPTQModel store it: a word of qweight has levels of
adjacent inputs, one of qzeros levels of zero of adjacent outputs; scales has a number a group, g_idx the group of each
input."""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from formats.core.arrays import Floats
from opmatrix.files.methods.grouped_levels import GroupedLevels
from opmatrix.files.methods.module_parts import FLOATS, MethodSettings, ModuleParts, read_raw, unpack_words
from opmatrix.files.tensors import Tensor

FIRST_VERSION, SECOND_VERSION = "gptq", "gptq_v2"  # the first version stores the level of zero less one
LEVEL_ONES = {4: 0x11111111, 8: 0x01010101}  # a one for each level of a word


def gptq(settings: MethodSettings) -> Callable[[ModuleParts], GroupedLevels]:
    """Build the function that reads a matrix of GPTQ. Raises InputError for settings that are not read."""
    bits = settings.choose("bits", (4, 8))
    version = settings.choose(
        "format" if "format" in settings.entries else "checkpoint_format",
        (FIRST_VERSION, SECOND_VERSION),
        FIRST_VERSION,
    )
    settings.choose("is_marlin_format", (False,), False)
    settings.choose("pack_dtype", ("int32",), "int32")
    size, offset = settings.group_size(), LEVEL_ONES[bits] if version == FIRST_VERSION else 0
    rules = settings.entries.get("dynamic") or {}
    if not isinstance(rules, dict) or any(not str(rule).startswith("-:") for rule in rules):
        raise settings.wrong("dynamic", "left out, or of rules that leave modules out")

    def read(module: ModuleParts) -> GroupedLevels:
        """Read a matrix. Raises InputError for tensors that are missing or do not fit."""
        packed = module.take(".qweight", ("I32",), None, None)
        inputs, outputs = packed.shape[0] * 32 // bits, packed.shape[1]
        groups = module.count_groups(size, inputs)
        scales = module.take(".scales", FLOATS, groups, outputs)
        zeros = module.take(".qzeros", ("I32",), groups, -(-outputs * bits // 32))
        return GroupedLevels(
            packed,
            (outputs, inputs),
            groups,
            bits,
            partial(levels_of_columns, packed, bits),
            partial(scales_of, scales),
            partial(zeros_of, zeros, bits, offset, outputs),
            module.order(".g_idx", groups, inputs),
        )

    return read


def levels_of_columns(packed: Tensor, bits: int) -> NDArray[np.uint8]:
    """Return the levels (outputs, inputs) of words (inputs · bits / 32, outputs)."""
    words = read_raw(packed)
    return unpack_words(words, bits).transpose(1, 0, 2).reshape(words.shape[1], -1)


def scales_of(scales: Tensor) -> Floats:
    """Return scales (outputs, groups) of a tensor (groups, outputs), in float32."""
    return scales.read().T


def zeros_of(packed: Tensor, bits: int, offset: int, outputs: int) -> NDArray[np.int64]:
    """Return the levels of zero (outputs, groups) of words (groups, outputs · bits / 32), to each of which `offset` is
    added as a whole: a word keeps what a level of -1 borrows from the next."""
    words = read_raw(packed) + np.uint32(offset)
    levels = unpack_words(words, bits).reshape(len(words), -1)[:, :outputs]
    return levels.T.astype(np.int64)
