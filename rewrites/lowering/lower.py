"""From the saturated graph to an extraction problem: kernels are members of the classes they compute. A weight stored
in one of its representations is a member of the class `use(x, W)`, "x times W in some stored form". So there is a node
for each method and one for each kernel, not one for each pair: product time and error belong to the use, epilogue time
to the kernel, bytes to the stored form."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isinf, prod
from typing import Any, NamedTuple

import numpy as np

from formats import FORMATS
from formats.core.stage import STAGES as FUSED
from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.operators import weight
from opmatrix.algebra.term import Operator
from rewrites.egraph.egraph import Graph, imported_part
from rewrites.egraph.template import Template
from rewrites.extraction import Node, Problem
from rewrites.laws.epilogues import HEADS, STAGES
from rewrites.laws.implementation import IMPLEMENTATIONS
from rewrites.laws.kernel_law import STACK, Implementation
from rewrites.laws.kinds import as_array
from rewrites.lowering.calls import attributes, list_kernels, multiplied
from rewrites.lowering.kernel_matches import KernelMatches, beats, leaf, root_kind
from rewrites.lowering.mixed import Mean
from rewrites.lowering.price import Prices, holds, stacks
from rewrites.lowering.uncovered import Interpreted, TermCalls, read_array


class Method(NamedTuple):
    """A representation of a weight: format, its parameters, the metric it is fitted in (plain, wanda or whitened), and
    the squared error that storing it so adds to the output."""

    format: str = "dense"
    parameters: tuple[tuple[str, Hashable], ...] = ()
    fit: str = "plain"
    error: float = 0.0

    @property
    def plain(self) -> bool:
        """True if the weight is stored as it is, in float32."""
        return is_plain(self.format)

    def __str__(self) -> str:
        inside = ", ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.parameters)
        return f"{self.format}[{inside}]" if inside else self.format


EXACT = (Method(),)
TURNED = "turned"  # layout of a table whose rows are stored as columns
DIAGONAL = "wanda"  # metric of a weight's inputs: the norms of their columns
FITTED = DIAGONAL, "whitened"  # all metrics of a weight's inputs


def is_plain(name: str) -> bool:
    """True if this is a format that holds any weight as it is. A user's approximation is no format, so it is not
    plain."""
    return name in FORMATS and FORMATS[name].plain


class KernelCall(NamedTuple):
    """A kernel node: an implementation and the class or attribute of each of its variables."""

    implementation: Implementation
    bound: tuple[tuple[str, Any], ...]


class Use(NamedTuple):
    """x times the weight of a class, laid out for a kernel, for the class that the kernel computes. Two kernels that
    read one weight multiply twice, so they may not share a use."""

    x: int
    weight: int
    layout: str
    gives: int


class Stored(NamedTuple):
    """A weight laid out for a kernel in one representation."""

    weight: int
    layout: str
    method: Method


class Content(NamedTuple):
    """A stored constant, independent of the part that reads it: the same numbers in the same form are one constant."""

    weight: Operator
    layout: str
    method: Method


class Row(NamedTuple):
    """A constant row."""

    constant: int


class ByPosition(NamedTuple):
    """The tables of a rotation, or of numbers by distance."""

    cls: int


class TermArray(NamedTuple):
    """An array that a term reads: the attribute that holds it, and its number among the arrays of that attribute."""

    name: str
    at: int


@dataclass(frozen=True)
class Lowering:
    """A graph with sizes and prices. `methods` gives the representations that a weight may be stored in, by the names
    of the leaves it is made of. Without `fusion` only implementations of single operators are used. `like` is a
    lowering of the same graph and sizes, so its kernels are reused. `near` is a lowering with the same equalities
    between sizes, so its matches are reused; its terms too if the template is the same object. `tied` are the leaves
    that the model has in several places."""

    graph: Graph
    template: Template
    prices: Prices | Mean
    fusion: bool = True
    like: "Lowering | None" = None
    near: "Lowering | None" = None
    tied: frozenset[Data] = frozenset()

    @cached_property
    def twin(self) -> "Lowering | None":
        """`near`, where its template is this very object; else None."""
        return self.near if self.near is not None and self.near.template is self.template else None

    @cached_property
    def terms(self) -> dict[int, Operator]:
        """The standing term of each class, shared with a lowering of the same graph and sizes if there is one."""
        return self.twin.terms if self.twin else self.graph.terms(self.template)

    @cached_property
    def matcher(self) -> KernelMatches:
        """The matches of kernels, shared with a lowering of the same graph and sizes if there is one."""
        return self.twin.matcher if self.twin else KernelMatches(self.graph, self.terms, self.template.values)

    @cached_property
    def calls(self) -> list[tuple[int, KernelCall]]:
        """Every kernel that computes a class, with its operands, and terms as steps for classes that no kernel
        computes."""
        return [
            *self.matched,
            *((cls, KernelCall(term, tuple(bound.items()))) for cls, term, bound in self.term_calls.list_calls()),
        ]

    @cached_property
    def term_calls(self) -> TermCalls:
        """The terms that are steps of their own."""
        return TermCalls(self, self.matched)

    @property
    def limit(self) -> str | None:
        """A line of text if some class has more terms than were read; None otherwise, and where no terms were read."""
        if self.like is not None:
            return self.like.limit
        return self.term_calls.limit if "calls" in vars(self) else None

    @cached_property
    def epilogues(self) -> dict[Use, list[str]]:
        """The stages that follow the product of each use."""
        if self.like is not None:
            return self.like.epilogues
        return {
            use: [stage.price for stage in FUSED if stage.operands.keys() & call.implementation.variables]
            for cls, call in self.calls
            for use in self.children(cls, call)[1]
        }

    @cached_property
    def routed(self) -> dict[Use, int]:
        """Most matrices of a stack that a row is multiplied by, for each use that reads only some of them."""
        if self.like is not None:
            return self.like.routed
        return {
            use: int(arguments["most"])
            for cls, call in self.calls
            for declared in list_kernels(call)
            if "most" in (arguments := attributes(self, call, declared))
            for use in self.children(cls, call)[1]
        }

    @cached_property
    def matched(self) -> list[tuple[int, KernelCall]]:
        """Every match of an implementation."""
        if self.near is not None:
            return self.near.matched
        return self.match_kernels(self.matcher)

    @cached_property
    def matched_imported(self) -> list[tuple[int, KernelCall]]:
        """Every match of an implementation among the imported nodes alone, without nodes that laws have added."""
        if self.near is not None:
            return self.near.matched_imported
        imported = imported_part(self.graph, self.template)
        if len(imported.nodes) < len(self.template.entries):
            return self.matched  # a schedule: as it was written
        return self.match_kernels(KernelMatches(imported, self.terms, self.template.values))

    def match_kernels(self, matcher: KernelMatches) -> list[tuple[int, KernelCall]]:
        """Return every match of an implementation, class by class."""
        whole, heads, stages = matcher.able(IMPLEMENTATIONS), matcher.able(HEADS), matcher.able(STAGES)
        varying = self.graph.facts["act"] - self.graph.fixed
        return [
            (cls, KernelCall(implementation, tuple(bound.items())))
            for cls in self.terms
            if cls in varying and cls in matcher.held
            for implementation, bound in sorted(
                (*matcher.chains(cls, heads, stages), *matcher.wholes(cls, whole)), key=root_kind
            )
            if self.fusion or implementation.single
        ]

    @cached_property
    def kernels(self) -> tuple[list[Node], list[Use]]:
        """The nodes that no method changes, and the uses of weights that they need."""
        if self.like is not None:
            return self.like.kernels
        nodes = [Node(cls, (), label="given") for cls in self.graph.facts["given"]]
        uses: dict[Use, None] = {}
        rows: set[Hashable] = set()
        for cls, call in self.calls:
            if isinf(seconds := self.prices.kernel(self, cls, call)):
                continue
            children, weights = self.children(cls, call)
            nodes.append(Node(cls, tuple(children), seconds, label=call))
            nodes += [
                Node(child, (), memory=self.bytes_beside(child), label=child)
                for child in children
                if isinstance(child, Row | ByPosition | TermArray) and child not in rows
            ]
            rows.update(children)
            uses |= dict.fromkeys(weights)
        return nodes, [*uses]

    def problem(
        self, roots: Sequence[int], given: Sequence[int], methods: Callable[["Lowering", Use], Sequence[Method]]
    ) -> Problem:
        """Return the extraction problem of these root classes, with the borders `given` at no cost."""
        nodes, uses = self.kernels
        constants: dict[Hashable, Stored] = {}
        stored = [node for use in uses for node in self.representations(use, methods(self, use), constants)]
        return Problem([*(Node(cls, (), label="given") for cls in given), *nodes, *stored], tuple(roots))

    def children(self, gives: int, call: KernelCall) -> tuple[list[Hashable], list[Use]]:
        """Return the children of a kernel node, and its uses. Values are themselves, weights are uses of the value they
        multiply, constants are rows."""
        bound, sorts = dict(call.bound), call.implementation.variables
        children: list[Hashable] = []
        uses: list[Use] = []
        for name, cls in call.bound:
            match sorts[name].name:
                case "value" | "scores":
                    children.append(cls)
                case "constant":
                    children.append(Row(cls))
                case "rotation" | "distances" | "relative":
                    children.append(ByPosition(cls))
                case "matrix" if name != "key":
                    x = multiplied(bound, name)
                    uses.append(Use(x, cls, call.implementation.layout, gives))
        if isinstance(call.implementation, Interpreted):
            children += [TermArray(*array) for array in call.implementation.arrays]
        return children + uses, uses

    def representations(self, use: Use, methods: Sequence[Method], made: dict[Hashable, Stored]) -> Iterator[Node]:
        """Yield the nodes of the methods of a use. A plain method is left out where another plain one is faster or
        smaller and no worse in both, unless another use may share it."""
        prices = {method: self.price(use, method) for method in methods}
        plain = [method for method in methods if method.plain]
        for method, (seconds, size) in prices.items():
            if (
                method in plain
                and not self.stands_elsewhere(use.weight)
                and any(beats(prices[other], prices[method]) for other in plain)
            ):
                continue
            stored = self.held(use, method)
            same = self.content(stored) if self.tied else None
            first = made.setdefault(same or stored, stored)
            yield Node(use, (first,), seconds, error=method.error, label=method)
            if first is stored:
                yield Node(stored, (), memory=size, label=stored)

    def gathers(self, use: Use) -> bool:
        """True if a use chooses rows of a table."""
        return use.x in self.graph.facts["given"]

    def gatherable(self, use: Use, method: Method) -> bool:
        """True if rows can be chosen from a table in this representation: its rows are stored as rows, or as columns of
        the panels that products read. Panels of a plain format qualify only where a product may read them, too."""
        form = FORMATS[method.format]
        return form.rowwise or (form.panelled is not None and (not form.plain or self.stands_elsewhere(use.weight)))

    def holdable(self, use: Use, method: Method) -> bool:
        """True if a weight of this shape can be stored by this method. A method proposed for a leaf may not fit a
        matrix made of the leaf. Blocks of a file fit only a weight that is such a leaf, or is joined of them."""
        form, layout = FORMATS.get(method.format), self.held(use, method).layout
        if form is not None and form.filed is not None:
            return self.block_type(use.weight, layout) == form.filed
        *heads, n, p = self.stored(use.weight, layout)
        return (stacks if heads else holds)(method.format, n, p, method.parameters)

    def stands_elsewhere(self, cls: int) -> bool:
        """True if a weight is a leaf that the model has in another place, too."""
        term = self.terms[cls] if self.tied else None
        return term is not None and term.kind.name == "weight" and leaf(term.args[0]) in self.tied

    def held(self, use: Use, method: Method) -> Stored:
        """Return the stored form that a use reads. A table in panels is laid out as products multiply by it, its rows
        as columns."""
        turned = self.gathers(use) and not FORMATS[method.format].rowwise
        return Stored(use.weight, TURNED if turned else use.layout, method)

    def content(self, stored: Stored) -> Content | None:
        """Return the content that another part may share; None for a method fitted to the inputs of this part."""
        term, how, method = self.terms[stored.weight], stored.layout, stored.method._replace(error=0.0)
        if method.fit in FITTED:
            return None
        if how == TURNED and term.kind.name == "weight":
            term, how = weight(term.args[0].T), "columns"
        return Content(term, how, method)

    @cached_property
    def priced(self) -> dict[Hashable, tuple[float, float]]:
        """Seconds and bytes of uses so far, shared by every part of this structure and these sizes."""
        return {} if self.like is None else self.like.priced

    def price(self, use: Use, method: Method) -> tuple[float, float]:
        """Return the seconds of x times a weight in this representation, and the bytes of the weight."""
        key = use, method[:2]
        if key not in self.priced:
            self.priced[key] = self.prices.product(self, use, method)
        return self.priced[key]

    def columns(self, cls: int) -> int:
        """Return the numbers in a row of a value, all heads together."""
        return int(self.matcher.heads[cls]) * int(self.terms[cls].out.cols)

    def bytes_beside(self, child: Row | ByPosition | TermArray) -> float:
        """Return the bytes of a constant beside the weights."""
        match child:
            case Row():
                return 4.0 * self.columns(child.constant)
            case ByPosition():
                return 4.0 * sum(prod(data.shape) for data in self.tables(child.cls))
        return 4.0 * prod(read_array(self.template.values, *child).shape)

    def tables(self, cls: int) -> list[Data]:
        """Return the cosines and sines of a rotation, or the table of numbers by distance, picked or not."""
        nodes = [
            member
            for node in self.graph.members[cls]
            for member in (node, *(self.graph.members[node.children[0]] if node.kind == "compose" else ()))
        ]
        node = next(node for node in nodes if node.kind in ("rotate", "by_distance", "at_distances"))
        return [value for name in node.attributes if isinstance(value := self.template.values[name], Data)]

    def leaves(self, cls: Hashable) -> tuple[str, ...]:
        """Return the weight leaves that a use is made of: the family that cuts constrain. Empty for other classes."""
        return self.families.get(cls, ()) if isinstance(cls, Use) else ()

    @cached_property
    def families(self) -> dict[Hashable, tuple[str, ...]]:
        """The names of the leaves of every use."""
        if self.like is not None:
            return self.like.families
        names = self.template.names
        return {use: tuple(map(names.__getitem__, self.arrays(use.weight))) for use in self.kernels[1]}

    def arrays(self, cls: int) -> list[Data]:
        """Return the arrays that a weight is made of."""
        return [term.args[0] for term in self.terms[cls].walk() if term.kind.name == "weight"]

    def matrix(self, cls: int, how: str, width: int | None = None) -> np.ndarray:
        """Return the float64 numbers of a weight in the layout of a kernel: in x out, heads side by side or one above
        the other."""
        if how == TURNED:
            return self.matrix(cls, "columns").T
        if halves := self.halves(cls):
            rows = width or int(self.terms[cls].into.cols)
            return np.concatenate([self.matrix(half, how, rows) for half in halves], axis=-1)
        numbers = as_array(self.terms[cls], width)
        if how == STACK or numbers.ndim == 2:
            return numbers
        return numbers.reshape(-1, numbers.shape[-1]) if how == "rows" else np.hstack(list(numbers))

    def filed(self, cls: int, how: str) -> list[np.ndarray]:
        """Return the blocks (outputs, groups) of one kind that the numbers of a weight are widened from: the ones of
        each head where heads are stacked, and of each part where the weight is joined of several. Empty unless the
        weight is made of leaves of a file that stores them so."""
        if self.block_type(cls, how) is None:
            return []
        every = (leaf.blocks for leaf in self.filed_leaves(cls, how))
        held = [blocks for blocks in every if blocks is not None]
        return [blocks if how == STACK else blocks.reshape(-1, blocks.shape[-1]) for blocks in held]

    def block_type(self, cls: int, how: str) -> np.dtype[np.generic] | None:
        """Return the structure of the blocks that all numbers of a weight are widened from; None if there is none."""
        types = {leaf.block_type for leaf in self.filed_leaves(cls, how)}
        return types.pop() if len(types) == 1 else None

    def filed_leaves(self, cls: int, how: str) -> list[Data]:
        """Return the leaves that a weight is made of, as their files hold them: one, or one of each part where it is
        joined of several. Empty where some part is no such leaf."""
        if halves := self.halves(cls):
            parts = [self.filed_leaves(half, how) for half in halves]
            return [leaf for part in parts for leaf in part] if all(parts) else []
        term = self.terms[cls]
        if how not in ("columns", STACK, TURNED) or term.kind.name != "weight":
            return []
        file = term.args[0] if how == TURNED else term.args[0].base
        return [] if file is None else [file]

    def vector(self, cls: int, columns: int) -> np.ndarray:
        """Return the float64 numbers of a constant row, heads side by side."""
        if halves := self.halves(cls):
            return np.concatenate([self.vector(half, self.columns(half)) for half in halves])
        numbers = as_array(self.terms[cls]).reshape(-1)
        return np.broadcast_to(numbers, (columns,)) if self.columns(cls) == 1 else numbers

    def stored(self, cls: int, how: str) -> tuple[int, ...]:
        """Return the shape of a weight in the layout of a kernel: in × out, heads side by side or one above the other,
        or heads × in × out."""
        heads, n, p = int(self.matcher.heads[cls]), int(self.terms[cls].into.cols), int(self.terms[cls].out.cols)
        return {"columns": (n, heads * p), "rows": (heads * n, p), STACK: (heads, n, p), TURNED: (heads * p, n)}[how]

    def promised(self, cls: int) -> bool:
        """True if a weight or a constant row is made of arrays that are only promised."""
        return any(isinstance(attribute, Promised) for term in self.terms[cls].walk() for attribute in term.attributes)

    def halves(self, cls: int) -> tuple[int, ...]:
        """Return the parts of a joined weight or bias; empty if it is not joined."""
        return next((node.children for node in self.graph.members.get(cls, ()) if node.kind == "joined"), ())


def plainly(lowering: Lowering, use: Use) -> Sequence[Method]:
    """Return the plain methods of a use: panels and plain rows for a product, rows alone for a table."""
    return EXACT if lowering.gathers(use) else (*EXACT, Method("packed"))
