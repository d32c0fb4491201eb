"""A minimal reproducer of a disagreement: the smallest term, the fewest laws, the smallest sizes and fewest rows that
still disagree (delta debugging: Zeller and Hildebrandt 2002), as a few lines of the algebra."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from math import inf
from time import monotonic
from typing import Any

import numpy as np

from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import I, symbol, weight
from opmatrix.algebra.shapes import Shape, T
from opmatrix.algebra.term import Operator, substitute
from opmatrix.display.show import labels, text
from rewrites.egraph.egraph import saturate
from rewrites.egraph.template import Template, shrunken, sizes_of, spell_values
from rewrites.laws.flat import flat
from rewrites.laws.law import ROWS, Law
from rewrites.verify.graphs import Disagreement, disagreements

MAX_GRAPHS, SHRINK_SECONDS = 200, 20  # graphs that may be tried; time limit in seconds
LENGTHS = (1,), (2,), (1, 1), (2, 1)  # lengths of sentences, fewest rows first
SPEAKS = (
    *(f"opmatrix.algebra.{module}" for module in ("operators", "monoids", "nodes", "term")),
    "opmatrix.algebra.positions.patterns",
    "opmatrix",
    "rewrites.laws.kinds",
    "rewrites.laws.law",
)


def check_term(term: Operator, laws: Sequence[Law], lengths: Sequence[int] = ROWS, seed: int = 0) -> list[Disagreement]:
    """Return the disagreements in the graph that the laws make of an operator, at a random input of sentences of these
    lengths."""
    border = entrance(term)
    template = Template.of({"term": flat(term, border)}, [border])
    template = spell_values(template, laws)
    graph = saturate(template, laws, trace=True, rounds=3, budget=1500)
    return disagreements(graph, template, np.random.default_rng(seed), lengths)


def entrance(term: Operator) -> Operator:
    """Return the opaque input of an operator."""
    width = term.into.cols if isinstance(term.into.cols, int) else 1
    return symbol("border", Shape(1, T, width), Shape(1, T, width))


@dataclass
class Failure:
    """An operator, laws and lengths of sentences that disagree."""

    term: Operator
    laws: tuple[Law, ...]
    lengths: tuple[int, ...] = ROWS
    found: Disagreement | None = None

    def weight(self) -> tuple[int, int, int]:
        """Return the size of the case, smaller is better: nodes, numbers of arrays, rows."""
        data = [a for node in self.term.walk() for a in node.attributes if isinstance(a, Data)]
        return (sum(1 for _ in self.term.walk()), sum(a.array.size for a in data), sum(self.lengths))


def same_fault(found: Disagreement, first: Disagreement) -> bool:
    """True if `found` may be the fault that was seen first: made by the same laws, of the same kernel or fact, and a
    difference of numbers if the first was one."""
    same = bool({*found.laws} & {*first.laws}) if first.laws else not found.laws
    return same and found.kernel == first.kernel and (found.difference < np.inf or first.difference == np.inf)


class Shrinker:
    """A search for smaller cases, as long as they disagree, graphs may be tried and time is left."""

    def __init__(self, case: Failure, seed: int, first: Disagreement, until: float = inf) -> None:
        self.best, self.seed, self.left, self.first, self.until = case, seed, MAX_GRAPHS, first, until

    def tries(self, **changed: Any) -> bool:
        """Try a changed case. True if it disagrees too; it is then the best so far."""
        if self.left <= 0 or monotonic() > self.until:
            return False
        self.left -= 1
        case = replace(self.best, **changed)
        try:
            wrong = check_term(case.term, case.laws, case.lengths, self.seed)
        except (TypeError, ValueError, KeyError):
            return False
        if not (same := [disagreement for disagreement in wrong if same_fault(disagreement, self.first)]):
            return False
        self.best = replace(case, found=same[0])
        return True

    def run(self) -> Failure:
        """Make the case smaller by turns: laws, terms and sizes, lengths, numbers, laws again."""
        self.laws()
        while self.terms() or self.sizes():
            pass
        for lengths in LENGTHS:
            if self.tries(lengths=lengths):
                break
        self.numbers()
        self.laws()
        return self.best

    def laws(self) -> None:
        """Keep the laws that the disagreement names, if that is enough; else drop laws that are not needed, half of
        them at a time."""
        named = tuple(law for law in self.best.laws if self.best.found and law.name in self.best.found.laws)
        if self.tries(laws=named):
            pass
        step = len(self.best.laws)
        while step := step // 2:
            for lo in range(len(self.best.laws) - step, -1, -step):
                left = self.best.laws[:lo] + self.best.laws[lo + step :]
                if len(left) < len(self.best.laws):
                    self.tries(laws=left)

    def terms(self) -> bool:
        """Try a part for the whole, a part of a part for the part, or the input itself for a part."""
        return any(
            self.tries(term=smaller)
            for smaller in sorted(set(list_smaller(self.best.term)), key=count_nodes)
            if count_nodes(smaller) < count_nodes(self.best.term)
        )

    def sizes(self) -> bool:
        """Try one size made smaller everywhere, or all sizes that a number divides made smaller by it."""
        template = Template.of({"term": self.best.term})
        have = sorted(
            {s for v in template.values.values() for s in sizes_of(v)}
            | {v for v in template.values.values() if type(v) is int}
        )
        maps = [{size: small} for size in have for small in (1, 2, 3) if small < size]
        maps += [{size: size // by for size in have if size % by == 0} for by in (2, 3)]
        rng = np.random.default_rng(self.seed)
        return any(
            self.tries(term=term)
            for sizes in maps
            if (term := resized(template, sizes, rng)) is not None
            and Failure(term, ()).weight() < Failure(self.best.term, ()).weight()
        )

    def numbers(self) -> None:
        """Try whole numbers, then numbers of two decimals."""
        template, rng = Template.of({"term": self.best.term}), np.random.default_rng(self.seed)
        for most in (2, 3, 9):
            values = {
                name: Data(rng.integers(1, most + 1, v.shape) * rng.choice([-1.0, 1.0], v.shape))
                if isinstance(v, Data)
                else v
                for name, v in template.values.items()
            }
            if self.tries(term=last(template, values)):
                return
        plain = {name: Data(v.array.round(2)) if isinstance(v, Data) else v for name, v in template.values.items()}
        self.tries(term=last(template, plain))


def count_nodes(term: Operator) -> int:
    """Count the nodes of a term, each once."""
    return sum(1 for _ in term.walk())


def last(template: Template, values: dict[str, object]) -> Operator:
    """Return the last root of a template, over other numbers."""
    return [*template.instance(values).values()][-1]


def resized(template: Template, sizes: dict[int, int], rng: np.random.Generator) -> Operator | None:
    """Return the term at other sizes; None if it does not fit."""
    every = {s: s for v in template.values.values() for s in (*sizes_of(v), *([v] if type(v) is int else []))}
    try:
        return last(
            template,
            {
                name: shrunken(value, every | sizes, lambda shape: rng.normal(size=shape))
                for name, value in template.values.items()
            },
        )
    except (TypeError, ValueError, KeyError):
        return None


def list_smaller(term: Operator) -> Iterator[Operator]:
    """Yield smaller operators: its parts; itself with a part replaced by a part of that part, by the input or by a
    weight."""
    nodes = [node for node in term.walk() if node.children]
    for node in reversed(nodes):
        yield node
    for node in nodes:
        for other in (*node.children, I, weight(Data(np.ones((2, 3))))):
            try:
                if isinstance(node.out.cols, int) and other.kind.name == "weight":
                    into = term.into.cols
                    other = weight(Data(np.linspace(-1, 1, int(into) * node.out.cols).reshape(int(into), -1)))
                smaller = substitute(term, {node: other})
            except (TypeError, ValueError):
                continue
            yield smaller


# ---- as text


def reproducer(template: Template, laws: Sequence[Law], found: Disagreement, seed: int) -> str:
    """Return lines of Python that fail by an assert as long as the disagreement exists; empty if no single operator of
    the template shows it in time."""
    until = monotonic() + SHRINK_SECONDS
    case = start(template, tuple(laws), found, seed, until)
    return "" if case is None else format_case(Shrinker(case, seed, found, until).run(), seed)


def start(
    template: Template, laws: tuple[Law, ...], found: Disagreement, seed: int, until: float = inf
) -> Failure | None:
    """Return the first imported operator, small ones first, that disagrees by the named laws (by no law, where a fact
    alone is wrong), else by all laws; None if there is none in time."""
    named = tuple(law for law in laws if law.name in found.laws)
    terms = [t for t in template.instance(template.values).values() if t.children and t.out.rows is T]
    for tried in named, laws:
        for term in sorted(dict.fromkeys(map(as_operator, terms)), key=count_nodes):
            if monotonic() > until:
                return None
            try:
                if again := [wrong for wrong in check_term(term, tried, ROWS, seed) if same_fault(wrong, found)]:
                    return Failure(term, tried, found=again[0])
            except (TypeError, ValueError, KeyError):
                continue
    return None


def as_operator(term: Operator) -> Operator:
    """Return the operator whose value at the border is this term, over arrays without names."""
    by = {node: I if node.args[0] == "border" else node for node in term.walk() if node.kind.name == "symbol"}
    arrays = {
        node: node.kind(Data(node.args[0].array)) for node in term.walk() if node.kind.name in ("weight", "const")
    }
    return substitute(term, by | arrays)


def format_case(case: Failure, seed: int) -> str:
    """Return the case as Python code."""
    disagreement, arrays = case.found, []
    for leaf, name in labels(case.term).items():
        if isinstance(leaf, Data):
            kind = "const" if len(leaf.shape) == 1 else "weight"
            arrays.append(f"{name} = {kind}({leaf.array.tolist()})")
    body = text(case.term)
    names = ", ".join(law.name for law in case.laws)
    lines = [
        *imports(" ".join([*arrays, body])),
        *(f"from {law.body.__module__} import {law.name}" for law in case.laws),
        "from rewrites.verify import check_term",
        "",
        *arrays,
        f"term = {body}",
        *(f"# {line}" for line in str(disagreement).splitlines()),
        f"assert not (found := check_term(term, [{names}], {case.lengths}, {seed})), str(found[0])",
    ]
    return "\n".join(lines)


def imports(body: str) -> Iterator[str]:
    """Yield import lines for the names that the text of a term uses."""
    words = set(re.findall(r"(?<![.\w])[A-Za-z_]\w*(?!\w)(?!\s*=[^=])", body))
    for module in SPEAKS:
        if spoken := sorted(word for word in words if hasattr(import_module(module), word)):
            yield f"from {module} import {', '.join(spoken)}"
            words -= {*spoken}
