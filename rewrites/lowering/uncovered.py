"""Terms as steps of their own: for a class that the model's own kernels do not compute, every term that it has, each
as one step that stands for as much of it as lies between it and values that are computed."""
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from opmatrix.algebra.data import Data
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.algebra.shapes import Space
from opmatrix.algebra.term import Operator, substitute
from opmatrix.runtime.codegen.folded_term import fold_kernel_of
from opmatrix.runtime.codegen.growing import find_region
from opmatrix.runtime.declarations.operands import C
from opmatrix.runtime.interpreted import is_writable, write_term
from opmatrix.runtime.kernels import KERNELS
from rewrites.laws import SHIPPED
from rewrites.laws.kernel_law import Implementation
from rewrites.laws.law import value as rows
from rewrites.lowering.class_terms import MOST_TERMS, ClassTerm, ClassTerms

if TYPE_CHECKING:
    from rewrites.lowering.lower import KernelCall, Lowering

MOST_READ = 64                                              # terms of a graph beside those that stand for its classes
INTERPRET = "interpret"
MatchedCalls = Sequence[tuple[int, "KernelCall"]]           # kernels, each with the class that it computes
TermCall = tuple[int, "Interpreted", dict[str, int]]        # a class, its term, the classes of the values in it


@dataclass(frozen=True, eq=False)
class Interpreted(Implementation):
    """A term of one graph, known by identity; `arrays` are what it speaks of: the name of an attribute, and which array
    of a pattern's; `read` is the term with the members that it was read by, `used` are the values in it."""

    arrays: tuple[tuple[str, int], ...] = ()
    read: ClassTerm | None = None
    used: frozenset[Operator] = frozenset()

    def data(self, values: Mapping[str, Any]) -> list[Data]:
        """The arrays, from a template's table."""
        return [read_array(values, *each) for each in self.arrays]


def read_array(values: Mapping[str, Any], name: str, at: int) -> Data:
    """One of the arrays of an attribute, from a template's table."""
    found: Data = each if isinstance(each := values[name], Data) else each.data[at]
    return found


