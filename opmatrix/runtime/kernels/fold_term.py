"""Products over any monoid, each a kernel of its own (opmatrix/runtime/codegen, formats/kernels/generated): scores tile
by tile, never stored; written and compiled when a program that has it first runs, and cached."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from formats.core.epilogue import UNIT
from formats.core.sizes import T, size
from formats.machine.prices import S2, Price, Timed, Work, h
from opmatrix.algebra.batch.extents import Extents, count_attended, entries, pairs
from opmatrix.algebra.batch.relations import Relation
from opmatrix.algebra.positions.patterns import Pattern, sequence
from opmatrix.runtime.declarations.arguments import Doubles, split_operands
from opmatrix.runtime.declarations.by_sequence import sentence_rows, unseen
from opmatrix.runtime.declarations.costs import Costs
from opmatrix.runtime.declarations.fitting import same
from opmatrix.runtime.declarations.kernel import Arguments, kernel
from opmatrix.runtime.declarations.operands import C, Heads, Rows
from opmatrix.runtime.kernels.link import entries_of
from opmatrix.runtime.kernels.row_term import (
    SLOW,
    ask_rows,
    count_columns,
    declared_signature,
    in_shape,
    moved,
    read_padded,
    simple,
    slow,
)

if TYPE_CHECKING:
    from formats.machine.calibration import Grid, Numbers
    from opmatrix.runtime.codegen.folded_term import FoldedTerm

TIMED_ROWS, TIMED_COLUMNS = (16, 48, 128, 256), 256  # rows and columns of one timed sequence


def find_fold(a: Arguments | dict[str, Any]) -> "FoldedTerm":
    """Return the kernel of a step. A program without such a step imports no code that reads one."""
    from opmatrix.runtime.codegen.folded_term import folded_term

    values, arrays = split_operands(a)
    return folded_term(a["term"] if isinstance(a, dict) else a.term, [*map(count_columns, values)], arrays)


def run_fold_rows(out: Any, *, term: str, **operands: Any) -> None:
    """Launch the kernel of a term in which rows meet a stored matrix."""
    values, arrays = split_operands(operands)
    fold = find_fold({"term": term, **operands})
    fold.kernel(values, [np.ascontiguousarray(array, np.float32) for array in arrays], out)


def run_fold(out: Any, batch: Any, *, term: str, **operands: Any) -> None:
    """Launch the kernel of the term for the sequences of the batch."""
    values, arrays = split_operands(operands)
    kernel, where, _ = find_fold({"term": term, **operands})
    constants = [np.ascontiguousarray(array, np.float32) for array in arrays]
    if not kernel.plan.masked:
        kernel(values, constants, out)
    elif where.reach is not None:
        kernel(values, constants, out, batch.starts, where.reach)
    else:
        if where.limit is not None:
            batch.field("positions", where.limit)
        kernel(values, constants, out, batch.starts, mask=where.mask(batch.rows))


def run_entries(out: Any, batch: Any, *, term: str, **operands: Any) -> None:
    """Launch the kernel of the term for the entries that the batch gives."""
    values, _ = split_operands(operands)
    fold = find_fold({"term": term, **operands})
    sparse = entries_of(batch, str(fold.relation), len(values[fold.kernel.plan.right.number]))
    fold.kernel.gather(values, out, sparse.starts, sparse.at, sparse.numbers)


run_fold_rows.__signature__ = declared_signature()  # type: ignore[attr-defined]    # a function has one
run_entries.__signature__ = declared_signature(batched=True)  # type: ignore[attr-defined]
run_fold.__signature__ = declared_signature(batched=True)  # type: ignore[attr-defined]    # a function has one


def fold_shape(a: Arguments) -> Rows | Heads:
    """Return the rows or heads of the written kernel's result. Writing it checks that all its arrays are stored."""
    plan = find_fold(a).kernel.written.plan  # `written` runs the writer, which checks that all is stored
    return Rows(plan.cols) if plan.heads == 1 else Heads(plan.heads, plan.cols)


