"""Pairs of columns turned by angles that the position chooses (Su et al. 2021, RoPE)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from formats import kernels as compiled
from formats.core.choices import OneOf
from formats.core.epilogue import gamma
from formats.core.sizes import S, T, p
from formats.machine.prices import Price, Timed, Work
from opmatrix.algebra.batch.batch import Batch
from opmatrix.runtime.declarations.arguments import Doubles
from opmatrix.runtime.declarations.costs import one_pass
from opmatrix.runtime.declarations.fitting import ONE_PASS, same
from opmatrix.runtime.declarations.kernel import Arguments, Restricted, RowNumbers, kernel, restrict_rows
from opmatrix.runtime.declarations.operands import Array, Heads
from opmatrix.runtime.declarations.padded import Padded, take_rows
from opmatrix.runtime.declarations.pullbacks import Cotangents
from opmatrix.runtime.declarations.telling import many_ids, some_ids, telling_fills, telling_rows

if TYPE_CHECKING:
    from formats.machine.calibration import Grid, Numbers

TURNED = 64  # columns of a timed head
Picked = Annotated[str, OneOf(("all", "first", "last"))]


def time_rotation(grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
    """Yield calls that turn heads of TURNED columns, each row by an angle of its own."""
    for sizes, x, out in grid.passes(numbers):
        by, at = numbers.fresh(len(x), TURNED // 2), np.arange(len(x))
        turned, into = (array.reshape(len(x), -1, TURNED) for array in (x, out))
        yield sizes, partial(compiled.rotate, turned, at, by, by, into)


def pick_rows(a: Arguments, positions: RowNumbers) -> Any:
    """Return the positions of the rotated rows."""
    if a.rows == "all":
        return positions
    return positions[a.batch.starts[:-1] if a.rows == "first" else a.batch.starts[1:] - 1]


@kernel(
    launches=True,
    changes_space=True,
    inplace="x",
    price=Price(ONE_PASS, lambda tile: Work(vector=3 * T * p, moved=2 * T * p), time_rotation, common=False),
)
class rotate(Arguments):
    """Columns i and k + i of every head as a pair, turned by the angle of column i in the row of the tables that a
    row's position names; tables are positions × k, columns behind 2 k stay (Su et al. 2021, RoPE). Rows are all tokens,
    or of each sequence the first or the last."""

    part = "turning"

    def run(out: Any, batch: Any, x: Heads, cos: Array, sin: Array, *, rows: Picked = "all") -> None:
        """Launch the compiled rotation; rows are all tokens, or the first or last of each sequence."""
        tables: Any = cos
        starts = None if rows == "all" else batch.starts
        compiled.rotate(x, batch.field("positions", len(tables)), cos, sin, out, starts, rows == "last")

    def shape(a) -> Heads:
        """Return the heads of x. Raises ValueError for tables of unequal shapes, more pairs than columns, or rows of
        another space."""
        same("sin", a.sin.shape, a.cos.shape)
        if a.cos.ndim != 2 or 2 * a.cos.shape[1] > a.x.cols:
            raise ValueError(f"cos: {a.cos.shape}, where (positions, at most half of {a.x.cols} columns) is needed")
        same("x rows", a.x.space, space := T if a.rows == "all" else S)
        return Heads(a.x.heads, a.x.cols, space=space)

    def limits(a) -> dict[str, int]:
        """Limit positions to the rows of the tables."""
        return {"positions": len(a.cos)}

    def reference(a) -> Doubles:
        """Return pairs of columns as complex numbers, times numbers of the unit circle."""
        at, k = pick_rows(a, a.batch.field("positions", len(a.cos))), a.cos.shape[1]
        pairs = (a.x[..., :k] + 1j * a.x[..., k : 2 * k]) * (a.cos + 1j * a.sin)[at][:, None]
        return np.concatenate([pairs.real, pairs.imag, a.x[..., 2 * k :]], -1)

    def padded(a) -> Padded:
        """Turn pairs of columns by the angles of each row's position."""
        at, k = a.batch.positions, a.cos.shape[1]
        at = at if a.rows == "all" else a.batch.pick(at, a.rows)
        cos, sin = (np.expand_dims(take_rows(at, table), -2) for table in (a.cos, a.sin))
        left, right = a.x[..., :k], a.x[..., k : 2 * k]
        turned = [left * cos - right * sin, left * sin + right * cos]
        rest = [a.x[..., 2 * k :]] if a.x.shape[-1] > 2 * k else []
        return np.concatenate([*turned, *rest], -1)

    def pullback(a, g: Doubles) -> Cotangents:
        """Return g turned back."""
        at, k = pick_rows(a, a.batch.field("positions", len(a.cos))), a.cos.shape[1]
        cos, sin = a.cos[at][:, None], a.sin[at][:, None]
        left, right = g[..., :k], g[..., k : 2 * k]
        return {"x": np.concatenate([left * cos + right * sin, right * cos - left * sin, g[..., 2 * k :]], -1)}

    def bound(a) -> Doubles:
        """Bound the error of two products, and their sum."""
        at, k = pick_rows(a, a.batch.positions), a.cos.shape[1]
        x, c, s = abs(a.exact.x), abs(a.exact.cos)[at][:, None], abs(a.exact.sin)[at][:, None]
        left, right = x[..., :k], x[..., k : 2 * k]
        return gamma(2) * np.concatenate([left * c + right * s, left * s + right * c, 0 * x[..., 2 * k :]], -1)

    @staticmethod
    def restrict(
        arguments: Mapping[str, Any], values: Sequence[str], batch: Batch, at: RowNumbers
    ) -> Restricted | None:
        """Restrict to some rows of a rotation of all tokens; None for a rotation of one a sequence."""
        return restrict_rows(arguments, values, batch, at) if arguments["rows"] == "all" else None

    def telling(a, rng: "np.random.Generator") -> Iterator[dict[str, object]]:
        """Yield operands. For a rotation of all tokens: every row of the tables (of very long ones the ends and drawn
        rows), and rows of every kind at drawn positions. For one of first or last tokens: operands as for any rows that
        one batch has."""
        row, limits, batch = a.x.shape[1:], {"positions": len(a.cos)}, a.batch.whole
        if a.rows != "all":
            for fill in telling_fills({"x": a.x.shape}, rng):
                yield {**fill}
            return
        at = many_ids(len(a.cos), math.prod(row), rng)
        yield {"batch": some_ids(at, limits, batch), "x": rng.standard_normal((len(at), *row), np.float32)}
        rows = telling_rows(row, rng)
        yield {"batch": some_ids(rng.integers(0, len(a.cos), len(rows)), limits, batch), "x": rows}

    cost = one_pass("rotate")
