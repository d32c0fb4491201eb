"""Level 2: every member of every class of a saturated graph has the value of its class, every fact is true of it, every
kernel computes it, in float64 at shrunken sizes. So a wrong law is caught even where extraction would not choose it."""
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
SKIPPED = ("approx",)                                       # it denotes its original, not what replaces it


@dataclass(frozen=True)
class Disagreement:
    """A member, a kernel or a fact of a class that is not the class's, and the laws that made or merged the class."""

    node: Operator | str
    expected: Operator | str
    difference: float
    laws: tuple[str, ...] = ()
    kernel: str = ""

    def __str__(self) -> str:
        made = f", made by {', '.join(self.laws)}" if self.laws else ""
        return f"{self.what} (relative difference {self.difference:.3g}){made}"

    def place(self) -> tuple[bool, bool, int]:
        """Where it stands: first what a law made, numbers before what does not fit, small terms before large ones."""
        return not self.laws, self.difference == np.inf, count_nodes(self.expected) or count_nodes(self.node)

    @property
    def what(self) -> str:
        """What is not what."""
        return (f"{f'{self.kernel}: ' if self.kernel else ''}{describe_term(self.node)} is not "
                f"{describe_term(self.expected)}")


def check_graph(template: Template, laws: Sequence[Law], seed: int = 0, *, rounds: int = 6,
                budget: int = 1500) -> list[Disagreement]:
    """What disagrees in the graph that the laws make of a template, the smallest that a law made first: there the fault
    is. Numbers are random and sizes shrunken; nothing is subsumed; each phase runs for a few rounds."""
    rng = np.random.default_rng(seed)
    shrunk = small(template, laws, rng)
    return disagreements(saturate(shrunk, laws, trace=True, rounds=rounds, budget=budget), shrunk, rng)


def small(template: Template, laws: Sequence[Law], rng: np.random.Generator) -> Template:
    """The template over random numbers of small sizes."""
    values = template.shrunken(lambda shape: rng.normal(size=shape))
    return spell_values(replace(template, values=values), laws)


def check_seeded(seeds: Sequence[Law], laws: Sequence[Law], seed: int = 0, shared: EgglogEngine | None = None,
                 **other: Sort) -> tuple[list[Disagreement], Graph]:
    """What disagrees in a graph that starts from the left sides of these laws, so that laws are checked that no model
    needs. `shared` is an engine of the laws that traces; `other` widens what variables may be; the graph tells whether
    a law was then refused."""
    rng = np.random.default_rng(seed)
    template = spell_values(seeded(seeds, rng, **other), laws)
    graph = saturate(template, laws, trace=True, rounds=3, budget=4000, shared=shared)
    return disagreements(graph, template, rng), graph


def seeded(seeds: Sequence[Law], rng: np.random.Generator, **other: Sort) -> Template:
    """A template of the left sides of laws over drawn operators, with what the laws ask of them beside their facts."""
    border = symbol("border", Shape(1, T, INPUT), Shape(1, T, INPUT))
    roots: list[Operator] = []
    asked: list[tuple[str, list[Operator]]] = []
    for law in seeds:
        sorts = {name: other.get(name, sort) for name, sort in law.variables.items()}
        read = {name for name, sort in sorts.items() if sort.name != "varying" and {"act", "constant"} & {*sort.facts}}
        over = {name: flat(each, border) if name in read else each for name, each in law.drawn(rng, **other).items()}
        roots += law.of(over)[0]
        for fact, *variables in (each.strip("()").split() for each in law.when):
            terms = [over[name] for name in variables]
            stated = fact == SAME_SIZE or not all(isinstance(each, Operator) for each in terms)     # by the template
            if not stated: asked.append((fact, terms))
    template = spell_values(Template.of({f"seed{i}": root for i, root in enumerate(roots)}, [border]), seeds)
    names = {term: name for name, term in template.instance(template.values).items()}
    lines = [f"({fact} {' '.join(names[term] for term in terms)})" for fact, terms in asked]
    return replace(template, text="\n".join([template.text, *lines]))


