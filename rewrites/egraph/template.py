"""A layer without its numbers: the text that enters the graph, and a table of the numbers by name. Layers of equal
structure have equal text and share one graph."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from opmatrix.algebra.batch.signature import Port
from opmatrix.algebra.data import Data
from opmatrix.algebra.positions.lags import LAGS, Lag
from opmatrix.algebra.shapes import Shape
from opmatrix.algebra.term import KINDS, PROPERTIES, Operator
from rewrites.egraph.sizing import ask_shapes, shrink
from rewrites.laws import facts
from rewrites.laws.guards import SAME_SIZE
from rewrites.laws.law import Law, is_variable, list_summands
from rewrites.laws.spelling import spelled


class ImportedNode(NamedTuple):
    """One imported node: its name, kind, children by name and attributes by name."""

    name: str
    kind: str
    children: tuple[str, ...]
    attributes: tuple[str, ...]


class AttributeTable:
    """Attributes and their names in the graph: each object has its own. Arrays and sizes are named in order of
    appearance, others as in laws."""

    def __init__(self) -> None:
        self.names: dict[Hashable, str] = {}
        self.values: dict[str, Any] = {}

    def name(self, value: Hashable) -> str:
        """Return the name of an attribute in the graph, a new one when it is first met."""
        key = type(value), value
        if key not in self.names:
            numeric = isinstance(value, (Data, Shape, Port, int, float)) and not isinstance(value, Lag)
            label = f"{type(value).__name__.lower()}{len(self.names)}" if numeric else spelled(value)
            self.names[key], self.values[label] = label, value
            if isinstance(value, Lag):  # laws add lags
                self.values |= {spelled(other): other for other in LAGS}
        return self.names[key]


@dataclass(frozen=True)
class Template:
    """`text` is the signature; `values` the numbers; `entries` the imported nodes, children first; `roots` by name."""

    text: str
    values: dict[str, Any]
    entries: tuple[ImportedNode, ...]

    @property
    def names(self) -> dict[Data, str]:
        """The name of each array."""
        return {value: name for name, value in self.values.items() if isinstance(value, Data)}

    @property
    def entered(self) -> dict[str, Port]:
        """The inputs that it reads, by the name of their node."""
        return {entry.name: self.values[entry.attributes[0]] for entry in self.entries if entry.kind == "entered"}

    @property
    def weights(self) -> list[Data]:
        """The arrays that are weights, in order."""
        return [self.values[entry.attributes[0]] for entry in self.entries if entry.kind == "weight"]

    @classmethod
    def of(cls, roots: dict[str, Operator], leaves: Sequence[Operator] = ()) -> "Template":
        """Return the template of these roots. `leaves` are the borders: opaque values that depend on the input."""
        table, entries, lines, names = AttributeTable(), [], [], dict[Operator, str]()
        measured = [name for name, declaration in PROPERTIES.items() if declaration.measured]
        for root in roots.values():
            for term in root.walk():
                if term not in names:
                    names[term] = f"$t{len(names)}"
                    entries.append(
                        ImportedNode(
                            names[term],
                            term.kind.name,
                            tuple(names[c] for c in term.children),
                            tuple(table.name(a) for a in term.attributes),
                        )
                    )
                    lines.append(f"(let {names[term]} {write_node(entries[-1])})")
                    lines += [f"({fact} {names[term]})" for fact in find_facts(term, leaves, measured)]
        lines += [f"(let ${name} {names[term]})" for name, term in roots.items()]
        return cls("\n".join([*lines, *state_flags(table.values)]), table.values, tuple(entries))

    def instance(self, values: Mapping[str, object]) -> dict[str, Operator]:
        """Return the imported operators, by name, with other numbers in them."""
        built: dict[str, Operator] = {}
        for entry in self.entries:
            children, attributes = (built[c] for c in entry.children), (values[a] for a in entry.attributes)
            built[entry.name] = Operator(KINDS[entry.kind], *children, *attributes)
        return built

    def shrunken(self, draw: Callable[[tuple[int, ...]], np.ndarray]) -> dict[str, object]:
        """Return its values at small sizes that fit one another as its own do; at its own sizes, where no such ones are
        found."""
        small = self.small_sizes()
        return {name: shrunken(value, small, draw) for name, value in self.values.items()}

    def small_sizes(self) -> dict[int, int]:
        """Return a small size for each size of its values; sizes that stay are left out. Empty if the computation of a
        kind's sizes cannot be traced."""
        try:
            small = shrink(ask_shapes(self.values, self.instance))
            self.instance({name: shrunken(value, small, np.ones) for name, value in self.values.items()})
        except (TypeError, ValueError):
            return {}
        return small


def write_node(entry: ImportedNode) -> str:
    """Write an imported node as an expression of egglog."""
    return f"({' '.join([f'K_{entry.kind}', *entry.children, *(quoted(a) for a in entry.attributes)])})"


