"""The kernel of a step's product over a monoid: made of its text and the shapes of what it reads, once."""
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from formats.kernels.generated.folding.fold_kernel import FoldKernel
from formats.kernels.generated.folding.fold_plan import OF_VALUE, FoldOperand
from opmatrix.algebra.batch.relations import Relation
from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.algebra.shapes import LiveSize, Needs, Shape, T
from opmatrix.algebra.term import Operator
from opmatrix.runtime.codegen.counted_numbers import list_tables
from opmatrix.runtime.codegen.fold_reading import FoldForm, read_fold
from opmatrix.runtime.codegen.growing import heads_of_value, number_arrays, over_symbols
from opmatrix.runtime.codegen.row_reading import NotByRows
from opmatrix.runtime.terms import measured, parse_operator

KEPT_FOLDS = 256


class FoldedTerm(NamedTuple):
    """A kernel, and whom its queries see, or the relation whose entries it merges by."""
    kernel: FoldKernel
    where: Pattern
    relation: Relation | None


def folded_term(text: str, values: Sequence[tuple[int, int]], arrays: Sequence[np.ndarray | Data]) -> FoldedTerm:
    """The kernel of a term over values of so many heads and columns. Tables of its pattern are read, where they are
    there, of all other arrays only shapes. ValueError for what is no term, NotByRows for one that is no product over
    a monoid."""
    tables = list_tables(text)
    given = tuple((Data(each) if isinstance(each, np.ndarray) else Data(np.ones(each.shape, bool)))
                  if k in tables else tuple(each.shape) for k, each in enumerate(arrays))
    found: FoldedTerm = kept_fold(text, tuple(values), given)
    return found


@lru_cache(KEPT_FOLDS)
def kept_fold(text: str, values: tuple[tuple[int, int], ...], arrays: tuple[Data | tuple[int, ...], ...]) -> FoldedTerm:
    """`folded_term`, of shapes, and tables by what they hold."""
    promised = [each if isinstance(each, Data) else Promised(f"c{k}", each) for k, each in enumerate(arrays)]
    term, shape = settle_rows(text, values, promised)
    operands = {f"x{k}": FoldOperand(OF_VALUE, k, heads, cols) for k, (heads, cols) in enumerate(values)}
    found = read_fold(term, operands, {data: k for k, data in enumerate(promised)})
    if (found.plan.heads, found.plan.cols) != (shape.heads, shape.cols):
        raise NotByRows(f"{found.plan.heads} x {found.plan.cols} of a row, where it gives {shape}")
    return FoldedTerm(FoldKernel(found.plan), found.where, found.relation)


def settle_rows(text: str, values: Sequence[tuple[int, int]], arrays: Sequence[Data]) -> tuple[Operator, Shape]:
    """A term and what it gives: its values have rows of the space that its relation names, T where there is none."""
    rows: LiveSize = T
    while True:
        shapes = [Shape(heads, rows, cols) for heads, cols in values]
        term = parse_operator(text, shapes, arrays)
        try: return term, measured(term, shapes)
        except Needs as found:
            if T not in found.sizes or rows is not T: raise
            rows = found.sizes[T]


def sees_batch(found: FoldForm) -> bool:
    """Whether what a query gives depends on where its rows lie in a batch, or on rows of other sequences."""
    plan = found.plan
    return plan.keys is None and (not plan.masked or found.indexed)


def fold_kernel_of(term: Operator, used: Collection[Operator]) -> str | None:
    """The kernel that computes a term over these values: of rows, of sequences, of a whole batch, or of entries; None
    where it is no product over a monoid that a kernel is written for."""
    operands: Mapping[str, FoldOperand] = {f"x{k}": FoldOperand(OF_VALUE, k, heads_of_value(part), int(part.out.cols))
                                       for k, part in enumerate(used)}
    try: found = read_fold(over_symbols(term, used), operands, number_arrays(term))
    except NotByRows: return None
    if found.relation is not None: return "fold_entries"
    if found.plan.keys is None and any(part.out.rows is not T for part in used): return None    # keys of another space
    return "fold_rows" if found.plan.keys is not None else "fold_batch" if sees_batch(found) else "fold_term"