def entries_shape(a: Arguments) -> Rows | Heads:
    """Return the rows or heads, in the relation's row space. Raises ValueError for a relation of caches, or rows of
    another space than its columns."""
    fold, values = find_fold(a), split_operands(a)[0]
    relation, plan = fold.relation, fold.kernel.written.plan
    assert relation is not None
    if str(C) in (relation.rows, relation.cols):
        raise ValueError(f"relation {relation}: rows of space {C} belong to the kernels of caches")
    same("rows", str(values[plan.right.number].space), relation.cols)
    rows = size(relation.rows)
    return Rows(plan.cols, space=rows) if plan.heads == 1 else Heads(plan.heads, plan.cols, space=rows)


def entries_relation(a: Arguments) -> tuple[Relation, ...]:
    """Name the relation of the fold, if it has one."""
    relation = find_fold(a).relation
    return () if relation is None else (relation,)


def entries_values(a: Arguments, given: Arguments) -> tuple[Doubles, Doubles]:
    """Return the meaning of a step, and a bound on its error."""
    from formats.kernels.generated.folding.fold_bounds import bound_entries

    fold = find_fold(a)
    value = split_operands(given)[0][fold.kernel.plan.right.number]
    sparse = entries_of(a.batch, str(fold.relation), len(value))
    return bound_entries(fold.kernel.plan, value, sparse.shape[0], sparse.layers())


def entries_bound(a: Arguments) -> Doubles:
    """Return a running error of every operation, in the kernel's own order."""
    meant, error = entries_values(a, a.exact)
    return in_shape(error) + UNIT * in_shape(abs(meant)) * 1e-6


def entries_cost(a: Arguments, out: Rows | Heads, extents: Extents) -> Costs:
    """Return the price by the operations of an entry."""
    fold = find_fold(a)
    counts, relation = fold.kernel.counts, fold.relation
    assert relation is not None
    count = extents[entries[relation]] if relation.custom else extents[T]
    return [("fold_rows", {"T": extents[out.space], "S2": count, "h": fold.kernel.plan.heads, **counts._asdict()})]


def fold_patterns(a: Arguments) -> tuple[Pattern, ...]:
    """Return the pattern of the keys that queries see; the whole sequence for a pattern with tables, which a search
    does not have yet."""
    kernel, where, _ = find_fold(a)
    return (sequence if where.data else where,) if kernel.plan.masked else ()


def known_positions(a: Arguments) -> dict[str, int]:
    """Return the positions that the tables of its pattern cover."""
    limit = find_fold(a).where.limit
    return {} if limit is None else {"positions": limit}


def bound_values(a: Arguments, given: Arguments) -> tuple[Doubles, Doubles]:
    """Return the meaning of a step in the requested rows, and a bound on its error."""
    from formats.kernels.generated.folding.fold_bounds import FoldPart, bound_fold

    fold = find_fold(a)
    values, arrays = split_operands(given)
    plan, at = fold.kernel.plan, getattr(a, "at", None)
    rows = np.arange(len(values[0]))
    if not plan.masked:
        return bound_fold(plan, values, arrays, [FoldPart(rows, slice(0, len(rows)), None)])
    parts = []
    for keys in sentence_rows(a.batch):
        asked = keys if at is None else slice(*np.searchsorted(at, (keys.start, keys.stop)))
        queries = (rows if at is None else at.astype(np.int64))[asked]
        if len(queries):
            parts.append(FoldPart(queries, keys, ~unseen(a.batch, keys, fold.where, queries)))
    return bound_fold(plan, values, arrays, parts)


def fold_reference(a: Arguments) -> Doubles:
    """Return the term read in float64, or some of its rows."""
    if hasattr(a, "batch") and getattr(a, "at", None) is None:
        from opmatrix.runtime import interpreted

        return interpreted.exact(a)
    return in_shape(bound_values(a, a)[0])


def fold_bound(a: Arguments) -> Doubles:
    """Return a running error of every operation, in the kernel's own order."""
    meant, error = bound_values(a, a.exact)
    return in_shape(error) + UNIT * in_shape(abs(meant)) * 1e-6