def quoted(name: str) -> str:
    """Write a text as a string of egglog."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def find_facts(term: Operator, leaves: Sequence[Operator], measured: Sequence[str]) -> Iterator[str]:
    """Yield the facts that an imported term states: those from its sizes, and all facts of a symbol. Rules derive the
    rest."""
    if term in leaves or term.kind.name in ("given", "entered"):
        yield "act"
    if term.kind.name == "given":
        yield "given"
    if not term.children and not term.uniform and term.row_linear:
        yield "turning"
    if term.kind.name == "by_distance":
        yield "distant"
    yield from (name for name in (PROPERTIES if term.kind.name == "symbol" else measured) if getattr(term, name))


def sizes_of(value: object) -> tuple[int, ...]:
    """Return the sizes of an attribute that are numbers: axes of an array, columns and heads of a port, a shape."""
    if isinstance(value, Data):
        return tuple(value.shape)
    if isinstance(value, Port):
        return value.columns, value.heads
    if not isinstance(value, Shape):
        return ()
    return tuple(int(s) for s in value if getattr(s, "is_Integer", isinstance(s, int)))


def shrunken(value: object, small: dict[int, int], draw: Callable[[tuple[int, ...]], np.ndarray]) -> object:
    """Return an attribute at small sizes: arrays are drawn anew, single numbers stay unless they are tiny."""
    if isinstance(value, Data) and prod(value.shape) == 1:  # an eps too small for a check becomes one with an effect
        return value if abs(value.array.item()) > 1e-3 else Data(abs(draw(tuple(map(int, value.shape)))))
    if isinstance(value, Data):
        name = value.name or (f"{value.base.name}.T" if value.base and value.base.name else None)
        return Data(draw(tuple(small.get(s, s) for s in map(int, value.shape))), name)  # the name is for error texts
    if isinstance(value, Port):
        return replace(
            value, columns=small.get(value.columns, value.columns), heads=small.get(value.heads, value.heads)
        )
    if isinstance(value, Shape):
        return Shape(*(small.get(s, s) if isinstance(s, int) else s for s in value))
    return small.get(value, value) if type(value) is int else value


def spell_values(template: Template, laws: Sequence[Law]) -> Template:
    """Return the template with the numbers, monoids and patterns of laws under their names in laws, and with the facts
    that a law needs of a side that is a variable alone; the template itself if nothing is added."""
    spoken = find_spoken(tuple(laws))
    names = {(type(value), value): name for name, value in spoken.items()}
    called = {
        label: name
        for label, value in template.values.items()
        if (name := names.get((type(value), value), label)) != label
    }
    added = {name: value for name, value in spoken.items() if name not in template.values}
    lines = [*state_flags(added), *state_imported(template, laws), *state_sizes(template, laws)]
    if not called and not added and not lines:
        return template
    text = template.text
    for label, name in called.items():
        text = text.replace(quoted(label), quoted(name))
    entries = tuple(
        entry._replace(attributes=tuple(called.get(attribute, attribute) for attribute in entry.attributes))
        for entry in template.entries
    )
    values = {called.get(label, label): value for label, value in template.values.items()} | added
    return Template("\n".join([text, *lines]), values, entries)


def state_flags(values: Mapping[str, object]) -> list[str]:
    """Return the flags of monoids and patterns, as facts about their names."""
    return [
        f"({facts.name_flag(flag)} {quoted(name)})"
        for name, value in values.items()
        for flag in facts.flags()
        if getattr(value, flag, False) is True
    ]


def state_imported(template: Template, laws: Sequence[Law]) -> list[str]:
    """Return the fact `imported` for each node, where a law needs it and the text does not state it."""
    lone = any(side.kind.name == "symbol" for law in laws for sides in law.sides() for side in sides)
    lines = [f"(imported {entry.name})" for entry in template.entries] if lone else []
    return lines if lines and lines[0] not in template.text else []


def state_sizes(template: Template, laws: Sequence[Law]) -> list[str]:
    """Return the sizes of imported terms, where a law requires equal ones and the text does not state them."""
    if f"({SAME_SIZE} " not in " ".join(guard for law in laws for guard in law.when):
        return []
    sized = {name: term.out for name, term in template.instance(template.values).items()}
    lines = [
        f'(set (sized_as {name}) "{out.heads} {out.rows} {out.cols}")'
        for name, out in sized.items()
        if isinstance(out.cols, int) and isinstance(out.heads, int)
    ]
    return lines if lines and lines[0] not in template.text else []


@cache
def find_spoken(laws: tuple[Law, ...]) -> dict[str, Any]:
    """Return the numbers, monoids and patterns in laws, by their names there."""
    return {
        spelled(value): value
        for law in laws
        for side in law.sides()
        for root in side
        for term in root.walk()
        if term.kind.name != "symbol"
        for value in term.attributes
        if not (is_variable(value) or list_summands(value))
    }
