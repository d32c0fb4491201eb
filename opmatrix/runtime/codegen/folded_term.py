"""The kernel of a step's product over a monoid: made from its text and the shapes of its operands, once."""

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
    """A kernel, with the rows that its queries see, or the relation whose entries it merges by."""

    kernel: FoldKernel
    where: Pattern
    relation: Relation | None


def folded_term(text: str, values: Sequence[tuple[int, int]], arrays: Sequence[np.ndarray | Data]) -> FoldedTerm:
    """Return the kernel of a term over values of these heads and columns. Tables of its pattern are read if their
    numbers are given; of all other arrays only shapes count. Raises ValueError for a text that is no term, NotByRows
    for a term that is no product over a monoid."""
    tables = list_tables(text)
    described = tuple(
        (Data(array) if isinstance(array, np.ndarray) else Data(np.ones(array.shape, bool)))
        if k in tables
        else tuple(array.shape)
        for k, array in enumerate(arrays)
    )
    folded: FoldedTerm = kept_fold(text, tuple(values), described)
    return folded


@lru_cache(KEPT_FOLDS)
def kept_fold(text: str, values: tuple[tuple[int, int], ...], arrays: tuple[Data | tuple[int, ...], ...]) -> FoldedTerm:
    """Return `folded_term` of shapes, and of tables by their content."""
    promised = [array if isinstance(array, Data) else Promised(f"c{k}", array) for k, array in enumerate(arrays)]
    term, shape = settle_rows(text, values, promised)
    operands = {f"x{k}": FoldOperand(OF_VALUE, k, heads, cols) for k, (heads, cols) in enumerate(values)}
    form = read_fold(term, operands, {data: k for k, data in enumerate(promised)})
    if (form.plan.heads, form.plan.cols) != (shape.heads, shape.cols):
        raise NotByRows(f"{form.plan.heads} x {form.plan.cols} numbers a row, but its shape is {shape}")
    return FoldedTerm(FoldKernel(form.plan), form.where, form.relation)


def settle_rows(text: str, values: Sequence[tuple[int, int]], arrays: Sequence[Data]) -> tuple[Operator, Shape]:
    """Return a term and its result's shape: its values have rows of the space that its relation names, T without a
    relation."""
    rows: LiveSize = T
    while True:
        shapes = [Shape(heads, rows, cols) for heads, cols in values]
        term = parse_operator(text, shapes, arrays)
        try:
            return term, measured(term, shapes)
        except Needs as needs:
            if T not in needs.sizes or rows is not T:
                raise
            rows = needs.sizes[T]


def sees_batch(found: FoldForm) -> bool:
    """True if the result of a query depends on the place of its rows in a batch, or on rows of other sequences."""
    plan = found.plan
    return plan.keys is None and (not plan.masked or found.indexed)


def fold_kernel_of(term: Operator, used: Collection[Operator]) -> str | None:
    """Return the kernel that computes a term over these values: of rows, of sequences, of a whole batch, or of entries;
    None if it is no product over a monoid that a kernel is written for."""
    operands: Mapping[str, FoldOperand] = {
        f"x{k}": FoldOperand(OF_VALUE, k, heads_of_value(part), int(part.out.cols)) for k, part in enumerate(used)
    }
    try:
        form = read_fold(over_symbols(term, used), operands, number_arrays(term))
    except NotByRows:
        return None
    if form.relation is not None:
        return "fold_entries"
    if form.plan.keys is None and any(part.out.rows is not T for part in used):
        return None  # keys of another space
    return "fold_rows" if form.plan.keys is not None else "fold_batch" if sees_batch(form) else "fold_term"
