"""Draws docs/front.svg, the picture of README, from the report of a run; docs/make_results.py writes it, and

    python docs/make_front.py minilm.opmatrix/report.json

that of another run.

Each program by milliseconds (across) and megabytes (up), both logarithmic: a ring where it was predicted, a dot where
it was measured, its error beside it. The chosen program is a star. The same report gives the same file."""

import json
import sys
from collections.abc import Iterator
from math import cos, log, pi, sin
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

FILE = Path(__file__).with_name("front.svg")
WIDTH, HEIGHT = 720, 360  # of the picture, in pixels, as are all that follow
LEFT, RIGHT, TOP, BOTTOM = 56, 24, 40, 48  # around the plot
LETTER, LINE = 6.6, 15  # a letter's width, a line's height
TICKS = 1, 1.5, 2, 3, 4, 5, 7  # of each power of ten
MARGIN = 1.15  # factor between the outermost programs and the frame


class Shown(NamedTuple):
    """A program as it is drawn: milliseconds and megabytes, predicted and measured, and what is written beside it."""

    predicted: tuple[float, float]
    measured: tuple[float, float]
    label: str
    chosen: bool


class Axis:
    """A logarithmic axis from one pixel to another, over the range of some numbers."""

    def __init__(self, numbers: list[float], lo: float, hi: float) -> None:
        self.first, self.last, self.lo, self.hi = min(numbers) / MARGIN, max(numbers) * MARGIN, lo, hi

    def at(self, number: float) -> float:
        """The pixel of a number."""
        return self.lo + (self.hi - self.lo) * log(number / self.first) / log(self.last / self.first)

    def ticks(self) -> list[float]:
        return [n for power in range(-6, 7) for each in TICKS if self.first <= (n := each * 10.0**power) <= self.last]


def programs(report: dict[str, Any]) -> list[Shown]:
    """The imported program, and those of the front."""
    found = [shown(report["baseline"], "imported", False)]
    for number, point in enumerate(report["front"]):
        error = "exact" if point["name"] == "exact" else f"{100 * point['measured_error']:.2g} %"
        chosen = number == report["chosen"]
        found.append(shown(point, f"{error}, chosen" if chosen else error, chosen))
    return found


def shown(point: dict[str, Any], label: str, chosen: bool) -> Shown:
    places = [(1e3 * point[f"{how}_s"], point[f"{how}_bytes"] / 1e6) for how in ("predicted", "measured")]
    return Shown(*places, label, chosen)


def picture(report: dict[str, Any]) -> str:
    """The SVG of a report."""
    found = programs(report)
    both = [place for each in found for place in (each.predicted, each.measured)]
    x, y = Axis([ms for ms, _ in both], LEFT, WIDTH - RIGHT), Axis([mb for _, mb in both], HEIGHT - BOTTOM, TOP)
    busy = " (busy)" if any(report.get("busy", {}).values()) else ""
    title = f"{report['model']}, {report['workload']}, {report['machine']}{busy}"
    parts = [*grid(x, y, title), *(part for each in found for part in mark(each, x, y)), *labels(found, x, y)]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#222">'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def grid(x: Axis, y: Axis, title: str) -> Iterator[str]:
    """Ground, lines with their numbers, what the axes are and what the marks mean."""
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for n in x.ticks():
        yield f'<path d="M{x.at(n):.1f} {TOP}V{bottom}" stroke="#ddd"/>{text(x.at(n), bottom + 16, f"{n:g}", "middle")}'
    for n in y.ticks():
        yield f'<path d="M{LEFT} {y.at(n):.1f}H{right}" stroke="#ddd"/>{text(LEFT - 6, y.at(n) + 4, f"{n:g}", "end")}'
    yield f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#222"/>'
    yield text(LEFT, 16, title, "start", ' font-weight="bold"')
    yield text(LEFT, 32, "MB, logarithmic", "start")
    yield text(right, 32, "ring: predicted · dot: measured · beside it: measured error", "end")
    yield text(right, HEIGHT - 10, "ms, logarithmic", "end")


def text(x: float, y: float, words: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def mark(program: Shown, x: Axis, y: Axis) -> Iterator[str]:
    """A ring, a line to the dot, or to the star of the chosen one."""
    (a, b), (c, d) = ((x.at(ms), y.at(mb)) for ms, mb in (program.predicted, program.measured))
    yield f'<path d="M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}" stroke="#222"/>'
    yield f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4" fill="#fff" stroke="#222"/>'
    if program.chosen:
        yield f'<path d="{star(c, d, 10)}" fill="#c22" stroke="#222"/>'
    else:
        yield f'<circle cx="{c:.1f}" cy="{d:.1f}" r="4"/>'


def star(x: float, y: float, radius: float) -> str:
    """Five points around a place, as a path."""
    corners = (
        (x + r * sin(k * pi / 5), y - r * cos(k * pi / 5))
        for k, r in ((k, radius if k % 2 == 0 else 0.45 * radius) for k in range(10))
    )
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in corners) + "Z"


def labels(found: list[Shown], x: Axis, y: Axis) -> Iterator[str]:
    """Beside each program, the first free place of four around it, the chosen one's first of all."""
    taken = [
        (x.at(ms) - 7, y.at(mb) - 7, x.at(ms) + 7, y.at(mb) + 7)
        for each in found
        for ms, mb in (each.predicted, each.measured)
    ]
    taken += [
        (min(a, b), y.at(each.measured[1]) - 3, max(a, b), y.at(each.measured[1]) + 3)
        for each in found
        for a, b in [(x.at(each.predicted[0]), x.at(each.measured[0]))]
    ]
    for each in sorted(found, key=lambda program: not program.chosen):
        ends = sorted(x.at(ms) for ms, _ in (each.predicted, each.measured))
        wide, up = LETTER * len(each.label), y.at(each.measured[1])
        middle = (ends[0] + ends[1] - wide) / 2
        places = [
            (ends[1] + 13, up + 4),
            (ends[0] - 13 - wide, up + 4),
            (middle, up - 12),
            (middle, up + 22),
            (middle, up - 27),
            (middle, up + 37),
        ]
        boxes = {place: (place[0], place[1] - 0.8 * LINE, place[0] + wide, place[1] + 0.2 * LINE) for place in places}
        at = min(places, key=lambda place: cover(boxes[place], taken))
        taken.append(boxes[at])
        yield text(*at, each.label, "start", ' font-weight="bold"' if each.chosen else "")


def cover(box: tuple[float, ...], taken: list[tuple[float, ...]]) -> float:
    """How much of a box is taken or outside the plot, in square pixels."""
    left, top, right, bottom = box
    outside = max(0, LEFT - left) + max(0, right - WIDTH + RIGHT) + max(0, TOP - top) + max(0, bottom - HEIGHT + BOTTOM)
    return LINE * outside + sum(
        max(0.0, min(right, c) - max(left, a)) * max(0.0, min(bottom, d) - max(top, b)) for a, b, c, d in taken
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    FILE.write_text(picture(json.loads(Path(sys.argv[1]).read_text("utf-8"))), "utf-8")