def disagreements(graph: Graph, template: Template, rng: np.random.Generator,
                  lengths: Sequence[int] = ROWS) -> list[Disagreement]:
    """Every class is given the value of one acyclic member; all members, facts and kernels are compared with it."""
    values = Drawn(width(template), batch(template, rng, lengths), rng)
    terms = represented(graph, template, values)
    found = [*members(graph, terms, template, values), *untrue(graph, terms, values)]
    found = found or list(check_kernels(graph, terms, template, values))
    return sorted(found, key=Disagreement.place)


def represented(graph: Graph, template: Template, values: Drawn) -> dict[int, Operator]:
    """The term of every class."""
    def make(node: ENode, terms: dict[int, Operator], attributes: dict[str, object]) -> Operator | None:
        if node.kind in SKIPPED or (term := fitting(node, terms, attributes)) is None:
            return None
        return stack(graph, node.cls, term, values)

    return {cls: stack(graph, cls, term, values) for cls, term in graph.terms(template, make).items()}


def stack(graph: Graph, cls: int, term: Operator, values: Drawn) -> Operator:
    """What stands for several matrices, one for a head, as those: it takes several heads."""
    if cls not in graph.facts["stacked"] or term.kind.name == "weight":
        return term
    try:
        matrices: Operator = weight(Data(values.apply(term, np.eye(int(term.into.cols)))))
        return matrices
    except (TypeError, ValueError):
        return term                                         # no stack, whatever the facts say: the facts are checked


def members(graph: Graph, terms: dict[int, Operator], template: Template, values: Drawn) -> Iterator[Disagreement]:
    """Members that have another value than their class, computed from the values of their children's classes."""
    for node in graph.nodes:
        if node.kind in SKIPPED or node.cls not in terms:
            continue                                        # what fits nowhere is part of something that is reported
        if not all(child in terms for child in node.children):
            yield Disagreement("a member with a part that fits nowhere", terms[node.cls], np.inf, by(graph, node.cls))
            continue
        term, off = compare_term(graph, terms, values, node.cls, partial(build, node, terms, template.values))
        if not off <= TOLERANCE:
            yield Disagreement(term, terms[node.cls], off, by(graph, node.cls))


def compare_term(graph: Graph, terms: dict[int, Operator], values: Drawn, cls: int,
                 make: Callable[[], Operator]) -> tuple[Operator | str, float]:
    """A term, and how far it is from the value of a class: infinitely where it does not fit, and then why in words."""
    try:
        if (term := make()) is terms[cls]:
            return term, 0.0
        value = cls in graph.facts["act"] or cls in graph.facts["constant"]
        return term, compare_values(term, terms[cls], value, values)
    except (TypeError, ValueError) as error:
        return f"a member that does not fit ({brief(error)})", np.inf


def compare_values(term: Operator, expected: Operator, value: bool, values: Drawn) -> float:
    """How far apart two terms are: as values at the border, as operators at an input that both take."""
    if value:
        return distance(values.of_value(term), values.of_value(expected))
    free = term if isinstance(term.into.cols, int) else expected
    x = values.input_of(free)
    return distance(values.apply(term, x), values.apply(expected, x))


def distance(a: Float64s, b: Float64s) -> float:
    """The largest relative difference; infinite between arrays of different shapes, heads that are all alike aside."""
    return apart(a, b) if a.shape[1:] == b.shape[1:] and (len(a) == len(b) or 1 in (len(a), len(b))) else np.inf


def untrue(graph: Graph, terms: dict[int, Operator], values: Drawn) -> Iterator[Disagreement]:
    """Facts that the value of a class does not have, by what the property means."""
    for fact, said in PROPERTIES.items():
        for cls in graph.facts[fact] & terms.keys():
            value = cls in graph.facts["act"] or cls in graph.facts["constant"]
            try:
                off = distance(*said.sides(*values.of_property(terms[cls], value)))
            except (TypeError, ValueError):
                off = np.inf
            if not off <= TOLERANCE:
                yield Disagreement(terms[cls], fact, off, by(graph, cls))


