"""Safetensors: eight bytes of length, a JSON header with the place of each array, then the arrays, without gaps.
Weights that have a matrix for each expert are stored one by one, or fused in one tensor. Either way each matrix is read
into its place, so that no matrix is in memory twice and both give the same numbers."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from formats.disk.files import open_regular, parse_json
from opmatrix.algebra.data import Numeric, split_pairs
from opmatrix.files.quantised import STORED, BlockType

if TYPE_CHECKING:
    from opmatrix.models.config import StackNames

NUMBER_BYTES = {
    number: int(bits) // 8
    for bits, several in {
        "8": "BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0",
        "16": "U16 I16 F16 BF16",
        "32": "U32 I32 F32",
        "64": "U64 I64 F64 C64",
    }.items()
    for number in several.split()
}  # bytes of a number, by the number types of the format
MAX_HEADER_BYTES, MAX_AXES, MAX_NAME_LETTERS = 1 << 24, 8, 200  # bytes of a header; axes of an array; letters of a name


@dataclass(frozen=True, eq=False)
class HeldBytes:
    """The bytes of a tensor of a model in memory, shared with it; equal to themselves alone."""

    numbers: NDArray[np.uint8]


class Tensor(NamedTuple):
    """The place of a tensor: its file, its name and number type there, its shape, its first byte. `pairs`: the number
    of heads whose rows are interleaved, each beside its partner of the head's second half, as in GGUF files; 0:
    none. `held`: its bytes, of a model in memory, whose name is in place of the file. `made`: the function that makes
    its blocks of those of other tensors, for a quantised checkpoint; `apart`, of a stack, the one that gives the
    transpose of a matrix by its number."""

    file: Path
    name: str
    number: str
    shape: tuple[int, ...]
    start: int
    pairs: int = 0
    held: HeldBytes | None = None
    made: Callable[[], Numeric] | None = None
    apart: Callable[[int], Tensor] | None = None

    def matrix(self, at: int, first: int, rows: int) -> Tensor:
        """Return `rows` rows, from `first` on, of matrix `at` of a tensor of three axes, as a tensor of its own."""
        _, height, width = self.shape
        block = STORED[self.number] if self.number in STORED else STORED["F32"]  # reading refuses other types later
        skipped = (at * height + first) * width // block.numbers * block.block.itemsize
        return self._replace(
            name=f"{self.name}[{at}, {first}:{first + rows}]", shape=(rows, width), start=self.start + skipped
        )

    def read(self) -> NDArray[np.float32]:
        """Read the tensor in float32. Raises InputError for an unsupported number type, or an entry that is not finite
        in float32."""
        return self.read_both()[0]

    def kept_type(self) -> BlockType | None:
        """Return the type of its blocks, if it is a matrix whose blocks a format holds."""
        stored = STORED.get(self.number)
        return stored if stored and stored.kept and len(self.shape) == 2 else None

    def read_filed(self) -> Numeric:
        """Read its blocks (rows, groups), of a type that a format holds. Raises InputError if the file ends before, or
        for a scale that is not finite, with the number that it leads to."""
        stored = STORED[self.number]
        blocks = self.read_blocks(stored.block, prod(self.shape) // stored.numbers).reshape(self.shape[0], -1)
        if not stored.leads_to_finite(blocks):
            self.read()
        return split_pairs(blocks, self.pairs) if self.pairs else blocks

    def read_both(self) -> tuple[NDArray[np.float32], Numeric | None]:
        """Read the tensor in float32, and its blocks (rows, groups) if a format holds them. Raises as `read`."""
        if self.number not in STORED:
            raise InputError(
                f"{self.file}: tensor {self.name!r} has number type {self.number}: convert it to one of "
                + ", ".join(name for name in STORED if name in NUMBER_BYTES)
            )
        block, size, widen, has_format, *_ = STORED[self.number]
        numbers = self.read_blocks(block, prod(self.shape) // size)
        with np.errstate(over="ignore", invalid="ignore"):
            array = widen(numbers).reshape(-1)
        if not (finite := np.isfinite(array)).all():
            at = int(np.argmin(finite))
            first = [int(i) for i in np.unravel_index(at, self.shape)]
            value = numbers[at] if numbers.dtype.kind == "f" else array[at]
            raise InputError(
                f"{self.file}: tensor {self.name!r} has {value} at {first}: weights must be finite numbers"
                + (" of float32, at most 3.4e38" if np.isfinite(value) else ", so get or train it again")
            )
        blocks = numbers.reshape(*self.shape[:-1], -1) if has_format and len(self.shape) == 2 else None
        array = array.reshape(self.shape)
        if not self.pairs:
            return array, blocks
        return split_pairs(array, self.pairs), None if blocks is None else split_pairs(blocks, self.pairs)

    def read_blocks(self, block: np.dtype[np.generic], count: int) -> Numeric:
        """Read `count` blocks from its first byte on; of a model in memory they are a view. Raises InputError if the
        file ends before."""
        if self.made is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                blocks = self.made()
            return blocks.reshape(-1)[self.start // block.itemsize :][:count]
        if self.held is not None:
            return self.held.numbers[self.start : self.start + count * block.itemsize].view(block)
        with open_regular(self.file) as raw:
            raw.seek(self.start)
            numbers = np.fromfile(raw, block, count)
        if len(numbers) != count:
            raise InputError(f"{self.file}: it ends within tensor {self.name!r}: get the file again")
        return numbers


def numberless(name: str) -> str:
    """Replace each run of digits by #, so that names of different layers are equal."""
    return re.sub(r"\d+", "#", name)


