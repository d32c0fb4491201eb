"""Timelines of ranks, for Chrome's tracing (its JSON is read by Perfetto, too), or drawn as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opmatrix.display import timeline
from opmatrix.parallel.launch.prepared import Moment
from opmatrix.parallel.ranks.virtual import STEPS
from opmatrix.parallel.sharding.placement import Coordinates

PICTURE_WIDTH, ROW_HIGH, INSET, ABOVE = 1000, 26, 90, 30  # sizes in the picture, in pixels
COLOURS = {"compute": "#4878a8", "give": "#8c6bb1", "take": "#8c6bb1"}
OTHER = "#d1793b"  # collectives

Moments = Mapping[Coordinates, Sequence[Moment]]


def beginning(moments: Moments) -> float:
    """Return the time at which the first moment of all ranks begins; 0 if there are none."""
    return min((moment.begin for row in moments.values() for moment in row), default=0.0)


def named(each: Moment) -> str:
    """Name a moment: computation, or a collective and its axis."""
    return each.what if each.what == "compute" else f"{each.what} over {each.axis}"


def chrome_trace(moments: Moments) -> str:
    """Return a lane for each rank; a message shows its bytes, and its step and factor."""
    start = beginning(moments)
    bars = [bar_of(lane, moment, start) for lane, row in enumerate(moments.values()) for moment in row]
    return timeline.chrome_trace(bars, [f"rank {rank} {place}" for rank, place in enumerate(moments)])


def bar_of(lane: int, each: Moment, start: float) -> timeline.Bar:
    """Return the bar of a moment of a rank, in seconds since the first moment."""
    factor, step = divmod(max(each.at, 0), STEPS)
    computes = each.what == "compute"
    crosses = {} if computes else dict(bytes=8 * each.numbers, axis=each.axis)
    return timeline.Bar(
        lane,
        each.begin - start,
        each.end - start,
        "compute" if computes else "crossing",
        named(each),
        dict(factor=factor, step=step, **crosses),
    )


def drawn_trace(moments: Moments) -> str:
    """Return a picture with a lane for each rank, from the beginning of the first moment to the end of the last."""
    start = beginning(moments)
    length = max((moment.end - start for row in moments.values() for moment in row), default=0.0) or 1.0
    height = ABOVE + ROW_HIGH * len(moments) + 10
    shown = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{INSET + PICTURE_WIDTH + 10}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<text x="{INSET}" y="18">{1e3 * length:.2f} ms: blue computes, orange crosses or waits, violet between '
        "stages</text>",
    ]
    for rank, row in enumerate(moments.values()):
        y = ABOVE + ROW_HIGH * rank
        shown.append(f'<text x="4" y="{y + 15}">rank {rank}</text>')
        for moment in row:
            x, wide = (
                PICTURE_WIDTH * seconds / length for seconds in (moment.begin - start, moment.end - moment.begin)
            )
            shown.append(
                f'<rect x="{INSET + x:.2f}" y="{y}" width="{max(wide, 0.2):.2f}" height="{ROW_HIGH - 6}" '
                f'fill="{COLOURS.get(moment.what, OTHER)}"><title>{named(moment)}, '
                f"{1e3 * (moment.end - moment.begin):.3f} ms, {8 * moment.numbers} B</title></rect>"
            )
    return "\n".join([*shown, "</svg>", ""])
