"""Spectra as one picture: a panel for each kind of weight, a line for each sampled layer. Lines differ in their
dashes, so it can be read without colour; the table below it holds the figures."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import log10
from typing import Any

from rewrites.report.pages.page_style import spell_out

PANEL_WIDE, PANEL_HIGH, PANELS_ACROSS = 200, 120, 3  # pixels of a panel with its margins; panels in a row
PANEL_LEFT, PANEL_TOP, PANEL_RIGHT, PANEL_BOTTOM = 34, 20, 8, 18
DECADES, MOST_PANELS, MOST_TITLE = 3, 12, 26
DASHES = "", "6 3", "2 2"  # dashes of the first, the middle and the last layer


def spectra_plot(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG of singular values over the largest, on a logarithmic scale."""
    panels: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        panels.setdefault(str(row["kind"]), []).append(row)
    drawn = [*panels.items()][:MOST_PANELS]
    wide, high = PANEL_WIDE * PANELS_ACROSS, PANEL_HIGH * -(-len(drawn) // PANELS_ACROSS)
    return "".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img" '
            'font-family="sans-serif" font-size="10" fill="#111" aria-labelledby="spectra-title">'
            '<title id="spectra-title">Singular values of weights over the largest of each; the table below '
            "has their figures</title>",
            *(
                line
                for at, (kind, members) in enumerate(drawn)
                for line in panel(kind, members, PANEL_WIDE * (at % PANELS_ACROSS), PANEL_HIGH * (at // PANELS_ACROSS))
            ),
            "</svg>",
        ]
    )


def panel(kind: str, members: Sequence[Mapping[str, Any]], left: int, top: int) -> Iterator[str]:
    """Yield one kind of weight: its frame with its name, then a line for each layer."""
    x, y = left + PANEL_LEFT, top + PANEL_TOP
    wide, high = PANEL_WIDE - PANEL_LEFT - PANEL_RIGHT, PANEL_HIGH - PANEL_TOP - PANEL_BOTTOM
    name = kind if len(kind) <= MOST_TITLE else f"…{kind[1 - MOST_TITLE :]}"
    yield f'<text x="{x}" y="{y - 6}" font-weight="bold">{escape(spell_out(name))}</text>'
    for decade in range(DECADES + 1):
        at = y + high * decade / DECADES
        yield (
            f'<path d="M{x} {at:.1f}h{wide}" stroke="#ddd"/><text x="{x - 4}" y="{at + 3:.1f}" '
            f'text-anchor="end">{10.0**-decade:g}</text>'
        )
    yield f'<text x="{x}" y="{y + high + 12}">1</text>'
    yield f'<text x="{x + wide}" y="{y + high + 12}" text-anchor="end">{min(members[0]["shape"])}</text>'
    for number, row in enumerate(members[: len(DASHES)]):
        curve = [min(max(-log10(value) if value > 0 else DECADES, 0.0), DECADES) for value in row["curve"]]
        points = " ".join(
            f"{x + wide * at / max(len(curve) - 1, 1):.1f},{y + high * low / DECADES:.1f}"
            for at, low in enumerate(curve)
        )
        dashes = f' stroke-dasharray="{DASHES[number]}"' if DASHES[number] else ""
        yield f'<polyline points="{points}" fill="none" stroke="#1d4e7a" stroke-width="1.5"{dashes}/>'
