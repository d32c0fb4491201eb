"""A small matcher over a frozen graph, where costs and shapes live: all ways in which a class holds a pattern."""
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from formats.core.activation import COMPILED
from opmatrix.algebra.shapes import H, S, Space, T, space
from opmatrix.algebra.term import Operator
from rewrites.graph.egraph import Graph, Node
from rewrites.law import Name, Sort, is_variable
from rewrites.laws.epilogues import chain, precedes
from rewrites.laws.kernel_law import Implementation

Found = dict[str, Any]                                      # variable -> class, or name of an attribute
COMMUTES = ("add", "mul")
C = space("C")                                              # rows of caches


class Matcher:
    """Patterns against one graph, from the leaves up: patterns that share a part match it once in each class. `heads`
    tells how many heads the values of a class have."""

    def __init__(self, graph: Graph, terms: dict[int, Operator], values: dict[str, Any]) -> None:
        self.graph, self.values = graph, values
        self.kinds = {node.kind for node in graph.nodes}
        self.members: dict[tuple[int, str], list[Node]] = defaultdict(list)
        for cls, nodes in graph.members.items():
            for node in nodes:
                self.members[cls, node.kind].append(node)
        self.heads = {cls: 1 if term.out.heads is H else term.out.heads for cls, term in terms.items()}
        self.rows = {cls: term.out.rows for cls, term in terms.items()}
        self.columns = {cls: (term.into.cols, term.out.cols) for cls, term in terms.items()}
        self.sized = {cls for cls, term in terms.items()
                      if all(isinstance(s, int) for s in (term.into.cols, term.out.cols))}
        self.square = {cls for cls, term in terms.items() if not isinstance(term.out.cols, int)}
        self.known: dict[tuple[Operator, int], Sequence[Found]] = {}
        self.distinct: dict[tuple[Operator, int], Sequence[Found]] = {}
        self.sorts: dict[Operator, Sort] = {}

    @cached_property
    def picked(self) -> dict[int, str]:
        """The classes that are the first or the last rows of sequences, and which of them."""
        found: dict[int, set[str]] = defaultdict(set)
        for node in self.graph.nodes:
            if node.kind == "compose":
                relations = (self.values[each.attributes[0]] for each in self.members[node.children[1], "pick"])
                found[node.cls].update(each.name for each in relations if each.picked)
        return {cls: names.pop() for cls, names in found.items() if len(names) == 1}

    @cached_property
    def displaced(self) -> set[int]:
        """The classes whose rows are tokens in another order than the batch's: what row i is, is no longer token i."""
        picks = {at for at, kind in self.members if kind == "pick" for node in self.members[at, kind]
                 if self.values[node.attributes[0]].custom}
        found, more = set[int](), {node.cls for node in self.graph.nodes if node.kind == "compose"
                                   and node.children[1] in picks}
        while more - found:                                 # and whatever is made of them
            found |= more
            more = {node.cls for node in self.graph.nodes if not found.isdisjoint(node.children)
                    and self.rows.get(node.cls) is T}
        return found

    def find(self, pattern: Operator, cls: int, variables: dict[str, Sort]) -> Iterator[Found]:
        """Each substitution, none twice. Raises TypeError where one symbol is given two sorts."""
        for found in self._ways(pattern, cls, variables):
            bound = {name: found[name] for name in variables}
            if self._agree(bound, variables): yield bound

    def able(self, patterns: Sequence[Implementation]) -> list[Implementation]:
        """Those whose kinds of nodes the graph has."""
        return [each for each in patterns if each.kinds <= self.kinds]

    def wholes(self, cls: int, implementations: Sequence[Implementation]) -> Iterator[tuple[Implementation, Found]]:
        """Each of these that a class holds as a whole, with its substitutions."""
        return ((each, found) for each in implementations for found in self.find(each.pattern, cls, each.variables))

    def chains(self, cls: int, heads: Sequence[Implementation],
               stages: Sequence[Implementation]) -> Iterator[tuple[Implementation, Found]]:
        """Each chain of stages behind a head that a class holds, with its substitution, from the last stage back."""
        for after, first, operands in self._epilogues(cls, stages):
            for head in heads:
                starts = self._ways(head.pattern, first, head.variables)
                if starts and (made := chain(head, *after)) is not None:
                    for start in starts:
                        bound = {name: (start if name in start else operands)[name] for name in made.variables}
                        if self._agree(bound, made.variables): yield made, bound

    def _epilogues(self, cls: int, stages: Sequence[Implementation],
                   after: tuple[Implementation, ...] = ()) -> Iterator[tuple[tuple[Implementation, ...], int, Found]]:
        """Stages that lead from a class to this one, the class, and their operands, where `after` come behind."""
        yield after, cls, {}
        for stage in stages:
            for found in self._ways(stage.pattern, cls, stage.variables):
                if not all(precedes(stage, other) for other in after): break
                for chained, first, operands in self._epilogues(found["rows"], stages, (stage, *after)):
                    yield chained, first, operands | found

    def _ways(self, pattern: Operator, cls: int, variables: dict[str, Sort]) -> Sequence[Found]:
        """Each substitution once, whatever its sizes."""
        if (pattern, cls) not in self.distinct:
            ways = {tuple(way[name] for name in variables): way for way in self._matches(pattern, cls, variables)}
            self.distinct[pattern, cls] = [*ways.values()]
        return self.distinct[pattern, cls]

    def _agree(self, bound: Found, variables: dict[str, Sort]) -> bool:
        """Sizes of one name are equal, and patterns have the flags that are asked for."""
        sizes: dict[Any, Any] = {str(space): space for space in (T, S, C)}
        for name, sort in variables.items():
            if sort.name in ("where",
                             "relation") and not all(getattr(self.values[bound[name]], flag) for flag in sort.sizes):
                return False
            if any(sizes.setdefault(symbol, size) != size for symbol, size in self._sizes(bound[name], sort)):
                return False
        return True

    def _sizes(self, cls: Any, sort: Sort) -> Iterator[tuple[Any, int]]:
        """The sizes that a class gives to the names in its sort; what spreads gives none. Rows are sizes too."""
        if sort.name in ("value", "scores", "column"):
            yield sort.space or "rows", self.rows[cls]
        if of_heads(sort) and not (sort.spread and self.heads[cls] == 1):
            yield sort.sizes[0], self.heads[cls]
        if sort.name in ("value", "constant", "matrix") and sort.sizes:
            rows, columns = self.columns.get(cls, (None, None))
            if isinstance(columns, int) and (sort.name != "constant" or columns != 1):
                yield sort.sizes[-1], columns
            if sort.name == "matrix":
                yield sort.sizes[-2], rows

    def _matches(self, pattern: Operator, cls: int, variables: dict[str, Sort]) -> Sequence[Found]:
        kind = pattern.kind.name
        if kind != "symbol" and (cls, kind) not in self.members:
            return ()
        if (pattern, cls) not in self.known:
            match = self._symbol if kind == "symbol" else self._members
            self.known[pattern, cls] = match(pattern, cls, variables)
        return self.known[pattern, cls]

    def _symbol(self, pattern: Operator, cls: int, variables: dict[str, Sort]) -> Sequence[Found]:
        name = str(pattern.args[0])
        if self.sorts.setdefault(pattern, variables[name]) != variables[name]:
            raise TypeError(f"symbol {name} is a {self.sorts[pattern]} of one pattern and a {variables[name]} of "
                            "another")
        return [{name: cls}] if self._fits(cls, variables[name]) else ()

    def _members(self, pattern: Operator, cls: int, variables: dict[str, Sort]) -> Sequence[Found]:
        parts, found = pattern.children, list[Found]()
        for node in self.members[cls, pattern.kind.name]:
            if (start := self._attributes(pattern.attributes, node.attributes)) is not None:
                for children in orders(node):
                    ways: Sequence[Found] = [start]
                    for part, child in zip(parts, children, strict=True):
                        theirs = self._matches(part, child, variables)
                        if not (ways := join_matches(ways, theirs) if theirs else ()): break
                    found += ways
        return found

    def _attributes(self, wanted: tuple[Any, ...], own: tuple[str, ...]) -> Found | None:
        found: Found = {}
        for want, have in zip(wanted, own, strict=True):
            if is_variable(want):
                if found.setdefault(attribute_variable(want), have) != have:
                    return None
            elif self.values[have] != want:
                return None
        return found

    def _fits(self, cls: int, sort: Sort) -> bool:
        """The facts of the guard, and one head or many as the sizes say."""
        facts, name = self.graph.facts, sort.name
        if any(cls not in facts[fact] for fact in sort.facts) or cls not in self.heads:
            return False
        if name == "matrix" and (cls not in self.sized or cls in facts["entrywise"]):
            return False                                    # centring and diagonals are passes, not kept as matrices
        if name == "value" and "given" not in sort.facts and (cls in self.graph.fixed or cls in facts["given"]):
            return False
        if name in ("value", "scores") and (name == "scores") != (cls in self.square):
            return False                                    # scores have a column for each row, values so many
        if name == "value" and not isinstance(self.rows[cls], Space):
            return False                                    # kernels compute rows of a space
        if name == "value" and (self.rows[cls] is C) != (sort.space == str(C)):
            return False                                    # caches are for their own kernels
        if (sort.space == str(S) and cls not in self.picked) or (sort.space == str(T) and cls in self.displaced):
            return False
        if name == "entrywise":
            return any((cls, kind) in self.members for kind in COMPILED)
        if name == "rotation":
            return (cls, "rotate") in self.members
        if name == "operator":
            return not sort.sizes or isinstance(self.columns[cls][1], int)      # as many columns as another has, by it
        if name in ("scalar", "column", "varying"):
            return True
        if of_heads(sort):                                  # one head is as many as a value may have, not a stack
            return name in ("value", "scores") or self.heads[cls] != 1
        return self.heads[cls] == 1


def join_matches(ours: Sequence[Found], theirs: Sequence[Found]) -> list[Found]:
    """Every two that agree on the variables they share, as one."""
    return [one | other for one in ours for other in theirs
            if not one or all(one[name] == other[name] for name in one.keys() & other.keys())]


def of_heads(sort: Sort) -> bool:
    """Whether it has a matrix, a row or a value for each of the same heads."""
    return sort.name == "scores" or len(sort.sizes) == {"matrix": 3, "value": 2, "constant": 2}.get(sort.name)


def orders(node: Node) -> list[tuple[int, ...]]:
    """The children, in both orders where that makes no difference to the value and one to the match."""
    turned = node.kind in COMMUTES and node.children[0] != node.children[1]
    return [node.children, node.children[::-1]] if turned else [node.children]


def attribute_variable(want: Any) -> str:
    """A size symbol stands for the variable `heads`; monoids and patterns carry their own name."""
    return str(want) if isinstance(want, Name) else "heads"
