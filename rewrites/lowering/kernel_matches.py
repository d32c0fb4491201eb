"""Matches of kernels with the classes of a frozen graph: patterns of implementations, and the facts, sizes and rows
that their variables require. Costs and shapes are per class."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from formats.core.activation import COMPILED
from opmatrix.algebra.data import Data
from opmatrix.algebra.shapes import H, S, Space, T, space
from opmatrix.algebra.term import Operator
from rewrites.egraph.egraph import ENode, Graph
from rewrites.egraph.match import Binding, Matches, orders
from rewrites.laws.epilogues import chain_stages, precedes
from rewrites.laws.kernel_law import Implementation
from rewrites.laws.law import Sort, h, stand_in

UNKNOWN = 1 << 60  # numbers in a row whose columns are no fixed number
C = space("C")  # rows of caches
SPACES: dict[object, object] = {str(rows): rows for rows in (T, S, C)}


class KernelMatches:
    """Patterns of implementations against one graph. `heads` is the number of heads of the values of each class."""

    def __init__(self, graph: Graph, terms: dict[int, Operator], values: Mapping[str, Any]) -> None:
        self.graph, self.values = graph, values
        self.kinds = {node.kind for node in graph.nodes}
        self.members: dict[tuple[int, str], list[tuple[tuple[int, ...], tuple[str, ...]]]] = defaultdict(list)
        for cls, nodes in graph.members.items():
            for node in nodes:
                self.members[cls, node.kind] += [
                    (children, node.attributes) for children in orders(node.kind, node.children)
                ]
        self.held: dict[int, set[str]] = defaultdict(set)  # the kinds of a class's members
        for cls, kind in self.members:
            self.held[cls].add(kind)
        self.matches = Matches(
            lambda cls, kind: self.members.get((cls, kind), ()),
            lambda want, have: self.values[have] == want,
            self._fits,
            attribute_variable,
        )
        self.heads = {cls: 1 if term.out.heads is H else term.out.heads for cls, term in terms.items()}
        self.rows = {cls: term.out.rows for cls, term in terms.items()}
        self.columns = {cls: (term.into.cols, term.out.cols) for cls, term in terms.items()}
        self.sized = {
            cls for cls, term in terms.items() if all(isinstance(s, int) for s in (term.into.cols, term.out.cols))
        }
        self.square = {cls for cls, term in terms.items() if not isinstance(term.out.cols, int)}
        self.distinct: dict[tuple[Operator, int], Sequence[Binding]] = {}
        self.sorts: dict[Operator, Sort] = {}
        self.declared = set[Operator]()
        self.counted: dict[int, int] = {}  # numbers of a row that are not 0, by class

    @cached_property
    def picked(self) -> dict[int, str]:
        """The classes that are the first or the last rows of sequences, each with the name of its relation."""
        names: dict[int, set[str]] = defaultdict(set)
        for node in self.graph.nodes:
            if node.kind == "compose":
                relations = (self.values[name] for _, (name,) in self.members.get((node.children[1], "pick"), ()))
                names[node.cls].update(relation.name for relation in relations if relation.picked)
        return {cls: names.pop() for cls, names in names.items() if len(names) == 1}

    @cached_property
    def displaced(self) -> set[int]:
        """The classes whose rows are tokens in another order than the batch's: row i is no longer token i."""
        picks = {
            at
            for (at, kind), members in self.members.items()
            if kind == "pick"
            for _, (name,) in members
            if self.values[name].custom
        }
        moved, more = (
            set[int](),
            {node.cls for node in self.graph.nodes if node.kind == "compose" and node.children[1] in picks},
        )
        while more - moved:  # and every class computed from them
            moved |= more
            more = {
                node.cls
                for node in self.graph.nodes
                if not moved.isdisjoint(node.children) and self.rows.get(node.cls) is T
            }
        return moved

    def kept(self, cls: int) -> int:
        """Return an upper bound of the nonzero numbers in a row, all heads together: the count of `keep_top`, where
        every operation behind it maps 0 to 0."""
        if cls not in self.counted:
            self.counted[cls] = whole = self.numbers(cls)  # the bound for a member in a cycle to here, too
            self.counted[cls] = min(
                (self._kept_by(node, whole) for node in self.graph.members.get(cls, ())), default=whole
            )
        return self.counted[cls]

    def _kept_by(self, node: ENode, whole: int) -> int:
        """Return an upper bound of the nonzero numbers that a member of a class leaves in a row."""
        if node.kind == "keep_top":
            return min(whole, int(self.values[node.attributes[0]]) * int(self.heads[node.cls]))
        if node.kind == "mul":
            return min((self.kept(child) for child in node.children if self.numbers(child) == whole), default=whole)
        if node.kind == "compose" and self.keeps_zeros(node.children[1]):
            return min(whole, self.kept(node.children[0]))
        return whole

    def keeps_zeros(self, cls: int) -> bool:
        """True if an operator leaves columns in place, side by side or in heads, and maps 0 to 0."""
        facts = self.graph.facts
        return (cls in facts["entrywise"] and cls in facts["maps_zero_to_zero"]) or any(
            (cls, kind) in self.members for kind in ("heads", "join")
        )

    def numbers(self, cls: int) -> int:
        """Return the numbers in a row of a class, all heads together; `UNKNOWN` where the columns are no fixed
        number."""
        columns = self.columns[cls][1] if cls in self.columns else None
        return int(self.heads[cls]) * columns if isinstance(columns, int) else UNKNOWN

    def find(self, pattern: Operator, cls: int, variables: dict[str, Sort]) -> Iterator[Binding]:
        """Yield each substitution once. Raises TypeError where one symbol is given two sorts."""
        for way in self._ways(pattern, cls, variables):
            bound = {name: way[name] for name in variables}
            if self._agree(bound, variables):
                yield bound

    def able(self, patterns: Sequence[Implementation]) -> list[Implementation]:
        """Return the patterns whose kinds of nodes all occur in the graph."""
        return [pattern for pattern in patterns if pattern.kinds <= self.kinds]

    def select_rooted(self, cls: int, implementations: Sequence[Implementation]) -> Iterator[Implementation]:
        """Yield the implementations whose pattern begins with a kind that the class has a member of."""
        held = self.held.get(cls, ())
        return (
            implementation
            for implementation in implementations
            if implementation.root in held or implementation.root == "symbol"
        )

    def wholes(self, cls: int, implementations: Sequence[Implementation]) -> Iterator[tuple[Implementation, Binding]]:
        """Yield each implementation that matches a class as a whole, with each of its substitutions."""
        return (
            (implementation, match)
            for implementation in self.select_rooted(cls, implementations)
            for match in self.find(implementation.pattern, cls, implementation.variables)
        )

    def chains(
        self, cls: int, heads: Sequence[Implementation], stages: Sequence[Implementation]
    ) -> Iterator[tuple[Implementation, Binding]]:
        """Yield each chain of stages behind a head that matches a class, with its substitution, from the last stage
        back."""
        for after, first, operands in self._epilogues(cls, stages):
            for head in self.select_rooted(first, heads):
                starts = self._ways(head.pattern, first, head.variables)
                if starts and (chain := chain_stages(head, *after)) is not None:
                    for start in starts:
                        bound = {name: (start if name in start else operands)[name] for name in chain.variables}
                        if self._agree(bound, chain.variables):
                            yield chain, bound

    def _epilogues(
        self,
        cls: int,
        stages: Sequence[Implementation],
        after: tuple[Implementation, ...] = (),
        passed: tuple[int, ...] = (),
    ) -> Iterator[tuple[tuple[Implementation, ...], int, Binding]]:
        """Yield the stages that lead from a class to this one, the class, and their operands. `after` are the stages
        behind, which lead to the classes `passed`. A stage back to one of `passed` is left out, as it would change
        nothing."""
        yield after, cls, {}
        for stage in self.select_rooted(cls, stages):
            for way in self._ways(stage.pattern, cls, stage.variables):
                if not all(precedes(stage, other) for other in after):
                    break
                if way["rows"] in (cls, *passed):
                    continue
                for chained, first, operands in self._epilogues(way["rows"], stages, (stage, *after), (cls, *passed)):
                    yield chained, first, operands | way

    def _ways(self, pattern: Operator, cls: int, variables: dict[str, Sort]) -> Sequence[Binding]:
        """Return each substitution once, before sizes are compared."""
        if (distinct := self.distinct.get((pattern, cls))) is None:
            if pattern not in self.declared:
                self.declared.add(pattern)
                self._declare(variables)
            ways = self.matches.find(pattern, cls)
            distinct = [*{tuple(way[name] for name in variables): way for way in ways}.values()] if ways else ()
            self.distinct[pattern, cls] = distinct
        return distinct

    def _agree(self, bound: Binding, variables: dict[str, Sort]) -> bool:
        """True if sizes of one name are equal, and patterns have the flags that their sorts require."""
        sizes: dict[object, object] = SPACES.copy()
        for name, sort in variables.items():
            if sort.name in ("where", "relation") and not all(
                getattr(self.values[bound[name]], str(flag)) for flag in sort.sizes
            ):
                return False
            for symbol, size in self._sizes(bound[name], sort):
                if sizes.setdefault(symbol, size) != size:
                    return False
        return True

    def _sizes(self, cls: int, sort: Sort) -> Iterator[tuple[object, object]]:
        """Yield the sizes, rows among them, that a class gives to the names in its sort. A value that is repeated for
        each head gives no head count."""
        if sort.name in ("value", "scores", "column"):
            yield sort.space or "rows", self.rows[cls]
        if sort.space == str(S):
            yield "picked", self.picked[cls]
        if of_heads(sort) and not (sort.spread and self.heads[cls] == 1):
            yield sort.sizes[0], self.heads[cls]
        if sort.name in ("value", "constant", "matrix") and sort.sizes:
            rows, columns = self.columns.get(cls, (None, None))
            if isinstance(columns, int) and (sort.name != "constant" or columns != 1):
                yield sort.sizes[-1], columns
            if sort.name == "matrix":
                yield sort.sizes[-2], rows

    def _declare(self, variables: dict[str, Sort]) -> None:
        """Record the sorts of the symbols of these variables. Raises TypeError where a symbol has another sort
        already."""
        for name, sort in variables.items():
            symbol = stand_in(name, sort)
            if isinstance(symbol, Operator) and self.sorts.setdefault(symbol, sort) != sort:
                raise TypeError(f"symbol {name} is a {self.sorts[symbol]} of one pattern and a {sort} of another")

    def _fits(self, symbol: Operator, cls: int) -> bool:
        """True if the class has the facts of the guard, the rows and columns of the sort, and one head or many as the
        sizes require."""
        sort = self.sorts[symbol]
        if not self._has_facts(cls, sort) or not self._has_rows(cls, sort):
            return False
        match sort.name:
            case "scalar" | "column" | "varying":
                return True
            case "scores":
                return cls in self.square  # a column for each row
            case "value":
                return self._is_value(cls, sort) and (of_heads(sort) or self.heads[cls] == 1)
            case "operator":
                return not sort.sizes or isinstance(self.columns[cls][1], int)  # equal to another's
            case "rotation":
                return (cls, "rotate") in self.members
            case "relative":
                return (cls, "at_distances") in self.members
            case "distances":
                return self._is_table(cls, sort)
            case "entrywise":
                return any((cls, kind) in self.members for kind in COMPILED)
            case "matrix" if cls not in self.sized or cls in self.graph.facts["entrywise"]:
                return False  # centring and diagonals are passes, not kept as matrices
        return of_heads(sort) == (self.heads[cls] != 1)  # one head is no stack

    def _has_facts(self, cls: int, sort: Sort) -> bool:
        """True if the class has the facts of the sort, and a number of heads."""
        return all(cls in self.graph.facts[fact] for fact in sort.facts) and cls in self.heads

    def _has_rows(self, cls: int, sort: Sort) -> bool:
        """True if the class has rows of the sort's space: picked ones of sequences, or those of all tokens in place."""
        if sort.space == str(S):
            return cls in self.picked
        return sort.space != str(T) or cls not in self.displaced

    def _is_table(self, cls: int, sort: Sort) -> bool:
        """True if the class is a table of numbers by distance: of all tokens, or of picked rows of sequences."""
        if sort.space != str(S):
            return (cls, "by_distance") in self.members
        return any((first, "by_distance") in self.members for (first, *_), _ in self.members.get((cls, "compose"), ()))

    def _is_value(self, cls: int, sort: Sort) -> bool:
        """True if kernels compute the class: rows of a space with a fixed number of columns; rows of caches only for
        kernels of caches. Inputs match only sorts that require the fact `given`."""
        if "given" not in sort.facts and (cls in self.graph.fixed or cls in self.graph.facts["given"]):
            return False
        rows = self.rows[cls]
        return cls not in self.square and isinstance(rows, Space) and (rows is C) == (sort.space == str(C))


def of_heads(sort: Sort) -> bool:
    """True if the sort has a matrix, a row or a value for each of the same heads."""
    axes = {"matrix": 3, "value": 2, "constant": 2}
    return sort.name in ("scores", "distances") or len(sort.sizes) == axes.get(sort.name)


def attribute_variable(want: object) -> str:
    """Return the name of the variable of an attribute: `heads` for the symbol h; monoids, patterns and other numbers
    have their own name."""
    return "heads" if want == h else str(want)


def root_kind(match: tuple[Implementation, Binding]) -> str:
    """Return the kind of node at the root of an implementation's pattern: the order in which equally cheap ones are
    preferred."""
    return match[0].root


def leaf(data: Data) -> Data:
    """Return an array as it came from the file: the base of a transposed one."""
    return data.base or data


def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """True if one is at least as good as another in time and bytes, and better in one of them."""
    return one != other and one[0] <= other[0] and one[1] <= other[1]
