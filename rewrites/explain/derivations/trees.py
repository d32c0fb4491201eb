"""Single programs of a saturated graph: a tree picks one member for every class that it needs, and equal subtrees are
one object. Chains of law applications lead from tree to tree."""

import re
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

from opmatrix.algebra.term import Operator
from rewrites.egraph.egraph import ENode, Graph, fitting
from rewrites.egraph.match import Matches, orders
from rewrites.extraction import Extraction
from rewrites.laws.kernel_law import Implementation
from rewrites.laws.law import is_variable
from rewrites.laws.spelling import spelled
from rewrites.lowering.calls import multiplied
from rewrites.lowering.class_terms import ClassTerm
from rewrites.lowering.kernel_matches import attribute_variable
from rewrites.lowering.lower import KernelCall, Lowering, Method, Use
from rewrites.lowering.uncovered import Interpreted

OPEN = "count", "where", "over", "relation", "any_relation"  # sorts of variables that stand for attributes
READ = "interpreted"  # a term without a kernel, read over its operands
STORED = "stored"  # a weight in a representation; its value is the weight
NodeKey = tuple[str, tuple[int, ...], tuple[str, ...]]  # a member: kind, classes of its children, attributes
Path = tuple[int, ...]  # number of the child at each level, from the root down


@dataclass(frozen=True, eq=False)
class Tree:
    """One node of a program over subtrees. `cls` is the class whose value it denotes."""

    kind: str
    children: tuple["Tree", ...]
    attributes: tuple[str, ...]
    cls: int
    size: int

    @property
    def key(self) -> NodeKey:
        """The kind, the classes of the children and the attributes: a node of the graph."""
        return self.kind, tuple(child.cls for child in self.children), self.attributes

    def at(self, path: Path) -> "Tree":
        """Return the subtree at a path of child numbers."""
        return self.children[path[0]].at(path[1:]) if path else self

    def walk(self) -> Iterator["Tree"]:
        """Yield every subtree once, children first."""
        seen: set[Tree] = set()

        def below(tree: Tree) -> Iterator[Tree]:
            """Yield the subtrees that were not met yet, children first."""
            if tree not in seen:
                seen.add(tree)
                for child in tree.children:
                    yield from below(child)
                yield tree

        yield from below(self)


