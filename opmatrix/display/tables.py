"""Tables of text, and figures as they stand there."""
from collections.abc import Collection, Sequence


def table(rows: Sequence[Sequence[str]], header: Sequence[str], left: Collection[int] = (0,)) -> str:
    """Columns that line up under a header: those named to the left, all others to the right."""
    cells = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        return "  ".join(cell.ljust(width) if at in left else cell.rjust(width)
                         for at, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
    return "\n".join([line(cells[0]), "  ".join("─" * width for width in widths), *map(line, cells[1:])])


def ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.2f}"


def between(ends: Sequence[float] | None) -> str:
    """Two seconds, in milliseconds."""
    return "" if ends is None else " to ".join(map(ms, ends))


def megabytes(size: float | None) -> str:
    return "" if size is None else f"{size / 1e6:.1f}"


def percent(error: float | None) -> str:
    """An error in per cent, or as a power of ten where it is rounding."""
    if error is None:
        return ""
    return f"{error:.0e}" if error < 1e-5 else f"{100 * error:.3g} %"
