"""An operator on tokens as a graph: its term is read at padded values, and each of its weights is a constant with a
name."""

from collections.abc import Iterator

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.data import Data
from opmatrix.algebra.shapes import S, Shape, T
from opmatrix.algebra.term import Operator, read
from opmatrix.exports.graph import ArrayGraph, SymbolicArray
from opmatrix.exports.program_graph import (
    IDS,
    MASK,
    SENTENCE_ROW,
    STEP_FAULTS,
    TOKEN_ROWS,
    TYPE_IDS,
    ProgramGraph,
    depends_on,
)
from opmatrix.runtime.declarations.padded import Padded, PaddedBatch, Unpadded
from opmatrix.runtime.padded_terms import PaddedReading, Selection, leave_value

COMPUTED = frozenset({"rotate"})  # kinds whose arrays are tables of a formula, no weights


class TermWeights:
    """The arrays of a term by unique names. One that is read transposed, too, has one name, so it stays tied. Single
    numbers, such as the 1/√d of attention, are no weights."""

    def __init__(self, term: Operator) -> None:
        self.names = dict[Data, str]()
        for data in term_arrays(term):
            stored = data.base or data
            if stored in self.names or stored.array.size == 1:
                continue
            taken, label = set(self.names.values()), stored.label
            self.names[stored] = f"{label}_{len(self.names)}" if label in taken else label

    def enter(self, graph: ArrayGraph, data: Data) -> Padded:
        """Return an array as a constant of a graph; a single number as it is."""
        if data.base is not None:
            return np.swapaxes(self.enter(graph, data.base), -1, -2)
        array = np.asarray(data.array, np.float32)
        return graph.constant(array, self.names[data]) if data in self.names else array


def term_arrays(term: Operator) -> Iterator[Data]:
    """Yield the arrays of a term that are weights, those of earlier nodes first."""
    for node in term.walk():
        if node.kind.name in COMPUTED:
            continue
        yield from (value for value in node.attributes if isinstance(value, Data))


def read_operator(term: Operator) -> ProgramGraph:
    """Return the graph of an operator on tokens. Raises InputError for one on other rows, and for a part without a
    padded reading."""
    if not isinstance(term.into.cols, int):
        raise InputError(
            f"to_torch: {term!r:.60} takes rows of {term.into.cols} columns: it begins with no table of tokens"
        )
    graph, weights = ArrayGraph(), TermWeights(term)
    inputs, kinds = {name: graph.enter(name) for name in (IDS, MASK)}, graph.enter(TYPE_IDS)
    batch = PaddedBatch(inputs[IDS], inputs[MASK] != 0, kinds)
    tokens = Selection(inputs[IDS], term.into.cols)
    entered = PaddedReading(Shape(1, T, term.into.cols), tokens, batch, enter=lambda data: weights.enter(graph, data))
    try:
        result: PaddedReading = read(term, entered, {})
        value: SymbolicArray = leave_value(result)
    except (Unpadded, *STEP_FAULTS) as error:
        fault = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"to_torch: {term!r:.60}: {fault}: it cannot be exported") from error
    outputs = {SENTENCE_ROW if result.shape.rows is S else TOKEN_ROWS: value}
    if depends_on(graph, outputs, kinds):
        inputs[TYPE_IDS] = kinds
    return ProgramGraph(graph, inputs, outputs)
