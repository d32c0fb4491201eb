"""A model as parts with borders between them: one graph for each distinct signature, one small program for each pair of
border states, joined by a shortest path. A state is the name of the value handed on: the full value, or a form of it
(rewrites/egraph/borders.py)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate
from operator import matmul

from formats.core.errors import InputError
from opmatrix.algebra.batch.relations import SLOTS
from opmatrix.algebra.named_sizes import require_numbers
from opmatrix.algebra.nodes import BY_POSITION, KINDS_IN_ORDER
from opmatrix.algebra.operators import I, given, join
from opmatrix.algebra.positions.patterns import Pattern, everyone
from opmatrix.algebra.shapes import LiveSize, Space, T, brief, find_spaces
from opmatrix.algebra.term import Operator
from opmatrix.runtime.declarations.operands import C
from opmatrix.runtime.interpreted import UNWRITABLE
from opmatrix.runtime.program import OUTPUT
from rewrites.egraph.borders import FULL, border, split_forms
from rewrites.egraph.egraph import GROWTH_LIMIT, SCHEDULE, Graph, saturate
from rewrites.egraph.template import Template
from rewrites.laws import SHIPPED
from rewrites.laws.flat import factors, flat
from rewrites.laws.law import Law

Model = Operator | Mapping[str, Operator]  # one output, or several by name; a run returns the first


@dataclass(frozen=True)
class Part:
    """One part of a model behind one border state: its template, and the class names of its input border, of its
    results by state, and of the model's further outputs that leave in it."""

    template: Template
    border: str | None
    roots: dict[str, str]
    outputs: dict[str, str] = field(default_factory=dict)


def outputs(model: Model) -> dict[str, Operator]:
    """Return the outputs of a model by name, with several heads side by side, as programs return them. Raises
    InputError for a model without outputs, and for an object that is no model."""
    if isinstance(model, Operator):
        return {OUTPUT: side_by_side(model)}
    if not isinstance(model, Mapping):
        raise InputError(f"a model is a name or a directory, not {model!r:.60}")
    if not model:
        raise InputError("a model without outputs: give one operator, or several by name")
    return {name: side_by_side(term) if isinstance(term, Operator) else term for name, term in model.items()}


def side_by_side(term: Operator) -> Operator:
    """Return a term with its heads as columns of one head; caches, which sessions hold, keep their heads."""
    if not has_heads(term) or str(term.out.rows) == str(C):
        return term
    return term @ join(term.out.heads)


def has_heads(term: Operator) -> bool:
    """True if a term gives several heads; one of any number of heads is a value of one."""
    return isinstance(term.out.heads, int) and term.out.heads > 1


def check_possible(model: Model) -> None:
    """Raise InputError, which names the cause, for a model that no program can compute: a custom pattern without a
    name, a named size in place of a number, and an output whose rows are of no space, such as a transposed one."""
    for name, term in outputs(model).items():
        require_numbers(term)
        for attribute in dict.fromkeys(a for node in term.walk() for a in node.attributes):
            if isinstance(attribute, Pattern) and not attribute.stated:
                raise InputError(f"pattern {attribute}: {UNWRITABLE}")
        _, rows, columns = term.out
        if not isinstance(rows, Space) or find_spaces(columns):
            raise InputError(
                f"{name}: {brief(term)} gives {term.out}, but a program gives rows of a space, such as "
                f"{T}, of a known number of columns: transpose it, or evaluate the term itself, x @ term"
            )


def check_seen(node: Operator) -> None:
    """Raise InputError for a product whose pattern needs positions or relations that its rows lack. Rows of other
    spaces than tokens have a sequence and a position only where they were picked, and a relation applies only where its
    rows are those of the scores."""
    where = next(
        (attribute for attribute in node.attributes if isinstance(attribute, Pattern) and attribute is not everyone),
        None,
    )
    if where is None or not node.children or node.kind.name in KINDS_IN_ORDER:
        return
    scores = node.children[0].out
    if where.relation is not None:
        if [*map(str, scores[1:])] == [where.relation.rows, where.relation.cols]:
            return
        raise InputError(
            f"{brief(node)}: where={where}: scores are {scores}, but the relation is {where.relation.rows} × "
            f"{where.relation.cols}"
        )
    picked = {part.out.rows for child in node.children for part in child.walk() if part.kind.name == "pick"}
    strange = next((rows for rows in scores[1:] if rows not in (1, T) and rows not in picked), None)
    if strange is not None:
        raise InputError(
            f"{brief(node)}: where={where}: scores are {scores}, and rows of {strange} were not picked: "
            "they have no position; give among(relation), or leave where= out"
        )


