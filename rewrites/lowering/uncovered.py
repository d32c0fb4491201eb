"""Terms as steps of their own. For a class that the model's own kernels do not compute, every term that it has is one
step, which covers all operators between the class and values that are computed."""

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from opmatrix.algebra.data import Data
from opmatrix.algebra.nodes import BY_POSITION
from opmatrix.algebra.positions.patterns import Pattern, everyone
from opmatrix.algebra.shapes import Space, T
from opmatrix.algebra.term import Operator, substitute
from opmatrix.runtime.codegen.folded_term import fold_kernel_of
from opmatrix.runtime.codegen.growing import find_region, row_kernel_of
from opmatrix.runtime.codegen.scanned_term import find_scan_region, scan_kernel_of
from opmatrix.runtime.declarations.operands import C
from opmatrix.runtime.interpreted import is_writable, write_term
from opmatrix.runtime.kernels import KERNELS
from rewrites.laws import SHIPPED
from rewrites.laws.kernel_law import Implementation
from rewrites.laws.law import value as rows
from rewrites.lowering.class_terms import MOST_TERMS, ClassTerm, ClassTerms

if TYPE_CHECKING:
    from rewrites.lowering.lower import KernelCall, Lowering

MOST_READ = 64  # most terms of a graph beside the standing ones
INTERPRET = "interpret"
MatchedCalls = Sequence[tuple[int, "KernelCall"]]  # kernels, each with the class that it computes
TermCall = tuple[int, "Interpreted", dict[str, int]]  # a class, its term, the classes of the values in it


@dataclass(frozen=True, eq=False)
class Interpreted(Implementation):
    """A term of one graph, known by identity. `arrays` names each array in it: an attribute, and the number of the
    array in a pattern. `read` is the term with the members that it was read by. `used` are the values in it."""

    arrays: tuple[tuple[str, int], ...] = ()
    read: ClassTerm | None = None
    used: frozenset[Operator] = frozenset()

    def data(self, values: Mapping[str, Any]) -> list[Data]:
        """Return the arrays, from a template's table."""
        return [read_array(values, *array) for array in self.arrays]


def read_array(values: Mapping[str, Any], name: str, at: int) -> Data:
    """Return one of the arrays of an attribute, from a template's table."""
    array: Data = attribute if isinstance(attribute := values[name], Data) else attribute.data[at]
    return array


