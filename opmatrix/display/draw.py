"""Drawings: spectra as lines of text, spectra and fronts as figures. matplotlib is imported only by the figures."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from formats.core.errors import InputError
from formats.disk.files import replacing, writable
from opmatrix.display.tables import table
from opmatrix.spectra import PowerLaw, Spectrum

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURES = ".png", ".svg", ".pdf"
BARS = "▁▂▃▄▅▆▇█"
STYLE = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "0.92",
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def parse_weight_name(name: str) -> tuple[int | None, str]:
    """Parse a weight's layer and kind from its name: "encoder.layer.3.output.dense.weight" is 3, "output.dense"."""
    layer = re.search(r"(?:^|\.)(\d+)\.", name)
    kind = name[layer.end() :] if layer else name
    return (int(layer[1]) if layer else None), re.sub(r"\.weight$", "", kind)


def sparkline(values: Sequence[float], width: int = 16, decades: float = 3) -> str:
    """Draw falling values as bars on a logarithmic scale, from the first one down by so many decades."""
    at = np.linspace(0, len(values) - 1, min(width, len(values))).round().astype(int)
    size = np.maximum(np.asarray(values, float)[at] / max(values[0], np.finfo(float).tiny), 10.0**-decades)
    return "".join(BARS[round((1 + math.log10(value) / decades) * (len(BARS) - 1))] for value in size)


SPECTRUM_COLUMNS = {  # columns of the table of spectra, with their meanings
    "layer": "",
    "matrix": "",
    "shape": "",
    "σ₁": "the largest singular value",
    "stable": "stable rank, ‖W‖² / σ₁²",
    "effective": "effective rank, exp of the entropy of σ / Σσ",
    "tail 10 %": "the rank that leaves 10 % of the energy Σσ²",
    "tail 1 %": "... 1 %",
    "knee": "the rank where the energy that is left bends most",
    "exponent": "of the density of σ² as a power law, ± a standard error (Martin and Mahoney 2021)",
    "fitted": "the number of values that it is fitted to, and the least σ of them; the others are below",
    "KS": "distance of the fit (Clauset, Shalizi and Newman 2009); with no: so large that it is no power law (Stephens "
    "1974, at 5 %)",
    "σ": "the singular values, over three decades",
}
NOT_KNOWN = "-"  # of a figure that needs all values, where only the largest are known
VALUE_LABELS = {  # kind of a spectrum -> name of its axis
    "weight": "singular value",
    "activation": "standard deviation",
    "error": "relative change of the output",
}
BY_HEAD = "qk", "vo"  # kinds with a panel for each layer, and a line for each head


def spectrum_text(spectra: Sequence[Spectrum]) -> str:
    """Return a table with one matrix a line, for any terminal that shows unicode, and the meaning of its columns."""
    rows = [spectrum_row(spectrum) for spectrum in spectra]
    notes = [f"{name}: {what}" for name, what in SPECTRUM_COLUMNS.items() if what]
    if not all(spectrum.whole for spectrum in spectra):
        notes.append(f"{NOT_KNOWN}, >: only the largest values are computed; the energy of the others is estimated")
    return "\n".join([table(rows, [*SPECTRUM_COLUMNS], left=(1, len(SPECTRUM_COLUMNS) - 1)), "", *notes])


def spectrum_row(spectrum: Spectrum) -> list[str]:
    """Return the figures of a spectrum in the order of the columns."""
    layer, kind = parse_weight_name(spectrum.name)
    law, known = spectrum.power_law, len(spectrum.values)
    ranks = [spectrum.rank_at(0.1), spectrum.rank_at(0.01)]
    return [
        NOT_KNOWN if layer is None else str(layer),
        kind,
        f"{spectrum.shape[0]}×{spectrum.shape[1]}",
        f"{spectrum.values[0]:.3g}",
        f"{spectrum.stable_rank:.1f}",
        f"{spectrum.effective_rank:.0f}" if spectrum.whole else NOT_KNOWN,
        *(str(rank) if rank <= known else f">{known}" for rank in ranks),
        str(spectrum.knee) if spectrum.whole else NOT_KNOWN,
        *law_cells(law),
        sparkline(spectrum.values.tolist()),
    ]


