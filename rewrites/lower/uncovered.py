"""What no kernel computes is read as a term: for a class that no chain of kernels reaches, one step that stands for as
much of its term as lies between it and values that are computed."""
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opmatrix.algebra.data import Data
from opmatrix.algebra.shapes import Space
from opmatrix.algebra.term import Operator, substitute
from opmatrix.patterns import Pattern
from opmatrix.regions.folded_term import fold_kernel_of
from opmatrix.regions.growing import find_region
from opmatrix.runtime.interpreted import is_writable, write_term
from opmatrix.runtime.kernels import KERNELS
from opmatrix.runtime.operands import C
from rewrites.law import value as rows
from rewrites.laws.kernel_law import Implementation

if TYPE_CHECKING:
    from rewrites.lower.lower import KernelCall, Lowering


@dataclass(frozen=True, eq=False)
class Interpreted(Implementation):
    """A term of one graph, known by identity; `arrays` are what it speaks of: the name of an attribute, and which array
    of a pattern's."""

    arrays: tuple[tuple[str, int], ...] = ()

    def data(self, values: Mapping[str, Any]) -> list[Data]:
        """The arrays, from a template's table."""
        return [read_array(values, *each) for each in self.arrays]


def read_array(values: Mapping[str, Any], name: str, at: int) -> Data:
    """One of the arrays of an attribute, from a template's table."""
    found: Data = each if isinstance(each := values[name], Data) else each.data[at]
    return found


def interpret_uncovered(lowering: "Lowering",
                calls: "Sequence[tuple[int, KernelCall]]") -> Iterator[tuple[int, Interpreted, dict[str, int]]]:
    """A class, its term, and the classes of the values in it, for each class that these calls do not reach."""
    facts, terms = lowering.graph.facts, lowering.terms
    reached, values = reachable(lowering,
                                calls), {term: cls for cls, term in terms.items() if is_row_buffer(lowering, cls)}
    named = {value: (name, 0) for name, value in lowering.template.values.items() if isinstance(value, Data)}
    for name, value in lowering.template.values.items():
        if isinstance(value, Pattern): named |= {data: (name, at) for at, data in enumerate(value.data)}
    imported = {entry.name for entry in lowering.template.entries}
    roots = {cls for name, cls in lowering.graph.named.items() if name not in imported}
    needed = not roots <= reached                           # else kernels do all, and programs stay what they are
    for cls in (roots | {lowering.graph.named[name] for name in imported}) - reached:
        if cls in roots or (is_row_buffer(lowering, cls) and cls not in facts["given"]):
            term = terms[cls]
            inside = {part: at for part, at in values.items() if part is not term}
            if not is_writable(term): continue              # one's own things have no text
            for used, kernel in list_readings(term, inside, reached, needed):
                if not inside.keys() >= {*used}: continue       # caches are for their own kernels
                names = {part: f"x{k}" for k, part in enumerate(used)}
                text, arrays = write_term(term, {part: k for k, part in enumerate(used)})
                wanted = {*names.values(), *(f"c{k}" for k in range(len(arrays)))}
                if not wanted <= KERNELS[kernel].operands.keys(): continue
                def body(term: Operator = term, names: dict[Operator, str] = names, **o: Operator) -> Operator:
                    return substitute(term, {part: o[name] for part, name in names.items()})
                yield (cls, Interpreted("interpreted", kernel, body, dict.fromkeys(names.values(), rows),
                                        {"term": text}, arrays=tuple(named[array] for array in arrays)),
                                        {name: inside[part] for part, name in names.items()})


def list_readings(term: Operator, inside: Mapping[Operator, int], reached: Container[int],
                  needed: bool) -> Iterator[tuple[list[Operator], str]]:
    """What a term may be read over, and by which kernel. Where something is needed that no kernel computes: as much of
    it as goes through rows one by one, down to what kernels compute, or beyond that as far as it goes, in a kernel of
    its own; a product over a monoid over the nearest values, in a kernel too; else over these, in float64."""
    near = find_region(term, inside, lambda part: inside.get(part) in reached) if needed else None
    if near is None:
        used = [*find_values(term, inside)]
        found = fold_kernel_of(term, used) if needed and {*used} <= inside.keys() else None
        yield used, found or "interpret"
    else:
        yield near, "row_term"
        far = find_region(term, inside, lambda part: False)
        if far is not None and {*far} != {*near}: yield far, "row_term"


def is_row_buffer(lowering: "Lowering", cls: int) -> bool:
    """Whether it is a buffer of rows: it depends on the input, and has rows of a space, not those of caches, and
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


def reachable(lowering: "Lowering", calls: "Sequence[tuple[int, KernelCall]]") -> set[int]:
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