def format_shape(shape: tuple[int, ...]) -> str:
    """Write a shape for an error text."""
    return " × ".join(map(str, shape)) or "a single number"


def header(file: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file. Raises InputError if it is no such file, or not whole."""
    with open_regular(file) as raw:
        return tensors(raw, file)


def tensors(raw: BufferedReader, file: Path) -> dict[str, Tensor]:
    """Read the tensors of an open safetensors file, by name. Raises as `header`."""
    size = os.fstat(raw.fileno()).st_size
    try:
        length = int.from_bytes(raw.read(8), "little")
        if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
            raise ValueError(f"its header is of {length} bytes")
        entries = parse_json(raw.read(length), "header")
        if not isinstance(entries, dict):
            raise ValueError("its header is no JSON object")
        entries.pop("__metadata__", None)
        by_name, at = {}, 8 + length
        described = (parse_entry(name, entry) for name, entry in entries.items())
        for name, number, shape, low, high in sorted(described, key=lambda entry: entry[3:]):
            if 8 + length + low != at:
                raise ValueError(f"tensor {name!r} begins at byte {low}, not {at - 8 - length}")
            by_name[name], at = Tensor(file, name, number, shape, at), 8 + length + high
        if at != size:
            raise ValueError(f"its tensors end at byte {at}")
    except (ValueError, OSError) as error:
        raise InputError(f"{file}: {size} bytes that are no whole safetensors file ({error}): get it again") from error
    return by_name


def parse_entry(name: str, entry: object) -> tuple[str, str, tuple[int, ...], int, int]:
    """Return the name, number type, shape, first byte and end of a tensor from its entry of a header. Raises ValueError
    for an entry that describes no tensor."""
    if not is_printable(name):
        raise ValueError(f"a tensor is called {name[:40]!r}…")
    match entry:
        case {"dtype": str(number), "shape": list(shape), "data_offsets": [low, high], **more} if (
            not more
            and number in NUMBER_BYTES
            and len(shape) <= MAX_AXES
            and all(map(is_count, (*shape, low, high)))
            and NUMBER_BYTES[number] * prod(shape) == high - low
            and prod(side or 1 for side in shape) < 1 << 48
        ):
            return name, number, tuple(shape), low, high
    raise ValueError(f"tensor {name!r} is {entry!r:.80}")


def is_count(value: object) -> bool:
    """True for a whole number from 0 on; no boolean is one."""
    return type(value) is int and value >= 0


def is_printable(name: str) -> bool:
    """True if a name from a file can be shown: 1 to MAX_NAME_LETTERS printable characters."""
    return 0 < len(name) <= MAX_NAME_LETTERS and name.isprintable()


# ---- weights that have a matrix for each expert


class ExpertTensors(NamedTuple):
    """The tensors of a weight's matrices, one for each expert; `used` are the tensors of the file that hold them."""

    matrices: list[Tensor]
    used: list[Tensor]

    def read_filed(self) -> Numeric:
        """Read the blocks of all matrices, one for each expert. Raises as `Tensor.read_filed`."""
        return np.stack([matrix.read_filed() for matrix in made_once(self.matrices)])

    def read(self) -> tuple[NDArray[np.float32], Numeric | None]:
        """Read all matrices in float32, one for each expert, and their blocks if a format holds these. Raises as
        `Tensor.read`."""
        matrices = made_once(self.matrices)
        first, first_blocks = matrices[0].read_both()
        whole = np.empty((len(self.matrices), *first.shape), np.float32)
        blocks = (
            None if first_blocks is None else np.empty((len(self.matrices), *first_blocks.shape), first_blocks.dtype)
        )
        whole[0] = first
        if blocks is not None:
            blocks[0] = first_blocks
        for e, matrix in enumerate(matrices[1:], 1):
            whole[e], matrix_blocks = matrix.read_both()
            if blocks is not None:
                blocks[e] = matrix_blocks
        return whole, blocks


def made_once(matrices: list[Tensor]) -> list[Tensor]:
    """Return matrices whose blocks, where several are cut of those that one function makes, are made once for all, and
    held as long as the matrices are; others are made one by one."""
    counts = Counter(id(matrix.made) for matrix in matrices)
    shared = {id(made): cache(made) for matrix in matrices if (made := matrix.made) and counts[id(made)] > 1}
    return [matrix._replace(made=shared.get(id(matrix.made), matrix.made)) for matrix in matrices]


def find_experts(
    find: Callable[[str], Tensor | None],
    stem: str,
    said: StackNames,
    shape: tuple[int, ...],
    fitted: Callable[[Tensor, tuple[int, ...]], None],
) -> ExpertTensors | str:
    """Find the matrices of a weight whose names begin with `stem`; return the name of the first missing one if there is
    one. `fitted` raises for a tensor of another shape. Raises InputError for matrices of several number types."""
    count, *sides = shape
    if said.turned and (fused := find(stem + said.fused)):
        fitted(fused, (count, sides[1], sides[0] * said.shares))
        return ExpertTensors([turned_matrix(fused, e, said) for e in range(count)], [fused])
    for name, share, shares in ((said.fused, said.share, said.shares), (said.alone, 0, 1)):
        if name and (fused := find(stem + name)):
            rows, stacked = sides[0], fused
            if fused.shape == (count * sides[0] * shares, *sides[1:]):  # matrices one below another
                stacked = fused._replace(shape=(count, rows * shares, *sides[1:]))
            fitted(stacked, (count, rows * shares, *sides[1:]))
            return ExpertTensors([stacked.matrix(e, share * rows, rows) for e in range(count)], [fused])
    called = next((name for name in said.apart if find(stem + name.replace("#", "0"))), said.apart[0])
    matrices: list[Tensor] = []
    for e in range(count):
        if (tensor := find(name := stem + called.replace("#", str(e)))) is None:
            return name
        if tensor.shape != tuple(sides[1:]) or sides[0] != 1:
            fitted(tensor, tuple(sides))  # one row may be a vector
        if matrices and tensor.number != matrices[0].number:
            raise InputError(
                f"{tensor.file}: tensor {tensor.name!r} is of {tensor.number}, but "
                f"{matrices[0].name!r} of {matrices[0].number}: experts of a layer are one weight, so "
                "save them in one type"
            )
        matrices.append(tensor)
    return ExpertTensors([tensor._replace(shape=tuple(sides)) for tensor in matrices], matrices)


def turned_matrix(fused: Tensor, e: int, said: StackNames) -> Tensor:
    """Return the transpose of matrix e of a stack (experts, inputs, outputs), or a share of its rows, which take turns
    with those of the others: in its blocks where the stack has them, else in float32."""
    _, inputs, outputs = fused.shape
    whole = fused.matrix(e, 0, inputs) if fused.apart is None else fused.apart(e)

    def make() -> Numeric:
        """Return the blocks, or the numbers, of the share."""
        if fused.apart is None:
            return np.ascontiguousarray(whole.read().T[said.share :: said.shares])
        block, size, *_ = STORED[whole.number]
        return whole.read_blocks(block, outputs * inputs // size).reshape(outputs, -1)[said.share :: said.shares]

    number = "F32" if fused.apart is None else whole.number
    name = f"{fused.name}[{e}, {said.share}::{said.shares}]"
    return Tensor(fused.file, name, number, (outputs // said.shares, inputs), 0, made=make)