def spine(model: Model) -> str:
    """Return the name of the output with the most factors: the others leave it on the way."""
    return max(terms := outputs(model), key=lambda name: sum(1 for _ in factors(terms[name])))


def split_model(model: Operator) -> list[Operator]:
    """Return the factors of a model, gathered into parts."""
    return [reduce(matmul, group) for group in group_factors([*factors(model)])]


def group_factors(every: Sequence[Operator]) -> list[list[Operator]]:
    """Return factors by part. A part begins where rows are mixed, those of tokens or of an input matrix. Picked rows
    belong to the part before, and so do all factors on rows of another space, in another order or of several heads,
    which a border does not record."""
    groups: list[list[Operator]] = [[]]
    rows: LiveSize = T
    moved, born = False, {rows}
    for factor, before in zip(every, accumulate(every, matmul, initial=I), strict=False):
        if rows in born and not moved and not has_heads(before) and not factor.selective and groups[-1]:
            groups.append([])
        moved = moved or any(node.kind.name == "pick" and node.args[0].custom for node in factor.walk())
        if factor.kind.name == "entered":
            born.add(factor.out.rows)
        groups[-1].append(factor)
        rows = rows if factor.out.rows is factor.into.rows else factor.out.rows
    return groups


def leaving(groups: Sequence[Sequence[Operator]], term: Operator) -> tuple[int, Operator]:
    """Return the part that a further output leaves a model in, and the output behind that part's border."""
    every, branch = [factor for group in groups for factor in group], [*factors(term)]
    common = next(
        (i for i, (a, b) in enumerate(zip(every, branch, strict=False)) if a is not b), min(len(every), len(branch))
    )
    ends = [*accumulate(map(len, groups))]
    number = next(
        (i for i, end in enumerate(ends) if (common if common < len(branch) else common - 1) < end), len(groups) - 1
    )
    start = ends[number] - len(groups[number])
    return number, reduce(matmul, branch[start:], I)


def find_vocabulary(model: Model) -> int | None:
    """Return the columns of the one-hot rows that a model reads, from any output; None if no output has a fixed
    number."""
    return next((columns for term in outputs(model).values() if isinstance(columns := term.into.cols, int)), None)


def parts(model: Model) -> list[dict[str, Part]]:
    """Return every part of a model, by the state of the border before it. Raises as `check_possible` does."""
    check_possible(model)
    model_parts: list[dict[str, Part]] = []
    starts: dict[str, Operator] = {}
    named, last = outputs(model), spine(model)
    groups = group_factors([*factors(named[last])])
    further: list[dict[str, Operator]] = [{} for _ in groups]
    for name, term in named.items():
        if name != last:
            number, behind = leaving(groups, term)
            further[number][name] = behind
    for group, also in zip(groups, further, strict=True):
        factor: Operator = reduce(matmul, group)
        states, starts = {}, starts or {FULL: given("tokens", find_vocabulary(model) or 1)}
        for state, x in starts.items():
            full = in_own_rows(flat(factor, x), factor, x)
            forms = [*split_forms(full)]
            roots = {FULL: full} | {name: handed for name, handed, _ in forms}
            more = {f"also{i}": in_own_rows(flat(term, x), term, x) for i, term in enumerate(also.values())}
            for root in (full, *more.values()):
                check_order(root)
                for node in root.walk():
                    check_seen(node)
            check_caches([full, *more.values()], dict(zip(also, more.values(), strict=True)))
            leaf = next((t for root in (full, *more.values()) for t in root.walk() if t.kind.name == "symbol"), None)
            states[state] = Part(
                Template.of(roots | more | ({"border": leaf} if leaf else {}), [leaf] if leaf else []),
                "$border" if leaf is not None else None,
                {name: f"${name}" for name in roots},
                {name: f"${label}" for name, label in zip(also, more, strict=True)},
            )
        starts = {FULL: border(full)} | {name: over for name, _, over in forms}
        model_parts.append(states)
    return model_parts


def in_own_rows(full: Operator, term: Operator, x: Operator) -> Operator:
    """Return the flat reading of a term behind x, with the rows of the term's result. A constant row fits any space,
    and a program would have one for each token. If it is all of an output, it is put behind a value of its space: an
    input, the last one that the term computes there, or picked rows. Raises InputError where no factor is such a
    value."""
    rows = (x @ term).out.rows
    if full.out.rows is rows or not full.constant:
        return full
    for node in term.walk():
        if node.out.rows is not rows:
            continue
        if node.kind.name == "entered":
            return node @ full
        if node.kind.name == "pick" and node.into.rows is T:
            return full @ node
    prefixes = [flat(prefix, x) for prefix in accumulate(factors(term), matmul)]
    if before := [prefix for prefix in prefixes if prefix.out.rows is rows]:
        return before[-1] @ full
    raise InputError(
        f"{brief(term)}: it gives a constant row for each row of space {rows}, but none of its factors has "
        f"these rows: put it behind one that has, such as given('x', n, '{rows}') @ const(c)"
    )