def law_cells(law: PowerLaw) -> tuple[str, str, str]:
    """Return the exponent of a power law, its range, and how well it fits."""
    if not math.isfinite(law.exponent):
        return "too few", NOT_KNOWN, NOT_KNOWN
    return str(law), f"{law.count} ≥ {math.sqrt(law.cutoff):.2g}", f"{law.distance:.2f}{'' if law.fits else ' no'}"


def plotting() -> Any:
    """Return matplotlib, set to draw to files. Raises InputError, which tells how to install it, where it is
    missing."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "drawing needs matplotlib, which is not installed: pip install matplotlib, or, in a checkout, "
            "pip install '.[plot]'"
        ) from None
    return rc_context, Figure


def spectrum_figure(spectra: Sequence[Spectrum], path: str | Path) -> Path:
    """Draw singular values to a file (png, svg, pdf): a panel for each kind of weight or activation and a line for each
    layer; of products of heads a panel for each layer and a line for each head. Marked are the knee and the rank that
    leaves 1 % of the energy, where all values are known; values more than 2.5 decades under the largest are cut off.
    Raises InputError where there is nothing to draw."""
    if not spectra:
        raise InputError("spectrum_figure: no spectra given")
    rc_context, Figure = plotting()
    panels: dict[tuple[str, str], list[Spectrum]] = {}
    for spectrum in spectra:
        panels.setdefault((spectrum.kind, place_of(spectrum)[0]), []).append(spectrum)
    lines = sorted({place_of(spectrum)[1] for spectrum in spectra})
    across = min(len(panels), 4)
    down = -(-len(panels) // across)
    with rc_context(STYLE):
        figure = Figure(figsize=(max(2.9 * across, 5), 2.5 * down + 0.75), layout="constrained")
        axes = figure.subplots(down, across, squeeze=False).ravel()
        for axis, ((kind, title), members) in zip(axes, panels.items(), strict=False):
            for spectrum in members:
                trace(axis, spectrum, shade(lines.index(place_of(spectrum)[1]), len(lines)))
            top = max(spectrum.values[0] for spectrum in members)
            axis.set(yscale="log", title=title, xlabel="index")
            axis.set_ylim(max(axis.get_ylim()[0], top * 10**-2.5), top * 1.5)
            axis.xaxis.get_major_locator().set_params(integer=True)
            axis.set_ylabel(VALUE_LABELS.get(kind, VALUE_LABELS["weight"]))
        for axis in axes[len(panels) :]:
            axis.remove()
        legend(figure, lines, "head" if spectra[0].kind in BY_HEAD else "layer", any(one.whole for one in spectra))
        return save_figure(figure, Path(path))


def place_of(spectrum: Spectrum) -> tuple[str, int]:
    """Return the title of a spectrum's panel, and the number of its line: its layer, or its head."""
    layer, kind = parse_weight_name(spectrum.name)
    if spectrum.kind in BY_HEAD:
        return f"{spectrum.kind}, layer {layer}", int(kind.rpartition(" ")[2])
    return kind, layer or 0


def drawable(path: Path) -> None:
    """Raise InputError for a file that no picture could be written to, and where matplotlib is missing."""
    writable(path)
    if path.suffix not in PICTURES:
        raise InputError(f"{path}: a picture's name ends in one of {', '.join(PICTURES)}")
    plotting()


def save_figure(figure: "Figure", path: Path) -> Path:
    """Write the file of a figure, whole or not at all."""
    drawable(path)
    with replacing(path) as out:
        figure.savefig(out, dpi=150, format=path.suffix[1:])
    return path


def shade(index: int, count: int) -> tuple[float, float, float, float]:
    """Return a colour of the viridis map, which stays in order for every kind of eye; its pale end is left out."""
    from matplotlib import colormaps

    red, green, blue, alpha = colormaps["viridis"](0.92 * index / max(count - 1, 1))
    return red, green, blue, alpha


def trace(axis: "Axes", spectrum: Spectrum, colour: tuple[float, float, float, float]) -> None:
    """Draw one line of singular values above rounding, with its marks."""
    shown = spectrum.values > spectrum.precision * spectrum.values[0]
    axis.plot(1 + np.flatnonzero(shown), spectrum.values[shown], color=colour, linewidth=1.3)
    marks = ((spectrum.knee, "o"), (spectrum.rank_at(0.01), "|")) if spectrum.whole else ()
    for rank, style in marks:
        if 0 < rank <= shown.sum():
            axis.plot(
                rank,
                spectrum.values[rank - 1],
                style,
                color=colour,
                markersize=5 if style == "o" else 9,
                markeredgewidth=1.3,
                markerfacecolor="white",
                zorder=3,
            )


