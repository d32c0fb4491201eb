"""Tables of text, and figures in their printed forms."""

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from textwrap import wrap

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
    cells = [[row[start:end].ljust(end - start) for start, end in spans] for row in (header, *rows)]
    words = [
        at == 0 or any(cell != cell.strip().rjust(len(cell)) for cell in column)  # left ones: no numbers
        for at, column in enumerate(zip(*cells, strict=True))
    ]
    shown = [[cell.rstrip() if left else cell.strip() for cell, left in zip(row, words, strict=True)] for row in cells]
    most = [max(map(len, column)) for column in zip(*shown, strict=True)]
    least = [
        max([longest(head), *(min(NARROWEST, len(cell)) if left else len(cell) for cell in body)])
        for (head, *body), left in zip(zip(*shown, strict=True), words, strict=True)
    ]
    widths, room = [*most], columns - GAP * (len(most) - 1)
    for some in ([not left for left in words], words):  # headers of numbers first, then words
        while sum(widths) > room and any(
            wide := [allowed and width > low for allowed, width, low in zip(some, widths, least, strict=True)]
        ):
            widest = max((width, at) for at, (width, long) in enumerate(zip(widths, wide, strict=True)) if long)[1]
            widths[widest] -= 1
    for row in (shown[0], None, *shown[1:]):
        if row is None:
            yield (" " * GAP).join("─" * width for width in widths)
        else:
            yield from stacked(row, widths, words)


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
