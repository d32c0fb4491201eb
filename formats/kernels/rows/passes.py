"""Passes over rows: the epilogue alone, a factor, gathered rows and their sum."""

from collections.abc import Sequence

import numpy as np

from formats.core.arrays import as_contiguous, places, readable, separate, writable
from formats.core.epilogue import HUGE, TINY, Epilogue
from formats.host.threads import threads
from formats.kernels.engine.compiled import Kernel
from formats.kernels.engine.launch import address, launch, make_record, step, words
from formats.kernels.engine.memory import floats, longs, record
from formats.kernels.rows.following import epilogue_record, finish_block, finish_rows
from formats.kernels.rows.gathering import SOURCE, SOURCE_BYTES, Columns, add_column, add_row, describe_table

__all__ = ["embed", "gather", "pointwise", "scale"]

# out (T, p) from rows of x, or from rows of tables selected by ids; fields: see SOURCE
PASS = np.dtype([*words("x along out step T p rows fields count after"), ("factor", "f8")])
f4 = np.float32
Table = np.ndarray | Columns


@Kernel
def rowwise(item, worker, arguments):
    """Compute factor x, then the epilogue."""
    c = record(arguments, PASS)
    low, high = item * c.rows, min((item + 1) * c.rows, c.T)
    factor = f4(c.factor)
    for row in range(low, high):
        x, y = floats(c.x + 4 * row * c.along, c.p), floats(c.out + 4 * row * c.step, c.p)
        for j in range(c.p):
            y[j] = factor * x[j]
        finish_block(c.after, row, row + 1, 0, c.p)
        finish_rows(c.after, row, row + 1)


@Kernel
def gathered(item, worker, arguments):
    """Compute the sum over fields of table[ids], then the epilogue."""
    c = record(arguments, PASS)
    for row in range(item * c.rows, min((item + 1) * c.rows, c.T)):
        y = floats(c.out + 4 * row * c.step, c.p)
        for k in range(c.count):
            f = record(c.fields + SOURCE_BYTES * k, SOURCE)
            index = longs(f.ids + row * f.apart, 1)[0]
            if f.words:
                add_column(y, f, index, k == 0)
            else:
                add_row(y, f, index, k == 0)
        finish_block(c.after, row, row + 1, 0, c.p)
        finish_rows(c.after, row, row + 1)


def run_pass(
    kernel: Kernel,
    x: np.ndarray | None,
    out: np.ndarray,
    epilogue: Epilogue | None = None,
    factor: float = 1.0,
    fields: np.ndarray | None = None,
) -> np.ndarray:
    """Launch a pass over chunks of rows."""
    T, p = out.shape
    if not out.size:
        return out
    rows = max(1, -(-T // (4 * (workers := threads()))))
    source = (0, 0) if x is None else (address(x), step(x))
    count, after = 0 if fields is None else len(fields), epilogue_record(epilogue, out)
    values = (*source, address(out), step(out), T, p, rows, address(fields), count, address(after), factor)
    launch(workers, (kernel, make_record([values], PASS), -(-T // rows)))
    return out


def pointwise(x: np.ndarray, out: np.ndarray, epilogue: Epilogue | None) -> np.ndarray:
    """Apply the epilogue to x (T, p) in one pass; out may be x."""
    if out.ndim != 2:
        raise ValueError(f"out: expected two axes, got shape {out.shape}")
    check_pass(x, out)
    return run_pass(rowwise, x, out, epilogue)


def scale(x: np.ndarray, factor: float, out: np.ndarray) -> np.ndarray:
    """out = factor x; out may be x. Matrices with contiguous rows, or contiguous arrays of any number of axes, which
    are split into rows. factor: 0, or a normal float32."""
    if factor and not TINY <= abs(factor) <= HUGE:
        raise ValueError(f"scale: the factor {factor} is not a normal float32")
    check_pass(x, out)
    source, target = (x, out) if x.ndim == 2 else (flat_rows("x", x), flat_rows("out", out))
    run_pass(rowwise, source, target, None, factor)
    return out


def check_pass(x: np.ndarray, out: np.ndarray) -> None:
    """Check the arguments of a pass: x and out have one shape, and are one array or do not overlap. ValueError names
    the array that does not fit."""
    readable("x", x, out.shape)
    readable("out", out, out.shape)
    writable("out", out)
    separate(out, over=True, x=x)


def flat_rows(name: str, array: np.ndarray) -> np.ndarray:
    """Return a contiguous array as rows of equal width: the widest of 4096 numbers and its fractions that divides its
    size."""
    if not array.flags.c_contiguous:
        raise ValueError(f"{name}: expected a contiguous array, got strides of {array.strides} bytes")
    width = next(w for w in (4096, 1024, 256, 64, 16, 4, 1) if array.size % w == 0)
    return array.reshape(-1, width)


def gather(ids: np.ndarray, table: Table, out: np.ndarray) -> np.ndarray:
    """out (T, p) = table[ids]; the table (N, p) is float32 or float16, or columns of panels; ids are integers below
    N."""
    return embed([(ids, table)], out)


def embed(fields: Sequence[tuple[np.ndarray, Table]], out: np.ndarray, epilogue: Epilogue | None = None) -> np.ndarray:
    """out (T, p) = the sum over (ids, table) of table[ids], then the epilogue. IndexError for an id outside."""
    if out.ndim != 2:
        raise ValueError(f"out: expected two axes, got shape {out.shape}")
    T, p = out.shape
    readable("out", out, (T, p))
    writable("out", out)
    held: list[tuple[np.ndarray, Table]] = []
    for ids, table in fields:
        shape, numbers = (table.shape[::-1], table.w) if isinstance(table, Columns) else (table.shape, table)
        if len(shape) != 2 or shape[1] != p or (numbers is table and table.dtype not in (np.float32, np.float16)):
            wanted = f"float32 or float16 of shape (N, {p})"
            raise ValueError(f"table: expected {wanted}, got {numbers.dtype} of {shape}")
        places("ids", ids, T, shape[0], of="the table")
        ids = np.asarray(ids, np.int64)
        if not ids.flags.aligned:
            ids = as_contiguous("ids", ids)
        if numbers is table:
            table = numbers = as_contiguous("table", table)
        separate(out, ids=ids, table=numbers)
        if isinstance(table, Columns) and table.scale is not None:
            separate(out, scale=table.scale)
        held.append((ids, table))
    sources = [(address(ids), ids.strides[0], *describe_table(table)) for ids, table in held]
    return run_pass(gathered, None, out, epilogue, fields=make_record(sources, SOURCE))
