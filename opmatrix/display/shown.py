"""Views of programs, laws, patterns, relations, sessions, partitions, points and results in a notebook: tables and
static pictures, everything escaped. The printed text of each does not change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.positions.patterns import Positions
from opmatrix.display.front_plot import front_plot
from opmatrix.display.html import html_table
from opmatrix.display.tables import megabytes, ms, percent

if TYPE_CHECKING:
    from opmatrix.algebra.batch.relations import Relation
    from opmatrix.algebra.positions.patterns import Pattern
    from opmatrix.inference.session import Pages
    from opmatrix.parallel.sharding.partition import Partition
    from opmatrix.runtime.program import Program

MOST_STEPS, MOST_POSITIONS, CELL = 200, 24, 9  # steps of a program, positions; pixels of a dot


class LawLike(Protocol):
    """A law: its row, its docstring, the operators for which it must fail."""

    @property
    def doc(self) -> str:
        """The docstring, which says why it holds."""

    @property
    def without(self) -> Sequence[Any]:
        """The operators for which it must fail."""

    def row(self) -> tuple[str, ...]:
        """Return its row in the table of laws."""


def facts_html(title: str, pairs: Iterable[tuple[str, object]]) -> str:
    """Write names and values as a table under a title."""
    rows = "".join(
        f'<tr><th scope="row" style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(str(value))}</td></tr>'
        for name, value in pairs
    )
    return f"<table><caption>{escape(title)}</caption>{rows}</table>"


def program_html(program: Program) -> str:
    """Write the steps of a program as a table: kernel, operands, the format and bytes of stored constants."""
    rows = []
    for step in program.steps[:MOST_STEPS]:
        constants = {name: program.constants[ref] for name, ref in step.operands.items() if ref in program.constants}
        size = sum(constant.nbytes for constant in constants.values())
        stored = ", ".join(
            f"{name}: {getattr(constant, 'name', 'row')} {'×'.join(map(str, constant.shape))}"
            for name, constant in constants.items()
        )
        rows.append(
            (
                step.output,
                step.kernel,
                ", ".join(ref for ref in step.operands.values() if ref not in program.constants),
                stored,
                f"{size:,}",
            )
        )
    more = len(program.steps) - len(rows)
    return html_table(
        ("value", "kernel", "reads", "stored", "bytes"),
        rows,
        repr(program).strip("<>"),
        f"and {more} more steps: print it for all" if more > 0 else "",
    )


def law_html(law: LawLike) -> str:
    """Write a law: both sides, its guard, the operators for which it fails, its source, and why it holds."""
    name, kind, statement, guard, source = law.row()
    fails = "; ".join(", ".join(f"{variable}: {sort}" for variable, sort in sorts.items()) for sorts in law.without)
    return facts_html(
        f"{kind} law {name}",
        [
            ("says", statement),
            ("asks for", guard or "nothing"),
            *([("fails with", fails)] if fails else []),
            ("from", source),
            ("why", " ".join(law.doc.split())),
        ],
    )


def pattern_svg(pattern: Pattern) -> str:
    """Draw the visible pairs among the first positions of a sequence: a row for each query, a dot for each key that it
    sees."""
    most = min(MOST_POSITIONS, pattern.known(MOST_POSITIONS))
    side = CELL * most
    cells = np.argwhere(dense_mask(pattern, most))
    dots = "".join(
        f'<rect x="{30 + CELL * key}" y="{20 + CELL * query}" width="{CELL - 1}" height="{CELL - 1}"/>'
        for query, key in cells.tolist()
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {side + 34} {side + 24}" width="{side + 34}" '
        f'height="{side + 24}" role="img" font-family="sans-serif" font-size="10">'
        f"<title>{escape(str(pattern))}: {len(cells)} of {most * most} scores of {most} positions</title>"
        f'<text x="30" y="13">keys</text><text x="2" y="32">rows</text><rect x="30" y="20" width="{side}" '
        f'height="{side}" fill="#fff" stroke="#999"/><g fill="#1d4e7a">{dots}</g></svg>'
    )


def dense_mask(pattern: Pattern, most: int) -> NDArray[np.bool_]:
    """Return a mask, true where a query of a sequence of so many rows sees a key; all false where only a batch can
    tell."""
    at, none = np.arange(most), np.zeros((), np.int64)
    try:
        seen = pattern.sees(Positions(at[:, None], none), Positions(at[None], none))
    except (AttributeError, TypeError, ValueError, IndexError):
        seen = np.zeros((most, most), bool)
    return np.broadcast_to(np.asarray(seen, bool), (most, most))


def relation_html(relation: Relation) -> str:
    """Write the space of a relation's rows, the space of its columns, and the source of its entries."""
    return facts_html(
        str(relation),
        [
            ("rows", relation.rows),
            ("columns", relation.cols),
            ("entries", "given with each batch" if relation.custom else "known of any batch"),
        ],
    )


def session_html(session: Pages) -> str:
    """Write the pages of a session, and the length of each sequence."""
    sequences = session.state.sequences
    return html_table(
        ("sequence", "rows"),
        [(str(sequence.number), str(sequence.length)) for sequence in sequences],
        repr(session).strip("<>"),
    )


def partition_html(plan: Partition) -> str:
    """Write the printed text of a partition, unchanged."""
    return f"<pre>{escape(str(plan))}</pre>"


POINT_COLUMNS = "", "ms predicted", "measured", "MB predicted", "measured", "error predicted", "measured"


def point_row(name: str, point: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the figures of a program of a front."""
    return (
        name,
        ms(point["predicted_s"]),
        ms(point["measured_s"]),
        megabytes(point["predicted_bytes"]),
        megabytes(point["measured_bytes"]),
        percent(point["predicted_error"]),
        percent(point["measured_error"]),
    )


def point_html(point: Any) -> str:
    """Draw a point of the front as a table of one row."""
    return html_table(POINT_COLUMNS, [point_row(point.name, vars(point))])


def result_html(result: Any) -> str:
    """Draw the front with a number for each program, above its table; the chosen program is marked."""
    imported, points = vars(result.imported), [vars(point) for point in result.points]
    rows = [
        point_row("imported", imported),
        *(point_row(f"{'* ' * (at == result.chosen)}{at} {point['name']}", point) for at, point in enumerate(points)),
    ]
    return f'<div style="max-width:640px">{front_plot(imported, points, result.chosen)}</div>' + html_table(
        POINT_COLUMNS, rows, f"{result.model}: * is chosen"
    )
