"""Timelines of a run: bars in lanes, as a picture and as a trace that browsers open."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from xml.sax.saxutils import escape

from formats.core.errors import InputError
from formats.disk.files import replacing, writable

TIMELINES = ".svg", ".json"
SPAN, LANE, LEFT, TOP, BOTTOM = 960, 26, 76, 44, 30  # sizes in the picture, in pixels
DIGIT = 9  # pixels that a bar's number needs
MOST_BARS = 20_000  # most bars of a picture; a trace has no such bound


class Bar(NamedTuple):
    """An activity of a lane from one second to another; bars of a kind have one colour. `more`: further facts of it in
    a trace."""

    lane: int
    begin: float
    end: float
    kind: str
    label: str
    more: Mapping[str, object] = MappingProxyType({})


COLOURS = {"F": "#8fb8de", "B": "#7fbf8e", "W": "#e8c46c"}  # colours of kinds; other kinds have OTHER
OTHER = "#c9a0c9"


def chrome_trace(bars: Sequence[Bar], lanes: Sequence[str]) -> str:
    """Write a trace in the Trace Event Format, which chrome://tracing and Perfetto open; times in microseconds."""
    events: list[dict[str, object]] = [
        dict(name="thread_name", ph="M", pid=0, tid=lane, args=dict(name=name)) for lane, name in enumerate(lanes)
    ]
    events += [
        dict(
            name=bar.label,
            cat=bar.kind,
            ph="X",
            pid=0,
            tid=bar.lane,
            ts=1e6 * float(bar.begin),
            dur=1e6 * float(bar.end - bar.begin),
            **({"args": dict(bar.more)} if bar.more else {}),
        )
        for bar in bars
    ]
    return json.dumps(dict(traceEvents=events, displayTimeUnit="ms")) + "\n"


def timeline_picture(bars: Sequence[Bar], lanes: Sequence[str], title: str) -> str:
    """Draw an SVG with a row for each lane. Raises InputError for more bars than a picture shows."""
    if len(bars) > MOST_BARS:
        raise InputError(f"timeline: {len(bars)} bars: a picture has at most {MOST_BARS}: write a .json")
    height = TOP + LANE * len(lanes) + BOTTOM
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SPAN} {height}" width="{SPAN}" '
        f'height="{height}" font-family="sans-serif" font-size="11" fill="#222">'
    )
    return "\n".join([head, *drawn_lanes(bars, lanes, title, height), "</svg>"]) + "\n"


def drawn_lanes(bars: Sequence[Bar], lanes: Sequence[str], title: str, height: int) -> Iterator[str]:
    """Yield the ground, names, bars with their numbers where there is room, and the time of the whole."""
    end = max((float(bar.end) for bar in bars), default=1.0) or 1.0
    wide = (SPAN - LEFT - 16) / end
    yield f'<rect width="{SPAN}" height="{height}" fill="#fff"/>'
    yield f'<text x="{LEFT}" y="18" font-weight="bold">{escape(title)}</text>'
    for lane, name in enumerate(lanes):
        yield f'<text x="{LEFT - 8}" y="{TOP + LANE * lane + 16}" text-anchor="end">{escape(name)}</text>'
        yield (
            f'<rect x="{LEFT}" y="{TOP + LANE * lane + 2}" width="{SPAN - LEFT - 16}" height="{LANE - 4}" '
            'fill="#f3f3f3"/>'
        )
    for bar in bars:
        x, y = LEFT + wide * float(bar.begin), TOP + LANE * bar.lane + 2
        across = wide * float(bar.end - bar.begin)
        yield (
            f'<rect x="{x:.2f}" y="{y}" width="{across:.2f}" height="{LANE - 4}" stroke="#fff" stroke-width="0.5" '
            f'fill="{COLOURS.get(bar.kind, OTHER)}"><title>{escape(bar.label)}</title></rect>'
        )
        number = "".join(filter(str.isdigit, bar.label.split()[0])) if bar.label else ""
        if number and across > DIGIT * len(number):
            yield f'<text x="{x + across / 2:.2f}" y="{y + 15}" text-anchor="middle">{number}</text>'
    kinds = sorted({bar.kind for bar in bars}, key=[*COLOURS].index if all(b.kind in COLOURS for b in bars) else str)
    for at, kind in enumerate(kinds):
        yield f'<rect x="{LEFT + 60 * at}" y="26" width="12" height="12" fill="{COLOURS.get(kind, OTHER)}"/>'
        yield f'<text x="{LEFT + 60 * at + 16}" y="36">{escape(kind)}</text>'
    yield f'<text x="{SPAN - 16}" y="{height - 10}" text-anchor="end">{end:.4g} s</text>'


def check_timeline(path: Path) -> None:
    """Raise InputError for a file that no timeline could be written to."""
    writable(path)
    if path.suffix not in TIMELINES:
        raise InputError(f"{path}: a timeline's name ends in one of {', '.join(TIMELINES)}")


def write_timeline(path: Path, bars: Sequence[Bar], lanes: Sequence[str], title: str) -> Path:
    """Write a picture or a trace, by the end of its name, whole or not at all."""
    check_timeline(path)
    text = chrome_trace(bars, lanes) if path.suffix == ".json" else timeline_picture(bars, lanes, title)
    with replacing(path) as file:
        file.write(text.encode())
    return path
