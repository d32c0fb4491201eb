"""Level 2: every member of every class of a saturated graph has the value of its class, every fact is true of it and
every kernel computes it, in float64 at shrunken sizes. So a wrong law is caught even if extraction would not choose
it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.relations import GIVEN, Relation
from opmatrix.algebra.batch.signature import Port
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.operators import symbol, weight
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.algebra.shapes import Shape, T, brief
from opmatrix.algebra.term import PROPERTIES, Operator
from rewrites.egraph.egraph import EgglogEngine, ENode, Graph, build, fitting, saturate
from rewrites.egraph.template import Template, spell_values
from rewrites.laws.flat import flat
from rewrites.laws.guards import SAME_SIZE
from rewrites.laws.law import INPUT, ROWS, Law, Sort, apart
from rewrites.lowering.lower import Lowering
from rewrites.verify.numbers import Drawn, Float64s

TOLERANCE = 1e-9
SKIPPED = ("approx",)  # such a node denotes its original, not its replacement


@dataclass(frozen=True)
class Disagreement:
    """A member, a kernel or a fact that does not have the value of its class, and the laws that made or merged the
    class."""

    node: Operator | str
    expected: Operator | str
    difference: float
    laws: tuple[str, ...] = ()
    kernel: str = ""

    def __str__(self) -> str:
        origin = f", made by {', '.join(self.laws)}" if self.laws else ""
        return f"{self.what} (relative difference {self.difference:.3g}){origin}"

    def place(self) -> tuple[bool, bool, int]:
        """Return its sort key: first members that a law made, numbers before misfits, small terms before large ones."""
        return not self.laws, self.difference == np.inf, count_nodes(self.expected) or count_nodes(self.node)

    @property
    def what(self) -> str:
        """The sentence "NODE is not EXPECTED" of the message."""
        return (
            f"{f'{self.kernel}: ' if self.kernel else ''}{describe_term(self.node)} is not "
            f"{describe_term(self.expected)}"
        )


def check_graph(
    template: Template, laws: Sequence[Law], seed: int = 0, *, rounds: int = 6, budget: int = 1500
) -> list[Disagreement]:
    """Return the disagreements in the graph that the laws make of a template, the smallest made by a law first: the
    fault is there. Numbers are random and sizes shrunken; no node is subsumed; each phase runs for `rounds` rounds."""
    rng = np.random.default_rng(seed)
    shrunk = small(template, laws, rng)
    return disagreements(saturate(shrunk, laws, trace=True, rounds=rounds, budget=budget), shrunk, rng)


def small(template: Template, laws: Sequence[Law], rng: np.random.Generator) -> Template:
    """Return the template over random numbers of small sizes."""
    values = template.shrunken(lambda shape: rng.normal(size=shape))
    return spell_values(replace(template, values=values), laws)


def check_seeded(
    seeds: Sequence[Law], laws: Sequence[Law], seed: int = 0, shared: EgglogEngine | None = None, **other: Sort
) -> tuple[list[Disagreement], Graph]:
    """Return the disagreements in a graph that starts from the left sides of these laws, so that laws are checked that
    no model needs, and the graph, which records if a law was refused. `shared` is an engine of the laws that traces;
    `other` widens the sorts of variables."""
    rng = np.random.default_rng(seed)
    template = spell_values(seeded(seeds, rng, **other), laws)
    graph = saturate(template, laws, trace=True, rounds=3, budget=4000, shared=shared)
    return disagreements(graph, template, rng), graph


def seeded(seeds: Sequence[Law], rng: np.random.Generator, **other: Sort) -> Template:
    """Return a template of the left sides of laws over drawn operators, with the conditions of the laws beside their
    facts."""
    border = symbol("border", Shape(1, T, INPUT), Shape(1, T, INPUT))
    roots: list[Operator] = []
    asked: list[tuple[str, list[Operator]]] = []
    for law in seeds:
        sorts = {name: other.get(name, sort) for name, sort in law.variables.items()}
        read = {name for name, sort in sorts.items() if sort.name != "varying" and {"act", "constant"} & {*sort.facts}}
        over = {name: flat(term, border) if name in read else term for name, term in law.drawn(rng, **other).items()}
        roots += law.of(over)[0]
        for fact, *variables in (condition.strip("()").split() for condition in law.when):
            terms = [over[name] for name in variables]
            stated = (
                fact == SAME_SIZE  # stated by the template
                or not all(isinstance(term, Operator) for term in terms)
            )
            if not stated:
                asked.append((fact, terms))
    template = spell_values(Template.of({f"seed{i}": root for i, root in enumerate(roots)}, [border]), seeds)
    names = {term: name for name, term in template.instance(template.values).items()}
    lines = [f"({fact} {' '.join(names[term] for term in terms)})" for fact, terms in asked]
    return replace(template, text="\n".join([template.text, *lines]))


def disagreements(
    graph: Graph, template: Template, rng: np.random.Generator, lengths: Sequence[int] = ROWS
) -> list[Disagreement]:
    """Return the disagreements of a graph. Each class has the value of one acyclic member; all members, facts and
    kernels are compared with it."""
    values = Drawn(width(template), batch(template, rng, lengths), rng)
    terms = represented(graph, template, values)
    wrong = [*members(graph, terms, template, values), *untrue(graph, terms, values)]
    wrong = wrong or list(check_kernels(graph, terms, template, values))
    return sorted(wrong, key=Disagreement.place)


def represented(graph: Graph, template: Template, values: Drawn) -> dict[int, Operator]:
    """Return the term of every class."""

    def make(node: ENode, terms: dict[int, Operator], attributes: dict[str, object]) -> Operator | None:
        """Build the term of a member; None if it has none."""
        if node.kind in SKIPPED or (term := fitting(node, terms, attributes)) is None:
            return None
        return stack(graph, node.cls, term, values)

    return {cls: stack(graph, cls, term, values) for cls, term in graph.terms(template, make).items()}


def stack(graph: Graph, cls: int, term: Operator, values: Drawn) -> Operator:
    """Return the matrices of a stack, one for each head, as one weight; other terms unchanged."""
    if cls not in graph.facts["stacked"] or term.kind.name == "weight":
        return term
    try:
        matrices: Operator = weight(Data(values.apply(term, np.eye(int(term.into.cols)))))
        return matrices
    except (TypeError, ValueError):
        return term  # not a stack, in spite of the facts: facts are checked


def members(graph: Graph, terms: dict[int, Operator], template: Template, values: Drawn) -> Iterator[Disagreement]:
    """Yield members that have another value than their class, computed from the values of their children's classes."""
    for node in graph.nodes:
        if node.kind in SKIPPED or node.cls not in terms:
            continue  # a misfit is part of something that is reported
        if not all(child in terms for child in node.children):
            yield Disagreement(
                "a member with an operand that does not fit", terms[node.cls], np.inf, by(graph, node.cls)
            )
            continue
        term, off = compare_term(graph, terms, values, node.cls, partial(build, node, terms, template.values))
        if not off <= TOLERANCE:
            yield Disagreement(term, terms[node.cls], off, by(graph, node.cls))


