"""One part of an explored model: its classes, the members of each with their prices, and the choice of extraction."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from formats.core.errors import InputError
from opmatrix.algebra.data import Data
from opmatrix.algebra.shapes import ShapeError
from opmatrix.algebra.term import Operator
from opmatrix.display.tables import micro
from rewrites.egraph.layers import Part
from rewrites.explain.derivations.finding import Deriver
from rewrites.explain.derivations.trees import Forest, NodeKey, Tree
from rewrites.explain.derivations.wording import TreeWriter
from rewrites.extraction import Extraction, Node
from rewrites.laws.flat import flat
from rewrites.laws.law import Law
from rewrites.lowering.lower import KernelCall, Lowering, Use

MEMBER_COLUMNS = "", "member", "µs", "kB stored"
SHOWN_DEPTH, SHOWN_LETTERS = 4, 90  # depth of a printed class; letters of a printed member


class Member(NamedTuple):
    """One way to compute a class: a term over other classes, or a kernel. `seconds` of a kernel include its products
    in the cheapest form of their weights; `stored` are the bytes of these weights."""

    cls: int
    text: str
    kernel: str  # the name of the kernel, empty for a term
    seconds: float | None
    stored: float | None
    chosen: bool
    key: "NodeKey | KernelCall"

    @property
    def row(self) -> tuple[str, ...]:
        """Its row of a table, see MEMBER_COLUMNS; * is chosen."""
        return (
            "*" * self.chosen,
            self.text,
            "" if self.seconds is None else micro(self.seconds),
            "" if self.stored is None else f"{self.stored / 1e3:.1f}",
        )

    def __repr__(self) -> str:
        return f"<{'*' * self.chosen}member of c{self.cls}: {self.text}>"


class EqualityClass(NamedTuple):
    """A class of equal members. `seconds` are those of the chosen kernel; None if the program does not compute the
    class."""

    number: int
    text: str
    terms: int
    kernels: int
    seconds: float | None
    chosen: str  # the kernel, empty if the program does not compute it

    def __repr__(self) -> str:
        return f"<class c{self.number}: {self.text}>"


@dataclass(frozen=True, eq=False)
class LookedAt:
    """A part after its border state, with the problem that extraction solved and its solution. `root` names its result
    in the template."""

    lowering: Lowering
    extraction: Extraction
    nodes: Sequence[Node]
    part: Part
    root: str
    laws: Sequence[Law]

    @cached_property
    def forest(self) -> Forest:
        """The trees of the part's graph."""
        return Forest(self.lowering)

    @cached_property
    def writer(self) -> TreeWriter:
        """The writer of these trees."""
        return TreeWriter(self.forest)

    @property
    def result(self) -> int:
        """The class of the part's result."""
        return self.lowering.graph.named[self.part.roots[self.root]]

    @cached_property
    def program(self) -> Tree:
        """The chosen program, in the notation of the algebra."""
        return self.forest.extracted(self.extraction, self.result)[0]

    @cached_property
    def start(self) -> Tree:
        """The imported tree."""
        return self.forest.imported[self.part.roots[self.root]]

    @cached_property
    def deriver(self) -> Deriver:
        """Chains between trees; variables that a law does not bind are filled from the two programs."""
        known = {tree.cls: tree for top in (self.start, self.program) for tree in top.walk()}
        return Deriver(self.forest, self.laws, self.forest.representatives | known)

    @cached_property
    def calls(self) -> dict[int, list[Node]]:
        """Kernels by the class that they compute."""
        by_class: dict[int, list[Node]] = {}
        for node in self.nodes:
            if isinstance(node.label, KernelCall) and isinstance(node.cls, int):
                by_class.setdefault(node.cls, []).append(node)
        return by_class

    @cached_property
    def products(self) -> dict[Use, Node]:
        """For each use of a weight its chosen form, else the quickest."""
        quickest: dict[Use, Node] = {}
        for node in self.nodes:
            if isinstance(node.cls, Use) and (node.cls not in quickest or node.time < quickest[node.cls].time):
                quickest[node.cls] = node
        return quickest | {cls: node for cls, node in self.extraction.choice.items() if isinstance(cls, Use)}

    @cached_property
    def sizes(self) -> dict[object, float]:
        """Bytes of stored values, by class."""
        return {node.cls: node.memory for node in self.nodes if node.memory}

    def price(self, node: Node) -> tuple[float, float]:
        """Return the seconds of a kernel with its products, and the bytes of the stored values that it reads."""
        uses = [self.products[child] for child in node.children if isinstance(child, Use) and child in self.products]
        stored = [child for reader in (node, *uses) for child in reader.children]
        return node.time + sum(use.time for use in uses), sum(self.sizes.get(child, 0.0) for child in stored)

    def chosen(self, cls: int) -> Node | None:
        """Return the kernel by which the program computes a class; None if it does not."""
        node = self.extraction.choice.get(cls)
        return node if node is not None and isinstance(node.label, KernelCall) else None

    @cached_property
    def running(self) -> dict[int, Node]:
        """The classes that the program computes, with their kernels, in the order in which it runs."""
        return {
            node.cls: node
            for node in self.extraction.nodes
            if isinstance(node.cls, int) and self.chosen(node.cls) is not None
        }

    def taken(self, cls: int) -> Tree | None:
        """Return the member of a class that the program uses."""
        return next((tree for tree in self.program.walk() if tree.cls == cls), None)

    # ---- in words

    def say(self, cls: int, depth: int = SHOWN_DEPTH) -> str:
        """Return a class in the notation of the algebra."""
        tree = self.forest.representatives.get(cls)
        if tree is None:
            return f"c{cls}"
        data = None if tree.children or not tree.attributes else self.writer.values.get(tree.attributes[0])
        shape = f" {'×'.join(map(str, data.shape))}" if isinstance(data, Data) and not data.name else ""
        return shorten(self.writer.text(tree, depth=depth)) + shape * (shape != " 1")

    def operand(self, at: object) -> str:
        """Return an operand of a kernel: a value by its class, a stored one in words."""
        if not isinstance(at, int):
            return self.writer.attribute(str(at))
        return f"c{at}" if at in self.lowering.graph.facts["act"] else self.say(at, 2)

    def say_call(self, call: KernelCall) -> str:
        """Return a kernel over its operands, as text."""
        return shorten(f"{call.implementation.name}({', '.join(self.operand(at) for _, at in call.bound)})")

    # ---- classes and members

    def resolve(self, asked: "int | str | EqualityClass | Member | None") -> int:
        """Return the number of a class, passed as 12, "c12", the class, or a member of it; by default that of the
        part's result. Raises InputError."""
        if asked is None:
            return self.result
        if isinstance(asked, EqualityClass | Member):
            asked = asked[0]
        number = int(asked[1:]) if isinstance(asked, str) and asked[:1] == "c" and asked[1:].isdigit() else asked
        if not isinstance(number, int) or number not in self.forest.members:
            raise InputError(
                f"class {asked!r:.60}: this part has none: its classes are c0 to "
                f"c{max(self.forest.members, default=0)}, see .classes"
            )
        return number

    def find_term(self, term: Operator) -> int:
        """Return the class of an operator over the inputs of the part. Raises InputError if the graph has none."""
        known = {operator: cls for cls, operator in reversed(self.lowering.terms.items())}
        entering = [operator for operator in known if operator.kind.name in ("given", "entered", "symbol")]
        for spelling in (term, *(flat(term, x) for x in entering if fits(term, x))):
            if spelling in known:
                return known[spelling]
        raise InputError(
            f"{term!r:.60}: no class of this part has exactly this term: give a class or a member, see .classes"
        )

    def list_classes(self) -> Iterator[EqualityClass]:
        """Yield classes of the program in the order in which it runs, then all others."""
        for cls in dict.fromkeys([*self.running, *sorted(self.forest.members)]):
            node = self.chosen(cls)
            name = node.label.implementation.name if node and isinstance(node.label, KernelCall) else ""
            yield EqualityClass(
                cls,
                self.say(cls),
                len(self.forest.members[cls]),
                len(self.calls.get(cls, ())),
                None if node is None else self.price(node)[0],
                name,
            )

    def list_members(self, cls: int) -> Iterator[Member]:
        """Yield kernels, the chosen one first and then by their price; then terms."""
        taken, walked = self.chosen(cls), {tree.key for tree in self.program.walk()}
        kernels = [
            (node is taken or (taken is not None and node.label == taken.label), *self.price(node), node.label)
            for node in self.calls.get(cls, ())
        ]
        for chosen, seconds, stored, label in sorted(kernels, key=lambda each: (not each[0], each[1])):
            assert isinstance(label, KernelCall)
            yield Member(cls, self.say_call(label), label.implementation.name, seconds, stored, chosen, label)
        for node in self.forest.members[cls]:
            key = node[:3]
            yield Member(cls, self.say_member(key, cls), "", None, None, key in walked, key)

    def say_member(self, key: NodeKey, cls: int) -> str:
        """Return a term over the representatives of its operands' classes, as text."""
        return shorten(self.writer.text(self.tree_of_term(key, cls), depth=SHOWN_DEPTH))

    def tree_of_term(self, key: NodeKey, cls: int) -> Tree:
        """Return a member as a tree. Operands without a representative are printed as classes."""
        kind, children, attributes = key
        return self.forest.tree(kind, tuple(self.stand_for(child) for child in children), attributes, cls)

    def stand_for(self, cls: int) -> Tree:
        """Return the tree of a class, or a symbol of its number if it has none."""
        representative = self.forest.representatives.get(cls)
        return self.forest.tree("symbol", (), (f"c{cls}",), cls) if representative is None else representative

    def tree_of(self, member: Member) -> Tree:
        """Return a member as a tree of the graph."""
        if not isinstance(member.key, KernelCall):
            return self.tree_of_term(member.key, member.cls)
        if member.chosen and (used := self.taken(member.cls)):
            return used
        return self.forest.instance(
            member.key,
            member.cls,
            {name: self.stand_for(at) if isinstance(at, int) else at for name, at in member.key.bound},
        )


def fits(term: Operator, x: Operator) -> bool:
    """True if a term takes rows of this width."""
    try:
        return term(x.out) is not None
    except (ShapeError, TypeError):
        return False


def shorten(text: str) -> str:
    """Return a text cut to the length of a row, with dots at the end."""
    return text if len(text) <= SHOWN_LETTERS else f"{text[: SHOWN_LETTERS - 2]} …"
