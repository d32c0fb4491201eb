"""The tensors of a quantised checkpoint as those of a plain one: a matrix in place of what its method stores of it."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from opmatrix.files.methods.awq import awq
from opmatrix.files.methods.bitsandbytes import CODE_TABLES, STATE_ENDING, bitsandbytes
from opmatrix.files.methods.compressed_tensors import compressed_tensors
from opmatrix.files.methods.float4 import mxfp4
from opmatrix.files.methods.float8 import fbgemm_fp8, fp8
from opmatrix.files.methods.gptq import gptq
from opmatrix.files.methods.grouped_levels import GroupedLevels, choose_holder
from opmatrix.files.methods.module_parts import MethodSettings, ModuleParts
from opmatrix.files.tensors import Tensor, numberless

QUANT_METHOD = "quant_method"
ReadModule = Callable[[ModuleParts], GroupedLevels | Tensor]


class QuantMethod(NamedTuple):
    """A quantisation method: the function that reads its settings and returns the one that reads a matrix, the endings
    of names by which a quantised matrix is told, and those of its other tensors."""

    start: Callable[[MethodSettings], ReadModule]
    marks: tuple[str, ...]
    beside: tuple[str, ...]


QUANT_METHODS = {  # by quantization_config.quant_method
    "gptq": QuantMethod(gptq, (".qweight",), (".qzeros", ".scales", ".g_idx")),
    "awq": QuantMethod(awq, (".qweight",), (".qzeros", ".scales")),
    "compressed-tensors": QuantMethod(
        compressed_tensors,
        (".weight_scale",),
        (
            ".weight",
            ".weight_packed",
            ".weight_shape",
            ".weight_zero_point",
            ".weight_g_idx",
            ".input_scale",
            ".input_zero_point",
        ),
    ),
    "fp8": QuantMethod(fp8, (".weight_scale_inv", ".weight_scale"), (".weight", ".activation_scale", ".input_scale")),
    "fbgemm_fp8": QuantMethod(fbgemm_fp8, (".weight_scale",), (".weight", ".input_scale_ub")),
    mxfp4.__name__: QuantMethod(mxfp4, ("_blocks",), ("_scales",)),
    "bitsandbytes": QuantMethod(
        bitsandbytes,
        (".weight.absmax",),
        (
            ".weight",
            ".weight.quant_map",
            ".weight.nested_absmax",
            ".weight.nested_quant_map",
            *(STATE_ENDING + kind for kind in CODE_TABLES),
        ),
    ),
}


def plain_weights(config: dict[str, object], file: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint, each quantised matrix as one tensor, called as in a plain checkpoint.
    Raises InputError for a method or settings that are not read, tensors that are missing or do not fit, and scales
    that are not finite."""
    settings = MethodSettings(config, file)
    method = QUANT_METHODS.get(name) if isinstance(name := config.get(QUANT_METHOD), str) else None
    if method is None:
        raise settings.wrong(QUANT_METHOD, f"one of {', '.join(QUANT_METHODS)}")
    read, plain = method.start(settings), dict(tensors)
    grouped = defaultdict[str, dict[str, GroupedLevels]](dict)
    stems = dict.fromkeys(name.removesuffix(mark) for name in tensors for mark in method.marks if name.endswith(mark))
    for stem in stems:
        endings = [ending for ending in (*method.marks, *method.beside) if stem + ending in tensors]
        made = read(ModuleParts(stem, {ending: plain.pop(stem + ending) for ending in endings}, settings))
        if isinstance(made, Tensor):
            plain[made.name] = made
        else:
            grouped[numberless(stem)][f"{stem}.weight"] = made
    for alike in grouped.values():
        number = choose_holder(alike.values())
        plain |= {name: matrix.tensor(name, number) for name, matrix in alike.items()}
    return plain
