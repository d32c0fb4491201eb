"""A product over a monoid, read at values of rows: the parts of its scores, the values that are merged, and the rows
that see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple, NoReturn, TypeAlias

from formats.kernels.generated.folding.fold_plan import OF_ARRAY, OF_VALUE, Folding, FoldOperand, FoldPlan, ScoreLeaf
from formats.kernels.generated.rowwise.scalars import NumberGraph, StandIn, Untraceable, apply, number
from opmatrix.algebra.batch.relations import Relation
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.positions.patterns import Pattern, everyone
from opmatrix.algebra.shapes import Shape, T
from opmatrix.algebra.term import Operator, read
from opmatrix.runtime.codegen.checked_promises import check_monoid, check_own_pattern
from opmatrix.runtime.codegen.merging import traced_monoid
from opmatrix.runtime.codegen.row_reading import NotByRows, traced_function

MOST_CARRIED = 12  # numbers of a carrier, as its merges are unrolled


class ScoreForm(NamedTuple):
    """A number for each query and key: a graph of leaves. `turned`: a single number for all, as a row of columns."""

    leaves: tuple[ScoreLeaf, ...]
    graph: NumberGraph
    turned: bool = False

    @property
    def fixed(self) -> bool:
        """True if it is one number for all queries and keys."""
        return all(leaf.kind == "head" for leaf in self.leaves)


class RowsForm(NamedTuple):
    """Rows of a value; `turned`: transposed, a column a row."""

    operand: FoldOperand
    turned: bool = False


class EntriesForm(NamedTuple):
    """The entries of a relation that the batch gives."""

    relation: Relation


class FoldForm(NamedTuple):
    """A product, with the rows that its queries see, or the relation whose entries it merges by."""

    plan: FoldPlan
    where: Pattern
    indexed: bool
    relation: Relation | None = None


AnyForm: TypeAlias = ScoreForm | RowsForm | EntriesForm | FoldForm | None


def sole_leaf(leaf: ScoreLeaf) -> ScoreForm:
    """Return the scores that a single leaf gives as it is."""
    return ScoreForm((leaf,), NumberGraph(1, (StandIn("input"),)))


def as_scores(form: AnyForm) -> ScoreForm:
    """Return a form as scores: numbers of a query's row, or one of a query or of a key. Raises NotByRows for any other
    form."""
    match form:
        case ScoreForm():
            return form
        case RowsForm(operand, True) if operand.cols == 1:
            return sole_leaf(ScoreLeaf("key", operand))
        case RowsForm(operand, False):
            return sole_leaf(ScoreLeaf("query" if operand.cols == 1 else "row", operand))
    raise NotByRows("it merges a value that is not a score")


def is_column(form: AnyForm) -> bool:
    """True if it is one number of each row, or one for all."""
    return (isinstance(form, RowsForm) and form.operand.cols == 1) or (isinstance(form, ScoreForm) and form.fixed)


def merged_leaves(one: ScoreForm, other: ScoreForm) -> tuple[tuple[ScoreLeaf, ...], list[list[StandIn]]]:
    """Return the leaves of both, each once, and the outputs of both graphs over these."""
    leaves = [*dict.fromkeys((*one.leaves, *other.leaves))]
    inputs = [StandIn("input", value=float(k)) for k in range(len(leaves))]
    return tuple(leaves), [
        form.graph.fill(
            [inputs[leaves.index(leaf)] for leaf in form.leaves], number, lambda node, args: apply(node.op, *args)
        )
        for form in (one, other)
    ]


@dataclass(frozen=True, eq=False)
class FoldReading:
    """A form; `values` by the names of symbols, `arrays` the number of each array that is an operand."""

    form: AnyForm
    values: Mapping[str, FoldOperand]
    arrays: Mapping[Data, int]

    def of(self, form: AnyForm) -> FoldReading:
        """Make a reading of another form, over the same operands."""
        return replace(self, form=form)

    @property
    def size(self) -> tuple[object, object]:
        """The size of scores, rows × rows: forms have no sizes of their own."""
        return T, T

    @property
    def heads(self) -> NoReturn:
        """The heads of the value: forms have no sizes of their own. Raises NotByRows."""
        raise NotByRows("it reads the batch, or moves numbers")

    def spread(self, rows: object, cols: object) -> FoldReading:
        """Return the reading itself: spreading is implied by the forms."""
        return self

    def pointwise(self, op: str, other: FoldReading) -> FoldReading:
        """Combine two scores by a scalar operation, on graphs over the leaves of both. Raises NotByRows for other
        forms."""
        leaves, [[u], [v]] = merged_leaves(as_scores(self.form), as_scores(other.form))
        return self.of(ScoreForm(leaves, NumberGraph(len(leaves), (apply(op, u, v),))))

    def __add__(self, other: FoldReading) -> FoldReading:
        return self.pointwise("add", other)

    def __mul__(self, other: FoldReading) -> FoldReading:
        return self.pointwise("mul", other)

    def symbol(self, name: str, into: Shape, out: Shape) -> FoldReading:
        """Return the rows of a step's value."""
        return self.of(RowsForm(self.values[name]))

    def turn(self) -> FoldReading:
        """Exchange queries and keys of rows. Raises NotByRows for scores that depend on both."""
        if isinstance(self.form, RowsForm) or (isinstance(self.form, ScoreForm) and self.form.fixed):
            return self.of(self.form._replace(turned=not self.form.turned))
        raise NotByRows("transposed scores")

    def split(self, h: int) -> FoldReading:
        """Divide rows of one head into h. Raises NotByRows for several heads."""
        operand = self.rows_operand()
        if operand.heads > 1:
            raise NotByRows("heads within heads")
        return self.of(RowsForm(operand._replace(heads=h, cols=operand.cols // h)))

    def repeat(self, h: int) -> FoldReading:
        """Return the reading itself, after a check that it holds rows."""
        self.rows_operand()  # one head serves several without a copy
        return self

    def rows_operand(self) -> FoldOperand:
        """Return the value whose rows the form is. Raises NotByRows for any other form."""
        if isinstance(self.form, RowsForm) and not self.form.turned:
            return self.form.operand
        raise NotByRows("it splits a value into heads that does not have rows")

    def product(self, other: FoldReading, over: type[Monoid], where: Pattern) -> FoldReading:
        """Return the scores of pairs of rows, or the rows that are merged by scores."""
        left, right = self.form, other.form
        if is_column(left) and is_column(right) and right is not None and right.turned and over.ordinary:  # type: ignore[union-attr]
            return self.pointwise("mul", other)  # one number of a query times one of a key
        if not isinstance(right, RowsForm):
            raise NotByRows("the right operand of its product is not a value")
        if right.turned:
            if where is not everyone or not isinstance(left, RowsForm) or left.turned:
                raise NotByRows("scores under a pattern")
            inner = folding_of(over)
            if inner.width != 1:
                raise NotByRows(f"{over.__name__} gives several scores for a pair")
            return self.of(sole_leaf(ScoreLeaf("pairs", left.operand, right.operand, inner)))
        if where.relation is not None or (where is not everyone and not where.within):
            raise NotByRows(f"where {where}: it looks beyond sequences")
        check_own_pattern(where)
        if isinstance(left, EntriesForm):
            return self.of(self.by_entries(left.relation, over, right.operand, where))
        scores = as_scores(left)
        if any(leaf.kind == "row" for leaf in scores.leaves):
            raise NotByRows("scores of a row, one a key")
        plan = plan_of(scores, over, right.operand, None, where is not everyone)
        plan = plan._replace(ranged=plan.masked and where.reach is not None)
        return self.of(FoldForm(plan, where, over.indexed))

    def by_entries(self, relation: Relation, over: type[Monoid], right: FoldOperand, where: Pattern) -> FoldForm:
        """Return the merge of the rows that the entries of a relation name."""
        if where is not everyone:
            raise NotByRows("entries of a relation under a pattern")
        plan = FoldPlan((), NumberGraph(1, (StandIn("input"),)), folding_of(over), right, None, False, True)
        return FoldForm(plan, where, over.indexed, relation)

    def related(self, relation: Relation) -> FoldReading:
        """Return the entries of a relation."""
        return self.of(EntriesForm(relation))

    def refuse(self, *given: object, **named: object) -> NoReturn:
        """Raise NotByRows: folds have no such operation."""
        raise NotByRows("it reads the batch, or moves numbers")

    beside = join = total = given = entered = pick = shift = keep_top = at_distances = scan = delta_rule = refuse

    def by_distance(self, table: Data, most: int) -> FoldReading:
        """Return scores that are a table's numbers by distance."""
        return self.of(sole_leaf(ScoreLeaf("distance", FoldOperand(OF_ARRAY, self.arrays[table], *table.shape))))

    def act(self, term: Operator) -> FoldReading:
        """Return the result of a matrix of operators on scores, or on a row over a monoid."""
        try:
            return self.of(self.acted(term))
        except (Untraceable, NotByRows) as error:
            raise NotByRows(str(error), term, isinstance(error, Untraceable)) from None

    def acted(self, term: Operator) -> AnyForm:
        """Return the form after a matrix kind: a constant, a fold with a stored weight, or a function of scores. Raises
        NotByRows for any other."""
        name, args = term.kind.name, term.args
        if name == "I":
            return self.form
        if name == "const":
            return self.array(args[0])
        if name == "over" and args[0].kind.name == "weight":
            data, over = args[0].args[0], args[1]
            if data not in self.arrays:
                raise NotByRows(f"an array of {data.shape} that the step does not have")
            *stack, keys, cols = data.shape
            right = FoldOperand(OF_ARRAY, self.arrays[data], stack[0] if stack else 1, cols)
            return FoldForm(plan_of(as_scores(self.form), over, right, keys, False), everyone, False)
        if term.entrywise and isinstance(self.form, ScoreForm):
            graph = traced_function(term.kind.body(0, 0, *args))
            outputs = graph.fill(self.form.graph.outputs, number, lambda node, given: apply(node.op, *given))
            return self.form._replace(graph=NumberGraph(self.form.graph.inputs, tuple(outputs)))
        raise NotByRows(f"{term.kind} has no generated code for scores")

    def array(self, data: Data) -> ScoreForm:
        """Return a constant score: one number, or one for each head."""
        heads = data.shape[0] if len(data.shape) == 3 else 1
        if prod(data.shape) != heads:
            raise NotByRows(f"a row of {data.shape[-1]} numbers does not fit scores")
        if data in self.arrays:
            return sole_leaf(ScoreLeaf("head", FoldOperand(OF_ARRAY, self.arrays[data], heads, 1)))
        return ScoreForm((), NumberGraph(0, (number(data.array.item()),)))


def folding_of(over: type[Monoid]) -> Folding:
    """Return a monoid as graphs, once its promises were tried. Raises InputError for one that breaks them."""
    if over.width is None or len(over.unit()) > MOST_CARRIED:
        raise NotByRows(f"{over.__name__} carries more numbers than registers hold")
    check_monoid(over)
    try:
        graphs = traced_monoid(over)
    except Untraceable as error:
        raise NotByRows(str(error), traced=True) from None
    unit = tuple(float(over.unit()[part]) for part in graphs.used)
    return Folding(graphs.lift, graphs.merge, graphs.finish, unit, over.ordinary)


def plan_of(scores: ScoreForm, over: type[Monoid], right: FoldOperand, keys: int | None, masked: bool) -> FoldPlan:
    """Return the plan of a product; each operand is read in one way. Raises NotByRows."""
    if not masked and any(leaf.kind == "distance" for leaf in scores.leaves):
        raise NotByRows("distances across sequences")
    plan = FoldPlan(scores.leaves, scores.graph, folding_of(over), right, keys, masked)
    words = [operand.word for operand in plan.operands]
    if len(set(words)) < len(words):
        raise NotByRows("a value that is read with two layouts")
    for operand in plan.operands:
        if plan.heads % operand.heads:
            raise NotByRows(f"{operand.heads} heads, which do not divide {plan.heads}")
    return plan


def read_fold(term: Operator, values: Mapping[str, FoldOperand], arrays: Mapping[Data, int]) -> FoldForm:
    """Return the product over a monoid that a term is at these values. Raises NotByRows."""
    start = FoldReading(None, values, arrays)
    reading: FoldReading = read(term, start, {})
    if not isinstance(reading.form, FoldForm):
        raise NotByRows("it is not a product over a monoid")
    return reading.form


def value_operand(k: int, heads: int, cols: int) -> FoldOperand:
    """Return rows of a step's value as the operand of a fold."""
    return FoldOperand(OF_VALUE, k, heads, cols)
