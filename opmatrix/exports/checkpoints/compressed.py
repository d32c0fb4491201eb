"""Whole numbers times scales as the tensors and the configuration of compressed-tensors
(https://github.com/vllm-project/compressed-tensors), which transformers and vLLM read."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.core.arrays import Floats
from formats.storage.format import WholeNumbers
from opmatrix.exports.checkpoints.stored_numbers import StoredNumbers
from opmatrix.files.methods.module_parts import unpack_words

WORD_BITS = 32
BYTES_FORMAT, PACKED_FORMAT, MIXED_FORMAT = "int-quantized", "pack-quantized", "mixed-precision"  # of the package
PACKED_PARTS = "weight_packed", "weight_scale", "weight_shape"  # tensors of a weight; of bytes it has two
SAFETENSORS = {"int8": "I8", "int32": "I32", "int64": "I64", "float32": "F32"}  # number types, by their names in files


class Scheme(NamedTuple):
    """A scheme of weights: bits of a number, inputs that share a scale (None: all), and the format of its tensors.
    `rounds`: rows are rounded to bytes by their own largest number before the product."""

    bits: int
    group: int | None
    format: str
    rounds: bool

    @classmethod
    def of(cls, whole: WholeNumbers) -> "Scheme":
        """Return the scheme of a weight: bytes with a scale an output are multiplied as bytes, others are packed."""
        group = None if whole.group == len(whole.whole) else whole.group
        plain = whole.bits == 8 and group is None and whole.rounds
        return cls(whole.bits, group, BYTES_FORMAT if plain else PACKED_FORMAT, plain)

    def described(self, targets: list[str]) -> dict[str, object]:
        """Return the scheme of modules with these names, as a group of the configuration."""
        strategy = "channel" if self.group is None else "group"
        rows = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
        weights = {"num_bits": self.bits, "type": "int", "symmetric": True, "strategy": strategy, "dynamic": False}
        return {
            "targets": targets,
            "weights": weights | {"group_size": self.group},
            "input_activations": rows if self.rounds else None,
            "output_activations": None,
            "format": self.format,
        }


def describe_schemes(tensors: Mapping[str, StoredNumbers]) -> dict[str, object]:
    """Return the `quantization_config` of tensors by their names in files; empty where none is of whole numbers."""
    targets = dict[Scheme, list[str]]()
    for name, tensor in tensors.items():
        if tensor.whole is not None:
            targets.setdefault(Scheme.of(tensor.whole), []).append(name.removesuffix(".weight"))
    if not targets:
        return {}
    formats = {scheme.format for scheme in targets}
    groups = {f"group_{at}": scheme.described(names) for at, (scheme, names) in enumerate(targets.items())}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": formats.pop() if len(formats) == 1 else MIXED_FORMAT,
        "config_groups": groups,
        "ignore": [],
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def compress(name: str, whole: WholeNumbers) -> dict[str, NDArray[np.generic]]:
    """Return the tensors of a weight by their names in files. Scales are a row an output; those of zeros are 1, so that
    nothing is divided by 0."""
    numbers = np.ascontiguousarray(whole.whole.T)
    scale = np.ascontiguousarray(np.where(whole.scale != 0, whole.scale, np.float32(1)).T)
    if Scheme.of(whole).format == BYTES_FORMAT:
        arrays = [numbers, scale]
    else:
        arrays = [pack(numbers, whole.bits), scale, np.array(numbers.shape, np.int64)]
    return dict(zip(part_names(name, whole), arrays, strict=True))


def part_names(name: str, whole: WholeNumbers) -> list[str]:
    """Return the names of the tensors of a weight in files."""
    module = name.removesuffix("weight")
    if Scheme.of(whole).format == BYTES_FORMAT:
        return [name, f"{module}weight_scale"]
    return [f"{module}{part}" for part in PACKED_PARTS]


def pack(numbers: NDArray[np.int8], bits: int) -> NDArray[np.int32]:
    """Return whole numbers (p, n), half of their range added, as words of 32 bits (p, n bits / 32), the first lowest;
    the last word is filled up with zeros."""
    count = WORD_BITS // bits
    levels = numbers.astype(np.int64) + (1 << bits - 1)
    padded = np.pad(levels, ((0, 0), (0, -levels.shape[1] % count))).reshape(len(levels), -1, count)
    words = np.bitwise_or.reduce(padded << bits * np.arange(count), 2)
    return np.asarray(words.astype(np.uint32).view(np.int32), np.int32)


def decompress(name: str, tensors: Mapping[str, NDArray[np.generic]], bits: int) -> Floats:
    """Return the weight (p, n) in float32 of the tensors of a module whose packed numbers have so many bits, as the
    package widens them."""
    module = name.removesuffix("weight")
    scale = np.asarray(tensors[f"{module}weight_scale"], np.float32)
    if name in tensors:
        return np.asarray(tensors[name], np.float32) * scale
    packed, _, shape = (tensors[f"{module}{part}"] for part in PACKED_PARTS)
    outputs, inputs = shape.tolist()
    levels = unpack_words(packed.view(np.uint32), bits).reshape(outputs, -1)[:, :inputs]
    whole = levels.astype(np.float32) - np.float32(1 << bits - 1)
    return np.asarray(whole * np.repeat(scale, inputs // scale.shape[1], 1), np.float32)