@dataclass
class Forest:
    """The trees of one graph."""

    lowering: Lowering
    made: dict[Hashable, Tree] = field(default_factory=dict)
    kernels: dict[str, Implementation] = field(default_factory=dict)  # by the kinds of trees that are calls
    read: dict[int, tuple[Tree, ...]] = field(default_factory=dict)  # by interpreted class: its tree, its operands'

    @property
    def graph(self) -> Graph:
        """The graph that the trees are of."""
        return self.lowering.graph

    @cached_property
    def index(self) -> dict[NodeKey, int]:
        """Class by member; subsumed members are included."""
        return {node[:3]: node.cls for node in self.graph.nodes}

    @cached_property
    def members(self) -> dict[int, list[ENode]]:
        """All members of each class."""
        by_class: dict[int, list[ENode]] = {}
        for node in self.graph.nodes:
            by_class.setdefault(node.cls, []).append(node)
        return by_class

    def tree(
        self, kind: str, children: tuple[Tree, ...], attributes: tuple[str, ...] = (), cls: int | None = None
    ) -> Tree:
        """Return the tree of these parts. Its class is looked up unless it is passed: KeyError if the graph has no
        such member."""
        if (key := (kind, children, attributes)) not in self.made:
            cls = self.index[kind, tuple(child.cls for child in children), attributes] if cls is None else cls
            self.made[key] = Tree(kind, children, attributes, cls, 1 + sum(child.size for child in children))
        return self.made[key]

    def over(self, tree: Tree, children: tuple[Tree, ...]) -> Tree:
        """Return a node like that of a tree, over other subtrees of the same classes."""
        return self.tree(tree.kind, children, tree.attributes, tree.cls)

    def put(self, tree: Tree, path: Path, new: Tree) -> Tree:
        """Return the tree with another subtree at a place."""
        if not path:
            return new
        at, children = path[0], tree.children
        return self.over(tree, (*children[:at], self.put(children[at], path[1:], new), *children[at + 1 :]))

    def replace(self, tree: Tree, before: Tree, after: Tree) -> Tree:
        """Return the tree with a subtree replaced wherever it occurs."""
        known = {before: after}
        for part in tree.walk():
            if part not in known:
                known[part] = self.over(part, tuple(known[child] for child in part.children))
        return known[tree]

    @cached_property
    def imported(self) -> dict[str, Tree]:
        """The imported trees by the names of the template, and its roots by theirs."""
        template, trees = self.lowering.template, dict[str, Tree]()
        for entry in template.entries:
            trees[entry.name] = self.tree(entry.kind, tuple(trees[child] for child in entry.children), entry.attributes)
        for name, entry_name in re.findall(r"\(let (\$\w+) (\$t\d+)\)", template.text):
            trees[name] = trees[entry_name]
        return trees

    @cached_property
    def representatives(self) -> dict[int, Tree]:
        """The tree by which the numbers of each class are evaluated: an imported one, else the first that fits."""
        template, by_class = self.lowering.template, dict[int, Tree]()
        for entry in reversed(template.entries):
            by_class[self.graph.named[entry.name]] = self.imported[entry.name]

        def make(node: ENode, terms: dict[int, Operator], values: dict[str, object]) -> Operator | None:
            """Build a member's term, and make its tree that of the class if it is the first."""
            if (term := fitting(node, terms, values)) is not None:
                by_class.setdefault(
                    node.cls, self.tree(node.kind, tuple(by_class[c] for c in node.children), node.attributes)
                )
            return term

        self.graph.terms(template, make)
        return by_class

    def tree_of_term(self, read: ClassTerm, used: Collection[Operator]) -> Tree:
        """Return a term of a class as a tree: the members from which it was read, down to the values that it uses."""
        if read.member is None or read.operator in used:
            return self.representatives[read.cls]
        parts = tuple(self.tree_of_term(part, used) for part in read.parts)
        return self.tree(read.member.kind, parts, read.member.attributes, read.cls)

    def stored(self, cls: int) -> Tree:
        """Return the tree of a weight or a constant row as it is evaluated: a joined one by its halves."""
        if halves := self.lowering.halves(cls):
            return self.tree("joined", tuple(self.stored(half) for half in halves))
        return self.representatives[cls]

    def extracted(self, extraction: Extraction, root: int) -> tuple[Tree, dict[Tree, Tree]]:
        """Return the chosen program, in the notation of the algebra; and, for the result of each kernel, the kernel's
        call over such trees, with approximated weights still as they are."""
        calls = {node.cls: node.label for node in extraction.nodes if isinstance(node.label, KernelCall)}
        uses = {
            node.cls: node.label
            for node in extraction.nodes
            if isinstance(node.cls, Use) and isinstance(node.label, Method)
        }
        results, called = dict[int, Tree](), dict[Tree, Tree]()

        def value(cls: int) -> Tree:
            """Return the tree of a class: of its kernel's result, or else of the imported member."""
            if cls not in calls:
                return self.representatives[cls]
            if cls not in results:
                call = calls[cls]
                if isinstance(call.implementation, Interpreted):
                    return interpreted(cls, call.implementation, [at for _, at in call.bound])
                operands = {name: operand(call, name, at) for name, at in call.bound}
                results[cls] = self.instance(call, cls, operands)
                children = tuple(held(call, cls, name, t) for name, t in operands.items() if isinstance(t, Tree))
                attributes = tuple(t for t in operands.values() if isinstance(t, str))
                kind = f"{call.implementation.name}()"
                self.kernels[kind] = call.implementation
                called[results[cls]] = self.tree(kind, children, attributes, cls)
            return results[cls]

        def interpreted(cls: int, step: Interpreted, operands: list[int]) -> Tree:
            """Return the tree of an interpreted step, over the trees of its operands."""
            whole = self.representatives[cls] if step.read is None else self.tree_of_term(step.read, step.used)
            trees = whole, *(self.representatives[at] for at in operands)
            self.read[cls], parts, tree = trees, tuple(map(value, operands)), trees[0]
            for before, after in sorted(zip(trees[1:], parts, strict=True), key=lambda pair: -pair[0].size):
                tree = self.replace(tree, before, after)
            results[cls] = tree
            called[tree] = self.tree(READ, parts, (str(cls),), cls)
            return tree

        def operand(call: KernelCall, name: str, at: Any) -> Any:
            """Return an operand as a tree by its sort: a computed value, a stored constant, or an attribute."""
            sort = call.implementation.variables[name].name
            return value(at) if sort in ("value", "scores") else self.stored(at) if isinstance(at, int) else at

        def held(call: KernelCall, cls: int, name: str, tree: Tree) -> Tree:
            """Wrap a weight's tree in its storage, by the method that was chosen for this use."""
            if call.implementation.variables[name].name != "matrix" or name == "key":
                return tree
            x = multiplied(dict(call.bound), name)
            how = call.implementation.layout
            method = uses[Use(x, tree.cls, how, cls)]
            return self.tree(
                STORED, (tree,), (Method().format if method.error or method.plain else str(method), how), tree.cls
            )

        return value(root), called

    def instance(self, call: KernelCall, cls: int, operands: dict[str, Tree]) -> Tree:
        """Return the tree that a kernel was matched with, from members of a class and below, over the trees of its
        operands."""
        values = self.lowering.template.values

        def name(attribute: object) -> str:
            """Return the name of an attribute of the pattern in this graph."""
            if is_variable(attribute):
                return str(operands[attribute_variable(attribute)])
            return next(name for name, value in values.items() if value == attribute)

        def made(pattern: Operator) -> Iterator[Tree]:
            """Yield the members that a pattern matches, over the operands' trees."""
            if pattern.kind.name == "symbol":
                yield operands[str(pattern.args[0])]
            else:
                kind, attributes = pattern.kind.name, tuple(map(name, pattern.attributes))
                for parts in product(*map(made, pattern.children)):
                    for order in orders(kind, parts):
                        if (kind, tuple(part.cls for part in order), attributes) in self.index:
                            yield self.tree(kind, order, attributes)

        if (match := next((tree for tree in made(call.implementation.pattern) if tree.cls == cls), None)) is None:
            raise KeyError(f"{call.implementation.name} is not found in the class that it computes")
        return match


def match_trees() -> Matches[Tree]:
    """Return the matches of patterns among trees: each tree is the only member of its class."""
    return Matches(
        lambda tree, kind: [(tree.children, tree.attributes)] if tree.kind == kind else (),
        lambda attribute, name: spelled(attribute) == name,
    )