def compare_term(
    graph: Graph, terms: dict[int, Operator], values: Drawn, cls: int, make: Callable[[], Operator]
) -> tuple[Operator | str, float]:
    """Return a term and its distance from the value of a class. If the term does not fit, return the reason in words,
    and inf."""
    try:
        if (term := make()) is terms[cls]:
            return term, 0.0
        value = cls in graph.facts["act"] or cls in graph.facts["constant"]
        return term, compare_values(term, terms[cls], value, values)
    except (TypeError, ValueError) as error:
        return f"a member that does not fit ({brief(error)})", np.inf


def compare_values(term: Operator, expected: Operator, value: bool, values: Drawn) -> float:
    """Return the distance of two terms: as values at the border, as operators at an input that both take."""
    if value:
        return distance(values.of_value(term), values.of_value(expected))
    free = term if isinstance(term.into.cols, int) else expected
    x = values.input_of(free)
    return distance(values.apply(term, x), values.apply(expected, x))


def distance(a: Float64s, b: Float64s) -> float:
    """Return the largest relative difference; inf between arrays of different shapes, except where one of them has one
    head."""
    return apart(a, b) if a.shape[1:] == b.shape[1:] and (len(a) == len(b) or 1 in (len(a), len(b))) else np.inf


def untrue(graph: Graph, terms: dict[int, Operator], values: Drawn) -> Iterator[Disagreement]:
    """Yield facts that the value of a class contradicts, by the definition of the property."""
    for fact, declared in PROPERTIES.items():
        for cls in graph.facts[fact] & terms.keys():
            value = cls in graph.facts["act"] or cls in graph.facts["constant"]
            try:
                off = distance(*declared.sides(*values.of_property(terms[cls], value)))
            except (TypeError, ValueError):
                off = np.inf
            if not off <= TOLERANCE:
                yield Disagreement(terms[cls], fact, off, by(graph, cls))


