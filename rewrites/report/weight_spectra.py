"""The spectra of the weights of a model: of all, or a sample that a report shows."""
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from opmatrix.algebra.data import Data
from opmatrix.display.draw import parse_weight_name
from opmatrix.spectra import Spectrum

if TYPE_CHECKING:
    from rewrites.egraph.layers import Model

SAMPLED_LAYERS, SAMPLED_KINDS = 3, 12                       # of each kind of weight; kinds, the first of a model
WEIGHT_WORK, WHOLE_WORK = 4e9, 1.2e10                       # multiplications of one spectrum, and of all: some seconds
CURVE = 24                                                  # singular values that are drawn
TAILS = 0.1, 0.01                                           # shares of the energy that a rank leaves


def weights(model: "Model") -> list[Spectrum]:
    """One spectrum for each matrix that is multiplied, in order; tables that rows are gathered from are left out."""
    return [Spectrum.of(data.array, called(data)) for data in list_matrices(model)]


def list_matrices(model: "Model") -> list[Data]:
    """The matrices that a model multiplies by, each once, in order."""
    from rewrites.egraph.layers import outputs, split_model
    return [*{term: term.args[0] for each in outputs(model).values() for part in split_model(each)[1:]
              for term in part.walk() if term.kind.name == "weight" and term.args[0].array.ndim == 2}.values()]


def called(weight: Data) -> str:
    """The name of an array in its checkpoint; of one that has none, what it is printed as."""
    return (weight.base or weight).name or str(weight)


def sample_spectra(model: "Model") -> dict[str, object]:
    """Figures of some spectra: of each kind of weight the first layer's, the middle one's and the last one's, without
    those that would take long; and how many matrices there are."""
    found, kinds, left = list_matrices(model), dict[str, list[Data]](), WHOLE_WORK
    for data in found: kinds.setdefault(parse_weight_name(called(data))[1], []).append(data)
    rows = []
    for data in sample_layers(kinds):
        n, p = data.array.shape
        work = float(min(n, p) ** 2 * max(n, p))
        if work > min(WEIGHT_WORK, left) or not np.isfinite(data.array).all(): continue
        left -= work
        rows.append(spectrum_figures(Spectrum.of(data.array, called(data))))
    return {"of": len(found), "weights": rows}


def sample_layers(kinds: Mapping[str, list[Data]]) -> Iterator[Data]:
    """A few of each kind, from the first to the last."""
    for members in [*kinds.values()][:SAMPLED_KINDS]:
        at = np.linspace(0, len(members) - 1, min(SAMPLED_LAYERS, len(members))).round().astype(int)
        for each in at.tolist(): yield members[each]


def spectrum_figures(found: Spectrum) -> dict[str, object]:
    """What a report has of a spectrum; `curve`: singular values over the largest, evenly spread over the indices."""
    layer, kind = parse_weight_name(found.name)
    at = np.linspace(0, len(found.values) - 1, min(CURVE, len(found.values))).round().astype(int)
    ten, one = map(found.rank_at, TAILS)
    top = max(float(found.values[0]), np.finfo(float).tiny)
    return {"name": found.name, "layer": layer, "kind": kind, "shape": list(found.shape),
            "largest": float(found.values[0]), "stable": found.stable_rank, "effective": found.effective_rank,
            "tail_10": ten, "tail_1": one, "knee": found.knee, "curve": (found.values[at] / top).tolist()}
