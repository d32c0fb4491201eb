"""What ranks did from when to when, for Chrome's tracing (its JSON is read by Perfetto, too), or drawn as SVG."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from opmatrix.display import timeline
from opmatrix.parallel.launch.prepared import Moment
from opmatrix.parallel.ranks.virtual import STEPS
from opmatrix.parallel.sharding.placement import Coordinates

PICTURE_WIDTH, ROW_HIGH, INSET, ABOVE = 1000, 26, 90, 30           # of the picture, in its pixels
COLOURS = {"compute": "#4878a8", "give": "#8c6bb1", "take": "#8c6bb1"}
OTHER = "#d1793b"                                           # collectives

Moments = Mapping[Coordinates, Sequence[Moment]]


def beginning(moments: Moments) -> float:
    return min((each.begin for own in moments.values() for each in own), default=0.0)


def named(each: Moment) -> str:
    return each.what if each.what == "compute" else f"{each.what} over {each.axis}"


def chrome_trace(moments: Moments) -> str:
    """A lane for each rank; what crosses says how many bytes it handed over, and in which step of which factor."""
    start = beginning(moments)
    bars = [bar_of(lane, each, start) for lane, own in enumerate(moments.values()) for each in own]
    return timeline.chrome_trace(bars, [f"rank {rank} {place}" for rank, place in enumerate(moments)])


def bar_of(lane: int, each: Moment, start: float) -> timeline.Bar:
    """A moment of a rank, by seconds since the first one's."""
    factor, step = divmod(max(each.at, 0), STEPS)
    computes = each.what == "compute"
    crosses = {} if computes else dict(bytes=8 * each.numbers, axis=each.axis)
    return timeline.Bar(lane, each.begin - start, each.end - start, "compute" if computes else "crossing", named(each),
                        dict(factor=factor, step=step, **crosses))


def drawn_trace(moments: Moments) -> str:
    """A picture with a lane for each rank, from the beginning of the first to the end of the last."""
    start = beginning(moments)
    length = max((each.end - start for own in moments.values() for each in own), default=0.0) or 1.0
    height = ABOVE + ROW_HIGH * len(moments) + 10
    shown = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{INSET + PICTURE_WIDTH + 10}" height="{height}" '
             'font-family="sans-serif" font-size="12">',
             f'<text x="{INSET}" y="18">{1e3 * length:.2f} ms: blue computes, orange crosses or waits, violet between '
             "stages</text>"]
    for rank, own in enumerate(moments.values()):
        y = ABOVE + ROW_HIGH * rank
        shown.append(f'<text x="4" y="{y + 15}">rank {rank}</text>')
        for each in own:
            x, wide = (PICTURE_WIDTH * seconds / length for seconds in (each.begin - start, each.end - each.begin))
            shown.append(f'<rect x="{INSET + x:.2f}" y="{y}" width="{max(wide, 0.2):.2f}" height="{ROW_HIGH - 6}" '
                         f'fill="{COLOURS.get(each.what, OTHER)}"><title>{named(each)}, '
                         f'{1e3 * (each.end - each.begin):.3f} ms, {8 * each.numbers} B</title></rect>')
    return "\n".join([*shown, "</svg>", ""])
