"""Scores with products by distance: to q kᵀ are added, for a query i and a key j, q times a column of one table and k
times a column of another, which the distance j - i, or i - j, chooses (He et al. 2021, eq. 4). A table has a matrix for
each head, (columns of a head, n); distances up to n // 2 have a column each, larger ones the last.

A tile of queries and keys needs the columns of as many distances as it has rows and keys together: these products are
two more calls of the product of queries and keys."""

import numpy as np

from formats.core.arrays import separate, writable
from formats.kernels.attentions.heads import ATTENTION, QUERIES, flat_offset, part, run_heads, scores_of
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import address
from formats.kernels.engine.memory import floats, record
from formats.kernels.engine.native import njit
from formats.kernels.matmul.gemm import multiply

__all__ = ["relative_scores"]

TILE_KEYS = 128  # keys that are processed at a time
ACROSS = QUERIES + TILE_KEYS  # distances of a tile, and numbers between rows of its products
__borders__ = QUERIES, TILE_KEYS
f4 = np.float32


@njit(**HELPER)
def column_at(away, count):
    """Return the column of a distance in a table of so many."""
    return min(max(away + count // 2, 0), count - 1)


@njit(**HELPER)
def times_table(c, x, along, rows, table, head, least, most, products):
    """Write the products of rows with the columns of a table for distances from `least` to `most`; return the first
    column. `along`: bytes between rows."""
    count = c.table_head // c.d
    first = column_at(least, count)
    columns, matrix = column_at(most, count) - first + 1, table + 4 * (head * c.table_head + first)
    multiply(c.multiply, rows, columns, c.d, x, along, matrix, 4 * count, products, 4 * ACROSS, 1)
    return first


@Kernel
def score_relative(item, worker, arguments):
    """Compute q kᵀ of a tile of queries, stored at p, and add the products by distance of queries, then those of
    keys."""
    c = record(arguments, ATTENTION)
    start, length, head, low, high, sequence = part(c, item)
    p, room, count = c.p + flat_offset(c, sequence, head, low, length), c.room + worker * c.apart, c.table_head // c.d
    q = c.q + 4 * ((start + low) * c.q_row + head // c.q_of * c.q_head)
    products = room + 4 * c.tile * c.d
    for key in range(0, length, c.tile):
        keys = min(c.tile, length - key)
        scores_of(c, q, high - low, start + key, keys, head, room, p + 4 * key, 4 * length)
        if c.table:
            first = times_table(
                c, q, 4 * c.q_row, high - low, c.table, head, key - high + 1, key + keys - 1 - low, products
            )
            for i in range(high - low):
                s, row = floats(p + 4 * (i * length + key), keys), floats(products + 4 * i * ACROSS, ACROSS)
                for j in range(keys):
                    s[j] += row[column_at(key + j - low - i, count) - first]
        if c.strip:
            k = c.k + 4 * ((start + key) * c.k_row + head // c.k_of * c.k_head)
            first = times_table(c, k, 4 * c.k_row, keys, c.strip, head, low - key - keys + 1, high - 1 - key, products)
            rows = floats(products, keys * ACROSS)
            for i in range(high - low):
                s = floats(p + 4 * (i * length + key), keys)
                for j in range(keys):
                    s[j] += rows[j * ACROSS + column_at(low + i - key - j, count) - first]


def tables_of(heads: int, columns: int, **tables: np.ndarray | None) -> tuple[int, int, int, int]:
    """Return (address, numbers between heads, most, address) of two tables of one shape, 0 for one that is absent.
    ValueError for arrays that are no such tables."""
    stated = {name: table for name, table in tables.items() if table is not None}
    if not stated:
        raise ValueError(f"{' and '.join(tables)}: give a table, or call scores")
    for name, table in stated.items():
        if table.dtype != f4 or table.ndim != 3 or not (table.flags.c_contiguous and table.flags.aligned):
            raise ValueError(
                f"{name}: expected contiguous float32 of three axes, got {table.dtype} of {table.shape} with "
                f"strides of {table.strides} bytes"
            )
        wanted = (heads, columns, next(iter(stated.values())).shape[2])
        if table.shape != wanted or not table.size:
            raise ValueError(f"{name}: a table of {table.shape}, where {wanted} is needed, with a column or more")
    first, second = (address(table) for table in tables.values())
    count = next(iter(stated.values())).shape[2]
    return first, columns * count, count // 2, second


def relative_scores(
    q: np.ndarray,
    k: np.ndarray,
    starts: np.ndarray,
    out: np.ndarray,
    ahead: np.ndarray | None = None,
    behind: np.ndarray | None = None,
) -> np.ndarray:
    """out: flat, for each sequence (h, length, length): q kᵀ, plus q times the column of `ahead` for key - query, plus
    k times that of `behind` for query - key; tables are (h, d, n), and q and k (T, heads that divide h, d)."""
    if q.ndim != 3 or k.ndim != 3:
        raise ValueError(f"q and k: expected three axes each, got shapes {q.shape} and {k.shape}")
    writable("out", out)
    tables = {name: table for name, table in (("ahead", ahead), ("behind", behind)) if table is not None}
    separate(out, q=q, k=k, **tables)
    heads, columns = max(q.shape[1], k.shape[1]), q.shape[2]
    placed = tables_of(heads, columns, ahead=ahead, behind=behind)
    room = 4 * TILE_KEYS * (columns + ACROSS)
    run_heads(score_relative, starts, heads, dict(q=q, k=k), 1.0, out, room=room, tile=TILE_KEYS, tables=placed)
    return out