def check_kernels(
    graph: Graph, terms: dict[int, Operator], template: Template, values: Drawn
) -> Iterator[Disagreement]:
    """Yield kernels of the lowered graph that compute another value than that of their class."""
    lowering = Lowering(graph, template, prices=None)  # type: ignore[arg-type]       # nothing is priced here
    for cls, call in lowering.calls:
        sorts = call.implementation.variables
        operands = {
            name: template.values[at] if sorts[name].name in ("count", "lag", "where", "relation") else terms[at]
            for name, at in call.bound
        }
        term, off = compare_term(graph, terms, values, cls, partial(call.implementation.over, operands))
        if not off <= TOLERANCE:
            yield Disagreement(term, terms[cls], off, (), call.implementation.name)


def by(graph: Graph, cls: int) -> tuple[str, ...]:
    """Return the names of the laws that added to a class, sorted."""
    return tuple(sorted(law for at, law in graph.facts["made_by"] if at == cls))


def count_nodes(term: Operator | str) -> int:
    """Return the number of nodes of a term; 0 for a fact."""
    return 0 if isinstance(term, str) else sum(1 for _ in term.walk())


def describe_term(term: Operator | str) -> str:
    """Return a term as text, unless that would be long: shared parts are written each time."""
    if isinstance(term, str) or count_nodes(term) < 60:
        return brief(term)
    return f"a {term.kind} of {count_nodes(term)} parts"


def width(template: Template) -> int:
    """Return the columns of the border; 1 if there is none."""
    shapes = [template.values[e.attributes[2]] for e in template.entries if e.kind == "symbol"]
    return int(shapes[0].cols) if shapes else 1


def batch(template: Template, rng: np.random.Generator, lengths: Sequence[int] = ROWS) -> Batch:
    """Return a ragged batch whose ids are within the tables that the template reads."""
    limits: dict[str, int] = {}
    for field, limit in ((template.values[at] for at in e.attributes) for e in template.entries if e.kind == "given"):
        limits[field] = min(limit, limits.get(field, limit))
    placed = [len(template.values[e.attributes[0]].array) for e in template.entries if e.kind == "rotate"]
    placed += [
        value.limit for value in template.values.values() if isinstance(value, Pattern) and value.limit is not None
    ]
    lengths = [min(length, *placed, limits.get("positions", length)) for length in lengths]
    return Batch(
        [rng.integers(0, limits.get("tokens", 1), length) for length in lengths],
        [rng.integers(0, limits.get("kinds", 1), length) for length in lengths],
        draw_relations(template, rng, lengths),
        draw_inputs(template, rng, lengths),
    )


def draw_inputs(template: Template, rng: np.random.Generator, lengths: Sequence[int]) -> dict[str, NDArray[np.float64]]:
    """Draw the matrices of the inputs that a template names."""
    return {
        port.name: rng.normal(
            size=(
                len(lengths) if port.space == "S" else sum(lengths),
                *([port.heads] if port.heads > 1 else []),
                port.columns,
            )
        )
        for port in template.values.values()
        if isinstance(port, Port)
    }


def draw_relations(
    template: Template, rng: np.random.Generator, lengths: Sequence[int]
) -> dict[str, NDArray[np.float64]]:
    """Draw the relations that a template names and that not every batch has. A relation that rows are picked by has
    one entry a row, others have more. If a monoid keeps several values, every entry is filled: with fewer, it would
    leave infinities, which have no sum. A space without a size of its own has as many rows as there are tokens."""
    share = 1.0 if any(map(keeps_several, template.values.values())) else 0.3
    picks = {template.values[e.attributes[0]] for e in template.entries if e.kind == "pick"}

    def drawn(each: Relation) -> NDArray[np.float64]:
        """Draw the entries of a relation, dense: one in each row, and more unless rows are picked by it."""
        rows, cols = (len(lengths) if space == "S" else sum(lengths) for space in (each.rows, each.cols))
        entries = np.eye(cols)[rng.integers(0, cols, rows)]
        return (
            entries if each in picks else entries + rng.normal(size=entries.shape) * (rng.random(entries.shape) < share)
        )

    spoken = {value.relation if isinstance(value, Pattern) else value for value in template.values.values()}
    named = sorted((value for value in spoken if isinstance(value, Relation) and value.name not in GIVEN), key=str)
    return {value.name: drawn(value) for value in named}


def keeps_several(value: object) -> bool:
    """True if this is a monoid that lifts a single entry to numbers that are infinite, such as the three largest
    entries."""
    if not (isinstance(value, type) and issubclass(value, Monoid)):
        return False
    score, factor, index = np.array([1.0, 1.0, 0.0])  # numpy scalars, which divide by 0 without an error
    with np.errstate(all="ignore"):
        lifted = value.lift(score, factor, *[index] * value.indexed)
    return not np.isfinite(np.asarray(lifted, float)).all()
