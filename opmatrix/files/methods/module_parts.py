"""The settings of a quantisation method, and the tensors that a checkpoint stores in place of a matrix."""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from opmatrix.algebra.data import Numeric
from opmatrix.files.tensors import Tensor, format_shape

SettingValue = TypeVar("SettingValue")

FLOATS = "F16", "BF16", "F32"
RAW = {"I32": "<u4", "U8": "u1", "I8": "i1", "F8_E4M3": "u1", "I64": "<i8"}  # number types that are read as they are
ALL_INPUTS = -1  # the group size of groups that hold all inputs
INSTEAD = "take another quantisation of the model, or save it dequantised"


class MethodSettings(NamedTuple):
    """The entries of a config's quantization_config, and their file. `path` leads to the entries."""

    entries: Mapping[str, object]
    file: Path
    path: str = "quantization_config"

    def wrong(self, key: str, wanted: str) -> InputError:
        """Return the error for an entry that is not as wanted."""
        value = self.entries.get(key)
        return InputError(f"{self.file}: {self.path}.{key} is {value!r:.80}: it must be {wanted}: {INSTEAD}")

    def choose(self, key: str, allowed: Sequence[SettingValue], usual: SettingValue | None = None) -> SettingValue:
        """Return an entry, or the usual one where it is left out. Raises InputError for one that is not allowed."""
        value = self.entries.get(key, usual)
        for choice in allowed:
            if value == choice and type(value) is type(choice):
                return choice
        raise self.wrong(key, " or ".join(map(repr, allowed)))

    def group_size(self) -> int:
        """Return the inputs of a group, ALL_INPUTS for all of them. Raises InputError for another entry."""
        size = self.entries.get("group_size")
        if type(size) is int and (size > 0 or size == ALL_INPUTS):
            return size
        raise self.wrong("group_size", "a positive whole number, or -1 for all inputs")

    def below(self, key: str) -> "MethodSettings":
        """Return the settings of an entry that is an object. Raises InputError for any other."""
        inner = self.entries.get(key)
        if isinstance(inner, dict):
            return MethodSettings(inner, self.file, f"{self.path}.{key}")
        raise self.wrong(key, "an object of settings")


class ModuleParts(NamedTuple):
    """The tensors of a matrix by the endings of their names behind the stem, and the settings of its method."""

    stem: str
    parts: Mapping[str, Tensor]
    settings: MethodSettings

    def take(self, ending: str, numbers: Sequence[str], *shape: int | None) -> Tensor:
        """Return a tensor of one of some number types and of this shape, None for any side; a single number may be of
        any shape. Raises InputError for one that is missing, empty, or of another type or shape."""
        file = next(iter(self.parts.values())).file
        if (tensor := self.parts.get(ending)) is None:
            raise InputError(f"{file}: tensor {self.stem + ending!r} is missing beside its others: get the files again")
        if tensor.number not in numbers:
            raise InputError(
                f"{tensor.file}: tensor {tensor.name!r} has number type {tensor.number}, not {' or '.join(numbers)}, "
                f"as {self.settings.path} of {self.settings.file.name} leads to: {INSTEAD}"
            )
        if shape == (1, 1) and tensor.shape in ((), (1,)):
            tensor = tensor._replace(shape=(1, 1))
        if 0 in tensor.shape:
            raise InputError(
                f"{tensor.file}: tensor {tensor.name!r} is {format_shape(tensor.shape)}: it holds no numbers: get the "
                "files again"
            )
        sides = [side if side is not None else actual for side, actual in zip(shape, tensor.shape, strict=False)]
        if tensor.shape != tuple(sides) or len(shape) != len(sides):
            wanted = " × ".join("any" if side is None else str(side) for side in shape)
            raise InputError(
                f"{tensor.file}: tensor {tensor.name!r} is {format_shape(tensor.shape)}, "
                f"but {self.settings.path} of {self.settings.file} leads to {wanted}: check its entries, or get the "
                "files again"
            )
        return tensor

    def count_groups(self, size: int, inputs: int) -> int:
        """Return the groups of `size` inputs. Raises InputError for a size that does not divide the inputs."""
        if size == ALL_INPUTS:
            return 1
        if inputs % size:
            raise InputError(
                f"{self.settings.file}: {self.settings.path}.group_size is {size}: it does not divide the {inputs} "
                f"inputs of {self.stem!r}: check it, or {INSTEAD}"
            )
        return inputs // size

    def order(self, ending: str, groups: int, inputs: int) -> NDArray[np.int64] | None:
        """Return the group of each input, None where groups are of adjacent inputs. Raises InputError as `take`, and
        for a group that is not there."""
        if ending not in self.parts:
            return None
        tensor = self.take(ending, ("I32",), inputs)
        order = read_raw(tensor).view(np.int32).astype(np.int64)
        if len(wrong := np.flatnonzero((order < 0) | (order >= groups))):
            at = int(wrong[0])
            raise InputError(
                f"{tensor.file}: tensor {tensor.name!r} puts input {at} into group {order[at]}, of {groups} groups: "
                "get the files again"
            )
        return None if np.array_equal(order, np.arange(inputs) * groups // inputs) else order


def read_raw(tensor: Tensor) -> Numeric:
    """Return the numbers of a tensor as its file has them, int32 as uint32 and float8 as bytes. Raises InputError as
    `Tensor.read_blocks`."""
    return tensor.read_blocks(np.dtype(RAW[tensor.number]), prod(tensor.shape)).reshape(tensor.shape)


def unpack_words(words: NDArray[np.uint32], bits: int) -> NDArray[np.uint8]:
    """Return the levels of words (..., 32 / bits), the lowest bits first; `bits` is 4 or 8."""
    octets = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)
    if bits == 8:
        return octets
    return np.stack([octets & 15, octets >> 4], -1).reshape(*words.shape, 8)