@dataclass
class TermCalls:
    """The terms of a lowered graph that are steps: of the outputs, and of each value that one of these reads and no
    kernel computes. There are such steps where kernels do not compute all outputs by the shipped laws, or, where a law
    of a user's own has fired, not as the model was written; elsewhere programs are of kernels alone. `matched` are the
    kernels."""

    lowering: "Lowering"
    matched: MatchedCalls
    done: set[int] = field(default_factory=set)
    equal: dict[Operator, int] = field(default_factory=dict)            # terms of classes that a step may give
    steps: set[Hashable] = field(default_factory=set)
    left: int = MOST_READ                                   # terms that may be read beside those that stand for classes

    @cached_property
    def reached(self) -> set[int]:
        """The classes that kernels compute, by whatever laws."""
        return reachable(self.lowering, self.matched)

    @cached_property
    def settled(self) -> set[int]:
        """The classes that kernels compute, and that they computed as the model was written, if it had them: a law that
        lets a kernel compute what a term computed takes nothing away."""
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
        """The classes that a step may give, by the term that stands for each."""
        return {term: cls for cls, term in self.lowering.terms.items() if is_row_buffer(self.lowering, cls)}

    @cached_property
    def arrays(self) -> dict[Data, tuple[str, int]]:
        """The arrays of the template, by the attribute that holds each."""
        values = self.lowering.template.values
        named = {value: (name, 0) for name, value in values.items() if isinstance(value, Data)}
        for name, value in values.items():
            if isinstance(value, Pattern): named |= {data: (name, at) for at, data in enumerate(value.data)}
        return named

    @cached_property
    def needed(self) -> bool:
        """True where an output needs what no kernel computes: by the laws of the search, or, where a law of a user's
        own has fired, as the model was written."""
        own = any(name not in SHIPPED for name in self.lowering.graph.fired)
        return not self.roots <= (self.settled if own else self.reached)

    @cached_property
    def terms(self) -> ClassTerms:
        prices = self.lowering.prices                       # none where a graph is verified and nothing is chosen
        rows = {str(size): float(count) for size, count in prices.extents.items()} if prices else {}
        return ClassTerms(self.lowering.graph, self.lowering.terms, self.lowering.template.values, self.is_open,
                          lambda cls: is_row_buffer(self.lowering, cls), rows)

    def is_open(self, cls: int) -> bool:
        """True of a class all of whose terms are read where it is a part of others: it depends on the input, and is no
        value that the model's own kernels compute."""
        if cls not in self.lowering.graph.facts["act"] or cls not in self.lowering.terms: return False
        return cls not in self.settled or not is_row_buffer(self.lowering, cls)

    def is_offered(self, cls: int) -> bool:
        """True of a class whose terms are steps."""
        if cls in (self.settled if self.needed else self.reached): return False
        if cls in self.roots: return True
        given = self.lowering.graph.facts["given"]
        return cls in self.lowering.terms and cls not in given and is_row_buffer(self.lowering, cls)

    def list_calls(self) -> Iterator[TermCall]:
        """Every term that is a step: of each class the one that stands for it, and others as far as the limit goes."""
        todo = {cls for cls in self.roots | self.imported if self.is_offered(cls)}
        while todo:
            if self.needed: self.terms.read(todo)
            self.done |= todo
            self.equal |= {each.operator: cls for cls, terms in self.terms.known.items()
                           if is_row_buffer(self.lowering, cls) for each in terms}
            inside = set[int]()
            for each in self.choose_terms(todo):
                calls = [*self.read_term(each)]
                yield from calls
                inside.update(at for _, _, bound in calls for at in bound.values())
            todo = {cls for cls in inside - self.done if self.is_offered(cls)}

    def choose_terms(self, classes: Iterable[int]) -> list[ClassTerm]:
        """The terms of these classes that are read: first those that stand for them, then the next of each in turn."""
        known = [self.terms.known.get(cls) or self.terms.standing_terms(cls) for cls in sorted(classes)]
        every = [each for turn in zip_longest(*known) for each in turn if each is not None]
        standing = [each for each in every if each.member is None]
        others = [each for each in every if each.member is not None]
        taken, self.left = others[:self.left], max(0, self.left - len(others))
        self.terms.left_out |= {each.cls for each in others[len(taken):]}
        return [*standing, *taken]

    def read_term(self, read: ClassTerm) -> Iterator[TermCall]:
        """A term as a step, over each choice of values in it."""
        term = read.operator
        if not is_writable(term): return                    # one's own things have no text
        inside = {part: at for part, at in (self.buffers | self.equal).items() if at != read.cls}
        for used, kernel in self.list_readings(term, inside):
            if not inside.keys() >= {*used}: continue       # caches are for their own kernels
            names = {part: f"x{k}" for k, part in enumerate(used)}
            text, arrays = write_term(term, {part: k for k, part in enumerate(used)})
            wanted = {*names.values(), *(f"c{k}" for k in range(len(arrays)))}
            if not wanted <= KERNELS[kernel].operands.keys() or not self.arrays.keys() >= {*arrays}: continue
            step = read.cls, kernel, text, tuple(inside[part] for part in used), tuple(arrays)
            if step in self.steps: continue                 # another term over the same values
            self.steps.add(step)
            def body(names: dict[Operator, str] = names, **o: Operator) -> Operator:
                return substitute(term, {part: o[name] for part, name in names.items()})
            made = Interpreted("interpreted", kernel, body, dict.fromkeys(names.values(), rows), {"term": text},
                               arrays=tuple(self.arrays[array] for array in arrays), read=read, used=frozenset(used))
            yield read.cls, made, {name: inside[part] for part, name in names.items()}

    def list_readings(self, term: Operator, inside: Mapping[Operator, int]) -> Iterator[tuple[list[Operator], str]]:
        """The values that a term may be read over, and the kernel. Where something is needed that no kernel computes:
        as much of it as goes through rows one by one, down to what kernels compute, by laws or as the model was
        written, or beyond that as far as it goes, in a kernel of its own; a product over a monoid over the nearest
        values, in a kernel too; else over these, in float64, and row by row over those that mix rows."""
        ends: list[Container[int]] = [self.reached, ()] if self.needed else []
        if ends and self.settled != self.reached: ends.insert(1, self.settled)
        regions = [find_region(term, inside, lambda part, end=end: inside.get(part) in end)     # type: ignore[misc]
                   for end in ends]
        distinct = {frozenset(used): used for used in regions if used is not None}
        yield from ((used, "row_term") for used in distinct.values())
        if distinct: return
        used = [*find_values(term, inside)]
        folded = fold_kernel_of(term, used) if self.needed and {*used} <= inside.keys() else None
        yield used, folded or INTERPRET
        region = find_region(term, inside, lambda part: False, yields=True) if self.needed else None
        if region is not None: yield region, "row_term"

    @property
    def limit(self) -> str | None:
        """A line where a class has more terms than were read."""
        if not self.terms.left_out: return None
        return (f"terms: at most {MOST_TERMS} of a class and {MOST_READ} more of a graph are steps; "
                f"{len(self.terms.left_out)} classes have more")


def is_row_buffer(lowering: "Lowering", cls: int) -> bool:
    """True of a buffer of rows: a value that depends on the input and has rows of a space, not those of caches, and
    columns of known number."""
    rows, columns = lowering.terms[cls].out[1:]
    return cls in lowering.graph.facts["act"] and isinstance(rows,
                                                             Space) and str(rows) != str(C) and isinstance(columns, int)


def find_values(term: Operator, inside: Mapping[Operator, int]) -> Iterator[Operator]:
    """The values that a term is made of, the outermost ones, each once, and what enters."""
    seen, todo = set(), list(term.children)
    while todo:
        part = todo.pop()
        if part not in seen:
            seen.add(part)
            if (part in inside and part.kind.name != "given") or part.kind.name == "entered": yield part
            else: todo += part.children


def reachable(lowering: "Lowering", calls: MatchedCalls) -> set[int]:
    """The classes that kernels compute from what is given."""
    facts = lowering.graph.facts
    reached = set(facts["given"]) | {cls for cls, term in lowering.terms.items()
                                     if term.kind.name in ("symbol", "entered")}
    todo = [(cls, [at for name, at in call.bound if call.implementation.variables[name].name in ("value", "scores")])
            for cls, call in calls]
    while todo:
        rest = [(cls, parts) for cls, parts in todo if not reached.issuperset(parts)]
        reached |= {cls for cls, parts in todo if reached.issuperset(parts)}
        if len(rest) == len(todo): break
        todo = [(cls, parts) for cls, parts in rest if cls not in reached]
    return reached
