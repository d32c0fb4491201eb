"""The storage of weights, in bytes: a number of bytes each, or a format for weights of a name. The sizes are those that
a rank has, so compression and partition meet in one formula."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from typing import NamedTuple, TypeAlias

import sympy

from formats import FORMATS
from formats.core.arrays import FormatError
from formats.core.errors import InputError, suggest_name
from formats.core.sizes import n, nnz, p
from formats.machine.datasheets import BYTES
from opmatrix.algebra.batch.batch_sizes import Dims
from opmatrix.algebra.data import Data
from opmatrix.algebra.shapes import LiveSize, as_int
from opmatrix.parallel.sharding.axis_states import Coordinate, even
from opmatrix.parallel.sharding.partition import Partition

PROBED_SIZES = 4096, 8192
PLAIN_NUMBERS = {name: int(BYTES[name]) for name in ("float32", "bf16", "float16", "int8")}  # bytes of a number


class StoredIn(NamedTuple):
    """A format and its parameters: `StoredIn("nm", {"n": 2, "m": 4})` or `StoredIn("csr", {"density": 0.1})`."""

    method: str
    parameters: Mapping[str, float] = {}


Storage: TypeAlias = "float | str | Mapping[str, float | str | StoredIn]"  # for all weights, or by patterns of names


def weight_bytes(plan: Partition, stage: int, storage: Storage) -> sympy.Expr:
    """Return the bytes of weights that a rank of a stage stores. If an axis stores an array once, a rank stores a
    share. Raises InputError for an unknown format or number type."""
    total = sympy.Integer(0)
    for data, dims, count in plan.weights(stage):
        stored = chosen(data, storage)
        if isinstance(stored, StoredIn):
            whole = format_bytes(data, dims, stored)
        else:
            whole = sympy.nsimplify(stored) * dims.numbers
        total += count * sympy.sympify(plan.share(whole, 3))
    return total


def chosen(data: Data, storage: Storage) -> float | StoredIn:
    """Return the storage of an array, by the first pattern that its name fits; 2 bytes a number if it fits none."""
    name = str(data.cut_of or data)
    how = (
        storage
        if not isinstance(storage, Mapping)
        else next((way for pattern, way in storage.items() if fnmatch(name, pattern)), 2)
    )
    if isinstance(how, int | float):
        return how
    if isinstance(how, str) and how in PLAIN_NUMBERS:
        return PLAIN_NUMBERS[how]
    stored = StoredIn(how) if isinstance(how, str) else how
    check_stored(stored)
    return stored


def check_stored(stored: StoredIn) -> None:
    """Raise InputError for an unknown format, and for parameters that a format does not have."""
    if stored.method not in FORMATS:
        raise InputError(
            f"{stored.method}: weights are stored in {', '.join(PLAIN_NUMBERS)}, or in a format: "
            f"{', '.join(name for name in FORMATS if name not in PLAIN_NUMBERS)}"
        )
    known = {*FORMATS[stored.method].parameters, "density"}
    if unknown := sorted(stored.parameters.keys() - known):
        raise InputError(
            f"{stored.method}: it has no {', '.join(unknown)}; {suggest_name(unknown[0], known)}it has "
            f"{', '.join(sorted(known))}"
        )


def format_bytes(data: Data, dims: Dims, stored: StoredIn) -> sympy.Expr:
    """Return the bytes of the first rank's part of an array. Raises InputError, which names the array, if a format does
    not take its sizes."""
    try:
        return array_bytes(dims, stored)
    except FormatError as error:
        raise InputError(
            f"{data.cut_of or data}, of which a rank has {dims.rows} × {dims.cols}: {error}; or store it otherwise"
        ) from None


def array_bytes(dims: Dims, stored: StoredIn) -> sympy.Expr:
    """Return the bytes of the first rank's part of an array in a format, by the declaration of the format; vectors are
    stored in float32. Raises InputError if sizes are symbols and more than two of them decide, as for blocks."""
    rows, cols = (first_rank(size) for size in (dims.rows, dims.cols))
    if rows == 1:
        return sympy.sympify(4 * dims.numbers)
    form = FORMATS[stored.method]
    if isinstance(rows, int) and isinstance(cols, int):
        return sympy.sympify(dims.heads) * form.bytes.subs(form.expected(rows, cols, **stored.parameters))
    one, other = (form.expected(size, size, **stored.parameters) for size in PROBED_SIZES)
    fixed = {symbol: value for symbol, value in one.items() if symbol not in (n, p) and other[symbol] == value}
    fixed |= {nnz: sympy.nsimplify(stored.parameters.get("density", 0.1)) * rows * cols} if nnz in one else {}
    total = form.bytes.subs({sympy.sympify(symbol): value for symbol, value in {n: rows, p: cols, **fixed}.items()})
    deciding = sympy.sympify(rows).free_symbols | sympy.sympify(cols).free_symbols
    if missing := form.bytes.free_symbols - {sympy.sympify(symbol) for symbol in (n, p, *fixed)}:
        raise InputError(
            f"{stored.method} of {rows} × {cols}: its {', '.join(sorted(map(str, missing)))} follow from "
            f"{', '.join(sorted(map(str, deciding)))}: give these sizes of the model as numbers"
        )
    return sympy.sympify(dims.heads) * total


def first_rank(size: LiveSize) -> LiveSize:
    """Return a size on the first rank of every axis, which has the largest piece."""
    expression = sympy.sympify(size)
    return as_int(even(expression.xreplace(dict.fromkeys(expression.atoms(Coordinate), sympy.Integer(0)))))
