"""Operands by which a kernel that is wrong for some data alone shows it: rows of zeros, of equal and of nearly equal
numbers, of every size that float32 has, of ties; every id of a table; sequences of few and of many rows. Kernels say
which of them tell (`telling`, opmatrix/runtime/declarations/kernel.py); others are given rows by the sorts of their
operands."""
from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.batch.batch import FIELDS, Batch, Fields

TellingRows = NDArray[np.float32]
RowShapes = Mapping[str, tuple[int, ...]]                   # of one row of each operand
SMALLEST_DECADE, LARGEST_DECADE = -44, 30                   # powers of ten: below it float32 has 0 alone, and above it
                                                            # a product of some thousands need not be finite
SQUARED_DECADE = 17                                         # of numbers whose products are finite, too
UNTOLD_DECADE = 9                                           # of numbers of which nobody knows what becomes of them
NEARLY = 1e-1, 1e-3, 1e-5                                   # by what numbers of a row differ that are nearly equal
FAR_BEYOND = 1e2, 1e4, 1e8                                  # times the others of its row is one number
DRAWN_COLUMNS = 4                                           # of those that alone are not zero
TILE_COLUMNS = 16                                           # columns of a tile, at whose end one is not zero
TIED = 2, 3                                                 # whole numbers up to which are drawn where many are equal
TIED_ROWS, LARGEST_TIED, MOST_ONES = 24, 4, 512             # rows of ties of each kind, and whole numbers of them
SHORT_LENGTHS = 1, 2, 3, 5, 8, 17, 33                       # rows of sequences
NUMBERS_AT_ONCE, MOST_PARTS = 1 << 22, 8                    # numbers of rows that ids choose at a time; parts at most
MOST_NUMBERS = 1 << 26                                      # of all of them: of more ids both ends and drawn ones


def telling_rows(shape: Sequence[int], rng: np.random.Generator, decade: int = LARGEST_DECADE) -> TellingRows:
    """Rows of so many numbers that are zero; equal; nearly equal; of either sign; zero but for one; one far beyond the
    others; often equal; and about as large as each power of ten up to this one."""
    width = prod(shape)

    def drawn(count: int) -> NDArray[np.float64]: return rng.standard_normal((count, width))
    sizes = 10.0 ** np.arange(SMALLEST_DECADE, decade + 1)
    ends = [0, width - 1, (width - 1) // TILE_COLUMNS * TILE_COLUMNS, *rng.integers(0, width, DRAWN_COLUMNS)]
    single, beyond = np.zeros((len(ends), width)), drawn(len(FAR_BEYOND))
    single[np.arange(len(ends)), ends] = 1
    beyond[np.arange(len(FAR_BEYOND)), rng.integers(0, width, len(FAR_BEYOND))] = FAR_BEYOND
    plain = [np.zeros((1, width)), np.ones((1, width)), np.full((1, width), -3.0)]
    plain += [1 + nearly * drawn(1) for nearly in NEARLY]
    plain += [abs(drawn(1)), -abs(drawn(1)), 1 - 2.0 * (np.arange(width)[None] % 2)]
    tied = [rng.integers(1 - most, most, (2, width)) for most in TIED]
    parts = [*plain, single, beyond, *tied, sizes[:, None] * drawn(len(sizes))]
    rows: TellingRows = np.concatenate(parts).astype(np.float32)
    return rows.reshape(-1, *shape)


def tied_rows(shape: Sequence[int], rng: np.random.Generator) -> TellingRows:
    """Rows of which many numbers are equal: to one of few whole numbers, all but one to each other, and to zeros of
    either sign."""
    width = prod(shape)
    whole = [rng.integers(-most, most + 1, (TIED_ROWS, width)) for most in range(1, LARGEST_TIED + 1)]
    apart = np.zeros((2 * width, width))
    columns = np.arange(width)
    apart[columns, columns], apart[width + columns, columns] = 1, -1
    signs = np.where(rng.integers(0, 2, (TIED_ROWS, width)), 0.0, -0.0)
    rows: TellingRows = np.concatenate([*whole, apart[:MOST_ONES], signs, whole[0] * signs]).astype(np.float32)
    return rows.reshape(-1, *shape)


def telling_values(shapes: RowShapes, rng: np.random.Generator, decade: int = LARGEST_DECADE) -> dict[str, TellingRows]:
    """Rows of several operands, each a row of every other one's: all of them of one kind; and each of every kind beside
    zeros, and beside ordinary numbers."""
    if len(shapes) == 1: return {name: telling_rows(shape, rng, decade) for name, shape in shapes.items()}
    parts: dict[str, list[TellingRows]] = {name: [telling_rows(shape, rng, SQUARED_DECADE)]
                                       for name, shape in shapes.items()}
    for alone in shapes:
        rows = telling_rows(shapes[alone], rng, decade)
        for name, shape in shapes.items():
            others = rng.standard_normal((len(rows), *shape), np.float32)
            parts[name] += [rows, rows] if name == alone else [0 * others, others]
    return {name: np.concatenate(each) for name, each in parts.items()}


def telling_fills(shapes: RowShapes, rng: np.random.Generator) -> Iterator[dict[str, TellingRows]]:
    """Operands of these shapes whose rows see one another: of rows of many kinds; all zero; all equal; all tiny; large;
    often equal; below zero."""
    def drawn() -> dict[str, TellingRows]:
        return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}

    def mixed(shape: tuple[int, ...]) -> TellingRows:
        rows = telling_rows(shape[1:], rng, UNTOLD_DECADE)
        return rows[rng.permutation(len(rows))[np.arange(shape[0]) % len(rows)]]
    yield {name: mixed(shape) for name, shape in shapes.items()}
    for factor in (0.0, 1e-20, 10.0 ** UNTOLD_DECADE):
        yield {name: np.float32(factor) * each for name, each in drawn().items()}
    yield {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    yield {name: np.rint(each) for name, each in drawn().items()}
    yield {name: -abs(each) for name, each in drawn().items()}


def every_id(limits: Mapping[str, int], columns: int, batch: Batch) -> Iterator[Fields]:
    """Rows that have every number of each of these fields, some at a time: each below its limit."""
    count = max(limits.values())
    most = max(1, NUMBERS_AT_ONCE // columns, -(-count // MOST_PARTS))
    for low in range(0, count, most): yield some_ids(np.arange(low, min(count, low + most)), limits, batch)


def many_ids(limit: int, columns: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Every number below a limit; where rows of all would be too many numbers, those at both ends and drawn ones."""
    if limit * columns <= MOST_NUMBERS: return np.arange(limit)
    ends = np.arange(DRAWN_COLUMNS)
    return np.concatenate([ends, limit - 1 - ends, rng.integers(0, limit, max(1, NUMBERS_AT_ONCE // columns))])


def some_ids(at: NDArray[np.int64], limits: Mapping[str, int], batch: Batch) -> Fields:
    """Rows that have these numbers in each of these fields, as far as they are below its limit."""
    return Fields(batch, len(at), **{name: at % limits.get(name, 1) for name in FIELDS})


def short_sequences(count: int, most: int = max(SHORT_LENGTHS)) -> Batch:
    """`count` sequences of every small length in turn, of at most `most` rows each."""
    return Batch([np.zeros(min(most, SHORT_LENGTHS[at % len(SHORT_LENGTHS)]), np.int64) for at in range(count)])
