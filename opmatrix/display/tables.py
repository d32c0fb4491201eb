"""Tables of text, and figures in their printed forms."""

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import NamedTuple

GAP = 2  # spaces between columns
RULE = re.compile(r"─+(?:  ─+)*")
NARROWEST = 12  # least characters of a narrowed column of words


def table(rows: Sequence[Sequence[str]], header: Sequence[str], left: Collection[int] = (0,)) -> str:
    """Return columns lined up under a header: the columns in `left` to the left, all others to the right."""
    cells = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        """Line up the cells of one row, without blanks at its end."""
        return "  ".join(
            cell.ljust(width) if at in left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()

    return "\n".join([line(cells[0]), "  ".join("─" * width for width in widths), *map(line, cells[1:])])


# ---- on a terminal


def fit_width(text: str, columns: int) -> str:
    """Return a text with its tables, as `table` writes them, no wider than so many columns where that is possible:
    headers and columns of words go over several lines, the widest first; numbers stay whole. The rest of the text is
    unchanged."""
    lines, done = text.splitlines(), list[str]()
    at = 0
    while at < len(lines):
        if at + 1 < len(lines) and RULE.fullmatch(lines[at + 1]) and len(lines[at + 1]) > columns:
            end = next((end for end in range(at + 2, len(lines)) if not lines[end]), len(lines))
            done += narrowed(lines[at], lines[at + 1], lines[at + 2 : end], columns)
            at = end
        else:
            done.append(lines[at])
            at += 1
    return "\n".join(done) + "\n" * text.endswith("\n")


def narrowed(header: str, rule: str, rows: Sequence[str], columns: int) -> Iterator[str]:
    """Yield the lines of a table in so many columns."""
    spans = [dashes.span() for dashes in re.finditer("─+", rule)]
    printed = [
        read_column([row[start:end].ljust(end - start) for row in (header, *rows)], leftmost=at == 0)
        for at, (start, end) in enumerate(spans)
    ]
    widths = narrow_widths(printed, columns - GAP * (len(printed) - 1))
    words = [column.words for column in printed]
    head, *body = zip(*(column.cells for column in printed), strict=True)
    yield from stacked(head, widths, words)
    yield (" " * GAP).join("─" * width for width in widths)
    for row in body:
        yield from stacked(row, widths, words)


class PrintedColumn(NamedTuple):
    """The cells of a column of a printed table, header first. Words are lined up to the left, numbers to the right."""

    cells: Sequence[str]
    words: bool

    def widest(self) -> int:
        """Return the characters of its longest cell."""
        return max(map(len, self.cells))

    def narrowest(self) -> int:
        """Return the least characters in which numbers, and the words of its header, stay whole."""
        head, *body = self.cells
        most = NARROWEST if self.words else self.widest()
        return max([longest(head), *(min(most, len(cell)) for cell in body)])


def read_column(cells: Sequence[str], leftmost: bool) -> PrintedColumn:
    """Return a column from its cells as wide as they were printed: of words if it is the leftmost, or not all of its
    cells are lined up to the right."""
    if leftmost or any(cell != cell.strip().rjust(len(cell)) for cell in cells):
        return PrintedColumn([cell.rstrip() for cell in cells], words=True)
    return PrintedColumn([cell.strip() for cell in cells], words=False)


def narrow_widths(printed: Sequence[PrintedColumn], room: int) -> list[int]:
    """Return widths of columns that together fit the room where that is possible: columns of numbers are narrowed
    first, then those of words, always the widest."""
    widths = [column.widest() for column in printed]
    least = [column.narrowest() for column in printed]
    for words in (False, True):
        group = [at for at, column in enumerate(printed) if column.words == words]
        while sum(widths) > room:
            wide = [at for at in group if widths[at] > least[at]]
            if not wide:
                break
            widths[max(wide, key=lambda at: (widths[at], at))] -= 1
    return widths


def longest(words: str) -> int:
    """Return the length of the longest word, 0 if there is none."""
    return max(map(len, words.split()), default=0)


def stacked(row: Sequence[str], widths: Sequence[int], words: Sequence[bool]) -> Iterator[str]:
    """Yield the lines of a row whose cells go over several where they are too long for their columns."""
    parts = [
        [cell]
        if len(cell) <= width
        else wrap(cell, width, subsequent_indent=" " * (len(cell) - len(cell.lstrip()) + GAP) * left)
        for cell, width, left in zip(row, widths, words, strict=True)
    ]
    for cells in zip_longest(*parts, fillvalue=""):
        yield (
            (" " * GAP)
            .join(
                cell.ljust(width) if left else cell.rjust(width)
                for cell, width, left in zip(cells, widths, words, strict=True)
            )
            .rstrip()
        )


# ---- figures


def ms(seconds: float | None) -> str:
    """Write seconds as milliseconds with two decimals; empty for None."""
    return "" if seconds is None else f"{1e3 * seconds:.2f}"


def between(ends: Sequence[float] | None) -> str:
    """Return two seconds, in milliseconds."""
    return "" if ends is None else " to ".join(map(ms, ends))


def megabytes(size: float | None) -> str:
    """Write bytes as megabytes with one decimal; empty for None."""
    return "" if size is None else f"{size / 1e6:.1f}"


def percent(error: float | None) -> str:
    """Return an error in per cent, or as a power of ten where it is rounding."""
    if error is None:
        return ""
    return f"{error:.0e}" if 0 < abs(error) < 1e-5 else f"{100 * error:.3g} %"


def micro(seconds: float) -> str:
    """Return seconds as microseconds: a decimal, or three digits of a small number."""
    return f"{1e6 * seconds:.1f}" if 1e6 * seconds >= 10 else f"{1e6 * seconds:.3g}"


def few_digits(value: object, digits: int = 3) -> str:
    """Return a number in few digits, as reports have it; any other value as it is."""
    return f"{value:.{digits}g}" if isinstance(value, float) else f"{value}"
