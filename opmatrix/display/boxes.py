"""Boxes in rows, joined by lines, as an SVG: the parts of a picture of a graph. It loads nothing from a network and
needs no script; a long text shows whole where a pointer rests on it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape

# pixels: width of a box, height of a line of text, padding, gap between boxes, gap between rows
BOX_WIDE, BOX_LINE, BOX_PAD, BOX_GAP, DEEP = 264, 15, 7, 18, 34
LETTERS = 36  # most characters of a line of text


@dataclass(frozen=True)
class Box:
    """A box with lines of text, the first in bold. `weight` from 0 to 1 is its shade; `below` are the boxes that it is
    drawn under, and `through` those whose line to it leads through boxes that are left out. A marked line begins with
    *."""

    key: Hashable
    lines: tuple[str, ...]
    weight: float = 0.0
    below: tuple[Hashable, ...] = ()
    through: tuple[Hashable, ...] = ()
    tip: str = ""

    @property
    def height(self) -> int:
        """The height of the box: a line of each text, and padding."""
        return 2 * BOX_PAD + BOX_LINE * len(self.lines)


def box_levels(boxes: Sequence[Box]) -> list[list[Box]]:
    """Return boxes in rows, by the longest way from the boxes that are under none, each row in the order of the boxes
    above it."""
    depth: dict[Hashable, int] = {}
    for box in boxes:  # the boxes above a box come before it
        depth[box.key] = max((depth[over] + 1 for over in (*box.below, *box.through) if over in depth), default=0)
    rows: list[list[Box]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for box in boxes:
        rows[depth[box.key]].append(box)
    place: dict[Hashable, float] = {}
    for row in rows:
        row.sort(key=partial(find_middle, place))
        place |= {box.key: (number + 0.5) / len(row) for number, box in enumerate(row)}
    return rows


def find_middle(place: Mapping[Hashable, float], box: Box) -> float:
    """Return the best place of a box in its row: the mean of the places of the boxes above it."""
    over = [place[key] for key in (*box.below, *box.through) if key in place]
    return sum(over) / len(over) if over else 0.0


def draw_boxes(boxes: Sequence[Box], title: str) -> str:
    """Draw the picture; `title` is its description for a reader of the page."""
    rows = box_levels(boxes)
    width = max([len(row) for row in rows] or [1]) * (BOX_WIDE + BOX_GAP) + BOX_GAP
    where: dict[Hashable, tuple[float, float, int]] = {}
    y = BOX_GAP
    for row in rows:
        left = (width - len(row) * (BOX_WIDE + BOX_GAP) + BOX_GAP) / 2
        for number, box in enumerate(row):
            where[box.key] = left + number * (BOX_WIDE + BOX_GAP), y, box.height
        y += max(box.height for box in row) + DEEP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}" '
        f'role="img" font-family="sans-serif" font-size="11" style="max-width:100%;height:auto">'
    )
    ground = f'<rect width="{width}" height="{y}" fill="#fff"/>'
    named = f"<title>{escape(title)}</title>"
    return "\n".join([head, named, ground, *draw_lines(boxes, where), *draw_each(boxes, where), "</svg>"]) + "\n"


def draw_lines(boxes: Sequence[Box], where: dict[Hashable, tuple[float, float, int]]) -> Iterator[str]:
    """Yield a curve from each box to those that it is drawn under; broken where a box between is left out."""
    for box in boxes:
        x, y, _ = where[box.key]
        for over, style in ((box.below, ""), (box.through, ' stroke-dasharray="4 3"')):
            for key in dict.fromkeys(over):
                if key not in where:
                    continue
                a, b, high = where[key]
                x0, y0, x1 = a + BOX_WIDE / 2, b + high, x + BOX_WIDE / 2
                yield (
                    f'<path d="M{x0:.0f} {y0:.0f}C{x0:.0f} {y0 + 20:.0f} {x1:.0f} {y - 20:.0f} {x1:.0f} {y:.0f}" '
                    f'fill="none" stroke="#777"{style}/>'
                )


def draw_each(boxes: Sequence[Box], where: dict[Hashable, tuple[float, float, int]]) -> Iterator[str]:
    """Yield the boxes, darker where they weigh more, with black letters on every shade."""
    for box in boxes:
        x, y, high = where[box.key]
        yield (
            f'<g><title>{escape(box.tip or chr(10).join(box.lines))}</title><rect x="{x:.0f}" y="{y:.0f}" '
            f'width="{BOX_WIDE}" height="{high}" rx="4" fill="{shade_of(box.weight)}" stroke="#456"/>'
        )
        for number, line in enumerate(box.lines):
            bold = ' font-weight="bold"' if number == 0 or line.startswith("*") else ""
            yield (
                f'<text x="{x + BOX_PAD:.0f}" y="{y + BOX_PAD + BOX_LINE * number + 11:.0f}" fill="#111"{bold}>'
                f"{escape(cut_letters(line))}</text>"
            )
        yield "</g>"


def shade_of(weight: float) -> str:
    """Return a colour from white to blue, light enough for black letters."""
    share = min(max(weight, 0.0), 1.0)
    return "#" + "".join(f"{round(255 - share * (255 - end)):02x}" for end in (0x8F, 0xB8, 0xDE))


def cut_letters(line: str, most: int = LETTERS) -> str:
    """Cut a line after `most` letters, the last of which becomes an ellipsis."""
    return line if len(line) <= most else f"{line[: most - 1]}…"
