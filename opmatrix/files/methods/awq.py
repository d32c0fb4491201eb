"""AWQ (Lin et al. 2023, arXiv:2306.00978) as AutoAWQ stores it for its gemm kernels: a word has eight adjacent outputs,
the even ones first."""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from opmatrix.files.methods.gptq import scales_of
from opmatrix.files.methods.grouped_levels import GroupedLevels
from opmatrix.files.methods.module_parts import FLOATS, MethodSettings, ModuleParts, read_raw, unpack_words
from opmatrix.files.tensors import Tensor

LEVEL_BITS, WORD_LEVELS = 4, 8  # bits of a level; levels of a word
WORD_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]  # the place in a word of each of its outputs


def awq(settings: MethodSettings) -> Callable[[ModuleParts], GroupedLevels]:
    """Build the function that reads a matrix of AWQ. Raises InputError for settings that are not read."""
    settings.choose("bits", (LEVEL_BITS,))
    settings.choose("version", ("gemm", "GEMM"), "gemm")
    settings.choose("zero_point", (True,), True)
    size = settings.group_size()

    def read(module: ModuleParts) -> GroupedLevels:
        """Read a matrix. Raises InputError for tensors that are missing or do not fit."""
        packed = module.take(".qweight", ("I32",), None, None)
        inputs, outputs = packed.shape[0], packed.shape[1] * WORD_LEVELS
        groups = module.count_groups(size, inputs)
        scales = module.take(".scales", FLOATS, groups, outputs)
        zeros = module.take(".qzeros", ("I32",), groups, outputs // WORD_LEVELS)
        return GroupedLevels(
            packed,
            (outputs, inputs),
            groups,
            LEVEL_BITS,
            partial(levels_of_rows, packed),
            partial(scales_of, scales),
            partial(levels_of_rows, zeros),
        )

    return read


def levels_of_rows(packed: Tensor) -> NDArray[np.uint8]:
    """Return the levels (outputs, rows) of words (rows, outputs / 8)."""
    words = read_raw(packed)
    return unpack_words(words, LEVEL_BITS)[..., WORD_PLACES].reshape(len(words), -1).T
