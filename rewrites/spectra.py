"""The spectra of the weights of a model."""
from opmatrix.spectra import Spectrum
from opmatrix.term import Operator


def weights(model: Operator) -> list[Spectrum]:
    """One spectrum for each matrix that is multiplied, in order; tables that rows are gathered from are left out."""
    from rewrites.layers import split
    found = {}
    for part in split(model)[1:]:
        for term in part.walk():
            if term.kind.name == "weight" and term.args[0].array.ndim == 2:
                found[term] = Spectrum.of(term.args[0].array, str(term.args[0]).removesuffix(".T"))
    return list(found.values())