def fold_cost(a: Arguments, out: Rows | Heads, extents: Extents) -> Costs:
    """Return the price by the operations, divisions and roots of a score, and the numbers of a row."""
    fold = find_fold(a)
    plan, counts, rows = fold.kernel.plan, fold.kernel.counts, extents[out.space]
    if plan.keys is not None:
        scores = rows * plan.keys
    elif not plan.masked:
        scores = rows * rows
    else:
        [seen] = fold_patterns(a)
        scores = extents[pairs[seen]]
    return [("fold_rows", {"T": rows, "S2": scores, "h": plan.heads, **counts._asdict()})]


def time_folds(grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
    """Yield timed calls of a few kernels, with little work a score and with much, over some rows."""
    from opmatrix.runtime.codegen.sample_products import FOLDS

    for (text, arrays), rows in product(FOLDS, TIMED_ROWS):
        x = numbers.some(rows, TIMED_COLUMNS)
        constants = [np.ones(shape, np.float32) for shape in arrays]
        fold = find_fold({"term": text, "x0": x, **{f"c{k}": constant for k, constant in enumerate(constants)}})
        plan, counts, starts = fold.kernel.plan, fold.kernel.counts, np.array([0, rows])
        out = numbers.room(rows, plan.heads, plan.cols)
        scores = rows * plan.keys if plan.keys is not None else count_attended(fold.where, rows)
        reach = fold.where.reach
        assert reach is not None
        yield (
            {"T": rows, "S2": scores, "h": plan.heads, **counts._asdict()},
            partial(fold.kernel, [x], constants, out, starts, reach),
        )


@kernel(
    launches=True,
    price=Price(
        (S2 * h * simple, S2 * h * slow, T * moved),
        lambda tile: Work(vector=S2 * h * (simple + SLOW * slow), moved=T * moved),
        time_folds,
        common=False,
    ),
)
class fold_rows(Arguments):
    """Rows times a stored matrix over any monoid, in a kernel of its own."""

    run, cost = run_fold_rows, fold_cost

    def shape(a) -> Rows | Heads:
        """Return the shape that the written kernel declares."""
        return fold_shape(a)

    def reference(a) -> Doubles:
        """Evaluate the fold in float64, by definition."""
        return fold_reference(a)

    padded = read_padded

    def bound(a) -> Doubles:
        """Bound the error of the written kernel, operation by operation."""
        return fold_bound(a)


@kernel(launches=True, row_mixing=True, prices={})
class fold_term(Arguments):
    """A product over any monoid within sequences, in a kernel of its own."""

    run, cost, limits, sees = run_fold, fold_cost, known_positions, fold_patterns

    def shape(a) -> Rows | Heads:
        """Return the shape that the written kernel declares."""
        return fold_shape(a)

    def reference(a) -> Doubles:
        """Evaluate the fold of each sequence in float64."""
        return fold_reference(a)

    padded = read_padded

    def bound(a) -> Doubles:
        """Bound the error of the written kernel, operation by operation."""
        return fold_bound(a)

    restrict = ask_rows


@kernel(row_mixing=True, prices={})
class fold_batch(Arguments):
    """A product over any monoid whose index counts all rows of a batch, or in which all see all, in its own kernel."""

    run, cost, limits, sees = run_fold, fold_cost, known_positions, fold_patterns

    def shape(a) -> Rows | Heads:
        """Return the shape that the written kernel declares."""
        return fold_shape(a)

    def reference(a) -> Doubles:
        """Evaluate the fold over all rows of the batch in float64."""
        return fold_reference(a)

    padded = read_padded

    def bound(a) -> Doubles:
        """Bound the error of the written kernel, operation by operation."""
        return fold_bound(a)


@kernel(changes_space=True, prices={})
class fold_entries(Arguments):
    """Rows that the entries of a relation name, merged by any monoid, in a kernel of its own."""

    run, cost, relations = run_entries, entries_cost, entries_relation

    def shape(a) -> Rows | Heads:
        """Return the shape that the written kernel declares, in the relation's row space."""
        return entries_shape(a)

    def reference(a) -> Doubles:
        """Evaluate the fold of the relation's entries in float64."""
        return fold_reference(a)

    padded = read_padded

    def bound(a) -> Doubles:
        """Bound the error of the merges of each row's entries."""
        return entries_bound(a)
