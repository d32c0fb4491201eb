"""The chain of law applications that leads from the import to the extracted program, found by replay: the saturated
graph determines which members of a class one law joins, so a chain is a shortest path from member to member, class by
class from the root down (Flatt et al. 2022, on small proofs, solve the same problem with the graph's own union-find).
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from opmatrix.algebra.term import Operator
from rewrites.egraph.egraph import pattern_variables
from rewrites.egraph.match import Binding, Matches, join_matches, name_attribute
from rewrites.explain.derivations.derivation import Application, Derivation
from rewrites.explain.derivations.trees import Forest, NodeKey, Path, Tree
from rewrites.extraction import Extraction
from rewrites.laws.law import IMPLEMENTATION, Law
from rewrites.laws.spelling import spelled
from rewrites.lowering.lower import Lowering


class Underivable(Exception):
    """No chain of applications was found; the message names the tree."""


class Edge(NamedTuple):
    """One law at one class: the number of its sides, over `bound`, and the members that they are; None if a side is a
    variable."""

    law: Law
    number: int
    bound: Binding
    ends: tuple[NodeKey | None, NodeKey | None]


class Move(NamedTuple):
    """One application inside a tree."""

    path: Path
    law: Law
    backwards: bool
    before: Tree
    after: Tree


@dataclass
class Deriver:
    """Chains between trees of one forest. `preferred` trees fill the variables that one side does not name."""

    forest: Forest
    laws: Sequence[Law]
    preferred: dict[int, Tree]
    known: dict[int, list[Edge]] = field(default_factory=dict)
    moved: dict[tuple[Tree, Tree], list[Move]] = field(default_factory=dict)
    active: set[Hashable] = field(default_factory=set)

    # ---- laws in the graph

    @cached_property
    def matches(self) -> Matches[int]:
        """Matches of patterns among classes; subsumed members are included."""
        return Matches(
            lambda cls, kind: [
                (node.children, node.attributes) for node in self.forest.members.get(cls, ()) if node.kind == kind
            ],
            lambda attribute, name: spelled(attribute) == name,
        )

    def edges(self, cls: int) -> list[Edge]:
        """Return every law instance whose sides are members of a class."""
        if cls not in self.known:
            self.known[cls] = [
                edge
                for law in self.laws
                for index, side in enumerate(law.sides()[0])
                for bound in self.guarded(law, self.completed(law, self.matches.find(side, cls)))
                if (edge := self.edge(law, index, bound, cls)) is not None
            ]
        return self.known[cls]

    def completed(self, law: Law, found: Iterable[Binding]) -> Iterator[Binding]:
        """Yield bindings whose sides can all be in the graph, completed by the variables that only another side names.
        A side whose variables are known has a class, and the equal side is among the members of that class. Variables
        that no class determines are left to guards."""
        for bound in found:
            for pair in zip(*law.sides(), strict=True):
                known, other = sorted(pair, key=lambda side: len(pattern_variables(side) - bound.keys()))
                if pattern_variables(known) <= bound.keys() and not pattern_variables(other) <= bound.keys():
                    if (cls := self.find(known, bound)) is not None:
                        yield from self.completed(law, join_matches([bound], self.matches.find(other, cls)))
                    break
            else:
                yield bound

    def edge(self, law: Law, index: int, bound: Binding, cls: int) -> Edge | None:
        """Return the instance, if all its sides are in the graph."""
        left, right = law.sides()
        pairs = [(self.find(a, bound), self.find(b, bound)) for a, b in zip(left, right, strict=True)]
        if any(a is None or a != b for a, b in pairs) or pairs[index][0] != cls:
            return None
        ends = self.member(left[index], bound), self.member(right[index], bound)
        return Edge(law, index, bound, ends) if ends[0] != ends[1] else None

    def guarded(self, law: Law, found: Iterable[Binding]) -> Iterator[Binding]:
        """Yield bindings that satisfy the guards of the law; a relation may bind variables that one side does not
        name."""
        facts = self.forest.graph.facts
        for bound in found:
            able = [bound]
            for fact, *names in (guard.strip("()").split() for guard in law.guards):
                able = [more for binding in able for more in match_rows(facts.get(fact, set()), names, binding)]
            yield from able

    def find(self, pattern: Operator, bound: Binding) -> int | None:
        """Return the class of a pattern over bound variables; None if there is none."""
        if pattern.kind.name == "symbol":
            return bound.get(str(pattern.args[0]))
        key = self.member(pattern, bound)
        return None if key is None else self.forest.index.get(key)

    def member(self, pattern: Operator, bound: Binding) -> NodeKey | None:
        """Return the member that a pattern over bound variables is; None for a variable, or if the graph has none."""
        children = [self.find(child, bound) for child in pattern.children]
        if pattern.kind.name == "symbol" or any(child is None for child in children):
            return None
        return pattern.kind.name, tuple(c for c in children if c is not None), name_attributes(pattern, bound)

    # ---- from tree to tree

    def convert(self, tree: Tree, goal: Tree) -> list[Move]:
        """Return the moves that turn one tree of a class into another. Raises Underivable."""
        if tree is goal:
            return []
        if (tree, goal) not in self.moved:
            moves, now = self.root(tree, goal.key)
            for at, (child, wanted) in enumerate(zip(now.children, goal.children, strict=True)):
                moves = moves + prefix_moves(self.convert(child, wanted), at)
            self.moved[tree, goal] = moves
        return self.moved[tree, goal]

    def root(self, tree: Tree, goal: NodeKey) -> tuple[list[Move], Tree]:
        """Return the moves that turn the tree's uppermost node into this member, and the resulting tree."""
        if (job := (tree, goal)) in self.active:
            raise Underivable(f"{tree.kind} depends on itself")
        self.active.add(job)
        try:
            moves, banned = list[Move](), set[int]()
            while tree.key != goal:
                edge, backwards = self.first(tree, goal, banned)
                try:
                    more, tree = self.apply(tree, edge, backwards)
                except Underivable:
                    banned.add(id(edge))
                    continue
                if None in edge.ends:
                    banned.add(id(edge))
                moves += more
            return moves, tree
        finally:
            self.active.remove(job)

    def first(self, tree: Tree, goal: NodeKey, banned: set[int]) -> tuple[Edge, bool]:
        """Return the first edge of a shortest path from the tree's member to another."""
        edges = [edge for edge in self.edges(tree.cls) if id(edge) not in banned]
        reached: dict[NodeKey, tuple[Edge, bool] | None] = {tree.key: None}
        todo = deque(reached)
        while todo:
            at = todo.popleft()
            if at == goal and (step := reached[at]) is not None:
                return step
            for edge in edges:
                for backwards in (False, True):
                    start, end = edge.ends[::-1] if backwards else edge.ends
                    if start in (at, None):
                        for key in [end] if end is not None else [node[:3] for node in self.forest.members[tree.cls]]:
                            if key not in reached:
                                reached[key] = reached[at] or (edge, backwards)
                                todo.append(key)
        raise Underivable(f"no law rewrites {tree.kind} into {goal[0]} in class {tree.cls}")

    def apply(self, tree: Tree, edge: Edge, backwards: bool) -> tuple[list[Move], Tree]:
        """Apply one law at the root, after the moves that make the tree an instance of its side."""
        left, right = (side[edge.number] for side in edge.law.sides())
        before, after = (right, left) if backwards else (left, right)
        variables = dict[str, Tree]()
        moves, tree = self.fit(tree, before, edge.bound, variables)
        result = self.over(after, edge.bound, variables)
        return [*moves, Move((), edge.law, backwards, tree, result)], result

    def fit(self, tree: Tree, pattern: Operator, bound: Binding, variables: dict[str, Tree]) -> tuple[list[Move], Tree]:
        """Return the moves that make a tree an instance of a pattern; equal variables become equal trees."""
        if pattern.kind.name == "symbol":
            wanted = variables.setdefault(str(pattern.args[0]), tree)
            return self.convert(tree, wanted), wanted
        goal = self.member(pattern, bound)
        assert goal is not None
        moves, tree = self.root(tree, goal)
        for at, part in enumerate(pattern.children):
            more, child = self.fit(tree.children[at], part, bound, variables)
            moves, tree = moves + prefix_moves(more, at), self.forest.put(tree, (at,), child)
        return moves, tree

    def over(self, pattern: Operator, bound: Binding, variables: dict[str, Tree]) -> Tree:
        """Return a pattern over trees."""
        if pattern.kind.name == "symbol":
            name = str(pattern.args[0])
            return variables.setdefault(name, self.preferred[bound[name]]) if name not in variables else variables[name]
        children = tuple(self.over(child, bound, variables) for child in pattern.children)
        return self.forest.tree(pattern.kind.name, children, name_attributes(pattern, bound))

    # ---- the chain

    def chain(self, start: Tree, goal: Tree) -> Iterator[Application]:
        """Yield the steps from one tree to another, from the root down; equal subtrees in several places change at
        once."""
        now = start
        while (pair := differing(now, goal)) is not None:
            moves, _ = self.root(pair[0], pair[1].key)
            whole, part = now, pair[0]
            for move in moves:
                part = self.forest.put(part, move.path, move.after)
                then = self.fill(whole, goal, pair, part)
                if self.forest.replace(now, move.before, move.after) is then:
                    places: tuple[Path, ...] = ()
                else:
                    places = tuple(path + move.path for path in positions(whole, goal, pair))
                yield Application(move.law.name, move.law.kind, move.backwards, move.before, move.after, places)
                now = then

    def fill(self, tree: Tree, goal: Tree, pair: tuple[Tree, Tree], new: Tree) -> Tree:
        """Return the tree with `new` wherever the tree and the goal show this pair at the same place."""
        known: dict[tuple[Tree, Tree], Tree] = {pair: new}

        def filled(a: Tree, b: Tree) -> Tree:
            """Replace the pair in two trees at once, each pair of subtrees once."""
            if a is b:
                return a
            if (a, b) not in known:
                known[a, b] = self.forest.over(a, tuple(map(filled, a.children, b.children))) if a.key == b.key else a
            return known[a, b]

        return filled(tree, goal)


