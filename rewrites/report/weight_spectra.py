"""The spectra of the weights of a model: of all of them, or of a sample that a report shows."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from opmatrix.algebra.data import Data
from opmatrix.display.draw import parse_weight_name
from opmatrix.spectra import Spectrum

if TYPE_CHECKING:
    from rewrites.egraph.layers import Model

SAMPLED_LAYERS, SAMPLED_KINDS = 3, 12  # layers of each kind of weight; kinds, the first ones
WEIGHT_WORK, WHOLE_WORK = 4e9, 1.2e10  # multiplications of one spectrum, and of all: seconds
CURVE = 24  # singular values of a drawn curve
TAILS = 0.1, 0.01  # shares of the energy beyond a rank


def weights(model: "Model") -> list[Spectrum]:
    """Return one spectrum for each matrix of a product, in order; tables that rows are gathered from are left out."""
    return [Spectrum.of(data.array, called(data)) for data in list_matrices(model)]


def list_matrices(model: "Model") -> list[Data]:
    """Return the matrices that a model multiplies by, each once, in order."""
    from rewrites.egraph.layers import outputs, split_model

    return [
        *{
            term: term.args[0]
            for operator in outputs(model).values()
            for part in split_model(operator)[1:]
            for term in part.walk()
            if term.kind.name == "weight" and term.args[0].array.ndim == 2
        }.values()
    ]


def called(weight: Data) -> str:
    """Return the name of an array in its checkpoint; for an array without one, its printed form."""
    return (weight.base or weight).name or str(weight)


def sample_spectra(model: "Model") -> dict[str, object]:
    """Return figures of some spectra: of each kind of weight those of the first, the middle and the last layer,
    without spectra that would take long; and the number of matrices."""
    matrices, kinds, left = list_matrices(model), dict[str, list[Data]](), WHOLE_WORK
    for data in matrices:
        kinds.setdefault(parse_weight_name(called(data))[1], []).append(data)
    rows = []
    for data in sample_layers(kinds):
        n, p = data.array.shape
        work = float(min(n, p) ** 2 * max(n, p))
        if work > min(WEIGHT_WORK, left) or not np.isfinite(data.array).all():
            continue
        left -= work
        rows.append(spectrum_figures(Spectrum.of(data.array, called(data))))
    return {"of": len(matrices), "weights": rows}


def sample_layers(kinds: Mapping[str, list[Data]]) -> Iterator[Data]:
    """Yield a few weights of each kind, from the first to the last layer."""
    for members in [*kinds.values()][:SAMPLED_KINDS]:
        at = np.linspace(0, len(members) - 1, min(SAMPLED_LAYERS, len(members))).round().astype(int)
        for layer in at.tolist():
            yield members[layer]


def spectrum_figures(record: Spectrum) -> dict[str, object]:
    """Return the figures of a spectrum in a report. `curve` holds singular values over the largest, evenly spread over
    the indices."""
    layer, kind = parse_weight_name(record.name)
    at = np.linspace(0, len(record.values) - 1, min(CURVE, len(record.values))).round().astype(int)
    ten, one = map(record.rank_at, TAILS)
    top = max(float(record.values[0]), np.finfo(float).tiny)
    return {
        "name": record.name,
        "layer": layer,
        "kind": kind,
        "shape": list(record.shape),
        "largest": float(record.values[0]),
        "stable": record.stable_rank,
        "effective": record.effective_rank,
        "tail_10": ten,
        "tail_1": one,
        "knee": record.knee,
        "curve": (record.values[at] / top).tolist(),
    }
