"""Test if a matrix can be stored in float16 exactly, without computing it. A weight that is only moved keeps its own
numbers. For a product of weights, the count of bits, or a few rows, nearly always show that some number is not in
float16."""

from collections.abc import Iterator
from weakref import WeakKeyDictionary

import numpy as np

from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.term import KINDS, Operator
from rewrites.laws.kinds import adjoint, as_array, by_head, joined

SAMPLED_NUMBERS = 4096  # size of the sample that is tested before all numbers
HALF_BITS = 11  # significant bits of float16, the leading 1 included
ROWS_AT_ONCE = 64  # rows of a matrix that are computed at a time
CUTS = adjoint, by_head, joined  # kinds that only move the numbers of their operands
HAS_HALF: WeakKeyDictionary[Data, bool] = WeakKeyDictionary()
BITS: WeakKeyDictionary[Data, int] = WeakKeyDictionary()
MOVING: WeakKeyDictionary[Operator, bool] = WeakKeyDictionary()


def sample_numbers(data: Data) -> np.ndarray:
    """Return numbers from random places of an array, the same places in each call."""
    rng = np.random.default_rng(0)
    return data.take(tuple(rng.integers(0, size, SAMPLED_NUMBERS) for size in data.shape))


def exactly_half(numbers: np.ndarray) -> bool:
    """True if each number is one of float16."""
    with np.errstate(over="ignore"):
        return bool((numbers.astype(np.float16) == numbers).all())


def has_half(term: Operator) -> bool:
    """True if each number of a matrix is one of float16."""
    moved = find_moved(term)
    if moved and all(map(is_half, moved)):
        return True
    return bool(moved or more_bits(term) < HALF_BITS) and all(exactly_half(rows) for rows in piece_rows(term))


def is_half(data: Data) -> bool:
    """True if each number of an array is one of float16. The result is cached, one entry for the array and its
    transpose."""
    base = data.base or data
    if base not in HAS_HALF:
        HAS_HALF[base] = exactly_half(base.array)
    return HAS_HALF[base]


def find_moved(term: Operator) -> list[Data]:
    """Return the arrays whose numbers, beside zeros, are all that a matrix has; an empty list where some are multiplied
    or added."""
    if term.kind is KINDS["weight"]:
        return [term.args[0]]
    parts = [child for child in term.children if term.kind in CUTS or not moves(child)]
    if term.kind not in CUTS and (term.kind is not KINDS["compose"] or len(parts) > 1):
        return []
    arrays = [find_moved(child) for child in parts]
    return [data for some in arrays for data in some] if all(arrays) else []


def moves(term: Operator) -> bool:
    """True if a matrix that reads no weights has at most a single one in each row and each column, and zeros
    elsewhere."""
    if term.splits:
        return True
    if not isinstance(term.into.cols, int) or any(
        isinstance(attribute, Data) for node in term.walk() for attribute in node.attributes
    ):
        return False
    if term not in MOVING:
        numbers = as_array(term)
        most = max(np.count_nonzero(numbers, axis).max(initial=0) for axis in (-1, -2))
        MOVING[term] = bool(most <= 1 and np.isin(numbers, (0, 1)).all())
    return MOVING[term]


def more_bits(term: Operator) -> int:
    """Return a lower bound of the bits behind the first that some number of a matrix has. The bits of an odd number
    times an odd one add up; an operation that does not multiply keeps the count."""
    below = [more_bits(child) for child in term.children]
    below += [count_bits(attribute) - 1 for attribute in term.attributes if isinstance(attribute, Data)]
    multiplied = term.kind in (KINDS["compose"], KINDS["mul"])
    return sum(below) if multiplied else max(below, default=0)


def count_bits(data: Data) -> int:
    """Return the bits from the first to the last 1 of the longest number in a sample; 1 for an array that is only
    promised."""
    if isinstance(data, Promised):
        return 1
    if data not in BITS:
        parts, _ = np.frexp(np.asarray(sample_numbers(data), np.float32))
        whole = np.abs(parts * 2.0**24).astype(np.int64)
        last = (whole & -whole)[whole > 0].min(initial=1 << 23)
        BITS[data] = 25 - int(last).bit_length()
    return BITS[data]


def piece_rows(term: Operator) -> Iterator[np.ndarray]:
    """Yield the numbers of a matrix, or of the one that it transposes, a few rows from all over it at a time; all at
    once where the width is free."""
    width = term.into.cols
    if term.kind is adjoint:
        yield from piece_rows(term.children[0])
    elif not isinstance(width, int):
        yield np.asarray(as_array(term), np.float32)
    else:
        for at in spread_rows(width):
            units = np.zeros((len(at), width))
            units[np.arange(len(at)), at] = 1
            yield np.asarray(dense(term, units), np.float32)


def spread_rows(width: int) -> list[np.ndarray]:
    """Return lists of row numbers, each a few rows from all over a matrix."""
    count = -(-width // ROWS_AT_ONCE)
    return [np.arange(first, width, count) for first in range(count)]