def match_rows(rows: set[Hashable], names: list[str], bound: Binding) -> Iterator[Binding]:
    """Yield a binding extended by every row of a relation that agrees with it."""
    if all(name in bound for name in names):
        if (bound[names[0]] if len(names) == 1 else tuple(bound[name] for name in names)) in rows:
            yield bound
        return
    for row in rows:
        pairs = dict(zip(names, row if isinstance(row, tuple) else (row,), strict=True))
        if all(bound.get(name, at) == at for name, at in pairs.items()):
            yield bound | pairs


def name_attributes(pattern: Operator, bound: Binding) -> tuple[str, ...]:
    """Return the names of a pattern's attributes."""
    return tuple(name_attribute(want, bound) for want in pattern.attributes)


def prefix_moves(moves: list[Move], at: int) -> list[Move]:
    """Return moves as those below child `at`."""
    return [move._replace(path=(at, *move.path)) for move in moves]


def differing(tree: Tree, goal: Tree) -> tuple[Tree, Tree] | None:
    """Return the first pair of a tree and its goal, from the root down, whose uppermost nodes differ."""
    seen, todo = {(tree, goal)}, deque([(tree, goal)])
    while todo:
        a, b = todo.popleft()
        if a.key != b.key:
            return a, b
        for pair in zip(a.children, b.children, strict=True):
            if pair not in seen and pair[0] is not pair[1]:
                seen.add(pair)
                todo.append(pair)
    return None


