"""Which kernels compute a class of a frozen graph, where costs and shapes live: patterns of implementations, with the
facts, sizes and rows that their variables ask for."""
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

UNKNOWN = 1 << 60                                           # numbers of a row that nobody knows
C = space("C")                                              # rows of caches
SPACES: dict[object, object] = {str(each): each for each in (T, S, C)}


class KernelMatches:
    """Patterns of implementations against one graph. `heads` tells how many heads the values of a class have."""

    def __init__(self, graph: Graph, terms: dict[int, Operator], values: Mapping[str, Any]) -> None:
        self.graph, self.values = graph, values
        self.kinds = {node.kind for node in graph.nodes}
        self.members: dict[tuple[int, str], list[tuple[tuple[int, ...], tuple[str, ...]]]] = defaultdict(list)
        for cls, nodes in graph.members.items():
            for node in nodes:
                self.members[cls, node.kind] += [(each, node.attributes) for each in orders(node.kind, node.children)]
        self.held: dict[int, set[str]] = defaultdict(set)    # the kinds of a class's members
        for cls, kind in self.members: self.held[cls].add(kind)
        self.matches = Matches(lambda cls, kind: self.members.get((cls, kind), ()),
                               lambda want, have: self.values[have] == want, self._fits, attribute_variable)
        self.heads = {cls: 1 if term.out.heads is H else term.out.heads for cls, term in terms.items()}
        self.rows = {cls: term.out.rows for cls, term in terms.items()}
        self.columns = {cls: (term.into.cols, term.out.cols) for cls, term in terms.items()}
        self.sized = {cls for cls, term in terms.items()
                      if all(isinstance(s, int) for s in (term.into.cols, term.out.cols))}
        self.square = {cls for cls, term in terms.items() if not isinstance(term.out.cols, int)}
        self.distinct: dict[tuple[Operator, int], Sequence[Binding]] = {}
        self.sorts: dict[Operator, Sort] = {}
        self.declared = set[Operator]()
        self.counted: dict[int, int] = {}                   # numbers of a row that are not 0, by class

    @cached_property
    def picked(self) -> dict[int, str]:
        """The classes that are the first or the last rows of sequences, and which of them."""
        found: dict[int, set[str]] = defaultdict(set)
        for node in self.graph.nodes:
            if node.kind == "compose":
                relations = (self.values[name] for _, (name,) in self.members.get((node.children[1], "pick"), ()))
                found[node.cls].update(each.name for each in relations if each.picked)
        return {cls: names.pop() for cls, names in found.items() if len(names) == 1}

    @cached_property
    def displaced(self) -> set[int]:
        """The classes whose rows are tokens in another order than the batch's: what row i is, is no longer token i."""
        picks = {at for (at, kind), members in self.members.items() if kind == "pick" for _, (name,) in members
                 if self.values[name].custom}
        found, more = set[int](), {node.cls for node in self.graph.nodes if node.kind == "compose"
                                   and node.children[1] in picks}
        while more - found:                                 # and whatever is made of them
            found |= more
            more = {node.cls for node in self.graph.nodes if not found.isdisjoint(node.children)
                    and self.rows.get(node.cls) is T}
        return found

    def kept(self, cls: int) -> int:
        """How many numbers of a row are not 0, at most, of all heads together: as many as `keep_top` keeps, where
        nothing behind it makes a 0 another number."""
        if cls not in self.counted:
            self.counted[cls] = whole = self.numbers(cls)   # what a member that comes back here says, too
            self.counted[cls] = min((self._kept_by(node, whole) for node in self.graph.members.get(cls, ())),
                                    default=whole)
        return self.counted[cls]

    def _kept_by(self, node: ENode, whole: int) -> int:
        """How many numbers a member of a class leaves."""
        if node.kind == "keep_top": return min(whole, int(self.values[node.attributes[0]]) * int(self.heads[node.cls]))
        if node.kind == "mul":
            return min((self.kept(each) for each in node.children if self.numbers(each) == whole), default=whole)
        if node.kind == "compose" and self.keeps_zeros(node.children[1]): return min(whole, self.kept(node.children[0]))
        return whole

    def keeps_zeros(self, cls: int) -> bool:
        """Whether an operator leaves columns where they are, side by side or in heads, and zeros what they are."""
        facts = self.graph.facts
        return (cls in facts["entrywise"] and cls in facts["maps_zero_to_zero"]) \
            or any((cls, kind) in self.members for kind in ("heads", "join"))

    def numbers(self, cls: int) -> int:
        """Numbers in a row of a class, of all heads together."""
        columns = self.columns[cls][1] if cls in self.columns else None
        return int(self.heads[cls]) * columns if isinstance(columns, int) else UNKNOWN

    def find(self, pattern: Operator, cls: int, variables: dict[str, Sort]) -> Iterator[Binding]:
        """Each substitution, none twice. Raises TypeError where one symbol is given two sorts."""
        for found in self._ways(pattern, cls, variables):
            bound = {name: found[name] for name in variables}
            if self._agree(bound, variables): yield bound

    def able(self, patterns: Sequence[Implementation]) -> list[Implementation]:
        """The patterns all of whose kinds of nodes the graph has."""
        return [each for each in patterns if each.kinds <= self.kinds]

    def select_rooted(self, cls: int, implementations: Sequence[Implementation]) -> Iterator[Implementation]:
        """Implementations whose pattern begins with a kind that the class has a member of; most begin with none."""
        held = self.held.get(cls, ())
        return (each for each in implementations if each.root in held or each.root == "symbol")

    def wholes(self, cls: int, implementations: Sequence[Implementation]) -> Iterator[tuple[Implementation, Binding]]:
        """Each implementation that a class holds as a whole, with its substitutions."""
        return ((each, found) for each in self.select_rooted(cls, implementations)
                for found in self.find(each.pattern, cls, each.variables))

    def chains(self, cls: int, heads: Sequence[Implementation],
               stages: Sequence[Implementation]) -> Iterator[tuple[Implementation, Binding]]:
        """Each chain of stages behind a head that a class holds, with its substitution, from the last stage back."""
        for after, first, operands in self._epilogues(cls, stages):
            for head in self.select_rooted(first, heads):
                starts = self._ways(head.pattern, first, head.variables)
                if starts and (made := chain_stages(head, *after)) is not None:
                    for start in starts:
                        bound = {name: (start if name in start else operands)[name] for name in made.variables}
                        if self._agree(bound, made.variables): yield made, bound

    def _epilogues(self, cls: int, stages: Sequence[Implementation],
                   after: tuple[Implementation, ...] = (),
                   passed: tuple[int, ...] = ()) -> Iterator[tuple[tuple[Implementation, ...], int, Binding]]:
        """Stages that lead from a class to this one, the class, and their operands, where `after` come behind and lead
        to the classes `passed`: to one of those no stage leads back, as it would do nothing."""
        yield after, cls, {}
        for stage in self.select_rooted(cls, stages):
            for found in self._ways(stage.pattern, cls, stage.variables):
                if not all(precedes(stage, other) for other in after): break
                if found["rows"] in (cls, *passed): continue
                for chained, first, operands in self._epilogues(found["rows"], stages, (stage, *after), (cls, *passed)):
                    yield chained, first, operands | found

    def _ways(self, pattern: Operator, cls: int, variables: dict[str, Sort]) -> Sequence[Binding]:
        """Each substitution once, whatever its sizes."""
        if (found := self.distinct.get((pattern, cls))) is None:
            if pattern not in self.declared:
                self.declared.add(pattern)
                self._declare(variables)
            ways = self.matches.find(pattern, cls)
            found = [*{tuple(way[name] for name in variables): way for way in ways}.values()] if ways else ()
            self.distinct[pattern, cls] = found
        return found

    def _agree(self, bound: Binding, variables: dict[str, Sort]) -> bool:
        """Sizes of one name are equal, and patterns have the flags that are asked for."""
        sizes: dict[object, object] = SPACES.copy()
        for name, sort in variables.items():
            if sort.name in ("where", "relation") and not all(getattr(self.values[bound[name]], str(flag))
                                                              for flag in sort.sizes):
                return False
            for symbol, size in self._sizes(bound[name], sort):
                if sizes.setdefault(symbol, size) != size: return False
        return True

    def _sizes(self, cls: int, sort: Sort) -> Iterator[tuple[object, object]]:
        """The sizes that a class gives to the names in its sort; what spreads gives none. Rows are sizes too."""
        if sort.name in ("value", "scores", "column"):
            yield sort.space or "rows", self.rows[cls]
        if sort.space == str(S): yield "picked", self.picked[cls]
        if of_heads(sort) and not (sort.spread and self.heads[cls] == 1):
            yield sort.sizes[0], self.heads[cls]
        if sort.name in ("value", "constant", "matrix") and sort.sizes:
            rows, columns = self.columns.get(cls, (None, None))
            if isinstance(columns, int) and (sort.name != "constant" or columns != 1):
                yield sort.sizes[-1], columns
            if sort.name == "matrix":
                yield sort.sizes[-2], rows

    def _declare(self, variables: dict[str, Sort]) -> None:
        """Symbols have the sorts of these variables."""
        for name, sort in variables.items():
            symbol = stand_in(name, sort)
            if isinstance(symbol, Operator) and self.sorts.setdefault(symbol, sort) != sort:
                raise TypeError(f"symbol {name} is a {self.sorts[symbol]} of one pattern and a {sort} of another")

    def _fits(self, symbol: Operator, cls: int) -> bool:
        """The facts of the guard, the rows and columns of the sort, and one head or many as the sizes say."""
        sort, facts = self.sorts[symbol], self.graph.facts
        if any(cls not in facts[fact] for fact in sort.facts) or cls not in self.heads: return False
        if (sort.space == str(S) and cls not in self.picked) or (sort.space == str(T) and cls in self.displaced):
            return False
        match sort.name:
            case "scalar" | "column" | "varying": return True
            case "scores": return cls in self.square        # a column for each row
            case "value": return self._is_value(cls, sort) and (of_heads(sort) or self.heads[cls] == 1)
            case "operator": return not sort.sizes or isinstance(self.columns[cls][1], int)     # as many as another has
            case "rotation": return (cls, "rotate") in self.members
            case "distances": return self._is_table(cls, sort)
            case "entrywise": return any((cls, kind) in self.members for kind in COMPILED)
            case "matrix" if cls not in self.sized or cls in facts["entrywise"]:
                return False                                # centring and diagonals are passes, not kept as matrices
        return of_heads(sort) == (self.heads[cls] != 1)     # one head is no stack

    def _is_table(self, cls: int, sort: Sort) -> bool:
        """Whether it is numbers by distance: of all tokens, or of those that were picked of sequences."""
        if sort.space != str(S): return (cls, "by_distance") in self.members
        return any((first, "by_distance") in self.members for (first, *_), _ in self.members.get((cls, "compose"), ()))

    def _is_value(self, cls: int, sort: Sort) -> bool:
        """Whether kernels compute it: rows of a space, those of caches for their own kernels, with so many columns.
        What is given is for kernels that ask for it."""
        if "given" not in sort.facts and (cls in self.graph.fixed or cls in self.graph.facts["given"]): return False
        rows = self.rows[cls]
        return cls not in self.square and isinstance(rows, Space) and (rows is C) == (sort.space == str(C))


def of_heads(sort: Sort) -> bool:
    """Whether it has a matrix, a row or a value for each of the same heads."""
    axes = {"matrix": 3, "value": 2, "constant": 2}
    return sort.name in ("scores", "distances") or len(sort.sizes) == axes.get(sort.name)


def attribute_variable(want: object) -> str:
    """The symbol h stands for the variable `heads`; monoids, patterns and other numbers carry their own name."""
    return "heads" if want == h else str(want)


def root_kind(match: tuple[Implementation, Binding]) -> str:
    """The kind of node that an implementation is matched with: the order in which equally cheap ones are preferred."""
    return match[0].root


def leaf(data: Data) -> Data:
    """An array as it came: where it is another one turned, that one."""
    return data.base or data


def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Tell whether one is at least as good as another in time and bytes, and better in one of them."""
    return one != other and one[0] <= other[0] and one[1] <= other[1]
