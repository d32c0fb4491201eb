"""The sum of one row of each of some tables, chosen by fields of the batch: embed."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from formats import FORMATS, Format
from formats import kernels as compiled
from formats.core.epilogue import Epilogue, gamma
from formats.core.sizes import T, p
from formats.core.stage import ADDED, gain_shift, norm
from formats.core.stage import bound as bound_stages
from formats.core.stage import reference as apply_stages
from formats.host.host import uncached
from formats.machine.prices import Price, Timed, Work
from opmatrix.algebra.batch.batch import FIELDS, Batch
from opmatrix.algebra.batch.extents import Extents
from opmatrix.runtime.declarations.arguments import Doubles
from opmatrix.runtime.declarations.costs import Costs, gather_cost, stage_prices
from opmatrix.runtime.declarations.fitting import ONE_PASS, after, same
from opmatrix.runtime.declarations.kernel import Arguments, kernel
from opmatrix.runtime.declarations.operands import Rows, Tables
from opmatrix.runtime.declarations.padded import Padded, apply_padded_stages, take_rows
from opmatrix.runtime.declarations.telling import every_id, some_ids, telling_rows

if TYPE_CHECKING:
    from formats.machine.calibration import Grid, Numbers


def lying(tables: Sequence[NDArray[np.float32] | Format], turned: str) -> list[bool]:
    """Return for each table whether its columns are the rows to choose from."""
    named = turned.split(",") if turned else []
    known = [str(i) for i in range(len(tables))]
    if [*named] != [index for index in known if index in named]:
        raise ValueError(f"turned: {turned!r:.80} is not an ascending list of table numbers below {len(known)}")
    return [index in named for index in known]


def sizes(tables: Sequence[NDArray[np.float32] | Format], turned: str) -> list[tuple[int, int]]:
    """Return (rows to choose from, columns) of each table."""
    return [
        table.shape[::-1] if columns else table.shape
        for table, columns in zip(tables, lying(tables, turned), strict=True)
    ]


def chosen(a: Arguments) -> list[Doubles]:
    """Return one row of each table in float64, chosen by its field."""
    tables = [table.T if columns else table for table, columns in zip(a.tables, lying(a.tables, a.turned), strict=True)]
    return [
        np.asarray(table[a.batch.field(field, len(table))], np.float64)
        for field, table in zip(a.fields.split(","), tables, strict=True)
    ]


def time_rows(grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
    """Yield timed calls on a table that is larger than any cache, as a vocabulary is."""
    memory = np.ones(uncached() // 4, np.float32)
    for sizes, x, out in grid.passes(numbers):
        table = memory[: memory.size // x.shape[1] * x.shape[1]].reshape(-1, x.shape[1])
        at = numbers.rng.integers(0, len(table), len(x))
        yield sizes, partial(compiled.gather, at, table, out)


def time_columns(form: type[Format], grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
    """Yield timed calls on a format's panels, larger than any cache."""
    for sizes, x, out in grid.passes(numbers):
        table = columns_of(form, x.shape[1])
        yield sizes, partial(compiled.gather, numbers.rng.integers(0, table.shape[1], len(x)), table, out)


