"""Numbers of tensors as files hold them: in a number type, in blocks, or whole numbers times scales."""

from collections.abc import Sequence
from math import frexp
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.core.arrays import Floats
from formats.core.epilogue import UNIT
from formats.storage.format import Format, WholeNumbers
from opmatrix.files.gguf import TENSOR_TYPES
from opmatrix.files.quantised import SAFE_EXPONENT, STORED

BLOCK_TYPES = {  # blocks of GGUF files, and their types
    stored.block: name for name, stored in STORED.items() if stored.kept and name in TENSOR_TYPES.values()
}


class StoredNumbers(NamedTuple):
    """The numbers of a tensor (p, n) in float32, and the number type that holds them exactly. A weight may be stored as
    blocks of a file (p, n / inputs of a block), or as whole numbers times scales, its inputs (n) first. `called`: the
    format that it had in the program, where its numbers are widened, and why."""

    numbers: Floats
    number: str = "F32"
    blocks: NDArray[np.void] | None = None
    whole: WholeNumbers | None = None
    called: str = ""

    def of_outputs(self, low: int, high: int | None) -> "StoredNumbers":
        """Return the rows from one output up to another."""
        blocks = None if self.blocks is None else self.blocks[low:high]
        whole = self.whole and self.whole._replace(
            whole=self.whole.whole[:, low:high], scale=self.whole.scale[:, low:high]
        )
        return self._replace(numbers=np.ascontiguousarray(self.numbers[low:high]), blocks=blocks, whole=whole)

    def scaled(self, factor: float) -> "StoredNumbers":
        """Return the numbers times a factor: in their type for a power of two, else in float32; scales multiplied."""
        if abs(factor - 1) < UNIT:
            return self
        numbers = (self.numbers * factor).astype(np.float32)
        if self.whole is not None:
            whole = self.whole._replace(scale=(self.whole.scale * factor).astype(np.float32))
            return self._replace(numbers=widen_integers(whole), whole=whole)
        if self.blocks is not None:
            blocks = scaled_blocks(self.blocks, factor)
            if blocks is None:
                return StoredNumbers(numbers, called=f"{self.number.lower()} times {factor:.3g}, a factor of scores")
            return self._replace(numbers=numbers, blocks=blocks)
        number = self.number if frexp(factor)[0] == 0.5 else "F32"
        return StoredNumbers(numbers, number)

    def widened(self) -> "StoredNumbers":
        """Return the numbers without whole numbers, for a tensor that no scheme is for."""
        return self if self.whole is None else StoredNumbers(self.numbers, called=f"{self.called}, a table of tokens")


def turn_numbers(numbers: Floats, turned: bool) -> Floats:
    """Return a matrix, its transpose if it is turned, row by row in memory."""
    return np.ascontiguousarray(numbers.T if turned and numbers.ndim == 2 else numbers)


def pack_numbers(parts: Sequence[StoredNumbers]) -> StoredNumbers:
    """Return tensors (p, n) behind one another: in their number type if they have one, else widened."""
    numbers, first = np.concatenate([part.numbers for part in parts]), parts[0]
    blocks = [part.blocks for part in parts if part.blocks is not None]
    if len({(part.number, part.blocks is None) for part in parts}) == 1:
        return StoredNumbers(numbers, first.number, np.concatenate(blocks) if blocks else None, called=first.called)
    called = [part.called or part.number.lower() for part in parts]
    return StoredNumbers(numbers, called=f"{', '.join(dict.fromkeys(called))} in one tensor")


def widen_integers(whole: WholeNumbers) -> Floats:
    """Return whole numbers times their scales (p, n), in float32."""
    scale = np.repeat(whole.scale, whole.group, 0)
    return np.ascontiguousarray((whole.whole * scale).T, np.float32)


def scaled_blocks(blocks: NDArray[np.void], factor: float) -> NDArray[np.void] | None:
    """Return blocks whose numbers are multiplied by a factor, exactly; None where scales in float16, or their
    exponents, cannot do it."""
    scaled = blocks.copy()
    if STORED[BLOCK_TYPES[blocks.dtype]].exponents:
        part, power = frexp(factor)
        moved = np.where(blocks["d"] > 0, blocks["d"].astype(np.int64) + power - 1, 0)  # 0 stands for zero
        if part != 0.5 or (moved < np.minimum(blocks["d"], 1)).any() or (moved > SAFE_EXPONENT).any():
            return None
        scaled["d"] = moved
        return scaled
    for name in {"d", "m"} & {*(blocks.dtype.names or ())}:
        wanted = blocks[name].astype(np.float64) * factor
        with np.errstate(over="ignore"):
            scaled[name] = wanted
        if not np.array_equal(scaled[name].astype(np.float64), wanted):
            return None
    return scaled


def filed_numbers(constant: Format, numbers: Floats) -> StoredNumbers:
    """Return a weight (p, n) with its blocks of a file, or only with its numbers where no whole blocks are a row."""
    number = None if constant.filed is None else BLOCK_TYPES.get(constant.filed)
    if number is None:
        return StoredNumbers(numbers, called=f"{constant.name}, which no GGUF file has")
    if numbers.shape[1] % STORED[number].numbers:
        return StoredNumbers(
            numbers, called=f"{constant.name} in rows of {numbers.shape[1]}, which are no whole blocks"
        )
    return StoredNumbers(numbers, number, blocks=constant.filed_blocks())


def plain_integers(constant: Format) -> WholeNumbers | None:
    """Return a weight as whole numbers in equal groups, each times its scale; None for one that is stored otherwise:
    sparse, as factors, or multiplied by turned rows."""
    parts = constant.integers()
    if len(parts) != 1 or parts[0].turn is not None or constant.prunes or constant.shape[0] % parts[0].group:
        return None
    return parts[0]