@dataclass
class TermCalls:
    """The terms of a lowered graph that are steps: of the outputs, and of each value that such a step reads and no
    kernel computes. There are such steps where kernels do not compute all outputs by the shipped laws, or, where a law
    of a user has fired, not as the model was written. Elsewhere programs are of kernels alone. `matched` are the
    kernels."""

    lowering: "Lowering"
    matched: MatchedCalls
    done: set[int] = field(default_factory=set)
    equal: dict[Operator, int] = field(default_factory=dict)  # terms of classes that a step may compute
    steps: set[Hashable] = field(default_factory=set)
    left: int = MOST_READ  # terms that may be read beside the standing ones

    @cached_property
    def reached(self) -> set[int]:
        """The classes that kernels compute, by any laws."""
        return reachable(self.lowering, self.matched)

    @cached_property
    def settled(self) -> set[int]:
        """The classes that kernels compute, without outputs and imported classes that they do not compute as the model
        was written: a law that lets a kernel compute the class of a term does not remove the term."""
        written = reachable(self.lowering, self.lowering.matched_imported)
        return self.reached - ((self.roots | self.imported) - written)

    @cached_property
    def imported(self) -> set[int]:
        """The classes of the model as it was written."""
        return {self.lowering.graph.named[entry.name] for entry in self.lowering.template.entries}

    @cached_property
    def roots(self) -> set[int]:
        """The classes of results."""
        imported = {entry.name for entry in self.lowering.template.entries}
        return {cls for name, cls in self.lowering.graph.named.items() if name not in imported}

    @cached_property
    def buffers(self) -> dict[Operator, int]:
        """The classes that a step may compute, by the standing term of each."""
        return {term: cls for cls, term in self.lowering.terms.items() if is_row_buffer(self.lowering, cls)}

    @cached_property
    def arrays(self) -> dict[Data, tuple[str, int]]:
        """The attribute that holds each array of the template, and its number there."""
        values = self.lowering.template.values
        named = {value: (name, 0) for name, value in values.items() if isinstance(value, Data)}
        for name, value in values.items():
            if isinstance(value, Pattern):
                named |= {data: (name, at) for at, data in enumerate(value.data)}
        return named

    @cached_property
    def needed(self) -> bool:
        """True where an output needs a class that no kernel computes: by the laws of the search, or, where a law of a
        user has fired, as the model was written."""
        custom = any(name not in SHIPPED for name in self.lowering.graph.fired)
        return not self.roots <= (self.settled if custom else self.reached)

    @cached_property
    def terms(self) -> ClassTerms:
        """The terms of each class, with the row counts of the priced batch; without prices no counts are known."""
        prices = self.lowering.prices  # None if a graph is only verified, not extracted
        rows = {str(size): float(count) for size, count in prices.extents.items()} if prices else {}
        return ClassTerms(
            self.lowering.graph,
            self.lowering.terms,
            self.lowering.template.values,
            self.is_open,
            lambda cls: is_row_buffer(self.lowering, cls),
            rows,
        )

    def is_open(self, cls: int) -> bool:
        """True for a class all of whose terms are read where it is a part of others: it depends on the input, and is no
        value that the model's own kernels compute."""
        if cls not in self.lowering.graph.facts["act"] or cls not in self.lowering.terms:
            return False
        return cls not in self.settled or not is_row_buffer(self.lowering, cls)

    def is_offered(self, cls: int) -> bool:
        """True for a class whose terms are steps."""
        if cls in (self.settled if self.needed else self.reached):
            return False
        if cls in self.roots:
            return True
        inputs = self.lowering.graph.facts["given"]
        return cls in self.lowering.terms and cls not in inputs and is_row_buffer(self.lowering, cls)

    def list_calls(self) -> Iterator[TermCall]:
        """Yield every term that is a step: the standing term of each class, and others up to `MOST_READ`."""
        todo = {cls for cls in self.roots | self.imported if self.is_offered(cls)}
        while todo:
            if self.needed:
                self.terms.read(todo)
            self.done |= todo
            self.equal |= {
                term.operator: cls
                for cls, terms in self.terms.known.items()
                if is_row_buffer(self.lowering, cls)
                for term in terms
            }
            inside = set[int]()
            for term in self.choose_terms(todo):
                calls = [*self.read_term(term)]
                yield from calls
                inside.update(at for _, _, bound in calls for at in bound.values())
            todo = {cls for cls in inside - self.done if self.is_offered(cls)}

    def choose_terms(self, classes: Iterable[int]) -> list[ClassTerm]:
        """Return the terms of these classes that are read: first the standing ones, then the next of each class in
        turn."""
        known = [self.terms.known.get(cls) or self.terms.standing_terms(cls) for cls in sorted(classes)]
        every = [term for turn in zip_longest(*known) for term in turn if term is not None]
        standing = [term for term in every if term.member is None]
        others = [term for term in every if term.member is not None]
        taken, self.left = others[: self.left], max(0, self.left - len(others))
        self.terms.left_out |= {term.cls for term in others[len(taken) :]}
        return [*standing, *taken]

    def read_term(self, read: ClassTerm) -> Iterator[TermCall]:
        """Yield a term as a step, over each choice of values in it."""
        term = read.operator
        if not is_writable(term):
            return  # a user's own objects have no text
        placed = find_placed(term)
        inside = {part: at for part, at in (self.buffers | self.equal).items() if at != read.cls and part not in placed}
        for used, kernel in self.list_readings(term, inside):
            if not inside.keys() >= {*used}:
                continue  # caches are for their own kernels
            names = {part: f"x{k}" for k, part in enumerate(used)}
            text, arrays = write_term(term, {part: k for k, part in enumerate(used)})
            wanted = {*names.values(), *(f"c{k}" for k in range(len(arrays)))}
            if not wanted <= KERNELS[kernel].operands.keys() or not self.arrays.keys() >= {*arrays}:
                continue
            step = read.cls, kernel, text, tuple(inside[part] for part in used), tuple(arrays)
            if step in self.steps:
                continue  # another term over the same values
            self.steps.add(step)

            def body(names: dict[Operator, str] = names, **o: Operator) -> Operator:
                """Rebuild the term over other operands, by their names."""
                return substitute(term, {part: o[name] for part, name in names.items()})

            interpreted = Interpreted(
                "interpreted",
                kernel,
                body,
                dict.fromkeys(names.values(), rows),
                {"term": text},
                arrays=tuple(self.arrays[array] for array in arrays),
                read=read,
                used=frozenset(used),
            )
            yield read.cls, interpreted, {name: inside[part] for part, name in names.items()}

    def list_readings(self, term: Operator, inside: Mapping[Operator, int]) -> Iterator[tuple[list[Operator], str]]:
        """Yield lists of values that a term may be read over, each with its kernel. Where an output needs a class that
        no kernel computes, a kernel of its own covers as many row-wise operators as there are down to the nearest
        computed values, by laws or as the model was written, or beyond these. A product over a monoid, and a scan, have
        kernels over the nearest values, a scan also with what makes its pairs. Other terms run over the nearest values,
        in float64, and also row by row over values that mix rows."""
        ends: list[Container[int]] = [self.reached, ()] if self.needed else []
        if ends and self.settled != self.reached:
            ends.insert(1, self.settled)
        regions = [
            find_region(term, inside, lambda part, end=end: inside.get(part) in end)  # type: ignore[misc]
            for end in ends
        ]
        distinct = {frozenset(used): used for used in regions if used is not None}
        yield from ((used, row_kernel_of(term, used)) for used in distinct.values())
        if distinct:
            return
        used = [*find_values(term, inside)]
        written = self.needed and {*used} <= inside.keys()
        generated = (fold_kernel_of(term, used) or scan_kernel_of(term, used)) if written else None
        yield used, generated or INTERPRET
        grown = find_scan_region(term, inside, lambda part: inside.get(part) in self.reached) if written else None
        if grown is not None and {*grown} != {*used}:
            yield grown, "scan_term"
        region = find_region(term, inside, lambda part: False, yields=True) if self.needed else None
        if region is not None:
            yield region, row_kernel_of(term, region)

    @property
    def limit(self) -> str | None:
        """A line of text if some class has more terms than were read; else None."""
        if not self.terms.left_out:
            return None
        return (
            f"terms: at most {MOST_TERMS} of a class and {MOST_READ} more of a graph are steps; "
            f"{len(self.terms.left_out)} classes have more"
        )


