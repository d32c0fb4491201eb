"""Operands that expose a kernel that is wrong only for some data: rows of zeros, of equal and of nearly equal numbers,
of every size that float32 has, of ties; every id of a table; sequences of few and of many rows. Kernels choose among
these (`telling`, opmatrix/runtime/declarations/kernel.py); for other kernels rows are chosen by the types of their
operands."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.batch.batch import FIELDS, Batch, Fields

TellingRows = NDArray[np.float32]
RowShapes = Mapping[str, tuple[int, ...]]  # the shape of one row of each operand
SMALLEST_DECADE, LARGEST_DECADE = -44, 30  # powers of ten: below them float32 has only 0, above them a
# product of some thousands need not be finite
SQUARED_DECADE = 17  # decade of numbers whose products are finite, too
UNTOLD_DECADE = 9  # decade of numbers with any use by the kernel
NEARLY = 1e-1, 1e-3, 1e-5  # differences of the nearly equal numbers of a row
FAR_BEYOND = 1e2, 1e4, 1e8  # one number of a row, relative to the others
DRAWN_COLUMNS = 4  # drawn columns for the only number that is not zero
TILE_COLUMNS = 16  # columns of a tile; one row has its only number at the end
TIED = 2, 3  # bounds of the whole numbers in rows with many ties
TIED_ROWS, LARGEST_TIED, MOST_ONES = 24, 4, 512  # rows of each kind of ties; their numbers; single ones
SHORT_LENGTHS = 1, 2, 3, 5, 8, 17, 33  # rows of the short sequences
NUMBERS_AT_ONCE, MOST_PARTS = 1 << 22, 8  # numbers in the rows of a part of the ids; the most parts
MOST_NUMBERS = 1 << 26  # the most in all: else both ends of the ids and drawn ones


def telling_rows(shape: Sequence[int], rng: np.random.Generator, decade: int = LARGEST_DECADE) -> TellingRows:
    """Return rows of this shape that are zero; equal; nearly equal; of either sign; zero but for one number; with one
    number far beyond the others; with many ties; and about as large as each power of ten up to `decade`."""
    width = prod(shape)

    def drawn(count: int) -> NDArray[np.float64]:
        """Draw rows of normal numbers."""
        return rng.standard_normal((count, width))

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
    """Return rows with many equal numbers: equal to one of few whole numbers, all but one equal to each other, and
    zeros of either sign."""
    width = prod(shape)
    whole = [rng.integers(-most, most + 1, (TIED_ROWS, width)) for most in range(1, LARGEST_TIED + 1)]
    apart = np.zeros((2 * width, width))
    columns = np.arange(width)
    apart[columns, columns], apart[width + columns, columns] = 1, -1
    signs = np.where(rng.integers(0, 2, (TIED_ROWS, width)), 0.0, -0.0)
    rows: TellingRows = np.concatenate([*whole, apart[:MOST_ONES], signs, whole[0] * signs]).astype(np.float32)
    return rows.reshape(-1, *shape)


def telling_values(shapes: RowShapes, rng: np.random.Generator, decade: int = LARGEST_DECADE) -> dict[str, TellingRows]:
    """Return rows of several operands, each a row of every other one's: all of one kind; and each operand with every
    kind beside zeros, and beside ordinary numbers."""
    if len(shapes) == 1:
        return {name: telling_rows(shape, rng, decade) for name, shape in shapes.items()}
    parts: dict[str, list[TellingRows]] = {
        name: [telling_rows(shape, rng, SQUARED_DECADE)] for name, shape in shapes.items()
    }
    for alone in shapes:
        rows = telling_rows(shapes[alone], rng, decade)
        for name, shape in shapes.items():
            others = rng.standard_normal((len(rows), *shape), np.float32)
            parts[name] += [rows, rows] if name == alone else [0 * others, others]
    return {name: np.concatenate(pieces) for name, pieces in parts.items()}


def telling_fills(shapes: RowShapes, rng: np.random.Generator) -> Iterator[dict[str, TellingRows]]:
    """Yield operands of these shapes whose rows see one another: with rows of many kinds; all zero; all equal; all
    tiny; large; with many ties; below zero."""

    def drawn() -> dict[str, TellingRows]:
        """Draw normal numbers for every operand."""
        return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}

    def mixed(shape: tuple[int, ...]) -> TellingRows:
        """Draw rows of many kinds in random order, repeated to fill the shape."""
        rows = telling_rows(shape[1:], rng, UNTOLD_DECADE)
        return rows[rng.permutation(len(rows))[np.arange(shape[0]) % len(rows)]]

    yield {name: mixed(shape) for name, shape in shapes.items()}
    for factor in (0.0, 1e-20, 10.0**UNTOLD_DECADE):
        yield {name: np.float32(factor) * values for name, values in drawn().items()}
    yield {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    yield {name: np.rint(values) for name, values in drawn().items()}
    yield {name: -abs(values) for name, values in drawn().items()}


def every_id(limits: Mapping[str, int], columns: int, batch: Batch) -> Iterator[Fields]:
    """Yield rows that have every number of each of these fields, some at a time: each below its limit."""
    count = max(limits.values())
    most = max(1, NUMBERS_AT_ONCE // columns, -(-count // MOST_PARTS))
    for low in range(0, count, most):
        yield some_ids(np.arange(low, min(count, low + most)), limits, batch)


def many_ids(limit: int, columns: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return every number below a limit; if rows of all would be too many numbers, those at both ends and drawn
    ones."""
    if limit * columns <= MOST_NUMBERS:
        return np.arange(limit)
    ends = np.arange(DRAWN_COLUMNS)
    return np.concatenate([ends, limit - 1 - ends, rng.integers(0, limit, max(1, NUMBERS_AT_ONCE // columns))])


def some_ids(at: NDArray[np.int64], limits: Mapping[str, int], batch: Batch) -> Fields:
    """Return rows that have these numbers in each of these fields, modulo its limit."""
    return Fields(batch, len(at), **{name: at % limits.get(name, 1) for name in FIELDS})


def short_sequences(count: int, most: int = max(SHORT_LENGTHS)) -> Batch:
    """Return `count` sequences of every small length in turn, of at most `most` rows each."""
    return Batch([np.zeros(min(most, SHORT_LENGTHS[at % len(SHORT_LENGTHS)]), np.int64) for at in range(count)])
