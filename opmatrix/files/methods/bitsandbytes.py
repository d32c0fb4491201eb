"""bitsandbytes of four bits (Dettmers et al. 2023, arXiv:2305.14314, section 3): two codes to a byte, the first in the
high half, of a table of 16 numbers, with a scale for each run of numbers of a matrix read row by row; scales may be
codes of bytes themselves, with scales of runs and an offset, which are widened to float32. A matrix of the usual table
stays blocks where runs are whole blocks of rows."""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.core.arrays import Floats
from formats.core.errors import InputError
from formats.disk.files import parse_json
from formats.storage.block_layouts import FILED, LAYOUTS
from opmatrix.algebra.data import Numeric
from opmatrix.files.methods.grouped_levels import FLOAT32, made_tensor
from opmatrix.files.methods.module_parts import MethodSettings, ModuleParts, read_raw
from opmatrix.files.tensors import Tensor

CODE_TABLES = "nf4", "fp4"
HOLDER = "{}_64"  # the number type of blocks that hold codes of a usual table, by its name
STATE_ENDING = ".weight.quant_state.bitsandbytes__"  # the ending of a tensor of JSON, before the kind
HALF_CODES, BYTE_CODES = 16, 256  # numbers of the tables


class NestedScales(NamedTuple):
    """Scales that are codes of bytes: their table, the scales of runs of them, the length of a run, an offset."""

    codes: Tensor
    table: Tensor
    scales: Tensor
    run: int
    offset: float

    def read(self) -> Floats:
        """Return the scales in float32."""
        codes = read_raw(self.codes)
        steps = np.repeat(self.scales.read(), self.run)[: len(codes)]
        return np.asarray(self.table.read()[codes] * steps + np.float32(self.offset), np.float32)


class CodedRuns(NamedTuple):
    """A matrix (outputs, inputs) of codes of a table, row by row, with a scale for each run of them."""

    codes: Tensor
    table: Tensor
    scales: Callable[[], Floats]
    run: int
    shape: tuple[int, int]

    def read(self) -> NDArray[np.uint8]:
        """Return the codes of all numbers."""
        packed = read_raw(self.codes)
        return np.stack([packed >> 4, packed & 15], -1).reshape(-1)[: prod(self.shape)]

    def holder(self, number: str) -> str:
        """Return a number type of blocks if such blocks hold the same numbers; that of float32 otherwise."""
        layout = LAYOUTS[number.lower()]
        usual = np.array_equal(self.table.read(), layout.values)
        return FLOAT32 if self.run % layout.inputs or self.shape[1] % layout.inputs or not usual else number

    def blocks(self, number: str) -> Numeric:
        """Return its blocks of a number type, (outputs, blocks)."""
        name = number.lower()
        codes = self.read().reshape(-1, LAYOUTS[name].inputs)
        scales = np.repeat(self.scales(), self.run // LAYOUTS[name].inputs)[: len(codes)]
        return FILED[name].made(codes, scales, None, None).reshape(self.shape[0], -1)

    def widen(self) -> Floats:
        """Return its numbers, row by row, in float32."""
        numbers: Floats = self.table.read()[self.read()]
        numbers *= np.repeat(self.scales(), self.run)[: len(numbers)]
        return numbers


def bitsandbytes(settings: MethodSettings) -> Callable[[ModuleParts], Tensor]:
    """Build the function that reads a matrix. Raises InputError for settings that are not read."""
    settings.choose("load_in_8bit", (False,), False)
    settings.choose("load_in_4bit", (True,))
    kind = settings.choose("bnb_4bit_quant_type", CODE_TABLES, "fp4")

    def read(module: ModuleParts) -> Tensor:
        """Read a matrix. Raises InputError for tensors that are missing or do not fit."""
        state = module.take(STATE_ENDING + kind, ("U8",), None)
        shape, run, nested = read_quant_state(state)
        size = prod(shape)
        codes = module.take(".weight", ("U8",), -(-size // 2), 1)
        run = min(run, size)
        count = -(-size // run)
        table = module.take(".weight.quant_map", ("F32",), HALF_CODES)
        scales: Callable[[], Floats]
        if nested is None:
            scales = module.take(".weight.absmax", ("F32",), count).read
        else:
            runs, offset = min(nested[0], count), nested[1]
            inner = NestedScales(
                module.take(".weight.absmax", ("U8",), count),
                module.take(".weight.nested_quant_map", ("F32",), BYTE_CODES),
                module.take(".weight.nested_absmax", ("F32",), -(-count // runs)),
                runs,
                offset,
            )
            scales = inner.read
        coded = CodedRuns(codes, table, scales, run, shape)
        number = coded.holder(HOLDER.format(kind.upper()))
        make = coded.widen if number == FLOAT32 else partial(coded.blocks, number)
        return made_tensor(codes, f"{module.stem}.weight", shape, make, number)

    return read


def read_quant_state(state: Tensor) -> tuple[tuple[int, int], int, tuple[int, float] | None]:
    """Return the shape of a matrix, the numbers of a run that share a scale, and the scales of a run of scales with
    their offset, None where scales are no codes. Raises InputError for a state that does not tell them."""
    entries = parse_json(read_raw(state).tobytes(), f"{state.file}: tensor {state.name!r}")
    match entries:
        case {"shape": [int(outputs), int(inputs)], "blocksize": int(run), "nested_blocksize": int(runs)} if min(
            outputs, inputs, run, runs
        ) > 0 and isinstance(offset := entries.get("nested_offset"), float):
            return (int(outputs), int(inputs)), run, (runs, offset)
        case {"shape": [int(outputs), int(inputs)], "blocksize": int(run)} if (
            min(outputs, inputs, run) > 0 and "nested_blocksize" not in entries
        ):
            return (int(outputs), int(inputs)), run, None
    raise InputError(
        f"{state.file}: tensor {state.name!r} is {entries!r:.200}: it must have a shape of two sides and a blocksize, "
        "and nested_blocksize with nested_offset or neither: get the files again"
    )