def columns_of(form: type[Format], inputs: int) -> compiled.Columns:
    """Return columns of so many inputs in a format, larger than any cache, whose scales are ones."""
    panelled, memory = form.panelled, np.ones(uncached() // 4, np.float32)
    assert panelled is not None
    if layout := panelled.layout:
        count = panelled.filled(inputs) // layout.inputs
        columns = memory.size // (layout.words * count) // panelled.width * panelled.width
        words, scale = memory.view(np.uint32), np.ones(layout.scales * count * columns, layout.scale_type)
        parts = np.ones(layout.part_words * count * columns, np.uint32)
        return compiled.Columns((inputs, columns), panelled, words[: layout.words * count * columns], scale, 0, parts)
    numbers = memory.view(form.fields["w"].number.dtype({}))
    deep, width = panelled.stored(inputs), panelled.width
    columns = len(numbers) // deep // width * width
    return compiled.Columns((inputs, columns), panelled, numbers[: deep * columns], *unit_scales(form, inputs, columns))


def unit_scales(form: type[Format], inputs: int, columns: int) -> tuple[np.ndarray | None, int]:
    """Return scales of ones in the form of a format's panels, and the inputs of a group if the panels do not give
    them."""
    if "scale" not in form.fields or form.panelled is None:
        return None, 0
    if group := form.panelled.group:
        return np.ones(-(-inputs // group) * columns, np.float16), 0
    return np.ones((1, columns), np.float32), inputs


def price_columns(form: type[Format]) -> Price:
    """Return the price of columns of a format's panels, as rows: it reads its own numbers, at least, and writes those
    of the result."""
    layout = form.panelled.layout if form.panelled else None
    stored = layout.bits / 8 if layout else int(form.fields["w"].number.bytes)
    return Price(
        ONE_PASS,
        lambda tile: Work(moved=T * p, stored=stored * T * p / form.together),
        partial(time_columns, form),
        common=form.proposed or form.plain,
    )


@kernel(
    stages=(norm, gain_shift),
    launches=True,
    prices={
        "gather": Price(ONE_PASS, lambda tile: Work(moved=2 * T * p), time_rows),
        **{f"gather.{name}": price_columns(form) for name, form in FORMATS.items() if form.panelled},
    },
)
class embed(Arguments):
    """The sum of one row of each table, chosen by that field of the batch, then the epilogue. Of the tables that
    `turned` numbers, which lie as products multiply by them, columns are rows."""

    part = "tables"

    def run(out: Any, batch: Any, tables: Tables, *, epilogue: Epilogue, fields: str, turned: str = "") -> None:
        """Add the rows that the fields choose from the tables, then apply the epilogue."""
        add_rows(out, batch, tables, fields.split(","), turned, epilogue)

    def shape(a) -> Rows:
        """Return rows as wide as the tables. Raises ValueError for an unknown field, a table whose rows or columns
        cannot be gathered, or tables of different width."""
        same("fields", len(fields := a.fields.split(",")), len(a.tables))
        if unknown := [name for name in fields if name not in FIELDS]:
            raise ValueError(f"fields: {unknown[0]!r:.80} is unknown; there are {FIELDS}")
        for i, (table, turned) in enumerate(zip(a.tables, lying(a.tables, a.turned), strict=True)):
            if not (table.panelled if turned else table.rowwise):
                raise ValueError(f"table{i}: {table}, whose {'columns' if turned else 'rows'} cannot be gathered")
        (_, width), *others = sizes(a.tables, a.turned)
        for _, columns in others:
            same("table columns", columns, width)
        return after(a, width)

    def limits(a) -> dict[str, int]:
        """Return the fields of the batch, each with the rows of its shortest table as limit."""
        return field_limits(a)

    def reference(a) -> Doubles:
        """Add the chosen rows in float64, and apply the stages."""
        return apply_stages(np.asarray(sum(chosen(a))), a)

    def padded(a) -> Padded:
        """Add the chosen rows of all tables, and apply the stages."""
        turned, fields = lying(a.tables, a.turned), a.fields.split(",")
        first, *others = (
            take_rows(a.batch.field(name), np.swapaxes(table, 0, 1) if columns else table)
            for name, table, columns in zip(fields, a.tables, turned, strict=True)
        )
        return apply_padded_stages(sum(others, start=first), a)

    def pullback(a, g: Doubles) -> Mapping[str, Doubles]:
        """Return an empty mapping: it reads no values."""
        return {}

    def bound(a) -> Doubles:
        """Bound the error of the sum of the chosen rows, and of the stages after it."""
        rows = chosen(a.exact)
        return bound_stages(np.asarray(sum(rows)), gamma(len(rows)) * np.sum(np.abs(rows), axis=0), a)

    def telling(a, rng: "np.random.Generator") -> Iterator[dict[str, object]]:
        """Yield every row of each table; and tables with rows of every kind, each beside zeros."""
        batch, fields = a.batch.whole, a.fields.split(",")
        (_, width), *_ = sizes(a.tables, a.turned)
        for ids in every_id(field_limits(a), width, batch):
            yield {"batch": ids}
        rows = telling_rows((width,), rng)
        some, none = FORMATS["dense"].pack(rows), FORMATS["dense"].pack(0 * rows)
        ids = some_ids(np.arange(len(rows)), dict.fromkeys(fields, len(rows)), batch)
        told: dict[str, object] = {"batch": ids, "turned": ""}
        added = {name: np.zeros_like(getattr(a, name)) for name in ADDED if getattr(a, name, None) is not None}
        for place in range(len(fields)):
            yield told | added | {"tables": tuple(some if at == place else none for at in range(len(fields)))}

    def cost(a, out: Rows, extents: Extents) -> Costs:
        """Return the price of a gathering for each table, then of the epilogue."""
        rows, tables = extents[out.space], a.tables or ()
        first = [
            cost
            for table, columns in zip(tables, lying(tables, a.turned) if tables else (), strict=True)
            for cost in gather_cost(out.cols, rows, table.name if columns else "")
        ]
        return first + [(name, {"T": rows, "p": out.cols}) for name in stage_prices(a)]


def field_limits(a: Arguments) -> dict[str, int]:
    """Return the rows of the shortest table that each field of the batch chooses from."""
    limits: dict[str, int] = {}
    for name, (rows, _) in zip(a.fields.split(","), sizes(a.tables, a.turned), strict=True):
        limits[name] = min(rows, limits.get(name, rows))
    return limits


def add_rows(out: Any, batch: Batch, tables: Any, fields: list[str], turned: str, epilogue: Epilogue) -> None:
    """Call the compiled kernel, with tables as they are stored."""
    at = [batch.field(field, rows) for field, (rows, _) in zip(fields, sizes(tables, turned), strict=True)]
    rows = [
        compiled.Columns.of(table) if columns else next(iter(table.arrays().values()))
        for table, columns in zip(tables, lying(tables, turned), strict=True)
    ]
    compiled.embed(list(zip(at, rows, strict=True)), out, epilogue)
