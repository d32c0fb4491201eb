"""One part of a model as it was explored: its classes, the members of each with their prices, and what extraction
chose."""
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
SHOWN_DEPTH, SHOWN_LETTERS = 4, 90                          # of a class and a member in words


class Member(NamedTuple):
    """One way to compute a class: a term over other classes, or a kernel, whose `seconds` hold its products in the
    cheapest form of their weights, and `stored` the bytes of these."""

    cls: int
    text: str
    kernel: str                                             # its name, empty for a term
    seconds: float | None
    stored: float | None
    chosen: bool
    key: "NodeKey | KernelCall"

    @property
    def row(self) -> tuple[str, ...]:
        """It in a table, see MEMBER_COLUMNS; * is chosen."""
        return ("*" * self.chosen, self.text, "" if self.seconds is None else micro(self.seconds),
                "" if self.stored is None else f"{self.stored / 1e3:.1f}")

    def __repr__(self) -> str:
        return f"<{'*' * self.chosen}member of c{self.cls}: {self.text}>"


class EqualityClass(NamedTuple):
    """A class: what is equal. `seconds` of the kernel that was chosen, none where the program does not compute it."""

    number: int
    text: str
    terms: int
    kernels: int
    seconds: float | None
    chosen: str                                             # the kernel, empty where none is

    def __repr__(self) -> str: return f"<class c{self.number}: {self.text}>"