def check_order(full: Operator) -> None:
    """Raise InputError where attention, a scan, a shift or a rotation reads rows that a relation of the batch put in
    another order: kernels take row i for token i."""
    for node in full.walk():
        seen = node.kind.name in KINDS_IN_ORDER or (node.kind.name == "product" and everyone not in node.args)
        if seen or (node.kind.name == "compose" and node.children[1].kind.name in BY_POSITION):
            picks = (
                inner
                for child in node.children
                for inner in child.walk()
                if inner.kind.name == "pick" and inner.args[0].custom
            )
            if (moved := next(picks, None)) is not None:
                raise InputError(
                    f"{brief(node)}: it reads the positions of rows that {moved} has reordered: "
                    "in programs tokens stay in their order; pick after this operator"
                )


def check_caches(roots: Sequence[Operator], named: Mapping[str, Operator]) -> None:
    """Raise InputError for a cache that is read before new rows are appended to it, and where its next value is no
    output of its name."""
    for node in dict.fromkeys(node for root in roots for node in root.walk()):
        for port in (
            child.args[0] for child in node.children if child.kind.name == "entered" and child.args[0].space == str(C)
        ):
            if not appends(node):
                raise InputError(
                    f"{brief(node)}: it reads {port} before it is written: append to it first, "
                    f"given({port.name!r}, ..) + product(given({SLOTS.name!r}), ..)"
                )
            if named.get(port.name) is not node:
                raise InputError(
                    f"{port}: {brief(node)} is appended to it, but is not the output of this name: return the "
                    "cache's next value under it"
                )
    for name, term in named.items():
        if str(term.out.rows) == str(C) and not (
            appends(term) and any(cache.args[0].name == name for cache in find_caches(term))
        ):
            raise InputError(
                f"output {name!r}: its rows, of space {C}, stay with a session, but no input of this name "
                "has them as its next value"
            )


def find_caches(term: Operator) -> list[Operator]:
    """Return the inputs that a sum adds to."""
    return [child for child in term.children if child.kind.name == "entered"]


def appends(term: Operator) -> bool:
    """True if the term is a cache with new rows in their slots."""

    def new(each: Operator) -> bool:
        """True for the product that puts new rows into their slots."""
        return (
            each.kind.name == "product"
            and each.children[0].kind.name == "related"
            and each.children[0].args[0] == SLOTS
        )

    return term.kind.name == "add" and len(find_caches(term)) == 1 and any(map(new, term.children))


class Overgrown(InputError):
    """Laws lead to more programs than the search can hold."""


@dataclass
class Explorer:
    """Saturated graphs by signature, so that layers of equal structure are explored once; `schedule` are the phases."""

    laws: Sequence[Law]
    budget: int = 5000
    graphs: dict[str, Graph] = field(default_factory=dict)
    schedule: Sequence[str] = SCHEDULE

    def graph(self, part: Part) -> Graph:
        """Return the graph of a part. Programs come from it, so its engine is new: an engine after a pop has given a
        class a wrong child."""
        if part.template.text not in self.graphs:
            graph = saturate(part.template, self.laws, budget=self.budget, alone=True, schedule=self.schedule)
            self.check_growth(graph)
            self.graphs[part.template.text] = graph
        return self.graphs[part.template.text]

    def check_growth(self, graph: Graph) -> None:
        """Raise Overgrown for a graph that laws of a user have grown far beyond the budget: a round cannot be stopped
        once it has begun, and the next steps would take hours."""
        size, custom = len(graph.nodes), {law.name for law in self.laws} - SHIPPED
        if custom and graph.cut and size > GROWTH_LIMIT * self.budget:
            raise Overgrown(f"with it a graph has {size} nodes, far over the budget of {self.budget}: {graph.cut[0]}")

    def seconds(self) -> dict[str, float]:
        """Return seconds by phase, over all graphs."""
        total: dict[str, float] = {}
        for graph in self.graphs.values():
            for phase, taken in graph.seconds.items():
                total[phase] = total.get(phase, 0.0) + taken
        return total


def states(parts: Sequence[dict[str, Part]]) -> Iterator[tuple[int, str, str]]:
    """Yield every part with every pair of states that it can have; the last part hands on the full value."""
    for number, by_state in enumerate(parts):
        after: Mapping[str, object] = parts[number + 1] if number + 1 < len(parts) else {FULL: None}
        for before, part in by_state.items():
            yield from ((number, before, state) for state in part.roots if state in after)