def legend(figure: "Figure", lines: Sequence[int], named: str, marked: bool) -> None:
    """Draw the one legend, under all panels: at most eight layers or heads by name, and the two marks where there are
    some."""
    from matplotlib.lines import Line2D

    shown = range(len(lines)) if len(lines) <= 8 else np.linspace(0, len(lines) - 1, 8).round().astype(int)
    handles = [Line2D([], [], color=shade(i, len(lines)), label=f"{named} {lines[i]}") for i in shown]
    if len(lines) == 1:
        handles = []
    for style, size, label in (("o", 5, "knee"), ("|", 9, "1 % of the energy left")) if marked else ():
        handles.append(
            Line2D(
                [],
                [],
                linestyle="",
                marker=style,
                markersize=size,
                markeredgewidth=1.3,
                color="0.3",
                markerfacecolor="white",
                label=label,
            )
        )
    if handles:
        across = min(len(handles), 5, int(figure.get_figwidth() / 1.9))
        figure.legend(handles=handles, loc="outside lower center", ncols=across)


def front_figure(
    points: Sequence[Mapping[str, object]],
    path: str | Path,
    chosen: int | None = None,
    baseline: Mapping[str, object] | None = None,
) -> Path:
    """Draw time against memory of the programs of a front, coloured by their error, to a file. A point is a mapping as
    in the JSON of `optimize`: measured_s, measured_bytes, measured_error (predicted_* where those are absent or
    None)."""
    if not points:
        raise InputError("front_figure: the front has no points")
    x, y, error = (np.array([read_figure(point, key) for point in points]) for key in ("s", "bytes", "error"))
    rc_context, Figure = plotting()
    from matplotlib.colors import LogNorm

    exact = error < 1e-5
    with rc_context(STYLE):
        figure = Figure(figsize=(6, 4), layout="constrained")
        axis = figure.subplots()
        axis.margins(0.12)
        if exact.any():
            axis.plot(1e3 * x[exact], y[exact] / 1e6, "s", color="0.35", markersize=7, label="exact")
        if not exact.all():
            low, high = error[~exact].min() / 1.2, error[~exact].max() * 1.2
            dots = axis.scatter(
                1e3 * x[~exact],
                y[~exact] / 1e6,
                c=error[~exact],
                norm=LogNorm(low, high),
                cmap="cividis",
                s=52,
                zorder=3,
                edgecolors="0.2",
                linewidths=0.6,
                label="approximate",
            )
            bar = figure.colorbar(dots, label="relative error of the output", format=percent, ticks=decades(low, high))
            bar.minorticks_off()
        if chosen is not None:
            axis.plot(
                1e3 * x[chosen],
                y[chosen] / 1e6,
                "o",
                color="#d55e00",
                markersize=16,
                markerfacecolor="none",
                markeredgewidth=1.8,
                label="chosen",
            )
        if baseline is not None:
            axis.plot(
                1e3 * read_figure(baseline, "s"),
                read_figure(baseline, "bytes") / 1e6,
                "D",
                color="0.35",
                markersize=7,
                markerfacecolor="white",
                label="imported",
            )
        axis.set(xlabel="time, ms", ylabel="memory, MB")
        figure.legend(loc="outside upper center", ncols=4)
        return save_figure(figure, Path(path))


def read_figure(point: Mapping[str, Any], key: str) -> float:
    """Return a measured number of a point, else the predicted one. Raises InputError naming both where there is
    neither."""
    for name in (f"measured_{key}", f"predicted_{key}"):
        if (value := point.get(name)) is not None:
            return float(value)
    raise InputError(f"front_figure: a point has neither measured_{key} nor predicted_{key}")


def decades(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten between two numbers, or the two where fewer than two lie between."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = [times * 10.0**power for power in powers for times in (1, 2, 5)]
    inside = [step for step in steps if low <= step <= high]
    return inside if len(inside) >= 2 else [low, high]


def percent(value: float, position: int | None = None) -> str:
    """Return a share in per cent: 0.02 as 2 %."""
    return f"{100 * value:.2g} %"