def check_kernels(graph: Graph, terms: dict[int, Operator], template: Template,
                  values: Drawn) -> Iterator[Disagreement]:
    """Kernels of the lowered graph that mean something else than the class they would compute."""
    lowering = Lowering(graph, template, prices=None)       # type: ignore[arg-type]       # nothing is priced here
    for cls, call in lowering.calls:
        sorts = call.implementation.variables
        operands = {name: template.values[at] if sorts[name].name in ("count", "where", "relation") else terms[at]
                    for name, at in call.bound}
        term, off = compare_term(graph, terms, values, cls, partial(call.implementation.over, operands))
        if not off <= TOLERANCE:
            yield Disagreement(term, terms[cls], off, (), call.implementation.name)


def by(graph: Graph, cls: int) -> tuple[str, ...]:
    return tuple(sorted(law for at, law in graph.facts["made_by"] if at == cls))


def count_nodes(term: Operator | str) -> int:
    """Nodes of a term, none of a fact."""
    return 0 if isinstance(term, str) else sum(1 for _ in term.walk())


def describe_term(term: Operator | str) -> str:
    """A term as text, unless that would be long: shared parts are written each time."""
    if isinstance(term, str) or count_nodes(term) < 60:
        return brief(term)
    return f"a {term.kind} of {count_nodes(term)} parts"


def width(template: Template) -> int:
    """Columns of the border, where there is one."""
    shapes = [template.values[e.attributes[2]] for e in template.entries if e.kind == "symbol"]
    return int(shapes[0].cols) if shapes else 1


def batch(template: Template, rng: np.random.Generator, lengths: Sequence[int] = ROWS) -> Batch:
    """A ragged batch whose ids are within the tables that the template reads."""
    limits: dict[str, int] = {}
    for field, limit in ((template.values[at] for at in e.attributes) for e in template.entries if e.kind == "given"):
        limits[field] = min(limit, limits.get(field, limit))
    placed = [len(template.values[e.attributes[0]].array) for e in template.entries if e.kind == "rotate"]
    placed += [each.limit for each in template.values.values() if isinstance(each, Pattern) and each.limit is not None]
    lengths = [min(length, *placed, limits.get("positions", length)) for length in lengths]
    return Batch([rng.integers(0, limits.get("tokens", 1), length) for length in lengths],
                 [rng.integers(0, limits.get("kinds", 1), length) for length in lengths],
                 draw_relations(template, rng, lengths),
                 draw_inputs(template, rng, lengths))


def draw_inputs(template: Template, rng: np.random.Generator, lengths: Sequence[int]) -> dict[str, NDArray[np.float64]]:
    """The matrices of the inputs that a template names, drawn."""
    return {port.name: rng.normal(size=(len(lengths) if port.space == "S" else sum(lengths),
                                        *([port.heads] if port.heads > 1 else []),
                                        port.columns)) for port in template.values.values() if isinstance(port, Port)}


def draw_relations(template: Template, rng: np.random.Generator,
                   lengths: Sequence[int]) -> dict[str, NDArray[np.float64]]:
    """The relations that a template names and not every batch gives, drawn: one entry a row, more where none is picked
    by, and in every place where a monoid keeps several: fewer leave it infinities, of which no sum is anything. A space
    that has no size of its own has as many rows as there are tokens."""
    share = 1.0 if any(map(keeps_several, template.values.values())) else 0.3
    picks = {template.values[e.attributes[0]] for e in template.entries if e.kind == "pick"}

    def drawn(each: Relation) -> NDArray[np.float64]:
        rows, cols = (len(lengths) if space == "S" else sum(lengths) for space in (each.rows, each.cols))
        found = np.eye(cols)[rng.integers(0, cols, rows)]
        return found if each in picks else found + rng.normal(size=found.shape) * (rng.random(found.shape) < share)
    spoken = {value.relation if isinstance(value, Pattern) else value for value in template.values.values()}
    named = sorted((each for each in spoken if isinstance(each, Relation) and each.name not in GIVEN), key=str)
    return {each.name: drawn(each) for each in named}


def keeps_several(value: object) -> bool:
    """Whether this is a monoid to which a single entry is infinite beside that entry, as the three largest are."""
    if not (isinstance(value, type) and issubclass(value, Monoid)): return False
    score, factor, index = np.array([1.0, 1.0, 0.0])        # of numpy, which divides by 0 without an error
    with np.errstate(all="ignore"): lifted = value.lift(score, factor, *[index] * value.indexed)
    return not np.isfinite(np.asarray(lifted, float)).all()
