"""An operator as a small table, for notebooks: its entries where it is a matrix, its blocks, or its factors and their
shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.data import Promised
from opmatrix.algebra.oracles import dense, factors
from opmatrix.algebra.shapes import LiveSize, Shape, brief
from opmatrix.algebra.term import Operator
from opmatrix.display.term_writer import spine

LIMIT = 8  # rows and columns of entries that are shown


def html(term: Operator) -> str:
    """Write the table, under the operator's text and shapes."""
    head = f"<code>{escape(brief(repr(term), 300))}</code><br><small>{term.into} → {term.out}{facts(term)}</small>"
    return f"{head}{format_cells(rows(term))}"


def facts(term: Operator) -> str:
    """Return the properties worth knowing."""
    shown = [name for name in ("linear", "entrywise", "row_wise", "constant") if getattr(term, name)]
    return "".join(f", {name.replace('_', '-')}" for name in shown)


def rows(term: Operator) -> list[list[str]]:
    """Return the cells: entries, blocks or factors."""
    n, single = term.into.cols, term(Shape(1, cols=term.into.cols)).heads == 1
    if term.linear and single and isinstance(n, int) and (matrix := entries(term, n)) is not None:
        return grid(n, term.out.cols, lambda i, j: format_number(matrix[i, j]))
    if (
        term.kind.matrix
        and single
        and known(term)
        and all(over.width == 1 for over in term.args if hasattr(over, "merge"))
    ):
        return grid(n, term.out.cols, lambda i, j: format_entry(term, i, j))
    if term.diagonal and single:
        return grid(n, n, lambda i, j: escape(repr(term)) if i == j else "")
    if term.kind.name == "row":
        return [[escape(brief(repr(part), 60)) for part in spine(term)]]
    cells, shape = [["operator", "gives"]], Shape(term.into.heads, cols=n)
    for factor in factors(term):
        shape = factor(shape)
        cells.append([escape(brief(repr(factor), 120)), str(shape)])
    return cells


def known(term: Operator) -> bool:
    """True if all of its arrays are loaded."""
    return not any(isinstance(a, Promised) for node in term.walk() for a in node.args)


def entries(term: Operator, n: int) -> NDArray[np.float64] | None:
    """Return the first rows of the matrix of a term that n columns go into; None where the term holds a symbol, or an
    array that is only promised."""
    if any(node.kind.name == "symbol" for node in term.walk()) or not known(term):
        return None
    return dense(term, np.eye(min(n, LIMIT), n))


def grid(n: LiveSize, p: LiveSize, cell: Callable[[int, int], str]) -> list[list[str]]:
    """Return the entries that are shown; dots for the rest, or where their number is not known."""
    down, right = (min(k, LIMIT) if isinstance(k, int) else 3 for k in (n, p))
    cells = [[cell(i, j) for j in range(right)] + ["…"] * (p != right) for i in range(down)]
    return cells + [["⋮"] * len(cells[0])] * (n != down)


def format_entry(term: Operator, i: int, j: int) -> str:
    """Return an entry of a matrix kind in a word: a number, a function, or an empty text where there is none."""
    entry = term.kind.body(i, j, *term.args)
    if callable(entry):
        return format_number(entry(0.0)) if term.constant else escape(repr(term))
    return "" if entry is None else format_number(entry)


def format_number(value: float) -> str:
    """Write a number with three digits."""
    return f"{float(value):.3g}"


def format_cells(cells: list[list[str]]) -> str:
    """Write rows of cells as HTML."""
    lines = ("".join(f"<td>{cell}</td>" for cell in line) for line in cells)
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def html_table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]], caption: str = "", foot: str = "") -> str:
    """Write rows of text under their header, escaped; a row that begins with * is the chosen one."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    lines = "".join(
        f"<tr{' style=font-weight:bold' if line[0].startswith('*') else ''}>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in line)
        + "</tr>"
        for line in rows
    )
    title = caption and f'<caption style="white-space:pre-line;text-align:left">{escape(caption)}</caption>'
    return (
        f"<table>{title}<thead><tr>{head}</tr></thead>"
        f"<tbody>{lines}</tbody></table>{foot and f'<p><small>{escape(foot)}</small></p>'}"
    )
