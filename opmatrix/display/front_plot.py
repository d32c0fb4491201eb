"""The front as a picture: time across, memory up, a number for each program, whose row stands in the table under it.
Shapes tell kinds apart, so it can be read without colour."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import floor, log10
from typing import Any

# pixels: of the picture, and around the plot
PLOT_WIDE, PLOT_HIGH, PLOT_LEFT, PLOT_TOP, PLOT_RIGHT, PLOT_BOTTOM = 640, 360, 62, 18, 24, 46
TICKS = 5
ROUNDED_ERROR = 1e-5  # errors below are rounding


def front_plot(baseline: Mapping[str, Any], points: Sequence[Mapping[str, Any]], chosen: int) -> str:
    """Draw an SVG of programs by their milliseconds and megabytes, measured ones where they were measured."""
    every = [baseline, *points]
    xs = [1e3 * figure(point, "s") for point in every]
    ys = [figure(point, "bytes") / 1e6 for point in every]
    right, top = 1.08 * max(xs) or 1.0, 1.08 * max(ys) or 1.0
    across, up = (PLOT_WIDE - PLOT_LEFT - PLOT_RIGHT) / right, (PLOT_HIGH - PLOT_TOP - PLOT_BOTTOM) / top
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PLOT_WIDE} {PLOT_HIGH}" role="img" '
        'font-family="sans-serif" font-size="12" fill="#111" '
        'aria-labelledby="front-title"><title id="front-title">Programs by time and memory; the table below '
        "has every figure</title>",
        *axes(right, top, across, up),
    ]
    for number, (point, x, y) in enumerate(zip(every, xs, ys, strict=True), -1):
        lines += mark(number, point, PLOT_LEFT + across * x, PLOT_HIGH - PLOT_BOTTOM - up * y, number == chosen)
    return "".join([*lines, "</svg>"])


def figure(point: Mapping[str, Any], kind: str) -> float:
    """Return the measured figure of a point, else the predicted one, else 0."""
    measured = point[f"measured_{kind}"]
    return float((point[f"predicted_{kind}"] if measured is None else measured) or 0.0)


def axes(right: float, top: float, across: float, up: float) -> Iterator[str]:
    """Yield the lines of both axes with their numbers and units."""
    ground = PLOT_HIGH - PLOT_BOTTOM
    for number in ticks(right):
        x = PLOT_LEFT + across * number
        yield (
            f'<path d="M{x:.1f} {PLOT_TOP}V{ground}" stroke="#ddd" fill="none"/>'
            f'<text x="{x:.1f}" y="{ground + 16}" text-anchor="middle">{number:g}</text>'
        )
    for number in ticks(top):
        y = ground - up * number
        yield (
            f'<path d="M{PLOT_LEFT} {y:.1f}H{PLOT_WIDE - PLOT_RIGHT}" stroke="#ddd" fill="none"/>'
            f'<text x="{PLOT_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number:g}</text>'
        )
    yield f'<text x="{(PLOT_LEFT + PLOT_WIDE) / 2:.0f}" y="{PLOT_HIGH - 8}" text-anchor="middle">milliseconds</text>'
    yield f'<text x="4" y="{PLOT_TOP - 5}">MB</text>'


def ticks(most: float) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten from 0 to `most`, at most TICKS beside 0."""
    power = 10.0 ** floor(log10(most / TICKS))
    step = next(times * power for times in (1, 2, 5, 10) if times * power * TICKS >= most)
    return [round(step * at, 12) for at in range(int(most / step) + 1)]


def mark(number: int, point: Mapping[str, Any], x: float, y: float, chosen: bool) -> Iterator[str]:
    """Draw a program by the number of its directory: a diamond is the import, which has none, a square exact, a disc
    approximate, a ring the chosen one."""
    name = str(point["name"])
    yield f"<g><title>{escape(name[:200])}</title>"
    if chosen:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="11" fill="none" stroke="#b34700" stroke-width="3"/>'
    if number < 0:
        yield f'<path d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z" fill="#fff" stroke="#111" stroke-width="2"/>'
    elif (point["measured_error"] or point["predicted_error"] or 0.0) < ROUNDED_ERROR:
        yield f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" fill="#1d4e7a" stroke="#111"/>'
    else:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="#1d4e7a" stroke="#111"/>'
    if number >= 0:
        yield f'<text x="{x + 9:.1f}" y="{y - 8:.1f}" font-weight="bold">{number}</text>'
    yield "</g>"