@dataclass(frozen=True, eq=False)
class LookedAt:
    """A part behind its border state, with the problem that extraction solved and its answer. `root` names its result
    in the template."""

    lowering: Lowering
    extraction: Extraction
    nodes: Sequence[Node]
    part: Part
    root: str
    laws: Sequence[Law]

    @cached_property
    def forest(self) -> Forest: return Forest(self.lowering)

    @cached_property
    def writer(self) -> TreeWriter: return TreeWriter(self.forest)

    @property
    def result(self) -> int:
        """The class of what the part gives."""
        return self.lowering.graph.named[self.part.roots[self.root]]

    @cached_property
    def program(self) -> Tree:
        """The program that was chosen, as it reads in the algebra."""
        return self.forest.extracted(self.extraction, self.result)[0]

    @cached_property
    def start(self) -> Tree:
        """What was imported."""
        return self.forest.imported[self.part.roots[self.root]]

    @cached_property
    def deriver(self) -> Deriver:
        """Chains between trees, which fill what a law does not name by the two programs."""
        known = {tree.cls: tree for top in (self.start, self.program) for tree in top.walk()}
        return Deriver(self.forest, self.laws, self.forest.representatives | known)

    @cached_property
    def calls(self) -> dict[int, list[Node]]:
        """Kernels by the class that they compute."""
        found: dict[int, list[Node]] = {}
        for node in self.nodes:
            if isinstance(node.label, KernelCall) and isinstance(node.cls, int):
                found.setdefault(node.cls, []).append(node)
        return found

    @cached_property
    def products(self) -> dict[Use, Node]:
        """For each use of a weight the form of it that was chosen, else the quickest."""
        found: dict[Use, Node] = {}
        for node in self.nodes:
            if isinstance(node.cls, Use) and (node.cls not in found or node.time < found[node.cls].time):
                found[node.cls] = node
        return found | {cls: node for cls, node in self.extraction.choice.items() if isinstance(cls, Use)}

    @cached_property
    def sizes(self) -> dict[object, float]:
        """Bytes of what is stored, by class."""
        return {node.cls: node.memory for node in self.nodes if node.memory}

    def price(self, node: Node) -> tuple[float, float]:
        """Seconds of a kernel with its products, and the bytes that it reads of what is stored."""
        uses = [self.products[child] for child in node.children if isinstance(child, Use) and child in self.products]
        stored = [child for each in (node, *uses) for child in each.children]
        return node.time + sum(each.time for each in uses), sum(self.sizes.get(child, 0.0) for child in stored)

    def chosen(self, cls: int) -> Node | None:
        """The kernel that the program computes a class by."""
        node = self.extraction.choice.get(cls)
        return node if node is not None and isinstance(node.label, KernelCall) else None

    @cached_property
    def running(self) -> dict[int, Node]:
        """The classes that the program computes, in the order in which it runs, by their kernels."""
        return {node.cls: node for node in self.extraction.nodes
                if isinstance(node.cls, int) and self.chosen(node.cls) is not None}

    def taken(self, cls: int) -> Tree | None:
        """The member of a class that the program goes through."""
        return next((each for each in self.program.walk() if each.cls == cls), None)

    # ---- in words

    def say(self, cls: int, depth: int = SHOWN_DEPTH) -> str:
        """A class in the algebra's notation."""
        tree = self.forest.representatives.get(cls)
        if tree is None: return f"c{cls}"
        data = None if tree.children or not tree.attributes else self.writer.values.get(tree.attributes[0])
        shape = f" {'×'.join(map(str, data.shape))}" if isinstance(data, Data) and not data.name else ""
        return shorten(self.writer.text(tree, depth=depth)) + shape * (shape != " 1")

    def operand(self, at: object) -> str:
        """An operand of a kernel: a value by its class, what is stored in words."""
        if not isinstance(at, int): return self.writer.attribute(str(at))
        return f"c{at}" if at in self.lowering.graph.facts["act"] else self.say(at, 2)

    def say_call(self, call: KernelCall) -> str:
        """A kernel over its operands."""
        return shorten(f"{call.implementation.name}({', '.join(self.operand(at) for _, at in call.bound)})")

    # ---- classes and members

    def resolve(self, asked: "int | str | EqualityClass | Member | None") -> int:
        """The number of a class: 12, "c12", the class, or a member of it; what the part gives where none is named.
        Raises InputError."""
        if asked is None: return self.result
        if isinstance(asked, EqualityClass | Member): asked = asked[0]
        number = int(asked[1:]) if isinstance(asked, str) and asked[:1] == "c" and asked[1:].isdigit() else asked
        if not isinstance(number, int) or number not in self.forest.members:
            raise InputError(f"class {asked!r:.60}: this part has none: its classes are c0 to "
                             f"c{max(self.forest.members, default=0)}, see .classes")
        return number

    def find_term(self, term: Operator) -> int:
        """The class of an operator, read from what the part is given. Raises InputError where the graph has none."""
        known = {each: cls for cls, each in reversed(self.lowering.terms.items())}
        entering = [each for each in known if each.kind.name in ("given", "entered", "symbol")]
        for each in (term, *(flat(term, x) for x in entering if fits(term, x))):
            if each in known: return known[each]
        raise InputError(f"{term!r:.60}: no class of this part holds it as it is written: ask by a class or a member, "
                         "see .classes")

    def list_classes(self) -> Iterator[EqualityClass]:
        """Classes of the program in the order in which it runs, then all others."""
        for cls in dict.fromkeys([*self.running, *sorted(self.forest.members)]):
            node = self.chosen(cls)
            name = node.label.implementation.name if node and isinstance(node.label, KernelCall) else ""
            yield EqualityClass(cls, self.say(cls), len(self.forest.members[cls]), len(self.calls.get(cls, ())),
                                None if node is None else self.price(node)[0], name)

    def list_members(self, cls: int) -> Iterator[Member]:
        """Kernels, the one that was chosen first and then by their price; then terms."""
        taken, walked = self.chosen(cls), {tree.key for tree in self.program.walk()}
        kernels = [(node is taken or (taken is not None and node.label == taken.label), *self.price(node), node.label)
                   for node in self.calls.get(cls, ())]
        for chosen, seconds, stored, label in sorted(kernels, key=lambda each: (not each[0], each[1])):
            assert isinstance(label, KernelCall)
            yield Member(cls, self.say_call(label), label.implementation.name, seconds, stored, chosen, label)
        for node in self.forest.members[cls]:
            key = node[:3]
            yield Member(cls, self.say_member(key, cls), "", None, None, key in walked, key)

    def say_member(self, key: NodeKey, cls: int) -> str:
        """A term over what stands for the classes of its operands."""
        return shorten(self.writer.text(self.tree_of_term(key, cls), depth=SHOWN_DEPTH))

    def tree_of_term(self, key: NodeKey, cls: int) -> Tree:
        """A member as a tree. Operands that nothing stands for are classes."""
        kind, children, attributes = key
        return self.forest.tree(kind, tuple(self.stand_for(each) for each in children), attributes, cls)

    def stand_for(self, cls: int) -> Tree:
        found = self.forest.representatives.get(cls)
        return self.forest.tree("symbol", (), (f"c{cls}",), cls) if found is None else found

    def tree_of(self, member: Member) -> Tree:
        """What a member says, as a tree of the graph."""
        if not isinstance(member.key, KernelCall): return self.tree_of_term(member.key, member.cls)
        if member.chosen and (found := self.taken(member.cls)): return found
        return self.forest.instance(member.key, member.cls, {name: self.stand_for(at) if isinstance(at, int) else at
                                                             for name, at in member.key.bound})


def fits(term: Operator, x: Operator) -> bool:
    """Whether a term takes rows of this width."""
    try: return term(x.out) is not None
    except (ShapeError, TypeError): return False


def shorten(text: str) -> str:
    """Words with dots in the place of what is too long for a row."""
    return text if len(text) <= SHOWN_LETTERS else f"{text[:SHOWN_LETTERS - 2]} …"