def is_row_buffer(lowering: "Lowering", cls: int) -> bool:
    """True for a buffer of rows: a value of the input, or of the places of rows alone, such as a scan of constants,
    that has a fixed number of columns and rows of a space, not of caches."""
    rows, columns = lowering.terms[cls].out[1:]
    facts = lowering.graph.facts
    return (
        (cls in facts["act"] or cls in facts["constant"] - facts["by_key"])
        and isinstance(rows, Space)
        and str(rows) != str(C)
        and isinstance(columns, int)
    )


def find_placed(term: Operator) -> set[Operator]:
    """Return the values whose places a term reads, and that are no rows of tokens: in a buffer picked rows have lost
    where they stood, so a step that reads it picks them itself."""
    readers = [
        node.children[:1] if node.kind.name == "compose" else node.children
        for node in term.walk()
        if (node.kind.name == "product" and reads_places(node.args[-1]))
        or (node.kind.name == "compose" and node.children[1].kind.name in BY_POSITION)
    ]
    below = {part for children in readers for child in children for part in child.walk()}
    return {part for part in below if part.out.rows is not T}


def reads_places(where: object) -> bool:
    """True for a pattern of the places of rows; one of a relation reads their numbers alone, which buffers have."""
    return isinstance(where, Pattern) and where is not everyone and where.relation is None


def find_values(term: Operator, inside: Mapping[Operator, int]) -> Iterator[Operator]:
    """Yield the outermost values that a term is made of, and its inputs, each once."""
    seen, todo = set(), list(term.children)
    while todo:
        part = todo.pop()
        if part not in seen:
            seen.add(part)
            if (part in inside and part.kind.name != "given") or part.kind.name == "entered":
                yield part
            else:
                todo += part.children


def reachable(lowering: "Lowering", calls: MatchedCalls) -> set[int]:
    """Return the classes that kernels compute from the inputs."""
    facts = lowering.graph.facts
    reached = set(facts["given"]) | {
        cls for cls, term in lowering.terms.items() if term.kind.name in ("symbol", "entered")
    }
    todo = [
        (cls, [at for name, at in call.bound if call.implementation.variables[name].name in ("value", "scores")])
        for cls, call in calls
    ]
    while todo:
        rest = [(cls, parts) for cls, parts in todo if not reached.issuperset(parts)]
        reached |= {cls for cls, parts in todo if reached.issuperset(parts)}
        if len(rest) == len(todo):
            break
        todo = [(cls, parts) for cls, parts in rest if cls not in reached]
    return reached
