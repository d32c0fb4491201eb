"""Matrices that can be stored by half numbers, decided without making them: a weight that is only moved has its own
numbers, and of a product of weights the bits, or a few rows, tell nearly always that it has others."""
from collections.abc import Iterator
from weakref import WeakKeyDictionary

import numpy as np

from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.term import KINDS, Operator
from rewrites.laws.kinds import adjoint, as_array, by_head, joined

SAMPLED_NUMBERS = 4096                                      # numbers that are looked at before all of them are
HALF_BITS = 11                                              # that a half number has at most, the first one a 1
ROWS_AT_ONCE = 64                                           # of a matrix, before others are made
CUTS = adjoint, by_head, joined                             # the numbers of their matrices, elsewhere
HAS_HALF: WeakKeyDictionary[Data, bool] = WeakKeyDictionary()
BITS: WeakKeyDictionary[Data, int] = WeakKeyDictionary()
MOVING: WeakKeyDictionary[Operator, bool] = WeakKeyDictionary()


def sample_numbers(numbers: np.ndarray) -> np.ndarray:
    """Numbers of an array from anywhere in it, the same ones each time."""
    rng = np.random.default_rng(0)
    sample: np.ndarray = numbers[tuple(rng.integers(0, size, SAMPLED_NUMBERS) for size in numbers.shape)]
    return sample


def exactly_half(numbers: np.ndarray) -> bool:
    """Tell whether each number is one of float16."""
    with np.errstate(over="ignore"):
        return bool((numbers.astype(np.float16) == numbers).all())


def has_half(term: Operator) -> bool:
    """Tell whether each number of a matrix is one of float16."""
    moved = find_moved(term)
    if moved and all(map(is_half, moved)): return True
    return bool(moved or more_bits(term) < HALF_BITS) and all(exactly_half(rows) for rows in piece_rows(term))


def is_half(data: Data) -> bool:
    """Tell whether an array has half numbers, looked up once, turned or not."""
    base = data.base or data
    if base not in HAS_HALF: HAS_HALF[base] = exactly_half(base.array)
    return HAS_HALF[base]


def find_moved(term: Operator) -> list[Data]:
    """The arrays whose numbers, beside zeros, are all that a matrix has; none where some are multiplied or added."""
    if term.kind is KINDS["weight"]: return [term.args[0]]
    parts = [child for child in term.children if term.kind in CUTS or not moves(child)]
    if term.kind not in CUTS and (term.kind is not KINDS["compose"] or len(parts) > 1): return []
    found = [find_moved(child) for child in parts]
    return [data for each in found for data in each] if all(found) else []


def moves(term: Operator) -> bool:
    """Tell whether a matrix of no weights has a single one in each row and each column at most, and zeros."""
    if term.splits: return True
    if not isinstance(term.into.cols, int) or any(isinstance(each, Data) for node in term.walk()
                                                  for each in node.attributes): return False
    if term not in MOVING:
        numbers = as_array(term)
        most = max(np.count_nonzero(numbers, axis).max(initial=0) for axis in (-1, -2))
        MOVING[term] = bool(most <= 1 and np.isin(numbers, (0, 1)).all())
    return MOVING[term]


def more_bits(term: Operator) -> int:
    """Bits behind the first that some number of a matrix has at least: those of an odd number times an odd one add up.
    What is not multiplied has as many as before."""
    below = [more_bits(child) for child in term.children]
    below += [count_bits(each) - 1 for each in term.attributes if isinstance(each, Data)]
    multiplied = term.kind in (KINDS["compose"], KINDS["mul"])
    return sum(below) if multiplied else max(below, default=0)


def count_bits(data: Data) -> int:
    """Bits from the first to the last 1 of a number, of the longest one in a sample; one of what is only promised."""
    if isinstance(data, Promised): return 1
    if data not in BITS:
        parts, _ = np.frexp(np.asarray(sample_numbers(data.array), np.float32))
        whole = np.abs(parts * 2.0 ** 24).astype(np.int64)
        last = (whole & -whole)[whole > 0].min(initial=1 << 23)
        BITS[data] = 25 - int(last).bit_length()
    return BITS[data]


def piece_rows(term: Operator) -> Iterator[np.ndarray]:
    """The numbers of a matrix, or of the one that it turns, a few rows from all over it at a time; all at once where it
    takes any width."""
    width = term.into.cols
    if term.kind is adjoint: yield from piece_rows(term.children[0])
    elif not isinstance(width, int): yield np.asarray(as_array(term), np.float32)
    else:
        for at in spread_rows(width):
            units = np.zeros((len(at), width))
            units[np.arange(len(at)), at] = 1
            yield np.asarray(dense(term, units), np.float32)


def spread_rows(width: int) -> list[np.ndarray]:
    """Numbers of rows, a few from all over a matrix in each."""
    count = -(-width // ROWS_AT_ONCE)
    return [np.arange(first, width, count) for first in range(count)]
