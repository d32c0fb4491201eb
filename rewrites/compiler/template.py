"""A layer without its numbers: the text that enters the graph, and a table of the numbers by name. Layers of equal
structure have equal text and share one graph."""
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from opmatrix.data import Data
from opmatrix.shapes import Shape
from opmatrix.signature import Port
from opmatrix.term import KINDS, PROPERTIES, Operator
from rewrites.laws import facts


class Entry(NamedTuple):
    """One imported node: its name, kind, children by name and attributes by name."""

    name: str
    kind: str
    children: tuple[str, ...]
    attributes: tuple[str, ...]


class Table:
    """Attributes and their names in the graph. Arrays and sizes are named in order of appearance."""

    def __init__(self) -> None:
        self.names: dict[Any, str] = {}
        self.values: dict[str, Any] = {}

    def name(self, value: Any) -> str:
        numeric = isinstance(value, (Data, Shape, Port, int, float))
        kind = type(value).__name__.lower()
        label = f"{kind}{len(self.names)}" if numeric else getattr(value, "__name__", None) or str(value)
        key = (type(value).__name__, value if numeric else label)
        if key not in self.names:
            self.names[key], self.values[label] = label, value
        return self.names[key]


@dataclass(frozen=True)
class Template:
    """`text` is the signature; `values` the numbers; `entries` the imported nodes, children first; `roots` by name."""

    text: str
    values: dict[str, Any]
    entries: tuple[Entry, ...]

    @property
    def names(self) -> dict[Any, str]:
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
        """`leaves` are the borders: opaque values that depend on the input."""
        table, entries, lines, names = Table(), [], [], dict[Operator, str]()
        measured, flags = [name for name, said in PROPERTIES.items() if said.measured], facts.flags()
        for root in roots.values():
            for term in root.walk():
                if term not in names:
                    names[term] = f"$t{len(names)}"
                    entries.append(Entry(names[term], term.kind.name, tuple(names[c] for c in term.children),
                                         tuple(table.name(a) for a in term.attributes)))
                    lines.append(f"(let {names[term]} {write_node(entries[-1])})")
                    lines += [f"({fact} {names[term]})" for fact in find_facts(term, leaves, measured)]
        lines += [f"(let ${name} {names[term]})" for name, term in roots.items()]
        lines += [f'({facts.name_flag(flag)} "{name}")' for name, value in table.values.items() for flag in flags
                  if getattr(value, flag, False) is True]
        return cls("\n".join(lines), table.values, tuple(entries))

    def instance(self, values: dict[str, Any]) -> dict[str, Operator]:
        """The imported operators, by name, with other numbers in them."""
        built: dict[str, Operator] = {}
        for entry in self.entries:
            children, attributes = (built[c] for c in entry.children), (values[a] for a in entry.attributes)
            built[entry.name] = Operator(KINDS[entry.kind], *children, *attributes)
        return built


    def splits(self) -> set[tuple[int, int]]:
        """Every number of heads that columns are cut into or joined from, with the columns of one."""
        terms, found = self.instance(self.values), set[tuple[Any, Any]]()
        for entry in self.entries:
            if entry.kind == "compose" and terms[entry.children[1]].kind.name in ("heads", "join"):
                which = entry.name if terms[entry.children[1]].kind.name == "heads" else entry.children[0]
                found.add((terms[which].out.heads, terms[which].out.cols))
        return {(heads, columns) for heads, columns in found if isinstance(heads, int) and isinstance(columns, int)}

    def turns(self) -> set[tuple[int, int]]:
        """Of every rotation half the columns that turn, and how many do not."""
        tables = ((self.values[entry.attributes[0]], self.values[entry.attributes[2]]) for entry in self.entries
                  if entry.kind == "rotate")
        return {(cos.shape[1], rest) for cos, rest in tables}

    def sums(self) -> set[tuple[int, int]]:
        """The columns of values that stand side by side."""
        terms = self.instance(self.values)
        found = {tuple(terms[child].out.cols for child in entry.children) for entry in self.entries
                 if entry.kind == "row"}
        return {(a, b) for a, b in found if isinstance(a, int) and isinstance(b, int)}

    def shrunken(self, draw: Callable[[tuple[int, ...]], Any]) -> dict[str, Any]:
        """Its values at small sizes that fit one another as its own do."""
        return shrink(self.values, draw, self.splits(), self.turns(), self.sums())


def write_node(entry: Entry) -> str:
    return f"({' '.join([f'K_{entry.kind}', *entry.children, *(quoted(a) for a in entry.attributes)])})"


def quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def find_facts(term: Operator, leaves: Sequence[Operator], measured: Sequence[str]) -> Iterator[str]:
    """What an imported term states of itself: what its sizes tell, and all of a symbol. The rest follows."""
    if term in leaves or term.kind.name in ("given", "entered"):
        yield "act"
    if term.kind.name == "given":
        yield "given"
    if not term.children and not term.uniform and term.row_linear:
        yield "turning"
    yield from (name for name in (PROPERTIES if term.kind.name == "symbol" else measured) if getattr(term, name))


def shrink(values: dict[str, Any], draw: Callable[[tuple[int, ...]], Any],
           splits: Iterable[tuple[int, int]] = (), turns: Iterable[tuple[int, int]] = (),
           sums: Iterable[tuple[int, int]] = ()) -> dict[str, Any]:
    """The same table at sizes of at most 16 or so: equal sizes stay equal, different ones different. `splits` are the
    numbers of heads, each with the columns of one, whose product stays a product; where nobody says, a number that
    divides a size is one of heads. `turns` are those of `Template.turns`, twice the first of which and the second stay
    a head's columns; `sums` stay sums. Where not all of this can be, sizes stay as they are."""
    counts, turns = {v for v in values.values() if type(v) is int}, [*turns]
    parts = {a + b: (a, b) for a, b in sums}
    sizes = sorted({s for v in values.values() for s in sizes_of(v)} | counts
                   | {2 * half + rest for half, rest in turns}
                   | {size for total, both in parts.items() for size in (total, *both)})
    heads = counts - {rest for _, rest in turns}
    small = products([*splits] or [(c, size // c) for c in heads for size in sizes if 1 < c < size and size % c == 0],
                     turns)
    for size in sizes:
        if size not in small:
            small[size] = sum(small[part] for part in parts[size]) if size in parts else \
                next(even for even in range(4, 2 * len(small) + 8, 2) if even not in small.values())
    if any(small[total] != small[a] + small[b] for total, (a, b) in parts.items()):
        small = {size: size for size in {0, 1, *small}}
    return {name: shrunken(value, small, draw) for name, value in values.items()}


def products(pairs: Sequence[tuple[int, int]], turns: Sequence[tuple[int, int]] = ()) -> dict[int, int]:
    """Small numbers for heads, for the columns of one and for both together, and for the columns that turn; the numbers
    themselves where these are so much alike that no smaller ones are."""
    small = {0: 0, 1: 1}
    for power, heads in enumerate(sorted({heads for heads, _ in pairs} - {1})):
        small[heads] = 2 ** (power + 1)
    turned = {2 * half + rest: (half, rest) for half, rest in turns}
    for number, columns in enumerate(sorted({columns for _, columns in pairs} | turned.keys())):
        half, rest = turned.get(columns, (columns, 0))
        small.setdefault(half, 3 + 2 * number)
        small.setdefault(rest, 6 + 4 * number)
        small.setdefault(columns, 2 * small[half] + small[rest])
    same = all(small[2 * half + rest] == 2 * small[half] + small[rest] for half, rest in turns)
    if same and all(small.setdefault(heads * columns, small[heads] * small[columns]) == small[heads] * small[columns]
                    for heads, columns in pairs):
        return small
    whole = {size for heads, columns in pairs for size in (heads, columns, heads * columns)}
    return {size: size for size in whole | {0, 1}
            | {size for half, rest in turns for size in (half, rest, 2 * half + rest)}}


def sizes_of(value: Any) -> tuple[int, ...]:
    if isinstance(value, Data):
        return tuple(value.array.shape)
    if isinstance(value, Port):
        return value.columns, value.heads
    if not isinstance(value, Shape):
        return ()
    return tuple(int(s) for s in value if getattr(s, "is_Integer", isinstance(s, int)))


def shrunken(value: Any, small: dict[int, int], draw: Callable[[tuple[int, ...]], Any]) -> Any:
    if isinstance(value, Data) and value.array.size == 1:   # an eps that nobody would see becomes one that is seen
        return value if abs(value.array.item()) > 1e-3 else Data(abs(draw((1,))))
    if isinstance(value, Data):
        name = value.name or (f"{value.base.name}.T" if value.base and value.base.name else None)
        return Data(draw(tuple(small[s] for s in value.array.shape)), name)     # what errors call it
    if isinstance(value, Port):
        return replace(value, columns=small.get(value.columns, value.columns),
                       heads=small.get(value.heads, value.heads))
    if isinstance(value, Shape):
        return Shape(*(small.get(s, s) if isinstance(s, int) else s for s in value))
    return small[value] if type(value) is int else value
