"""Tables of text."""
from collections.abc import Collection, Sequence


def table(rows: Sequence[Sequence[str]], header: Sequence[str], left: Collection[int] = (0,)) -> str:
    """Columns that line up under a header: those named to the left, all others to the right."""
    cells = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        return "  ".join(cell.ljust(width) if at in left else cell.rjust(width)
                         for at, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
    return "\n".join([line(cells[0]), "  ".join("─" * width for width in widths), *map(line, cells[1:])])