def positions(tree: Tree, goal: Tree, pair: tuple[Tree, Tree]) -> Iterator[Path]:
    """Yield the paths at which a tree and its goal show a pair."""
    if (tree, goal) == pair:
        yield ()
    elif tree is not goal and tree.key == goal.key:
        for at, (a, b) in enumerate(zip(tree.children, goal.children, strict=True)):
            yield from ((at, *path) for path in positions(a, b, pair))


def derive(lowering: Lowering, extraction: Extraction, root: str, laws: Sequence[Law]) -> Derivation:
    """Return the derivation of the chosen program of one part, down to kernels; `root` names its result in the
    template. Raises Underivable."""
    forest = Forest(lowering)
    start = forest.imported[root]
    goal, called = forest.extracted(extraction, lowering.graph.named[root])
    preferred = {tree.cls: tree for top in (start, goal) for tree in top.walk()}
    deriver = Deriver(forest, laws, forest.representatives | preferred)
    return Derivation(forest, start, (*deriver.chain(start, goal), *lowered(called)))


def lowered(called: dict[Tree, Tree]) -> Iterator[Application]:
    """Yield the steps that replace terms by their kernels, from the result down, so that no larger tree still holds
    the same term."""
    for tree, call in sorted(called.items(), key=lambda item: -item[0].size):
        yield Application(call.kind.removesuffix("()"), IMPLEMENTATION, False, tree, call)
