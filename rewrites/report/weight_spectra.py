"""The spectra of the weights of a model."""
from opmatrix.algebra.data import Data
from opmatrix.algebra.term import Operator
from opmatrix.spectra import Spectrum


def weights(model: Operator) -> list[Spectrum]:
    """One spectrum for each matrix that is multiplied, in order; tables that rows are gathered from are left out."""
    from rewrites.graph.layers import split_model
    found = {}
    for part in split_model(model)[1:]:
        for term in part.walk():
            if term.kind.name == "weight" and term.args[0].array.ndim == 2:
                found[term] = Spectrum.of(term.args[0].array, called(term.args[0]))
    return list(found.values())


def called(weight: Data) -> str:
    """The name of an array in its checkpoint; of one that has none, what it is printed as."""
    return (weight.base or weight).name or str(weight)
