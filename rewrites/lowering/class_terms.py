"""The terms of a class, one for each way to read its members over the terms of the classes below. Values that kernels
compute below, and values that do not depend on the input, are read as the standing term of their class."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, product
from math import prod

from opmatrix.algebra.shapes import Space
from opmatrix.algebra.term import Kind, Operator
from rewrites.egraph.egraph import ENode, Graph, fitting
from rewrites.laws import kinds

MOST_TERMS = 10  # most terms of a class: the ones with fewest numbers
MOST_WAYS = 64  # most combinations of child terms for a member
MOST_MADE = 2000  # most combinations of one graph that are tried
MAX_DEPTH_OF_TERMS = 12  # most passes over the classes, until no term is new
REWRITING = frozenset(
    kind
    for kind in vars(kinds).values()  # kinds that no program names
    if isinstance(kind, Kind) and kind.body.__module__ == kinds.__name__
)


@dataclass(frozen=True, eq=False)
class ClassTerm:
    """An operator of a class: a member over terms of its child classes, or, without a member, the standing term of the
    class."""

    cls: int
    operator: Operator
    member: ENode | None = None
    parts: tuple["ClassTerm", ...] = ()
    size: tuple[float, int] = (0.0, 0)  # numbers that its nodes compute, and nodes, above values

    @property
    def through(self) -> Iterator[int]:
        """The classes that the term is made of, down to classes that a standing term represents."""
        yield self.cls
        for part in self.parts:
            yield from part.through


@dataclass
class ClassTerms:
    """Terms by class. `standing` has one term of each class, its representative. `values` are the attributes of
    members. `is_open` is true of a class of which more than the standing term is read. `is_value` is true of a class
    that a step may compute. `rows` is the number of rows of each space. `left_out` are the classes with more terms than
    are read."""

    graph: Graph
    standing: Mapping[int, Operator]
    values: dict[str, object]
    is_open: Callable[[int], bool]
    is_value: Callable[[int], bool]
    rows: Mapping[str, float]
    known: dict[int, Sequence[ClassTerm]] = field(default_factory=dict)
    left_out: set[int] = field(default_factory=set)
    made: dict[Hashable, ClassTerm | None] = field(default_factory=dict)

    def read(self, targets: Iterable[int]) -> None:
        """Find the terms of these classes, and of the open ones below them."""
        order = [*self.order_below(targets)]
        for cls in order:
            self.known.setdefault(cls, self.standing_terms(cls))
        changed = set(order)
        for _ in range(MAX_DEPTH_OF_TERMS):
            before, changed = changed, set()
            for cls in order:
                below = {cls, *self.children(cls)}
                if below.isdisjoint(before) and below.isdisjoint(changed):
                    continue
                terms = self.combine(cls)
                if [term.operator for term in terms] != [term.operator for term in self.known[cls]]:
                    self.known[cls] = terms
                    changed.add(cls)
            if not changed:
                return
        self.left_out |= changed

    def order_below(self, targets: Iterable[int]) -> Iterator[int]:
        """Yield these classes and the open ones below them, each after the classes that it is made of where the graph
        has no cycle."""
        seen = set[int]()
        todo = [(cls, False) for cls in targets]
        while todo:
            cls, done = todo.pop()
            if done:
                yield cls
            elif cls not in seen:
                seen.add(cls)
                todo.append((cls, True))
                todo += [(child, False) for child in self.children(cls) if self.is_open(child)]

    def children(self, cls: int) -> set[int]:
        """Return the child classes of all members of a class."""
        return {child for member in self.graph.members.get(cls, ()) for child in member.children}

    def standing_terms(self, cls: int) -> Sequence[ClassTerm]:
        """Return the standing term of a class in a list; an empty list if it has none."""
        return [ClassTerm(cls, self.standing[cls])] if cls in self.standing else []

    def combine(self, cls: int) -> Sequence[ClassTerm]:
        """Return the terms of a class over the known terms of its members' child classes."""
        terms = {term.operator: term for term in self.standing_terms(cls)}
        for member in self.graph.members.get(cls, ()):
            below = [self.terms_below(child) for child in member.children]
            ways = [*islice(product(*below), MOST_WAYS + 1)]
            if len(ways) > MOST_WAYS:
                self.left_out.add(cls)
            for parts in ways[:MOST_WAYS]:
                term = self.make_once(member, parts)
                if term is not None:
                    terms.setdefault(term.operator, term)
        ranked = sorted(terms.values(), key=lambda each: (each.member is not None, each.size))
        if len(ranked) > MOST_TERMS:
            self.left_out.add(cls)
        return ranked[:MOST_TERMS]

    def terms_below(self, cls: int) -> Sequence[ClassTerm]:
        """Return the terms of a class that terms of other classes may be made of."""
        return self.known.get(cls, ()) if self.is_open(cls) else self.standing_terms(cls)

    def make_once(self, member: ENode, parts: tuple[ClassTerm, ...]) -> ClassTerm | None:
        """Return a member over terms, from the cache where it is there; None beyond `MOST_MADE`."""
        key = member, tuple(part.operator for part in parts)
        if key not in self.made:
            if len(self.made) >= MOST_MADE:
                self.left_out.add(member.cls)
                return None
            self.made[key] = self.make(member, parts)
        return self.made[key]

    def make(self, member: ENode, parts: tuple[ClassTerm, ...]) -> ClassTerm | None:
        """Return a member over terms; None where the terms do not fit, where they contain its own class, and where no
        program can express the result."""
        cls = member.cls
        if any(cls in part.through for part in parts):
            return None
        operator = fitting(member, {part.cls: part.operator for part in parts}, self.values)
        if operator is None or cls not in self.standing or operator.out != self.standing[cls].out:
            return None
        nodes = [*operator.walk()]
        if self.standing[cls] in nodes[:-1] or not REWRITING.isdisjoint(node.kind for node in nodes):
            return None
        counted = self.walk_open(operator)
        return ClassTerm(cls, operator, member, parts, (sum(map(self.count_numbers, counted)), len(counted)))

    @cached_property
    def closed(self) -> set[Operator]:
        """The standing terms of values, and of classes that are read no further."""
        return {term for cls, term in self.standing.items() if self.is_value(cls) or not self.is_open(cls)}

    def walk_open(self, operator: Operator) -> set[Operator]:
        """Return the nodes of a term, down to terms that are read no further."""
        seen, todo = {operator}, [*operator.children]
        while todo:
            node = todo.pop()
            if node in seen or node in self.closed:
                continue
            seen.add(node)
            todo += node.children
        return seen

    def count_numbers(self, node: Operator) -> float:
        """Return the number of numbers that a node computes."""
        return prod(
            self.rows.get(str(size), 1.0) if isinstance(size, Space) else size
            for size in node.out
            if isinstance(size, Space | int)
        )
